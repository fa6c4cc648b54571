//! Lists the types that may grow. `lock-driver` and `lock-sim` have wildcard arms for them: look at
//! those arms when you add a variant, and list it here.

use crate::{Answer, Blocked, Cause, Failure, Fault, Loss, Misuse, Release};

const fn blocked(why: Blocked) {
    match why {
        Blocked::Local
        | Blocked::Held
        | Blocked::HeldWithoutExpiry
        | Blocked::Unreachable
        | Blocked::RecentlyRestarted
        | Blocked::UnstableIdentity => {}
    }
}

const fn failed(why: &Failure) {
    match why {
        Failure::TimedOut(_)
        | Failure::KeyInUse(_)
        | Failure::Refused(_)
        | Failure::SequenceExhausted(_)
        | Failure::EqualNodes(..)
        | Failure::ShuttingDown => {}
    }
}

const fn lost(why: Loss) {
    match why {
        Loss::Expired | Loss::Gone | Loss::Taken | Loss::MaxHold | Loss::ShutDown | Loss::EqualNodes => {}
    }
}

const fn released(found: Release) {
    match found {
        Release::Released | Release::Expired | Release::Taken | Release::Unknown => {}
    }
}

const fn answered(answer: &Answer) {
    match answer {
        Answer::Silent
        | Answer::Granted
        | Answer::Taken(_)
        | Answer::Unreachable(_)
        | Answer::Unknown(_)
        | Answer::RecentlyRestarted
        | Answer::UnstableIdentity
        | Answer::Rejected(_) => {}
    }
}

const fn misused(why: Misuse) {
    match why {
        Misuse::ShuttingDown
        | Misuse::Stale(_)
        | Misuse::NotHeld(_)
        | Misuse::NotOffered(_)
        | Misuse::TooMany { .. }
        | Misuse::NoElections
        | Misuse::Invalid(_) => {}
    }
}

const fn caused(cause: &Cause) {
    match cause {
        Cause::Fault(_) | Cause::Server(_) => {}
    }
}

#[test]
fn variants_that_other_crates_take_for_unknown_are_listed() {
    blocked(Blocked::Local);
    failed(&Failure::ShuttingDown);
    lost(Loss::Expired);
    released(Release::Released);
    answered(&Answer::Silent);
    misused(Misuse::ShuttingDown);
    caused(&Cause::Fault(Fault::Reset));
}

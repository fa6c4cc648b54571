//! Faults of a store with compare-and-set.

use core::time::Duration;

use super::drawing::ms;
use super::{FaultEntry, FaultNeed, fault};
use crate::scenario::{Action, Backend, RegisterAction};

const REGISTER: FaultNeed = FaultNeed::Store(Backend::Register);

/// For a while reads show what was there earlier.
pub(in crate::scenario) const STALE_READS: FaultEntry = fault("stale-reads", &[REGISTER], |run| {
    let lag = |lag| Action::Register(RegisterAction::Lag(lag));
    let at_most = run.chance.pick(&[50, 500, 5_000]);
    run.for_a_while(lag(ms(at_most)), lag(Duration::ZERO));
});

/// For a while some requests are rolled back, and the outcome of others stays unknown.
pub(in crate::scenario) const FAIL: FaultEntry = fault("fail", &[REGISTER], |run| {
    let fails = |on| Action::Register(RegisterAction::Fail(on));
    run.for_a_while(fails(true), fails(false));
});

/// For a while watches miss changes.
pub(in crate::scenario) const LOSE_HINTS: FaultEntry = fault("lose-hints", &[REGISTER], |run| {
    let loses = |on| Action::Register(RegisterAction::LoseHints(on));
    run.for_a_while(loses(true), loses(false));
});

/// The clock of the store steps, by less than the margin.
pub(in crate::scenario) const STEP_CLOCK: FaultEntry = fault("step-clock", &[REGISTER], |run| {
    let ahead = run.chance.below(MARGIN_MS) as i64;
    run.now(Action::Register(RegisterAction::SetClock(ahead)));
});

/// The clock of the store steps forward by more than the margin.
pub(in crate::scenario) const SET_CLOCK: FaultEntry = fault("set-clock", &[REGISTER, FaultNeed::Beyond], |run| {
    let ahead = run.chance.below(20_000) as i64 - 5_000;
    run.now(Action::Register(RegisterAction::SetClock(ahead)));
});

/// Old free records are deleted.
pub(in crate::scenario) const SWEEP: FaultEntry =
    fault("sweep", &[REGISTER], |run| run.now(Action::Register(RegisterAction::Sweep)));

/// The store goes back to a backup.
pub(in crate::scenario) const RESTORE: FaultEntry = fault("restore", &[REGISTER, FaultNeed::Beyond], |run| {
    run.for_a_while(Action::Register(RegisterAction::BackUp), Action::Register(RegisterAction::Restore));
});

/// By how much the clock of the store may step, in ms.
pub(in crate::scenario) const MARGIN_MS: u64 = 500;

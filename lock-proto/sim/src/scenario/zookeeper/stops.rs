//! Runs in which servers are stopped for longer than sessions live, while clients whose sessions were
//! idle take locks.

use core::time::Duration;

use crate::chance::Chance;
use crate::direction::Direction;
use crate::scenario::faults::drawing::{Drawing, Habits, ms};
use crate::scenario::faults::queue::LOCKS;
use crate::scenario::{Action, PlanDraft, StoreSetup};
use lock_proto::Wait;

/// How long a member runs between two stops at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// A leader asks all followers of which sessions they have heard.
    Round,
    /// Nothing is certain. Clients continue their session on a new connection with each renewal.
    Nothing,
}

const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Draws other steps for a drawn run.
pub(super) fn draft(chance: &mut Chance, mut draft: PlanDraft, between: Between) -> PlanDraft {
    // A byte string may end before anything is stopped.
    if chance.is_exhausted() {
        return draft;
    }
    draft.steps.clear();
    let clients = draft.setup.clients.len();
    let StoreSetup::Zookeeper(store) = &mut draft.setup.store else { return draft };
    (store.idle_timeout, store.revalidate) = (IDLE_TIMEOUT, between == Between::Nothing);
    let (tick, ttl, patience) = (store.tick, store.session_ttl, store.request_timeout);
    let mut run = Drawing::new(chance, draft.setup, Habits { names: &LOCKS, ..Habits::default() });
    for _ in 0..2 + run.chance.below(4) {
        if run.chance.is_exhausted() {
            break;
        }
        // All have a session.
        for client in 0..clients {
            run.acquire(Duration::ZERO, client, LOCKS[client % LOCKS.len()], Wait::Forever, Some(ms(1)));
        }
        run.at += run.chance.duration(&(ttl / 2..ttl * 3));
        // The first member leads first.
        let member = if run.chance.one_in(2) { 0 } else { run.chance.index(3) };
        for _ in 0..1 + run.chance.below(3) {
            let most = run.chance.pick(&[ttl * 2, ttl * 2, tick * 2]);
            let resumed = run.chance.duration(&(ms(1)..most));
            run.now(Action::PauseNode(member));
            run.push(resumed, Action::ResumeNode(member));
            run.at += resumed;
            contend(&mut run, ttl, patience);
            run.at += match between {
                Between::Round => tick + run.chance.duration(&(Duration::ZERO..tick * 2)),
                Between::Nothing => {
                    let most = run.chance.pick(&[ms(3), tick]);
                    run.chance.duration(&(Duration::ZERO..most))
                }
            };
        }
        run.at += run.chance.duration(&(Duration::ZERO..ttl * 2));
    }
    PlanDraft { setup: run.setup, steps: run.steps, excused: draft.excused }
}

/// Two clients want a lock around the end of a stop, and the first one is then cut off from all
/// servers, or stopped as well.
fn contend(run: &mut Drawing<'_>, ttl: Duration, patience: Duration) {
    let (first, name) = (run.client(), run.name());
    let before = run.chance.duration(&(Duration::ZERO..patience));
    let after = run.chance.millis(20);
    let hold = run.chance.pick(&[ttl * 3, ttl / 2]);
    let resumed = run.at;
    run.at = resumed.saturating_sub(before);
    run.acquire(Duration::ZERO, first, name, Wait::Forever, Some(hold));
    run.at = resumed;
    run.acquire(after, (first + 1) % run.setup.clients.len(), name, Wait::Forever, Some(ttl / 4));
    let lost = run.chance.millis(10);
    let back = lost + run.chance.duration(&(ms(1)..ttl * 2));
    match run.chance.below(4) {
        0 => {}
        1 => {
            run.push(lost, Action::PauseClient(first));
            run.push(back, Action::ResumeClient(first));
        }
        _ => {
            for node in 0..3 {
                for direction in Direction::BOTH {
                    run.push(lost, Action::Cut { client: first, node, direction });
                }
                run.push(back, Action::Heal { client: first, node });
            }
        }
    }
}

//! Faults of a ZooKeeper ensemble. They begin at any time of a run.

use core::time::Duration;

use super::drawing::{Drawing, ms};
use super::{FaultEntry, FaultNeed, fault};
use crate::scenario::{Action, Backend, QueueAction, StoreSetup, ZookeeperAction};
use crate::zookeeper::Condition;

const ZOOKEEPER: FaultNeed = FaultNeed::Store(Backend::Zookeeper);

/// Draws a member, a lock, and how long the fault lasts.
fn target(run: &mut Drawing<'_>) -> (usize, &'static str, Duration) {
    (run.node(), run.name(), run.span())
}

fn delay(run: &mut Drawing<'_>, member: usize, lag: Duration, span: Duration) {
    run.now(Action::Zookeeper(ZookeeperAction::Delay { member, lag }));
    run.push(span, Action::Zookeeper(ZookeeperAction::Delay { member, lag: Duration::ZERO }));
}

fn refuse(run: &mut Drawing<'_>, condition: Condition, span: Duration) {
    run.now(Action::Zookeeper(ZookeeperAction::Condition { condition, on: true }));
    run.push(span, Action::Zookeeper(ZookeeperAction::Condition { condition, on: false }));
}

/// A follower lags behind.
pub(in crate::scenario) const DELAY: FaultEntry = fault("delay", &[ZOOKEEPER], |run| {
    let (member, _, span) = target(run);
    let lag = run.chance.millis(1_500);
    delay(run, member, lag, span);
});

/// A member is cut off from the others.
pub(in crate::scenario) const ISOLATE: FaultEntry = fault("isolate", &[ZOOKEEPER], |run| {
    let (member, _, span) = target(run);
    run.queue(Duration::ZERO, QueueAction::Isolate(member));
    run.queue(span, QueueAction::Rejoin(member));
});

/// A client is stopped, and a member is cut off from the others soon after it goes on.
pub(in crate::scenario) const PAUSE_AND_ISOLATE: FaultEntry = fault("pause-and-isolate", &[ZOOKEEPER], |run| {
    let (member, _, span) = target(run);
    let StoreSetup::Zookeeper(store) = &run.setup.store else { return };
    let (tick, ttl) = (store.tick, store.session_ttl);
    // The leader learns within half a tick that the client goes on.
    let resumed = run.chance.duration(&(tick..ttl));
    let cut = resumed + run.chance.duration(&(Duration::ZERO..tick));
    let client = run.client();
    run.now(Action::PauseClient(client));
    run.push(resumed, Action::ResumeClient(client));
    run.queue(cut, QueueAction::Isolate(member));
    run.queue(cut + span, QueueAction::Rejoin(member));
});

/// Another program creates a node in a queue.
pub(in crate::scenario) const ADD_FOREIGN: FaultEntry = fault("add-foreign", &[ZOOKEEPER], |run| {
    let (_, name, _) = target(run);
    run.now(Action::Zookeeper(ZookeeperAction::AddForeign { name }));
});

/// The sequence numbers of a queue come to their end.
pub(in crate::scenario) const SET_SEQUENCE: FaultEntry = fault("set-sequence", &[ZOOKEEPER], |run| {
    let (_, name, _) = target(run);
    let before = i32::try_from(run.chance.below(4)).unwrap_or(0);
    let next = run.chance.pick(&[i32::MAX - (1 << 16), i32::MAX, i32::MIN + 5]).saturating_sub(before);
    run.now(Action::Zookeeper(ZookeeperAction::SetSequence { name, next }));
});

/// Servers refuse requests.
pub(in crate::scenario) const REFUSE: FaultEntry = fault("refuse", &[ZOOKEEPER], |run| {
    let (_, _, span) = target(run);
    let condition = run.chance.pick(&[Condition::Throttled, Condition::NoDelete]);
    refuse(run, condition, span);
});

/// Servers are overloaded: they reject requests and commit slowly, and a client loses its
/// connections.
pub(in crate::scenario) const OVERLOAD: FaultEntry = fault("overload", &[ZOOKEEPER], |run| {
    let (_, _, span) = target(run);
    let lag = ms(50) + run.chance.millis(450);
    for member in 0..run.setup.nodes.len() {
        delay(run, member, lag, span);
    }
    refuse(run, Condition::Throttled, span);
    let client = run.client();
    for _ in 0..4 {
        let reset = run.chance.duration(&(Duration::ZERO..span + ms(1)));
        (0..run.setup.nodes.len()).for_each(|node| run.push(reset, Action::Reset { client, node }));
    }
});

//! Faults of etcd.

use core::time::Duration;

use super::drawing::ms;
use super::queue::ELECTION;
use super::{FaultEntry, FaultNeed, fault};
use crate::etcd::Condition;
use crate::scenario::{Action, Backend, EtcdAction, QueueAction};

const ETCD: FaultNeed = FaultNeed::Store(Backend::Etcd);

/// A member stops in order, and comes back.
pub(in crate::scenario) const STOP_MEMBER: FaultEntry = fault("stop-member", &[ETCD], |run| {
    let node = run.node();
    run.for_a_while(Action::Etcd(EtcdAction::StopMember(node)), Action::RestartNode { node, keep_data: true });
});

/// The cluster refuses requests for a while.
pub(in crate::scenario) const REFUSE: FaultEntry = fault("refuse", &[ETCD], |run| {
    let condition = run.chance.pick(&[Condition::TooManyRequests, Condition::NoSpace]);
    let state = |on| Action::Etcd(EtcdAction::Condition { condition, on });
    run.for_a_while(state(true), state(false));
});

/// A member is paused for long enough that another leads.
pub(in crate::scenario) const PAUSE_LEADER: FaultEntry = fault("pause-leader", &[ETCD, FaultNeed::Nodes(3)], |run| {
    // One of three members leads.
    let member = run.node();
    run.now(Action::PauseNode(member));
    let after = ms(1_100) + run.chance.millis(3_000);
    run.push(after, Action::ResumeNode(member));
    // Connections break around that time, so that clients come back to the member.
    for _ in 0..run.chance.below(2 * run.setup.clients.len() as u64) {
        let (client, node) = (run.client(), run.node());
        let after = after + run.chance.millis(80);
        run.push(after, Action::Reset { client, node });
    }
});

pub(in crate::scenario) const COMPACT: FaultEntry =
    fault("compact", &[ETCD], |run| run.now(Action::Etcd(EtcdAction::Compact)));

/// An unrelated key is written.
pub(in crate::scenario) const TOUCH: FaultEntry =
    fault("touch", &[ETCD], |run| run.now(Action::Etcd(EtcdAction::Touch)));

pub(in crate::scenario) const CANCEL_WATCHES: FaultEntry =
    fault("cancel-watches", &[ETCD], |run| run.now(Action::Etcd(EtcdAction::CancelWatches)));

pub(in crate::scenario) const END_STREAMS: FaultEntry = fault("end-streams", &[ETCD], |run| {
    let member = run.node();
    run.now(Action::Etcd(EtcdAction::EndStreams(member)));
});

/// The watches of a member lose events for a while.
pub(in crate::scenario) const LOSE_EVENTS: FaultEntry = fault("lose-events", &[ETCD], |run| {
    let member = run.node();
    run.for_a_while(Action::Etcd(EtcdAction::LoseEvents(member)), Action::Etcd(EtcdAction::KeepEvents(member)));
});

pub(in crate::scenario) const EXPIRE_TOKENS: FaultEntry =
    fault("expire-tokens", &[ETCD, FaultNeed::Login], |run| run.now(Action::Etcd(EtcdAction::ExpireTokens)));

/// A key is replaced by hand, and its holder writes or proclaims before it learns of it.
pub(in crate::scenario) const REPLACE_KEY: FaultEntry = fault("replace-key", &[ETCD, FaultNeed::Beyond], |run| {
    let name = if run.habits.elections_only { ELECTION } else { run.name() };
    run.now(Action::Etcd(EtcdAction::ReplaceKey { name, oldest: true }));
    for tag in run.tag.saturating_sub(6)..=run.tag {
        let after = Duration::from_micros(run.chance.below(5_000));
        let write = run.chance.one_in(3);
        run.push(after, if write { Action::Write(tag) } else { Action::Queue(QueueAction::Proclaim(tag)) });
    }
});

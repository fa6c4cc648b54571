//! Draws the runs of a scenario on ZooKeeper. They are those of etcd, with other servers.

use alloc::vec::Vec;
use core::time::Duration;

use super::super::etcd::draw::{Mix, queue_draft};
use super::super::queue::QueueAction;
use super::super::{Action, Draft, EtcdAction, Setup, Step, Store, claims, lost};
use super::{ZookeeperAction, ZookeeperStore};
use crate::chance::Chance;
use crate::zookeeper::{Condition, Release};

/// A kind of fault that etcd does not have. It begins at a random time and ends after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A follower lags behind.
    Delay,
    /// A member is cut off from the others.
    Isolate,
    /// A client is stopped, and a member is cut off from the others soon after it goes on.
    PauseAndIsolate,
    AddForeign,
    SetSequence,
    /// Servers refuse requests.
    Refuse,
    /// Servers are overloaded: they reject requests and commit slowly, and a client loses its
    /// connections.
    Overload,
}

pub(super) struct Servers {
    /// Kinds of faults, with their greatest numbers.
    pub(super) faults: &'static [(Fault, u64)],
    /// Numbers of members to choose from.
    pub(super) members: &'static [usize],
    pub(super) login: bool,
    /// After how many ticks a follower gives up its leader, to choose from. Few are less than a
    /// session timeout.
    pub(super) sync_limits: &'static [u32],
}

pub(super) const SERVERS: Servers = Servers { faults: &[], members: &[3, 1], login: false, sync_limits: &[5, 10, 20] };

/// Short, so that sessions end and are opened again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const LOCKS: [&str; 2] = ["a", "b"];

pub(super) fn draft(chance: &mut Chance, mix: &Mix, servers: &Servers) -> Draft {
    // The excuse is for watches of etcd, which are late by themselves.
    let Draft { mut setup, mut steps, .. } = queue_draft(chance, mix);
    let excused = Vec::new();
    let Store::Etcd(drawn) = setup.store else { return Draft { setup, steps, excused } };
    let tick = Duration::from_millis(chance.pick(&[200, 100]));
    setup.store = Store::Zookeeper(ZookeeperStore {
        tick,
        sync_limit: chance.pick(servers.sync_limits),
        session_ttl: drawn.session_ttl.min(tick * 20),
        idle_timeout: IDLE_TIMEOUT,
        revalidate: false,
        turn: drawn.turn,
        request_timeout: drawn.request_timeout,
        watch_own_after: drawn.watch_own_after,
        recheck: drawn.recheck,
        container_interval: Duration::from_millis(chance.pick(&[60_000, 1_000, 100])),
        release: if chance.one_in(3) { Release::V3_9 } else { Release::V3_8 },
        login: servers.login,
    });
    let members = chance.pick(servers.members);
    setup.nodes.resize(members, setup.nodes[0]);
    for step in &mut steps {
        translate(&mut step.action, members);
    }
    let end = steps.iter().map(|step| step.at).max().unwrap_or_default();
    for (fault, most) in servers.faults {
        for _ in 0..chance.below(most + 1) {
            let at = chance.duration(&(Duration::ZERO..end));
            add(chance, *fault, &setup, at, &mut steps);
        }
    }
    if let Store::Zookeeper(store) = &setup.store {
        claims::sometimes_late(chance, &mut steps, store.session_ttl);
        lost::sometimes_before_shutdown(chance, &mut steps, store.session_ttl);
    }
    Draft { setup, steps, excused }
}

fn add(chance: &mut Chance, fault: Fault, setup: &Setup, at: Duration, steps: &mut Vec<Step>) {
    let member = chance.index(setup.nodes.len());
    let name = chance.pick(&LOCKS);
    let bound = chance.pick(&[1_000, 4_000, 10_000]);
    let after = chance.millis(bound);
    let mut push = |at, action| steps.push(Step { at, action });
    match fault {
        Fault::Delay => {
            let lag = chance.millis(1_500);
            push(at, Action::Zookeeper(ZookeeperAction::Delay { member, lag }));
            push(at + after, Action::Zookeeper(ZookeeperAction::Delay { member, lag: Duration::ZERO }));
        }
        Fault::Isolate => {
            push(at, Action::Queue(QueueAction::Isolate(member)));
            push(at + after, Action::Queue(QueueAction::Rejoin(member)));
        }
        Fault::PauseAndIsolate => {
            let Store::Zookeeper(store) = &setup.store else { return };
            // The leader learns within half a tick that the client goes on.
            let resumed = at + chance.duration(&(store.tick..store.session_ttl));
            let cut = resumed + chance.duration(&(Duration::ZERO..store.tick));
            let client = chance.index(setup.clients.len());
            push(at, Action::PauseClient(client));
            push(resumed, Action::ResumeClient(client));
            push(cut, Action::Queue(QueueAction::Isolate(member)));
            push(cut + after, Action::Queue(QueueAction::Rejoin(member)));
        }
        Fault::AddForeign => push(at, Action::Zookeeper(ZookeeperAction::AddForeign { name })),
        Fault::SetSequence => {
            let before = i32::try_from(chance.below(4)).unwrap_or(0);
            let next = chance.pick(&[i32::MAX - (1 << 16), i32::MAX, i32::MIN + 5]).saturating_sub(before);
            push(at, Action::Zookeeper(ZookeeperAction::SetSequence { name, next }));
        }
        Fault::Overload => {
            let (lag, condition) = (Duration::from_millis(50) + chance.millis(450), Condition::Throttled);
            for member in 0..setup.nodes.len() {
                push(at, Action::Zookeeper(ZookeeperAction::Delay { member, lag }));
                push(at + after, Action::Zookeeper(ZookeeperAction::Delay { member, lag: Duration::ZERO }));
            }
            push(at, Action::Zookeeper(ZookeeperAction::Condition { condition, on: true }));
            push(at + after, Action::Zookeeper(ZookeeperAction::Condition { condition, on: false }));
            let client = chance.index(setup.clients.len());
            for _ in 0..4 {
                let reset = at + chance.duration(&(Duration::ZERO..after + Duration::from_millis(1)));
                (0..setup.nodes.len()).for_each(|node| push(reset, Action::Reset { client, node }));
            }
        }
        Fault::Refuse => {
            let condition = chance.pick(&[Condition::Throttled, Condition::NoDelete]);
            push(at, Action::Zookeeper(ZookeeperAction::Condition { condition, on: true }));
            push(at + after, Action::Zookeeper(ZookeeperAction::Condition { condition, on: false }));
        }
    }
}

/// Turns an action of the members of etcd into one of an ensemble.
fn translate(action: &mut Action, members: usize) {
    match action {
        Action::PauseNode(node)
        | Action::ResumeNode(node)
        | Action::KillNode(node)
        | Action::RestartNode { node, .. }
        | Action::Cut { node, .. }
        | Action::Heal { node, .. }
        | Action::Reset { node, .. }
        | Action::Slow { node, .. }
        | Action::Stall { node, .. }
        | Action::BlockSocket { node, .. }
        | Action::Handshake { node, .. } => *node %= members,
        Action::Queue(QueueAction::Isolate(member) | QueueAction::Rejoin(member)) => *member %= members,
        Action::Etcd(EtcdAction::StopMember(member)) => *action = Action::KillNode(*member % members),
        Action::Acquire { .. }
        | Action::Claim(_)
        | Action::Extend(_)
        | Action::Release(_)
        | Action::Abandon(_)
        | Action::Write(_)
        | Action::Shutdown { .. }
        | Action::PauseClient(_)
        | Action::SuspendClient(_)
        | Action::ResumeClient(_)
        | Action::KillClient(_)
        | Action::JumpNode { .. }
        | Action::Source(_)
        | Action::ChangePasswords(_)
        | Action::Queue(_)
        | Action::Redis(_)
        // No other is drawn for ZooKeeper.
        | Action::Etcd(_)
        | Action::Zookeeper(_) => {}
    }
}

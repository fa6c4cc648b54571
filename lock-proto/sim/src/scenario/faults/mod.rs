//! The table of faults: what can happen in a run, apart from plain requests.
//!
//! A fault has a name, what a scenario must offer to draw it, and a function that draws its steps.
//! Scenarios list faults with their greatest weights. A fault that a scenario lists without
//! offering what it needs is a compile error.

pub(super) mod drawing;
pub(super) mod etcd;
pub(super) mod queue;
pub(super) mod redis;
pub(super) mod register;
pub(super) mod zookeeper;

use super::{Action, Backend, credentials, tls};
use crate::direction::Direction;
use drawing::{Drawing, ms};

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultEntry {
    pub(super) name: &'static str,
    pub(super) needs: &'static [FaultNeed],
    /// Draws the steps of the fault.
    pub(super) apply: fn(&mut Drawing<'_>),
}

/// What a scenario must offer for a fault to make sense.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultNeed {
    /// This kind of store.
    Store(Backend),
    /// etcd or ZooKeeper.
    Queue,
    /// At least so many nodes in each run.
    Nodes(usize),
    /// Clients connect by TLS in each run.
    Tls,
    /// Clients log in in some runs.
    Login,
    /// Clients obtain credentials.
    Credentials,
    /// Clients still get data from ended connections.
    Stale,
    /// The bounds of the guarantees are exceeded.
    Beyond,
}

const fn fault(name: &'static str, needs: &'static [FaultNeed], apply: fn(&mut Drawing<'_>)) -> FaultEntry {
    FaultEntry { name, needs, apply }
}

pub(super) const PAUSE_CLIENT: FaultEntry = fault("pause-client", &[], |run| {
    let client = run.client();
    run.for_a_while(Action::PauseClient(client), Action::ResumeClient(client));
});

pub(super) const SUSPEND_CLIENT: FaultEntry = fault("suspend-client", &[FaultNeed::Beyond], |run| {
    let client = run.client();
    run.for_a_while(Action::SuspendClient(client), Action::ResumeClient(client));
});

pub(super) const KILL_CLIENT: FaultEntry = fault("kill-client", &[], |run| {
    let client = run.client();
    run.now(Action::KillClient(client));
});

pub(super) const PAUSE_NODE: FaultEntry = fault("pause-node", &[], |run| {
    let node = run.node();
    run.for_a_while(Action::PauseNode(node), Action::ResumeNode(node));
});

/// All connections between a client and a node end.
pub(super) const RESET: FaultEntry = fault("reset", &[], |run| {
    let (client, node) = (run.client(), run.node());
    run.now(Action::Reset { client, node });
});

/// Data in flight arrives after its connection was replaced.
pub(super) const REPLACE: FaultEntry = fault("replace", &[FaultNeed::Stale], |run| {
    let (client, node) = (run.client(), run.node());
    if run.chance.one_in(2) {
        return run.now(Action::Reset { client, node });
    }
    let (least, more) = run.habits.stall;
    let span = ms(least) + run.chance.millis(more);
    run.now(Action::Stall { client, node, direction: Direction::ToClient, span });
});

/// For a while sockets take nothing, some of them those of new connections.
pub(super) const BLOCK_SOCKET: FaultEntry = fault("block-socket", &[FaultNeed::Credentials], |run| {
    let (client, node, span) = (run.client(), run.node(), run.span());
    run.now(Action::BlockSocket { client, node, span });
    if run.chance.one_in(2) {
        run.now(Action::Reset { client, node });
    }
});

/// For a while connections to a node fail because of TLS.
pub(super) const HANDSHAKE: FaultEntry = fault("handshake", &[FaultNeed::Tls], |run| {
    let span = run.span();
    tls::add_failure(run.chance, &run.setup, &mut run.steps, (run.at, span));
});

/// For a while the source of credentials does not work.
pub(super) const SOURCE: FaultEntry = fault("source", &[FaultNeed::Credentials], |run| {
    let span = run.span();
    credentials::add_failure(run.chance, &mut run.steps, (run.at, span));
});

pub(super) const CHANGE_PASSWORDS: FaultEntry = fault("change-passwords", &[FaultNeed::Credentials], |run| {
    let change = credentials::change(run.chance);
    run.now(change);
});

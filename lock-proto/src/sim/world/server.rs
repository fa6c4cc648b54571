//! A server process: the node, and whether it runs.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::iter;

use super::super::redis::Node;
use super::super::trace::State;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) node: Node,
    pub(super) state: State,
    /// What has come while it was stopped. Its kernel took it, so it is executed when the process goes on, even if the
    /// client has hung up meanwhile.
    pub(super) inbox: VecDeque<Inbound>,
    /// When the node wants to be called.
    next: Option<Instant>,
    /// What its replica has, from the moment on at which that hears of nothing more.
    pub(super) replica: Option<Box<Node>>,
}

/// Something that reaches a server, by the number of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    Open(u64),
    Bytes(u64, Vec<u8>),
    Close(u64),
}

impl Server {
    pub(super) const fn new(node: Node) -> Self {
        Self { node, state: State::Running, inbox: VecDeque::new(), next: None, replica: None }
    }

    /// When the node wants to be called; `None` while it does not run.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.state == State::Running)
    }

    /// The node, and its replica.
    pub(super) fn with_replica(&mut self) -> impl Iterator<Item = &mut Node> {
        iter::once(&mut self.node).chain(self.replica.as_deref_mut())
    }

    /// Asks the node when it wants to be called: after every call.
    pub(super) fn look(&mut self) {
        self.next = self.node.next_deadline();
    }
}

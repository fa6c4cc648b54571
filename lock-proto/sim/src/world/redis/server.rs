//! A server: a node and its replica.

use alloc::boxed::Box;
use core::iter;

use crate::redis::Node;
use lock_proto::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) node: Node,
    pub(super) next: Option<Instant>,
    /// State of the replica, from the moment replication stopped.
    pub(super) replica: Option<Box<Node>>,
}

impl Server {
    pub(super) const fn new(node: Node) -> Self {
        Self { node, next: None, replica: None }
    }

    pub(super) fn with_replica(&mut self) -> impl Iterator<Item = &mut Node> {
        iter::once(&mut self.node).chain(self.replica.as_deref_mut())
    }

    /// Updates the node's deadline. Called after every call to it.
    pub(super) fn update_deadline(&mut self) {
        self.next = self.node.next_deadline();
    }
}

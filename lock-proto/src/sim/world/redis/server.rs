//! A server: the node, and what its replica has.

use alloc::boxed::Box;
use core::iter;

use crate::sim::redis::Node;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) node: Node,
    /// When the node wants to be called.
    pub(super) next: Option<Instant>,
    /// What its replica has, from the moment on at which that hears of nothing more.
    pub(super) replica: Option<Box<Node>>,
}

impl Server {
    pub(super) const fn new(node: Node) -> Self {
        Self { node, next: None, replica: None }
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

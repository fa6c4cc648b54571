//! The end of the queue, as the client last knew it. If the number of its next node directly
//! follows, the client knows its place without a list of the queue.
// ZK10

use alloc::boxed::Box;
use core::time::Duration;

use super::wait::{NodeWatch, QueuePlace};
use super::{OwnerNode, ZooKeeperName};
use crate::time::Instant;

/// How long the tail is kept after the node of the hold was deleted.
const TTL: Duration = Duration::from_secs(1);

/// The end of a queue whose first node was that of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tail {
    /// The node of the hold.
    first: OwnerNode,
    /// The newest node, unless it is that of the hold: its number, its path, and whether it is the
    /// second one.
    behind: Option<(i32, Box<str>, bool)>,
    /// The number of that node directly followed the one that the client knew before.
    followed: bool,
    /// Set once the node of the hold is deleted: when to forget all this.
    pub(super) until: Option<Instant>,
}

impl Tail {
    pub(super) fn new(first: &OwnerNode, behind: Option<(i32, Box<str>, bool)>, followed: bool) -> Self {
        Self { first: first.clone(), behind, followed, until: None }
    }

    /// Returns what is ahead of a new node whose number directly follows. Every create in the queue
    /// takes a number, so there was none in between. If the queue was deleted and created since,
    /// its numbers began anew, and more transactions than numbers lie between the two nodes.
    fn ahead_of(self, node: &OwnerNode) -> Option<QueuePlace> {
        let newest = self.behind.as_ref().map_or(self.first.sequence, |(newest, ..)| *newest);
        let follows = self.until.is_some() && newest.checked_add(1) == Some(node.sequence);
        // Two deletions, the create of the queue, and a create for each number up to this one.
        let began_anew = node.czxid.saturating_sub(self.first.czxid) >= i64::from(node.sequence) + 4;
        (follows && !began_anew).then_some(match self.behind {
            Some((_, path, is_first)) => QueuePlace::Behind { path, is_first, watch: NodeWatch::None },
            None => QueuePlace::First,
        })
    }
}

impl ZooKeeperName {
    /// Returns true if a new node probably needs no list of the queue.
    pub(super) fn may_follow(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.followed || tail.behind.is_some())
    }

    /// Returns what is ahead of the new node, if that is known. The tail is outdated by it.
    pub(super) fn ahead_of(&mut self, node: &OwnerNode) -> Option<QueuePlace> {
        self.tail.take().and_then(|tail| tail.ahead_of(node))
    }

    /// The node was deleted.
    pub(super) fn deleted(&mut self, now: Instant, path: &str) {
        if let Some(tail) = self.tail.as_mut().filter(|tail| *tail.first.path == *path) {
            tail.until = Some(now + TTL);
        }
    }
}

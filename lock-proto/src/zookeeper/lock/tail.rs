//! The end of the queue, as the client last knew it. If the number of its next node directly
//! follows, the client knows its place without a list of the queue.
// ZK10

use alloc::boxed::Box;
use core::time::Duration;

use super::wait::{Ahead, Watch};
use super::{Nodes, OwnerNode};
use crate::time::Instant;

/// How long it is remembered after the node of the hold was deleted.
const TTL: Duration = Duration::from_secs(1);

/// The end of a queue whose first node was that of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tail {
    /// The node of the hold.
    first: Box<str>,
    /// The transaction that created it.
    czxid: i64,
    /// The number of the newest node.
    newest: i32,
    /// The newest node, unless it is that of the hold, and whether it is the second one.
    behind: Option<(Box<str>, bool)>,
    /// Set once the node of the hold is deleted: when to forget all this.
    pub(super) until: Option<Instant>,
}

impl Tail {
    pub(super) fn new(first: &OwnerNode, behind: Option<(i32, Box<str>, bool)>) -> Self {
        let newest = behind.as_ref().map_or(first.sequence, |(newest, ..)| *newest);
        let behind = behind.map(|(_, path, is_second)| (path, is_second));
        Self { first: first.path.clone(), czxid: first.czxid, newest, behind, until: None }
    }

    /// Returns what is ahead of a new node whose number directly follows. Every create in the queue
    /// takes a number, so there was none in between. If the queue was deleted and created since,
    /// its numbers began anew, and more transactions than numbers lie between the two nodes.
    fn ahead_of(self, node: &OwnerNode) -> Option<Ahead> {
        let follows = self.until.is_some() && self.newest.checked_add(1) == Some(node.sequence);
        // Two deletions, the create of the queue, and a create for each number up to this one.
        let began_anew = node.czxid.saturating_sub(self.czxid) >= i64::from(node.sequence) + 4;
        (follows && !began_anew).then_some(match self.behind {
            Some((path, is_first)) => Ahead::Behind { path, is_first, watch: Watch::None },
            None => Ahead::First,
        })
    }
}

impl Nodes {
    /// Returns true if a new node probably needs no list of the queue.
    pub(super) fn may_follow(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| self.followed || tail.behind.is_some())
    }

    /// Returns what is ahead of the new node, if that is known. The tail is outdated by it.
    pub(super) fn ahead_of(&mut self, node: &OwnerNode) -> Option<Ahead> {
        let ahead = self.tail.take().and_then(|tail| tail.ahead_of(node));
        self.followed = ahead.is_some();
        ahead
    }

    /// The node was deleted.
    pub(super) fn deleted(&mut self, now: Instant, path: &str) {
        if let Some(tail) = self.tail.as_mut().filter(|tail| *tail.first == *path) {
            tail.until = Some(now + TTL);
        }
    }
}

//! What the line of a lock and its store tell each other.
//!
//! A [`Line`](super::line::Line) knows who waits and who holds, but no store. A store machine knows
//! its servers, but nobody who waits. Neither calls the other: the line gives [`Order`]s, and the
//! store reports [`Fact`]s. Facts are applied in their order before the input returns that caused
//! them.
// M10

use alloc::boxed::Box;
use core::fmt::Debug;
use core::hash::Hash;

use super::answer::Answer;
use super::event::{Blocked, Report};
use super::grant::{Grant, Loss, Release};
use super::waiters::Waiter;
use crate::id::{LockId, NodeId};
use crate::time::Instant;

/// The store's terms of an acquisition, such as a TTL.
pub trait Terms: Clone + Debug + PartialEq + Eq + Hash {
    /// Returns true if a hold on the terms of `holder` may be handed over to a waiter with these.
    fn may_follow(&self, holder: &Self) -> bool;
}

/// What the line wants of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order<T> {
    /// Contend for this waiter, in place of any other; `None`: nobody waits any more.
    Contend(Option<Waiter<T>>),
    /// The holder has claimed its offer: renew the hold from now on.
    Claim(LockId),
    /// Renew the hold for a full TTL from now. Answered by [`Fact::Renewed`] or
    /// [`Fact::ExtendFailed`].
    Extend(LockId),
    /// Hand the hold over to this waiter. Answered by [`Fact::Granted`].
    HandOver {
        /// The acquisition that had the hold.
        from: LockId,
        /// The one that gets it.
        to: Waiter<T>,
    },
    /// The hold is lost, but its guard is alive: send nothing that ends the key before its TTL.
    // H6
    Leave {
        /// The acquisition that had the hold.
        id: LockId,
        /// Why it was lost.
        loss: Loss,
    },
    /// The hold has ended, and its guard, if there was one, was returned: remove it from the servers.
    End {
        /// The acquisition that had the hold.
        id: LockId,
        /// Why it was lost, if it was lost just now.
        loss: Option<Loss>,
        /// Report the outcome by [`Fact::Released`].
        answer: bool,
        /// Waiters of this client remain: other clients go first.
        yields: bool,
    },
    /// Report the outcome of this release now.
    GiveUp(LockId),
    /// The client is shutting down.
    ShutDown,
}

/// What the store reports. Facts about a hold name the acquisition that has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The contention has not succeeded yet, for this reason.
    Blocked(Blocked),
    /// The only attempt of the waiter failed.
    NotTaken,
    /// No acquisition can succeed.
    Hopeless(Hopeless),
    /// The servers granted the lock to the waiter. What it needs is still being prepared: a full
    /// TTL, a fencing token, a value.
    Taken(LockId, Holding),
    /// The grant is complete.
    Granted(LockId, Grant),
    /// The grant cannot be completed, and the waiter contends again.
    Unprepared(LockId),
    /// The servers refuse to complete the grant.
    PrepareRefused(LockId),
    /// A renewal was confirmed. It answers this many extensions.
    Renewed(LockId, usize),
    /// An extension was not confirmed.
    ExtendFailed(LockId, Report),
    /// The hold is lost.
    Lost(LockId, Loss),
    /// The outcome of a release; if it is unknown, the last reply of each server, unless none has
    /// failed.
    Released(LockId, Release, Box<[Answer]>),
    /// The value of the holder was stored at this revision.
    Proclaimed(LockId, i64),
    /// The value of the holder was not confirmed in time.
    ProclaimFailed(LockId, Report),
}

/// Why no acquisition can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hopeless {
    /// The key holds a value that is not a lock.
    KeyInUse,
    /// The servers refuse.
    Refused,
    /// The numbers of the queue are used up.
    SequenceExhausted,
    /// Two nodes are the same server.
    EqualNodes(NodeId, NodeId),
}

/// What the store knows of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The end of validity in the store.
    pub until: Instant,
    /// The TTL in nanoseconds. Arithmetic on `Duration` is several times slower.
    pub ttl: u64,
    /// Until then the hold may go to another waiter of this client instead of being released; `None`
    /// if it may not.
    pub hands_over_until: Option<Instant>,
}

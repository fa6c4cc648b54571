//! What a store implements: the machine of one lock name, and what the names of a client share.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::answer::Answer;
use super::client::{Client, Transport};
use super::config::Config;
use super::context::Env;
use super::election::Elections;
use super::event::{Event, Failure};
use super::exchange::{Holding, Order, Terms};
use super::hub::Locks;
use super::operation::{LeaderQuery, OperationEvent, OperationId};
use super::request::Acquire;
use super::tuning::DEFAULT_TTL;
use crate::error::Misuse;
use crate::id::{CallId, LockId};
use crate::time::Instant;

/// How a store takes, keeps and releases one lock. The value holds the store's state for one name.
///
/// It gets [`Order`]s, replies and timeouts, and reports [`Fact`](super::exchange::Fact)s.
pub trait Store: Clone + Debug + PartialEq + Eq + Hash + Sized {
    /// The name of a lock in the store.
    type Key: Clone + Debug + PartialEq + Eq + Ord + Hash;
    /// The store's terms of an acquisition, such as a TTL.
    type Terms: Terms;
    /// The settings that only this store has.
    type Settings: Clone + Debug + PartialEq + Eq + Hash;
    /// State that the locks of a client share.
    type Shared: SharedState<Self>;
    /// An output of the locks.
    type Output: Clone + Debug + PartialEq + Eq + Hash + From<(LockId, Event)> + From<(OperationId, OperationEvent)>;

    /// Creates the state of a name that is not in use.
    fn new(key: Self::Key) -> Self;
    /// Returns the name.
    fn key(&self) -> &Self::Key;
    /// Checks a request, and returns its name and terms.
    ///
    /// # Errors
    ///
    /// [`Misuse`] for the first value that is out of range.
    fn terms_of(config: &Config<Self::Settings>, request: &Acquire) -> Result<(Self::Key, Self::Terms), Misuse>;
    /// Carries out what the line wants.
    fn order(&mut self, env: &mut Env<Self>, order: Order<Self::Terms>);
    /// Does the work that is due.
    fn timeout(&mut self, env: &mut Env<Self>);
    /// Returns the next deadline and its reason.
    fn deadline(&self, env: &Env<Self>) -> Option<(Instant, &'static str)>;
    /// Returns what is known of the hold of an acquisition.
    fn holding(&self, env: &Env<Self>, id: LockId) -> Option<Holding>;
    /// Returns the last reply of each server, for reports.
    fn answers(&self) -> Box<[Answer]>;
    /// Called after every step. Frees what is no longer needed, and updates the shared state.
    fn after_step(&mut self, env: &mut Env<Self>);
    /// Returns true if a shutdown has nothing left to wait for.
    fn is_drained(&self, env: &Env<Self>) -> bool;
    /// Returns true if no work and no state is left.
    fn is_over(&self) -> bool;
}

/// What the locks of a client share.
pub trait SharedState<S: Store<Shared = Self>>: Clone + Debug + PartialEq + Eq + Hash {
    /// How the store reads the leader of an election.
    type Query: LeaderQuery<S>;

    /// Returns the TTL of requests that name none.
    fn default_ttl(_: &Config<S::Settings>) -> Duration {
        DEFAULT_TTL
    }
    /// Returns why no acquisition can succeed now, if so.
    fn refuses(&self) -> Option<Failure> {
        None
    }
    /// Returns the number of servers that requests are sent to.
    fn servers(&self) -> u16 {
        1
    }
    /// Emits a request that changes nothing, to check a server.
    fn ping(env: &mut Env<S>, call: CallId);
    /// Returns the next deadline and its reason.
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        None
    }
    /// Returns true if there is due work.
    fn is_unsettled(&self, _now: Instant) -> bool {
        false
    }
    /// Does one due task that precedes all locks. Returns true if there was one.
    fn settle_first(_: &mut Locks<S>) -> bool {
        false
    }
    /// Called when a shutdown begins, after every lock was notified.
    fn shutting_down(_: &mut Locks<S>) {}
    /// Called when every lock is drained. Returns true once nothing is left here either.
    fn drain(_: &mut Locks<S>) -> bool {
        true
    }
    /// Ends the shutdown, with this many locks unreleased.
    fn stopped(locks: &mut Locks<S>, unreleased: u32) -> S::Output;
    /// Returns the elections, if the store has them.
    fn elections(_: &mut Client<S>) -> Option<&mut dyn Elections>
    where
        S: Transport,
    {
        None
    }
}

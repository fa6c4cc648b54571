//! The operations that a store implements for the lifecycle of a lock.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::answer::Answer;
use super::client::{Client, Transport};
use super::config::Config;
use super::context::Context;
use super::election::Elections;
use super::event::{Event, Failure};
use super::grant::{Grant, Loss, Release};
use super::hub::Locks;
use super::lifecycle::{Ended, Lock};
use super::request::Acquire;
use super::tenure::{Tenure, Terms};
use super::tuning::DEFAULT_TTL;
use super::waiters::Waiter;
use crate::error::Misuse;
use crate::id::{CallId, LockId};
use crate::time::Instant;

/// How a store takes, keeps and releases one lock. The value holds the store's state for one name.
///
/// [`Lock`] calls these in the order of the lifecycle: contend, hold, end.
pub trait Store: Clone + Debug + PartialEq + Eq + Hash + Sized {
    /// The name of a lock in the store.
    type Key: Clone + Debug + Ord + Hash;
    /// The store's terms of an acquisition, such as a TTL.
    type Terms: Clone + Debug + PartialEq + Eq + Hash;
    /// Progress of the waiter at the head of the queue. The default means that nobody contends.
    type Contention: Clone + Debug + Default + PartialEq + Eq + Hash;
    /// What the store has granted to the current holder.
    type Hold: Clone + Debug + PartialEq + Eq + Hash;
    /// What a hold leaves in the store after its end.
    type Remains: Clone + Debug + PartialEq + Eq + Hash;
    /// State of a release that is not answered yet.
    type Releasing: Clone + Debug + PartialEq + Eq + Hash;
    /// The settings that only this store has.
    type Settings: Clone + Debug + PartialEq + Eq + Hash;
    /// State that the locks of a client share.
    type Shared: Clone + Debug + PartialEq + Eq + Hash;
    /// A request to a server.
    type Request;
    /// An output of the locks.
    type Output: Clone + Debug + PartialEq + Eq + Hash;

    /// Creates the state of a name that is not in use.
    fn new() -> Self;

    // --- contending ---

    /// Returns why no acquisition can succeed now, if so.
    fn refuses(_: &Context<Self>) -> Option<Failure> {
        None
    }
    /// Starts contending for the head of the queue, if there is one.
    fn contend(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Continues with a new head, from the point that the previous one had reached.
    fn new_head(lock: &mut Lock<Self>, ctx: &mut Context<Self>, left: &Waiter<Self::Terms>);
    /// Cancels contention after the last waiter has left.
    fn nobody_waits(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns the last reply of each server, for reports.
    fn answers(lock: &Lock<Self>) -> Box<[Answer]>;

    // --- holding ---

    /// Returns the acquisition that has the hold.
    fn tenure(hold: &Self::Hold) -> &Tenure<Self::Terms>;
    /// Returns the acquisition that has the hold, for modification.
    fn tenure_mut(hold: &mut Self::Hold) -> &mut Tenure<Self::Terms>;
    /// Returns the values from which the timers of the hold are computed.
    fn terms(hold: &Self::Hold, ctx: &Context<Self>) -> Terms;
    /// Returns why the hold is lost, if the store knows that it is.
    fn loss(hold: &Self::Hold, ctx: &Context<Self>) -> Option<Loss>;
    /// Returns the grant for the holder.
    fn grant(hold: &mut Self::Hold, ctx: &mut Context<Self>) -> Grant;
    /// Does the work that is due to keep the hold.
    fn keep(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Renews the hold with a full TTL from now.
    fn extend(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns true if the hold may go to the next waiter instead of being released.
    fn may_hand_over(hold: &Self::Hold, next: &Waiter<Self::Terms>, ctx: &Context<Self>) -> bool;
    /// Hands the hold over to the next waiter of this client.
    fn hand_over(lock: &mut Lock<Self>, ctx: &mut Context<Self>, next: Waiter<Self::Terms>);

    // --- the end of a hold ---

    /// Ends the hold, by this loss or by a release, and returns what it leaves.
    fn end(lock: &mut Lock<Self>, ctx: &mut Context<Self>, hold: &Self::Hold, loss: Option<Loss>) -> Self::Remains;
    /// Handles a loss after the holder was notified. If `guarded`, its guard still exists, and no
    /// request may end the key before its TTL.
    fn lost(lock: &mut Lock<Self>, ctx: &mut Context<Self>, ended: &Ended<Self>, guarded: bool);
    /// Starts to delete what the ended hold left in the store.
    fn clean_up(lock: &mut Lock<Self>, ctx: &mut Context<Self>, ended: &Ended<Self>);
    /// The hold was released although waiters of this client remain.
    fn handover_window_ended(lock: &mut Lock<Self>, ctx: &mut Context<Self>, hold: &Self::Hold);
    /// Creates the state of a release.
    fn releasing(lock: &Lock<Self>, ctx: &Context<Self>, ended: &Ended<Self>) -> Self::Releasing;
    /// Returns the outcome of a release, once it is certain.
    fn released(releasing: &Self::Releasing, ctx: &Context<Self>) -> Option<Release>;
    /// Returns the last reply of each server to an unconfirmed release; empty if none has failed.
    fn not_released(&self, _: &Self::Releasing, _: &Context<Self>) -> Box<[Answer]> {
        Box::default()
    }

    // --- time, and the end ---

    /// Does the work that is due, except for waits, the tenure, the hold and releases.
    fn timeout(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns the next deadline of the contention and its reason.
    fn contention_deadline(contention: &Self::Contention) -> Option<(Instant, &'static str)>;
    /// Returns the next deadline of the hold and its reason.
    fn hold_deadline(hold: &Self::Hold, ctx: &Context<Self>) -> (Instant, &'static str);
    /// Returns the next deadline of the rest and its reason.
    fn deadline(&self) -> Option<(Instant, &'static str)>;
    /// Prepares the lock for the shutdown of the client.
    fn shutdown(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns true if a shutdown has nothing left to wait for.
    fn is_drained(&self, ctx: &Context<Self>) -> bool;
    /// Returns true if no work and no state is left.
    fn is_over(&self) -> bool;

    // --- the client ---

    /// Validates a request and returns its key and terms.
    fn terms_of(config: &Config<Self::Settings>, request: &Acquire) -> Result<(Self::Key, Self::Terms), Misuse>;
    /// Returns the TTL of requests that name none.
    fn default_ttl(_: &Config<Self::Settings>) -> Duration {
        DEFAULT_TTL
    }
    /// Wraps a request to a server.
    fn request(call: CallId, request: Self::Request, timeout: Duration) -> Self::Output;
    /// Returns the number of servers that requests are sent to.
    fn servers(_: &Context<Self>) -> u16 {
        1
    }
    /// Returns a request that changes nothing, to check a server.
    fn ping(ctx: &mut Context<Self>) -> Self::Request;
    /// Wraps an event of an acquisition.
    fn event(lock: LockId, event: Event) -> Self::Output;
    /// Wraps the end of the shutdown, with this many locks unreleased.
    fn stopped(locks: &mut Locks<Self>, unreleased: u32) -> Self::Output;
    /// Called after every step of a lock. Frees state that is no longer needed.
    fn after_step(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Called after every step of a lock. Updates the shared state.
    fn settle_step(_: &mut Context<Self>) {}
    /// Returns true if the shared state has due work.
    fn is_unsettled(_: &Context<Self>) -> bool {
        false
    }
    /// Does one due task that precedes all locks. Returns true if there was one.
    fn settle_first(_: &mut Locks<Self>) -> bool {
        false
    }
    /// Does the due work that follows all locks.
    fn settle_last(_: &mut Locks<Self>) {}
    /// Returns the next deadline of the shared state and its reason.
    fn shared_deadline(_: &Self::Shared) -> Option<(Instant, &'static str)> {
        None
    }
    /// Returns the elections, if the store has them.
    fn elections(_: &mut Client<Self>) -> Option<&mut dyn Elections>
    where
        Self: Transport,
    {
        None
    }
    /// Called when a shutdown begins, after every lock was notified.
    fn shutting_down(_: &mut Locks<Self>) {}
    /// Called when every lock is drained. Drains the shared state, and returns true once it is
    /// empty.
    fn drain(_: &mut Locks<Self>) -> bool {
        true
    }
}

//! What a store brings to the lifecycle of a lock.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::answer::Answer;
use super::config::Config;
use super::context::Context;
use super::event::{Event, Failure};
use super::grant::{Grant, Loss, Release};
use super::hub::Locks;
use super::lifecycle::{Ended, Lock};
use super::request::Acquire;
use super::tenure::{Tenure, Terms};
use super::waiters::Waiter;
use crate::error::Misuse;
use crate::id::{CallId, LockId};
use crate::time::Instant;

/// How one store takes, keeps and gives back a lock. The value itself is what the store remembers of one name.
///
/// [`Lock`] calls these in the order of the lifecycle: contend, hold, end.
pub trait Store: Clone + Debug + PartialEq + Eq + Hash + Sized {
    /// The name of a lock in the store.
    type Key: Clone + Debug + Ord + Hash;
    /// What an acquisition asks for.
    type Terms: Clone + Debug + PartialEq + Eq + Hash;
    /// How far the head of the queue is on its way to the lock. The default is that nobody contends.
    type Contention: Clone + Debug + Default + PartialEq + Eq + Hash;
    /// What the client has in the store for the holder.
    type Hold: Clone + Debug + PartialEq + Eq + Hash;
    /// What a hold leaves in the store.
    type Remains: Clone + Debug + PartialEq + Eq + Hash;
    /// What is known of a release that has no answer yet.
    type Releasing: Clone + Debug + PartialEq + Eq + Hash;
    /// The settings that only this store has.
    type Settings: Clone + Debug + PartialEq + Eq + Hash;
    /// What the locks of a client share.
    type Shared: Clone + Debug + PartialEq + Eq + Hash;
    /// What is asked of a server.
    type Request;
    /// What the locks ask of their surroundings.
    type Output: Clone + Debug + PartialEq + Eq + Hash;

    /// A store that remembers nothing of this name.
    fn new() -> Self;

    // --- contending ---

    /// Why no acquisition can succeed now.
    fn refuses(_: &Context<Self>) -> Option<Failure> {
        None
    }
    /// The head begins to contend, if there is one.
    fn contend(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// The head has left, and another goes on from where it was.
    fn new_head(lock: &mut Lock<Self>, ctx: &mut Context<Self>, left: &Waiter<Self::Terms>);
    /// The last waiter has left: takes back what was begun for it.
    fn nobody_waits(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// What was last heard of the servers, for reports.
    fn answers(lock: &Lock<Self>) -> Box<[Answer]>;

    // --- holding ---

    /// The acquisition that has the hold.
    fn tenure(hold: &Self::Hold) -> &Tenure<Self::Terms>;
    /// The same, to change it.
    fn tenure_mut(hold: &mut Self::Hold) -> &mut Tenure<Self::Terms>;
    /// What the times of the hold are computed from.
    fn terms(hold: &Self::Hold, ctx: &Context<Self>) -> Terms;
    /// Why the hold is lost, if the store knows that it is.
    fn loss(hold: &Self::Hold, ctx: &Context<Self>) -> Option<Loss>;
    /// What the holder is offered.
    fn grant(hold: &mut Self::Hold, ctx: &mut Context<Self>) -> Grant;
    /// Does what is due to keep the hold.
    fn keep(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// The holder wants a full TTL from now on.
    fn extend(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns true if the next waiter may have the hold instead of a release.
    fn may_hand_over(hold: &Self::Hold, next: &Waiter<Self::Terms>, ctx: &Context<Self>) -> bool;
    /// Gives the hold to the next waiter of this client.
    fn hand_over(lock: &mut Lock<Self>, ctx: &mut Context<Self>, next: Waiter<Self::Terms>);

    // --- the end of a hold ---

    /// The hold has ended, by this loss or by a release: what it leaves.
    fn end(lock: &mut Lock<Self>, ctx: &mut Context<Self>, hold: &Self::Hold, loss: Option<Loss>) -> Self::Remains;
    /// The hold was lost, and its holder has been notified. If `guarded`, it still has its guard: nothing that ends the
    /// life of its key may be sent.
    fn lost(lock: &mut Lock<Self>, ctx: &mut Context<Self>, ended: &Ended<Self>, guarded: bool);
    /// Begins to delete what a hold has left.
    fn clean_up(lock: &mut Lock<Self>, ctx: &mut Context<Self>, ended: &Ended<Self>);
    /// The hold was given back to the store while others of this client wait.
    fn turn_ended(lock: &mut Lock<Self>, ctx: &mut Context<Self>, hold: &Self::Hold);
    /// A release of what was left begins.
    fn releasing(lock: &Lock<Self>, ctx: &Context<Self>, ended: &Ended<Self>) -> Self::Releasing;
    /// The answer to a release, once it is certain.
    fn released(releasing: &Self::Releasing, ctx: &Context<Self>) -> Option<Release>;

    // --- time, and the end ---

    /// Does what is due, but for waits, the tenure, the hold and releases.
    fn timeout(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// When the contention has something to do.
    fn contention_deadline(contention: &Self::Contention) -> Option<(Instant, &'static str)>;
    /// When the hold has something to do, and what.
    fn hold_deadline(hold: &Self::Hold, ctx: &Context<Self>) -> (Instant, &'static str);
    /// When the rest has something to do.
    fn deadline(&self) -> Option<(Instant, &'static str)>;
    /// The client shuts down.
    fn shut_down(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Returns true if nothing is left that a shutdown has to wait for.
    fn is_drained(&self, ctx: &Context<Self>) -> bool;
    /// Returns true if there is nothing to do or to remember.
    fn is_over(&self) -> bool;

    // --- the client ---

    /// Checks what an acquisition asks for.
    fn terms_of(config: &Config<Self::Settings>, want: &Acquire) -> Result<(Self::Key, Self::Terms), Misuse>;
    /// A request to a server.
    fn request(call: CallId, request: Self::Request, timeout: Duration) -> Self::Output;
    /// An event of an acquisition.
    fn event(lock: LockId, event: Event) -> Self::Output;
    /// The end of the shutdown, with this many locks unreleased.
    fn stopped(locks: &mut Locks<Self>, unreleased: u32) -> Self::Output;
    /// Called after every step of a lock. Frees state that is no longer needed.
    fn after_step(lock: &mut Lock<Self>, ctx: &mut Context<Self>);
    /// Called after every step of a lock. Updates the shared state.
    fn settle_step(_: &mut Context<Self>) {}
    /// Returns true if the shared state has work that is due.
    fn is_unsettled(_: &Context<Self>) -> bool {
        false
    }
    /// Does one thing that is due before all locks. Returns true if there was one.
    fn settle_first(_: &mut Locks<Self>) -> bool {
        false
    }
    /// Does what is due after all locks.
    fn settle_last(_: &mut Locks<Self>) {}
    /// When the shared state has something to do.
    fn shared_deadline(_: &Self::Shared) -> Option<(Instant, &'static str)> {
        None
    }
    /// Called when a shutdown begins, after every lock was notified.
    fn shutting_down(_: &mut Locks<Self>) {}
    /// Called when every lock is drained. Drains the shared state, and returns true once nothing of it is left.
    fn drain(_: &mut Locks<Self>) -> bool {
        true
    }
}

//! What a store brings to the lifecycle of a lock.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::hash::Hash;

use super::answer::Answer;
use super::event::{Event, Failure};
use super::grant::{Grant, Loss, Release};
use super::lifecycle::{Ended, Lock};
use super::tenure::{Tenure, Terms};
use super::waiters::Waiter;
use crate::id::LockId;
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
    /// The surroundings of one step.
    type Context<'a>: Surroundings<Self>;
    /// What the times of a lock depend on.
    type View<'a>: Copy;

    /// A store that remembers nothing of this name.
    fn new() -> Self;

    // --- contending ---

    /// Returns true if the head is not on its way.
    fn is_idle(contention: &Self::Contention) -> bool;
    /// Why no acquisition can succeed now.
    fn refuses(_: &Self::Context<'_>) -> Option<Failure> {
        None
    }
    /// The head begins to contend, if there is one.
    fn contend(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// The head has left, and another goes on from where it was.
    fn new_head(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, left: &Waiter<Self::Terms>);
    /// The last waiter has left: takes back what was begun for it.
    fn nobody_waits(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// What was last heard of the servers, for reports.
    fn answers(lock: &Lock<Self>) -> Box<[Answer]>;

    // --- holding ---

    /// The acquisition that has the hold.
    fn tenure(hold: &Self::Hold) -> &Tenure<Self::Terms>;
    /// The same, to change it.
    fn tenure_mut(hold: &mut Self::Hold) -> &mut Tenure<Self::Terms>;
    /// What the times of the hold are computed from.
    fn terms(hold: &Self::Hold, view: Self::View<'_>) -> Terms;
    /// Why the hold is lost, if the store knows that it is.
    fn loss(hold: &Self::Hold, now: Instant, view: Self::View<'_>) -> Option<Loss>;
    /// What the holder is offered.
    fn grant(hold: &mut Self::Hold, ctx: &mut Self::Context<'_>) -> Grant;
    /// Does what is due to keep the hold.
    fn keep(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// The holder wants a full TTL from now on.
    fn extend(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// Returns true if the next waiter may have the hold instead of a release.
    fn may_hand_over(hold: &Self::Hold, next: &Waiter<Self::Terms>, ctx: &Self::Context<'_>) -> bool;
    /// Gives the hold to the next waiter of this client.
    fn hand_over(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, next: Waiter<Self::Terms>);

    // --- the end of a hold ---

    /// The hold has ended, by this loss or by a release: what it leaves.
    fn end(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, hold: &Self::Hold, loss: Option<Loss>) -> Self::Remains;
    /// The hold was lost, and its holder has been notified. If `guarded`, it still has its guard: nothing that ends the
    /// life of its key may be sent.
    fn lost(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, ended: &Ended<Self>, guarded: bool);
    /// Begins to delete what a hold has left.
    fn clean_up(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, ended: &Ended<Self>);
    /// The hold was given back to the store while others of this client wait.
    fn turn_ended(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>, hold: &Self::Hold);
    /// A release of what was left begins.
    fn releasing(lock: &Lock<Self>, ctx: &Self::Context<'_>, ended: &Ended<Self>) -> Self::Releasing;
    /// The answer to a release, once it is certain.
    fn released(releasing: &Self::Releasing, view: Self::View<'_>) -> Option<Release>;

    // --- time, and the end ---

    /// Does what is due, but for waits, the tenure, the hold and releases.
    fn timeout(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// When the contention has something to do.
    fn contention_deadline(contention: &Self::Contention) -> Option<(Instant, &'static str)>;
    /// When the hold has something to do, and what.
    fn hold_deadline(hold: &Self::Hold, view: Self::View<'_>) -> (Instant, &'static str);
    /// When the rest has something to do.
    fn deadline(&self) -> Option<(Instant, &'static str)>;
    /// The client shuts down.
    fn shut_down(lock: &mut Lock<Self>, ctx: &mut Self::Context<'_>);
    /// Returns true if nothing is left that a shutdown has to wait for.
    fn is_drained(&self, view: Self::View<'_>) -> bool;
    /// Returns true if there is nothing to do or to remember.
    fn is_over(&self) -> bool;
}

/// The surroundings of one step: the time, and where events go.
pub trait Surroundings<S: Store> {
    /// The time of the step.
    fn now(&self) -> Instant;
    /// The client is shutting down.
    fn is_stopping(&self) -> bool;
    /// When a release that begins now is answered at the latest.
    fn release_by(&self) -> Instant;
    /// What the times of a lock depend on.
    fn view(&self) -> S::View<'_>;
    /// Emits an event.
    fn emit(&mut self, id: LockId, event: Event);
    /// The acquisition has ended: its id is not used again.
    fn forget(&mut self, id: LockId);

    /// Emits the last event of an acquisition.
    fn end(&mut self, id: LockId, event: Event) {
        self.emit(id, event);
        self.forget(id);
    }
}

//! The locks of one client, whatever the store: verbs, time, and the shutdown.

use alloc::collections::VecDeque;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::lifecycle::Lock;
use super::registry::Registry;
use super::request::Acquire;
use super::store::Store;
use super::waiters::Waiter;
use crate::collections::burst;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::{Instant, soonest};

/// What a store brings to the hub of its locks.
pub trait Hub: Store {
    /// The settings.
    type Config: Clone + Debug + PartialEq + Eq + Hash;
    /// What the hub asks for.
    type Output: Clone + Debug + PartialEq + Eq + Hash;
    /// What the locks of a client share.
    type Shared: Clone + Debug + PartialEq + Eq + Hash;

    /// How many acquisitions there may be.
    fn limit(config: &Self::Config) -> u32;
    /// What the times of a lock depend on.
    fn view<'a>(config: &'a Self::Config, shared: &'a Self::Shared) -> Self::View<'a>;
    /// One step of one lock, and what follows from it.
    fn step<R>(
        locks: &mut Locks<Self>,
        slot: u32,
        step: impl FnOnce(&mut Lock<Self>, &mut Self::Context<'_>) -> R,
    ) -> Option<R>;
    /// Returns true if the shared part has something to do.
    fn is_unsettled(_: &Self::Shared, _: Instant) -> bool {
        false
    }
    /// Does one thing that is due before all locks. Returns true if there was one.
    fn settle_first(_: &mut Locks<Self>) -> bool {
        false
    }
    /// Does what is due after all locks.
    fn settle_last(_: &mut Locks<Self>) {}
    /// When the shared part has something to do.
    fn shared_deadline(_: &Self::Shared) -> Option<(Instant, &'static str)> {
        None
    }
    /// The client shuts down, and its locks have been told.
    fn shutting_down(_: &mut Locks<Self>) {}
    /// Every lock is drained: drains the shared part. Returns true once nothing is left of it.
    fn drain(_: &mut Locks<Self>) -> bool {
        true
    }
    /// The end of the shutdown, with this many locks unreleased.
    fn stopped(locks: &mut Locks<Self>, unreleased: u32) -> Self::Output;
}

/// All locks of one client, as typed requests and replies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locks<S: Hub> {
    pub(crate) config: S::Config,
    /// 64 bits of entropy for jitter.
    pub(crate) seed: u64,
    pub(crate) locks: Registry<Lock<S>>,
    pub(crate) shared: S::Shared,
    pub(crate) out: VecDeque<S::Output>,
    /// The number of the last token or grant.
    pub(crate) number: u64,
    /// The serial of the last call.
    pub(crate) serial: u64,
}

impl<S: Hub> Locks<S> {
    pub(crate) fn with(now: Instant, config: S::Config, seed: u64, shared: S::Shared) -> Self {
        Self { config, seed, locks: Registry::new(now), shared, out: VecDeque::new(), number: 0, serial: 0 }
    }

    // --- verbs ---

    /// An acquisition of the lock `key` begins.
    pub(crate) fn begin(&mut self, key: S::Key, want: &Acquire, terms: S::Terms) -> LockId {
        let (slot, id) = self.locks.begin(key);
        let waiter = Waiter { id, terms, renew: want.renew, wait: want.wait.or_try(), since: self.locks.now() };
        S::step(self, slot, |lock, ctx| lock.acquire(ctx, waiter));
        self.settle();
        id
    }

    /// Checks that another acquisition may begin.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<(), Misuse> {
        self.advance(now);
        self.locks.admit(S::limit(&self.config))
    }

    /// Takes the lock that was offered by [`Event::Granted`](crate::Event::Granted). Only from then on is it renewed.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    pub fn claim(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.claim(ctx, id))
    }

    /// Gives the lock a full TTL from now on. Each call is answered by one
    /// [`Event::Extended`](crate::Event::Extended) or [`Event::ExtendFailed`](crate::Event::ExtendFailed), in the order of
    /// the calls, unless the lock is lost or released first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.extend(ctx, id))
    }

    /// Gives the lock back. Answered by [`Event::Released`](crate::Event::Released). Legal for a lock that is held,
    /// offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    pub fn release(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.release(ctx, id))
    }

    /// Cancels the acquisition in whatever state it is in: none of its events follows, and nothing of it is left behind.
    /// Does nothing for an id that has ended. Called on drop.
    pub fn abandon(&mut self, now: Instant, id: LockId) {
        let _ended = self.verb(now, id, |lock, ctx| {
            lock.abandon(ctx, id);
            Ok(())
        });
    }

    /// Releases what is held, answers all waiters, and refuses new acquisitions. The last output follows when every server
    /// has confirmed, or after `within`.
    pub fn shut_down(&mut self, now: Instant, within: Duration) {
        self.advance(now);
        if self.locks.begin_shutdown(within) {
            for slot in self.locks.slots() {
                S::step(self, slot, Lock::shut_down);
            }
            S::shutting_down(self);
        }
        self.settle();
    }

    pub(crate) fn verb<R>(
        &mut self,
        now: Instant,
        id: LockId,
        verb: impl FnOnce(&mut Lock<S>, &mut S::Context<'_>) -> Result<R, Misuse>,
    ) -> Result<R, Misuse> {
        self.advance(now);
        let slot = self.locks.slot_of(id)?;
        let result = S::step(self, slot, verb).unwrap_or(Err(Misuse::Stale(id)));
        self.settle();
        result
    }

    // --- time ---

    /// Does what is due. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Time never runs backwards (requirement M1), and what is due comes before any news: after a pause the first word is
    /// `Lost` (requirement T2).
    #[inline]
    pub(crate) fn advance(&mut self, now: Instant) {
        self.locks.advance(now);
        self.settle();
    }

    /// Does all that is due or follows from what was done.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if S::is_unsettled(&self.shared, self.locks.now()) || self.locks.due().is_some() {
            self.settle_all();
        }
        if self.locks.is_stopping() {
            self.check_stopped();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        loop {
            if S::settle_first(self) {
                continue;
            }
            let Some(slot) = self.locks.due() else { break };
            S::step(self, slot, Lock::timeout);
            while S::settle_first(self) {}
            self.locks.served(slot);
        }
        S::settle_last(self);
    }

    #[cold]
    fn check_stopped(&mut self) {
        let Some(until) = self.locks.stop_at() else { return };
        let view = S::view(&self.config, &self.shared);
        let drained = self.locks.is_drained(|lock| lock.is_drained(view));
        if !(drained && S::drain(self)) && until > self.locks.now() {
            return;
        }
        let view = S::view(&self.config, &self.shared);
        let unreleased = self.locks.iter().filter(|lock| !lock.is_drained(view)).count() as u32;
        for slot in self.locks.slots() {
            S::step(self, slot, Lock::stop);
        }
        // What cleanup is left ends with its TTL.
        self.locks.stop();
        let output = S::stopped(self, unreleased);
        self.locks.clear();
        self.out.push_back(output);
    }

    // --- drains ---

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<S::Output> {
        burst::pop(&mut self.out)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; now, while output is queued.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(self.locks.now());
        }
        let lock = self.locks.next_deadline().map(|(at, _)| at);
        let shared = S::shared_deadline(&self.shared).map(|(at, _)| at);
        soonest([lock, shared, self.locks.stop_at()]).filter(|at| *at < Instant::MAX)
    }

    /// [`next_deadline`](Self::next_deadline) and what it is for.
    #[must_use]
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.locks.now(), "output is queued"));
        }
        let lock = self.locks.next_deadline().map(|(at, slot)| {
            let deadline = self.locks.get(slot).and_then(|lock| lock.deadline(S::view(&self.config, &self.shared)));
            (at, deadline.map_or("a lock", |(_, reason)| reason))
        });
        let stop = self.locks.stop_at().map(|at| (at, "end of the shutdown"));
        let all = [lock, S::shared_deadline(&self.shared), stop];
        all.into_iter().flatten().filter(|(at, _)| *at < Instant::MAX).min()
    }

    // --- questions ---

    /// The end of the validity of a lock that is held; `None` if it is not. Compare it with the clock.
    #[must_use]
    pub fn valid_until(&self, id: LockId) -> Option<Instant> {
        self.locks.of(id)?.valid_until(id, S::view(&self.config, &self.shared))
    }

    /// How many locks are held.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.locks.held()
    }

    /// Returns true once the shutdown is over.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.locks.is_stopped()
    }

    /// The settings.
    pub const fn config(&self) -> &S::Config {
        &self.config
    }
}

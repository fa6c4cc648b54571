//! The locks of one client, independent of the store: verbs, timers, and the shutdown.

use core::time::Duration;

use super::config::Config;
use super::context::Context;
use super::lifecycle::Lock;
use super::note::Note;
use super::registry::Registry;
use super::request::Acquire;
use super::store::{SharedState as _, Store};
use super::waiters::Waiter;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::{Instant, soonest};

/// All locks of one client, as typed requests and replies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locks<S: Store> {
    pub(crate) ctx: Context<S>,
    pub(crate) locks: Registry<S::Key, Lock<S>>,
    is_stopped: bool,
}

impl<S: Store> Locks<S> {
    pub(crate) fn with(ctx: Context<S>) -> Self {
        Self { ctx, locks: Registry::new(), is_stopped: false }
    }

    /// Requests a lock. Progress is reported as events for the returned id.
    ///
    /// # Errors
    ///
    /// As [`LockClient::acquire`](super::LockClient::acquire).
    pub fn acquire(&mut self, now: Instant, request: &Acquire) -> Result<LockId, Misuse> {
        let (key, terms) = self.terms_of(now, request)?;
        Ok(self.begin(request, key, terms))
    }

    /// Checks a request, and returns its name and terms.
    pub(crate) fn terms_of(&mut self, now: Instant, request: &Acquire) -> Result<(S::Key, S::Terms), Misuse> {
        self.handle_timeout(now);
        self.admit(self.locks.acquisitions())?;
        S::terms_of(&self.ctx.env.config, request)
    }

    pub(crate) fn begin(&mut self, request: &Acquire, key: S::Key, terms: S::Terms) -> LockId {
        let (slot, id) = self.locks.begin(key, Lock::new);
        let waiter = Waiter { id, terms, renew: request.renew, wait: request.wait.or_try(), since: self.ctx.env.now };
        self.step(slot, |lock, ctx| lock.acquire(ctx, waiter));
        self.settle();
        id
    }

    pub(crate) const fn admit(&self, others: usize) -> Result<(), Misuse> {
        let limit = self.ctx.env.config.max_locks;
        if self.ctx.env.is_stopping {
            return Err(Misuse::ShuttingDown);
        }
        if others >= limit as usize { Err(Misuse::TooMany { limit }) } else { Ok(()) }
    }

    /// Takes an offered lock: see [`LockClient::claim`](super::LockClient::claim).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotOffered`] or [`Misuse::Stale`] if there is no offer, or it was claimed or
    /// withdrawn.
    pub fn claim(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.claim(ctx, id))
    }

    /// Renews the lock: see [`LockClient::extend`](super::LockClient::extend).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.extend(ctx, id))
    }

    /// Releases the lock: see [`LockClient::release`](super::LockClient::release).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the acquisition still waits, is already being released, or has ended.
    pub fn release(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.release(ctx, id))
    }

    /// Cancels the acquisition: see [`LockClient::abandon`](super::LockClient::abandon).
    pub fn abandon(&mut self, now: Instant, id: LockId) {
        let _ended = self.verb(now, id, |lock, ctx| {
            lock.abandon(ctx, id);
            Ok(())
        });
    }

    /// Shuts down: see [`LockClient::shutdown`](super::LockClient::shutdown).
    pub fn shutdown(&mut self, now: Instant, within: Duration) {
        self.handle_timeout(now);
        let until = self.ctx.env.now + within;
        if let Some(earlier) = self.ctx.stop_at {
            self.ctx.stop_at = Some(earlier.min(until));
        } else {
            self.ctx.stop_at = Some(until);
            self.ctx.env.is_stopping = true;
            for slot in self.locks.slots() {
                self.step(slot, Lock::shutdown);
            }
            S::Shared::shutting_down(self);
            self.ctx.env.end_operations();
        }
        self.settle();
    }

    pub(crate) fn verb<R>(
        &mut self,
        now: Instant,
        id: LockId,
        verb: impl FnOnce(&mut Lock<S>, &mut Context<S>) -> Result<R, Misuse>,
    ) -> Result<R, Misuse> {
        self.handle_timeout(now);
        let slot = self.locks.slot_of(id)?;
        let result = self.step(slot, verb).unwrap_or(Err(Misuse::Stale(id)));
        self.settle();
        result
    }

    pub(crate) fn step<R>(&mut self, slot: u32, step: impl FnOnce(&mut Lock<S>, &mut Context<S>) -> R) -> Option<R> {
        let ctx = &mut self.ctx;
        let lock = self.locks.get_mut(slot)?;
        let was_held = lock.line.is_held();
        ctx.env.slot = slot;
        let result = step(lock, ctx);
        lock.store.after_step(&mut ctx.env);
        ctx.env.slot = 0;
        let deadline = lock.deadline(ctx).map(|(at, _)| at);
        let (held, over) = ((was_held, lock.line.is_held()), lock.is_over().then(|| lock.store.key().clone()));
        self.locks.stepped(slot, held, over, deadline, ctx.ended.drain(..));
        Some(result)
    }

    /// Does the work that is due. Early, late and repeated calls are harmless. Every other call
    /// does this before it processes its input, so the first event after a pause is `Lost`.
    // M1, T2
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        self.ctx.advance(now);
        self.settle();
    }

    /// Does all work that is due or that follows from the last step.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let (env, now) = (&self.ctx.env, self.ctx.env.now);
        if env.shared.is_unsettled(now) || self.locks.due(now).is_some() || env.operations.is_due(now) {
            self.settle_all();
        }
        if self.ctx.env.is_stopping {
            self.check_stopped();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        loop {
            if S::Shared::settle_first(self) {
                continue;
            }
            let Some(slot) = self.locks.due(self.ctx.env.now) else { break };
            self.step(slot, Lock::timeout);
            while S::Shared::settle_first(self) {}
            self.locks.served(self.ctx.env.now, slot);
        }
        self.ctx.env.settle_operations();
    }

    #[cold]
    fn check_stopped(&mut self) {
        let Some(until) = self.stop_at() else { return };
        let drained = self.locks.is_drained(|lock| lock.is_drained(&self.ctx));
        if !(drained && S::Shared::drain(self)) && until > self.ctx.env.now {
            return;
        }
        let is_left = |lock: &&Lock<S>| !lock.is_drained(&self.ctx) || lock.line.has_lost();
        let unreleased = self.locks.iter().filter(is_left).count() as u32;
        for slot in self.locks.slots() {
            self.step(slot, Lock::stop);
        }
        // Keys that cleanup has not deleted expire at their TTL.
        self.is_stopped = true;
        let output = S::Shared::stopped(self, unreleased);
        self.locks.clear();
        self.ctx.env.out.push_back(output);
    }

    /// Returns the deadline of the shutdown, if one is in progress.
    fn stop_at(&self) -> Option<Instant> {
        self.ctx.stop_at.filter(|_| !self.is_stopped)
    }

    /// Returns the next output, in the order of decision.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<S::Output> {
        self.ctx.poll_output()
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout); the current time while output
    /// is queued.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.ctx.env.out.is_empty() {
            return Some(self.ctx.env.now);
        }
        let lock = self.locks.next_deadline().map(|(at, _)| at);
        let shared = self.ctx.env.shared.deadline().map(|(at, _)| at);
        let operation = self.ctx.env.operations.deadline().map(|(at, _)| at);
        soonest([lock, shared, operation, self.stop_at()]).filter(|at| *at < Instant::MAX)
    }

    /// Returns [`next_deadline`](Self::next_deadline) and its reason.
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.ctx.env.out.is_empty() {
            return Some((self.ctx.env.now, "output is queued"));
        }
        let lock = self.locks.next_deadline().map(|(at, slot)| {
            let deadline = self.locks.get(slot).and_then(|lock| lock.deadline(&self.ctx));
            (at, deadline.map_or("a lock", |(_, reason)| reason))
        });
        let stop = self.stop_at().map(|at| (at, "end of the shutdown"));
        let all = [lock, self.ctx.env.shared.deadline(), self.ctx.env.operations.deadline(), stop];
        all.into_iter().flatten().filter(|(at, _)| *at < Instant::MAX).min()
    }

    /// Returns the end of validity of a held lock; `None` if it is not held. Compare it with the
    /// clock.
    pub fn valid_until(&self, id: LockId) -> Option<Instant> {
        self.locks.of(id)?.valid_until(id, &self.ctx)
    }

    /// Keeps notes: see [`Machine::keep_notes`](super::Machine::keep_notes).
    pub fn keep_notes(&mut self, most: usize) {
        let recent = S::Shared::default_ttl(&self.ctx.env.config);
        self.ctx.notes.keep(most, recent);
    }

    /// Returns the next note: see [`Machine::poll_note`](super::Machine::poll_note).
    pub fn poll_note(&mut self) -> Option<Note> {
        self.ctx.notes.poll()
    }

    /// Returns the number of held locks.
    pub const fn held(&self) -> u32 {
        self.locks.held()
    }

    /// Returns true if any lock is held or waited for.
    pub(crate) const fn is_used(&self) -> bool {
        self.locks.acquisitions() > 0
    }

    /// Returns true if there is no lock and nothing to clean up.
    pub(crate) fn is_idle(&self) -> bool {
        self.locks.iter().next().is_none()
    }

    /// Returns true once the shutdown is complete.
    pub const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns the settings.
    pub const fn config(&self) -> &Config<S::Settings> {
        &self.ctx.env.config
    }
}

//! State machine for one lock name within one client: its line and its store machine, which
//! exchange orders and facts until neither has any.

use super::context::Context;
use super::event::Event;
use super::line::{Desk, Line};
use super::store::{SharedState as _, Store};
use super::waiters::Waiter;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::{Instant, sooner};

/// State machine for one lock name within one client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock<S: Store> {
    pub(crate) line: Line<S::Terms>,
    pub(crate) store: S,
}

impl<S: Store> Lock<S> {
    /// Creates the machine of a lock that is not in use.
    #[must_use]
    pub fn new(key: S::Key) -> Self {
        Self { line: Line::new(), store: S::new(key) }
    }

    /// Returns true if the lock has no remaining work and can be dropped.
    pub fn is_over(&self) -> bool {
        self.line.is_over() && self.store.is_over()
    }

    /// Returns true if a shutdown has nothing left to wait for.
    pub(crate) fn is_drained(&self, ctx: &Context<S>) -> bool {
        self.line.is_quiet() && self.store.is_drained(&ctx.env)
    }

    /// Returns the end of validity, if this acquisition holds the lock.
    pub fn valid_until(&self, id: LockId, ctx: &Context<S>) -> Option<Instant> {
        self.line.valid_until(id, self.store.holding(&ctx.env, id))
    }

    /// Returns the next deadline and its reason.
    #[inline]
    pub fn deadline(&self, ctx: &Context<S>) -> Option<(Instant, &'static str)> {
        sooner(self.store.deadline(&ctx.env), self.line.deadline(ctx.env.config.at_risk))
    }

    /// Starts an acquisition.
    pub fn acquire(&mut self, ctx: &mut Context<S>, waiter: Waiter<S::Terms>) {
        self.step(ctx, |lock, ctx| {
            if let Some(failure) = ctx.env.shared.refuses() {
                lock.on_line(ctx, |_, desk| desk.end(waiter.id, Event::Failed(failure)));
            } else {
                lock.on_line(ctx, |line, desk| line.acquire(desk, waiter));
            }
        });
    }

    /// Claims the offer of [`Event::Granted`], which stands for a third of the TTL.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotOffered`] if there is no offer.
    pub fn claim(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.line_step(ctx, |line, desk| line.claim(desk, id))
    }

    /// Renews now. Each call is answered by one [`Event::Extended`] or [`Event::ExtendFailed`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if the lock is not held.
    pub fn extend(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.line_step(ctx, |line, desk| line.extend(desk, id))
    }

    /// Releases the lock. Answered by [`Event::Released`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if the acquisition still waits, or was released before.
    pub fn release(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.line_step(ctx, |line, desk| line.release(desk, id))
    }

    /// Cancels the acquisition in whatever state it is in. Called on drop.
    pub fn abandon(&mut self, ctx: &mut Context<S>, id: LockId) {
        self.line_step(ctx, |line, desk| line.abandon(desk, id));
    }

    /// Fails all waiters and releases the held lock. The keys of lost holds are left to their guards.
    // H6, U2
    pub fn shutdown(&mut self, ctx: &mut Context<S>) {
        self.line_step(ctx, Line::shutdown);
    }

    /// Answers the remaining releases at the end of a shutdown, also of guards that still exist.
    pub fn stop(&mut self, ctx: &mut Context<S>) {
        self.line_step(ctx, Line::stop);
    }

    /// Does the work that is due at [`deadline`](Self::deadline).
    pub fn timeout(&mut self, ctx: &mut Context<S>) {
        self.step(ctx, |lock, ctx| {
            lock.on_line(ctx, Line::timeout);
            if !ctx.orders.is_empty() {
                lock.exchange(ctx);
            }
            lock.store.timeout(&mut ctx.env);
        });
    }

    fn line_step<R>(
        &mut self,
        ctx: &mut Context<S>,
        input: impl FnOnce(&mut Line<S::Terms>, &mut Desk<'_, S::Terms, S::Output>) -> R,
    ) -> R {
        self.step(ctx, |lock, ctx| lock.on_line(ctx, input))
    }

    /// Processes one input. Holds expire first, so that no input can revive them. What follows from
    /// the input has happened when this returns.
    // T2, M11
    pub(crate) fn step<R>(&mut self, ctx: &mut Context<S>, input: impl FnOnce(&mut Self, &mut Context<S>) -> R) -> R {
        if self.line.seems_expired(ctx.env.now) {
            self.exchange(ctx);
        }
        let result = input(self, ctx);
        self.exchange(ctx);
        result
    }

    #[inline]
    fn on_line<R>(
        &mut self,
        ctx: &mut Context<S>,
        f: impl FnOnce(&mut Line<S::Terms>, &mut Desk<'_, S::Terms, S::Output>) -> R,
    ) -> R {
        f(&mut self.line, &mut ctx.desk(&|| self.store.answers()))
    }

    /// Passes orders and facts between line and store, until neither has any.
    fn exchange(&mut self, ctx: &mut Context<S>) {
        loop {
            while let Some(order) = ctx.orders.pop_front() {
                self.store.order(&mut ctx.env, order);
            }
            if self.line.is_held() || !ctx.env.facts.is_empty() {
                self.line.refresh(|id| self.store.holding(&ctx.env, id));
                while let Some(fact) = ctx.env.facts.pop_front() {
                    self.on_line(ctx, |line, desk| line.apply(desk, fact));
                }
                self.on_line(ctx, Line::watch);
            }
            if ctx.orders.is_empty() {
                self.on_line(ctx, Line::wish);
                if ctx.orders.is_empty() {
                    return;
                }
            }
        }
    }
}

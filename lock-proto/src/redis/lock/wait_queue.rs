//! The wait queue of one name within this client (requirements A5, A8).

use super::context::Context;
use super::redlock::Hopeless;
use super::{Lock, Stage, Waiter};
use crate::lock::{Answer, Blocked, Event, Failure, Report};
use crate::redis::request::Request;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::mem;

impl Lock {
    pub(super) fn next_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.queue.pop_front()?;
        if self.queue.is_empty() {
            // A lock that is held quietly keeps no room for waiters.
            self.queue = VecDeque::new();
        }
        self.waits.end(waiter.id, waiter.deadline());
        Some(waiter)
    }

    /// Puts a waiter back to the front, who had been next.
    pub(super) fn back_to_front(&mut self, waiter: Waiter) {
        self.waits.begin(waiter.id, waiter.deadline());
        self.queue.push_front(waiter);
    }

    /// Tells the head why it waits, when that changes.
    pub(super) fn tell_blocked(&mut self, ctx: &mut Context<'_>, why: Blocked) {
        if let Some(head) = self.queue.front()
            && self.blocked.replace(why) != Some(why)
        {
            ctx.tell(head.id, Event::Blocked(why));
        }
    }

    /// The waiter at `place` has failed.
    pub(super) fn tell_failure(&self, ctx: &mut Context<'_>, place: usize, failure: impl FnOnce(Report) -> Failure) {
        let Some(waiter) = self.queue.get(place).copied() else { return };
        let waited = ctx.now.since(waiter.since);
        let nodes: Box<[Answer]> = match &self.stage {
            Stage::Trying(round) => self.answers_with(round).into(),
            Stage::Held(_) => Box::default(),
            Stage::Idle | Stage::Paused { .. } => self.answers.iter().cloned().collect(),
        };
        ctx.end(waiter.id, Event::Failed(failure(Report { waited, nodes })));
    }

    /// No attempt can succeed: every waiter is told, each with its own time.
    pub(super) fn fail_all(&mut self, ctx: &mut Context<'_>, hopeless: Hopeless) {
        let nodes: Box<[Answer]> = self.answers.iter().cloned().collect();
        while let Some(waiter) = self.next_waiter() {
            let report = Report { waited: ctx.now.since(waiter.since), nodes: nodes.clone() };
            let failure = match hopeless {
                Hopeless::KeyInUse => Failure::KeyInUse(report),
                Hopeless::Refused => Failure::Refused(report),
            };
            ctx.end(waiter.id, Event::Failed(failure));
        }
        self.nobody_waits(ctx);
    }

    /// Tells the waiters whose time is up, then lets the next one try.
    pub(super) fn end_waits(&mut self, ctx: &mut Context<'_>) {
        let mut head_left = false;
        while let Some(id) = self.waits.pop_due(ctx.now) {
            if let Some(place) = self.queue.iter().position(|waiter| waiter.id == id) {
                self.tell_failure(ctx, place, Failure::TimedOut);
                self.queue.remove(place);
                head_left |= place == 0;
            } else {
                self.give_up_preparing(ctx);
            }
        }
        self.after_leaving(ctx, head_left);
    }

    /// A waiter leaves. The round under way goes on for the next one; a new head never sleeps on.
    pub(super) fn leave_queue(&mut self, ctx: &mut Context<'_>, place: usize) {
        if let Some(waiter) = self.queue.remove(place) {
            self.waits.end(waiter.id, waiter.deadline());
        }
        self.after_leaving(ctx, place == 0);
    }

    pub(super) fn after_leaving(&mut self, ctx: &mut Context<'_>, head_left: bool) {
        if self.queue.is_empty() {
            return self.nobody_waits(ctx);
        }
        if head_left {
            self.blocked = None;
            match &mut self.stage {
                Stage::Idle | Stage::Paused { .. } => self.start_round(ctx),
                Stage::Trying(_) | Stage::Held(_) => {}
            }
        }
    }

    /// The last waiter has left: what was under way is given back.
    pub(super) fn nobody_waits(&mut self, ctx: &mut Context<'_>) {
        // Signals that were taken here and led to no attempt are somebody else's.
        for node in self.listening.iter().flat_map(|listening| listening.hinted.iter()) {
            let request = Request::Announce { key: self.key.clone() };
            ctx.send(node, request, ctx.config.request_timeout);
        }
        self.stop_listening(ctx);
        self.tries = 0;
        self.answers.clear();
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Trying(round) => self.end_round(ctx, &round, true),
            Stage::Held(hold) => self.stage = Stage::Held(hold),
            Stage::Idle | Stage::Paused { .. } => {}
        }
    }
}

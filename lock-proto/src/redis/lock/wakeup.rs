//! Wake-up of the head of the queue by a release (requirement A7).

use super::context::Context;
use super::{Listening, Lock, Stage};
use crate::id::NodeId;
use crate::lock::Blocked;
use crate::redis::config::Wake;
use crate::time::Instant;
use core::time::Duration;

/// The first node of a quorum has told of a release: the others get this long to follow.
const HINT_GATHERING: Duration = Duration::from_millis(5);

impl Lock {
    /// A release that was asked for at `asked` woke somebody. Whoever is next here lets them have the lock, and waits in line behind them:
    /// asked for at once it would be taken back before they hear of it, again and again.
    pub(super) fn give_way(&mut self, ctx: &Context<'_>, asked: Instant) {
        // Those who wait here already stay away as it is.
        if matches!(self.stage, Stage::Idle) && !ctx.stopping {
            self.yields_until = Some(ctx.now + ctx.config.turn_pause + ctx.now.since(asked));
        }
    }

    /// The head begins: with an attempt, unless it is others' turn.
    pub(super) fn begin(&mut self, ctx: &mut Context<'_>) {
        let alone = self.queue.front().is_some_and(|head| head.wait == crate::lock::Wait::Try);
        if alone || self.yields_until.take().is_none_or(|until| until <= ctx.now) {
            return self.start_round(ctx);
        }
        self.tell_blocked(ctx, Blocked::Held);
        // It is a waiter already: it is signalled in its turn, and its own attempt, which sets the marker, is the safety net.
        self.tries = 1;
        self.stage = Stage::Paused { until: ctx.now + ctx.config.poll.every };
        self.start_listening(ctx);
        if let Some(listening) = &mut self.listening {
            // The attempt that follows the announcement is the one that comes by itself.
            listening.retried = true;
        }
    }

    pub(super) fn start_listening(&mut self, ctx: &mut Context<'_>) {
        if ctx.config.wake == Wake::Notify && self.listening.is_none() {
            self.listening = Some(Listening::default());
            ctx.listen(&self.key, true);
        }
    }

    pub(super) fn stop_listening(&mut self, ctx: &mut Context<'_>) {
        self.blocked = None;
        if self.listening.take().is_some() {
            ctx.listen(&self.key, false);
        }
    }

    /// A node will tell of a release from now on: announce, try again, wait, so that no release falls between.
    pub fn listens(&mut self, ctx: &mut Context<'_>, node: NodeId) {
        self.catch_up(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.listening else { return };
        listening.heard.insert(node);
        if listening.retried || listening.heard.len() < quorum {
            return;
        }
        listening.retried = true;
        self.attempt_soon(ctx);
    }

    /// A node will not tell of a release any more.
    pub fn deaf(&mut self, ctx: &mut Context<'_>, node: NodeId) {
        self.catch_up(ctx);
        let Some(listening) = &mut self.listening else { return };
        listening.heard.remove(node);
        listening.retried = false;
        if let Stage::Paused { until } = &mut self.stage {
            *until = (*until).min(ctx.now + ctx.config.poll.every);
        }
    }

    /// A node tells of a release. Whether somebody here waits for it.
    pub fn hint(&mut self, ctx: &mut Context<'_>, node: NodeId) -> bool {
        self.catch_up(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.listening else { return false };
        listening.hinted.insert(node);
        listening.told = true;
        if listening.hinted.len() >= quorum {
            self.attempt_soon(ctx);
        } else if let Stage::Paused { until } = &mut self.stage {
            *until = (*until).min(ctx.now + HINT_GATHERING);
        } else {
            self.attempt_soon(ctx);
        }
        true
    }

    pub(super) fn attempt_soon(&mut self, ctx: &mut Context<'_>) {
        match &mut self.stage {
            Stage::Paused { .. } => self.start_round(ctx),
            Stage::Trying(round) => round.hinted = true,
            Stage::Idle | Stage::Held(_) => {}
        }
    }
}

//! Wake-up of the head of the queue by a release (requirement A7).

use super::context::{Context, NodeSet};
use super::{Contention, Lock};
use crate::id::NodeId;
use crate::lock::{Blocked, Wait};
use crate::redis::config::Wake;
use crate::time::Instant;
use core::time::Duration;

/// The first node of a quorum has told of a release: the others get this long to follow.
const HINT_GATHERING: Duration = Duration::from_millis(5);

/// Wake-up subscription of the head of the queue, from the first busy answer to the grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Listening {
    /// Nodes that will tell of a release.
    pub(super) heard: NodeSet,
    /// Nodes that told of one since the last attempt.
    pub(super) hinted: NodeSet,
    /// The attempt that follows the announcement has been made.
    retried: bool,
    /// A node has told of a release, and tells of no other until it is asked to.
    pub(super) told: bool,
}

impl Lock {
    /// A release that was asked for at `asked` woke somebody. Whoever is next here lets them have the lock, and waits in line behind them:
    /// asked for at once it would be taken back before they hear of it, again and again.
    pub(super) fn give_way(&mut self, ctx: &Context, asked: Instant) {
        // Those who wait here already stay away as it is.
        if self.hold.is_none() && matches!(self.contention, Contention::Idle) && !ctx.is_stopping() {
            self.store.yields_until = Some(ctx.now + ctx.config.store.turn_pause + ctx.now.since(asked));
        }
    }

    /// The head begins: with an attempt, unless it is others' turn.
    pub(super) fn begin(&mut self, ctx: &mut Context) {
        let Some(head) = self.waiters.head() else { return };
        let alone = head.wait == Wait::Try;
        if alone || self.store.yields_until.take().is_none_or(|until| until <= ctx.now) {
            return self.start_round(ctx);
        }
        self.notify_blocked(ctx, Blocked::Held);
        // It is a waiter already: it is signalled in its turn, and its own attempt, which sets the marker, is the safety net.
        self.tries = 1;
        self.contention = Contention::Paused { until: ctx.now + ctx.config.store.poll.every };
        self.start_listening(ctx);
        if let Some(listening) = &mut self.store.listening {
            // The attempt that follows the announcement is the one that comes by itself.
            listening.retried = true;
        }
    }

    pub(super) fn start_listening(&mut self, ctx: &mut Context) {
        if ctx.config.store.wake == Wake::Notify && self.store.listening.is_none() {
            self.store.listening = Some(Listening::default());
            ctx.listen(&self.key, true);
        }
    }

    pub(super) fn stop_listening(&mut self, ctx: &mut Context) {
        self.blocked = None;
        if self.store.listening.take().is_some() {
            ctx.listen(&self.key, false);
        }
    }

    /// A node will tell of a release from now on: announce, try again, wait, so that no release falls between.
    pub fn listens(&mut self, ctx: &mut Context, node: NodeId) {
        self.expire(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.store.listening else { return };
        listening.heard.insert(node);
        if listening.retried || listening.heard.len() < quorum {
            return;
        }
        listening.retried = true;
        self.attempt_soon(ctx);
    }

    /// A node will not tell of a release any more.
    pub fn deaf(&mut self, ctx: &mut Context, node: NodeId) {
        self.expire(ctx);
        let Some(listening) = &mut self.store.listening else { return };
        listening.heard.remove(node);
        listening.retried = false;
        if let Contention::Paused { until } = &mut self.contention {
            *until = (*until).min(ctx.now + ctx.config.store.poll.every);
        }
    }

    /// A node tells of a release. Whether somebody here waits for it.
    pub fn hint(&mut self, ctx: &mut Context, node: NodeId) -> bool {
        self.expire(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.store.listening else { return false };
        listening.hinted.insert(node);
        listening.told = true;
        if listening.hinted.len() >= quorum {
            self.attempt_soon(ctx);
        } else if let Contention::Paused { until } = &mut self.contention {
            *until = (*until).min(ctx.now + HINT_GATHERING);
        } else {
            self.attempt_soon(ctx);
        }
        true
    }

    pub(super) fn attempt_soon(&mut self, ctx: &mut Context) {
        match &mut self.contention {
            Contention::Paused { .. } => self.start_round(ctx),
            Contention::Trying(round) => round.hinted = true,
            Contention::Idle => {}
        }
    }
}

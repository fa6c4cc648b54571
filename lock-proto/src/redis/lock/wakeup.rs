//! Wake-up of the head of the queue by a release (requirement A7).

use super::cleanup::Cleanup;
use super::context::{Context, NodeSet};
use super::{Contention, Lock};
use crate::id::NodeId;
use crate::lock::{Answer, Blocked, Wait};
use crate::redis::config::Wake;
use crate::redis::request::Request;
use crate::time::Instant;

/// Wake-up subscription of the head of the queue, from the first busy answer to the grant.
///
/// It is at one node, also in a quorum. That node's list of blocked clients is the queue, and a release wakes one
/// waiter. If every node woke a waiter of its own, none of them would get a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subscription {
    /// The node that is to tell of a release.
    pub(super) node: NodeId,
    /// It will tell.
    pub(super) heard: bool,
    /// It told of one since the last attempt.
    pub(super) hinted: bool,
    /// The attempt that follows the announcement has been made.
    retried: bool,
    /// An attempt on this node has set the marker. Without it, releases wake nobody.
    pub(super) marked: bool,
    /// It has told of a release, and tells of no other until it is asked to.
    pub(super) told: bool,
}

impl Subscription {
    /// Returns true if the attempt after the announcement skipped this node, so that no release would wake the head.
    pub(super) const fn is_unmarked(&self) -> bool {
        self.retried && !self.marked
    }
}

impl Lock {
    /// A release that was asked for at `asked` woke somebody. Whoever is next here lets them have the lock, and waits in line behind them:
    /// asked for at once it would be taken back before they hear of it, again and again.
    pub(super) fn give_way(&mut self, ctx: &Context, asked: Instant) {
        // Those who wait here already stay away as it is.
        let contends = !matches!(self.contention, Contention::Idle | Contention::Releasing { .. });
        if self.hold.is_none() && !contends && !ctx.is_stopping() {
            self.store.yields_until = Some(ctx.now + ctx.config.store.turn_pause + ctx.now.since(asked));
        }
    }

    /// The head begins: with an attempt, unless it is others' turn.
    pub(super) fn begin(&mut self, ctx: &mut Context) {
        let Some(head) = self.waiters.head() else { return };
        let alone = head.wait == Wait::Try;
        if alone || self.store.yields_until.take().is_none_or(|until| until <= ctx.now) {
            if !alone && self.awaits_own_release(ctx) {
                // Not for long: the node may be silent.
                self.contention = Contention::Releasing { until: ctx.now + ctx.config.store.turn_pause };
                return;
            }
            return self.start_round(ctx);
        }
        self.notify_blocked(ctx, Blocked::Held);
        // It is a waiter already: it is signalled in its turn, and its own attempt, which sets the marker, is the safety net.
        self.tries = 1;
        self.contention = Contention::Paused { until: ctx.now + ctx.config.store.poll.every };
        self.subscribe(ctx);
        if let Some(subscription) = &mut self.store.subscription {
            // The attempt that follows the announcement is the one that comes by itself.
            subscription.retried = true;
        }
    }

    /// Returns true if the node that wakes waiters has not answered this client's last release. A quorum of other nodes
    /// has, and an attempt now would overtake the waiter that was woken.
    fn awaits_own_release(&self, ctx: &Context) -> bool {
        let node = self.wake_node(ctx);
        ctx.config.is_quorum() && self.store.cleanups.get(node).is_some_and(Cleanup::is_announcing)
    }

    /// Called when a delete has been answered.
    pub(super) fn own_release_answered(&mut self, ctx: &mut Context) {
        if matches!(self.contention, Contention::Releasing { .. }) && !self.awaits_own_release(ctx) {
            self.contention = Contention::Idle;
            self.begin(ctx);
        }
    }

    /// Subscribes to releases, or moves the subscription away from a node that cannot be reached.
    pub(super) fn subscribe(&mut self, ctx: &mut Context) {
        if ctx.config.store.wake != Wake::Notify {
            return;
        }
        let node = self.wake_node(ctx);
        match &self.store.subscription {
            Some(subscription) if subscription.heard || subscription.node == node => return,
            Some(subscription) => ctx.listen(subscription.node, &self.key, false),
            None => {}
        }
        self.store.subscription =
            Some(Subscription { node, heard: false, hinted: false, retried: false, marked: false, told: false });
        ctx.listen(node, &self.key, true);
    }

    /// Returns the last reachable node, so that clients agree on it without asking each other. A release goes to the
    /// nodes in order: when the last one reports it, the others have most likely executed it.
    fn wake_node(&self, ctx: &Context) -> NodeId {
        let nodes = || (0..ctx.shared.nodes.len()).rev().map(|index| NodeId::new(index as u16));
        let may = |node: &NodeId| ctx.excluded(*node).is_none() && !ctx.shared.quiet.contains(*node);
        let reachable = |node: &NodeId| {
            let answer = self.store.answers.get(node.index());
            // The round may have been decided before this node answered.
            answer.is_none_or(|answer| matches!(answer, Answer::Granted | Answer::Taken(_) | Answer::Silent))
        };
        nodes().find(|node| may(node) && reachable(node)).or_else(|| nodes().find(may)).unwrap_or(NodeId::new(0))
    }

    /// Adds the node that wakes waiters to the nodes that a release is sent to. It may hold another client's token, but
    /// it must learn of the release.
    pub(super) fn with_wake_node(&self, ctx: &Context, mut nodes: NodeSet) -> NodeSet {
        if ctx.config.is_quorum() && ctx.config.store.wake == Wake::Notify && !nodes.is_empty() {
            nodes.insert(self.wake_node(ctx));
        }
        nodes
    }

    /// Hands on a signal that this client consumed without making an attempt.
    pub(super) fn pass_signal_on(&self, ctx: &mut Context) {
        if let Some(subscription) = self.store.subscription.filter(|subscription| subscription.hinted) {
            ctx.send(subscription.node, Request::Announce { key: self.key.clone() });
        }
    }

    pub(super) fn unsubscribe(&mut self, ctx: &mut Context) {
        self.blocked = None;
        if let Some(subscription) = self.store.subscription.take() {
            ctx.listen(subscription.node, &self.key, false);
        }
    }

    /// The subscription at this node.
    fn subscribed_at(&mut self, node: NodeId) -> Option<&mut Subscription> {
        self.store.subscription.as_mut().filter(|subscription| subscription.node == node)
    }

    /// The node will tell of a release from now on: announce, try again, wait, so that no release falls between.
    pub fn listens(&mut self, ctx: &mut Context, node: NodeId) {
        self.expire(ctx);
        let Some(subscription) = self.subscribed_at(node) else { return };
        subscription.heard = true;
        if !subscription.retried {
            subscription.retried = true;
            self.attempt_soon(ctx);
        }
    }

    /// The node will not tell of a release any more.
    pub fn unsubscribed(&mut self, ctx: &mut Context, node: NodeId) {
        self.expire(ctx);
        let Some(subscription) = self.subscribed_at(node) else { return };
        subscription.heard = false;
        subscription.retried = false;
        if let Contention::Paused { until } = &mut self.contention {
            *until = (*until).min(ctx.now + ctx.config.store.poll.every);
        }
    }

    /// The node tells of a release. Whether somebody here waits for it.
    pub fn hint(&mut self, ctx: &mut Context, node: NodeId) -> bool {
        self.expire(ctx);
        let Some(subscription) = self.subscribed_at(node) else { return false };
        subscription.hinted = true;
        subscription.told = true;
        self.attempt_soon(ctx);
        true
    }

    pub(super) fn attempt_soon(&mut self, ctx: &mut Context) {
        match &mut self.contention {
            Contention::Paused { .. } => self.start_round(ctx),
            Contention::Trying(round) => round.hinted = true,
            Contention::Releasing { .. } | Contention::Idle => {}
        }
    }
}

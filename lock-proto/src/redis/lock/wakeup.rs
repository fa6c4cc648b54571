//! Wake-up of the head of the queue by a release.
// A7

use alloc::collections::BTreeMap;
use alloc::vec;

use super::cleanup::Cleanup;
use super::context::{NodeSet, RedisEnv};
use super::{Contention, Redis};
use crate::id::NodeId;
use crate::lock::{Answer, Blocked, Expiry, ServerError, Wait};
use crate::redis::config::Wake;
use crate::redis::key::Key;
use crate::redis::listener::{MAX_KEYS, RETRY_REFUSED};
use crate::redis::server_error::refuses_key;
use crate::time::Instant;

/// The nodes that refused requests because of their wake-up keys, for a while or until the next
/// connection. Requests to them omit these keys: those of one lock if the node refused a key, else
/// all.
// A7, U1
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct WakeRefusals {
    nodes: NodeSet,
    keys: BTreeMap<Key, NodeSet>,
    /// When the refusals are over.
    until: Option<Instant>,
}

impl WakeRefusals {
    pub(super) fn insert(&mut self, now: Instant, node: NodeId, key: &Key, error: &ServerError) {
        if self.until.is_none_or(|until| until <= now) {
            *self = Self { until: Some(now + RETRY_REFUSED), ..Self::default() };
        }
        if !refuses_key(error) {
            return self.nodes.insert(node);
        }
        if self.keys.len() >= MAX_KEYS {
            // It is refused again if it is used again.
            self.keys.pop_first();
        }
        self.keys.entry(key.clone()).or_default().insert(node);
    }

    pub(super) fn contains(&self, now: Instant, node: NodeId, key: &Key) -> bool {
        self.until.is_some_and(|until| now < until)
            && (self.nodes.contains(node) || self.keys.get(key).is_some_and(|nodes| nodes.contains(node)))
    }

    /// The node has a new connection. Its ACL may have changed.
    pub(crate) fn clear(&mut self, node: NodeId) {
        self.nodes.remove(node);
        self.keys.values_mut().for_each(|nodes| nodes.remove(node));
    }
}

/// Wake-up subscription of the head of the queue, from the first busy reply to the grant. In a
/// quorum it is on one node: if every node woke a different waiter, none would get a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subscription {
    /// The node that reports releases.
    pub(super) node: NodeId,
    /// The node has confirmed the subscription.
    pub(super) active: bool,
    /// The node reported a release since the last attempt.
    pub(super) signalled: bool,
    /// The attempt after the confirmation was made.
    retried: bool,
    /// An attempt on this node has set the marker. Without it, releases wake nobody.
    pub(super) marked: bool,
    /// The node reported a release and reports no other until the next `Listen`.
    pub(super) fired: bool,
}

impl Subscription {
    /// Returns true if no release would wake the head, because no attempt set the marker.
    pub(super) const fn is_unmarked(&self) -> bool {
        self.retried && !self.marked
    }
}

impl Redis {
    /// Yields to the waiter that a release of this client, emitted at `emitted`, has woken.
    /// Otherwise the next local waiter could retake the lock again and again.
    pub(super) fn yield_to_woken(&mut self, env: &RedisEnv, emitted: Instant) {
        // Local waiters that already contend have backed off.
        let contends = !matches!(self.contention, Contention::Idle | Contention::Releasing { .. });
        if self.hold.is_none() && !contends && !env.is_stopping {
            self.backoff_until = Some(env.now + env.config.store.handover_pause + env.now.since(emitted));
        }
    }

    /// Starts contention for the head: with an attempt, unless the client yields to another one.
    pub(super) fn begin(&mut self, env: &mut RedisEnv) {
        let Some(head) = self.head else { return };
        // The node may be silent, or nobody may be woken. A wait that ends before this attempt would
        // end without any.
        let attempt_at = env.now + env.config.store.poll.every;
        let at_once = head.wait == Wait::Try || head.deadline().is_some_and(|end| end <= attempt_at);
        if at_once || self.backoff_until.take().is_none_or(|until| until <= env.now) {
            if !at_once && self.awaits_own_release(env) {
                self.contention = Contention::Releasing { until: attempt_at };
                return;
            }
            return self.start_round(env);
        }
        // The last release gave the lock to a waiter of another client.
        self.answers = vec![Answer::Taken(Expiry::Unknown); env.shared.nodes.len()];
        self.report_blocked(env, Blocked::Held);
        // The head counts as a waiter already, and a release signals it.
        self.tries = 1;
        self.contention = Contention::Paused { until: attempt_at };
        self.subscribe(env);
        if let Some(subscription) = &mut self.subscription {
            // The attempt scheduled above replaces the one after the confirmation.
            subscription.retried = true;
        }
    }

    /// Returns true if the node that wakes waiters has not answered this client's last release. An
    /// attempt now would overtake the woken waiter. On a single node that costs a round trip, so it
    /// waits only if its last attempt has overtaken one.
    fn awaits_own_release(&self, env: &RedisEnv) -> bool {
        let announces = |node| self.cleanups.get(node).is_some_and(Cleanup::is_announcing);
        (env.config.is_quorum() || self.overtook) && self.wake_node(env).is_some_and(announces)
    }

    pub(super) fn own_release_answered(&mut self, env: &mut RedisEnv) {
        if matches!(self.contention, Contention::Releasing { .. }) && !self.awaits_own_release(env) {
            self.contention = Contention::Idle;
            self.begin(env);
        }
    }

    /// Subscribes to releases, or moves the subscription away from a node that cannot be reached or
    /// cannot wake waiters.
    pub(super) fn subscribe(&mut self, env: &mut RedisEnv) {
        if env.config.store.wake != Wake::Notify {
            return;
        }
        let node = self.wake_node(env);
        match &self.subscription {
            Some(subscription) if node == Some(subscription.node) => return,
            Some(subscription) if subscription.active && env.may_wake(subscription.node, &self.key) => return,
            Some(subscription) => env.listen(subscription.node, &self.key, false),
            None => {}
        }
        self.subscription = node.map(|node| {
            env.listen(node, &self.key, true);
            Subscription { node, active: false, signalled: false, retried: false, marked: false, fired: false }
        });
    }

    /// Returns the last reachable node, on which clients agree. A release reaches it last.
    fn wake_node(&self, env: &RedisEnv) -> Option<NodeId> {
        let nodes = || {
            let nodes = (0..env.shared.nodes.len()).rev().map(|index| NodeId::new(index as u16));
            nodes.filter(|node| env.may_wake(*node, &self.key))
        };
        let reachable = |node: &NodeId| {
            let answer = self.answers.get(node.index());
            // The round may have been decided before this node answered.
            answer.is_none_or(|answer| matches!(answer, Answer::Granted | Answer::Taken(_) | Answer::Silent))
        };
        nodes().find(reachable).or_else(|| nodes().next())
    }

    /// Adds the node that wakes waiters to the nodes of a release, whichever token it has.
    pub(super) fn with_wake_node(&self, env: &RedisEnv, mut nodes: NodeSet) -> NodeSet {
        if env.config.is_quorum()
            && env.config.store.wake == Wake::Notify
            && !nodes.is_empty()
            && let Some(node) = self.wake_node(env)
        {
            nodes.insert(node);
        }
        nodes
    }

    /// Hands on a signal that this client consumed without an attempt.
    pub(super) fn forward_signal(&self, env: &mut RedisEnv) {
        if let Some(subscription) = self.subscription.filter(|subscription| subscription.signalled) {
            env.announce(subscription.node, &self.key);
        }
    }

    pub(super) fn unsubscribe(&mut self, env: &mut RedisEnv) {
        self.blocked = None;
        if let Some(subscription) = self.subscription.take() {
            env.listen(subscription.node, &self.key, false);
        }
    }

    fn subscribed_at(&mut self, node: NodeId) -> Option<&mut Subscription> {
        self.subscription.as_mut().filter(|subscription| subscription.node == node)
    }

    /// The node confirmed the subscription. One more attempt covers earlier releases.
    pub fn subscribed(&mut self, env: &mut RedisEnv, node: NodeId) {
        let Some(subscription) = self.subscribed_at(node) else { return };
        subscription.active = true;
        if !subscription.retried {
            subscription.retried = true;
            self.attempt_soon(env);
        }
    }

    /// The node no longer reports releases.
    pub fn unsubscribed(&mut self, env: &mut RedisEnv, node: NodeId) {
        let Some(subscription) = self.subscribed_at(node) else { return };
        subscription.active = false;
        subscription.retried = false;
        if let Contention::Paused { until } = &mut self.contention {
            *until = (*until).min(env.now + env.config.store.poll.every);
        }
    }

    /// The node reported a release. Returns true if a waiter here needs it.
    pub fn signalled(&mut self, env: &mut RedisEnv, node: NodeId) -> bool {
        let Some(subscription) = self.subscribed_at(node) else { return false };
        subscription.signalled = true;
        subscription.fired = true;
        self.attempt_soon(env);
        true
    }

    pub(super) fn attempt_soon(&mut self, env: &mut RedisEnv) {
        match &mut self.contention {
            Contention::Paused { .. } => self.start_round(env),
            Contention::Trying(round) => round.signalled = true,
            Contention::Releasing { .. } | Contention::Idle => {}
        }
    }
}

//! The hub: many locks, typed requests and replies.

use super::config::Config;
use super::key::Key;
use super::lock::{Redis, RedisContext, RedisLock, answer_to_take};
#[cfg(doc)]
use super::output::LocksOutput;
use super::pipe::ServerInfo;
#[cfg(doc)]
use super::request::Request;
use super::request::{Identity, Reply};
use crate::error::ConfigError;
use crate::fault::{Breach, Fault};
use crate::id::{CallId, CallOwner, ClientId, NodeId};
use crate::lock::{self, Answer, ServerError};
use crate::time::Instant;

/// All locks of one client, as typed requests and replies.
///
/// Use this type to run the locks over your own Redis client:
///
/// - Carry out each [`LocksOutput::Send`] (see [`Request::with_args`]) and pass the result to
///   [`handle_reply`](Self::handle_reply).
/// - After each call, drain `poll_output`.
/// - Call [`claim`](Self::claim) on [`Event::Granted`](crate::Event::Granted).
/// - Call [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline).
///
/// Send the requests for one node in order, on one connection. If that connection breaks, report
/// `Unknown` for what was sent, but only after it is closed. Connections need no common order.
// Q5
pub type Locks = lock::Locks<Redis>;

impl Locks {
    /// Creates a hub for the nodes of `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self::with(RedisContext::new(now, config, client, seed)?))
    }

    /// Starts the numbers of tokens and calls after these values, for a search that orders numbers
    /// (see `lock_sim::search::Canon`). Call it before the first request.
    #[must_use]
    pub const fn count_from(mut self, tokens: u64, calls: u64) -> Self {
        self.ctx.env.number = tokens;
        self.ctx.env.serial = calls;
        self
    }

    /// Handles the result of a request. Replies to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.handle_timeout(now);
        self.ctx.env.shared.executed(call.node, reply);
        match call.owner {
            CallOwner::Lock(slot) => {
                self.step(slot, |lock, ctx| lock.reply(ctx, call.serial, reply));
            }
            CallOwner::Operation(_) => self.ctx.env.operation_answered(call, Some(answer_to_ping(reply)), None),
            CallOwner::Session(_) | CallOwner::Nobody => {}
        }
        if !self.ctx.env.shared.verifications.is_empty() && self.ctx.env.shared.verifications.answered(call, reply) {
            self.verify(call.node);
        }
        self.settle();
    }

    /// Handles a new connection to a node. `server` is the reply to `INFO server`, or the server's
    /// error. With `None`, a node of a quorum votes whatever `unknown_age` says. With a
    /// temporary error, such as `BUSY`, it does not vote on this connection.
    ///
    /// A quorum needs the node's run id and uptime, a single node the run id only. If a single
    /// node's run id changed or is unknown, the hub verifies each held lock with one extension: a
    /// bounded number at a time, and first those that expire first.
    // Q6, Q7
    pub fn handle_node_up(&mut self, now: Instant, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        self.handle_timeout(now);
        self.ctx.env.shared.wake_refusals.clear(node);
        self.identify(node, server);
        for slot in self.locks.slots() {
            self.step(slot, |lock, ctx| lock.node_up(ctx, node));
        }
        let changed = self.ctx.env.shared.nodes.get(node.index()).is_some_and(|known| known.changed);
        let quorum = self.ctx.env.quorum();
        let end = |slot| self.locks.get(slot).and_then(|lock| lock.store.to_verify(node, changed, quorum));
        let held = self.locks.slots().filter_map(|slot| Some((end(slot)?, slot)));
        self.ctx.env.shared.verifications.begin(node, held);
        self.verify(node);
        self.settle();
    }

    /// The server refuses connections to this node. For reports on requests that wait for one.
    pub fn handle_login_refused(&mut self, node: NodeId, error: ServerError) {
        if let Some(known) = self.ctx.env.shared.nodes.get_mut(node.index()) {
            known.login_refused = Some(error);
        }
    }

    /// Handles a reply to `INFO server` that arrived after
    /// [`handle_node_up`](Self::handle_node_up). The next connection is compared with it.
    pub fn handle_server(&mut self, now: Instant, node: NodeId, server: &Result<ServerInfo, ServerError>) {
        self.handle_timeout(now);
        if let (Some(known), Ok(info)) = (self.ctx.env.shared.nodes.get_mut(node.index()), server)
            && !self.ctx.env.config.is_quorum()
        {
            known.run_id = Some(info.run_id.clone());
        }
    }

    /// Returns true if a new connection to the node needs its identity.
    pub(crate) fn compares_identity(&self, node: NodeId) -> bool {
        self.locks.held() > 0 && self.ctx.env.shared.nodes.get(node.index()).is_some_and(|known| known.run_id.is_some())
    }

    /// Returns true if no lock needs a connection before a timer: at most, a node is to be checked
    /// once more.
    // A4, P7
    pub(crate) fn may_rest(&self) -> bool {
        !self.is_used() && self.locks.iter().all(RedisLock::may_rest)
    }

    /// The node now reports releases of this lock, as requested by [`LocksOutput::Listen`].
    pub fn handle_subscribed(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.key_step(now, key, |lock, ctx| lock.subscribed(ctx, node));
    }

    /// The node no longer reports releases of this lock; polling takes over.
    pub fn handle_unsubscribed(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.key_step(now, key, |lock, ctx| lock.unsubscribed(ctx, node));
    }

    /// The node reported a release of this lock. The hub hands the signal on if it is not needed.
    pub fn handle_signal(&mut self, now: Instant, node: NodeId, key: &Key) {
        let consumed = self.key_step(now, key, |lock, ctx| lock.signalled(ctx, node)).unwrap_or(false);
        if !consumed && !self.is_stopped() {
            self.ctx.env.announce(node, key);
        }
    }

    /// Returns the identity that this client writes into every command.
    pub const fn identity(&self) -> &Identity {
        &self.ctx.env.shared.identity
    }

    #[cfg(test)]
    pub(crate) const fn now_for_test(&self) -> Instant {
        self.ctx.env.now
    }

    fn key_step<R>(
        &mut self,
        now: Instant,
        key: &Key,
        f: impl FnOnce(&mut RedisLock, &mut RedisContext) -> R,
    ) -> Option<R> {
        self.handle_timeout(now);
        let slot = self.locks.slot_of_key(key)?;
        self.step(slot, f)
    }

    /// Verifies the next held locks on a node, up to the limit of requests in flight.
    // Q7
    fn verify(&mut self, node: NodeId) {
        while let Some((until, slot)) = self.ctx.env.shared.verifications.next(node) {
            if let Some(serial) = self.step(slot, |lock, ctx| lock.verify(ctx, node)).flatten() {
                self.ctx.env.shared.verifications.sent(node, serial, (until, slot));
            }
        }
    }

    /// Records the node's identity, and looks for two nodes that are the same server.
    // Q6
    fn identify(&mut self, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        let Some(known) = self.ctx.env.shared.nodes.get_mut(node.index()) else { return };
        known.identify(self.ctx.env.now, &self.ctx.env.config, server);
        self.ctx.env.shared.find_duplicates(node);
    }
}

/// A user without access to the fence counter's key is logged in all the same.
#[cold]
fn answer_to_ping(reply: &Reply) -> Answer {
    match reply {
        Reply::Rejected(error) if error.text.starts_with("NOPERM") && error.text.contains(" key") => Answer::Granted,
        Reply::Extended | Reply::Absent | Reply::Taken => Answer::Granted,
        // Not a reply to an extension.
        Reply::Granted { .. } | Reply::Busy { .. } => Answer::Unknown(Fault::Protocol(Breach::WrongReply).into()),
        Reply::Rejected(_) | Reply::NotSent(_) | Reply::Unknown(_) | Reply::Deleted { .. } | Reply::Announced => {
            answer_to_take(reply)
        }
    }
}

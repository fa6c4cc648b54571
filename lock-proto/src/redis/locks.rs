//! The hub: many locks, typed requests in and out.

use super::config::Config;
use super::lock::{Context, Lock, Redis};
#[cfg(doc)]
use super::output::LocksOutput;
use super::pipe::ServerInfo;
use super::request::{Identity, Key, Reply, Request};
use crate::error::ConfigError;
use crate::id::{CallId, CallOwner, ClientId, NodeId};
use crate::lock::{self, ServerError};
use crate::time::Instant;

/// All locks of one client, as typed requests and replies.
///
/// This is the seam for those who bring their own Redis client: carry out each [`LocksOutput::Send`] (see
/// [`Request::with_args`]) and hand what came of it to [`handle_reply`](Self::handle_reply). Verbs are called by the application, `handle_*` tell
/// what the world did, `poll_output` gives what is to be done. After each call drain `poll_output` until it is empty, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline).
///
/// Requests for one node must be carried out in the order of their emission on one connection; what was sent on a connection that
/// broke is `Unknown`, and reported so only when that connection is closed. Across connections no order is assumed (requirement Q5).
pub type Locks = lock::Locks<Redis>;

impl Locks {
    /// A hub for the nodes of `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self::with(Context::new(now, config, client, seed)?))
    }

    /// Lets the numbers of tokens and calls begin after these, for a search that tells numbers apart by their size: see
    /// [`Canon`](crate::sim::search::Canon). Only before anything was asked for.
    #[cfg(feature = "sim")]
    #[must_use]
    pub const fn count_from(mut self, tokens: u64, calls: u64) -> Self {
        self.ctx.number = tokens;
        self.ctx.serial = calls;
        self
    }

    // --- facts ---

    /// What became of a request. Answers to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.handle_timeout(now);
        if let CallOwner::Lock(slot) = call.owner {
            self.step(slot, |lock, ctx| lock.reply(ctx, call.node, call.serial, reply));
        }
        if !self.ctx.shared.verifications.is_empty() && self.ctx.shared.verifications.answered(call, reply) {
            self.verify(call.node);
        }
        self.settle();
    }

    /// A node is reachable (again). `server` is what its `INFO server` told, or why it did not: who it is and for how long it has been
    /// running. A quorum needs both (requirement Q6). Of a single node the run id is enough: where it is the same as before, or this is the
    /// first connection, nothing has to be asked. Otherwise the locks that are held are verified: one extend each, some at a time,
    /// the earliest end of validity first (requirement Q7).
    pub fn handle_node_up(&mut self, now: Instant, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        self.handle_timeout(now);
        // Its rules may have changed.
        self.ctx.shared.quiet.remove(node);
        self.meet(node, server);
        for slot in self.locks.slots() {
            self.step(slot, |lock, ctx| lock.node_up(ctx, node));
        }
        let changed = self.ctx.shared.nodes.get(node.index()).is_some_and(|known| known.changed);
        let quorum = self.ctx.quorum();
        let end = |slot| self.locks.get(slot).and_then(|lock| lock.to_verify(node, changed, quorum));
        let held = self.locks.slots().filter_map(|slot| Some((end(slot)?, slot)));
        self.ctx.shared.verifications.begin(node, held);
        self.verify(node);
        self.settle();
    }

    /// What `INFO server` told on the current connection, if it was not known yet when
    /// [`handle_node_up`](Self::handle_node_up) was called without it. It is compared with what the next connection leads to.
    pub fn handle_server(&mut self, now: Instant, node: NodeId, server: &Result<ServerInfo, ServerError>) {
        self.handle_timeout(now);
        if let (Some(known), Ok(info)) = (self.ctx.shared.nodes.get_mut(node.index()), server)
            && !self.ctx.config.is_quorum()
        {
            known.run_id = Some(info.run_id.clone());
        }
    }

    /// Whether it matters who a node is at a new connection.
    pub(crate) fn compares(&self, node: NodeId) -> bool {
        self.locks.held() > 0 && self.ctx.shared.nodes.get(node.index()).is_some_and(|known| known.run_id.is_some())
    }

    /// From now on the node will tell of a release of this lock, as [`LocksOutput::Listen`] asked.
    pub fn handle_subscribed(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.key_step(now, key, |lock, ctx| lock.listens(ctx, node));
    }

    /// The node will not tell of releases any more: polling takes over.
    pub fn handle_unsubscribed(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.key_step(now, key, |lock, ctx| lock.unsubscribed(ctx, node));
    }

    /// The node told of a release of this lock. A signal that nobody here waits for any more is handed on.
    pub fn handle_signal(&mut self, now: Instant, node: NodeId, key: &Key) {
        let wanted = self.key_step(now, key, |lock, ctx| lock.hint(ctx, node)).unwrap_or(false);
        if !wanted && !self.ctx.is_stopping() {
            let request = Request::Announce { key: key.clone() };
            self.ctx.call(CallOwner::Nobody, node, request, self.ctx.config.request_timeout);
        }
    }

    // --- questions ---

    /// What this client writes into every command.
    pub const fn identity(&self) -> &Identity {
        &self.ctx.shared.identity
    }

    #[cfg(test)]
    pub(crate) const fn now_for_test(&self) -> Instant {
        self.ctx.now
    }

    // --- inside ---

    fn key_step<R>(&mut self, now: Instant, key: &Key, f: impl FnOnce(&mut Lock, &mut Context) -> R) -> Option<R> {
        self.handle_timeout(now);
        let slot = self.locks.slot_of_key(key)?;
        self.step(slot, f)
    }

    /// Asks a node about the next locks whose holds on it are to be verified (requirement Q7).
    fn verify(&mut self, node: NodeId) {
        while let Some((until, slot)) = self.ctx.shared.verifications.next(node) {
            if let Some(serial) = self.step(slot, |lock, ctx| lock.verify(ctx, node)).flatten() {
                self.ctx.shared.verifications.asked(node, serial, (until, slot));
            }
        }
    }

    /// Who a node is, and whether it may have lost its data (requirement Q6).
    fn meet(&mut self, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        let Some(known) = self.ctx.shared.nodes.get_mut(node.index()) else { return };
        known.meet(self.ctx.now, &self.ctx.config, server);
        self.ctx.shared.equal = self.ctx.shared.nodes.iter().enumerate().find_map(|(second, node)| {
            let run_id = node.run_id.as_ref()?;
            let first =
                self.ctx.shared.nodes.iter().take(second).position(|other| other.run_id.as_ref() == Some(run_id))?;
            Some((NodeId::new(first as u16), NodeId::new(second as u16)))
        });
    }
}

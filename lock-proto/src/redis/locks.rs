//! The hub: many locks, typed requests in and out.

use alloc::vec::Vec;

use super::config::Config;
use super::lock::{Context, Lock, Node, NodeSet, Redis, View};
use super::pipe::ServerInfo;
use super::request::{Identity, Key, RESERVED, Reply, Request};
use super::validity::Ttl;
use super::verify::Verifications;
use crate::error::{ConfigError, Invalid, Misuse};
use crate::id::{CallId, CallOwner, ClientId, LockId, NodeId};
use crate::lock::{self, Acquire, DEFAULT_TTL, Hub, MAX_NAME, ServerError, Surroundings as _};
use crate::redis::output::LocksOutput;
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

/// What the locks of a client share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    identity: Identity,
    nodes: Vec<Node>,
    /// Two nodes that turned out to be one server.
    equal: Option<(NodeId, NodeId)>,
    /// Nodes that refuse the keys by which waiters are woken.
    quiet: NodeSet,
    verifications: Verifications,
    /// Room for the acquisitions that end in a step.
    ended: Vec<LockId>,
}

impl Hub for Redis {
    type Config = Config;
    type Output = LocksOutput;
    type Shared = Shared;

    fn limit(config: &Config) -> u32 {
        config.max_locks
    }

    fn view<'a>(config: &'a Config, shared: &'a Shared) -> View<'a> {
        View { config, quorum: shared.nodes.len() / 2 + 1 }
    }

    fn step<R>(locks: &mut Locks, slot: u32, step: impl FnOnce(&mut Lock, &mut Context<'_>) -> R) -> Option<R> {
        let (now, stopping) = (locks.locks.now(), locks.locks.is_stopping());
        let lock = locks.locks.get_mut(slot)?;
        let was_held = lock.hold.is_some();
        let shared = &mut locks.shared;
        let mut ctx = Context {
            now,
            config: &locks.config,
            identity: &shared.identity,
            nodes: &shared.nodes,
            quiet: &mut shared.quiet,
            equal: shared.equal,
            stopping,
            seed: locks.seed,
            name: slot,
            number: &mut locks.number,
            serial: &mut locks.serial,
            out: &mut locks.out,
            ended: &mut shared.ended,
        };
        let result = step(lock, &mut ctx);
        lock.tidy();
        let deadline = lock.deadline(ctx.view()).map(|(at, _)| at);
        locks.locks.stepped(slot, was_held, deadline, shared.ended.drain(..));
        Some(result)
    }

    fn stopped(_: &mut Locks, unreleased: u32) -> LocksOutput {
        LocksOutput::Stopped { unreleased }
    }
}

impl Locks {
    /// A hub for the nodes of `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let shared = Shared {
            identity: Identity::new(client, &config.prefix),
            nodes: config.nodes.iter().map(|_| Node::default()).collect(),
            equal: None,
            quiet: NodeSet::default(),
            verifications: Verifications::default(),
            ended: Vec::new(),
        };
        Ok(Self::with(now, config, seed, shared))
    }

    /// Lets the numbers of tokens and calls begin after these, for a search that tells numbers apart by their size: see
    /// [`Canon`](crate::sim::search::Canon). Only before anything was asked for.
    #[cfg(feature = "sim")]
    #[must_use]
    pub const fn count_from(mut self, tokens: u64, calls: u64) -> Self {
        self.number = tokens;
        self.serial = calls;
        self
    }

    /// Requests a lock. Progress is reported as events for the returned id.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.admit(now)?;
        let len = want.name.len();
        if len == 0 || len > MAX_NAME {
            return Err(Invalid::NameLength { len, max: MAX_NAME }.into());
        }
        let key = Key::new(&self.config.prefix, &want.name);
        if key.lock().windows(RESERVED.len()).any(|part| part == RESERVED.as_bytes()) {
            return Err(Invalid::NameReserved.into());
        }
        let ttl = Ttl::new(want.ttl.unwrap_or(DEFAULT_TTL), want.renew, &self.config)?;
        Ok(self.begin(key, want, ttl))
    }

    // --- facts ---

    /// What became of a request. Answers to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.advance(now);
        if let CallOwner::Lock(slot) = call.owner {
            Redis::step(self, slot, |lock, ctx| lock.reply(ctx, call.node, call.serial, reply));
        }
        if !self.shared.verifications.is_empty() && self.shared.verifications.answered(call, reply) {
            self.verify(call.node);
        }
        self.settle();
    }

    /// A node is reachable (again). `server` is what its `INFO server` told, or why it did not: who it is and for how long it has been
    /// running. A quorum needs both (requirement Q6). Of a single node the run id is enough: where it is the same as before, or this is the
    /// first connection, nothing has to be asked. Otherwise the locks that are held are verified: one extend each, some at a time,
    /// the earliest end of validity first (requirement Q7).
    pub fn handle_node_up(&mut self, now: Instant, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        self.advance(now);
        // Its rules may have changed.
        self.shared.quiet.remove(node);
        self.meet(node, server);
        for slot in self.locks.slots() {
            Redis::step(self, slot, |lock, ctx| lock.node_up(ctx, node));
        }
        if self.shared.nodes.get(node.index()).is_some_and(|known| known.changed) {
            let quorum = self.shared.nodes.len() / 2 + 1;
            let end = |slot| self.locks.get(slot).and_then(|lock| lock.counts_on(node, quorum));
            let held = self.locks.slots().filter_map(|slot| Some((end(slot)?, slot)));
            self.shared.verifications.begin(node, held);
        }
        self.verify(node);
        self.settle();
    }

    /// What `INFO server` told on the current connection, if it was not known yet when
    /// [`handle_node_up`](Self::handle_node_up) was called without it. It is compared with what the next connection leads to.
    pub fn handle_server(&mut self, now: Instant, node: NodeId, server: &Result<ServerInfo, ServerError>) {
        self.advance(now);
        if let (Some(known), Ok(info)) = (self.shared.nodes.get_mut(node.index()), server)
            && !self.config.is_quorum()
        {
            known.run_id = Some(info.run_id.clone());
        }
    }

    /// Whether it matters who a node is at a new connection.
    pub(crate) fn compares(&self, node: NodeId) -> bool {
        self.locks.held() > 0 && self.shared.nodes.get(node.index()).is_some_and(|known| known.run_id.is_some())
    }

    /// From now on the node will tell of a release of this lock, as [`LocksOutput::Listen`] asked.
    pub fn handle_listening(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        if let Some(slot) = self.locks.slot_of_key(key) {
            Redis::step(self, slot, |lock, ctx| lock.listens(ctx, node));
        }
    }

    /// The node will not tell of releases any more: polling takes over.
    pub fn handle_deaf(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        if let Some(slot) = self.locks.slot_of_key(key) {
            Redis::step(self, slot, |lock, ctx| lock.deaf(ctx, node));
        }
    }

    /// The node told of a release of this lock. A signal that nobody here waits for any more is handed on.
    pub fn handle_signal(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        let slot = self.locks.slot_of_key(key);
        let wanted = slot.and_then(|slot| Redis::step(self, slot, |lock, ctx| lock.hint(ctx, node))).unwrap_or(false);
        if !wanted && !self.locks.is_stopping() {
            self.serial += 1;
            let call = CallId { owner: CallOwner::Nobody, node, serial: self.serial };
            let request = Request::Announce { key: key.clone() };
            self.out.push_back(LocksOutput::Send { call, request, patience: self.config.request_timeout });
        }
    }

    // --- questions ---

    /// What this client writes into every command.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    #[cfg(test)]
    pub(crate) const fn now_for_test(&self) -> Instant {
        self.locks.now()
    }

    // --- inside ---

    /// Asks a node about the next locks whose holds on it are to be verified (requirement Q7).
    fn verify(&mut self, node: NodeId) {
        while let Some((until, slot)) = self.shared.verifications.next(node) {
            if let Some(serial) = Redis::step(self, slot, |lock, ctx| lock.verify(ctx, node)).flatten() {
                self.shared.verifications.asked(node, serial, (until, slot));
            }
        }
    }

    /// Who a node is, and whether it may have lost its data (requirement Q6).
    fn meet(&mut self, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        let Some(known) = self.shared.nodes.get_mut(node.index()) else { return };
        known.meet(self.locks.now(), &self.config, server);
        // What was not verified when the last connection ended is verified now.
        known.verifying = known.changed || self.shared.verifications.is_open(node);
        self.shared.equal = self.shared.nodes.iter().enumerate().find_map(|(second, node)| {
            let run_id = node.run_id.as_ref()?;
            let first =
                self.shared.nodes.iter().take(second).position(|other| other.run_id.as_ref() == Some(run_id))?;
            Some((NodeId::new(first as u16), NodeId::new(second as u16)))
        });
    }
}

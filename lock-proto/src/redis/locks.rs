//! The hub: many locks, typed requests in and out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::config::Config;
use super::lock::{Context, Lock, Node, NodeSet, Waiter};
use super::pipe::ServerInfo;
use super::request::{Identity, Key, RESERVED, Reply, Request};
use super::validity::Ttl;
use super::verify::Verifications;
use crate::collections::burst;
use crate::error::{ConfigError, Invalid, Misuse};
use crate::id::{CallId, ClientId, LockId, NodeId};
use crate::lock::{Acquire, DEFAULT_TTL, MAX_NAME, Machine, Registry, ServerError};
use crate::redis::output::LocksOutput;
use crate::time::{Instant, soonest};

/// The slot of calls that belong to no lock.
const NO_LOCK: u32 = u32::MAX;

/// All locks of one client, as typed requests and replies.
///
/// This is the seam for those who bring their own Redis client: carry out each [`LocksOutput::Send`] (see
/// [`Request::with_args`]) and hand what came of it to [`handle_reply`](Self::handle_reply). Verbs are called by the application, `handle_*` tell
/// what the world did, `poll_output` gives what is to be done. After each call drain `poll_output` until it is empty, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline).
///
/// Requests for one node must be carried out in the order of their emission on one connection; what was sent on a connection that
/// broke is `Unknown`, and reported so only when that connection is closed. Across connections no order is assumed (requirement Q5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locks {
    config: Config,
    identity: Identity,
    seed: u64,
    nodes: Vec<Node>,
    equal: Option<(NodeId, NodeId)>,
    quiet: NodeSet,
    verifications: Verifications,
    locks: Registry<Lock>,
    out: VecDeque<LocksOutput>,
    ended: Vec<LockId>,
    number: u64,
    serial: u64,
}

impl Machine for Lock {
    type Key = Key;

    fn new(key: Key) -> Self {
        Self::new(key)
    }

    fn key(&self) -> &Key {
        self.key()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn is_over(&self) -> bool {
        self.is_over()
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
        #[cfg_attr(not(test), expect(unused_mut, reason = "only tests have flaws"))]
        let mut identity = Identity::new(client, &config.prefix);
        #[cfg(test)]
        {
            identity.flaw = config.flaw;
        }
        let nodes = config.nodes.iter().map(|_| Node::default()).collect();
        Ok(Self {
            config,
            identity,
            seed,
            nodes,
            equal: None,
            quiet: NodeSet::default(),
            verifications: Verifications::default(),
            locks: Registry::new(now),
            out: VecDeque::new(),
            ended: Vec::new(),
            number: 0,
            serial: 0,
        })
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

    // --- verbs ---

    /// Wishes for a lock. Its fate comes as events of the id that is returned.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.advance(now);
        self.locks.admit(self.config.max_locks)?;
        let len = want.name.len();
        if len == 0 || len > MAX_NAME {
            return Err(Invalid::NameLength { len, max: MAX_NAME }.into());
        }
        let key = Key::new(&self.config.prefix, &want.name);
        if key.lock().windows(RESERVED.len()).any(|part| part == RESERVED.as_bytes()) {
            return Err(Invalid::NameReserved.into());
        }
        let ttl = Ttl::new(want.ttl.unwrap_or(DEFAULT_TTL), want.renew, &self.config)?;
        let (slot, id) = self.locks.begin(key);
        let waiter = Waiter { id, ttl, renew: want.renew, wait: want.wait.or_try(), since: self.locks.now() };
        self.step(slot, |lock, ctx| lock.acquire(ctx, waiter));
        Ok(id)
    }

    /// Takes the lock that was offered by [`Event::Granted`](crate::Event::Granted). Only from then on is it renewed (requirement H5).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    pub fn claim(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let slot = self.locks.slot_of(id)?;
        self.step(slot, |lock, ctx| lock.claim(ctx, id)).unwrap_or(Err(Misuse::Stale(id)))
    }

    /// Gives the lock a full TTL from now on. Each call is answered by an [`Event::Extended`](crate::Event::Extended) or [`Event::ExtendFailed`](crate::Event::ExtendFailed) of its own, in the
    /// order of the calls, unless the lock is lost or given back first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let slot = self.locks.slot_of(id)?;
        self.step(slot, |lock, ctx| lock.extend(ctx, id)).unwrap_or(Err(Misuse::Stale(id)))
    }

    /// Gives the lock back. Answered by [`Event::Released`](crate::Event::Released). Legal for a lock that is held, offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    pub fn release(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let slot = self.locks.slot_of(id)?;
        self.step(slot, |lock, ctx| lock.release(ctx, id)).unwrap_or(Err(Misuse::Stale(id)))
    }

    /// Ends the acquisition, whatever state it is in: no event of it follows, nothing of it is left behind. Legal in every state; for an
    /// id that has ended it does nothing. This is what `Drop` calls.
    pub fn abandon(&mut self, now: Instant, id: LockId) {
        self.advance(now);
        if let Ok(slot) = self.locks.slot_of(id) {
            self.step(slot, |lock, ctx| lock.abandon(ctx, id));
        }
    }

    /// Gives back what is held, answers who waits, and takes no new wishes. [`LocksOutput::Stopped`] follows when every node has
    /// confirmed, or after `within`.
    pub fn shut_down(&mut self, now: Instant, within: Duration) {
        self.advance(now);
        if self.locks.begin_shutdown(within) {
            for slot in self.locks.slots() {
                self.step(slot, Lock::shut_down);
            }
        }
        self.check_stopped();
    }

    // --- facts ---

    /// What became of a request. Answers to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.advance(now);
        self.step(call.name, |lock, ctx| lock.reply(ctx, call.node, call.serial, reply));
        if !self.verifications.is_empty() && self.verifications.answered(call, reply) {
            self.verify(call.node);
        }
        if self.locks.is_stopping() {
            self.check_stopped();
        }
    }

    /// A node is reachable (again). `server` is what its `INFO server` told, or why it did not: who it is and for how long it has been
    /// running. A quorum needs both (requirement Q6). Of a single node the run id is enough: where it is the same as before, or this is the
    /// first connection, nothing has to be asked. Otherwise the locks that are held are verified: one extend each, some at a time,
    /// the earliest end of validity first (requirement Q7).
    pub fn handle_node_up(&mut self, now: Instant, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        self.advance(now);
        // Its rules may have changed.
        self.quiet.remove(node);
        self.meet(node, server);
        for slot in self.locks.slots() {
            self.step(slot, |lock, ctx| lock.node_up(ctx, node));
        }
        if self.nodes.get(node.index()).is_some_and(|known| known.changed) {
            let quorum = self.quorum();
            let end = |slot| self.locks.get(slot).and_then(|lock| lock.counts_on(node, quorum));
            let held = self.locks.slots().filter_map(|slot| Some((end(slot)?, slot)));
            self.verifications.begin(node, held);
        }
        self.verify(node);
        self.check_stopped();
    }

    /// What `INFO server` told on the current connection, if it was not known yet when
    /// [`handle_node_up`](Self::handle_node_up) was called without it. It is compared with what the next connection leads to.
    pub fn handle_server(&mut self, now: Instant, node: NodeId, server: &Result<ServerInfo, ServerError>) {
        self.advance(now);
        if let (Some(known), Ok(info)) = (self.nodes.get_mut(node.index()), server)
            && !self.config.is_quorum()
        {
            known.run_id = Some(info.run_id.clone());
        }
    }

    /// Whether it matters who a node is at a new connection.
    pub(crate) fn compares(&self, node: NodeId) -> bool {
        self.locks.held() > 0 && self.nodes.get(node.index()).is_some_and(|known| known.run_id.is_some())
    }

    /// From now on the node will tell of a release of this lock, as [`LocksOutput::Listen`] asked.
    pub fn handle_listening(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        if let Some(slot) = self.locks.slot_of_key(key) {
            self.step(slot, |lock, ctx| lock.listens(ctx, node));
        }
    }

    /// The node will not tell of releases any more: polling takes over.
    pub fn handle_deaf(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        if let Some(slot) = self.locks.slot_of_key(key) {
            self.step(slot, |lock, ctx| lock.deaf(ctx, node));
        }
    }

    /// The node told of a release of this lock. A signal that nobody here waits for any more is handed on.
    pub fn handle_signal(&mut self, now: Instant, node: NodeId, key: &Key) {
        self.advance(now);
        let slot = self.locks.slot_of_key(key);
        let wanted = slot.and_then(|slot| self.step(slot, |lock, ctx| lock.hint(ctx, node))).unwrap_or(false);
        if !wanted && !self.locks.is_stopping() {
            self.serial += 1;
            let call = CallId { name: NO_LOCK, node, serial: self.serial };
            let request = Request::Announce { key: key.clone() };
            self.out.push_back(LocksOutput::Send { call, request, patience: self.config.request_timeout });
        }
    }

    /// Does what is due. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        if self.locks.is_stopping() {
            self.check_stopped();
        }
    }

    // --- drains ---

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<LocksOutput> {
        burst::pop(&mut self.out)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; now, while output is queued.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(self.locks.now());
        }
        let first = self.locks.next_deadline().map(|(at, _)| at);
        soonest([first, self.locks.stop_at()]).filter(|at| *at < Instant::MAX)
    }

    /// [`next_deadline`](Self::next_deadline) and what it is for.
    #[must_use]
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.locks.now(), "output is queued"));
        }
        let first = self.locks.next_deadline().map(|(at, slot)| {
            let reason = self.locks.get(slot).and_then(|lock| lock.deadline(self.quorum(), &self.config));
            (at, reason.map_or("a lock", |(_, reason)| reason))
        });
        let stop = self.locks.stop_at().map(|at| (at, "end of the shutdown"));
        [first, stop].into_iter().flatten().filter(|(at, _)| *at < Instant::MAX).min()
    }

    // --- questions ---

    /// The end of the validity of a lock that is held; `None` if it is not. Whether it is still held is for the clock to say.
    #[must_use]
    pub fn valid_until(&self, id: LockId) -> Option<Instant> {
        self.locks.of(id)?.valid_until(id, self.quorum())
    }

    /// How many locks are held.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.locks.held()
    }

    /// Whether the shutdown is over.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.locks.is_stopped()
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What this client writes into every command.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    #[cfg(test)]
    pub(crate) const fn now_for_test(&self) -> Instant {
        self.locks.now()
    }

    // --- inside ---

    const fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Time never runs backwards here (requirement M1), and what is due comes before any news: after a pause the first word is
    /// `Lost` (requirement T2).
    fn advance(&mut self, now: Instant) {
        self.locks.advance(now);
        if self.locks.due().is_some() {
            self.serve_due();
        }
    }

    #[cold]
    fn serve_due(&mut self) {
        while let Some(slot) = self.locks.due() {
            self.step(slot, Lock::timeout);
            self.locks.served(slot);
        }
    }

    /// One step of one lock, and what follows from it for the hub.
    fn step<R>(&mut self, slot: u32, f: impl FnOnce(&mut Lock, &mut Context<'_>) -> R) -> Option<R> {
        let (now, stopping) = (self.locks.now(), self.locks.is_stopping());
        let lock = self.locks.get_mut(slot)?;
        let was_held = lock.is_held();
        let mut ctx = Context {
            now,
            config: &self.config,
            identity: &self.identity,
            nodes: &self.nodes,
            quiet: &mut self.quiet,
            equal: self.equal,
            stopping,
            seed: self.seed,
            name: slot,
            number: &mut self.number,
            serial: &mut self.serial,
            out: &mut self.out,
            ended: &mut self.ended,
        };
        let result = f(lock, &mut ctx);
        lock.tidy();
        let (quorum, config) = (self.nodes.len() / 2 + 1, &self.config);
        let deadline = |lock: &Lock| lock.deadline(quorum, config).map(|(at, _)| at);
        self.locks.stepped(slot, was_held, deadline, self.ended.drain(..));
        Some(result)
    }

    /// Asks a node about the next locks whose holds on it are to be verified (requirement Q7).
    fn verify(&mut self, node: NodeId) {
        while let Some((until, slot)) = self.verifications.next(node) {
            if let Some(serial) = self.step(slot, |lock, ctx| lock.verify(ctx, node)).flatten() {
                self.verifications.asked(node, serial, (until, slot));
            }
        }
    }

    /// Who a node is, and whether it may have lost its data (requirement Q6).
    fn meet(&mut self, node: NodeId, server: Option<&Result<ServerInfo, ServerError>>) {
        let Some(known) = self.nodes.get_mut(node.index()) else { return };
        known.meet(self.locks.now(), &self.config, server);
        // What was not verified when the last connection ended is verified now.
        known.verifying = known.changed || self.verifications.is_open(node);
        self.equal = self.nodes.iter().enumerate().find_map(|(second, node)| {
            let run_id = node.run_id.as_ref()?;
            let first = self.nodes.iter().take(second).position(|other| other.run_id.as_ref() == Some(run_id))?;
            Some((NodeId::new(first as u16), NodeId::new(second as u16)))
        });
    }

    fn check_stopped(&mut self) {
        let Some(until) = self.locks.stop_at() else { return };
        let nodes = self.nodes.len();
        if self.locks.is_drained(|lock| lock.is_drained(nodes)) || until <= self.locks.now() {
            let unreleased = self.locks.iter().filter(|lock| !lock.is_drained(nodes)).count() as u32;
            for slot in self.locks.slots() {
                self.step(slot, Lock::stop);
            }
            // What cleanup is left ends with its TTL.
            self.locks.stop();
            self.locks.clear();
            self.out.push_back(LocksOutput::Stopped { unreleased });
        }
    }
}

//! The whole client: the hub and its channel. Remote procedure calls in, remote procedure calls out.

use alloc::collections::VecDeque;
use core::time::Duration;

use bytes::Bytes;

use super::channel::{Channel, ChannelOutput};
use super::config::Config;
use super::lock::OwnerKey;
use super::locks::Locks;
use super::output::Output;
use super::rpc::{RpcId, RpcReply, Status, StreamId, StreamReceived};
use super::seam::LocksOutput;
use super::url::Endpoint;
use crate::error::{ConfigError, Misuse};
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, LockId, NodeId};
use crate::lock::{Acquire, Drift, Elections, Machine, QueryId};
use crate::time::Instant;

/// All locks and elections of one client, and its connection to the cluster.
///
/// The host opens the connections and carries out the calls that [`poll_output`](Self::poll_output) asks for, tells what came of them by the `handle_`
/// methods, drains `poll_output` after each until it is empty, and calls `handle_timeout` at `next_deadline`. Every call takes the time
/// first. Facts about connections, calls and streams that are not current any more are dropped, so they may come late, twice or never.
///
/// Nothing about safety depends on the order in which a host does these things: whether a lock is held is for the clock to say,
/// see [`valid_until`](Self::valid_until).
///
/// A client is a value (requirement D2): it can be cloned, compared and hashed, and equal histories give equal clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    locks: Locks,
    channel: Channel,
    out: VecDeque<Output>,
    now: Instant,
}

impl Client {
    /// A client of the cluster of `config`. A connection is opened when the first lock is wanted.
    ///
    /// `id` must be unique in the world, `seed` is 64 bits of entropy for jitter: take both from the operating system.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range, with its value and what is allowed.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        let locks = Locks::new(now, config, id, seed)?;
        let channel = Channel::new(locks.config().channel(), seed);
        Ok(Self { locks, channel, out: VecDeque::new(), now })
    }

    // --- verbs ---

    /// Wishes for a lock. Its fate comes as events of the id that is returned.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.verb(now, |locks, now| locks.acquire(now, want))
    }

    /// Stands for election with this value. Its fate comes as events of the id that is returned: `Granted` means elected.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.verb(now, |locks, now| locks.campaign(now, want, value))
    }

    /// Takes the lock (or the office) that was offered by `Granted`.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    pub fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.claim(now, lock))
    }

    /// Gives the lock's lease a full TTL from now on. Each call is answered by an `Extended` or `ExtendFailed` of its own, in the order of
    /// the calls, unless the lock is lost or given back first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.extend(now, lock))
    }

    /// Changes the value of a candidate that leads. Answered by `Proclaimed` or `ProclaimFailed`.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it does not lead.
    pub fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.proclaim(now, lock, value))
    }

    /// The key that the holder has, for transactions of its own that compare its `mod_revision`. From now on the lock is not passed on
    /// before that has changed (requirement E7).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<OwnerKey, Misuse> {
        self.verb(now, |locks, now| locks.owner_guard(now, lock))
    }

    /// Gives the lock back, or resigns. Answered by `Released`. Legal for a lock that is held, offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    pub fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.release(now, lock))
    }

    /// Ends the acquisition, whatever state it is in: no event of it follows, nothing of it is left behind. Legal in every state; for an
    /// id that has ended it does nothing. This is what `Drop` calls.
    pub fn abandon(&mut self, now: Instant, lock: LockId) {
        self.verb(now, |locks, now| locks.abandon(now, lock));
    }

    /// Asks who leads. Answered by one event.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: the name is too long or empty, or the client is shutting down.
    pub fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.verb(now, |locks, now| locks.leader(now, name))
    }

    /// Observes who leads, until the query is closed. The last event says why it could not go on.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.verb(now, |locks, now| locks.observe(now, name))
    }

    /// Ends a question or an observation: no event of it follows.
    pub fn close_query(&mut self, now: Instant, query: QueryId) {
        self.verb(now, |locks, now| locks.close_query(now, query));
    }

    /// Gives back what is held, answers who waits, revokes every lease, and takes no new wishes (requirements U2, E1).
    /// [`Output::Stopped`] follows when that is confirmed, or after `within`.
    pub fn shutdown(&mut self, now: Instant, within: Duration) {
        self.verb(now, |locks, now| locks.shut_down(now, within));
    }

    // --- facts ---

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.fact(now, |channel, now| channel.handle_connected(now, conn));
    }

    /// The connection could not be opened, or has ended. After [`Output::Disconnect`] this need not be reported.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.fact(now, |channel, now| channel.handle_disconnected(now, conn, why));
    }

    /// A unary call has ended.
    pub fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>) {
        self.fact(now, |channel, now| channel.handle_reply(now, rpc, reply));
    }

    /// A message came on a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.fact(now, |channel, now| channel.handle_message(now, stream, message));
    }

    /// A stream has ended, or could not be opened.
    pub fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.fact(now, |channel, now| channel.handle_stream_ended(now, stream, status));
    }

    /// Does what is due. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.fact(now, |channel, now| {
            if channel.next_deadline().is_some_and(|at| at <= now) {
                channel.handle_timeout(now);
            }
        });
    }

    // --- drains ---

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.poll_told().or_else(|| self.poll_request())
    }

    /// The next thing to be done or to know, without handing out any request. For whoever has a queue of outputs between this one and the
    /// host: empty `poll_told` at once, and call [`poll_request`](Self::poll_request) when that queue is empty. What is asked for meanwhile
    /// can then leave together.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_told(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// The next request, or a stream to be opened for one: `Call`, `Open` or `Send`. From here on it may be executed (requirement M8), so it
    /// is handed out only when nothing else is to be done first.
    #[must_use = "a request that is not carried out stalls the client"]
    pub fn poll_request(&mut self) -> Option<Output> {
        if self.out.is_empty() { self.channel.poll_request() } else { None }
    }

    /// When `handle_timeout` is to be called; now, while output is queued. `None`: not before something else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_reason().map(|(at, _)| at)
    }

    /// [`next_deadline`](Self::next_deadline), and what it is for.
    #[must_use]
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.now, "output is queued"));
        }
        [self.locks.next_deadline_reason(), self.channel.next_deadline_reason()].into_iter().flatten().min()
    }

    // --- questions ---

    /// The end of the validity of a lock that is held; `None` if it is not held, or not any more. It is held while the clock, read
    /// *now*, is before that (requirement T3).
    #[must_use]
    pub fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.locks.valid_until(lock)
    }

    /// The key that a holder has. Unlike [`owner_guard`](Self::owner_guard) it promises nothing about what comes after the hold.
    #[must_use]
    pub fn owner(&self, lock: LockId) -> Option<OwnerKey> {
        self.locks.owner(lock)
    }

    /// Whether any lock is held. A host that sleeps should then wake up every second or so: after a suspend its timer may be late, and the
    /// holders must be told.
    #[must_use]
    pub const fn holds_any(&self) -> bool {
        self.locks.held() > 0
    }

    /// Where a member is.
    #[must_use]
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.config().endpoints().get(node.index())
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        self.locks.config()
    }

    // --- inside ---

    fn verb<R>(&mut self, now: Instant, f: impl FnOnce(&mut Locks, Instant) -> R) -> R {
        self.now = self.now.max(now);
        let result = f(&mut self.locks, self.now);
        self.route();
        result
    }

    /// What is due for the locks comes before any news (requirement T2).
    fn fact(&mut self, now: Instant, f: impl FnOnce(&mut Channel, Instant)) {
        self.now = self.now.max(now);
        self.locks.handle_timeout(self.now);
        self.route();
        f(&mut self.channel, self.now);
        self.route();
    }

    /// Carries what the parts have for each other, until none has anything left: within the call that caused it, not when the host
    /// polls (requirement M3).
    fn route(&mut self) {
        let now = self.now;
        loop {
            if let Some(output) = self.locks.poll_output() {
                match output {
                    LocksOutput::Send { call, request, patience } => self.channel.send(now, call, request, patience),
                    LocksOutput::Watch { watch, key, end } => self.channel.watch(now, watch, key, end),
                    LocksOutput::Unwatch { watch } => self.channel.unwatch(now, watch),
                    LocksOutput::Event { lock, event } => self.out.push_back(Output::Event { lock, event }),
                    LocksOutput::Election { query, event } => self.out.push_back(Output::Election { query, event }),
                    LocksOutput::Stopped { unreleased } => {
                        self.channel.close(now);
                        self.out.push_back(Output::Stopped { unreleased });
                    }
                }
            } else if let Some(output) = self.channel.poll_told() {
                match output {
                    ChannelOutput::Do(output) => self.out.push_back(output),
                    ChannelOutput::Reply { call, reply } => self.locks.handle_reply(now, call, &reply),
                    ChannelOutput::Watching { watch, revision } => self.locks.handle_watching(now, watch, revision),
                    ChannelOutput::Changed { watch, revision, deleted, kv } => {
                        self.locks.handle_changed(now, watch, revision, deleted, &kv);
                    }
                    ChannelOutput::Deaf { watch } => self.locks.handle_deaf(now, watch),
                    ChannelOutput::WatchRefused { watch, error } => {
                        self.locks.handle_watch_refused(now, watch, &error);
                    }
                }
            } else {
                return;
            }
        }
    }
}

impl Machine for Client {
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.acquire(now, want)
    }

    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.claim(now, lock)
    }

    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.extend(now, lock)
    }

    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.release(now, lock)
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        self.abandon(now, lock);
    }

    fn shutdown(&mut self, now: Instant, within: Duration) {
        self.shutdown(now, within);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.valid_until(lock)
    }

    fn holds_any(&self) -> bool {
        self.holds_any()
    }

    fn release_within(&self) -> Duration {
        self.config().release_within
    }

    fn drift(&self) -> Drift {
        self.config().drift
    }

    fn prefix(&self) -> &[u8] {
        &self.config().prefix
    }
    fn elections(&mut self) -> Option<&mut dyn Elections> {
        Some(self)
    }
}

impl Elections for Client {
    fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.campaign(now, want, value)
    }

    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.proclaim(now, lock, value)
    }

    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.leader(now, name)
    }

    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.observe(now, name)
    }

    fn close_query(&mut self, now: Instant, query: QueryId) {
        self.close_query(now, query);
    }
}

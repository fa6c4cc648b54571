//! The connection to a cluster: which member to talk to, the login, unary calls, the keep-alive stream and the one watch stream.

mod answer;
mod batch;
mod calls;
mod login;
mod seam;
mod streams;
#[cfg(test)]
mod tests;
mod watch;

use alloc::collections::VecDeque;
use core::time::Duration;

use bytes::Bytes;

pub use self::seam::{ChannelConfig, ChannelOutput};

use self::calls::Calls;
use self::login::Login;
use self::streams::{KeepAlives, Step};
use self::watch::{Wanted, Watches};
use super::output::Output;
use super::request::{Reply, Request};
use super::rpc::{RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend};
use super::seam::WatchId;
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{Cause, ErrorClass, Failures, ServerError};
use crate::time::Instant;

/// How often the silence that is allowed may double: etcd itself gives a request up after seven seconds.
const MOST_DOUBLINGS: u32 = 3;

/// How many times as long as lately nothing may arrive.
const SLOWER: u32 = 4;

/// The connection of one client to a cluster, without any I/O: typed requests in, remote procedure calls out.
///
/// There is one connection at a time. It is opened when there is something to send or to watch, to an endpoint that depends on `seed`, and
/// stays while that member works. When it fails the next endpoint is tried, with a pause once all have failed. Requests wait
/// meanwhile, each for as long as its patience lasts. A request counts as sent when it is handed out by
/// [`poll_output`](Self::poll_output), not before (requirement M8): so drain it when the host is ready to carry it out.
///
/// The host reports what happens by the `handle_` methods. Facts about connections, calls and streams that are not current are dropped,
/// so they may come late or twice (requirement M6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    config: ChannelConfig,
    seed: u64,
    now: Instant,
    phase: Phase,
    generation: u64,
    /// The endpoint that is used, or will be tried next.
    endpoint: u16,
    /// Failures since the last connection that lasted.
    backoff: Failures,
    /// When the connection was opened.
    since: Instant,
    /// Why the last one failed, until the next one is up.
    last_error: Option<Cause>,
    /// While answers are expected: since when nothing has arrived.
    silent_since: Option<Instant>,
    /// How many connections in a row ended because nothing arrived on them.
    silences: u32,
    /// For how long something was waited for, lately, before anything arrived.
    slowest: Duration,
    login: Login,
    calls: Calls,
    keep_alives: KeepAlives,
    watches: Watches,
    /// Numbers of calls and streams. Never used again.
    serial: u64,
    out: VecDeque<ChannelOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Closed,
    Connecting { until: Instant },
    LoggingIn { until: Instant, rpc: RpcId },
    Up,
    BackingOff { until: Instant },
}

impl Channel {
    /// A closed connection. `seed` chooses the first endpoint and spreads the retries of many clients; equal seeds give equal runs.
    #[must_use]
    pub fn new(config: ChannelConfig, seed: u64) -> Self {
        let endpoint = (mix(seed, 0) % u64::from(config.endpoints.max(1))) as u16;
        // A user is told apart for each request by the server's own check of permissions, and by nothing else.
        let calls = Calls::new(config.user.is_none());
        Self {
            config,
            seed,
            now: Instant::ZERO,
            phase: Phase::Closed,
            generation: 0,
            endpoint,
            backoff: Failures::default(),
            since: Instant::ZERO,
            last_error: None,
            silent_since: None,
            silences: 0,
            slowest: Duration::ZERO,
            login: Login::default(),
            calls,
            keep_alives: KeepAlives::default(),
            watches: Watches::new(mix(seed, 1)),
            serial: 0,
            out: VecDeque::new(),
        }
    }

    // Verbs.

    /// Sends a request, and opens the connection if it is closed. If it cannot be sent within `patience`, counted from now, it is
    /// [`Reply::NotSent`]. Once it was handed out it stays in flight until it is answered or the connection ends, which it does when answers
    /// are expected and nothing at all has arrived for [`ChannelConfig::request_timeout`] (requirement E13). No more than 128 are under
    /// way at once.
    ///
    /// While two calls with writes are under way, those that come later wait for an answer, but for two milliseconds at most, and then leave
    /// together in one transaction. Each is answered as if it had gone alone (requirement E11).
    pub fn send(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        self.clock(now);
        if self.calls.len() + self.keep_alives.len() >= self.config.limit {
            return self.not_sent(call, Fault::Backlog.into());
        }
        if let Request::KeepAlive { lease } = request {
            self.keep_alives.ask(call, lease, self.now + timeout);
        } else {
            self.calls.ask(self.now, call, request, timeout);
        }
        if let Phase::BackingOff { until } = &mut self.phase {
            // The other half is for the attempt: a lease with a short TTL cannot wait for a long pause.
            *until = (*until).min(self.now + timeout / 2);
        }
        self.wake();
    }

    /// Watches the keys from `key` up to `end`, exclusive, from now on; an empty `end` means the one key.
    pub fn watch(&mut self, now: Instant, watch: WatchId, key: Bytes, end: Bytes) {
        self.want(now, watch, key, end, false);
    }

    /// As [`watch`](Self::watch), and only deletions are told.
    pub fn watch_deletions(&mut self, now: Instant, watch: WatchId, key: Bytes, end: Bytes) {
        self.want(now, watch, key, end, true);
    }

    fn want(&mut self, now: Instant, watch: WatchId, key: Bytes, end: Bytes, deletions: bool) {
        self.clock(now);
        if self.watches.len() >= self.config.limit {
            let error = ServerError { class: ErrorClass::Transient, text: "too many watches".into() };
            return self.out.push_back(ChannelOutput::WatchRefused { watch, error });
        }
        self.watches.want(watch, Wanted { key, end, deletions }, self.login.count);
        self.wake();
    }

    /// Ends a watch. What still comes for it is dropped. The stream stays open for the next one.
    pub fn unwatch(&mut self, now: Instant, watch: WatchId) {
        self.clock(now);
        self.watches.unwant(watch);
    }

    /// Gives the connection up, until `send` or `watch`. What has not been answered is answered with [`Fault::NotNeeded`]: `Unknown` if it
    /// was sent, else `NotSent`. All watches end, without a word.
    pub fn close(&mut self, now: Instant) {
        self.clock(now);
        self.hang_up();
        self.phase = Phase::Closed;
        self.backoff = Failures::default();
        self.settle(&Fault::NotNeeded.into());
        while let Some(call) = self.calls.pop_waiting().or_else(|| self.keep_alives.pop_waiting()) {
            self.not_sent(call, Fault::NotNeeded.into());
        }
        self.watches = Watches::new(mix(self.seed, self.generation + 2));
    }

    /// Whether requests go out at once.
    pub const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// The connection that is open or being opened.
    pub const fn current(&self) -> Option<ConnId> {
        match self.phase {
            Phase::Connecting { .. } | Phase::LoggingIn { .. } | Phase::Up => {
                Some(ConnId { node: NodeId::new(self.endpoint), role: Role::Commands, generation: self.generation })
            }
            Phase::Closed | Phase::BackingOff { .. } => None,
        }
    }

    // Facts.

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.clock(now);
        let Phase::Connecting { until } = self.phase else { return };
        if self.current() == Some(conn) {
            self.since = self.now;
            self.log_in(until);
        }
    }

    /// The connection has ended, or could not be opened.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.clock(now);
        if self.current() == Some(conn) {
            self.gone(why.into());
        }
    }

    /// A unary call was answered, or has failed.
    pub fn handle_reply(&mut self, now: Instant, rpc: RpcId, result: Result<RpcReply, Status>) {
        self.clock(now);
        if self.current() != Some(rpc.conn()) {
            return;
        }
        self.heard();
        if matches!(self.phase, Phase::LoggingIn { rpc: login, .. } if login == rpc) {
            return self.logged_in(result);
        }
        if let Some(sent) = self.calls.answered(rpc.serial) {
            self.answered(sent, result);
        }
        self.expects();
    }

    /// A message came on a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.clock(now);
        if !self.is_open(stream) {
            return;
        }
        self.heard();
        match (stream.kind(), message) {
            (StreamKind::KeepAlive, StreamReceived::KeepAlive(response)) => self.kept_alive(&response),
            (StreamKind::Watch, StreamReceived::Watch(response)) => self.watched(response),
            (StreamKind::KeepAlive, StreamReceived::Watch(_)) | (StreamKind::Watch, StreamReceived::KeepAlive(_)) => {
                self.give_up(Fault::Protocol(Breach::WrongReply).into());
            }
        }
        self.expects();
    }

    /// A stream has ended, or could not be opened.
    pub fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.clock(now);
        if !self.is_open(stream) {
            return;
        }
        self.heard();
        self.stream_ended(stream.kind(), &status);
        self.expects();
    }

    /// Time has passed: call it at [`next_deadline`](Self::next_deadline); at any other time it does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock(now);
        let now = self.now;
        while let Some(call) = self.calls.pop_due(now).or_else(|| self.keep_alives.pop_due(now)) {
            let cause = self.last_error.clone().unwrap_or_else(|| Fault::TimedOut.into());
            self.not_sent(call, cause);
        }
        if self.keep_alives.pause.is_some_and(|until| until <= now) {
            self.keep_alives.pause = None;
        }
        let silence = self.longest_silence();
        if self.watches.timeout(now, &self.config, silence) {
            self.close_watch_stream();
        }
        match self.phase {
            Phase::Up if self.silent_until().is_some_and(|until| until <= now) => {
                self.silences = self.silences.saturating_add(1);
                self.give_up(Fault::TimedOut.into());
            }
            Phase::Closed | Phase::Up => {}
            Phase::Connecting { until } | Phase::LoggingIn { until, .. } => {
                if until <= now {
                    self.give_up(Fault::TimedOut.into());
                }
            }
            Phase::BackingOff { until } => {
                if until <= now {
                    self.phase = Phase::Closed;
                    self.wake();
                }
            }
        }
    }

    // Drains.

    /// The next thing to do or to know. Told is first what has happened, then requests are handed out.
    pub fn poll_output(&mut self) -> Option<ChannelOutput> {
        self.poll_notification().or_else(|| self.poll_request().map(ChannelOutput::Do))
    }

    /// The next thing to do or to know, without handing out any request. For whoever has a queue of outputs between this one and the
    /// host: empty `poll_notification` at once, and call [`poll_request`](Self::poll_request) when that queue is empty.
    pub fn poll_notification(&mut self) -> Option<ChannelOutput> {
        self.out.pop_front()
    }

    /// The next request, or a stream to be opened for one: `Call`, `Open` or `Send`. From here on it may be executed.
    pub fn poll_request(&mut self) -> Option<Output> {
        let output = self.next_request()?;
        self.expects();
        Some(output)
    }

    fn next_request(&mut self) -> Option<Output> {
        let conn = self.current().filter(|_| self.is_up())?;
        if let Some(step) = self.keep_alives.step() {
            return Some(match step {
                Step::Open => {
                    let stream = self.new_stream(conn, StreamKind::KeepAlive);
                    self.keep_alives.opened(self.now, stream);
                    self.open(stream)
                }
                Step::Send(stream, message) => Output::Send { stream, message: StreamSend::KeepAlive(message) },
            });
        }
        if let Some(step) = self.watches.step(self.now) {
            return Some(match step {
                Step::Open => {
                    let stream = self.new_stream(conn, StreamKind::Watch);
                    self.watches.opened(self.now, stream, self.login.count);
                    self.open(stream)
                }
                Step::Send(stream, message) => Output::Send { stream, message: StreamSend::Watch(message) },
            });
        }
        let serial = self.serial + 1;
        let request = self.calls.send(self.now, serial, self.login.count)?;
        self.serial = serial;
        Some(Output::Call { rpc: RpcId { conn, serial }, request, token: self.login.token.clone() })
    }

    /// When to call `handle_timeout` at the latest. The time of the last call while there is output to be polled.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_reason().map(|(at, _)| at)
    }

    /// [`next_deadline`](Self::next_deadline), and what it is for.
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        let ready = self.calls.is_ready(self.now) || self.keep_alives.is_ready() || self.watches.is_ready();
        if !self.out.is_empty() || self.is_up() && ready {
            return Some((self.now, "output is queued"));
        }
        let phase = match self.phase {
            Phase::Closed | Phase::Up => None,
            Phase::Connecting { until } => Some((until, "connect timeout")),
            Phase::LoggingIn { until, .. } => Some((until, "login timeout")),
            Phase::BackingOff { until } => Some((until, "pause before the next connection")),
        };
        [
            phase,
            self.silent_until().map(|at| (at, "something in flight")),
            self.calls.deadline().map(|at| (at, "request that waits")),
            self.calls.gathers_until().filter(|_| self.is_up()).map(|at| (at, "writes that gather")),
            self.keep_alives.deadline().map(|at| (at, "keep-alive that waits")),
            self.keep_alives.pause.map(|at| (at, "pause before the next keep-alive stream")),
            self.watches.deadline(&self.config, self.longest_silence()).map(|at| (at, "watch stream")),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    // Inside: the connection.

    /// Time never goes back here, whatever the caller says (requirement M1).
    fn clock(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Opens the connection if it is closed and there is something to do.
    fn wake(&mut self) {
        let wanted = self.calls.any_waiting() || self.keep_alives.any_waiting() || self.watches.any();
        if self.phase != Phase::Closed || !wanted {
            return;
        }
        self.generation += 1;
        self.phase = Phase::Connecting { until: self.now + self.config.connect_timeout };
        if let Some(conn) = self.current() {
            self.out.push_back(ChannelOutput::Do(Output::Connect { node: conn.node(), conn }));
        }
    }

    /// Something has arrived.
    // E13
    fn heard(&mut self) {
        if let Some(since) = &mut self.silent_since {
            let silent = self.now.since(*since);
            if silent < self.config.request_timeout {
                self.silences = 0;
            }
            self.slowest = silent.max(self.slowest - self.slowest / 8);
            *since = self.now;
        }
    }

    /// Notes whether an answer is expected.
    fn expects(&mut self) {
        let expects = self.calls.any_in_flight() || self.keep_alives.any_in_flight() || self.watches.any_in_flight();
        self.silent_since = if expects { self.silent_since.or(Some(self.now)) } else { None };
    }

    /// How long the connection may stay silent while an answer is outstanding. A server that has been slow gets more
    /// time, and so does every server after all of them were silent: sending the same requests again over
    /// another connection would only slow down a server that is already slow.
    // E13
    fn longest_silence(&self) -> Duration {
        let rounds = self.silences / u32::from(self.config.endpoints.max(1));
        let timeout = self.config.request_timeout;
        let most = timeout * (1 << MOST_DOUBLINGS);
        (timeout * (1 << rounds.min(MOST_DOUBLINGS))).max(SLOWER * self.slowest).min(most)
    }

    /// When the connection ends unless something arrives before.
    fn silent_until(&self) -> Option<Instant> {
        Some(self.silent_since.filter(|_| self.is_up())? + self.longest_silence())
    }

    fn hang_up(&mut self) {
        if let Some(conn) = self.current() {
            self.out.push_back(ChannelOutput::Do(Output::Disconnect { conn }));
        }
    }

    /// Drops the connection, and tries the next endpoint.
    fn give_up(&mut self, cause: Cause) {
        self.hang_up();
        self.gone(cause);
    }

    /// The connection is no more; the next endpoint is tried, after a pause if all have failed.
    fn gone(&mut self, cause: Cause) {
        let lasted = match self.phase {
            Phase::LoggingIn { .. } | Phase::Up => self.now.since(self.since),
            Phase::Closed | Phase::Connecting { .. } | Phase::BackingOff { .. } => Duration::ZERO,
        };
        self.backoff.failed(lasted, self.config.reconnect);
        let others = u32::from(self.config.endpoints).saturating_sub(1);
        let pause = self.backoff.pause(others, self.config.reconnect, self.seed, self.generation);
        self.phase = if pause.is_zero() { Phase::Closed } else { Phase::BackingOff { until: self.now + pause } };
        self.endpoint = (self.endpoint + 1) % self.config.endpoints.max(1);
        self.settle(&cause);
        self.last_error = Some(cause);
        self.wake();
    }

    /// Answers everything that was sent: the one place where that is done (requirement M8).
    fn settle(&mut self, cause: &Cause) {
        while let Some(call) = self.calls.pop_flight() {
            call.into_all().into_iter().for_each(|sent| self.reply(sent.call.call, Reply::Unknown(cause.clone())));
        }
        while let Some(call) = self.keep_alives.pop_flight() {
            self.reply(call, Reply::Unknown(cause.clone()));
        }
        self.silent_since = None;
        self.calls.disconnected();
        self.keep_alives.disconnected();
        self.watches.disconnected(self.now, &self.config, &mut self.out);
    }

    // Inside: the streams.

    const fn new_stream(&mut self, conn: ConnId, kind: StreamKind) -> StreamId {
        self.serial += 1;
        StreamId { conn, kind, serial: self.serial }
    }

    fn open(&self, stream: StreamId) -> Output {
        Output::Open { stream, token: self.login.token.clone() }
    }

    fn is_open(&self, stream: StreamId) -> bool {
        let current = match stream.kind() {
            StreamKind::KeepAlive => self.keep_alives.stream,
            StreamKind::Watch => self.watches.stream(),
        };
        current == Some(stream)
    }
}

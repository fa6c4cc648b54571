//! Connection to an etcd cluster: endpoint selection, login, unary calls, the keep-alive stream and
//! the watch stream.

mod answer;
mod batch;
mod calls;
mod interface;
mod login;
mod members;
mod silence;
mod streams;
#[cfg(test)]
mod tests;
mod watch;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;

use bytes::Bytes;

pub use self::interface::{ChannelConfig, ChannelOutput};

use self::calls::Calls;
use self::login::Session;
use self::members::Members;
use self::silence::Silence;
use self::streams::{KeepAlives, Step};
use self::watch::{WatchSpec, Watches};
use super::locks_output::WatchId;
use super::message::MemberListRequest;
use super::output::Output;
use super::request::{Reply, Request};
use super::rpc::{Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend};
use super::url::Endpoint;
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{Cause, ErrorClass, Failures, Renewal, ServerError};
use crate::time::Instant;

/// Sans-IO connection of one client to an etcd cluster: typed requests in, remote procedure calls
/// out.
///
/// The channel keeps one connection at a time. It opens the connection when there is something to
/// send or to watch. `seed` selects the first endpoint, and the channel stays with it while it
/// works. When a connection fails, the channel tries the next endpoint, those of the lowest priority
/// number first; once all of them have failed, it backs off. Requests wait meanwhile, each until its
/// timeout.
///
/// A request counts as sent once [`poll_output`](Self::poll_output) has returned it, not before.
/// Poll only when the host is ready to carry it out.
///
/// The host reports what happened through the `handle_` methods. Facts about connections, calls and
/// streams that are no longer current are dropped, so they may arrive late or twice.
// M6, M8
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    config: ChannelConfig,
    seed: u64,
    now: Instant,
    phase: Phase,
    generation: u64,
    members: Members,
    /// Consecutive failures. A connection that lasts resets them.
    backoff: Failures,
    opened_at: Instant,
    /// Why the last connection failed. Cleared by the next successful login.
    last_error: Option<Cause>,
    /// The last connection that was dropped because of a failure.
    dropped: Option<(ConnId, Cause)>,
    silence: Silence,
    /// The channel's own request in flight.
    own: Option<(u64, Own)>,
    /// Since when nothing needs the connection.
    idle_since: Option<Instant>,
    login: Session,
    renewal: Renewal,
    calls: Calls,
    keep_alives: KeepAlives,
    watches: Watches,
    /// Last id given to a call or a stream. Ids are never reused.
    serial: u64,
    out: VecDeque<ChannelOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Closed,
    Connecting {
        until: Instant,
    },
    /// The endpoint was reported by the cluster: does it belong to it?
    Verifying {
        until: Instant,
        rpc: RpcId,
    },
    AwaitingCredentials {
        until: Instant,
    },
    /// `open` is true if the connection has the token of an earlier login.
    LoggingIn {
        until: Instant,
        rpc: RpcId,
        open: bool,
    },
    Up,
    BackingOff {
        until: Instant,
    },
}

/// A request that the channel makes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Own {
    /// Does the connection work?
    Probe,
    MemberList,
}

impl Channel {
    /// Creates a closed channel. `seed` selects the first endpoint and the jitter of retries. Equal
    /// seeds give equal runs.
    #[must_use]
    pub fn new(config: ChannelConfig, seed: u64) -> Self {
        let members = Members::new(config.endpoints.clone(), config.sync_members, seed);
        // No batching with a user: only the server's check of each request enforces permissions.
        let calls = Calls::new(!config.logs_in());
        let renewal = Renewal::new(config.login.clone());
        Self {
            config,
            seed,
            now: Instant::ZERO,
            phase: Phase::Closed,
            generation: 0,
            members,
            backoff: Failures::default(),
            opened_at: Instant::ZERO,
            last_error: None,
            dropped: None,
            silence: Silence::default(),
            own: None,
            idle_since: None,
            login: Session::default(),
            renewal,
            calls,
            keep_alives: KeepAlives::default(),
            watches: Watches::new(mix(seed, 1)),
            serial: 0,
            out: VecDeque::new(),
        }
    }

    /// Sends a request, and opens the connection if it is closed.
    ///
    /// A request that cannot be sent within `timeout` is answered with [`Reply::NotSent`]. Once
    /// sent, it stays in flight until the server replies or the connection ends. The channel ends a
    /// connection on which replies are outstanding and nothing has arrived for
    /// [`ChannelConfig::request_timeout`]. At most 128 requests are in flight at once.
    ///
    /// While two calls with writes are in flight, later writes wait for a reply, but at most two
    /// milliseconds. They then leave together in one transaction. Each gets the reply it would have
    /// got alone.
    // E11, E13
    pub fn send(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        self.advance(now);
        if self.calls.len() + self.keep_alives.len() >= self.config.limit {
            return self.not_sent(call, Fault::Backlog.into());
        }
        if let Request::KeepAlive { lease, ttl } = request {
            self.keep_alives.push(call, lease, ttl, self.now + timeout);
        } else {
            self.calls.push(self.now, call, request, timeout);
        }
        if let Phase::BackingOff { until } = &mut self.phase {
            // Keep half of the timeout for the attempt: a short TTL cannot wait for a long pause.
            *until = (*until).min(self.now + timeout / 2);
        }
        self.connect_if_needed();
    }

    /// Watches the range from `key` to `end` (exclusive) from now on. An empty `end` watches `key`
    /// alone. With `deletions`, only deletions are reported.
    pub fn watch(&mut self, now: Instant, watch: WatchId, key: Bytes, end: Bytes, deletions: bool) {
        self.advance(now);
        if self.watches.len() >= self.config.limit {
            let error = ServerError { class: ErrorClass::Transient, text: "too many watches".into() };
            return self.out.push_back(ChannelOutput::WatchRefused { watch, error });
        }
        self.watches.insert(watch, WatchSpec { key, end, deletions }, self.login.count);
        self.connect_if_needed();
    }

    /// Ends a watch and drops its later events. The stream stays open for other watches.
    pub fn unwatch(&mut self, now: Instant, watch: WatchId) {
        self.advance(now);
        self.watches.remove(watch);
        self.update_silence();
    }

    /// Closes the connection until the next `send` or `watch`.
    ///
    /// Requests in flight are answered with [`Fault::NotNeeded`] as `Unknown`, all others as
    /// `NotSent`. Open watches end with `Unsubscribed`.
    pub fn close(&mut self, now: Instant) {
        self.advance(now);
        self.disconnect();
        self.phase = Phase::Closed;
        self.backoff = Failures::default();
        self.members.closed(mix(self.seed, self.generation));
        self.fail_in_flight(&Fault::NotNeeded.into());
        while let Some(call) = self.calls.pop_waiting().or_else(|| self.keep_alives.pop_waiting()) {
            self.not_sent(call, Fault::NotNeeded.into());
        }
        self.watches = Watches::new(mix(self.seed, self.generation + 2));
    }

    /// Returns true if the connection is open and logged in, so that requests leave at once.
    pub const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// The endpoint with this number. Reported members get new numbers while no connection is open.
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.members.get(node)
    }

    /// The connection that is open or being opened.
    pub const fn current(&self) -> Option<ConnId> {
        match self.phase {
            Phase::Connecting { .. }
            | Phase::Verifying { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::LoggingIn { .. }
            | Phase::Up => {
                Some(ConnId { node: self.members.node(), role: Role::Commands, generation: self.generation })
            }
            Phase::Closed | Phase::BackingOff { .. } => None,
        }
    }

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        let Phase::Connecting { until } = self.phase else { return };
        if self.current() == Some(conn) {
            self.opened_at = self.now;
            if self.members.is_reported() { self.begin_verification(until) } else { self.begin_login(until) }
        }
    }

    /// The connection has ended or could not be opened.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.advance(now);
        if self.current() == Some(conn) {
            let all_failed = self.backoff.failures + 1 >= self.members.count();
            if let Fault::Tls(fault) = why
                && fault.is_refusal()
                && all_failed
            {
                let text = alloc::format!("{fault}").into();
                self.refuse_queued(&ServerError { class: ErrorClass::Refused, text });
            }
            self.disconnected(why.into());
        }
    }

    /// A unary call was answered or failed.
    pub fn handle_reply(&mut self, now: Instant, rpc: RpcId, result: Result<RpcReply, Status>) {
        self.advance(now);
        if self.current() != Some(rpc.conn()) {
            return;
        }
        self.note_arrival();
        if let Phase::LoggingIn { rpc: login, open, .. } = self.phase
            && login == rpc
        {
            return self.logged_in(result, open);
        }
        if let Phase::Verifying { rpc: list, until } = self.phase
            && list == rpc
        {
            return self.verified(result, until);
        }
        if self.own.is_some_and(|(serial, _)| serial == rpc.serial) {
            self.own_answered(result);
        } else if let Some(sent) = self.calls.answered(rpc.serial) {
            self.answered(sent, result);
        }
        if self.keep_alives.any_in_flight() && self.keep_alives.is_stuck(self.now, rpc.serial) {
            self.keep_alives_stuck();
        }
        self.watches.call_answered(self.now, rpc.serial);
        self.update_silence();
    }

    /// A message arrived on a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.advance(now);
        if !self.is_open(stream) {
            return;
        }
        self.note_arrival();
        match (stream.kind(), message) {
            (StreamKind::KeepAlive, StreamReceived::KeepAlive(response)) => self.handle_keep_alive(&response),
            (StreamKind::Watch, StreamReceived::Watch(response)) => self.handle_watch(response),
            (StreamKind::KeepAlive, StreamReceived::Watch(_)) | (StreamKind::Watch, StreamReceived::KeepAlive(_)) => {
                self.drop_connection(Fault::Protocol(Breach::WrongReply).into());
            }
        }
        self.update_silence();
    }

    /// A stream has ended or could not be opened.
    pub fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.advance(now);
        if !self.is_open(stream) {
            return;
        }
        self.note_arrival();
        self.stream_ended(stream.kind(), &status);
        self.update_silence();
    }

    /// Handles expired timers. Call it at [`next_deadline`](Self::next_deadline); calls at other
    /// times are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        let now = self.now;
        while let Some(call) = self.calls.pop_due(now).or_else(|| self.keep_alives.pop_due(now)) {
            let cause = self.last_error.clone().unwrap_or_else(|| Fault::TimedOut.into());
            self.not_sent(call, cause);
        }
        if self.keep_alives.pause.is_some_and(|until| until <= now) {
            self.keep_alives.pause = None;
        }
        let silence = self.longest_silence();
        if self.watches.timeout(now, &self.config, silence) && !self.is_silent() {
            self.close_watch_stream();
            self.leave_if_streams_fail(Fault::TimedOut);
        }
        match self.phase {
            Phase::Up if self.renewal_due().is_some_and(|due| due <= now) => self.request_credentials(),
            Phase::Up if self.idle_until().is_some_and(|until| until <= now) => self.close(now),
            Phase::Up if self.is_silent() => {
                self.silence.connection_was_silent();
                self.drop_connection(Fault::TimedOut.into());
            }
            Phase::Closed | Phase::Up => {}
            Phase::AwaitingCredentials { until } if until <= now => {
                self.drop_connection(Fault::NoCredentials.into());
            }
            Phase::AwaitingCredentials { .. } => {}
            Phase::Connecting { until } if until <= now => {
                let current = self.members.current();
                self.drop_connection(current.map_or(Fault::TimedOut, |now| now.target.fault_of_timeout()).into());
            }
            Phase::LoggingIn { until, .. } if until <= now => {
                self.silence.connection_was_silent();
                self.drop_connection(Fault::TimedOut.into());
            }
            Phase::Verifying { until, .. } if until <= now => self.drop_connection(Fault::TimedOut.into()),
            Phase::Connecting { .. } | Phase::Verifying { .. } | Phase::LoggingIn { .. } => {}
            Phase::BackingOff { until } => {
                if until <= now {
                    self.phase = Phase::Closed;
                    self.connect_if_needed();
                }
            }
        }
    }

    /// The next output: first all notifications, then requests.
    pub fn poll_output(&mut self) -> Option<ChannelOutput> {
        self.poll_notification().or_else(|| self.poll_request().map(ChannelOutput::Do))
    }

    /// The next output that is not a request. For callers that keep their own queue between the
    /// channel and the host: drain this eagerly, and call [`poll_request`](Self::poll_request) when
    /// that queue is empty.
    pub fn poll_notification(&mut self) -> Option<ChannelOutput> {
        self.out.pop_front()
    }

    /// The next request: `Call`, or `Open` or `Send` on a stream. Once returned, it may be
    /// executed.
    pub fn poll_request(&mut self) -> Option<Output> {
        let output = self.next_request()?;
        self.update_silence();
        Some(output)
    }

    fn next_request(&mut self) -> Option<Output> {
        let conn = self.current().filter(|_| self.is_up())?;
        if let Some(step) = self.keep_alives.step(self.now, self.serial) {
            return Some(match step {
                Step::Open => {
                    let stream = self.new_stream(conn, StreamKind::KeepAlive);
                    self.keep_alives.opened(self.now, stream, self.login.count);
                    self.open(stream)
                }
                Step::Send(stream, message) => Output::Send { stream, message: StreamSend::KeepAlive(message) },
            });
        }
        if let Some(step) = self.watches.step(self.serial) {
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
        let request = match self.calls.send(self.now, serial, self.login.count) {
            Some(request) => request,
            None => self.own_request(serial)?,
        };
        self.serial = serial;
        Some(Output::Call { rpc: RpcId { conn, serial }, request, token: self.login.token.clone() })
    }

    /// A request of the channel itself.
    fn own_request(&mut self, serial: u64) -> Option<Rpc> {
        if self.probe_due() {
            self.own = Some((serial, Own::Probe));
            return Some(silence::probe());
        }
        if self.sync_is_due() {
            self.members.requested(self.now);
            self.own = Some((serial, Own::MemberList));
            return Some(Rpc::MemberList(MemberListRequest {}));
        }
        None
    }

    #[cold]
    fn own_answered(&mut self, result: Result<RpcReply, Status>) {
        match (self.own.take(), result) {
            (Some((_, Own::Probe)), _) => self.silence.probe_answered(self.keep_alives.any_in_flight()),
            (Some((_, Own::MemberList)), Ok(RpcReply::MemberList(list))) => self.members.listed(list),
            // A refusal to show the members changes nothing.
            (Some((_, Own::MemberList)) | None, _) => {}
        }
    }

    /// When to call `handle_timeout` at the latest. While output is pending, this is the time of
    /// the last call.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_reason().map(|(at, _)| at)
    }

    /// Like [`next_deadline`](Self::next_deadline), with the reason.
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        let ready = self.calls.is_ready(self.now)
            || self.keep_alives.is_ready()
            || self.watches.is_ready()
            || self.probe_due()
            || self.sync_is_due();
        if !self.out.is_empty() || self.is_up() && ready {
            return Some((self.now, "output is queued"));
        }
        let phase = match self.phase {
            Phase::Closed | Phase::Up => None,
            Phase::Connecting { until } => Some((until, "connect timeout")),
            Phase::Verifying { until, .. } => Some((until, "member list")),
            Phase::AwaitingCredentials { until } => Some((until, "credentials")),
            Phase::LoggingIn { until, .. } => Some((until, "login timeout")),
            Phase::BackingOff { until } => Some((until, "pause before the next connection")),
        };
        [
            phase,
            self.silence_deadline(),
            self.sync_at().map(|at| (at, "member list")),
            self.idle_until().map(|at| (at, "idle connection")),
            self.renewal_due().map(|at| (at, "new credentials")),
            self.calls.deadline().map(|at| (at, "request that waits")),
            self.calls.batch_deadline().filter(|_| self.is_up()).map(|at| (at, "writes that gather")),
            self.keep_alives.deadline().map(|at| (at, "keep-alive that waits")),
            self.keep_alives.pause.map(|at| (at, "pause before the next keep-alive stream")),
            self.watches.deadline(&self.config, self.longest_silence()).map(|at| (at, "watch stream")),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Advances the clock. A time in the past is ignored.
    // M1
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Returns why this connection was dropped, unless it is no longer needed, for the host's log.
    pub fn why_dropped(&self, conn: ConnId) -> Option<&Cause> {
        self.dropped.as_ref().filter(|(own, _)| *own == conn).map(|(_, cause)| cause)
    }

    fn is_needed(&self) -> bool {
        self.calls.any_waiting() || self.keep_alives.any_waiting() || self.watches.any()
    }

    /// Opens the connection if it is closed and something needs it.
    fn connect_if_needed(&mut self) {
        if self.phase != Phase::Closed || !self.is_needed() {
            return;
        }
        self.members.update(mix(self.seed, self.generation));
        let Some(endpoint) = self.members.current().cloned().map(Box::new) else { return };
        self.generation += 1;
        self.phase = Phase::Connecting { until: self.now + self.config.connect_timeout };
        if let Some(conn) = self.current() {
            self.out.push_back(ChannelOutput::Do(Output::Connect { node: conn.node(), conn, endpoint }));
        }
    }

    /// When the connection is closed unless something needs it first.
    // P7
    fn idle_until(&self) -> Option<Instant> {
        Some(self.idle_since.filter(|_| self.is_up() && !self.is_needed())? + self.config.idle_timeout?)
    }

    fn disconnect(&mut self) {
        if let Some(conn) = self.current() {
            self.out.push_back(ChannelOutput::Do(Output::Disconnect { conn }));
        }
    }

    /// Drops the connection and moves on to the next endpoint.
    fn drop_connection(&mut self, cause: Cause) {
        self.dropped = self.current().map(|conn| (conn, cause.clone()));
        self.disconnect();
        self.disconnected(cause);
    }

    /// Cleans up after a lost connection. Tries the next endpoint, after a pause if all have
    /// failed.
    fn disconnected(&mut self, cause: Cause) {
        // Without the silence at its end: a member may accept connections and execute nothing.
        let lasted = if self.is_up() { self.silence.began(self.now).since(self.opened_at) } else { Duration::ZERO };
        self.backoff.failed(lasted, self.config.reconnect);
        let others = self.members.count() - 1;
        let pause = self.backoff.pause(others, self.config.reconnect, self.seed, self.generation);
        self.phase = if pause.is_zero() { Phase::Closed } else { Phase::BackingOff { until: self.now + pause } };
        self.members.failed(lasted >= self.config.reconnect.max);
        self.fail_in_flight(&cause);
        self.last_error = Some(cause);
        self.connect_if_needed();
    }

    /// Answers all requests in flight. The only place that does so when a connection ends.
    // M8
    fn fail_in_flight(&mut self, cause: &Cause) {
        while let Some(call) = self.calls.pop_in_flight() {
            call.into_all().into_iter().for_each(|sent| self.reply(sent.call.call, Reply::Unknown(cause.clone())));
        }
        while let Some(call) = self.keep_alives.pop_in_flight() {
            self.reply(call, Reply::Unknown(cause.clone()));
        }
        self.silence.stopped();
        self.own = None;
        self.idle_since = None;
        self.calls.disconnected();
        self.keep_alives.disconnected();
        self.watches.disconnected(self.now, &self.config, &mut self.out);
    }

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

//! Connection to an etcd cluster: endpoint selection, login, unary calls, the keep-alive stream and
//! the watch stream.

mod answer;
mod batch;
mod calls;
mod interface;
mod login;
mod members;
mod protocol;
mod silence;
mod streams;
#[cfg(test)]
mod tests;
mod watch;

use core::time::Duration;

use bytes::Bytes;

pub use self::interface::{ChannelConfig, ChannelOutput};
pub use self::protocol::Grpc;

use self::protocol::FirstCall;
use self::streams::StreamStep;
use self::watch::{WatchSpec, Watches};
use super::locks_output::WatchId;
use super::message::MemberListRequest;
use super::output::Output;
use super::request::Request;
use super::rpc::{Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend};
use super::url::Endpoint;
use crate::connection::{Connection, Phase};
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{ErrorClass, Failures, Renewal, ServerError};
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
pub type Channel = Connection<Grpc>;

/// A request that the channel makes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnCall {
    /// Does the connection work?
    Probe,
    MemberList,
}

impl Channel {
    /// Creates a closed channel. `seed` selects the first endpoint and the jitter of retries. Equal
    /// seeds give equal runs.
    #[must_use]
    pub fn new(config: ChannelConfig, seed: u64) -> Self {
        let renewal = Renewal::new(config.login.clone());
        let before = ConnId { node: NodeId::new(0), role: Role::Commands, generation: 0 };
        Self::with(Grpc::new(config, seed), renewal, before, seed)
    }

    /// Sends a request, and opens the connection if it is closed.
    ///
    /// A request that cannot be sent within `timeout` is answered with [`Reply::NotSent`](super::Reply::NotSent). Once
    /// sent, it stays in flight until the server replies or the connection ends. The channel ends a
    /// connection on which replies are outstanding and nothing has arrived for
    /// [`ChannelConfig::request_timeout`]. At most 128 requests are in flight at once.
    ///
    /// While two calls with writes are in flight, later writes wait for a reply, but at most two
    /// milliseconds. They then leave together in one transaction. Each gets the reply it would have
    /// got alone.
    // E11, E13
    pub fn send(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        self.clock(now);
        if self.state.calls.len() + self.state.keep_alives.len() >= self.state.config.limit {
            return self.not_sent(call, Fault::Backlog.into());
        }
        if let Request::KeepAlive { lease, ttl } = request {
            self.state.keep_alives.push(call, lease, ttl, self.now + timeout);
        } else {
            self.state.calls.push(self.now, call, request, timeout);
        }
        // Keep half of the timeout for the attempt: a short TTL cannot wait for a long pause.
        self.hurry(self.now + timeout / 2);
        self.connect_if_wanted();
    }

    /// Watches the range from `key` to `end` (exclusive) from now on. An empty `end` watches `key`
    /// alone. With `deletions`, only deletions are reported.
    pub fn watch(&mut self, now: Instant, watch: WatchId, key: Bytes, end: Bytes, deletions: bool) {
        self.clock(now);
        if self.state.watches.len() >= self.state.config.limit {
            let error = ServerError { class: ErrorClass::Transient, text: "too many watches".into() };
            return self.outputs.push_back(ChannelOutput::WatchRefused { watch, error });
        }
        self.state.watches.insert(watch, WatchSpec { key, end, deletions }, self.state.login.count);
        self.connect_if_wanted();
    }

    /// Ends a watch and drops its later events. The stream stays open for other watches.
    pub fn unwatch(&mut self, now: Instant, watch: WatchId) {
        self.clock(now);
        self.state.watches.remove(watch);
        self.update_silence();
    }

    /// Closes the connection until the next `send` or `watch`.
    ///
    /// Requests in flight are answered with [`Fault::NotNeeded`] as `Unknown`, all others as
    /// `NotSent`. Open watches end with `Unsubscribed`.
    pub fn close(&mut self, now: Instant) {
        self.clock(now);
        self.failures = Failures::default();
        self.shut();
        self.state.members.closed(mix(self.seed, self.conn.generation));
        while let Some(call) = self.state.calls.pop_waiting().or_else(|| self.state.keep_alives.pop_waiting()) {
            self.not_sent(call, Fault::NotNeeded.into());
        }
        self.state.watches = Watches::new(mix(self.seed, self.conn.generation + 2));
    }

    /// The endpoint with this number. Reported members get new numbers while no connection is open.
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.state.members.get(node)
    }

    /// A unary call was answered or failed.
    pub fn handle_reply(&mut self, now: Instant, rpc: RpcId, result: Result<RpcReply, Status>) {
        self.clock(now);
        if !self.is_current(rpc.conn()) {
            return;
        }
        self.note_arrival();
        match self.phase {
            Phase::Handshake { handshake: FirstCall::LogIn { rpc: login, open }, .. } if login == rpc => {
                return self.logged_in(result, open);
            }
            Phase::Handshake { handshake: FirstCall::Verify(list), until } if list == rpc => {
                return self.verified(result, until);
            }
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::Up { .. }
            | Phase::BackingOff { .. } => {}
        }
        if self.state.own.is_some_and(|(serial, _)| serial == rpc.serial) {
            self.own_answered(result);
        } else if let Some(sent) = self.state.calls.answered(rpc.serial) {
            self.answered(sent, result);
        }
        if self.state.keep_alives.any_in_flight() && self.state.keep_alives.is_stuck(self.now, rpc.serial) {
            self.keep_alives_stuck();
        }
        self.state.watches.call_answered(self.now, rpc.serial);
        self.update_silence();
    }

    /// A message arrived on a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.clock(now);
        if !self.is_open(stream) {
            return;
        }
        self.note_arrival();
        match (stream.kind(), message) {
            (StreamKind::KeepAlive, StreamReceived::KeepAlive(response)) => self.handle_keep_alive(&response),
            (StreamKind::Watch, StreamReceived::Watch(response)) => self.handle_watch(response),
            (StreamKind::KeepAlive, StreamReceived::Watch(_)) | (StreamKind::Watch, StreamReceived::KeepAlive(_)) => {
                self.fail(Fault::Protocol(Breach::WrongReply).into(), true);
            }
        }
        self.update_silence();
    }

    /// A stream has ended or could not be opened.
    pub fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.clock(now);
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
        self.clock(now);
        let now = self.now;
        while let Some(call) = self.state.calls.pop_due(now).or_else(|| self.state.keep_alives.pop_due(now)) {
            let cause = self.state.last_error.clone().unwrap_or_else(|| Fault::TimedOut.into());
            self.not_sent(call, cause);
        }
        if self.state.keep_alives.pause.is_some_and(|until| until <= now) {
            self.state.keep_alives.pause = None;
        }
        let silence = self.state.longest_silence();
        if self.state.watches.timeout(now, &self.state.config, silence) && !self.is_silent() {
            self.close_watch_stream();
            self.leave_if_streams_fail(Fault::TimedOut);
        }
        self.phase_timeout();
        if self.idle_until().is_some_and(|until| until <= now) {
            self.close(now);
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
        self.outputs.pop_front()
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
        if let Some(step) = self.state.keep_alives.step(self.now, self.state.serial) {
            return Some(match step {
                StreamStep::Open => {
                    let stream = self.new_stream(conn, StreamKind::KeepAlive);
                    self.state.keep_alives.opened(self.now, stream, self.state.login.count);
                    self.open(stream)
                }
                StreamStep::Send(stream, message) => Output::Send { stream, message: StreamSend::KeepAlive(message) },
            });
        }
        if let Some(step) = self.state.watches.step(self.state.serial) {
            return Some(match step {
                StreamStep::Open => {
                    let stream = self.new_stream(conn, StreamKind::Watch);
                    self.state.watches.opened(self.now, stream, self.state.login.count);
                    self.open(stream)
                }
                StreamStep::Send(stream, message) => Output::Send { stream, message: StreamSend::Watch(message) },
            });
        }
        let serial = self.state.serial + 1;
        let request = match self.state.calls.send(self.now, serial, self.state.login.count) {
            Some(request) => request,
            None => self.own_request(serial)?,
        };
        self.state.serial = serial;
        Some(Output::Call { rpc: RpcId { conn, serial }, request, token: self.state.login.token.clone() })
    }

    /// A request of the channel itself.
    fn own_request(&mut self, serial: u64) -> Option<Rpc> {
        if self.probe_due() {
            self.state.own = Some((serial, OwnCall::Probe));
            return Some(silence::probe());
        }
        if self.sync_is_due() {
            self.state.members.requested(self.now);
            self.state.own = Some((serial, OwnCall::MemberList));
            return Some(Rpc::MemberList(MemberListRequest {}));
        }
        None
    }

    #[cold]
    fn own_answered(&mut self, result: Result<RpcReply, Status>) {
        match (self.state.own.take(), result) {
            (Some((_, OwnCall::Probe)), _) => self.state.silence.probe_answered(self.state.keep_alives.any_in_flight()),
            (Some((_, OwnCall::MemberList)), Ok(RpcReply::MemberList(list))) => self.state.members.listed(list),
            // A refusal to show the members changes nothing.
            (Some((_, OwnCall::MemberList)) | None, _) => {}
        }
    }

    /// When to call `handle_timeout` at the latest. While output is pending, this is the time of
    /// the last call.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_reason().map(|(at, _)| at)
    }

    /// Like [`next_deadline`](Self::next_deadline), with the reason.
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        let ready = self.state.calls.is_ready(self.now)
            || self.state.keep_alives.is_ready()
            || self.state.watches.is_ready()
            || self.probe_due()
            || self.sync_is_due();
        if !self.outputs.is_empty() || self.is_up() && ready {
            return Some((self.now, "output is queued"));
        }
        [
            self.phase_deadline(),
            self.probe_at().map(|at| (at, "keep-alive without reply")),
            self.sync_at().map(|at| (at, "member list")),
            self.idle_until().map(|at| (at, "idle connection")),
            self.state.calls.deadline().map(|at| (at, "request that waits")),
            self.state.calls.batch_deadline().filter(|_| self.is_up()).map(|at| (at, "writes that gather")),
            self.state.keep_alives.deadline().map(|at| (at, "keep-alive that waits")),
            self.state.keep_alives.pause.map(|at| (at, "pause before the next keep-alive stream")),
            self.state
                .watches
                .deadline(&self.state.config, self.state.longest_silence())
                .map(|at| (at, "watch stream")),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the connection is closed unless something needs it first. The channel decides: whatever
    /// needs the connection is a request or a watch here.
    // P7
    fn idle_until(&self) -> Option<Instant> {
        Some(
            self.state.idle_since.filter(|_| self.is_up() && !self.state.is_needed())?
                + self.state.config.idle_timeout?,
        )
    }

    const fn new_stream(&mut self, conn: ConnId, kind: StreamKind) -> StreamId {
        self.state.serial += 1;
        StreamId { conn, kind, serial: self.state.serial }
    }

    fn open(&self, stream: StreamId) -> Output {
        Output::Open { stream, token: self.state.login.token.clone() }
    }

    fn is_open(&self, stream: StreamId) -> bool {
        let current = match stream.kind() {
            StreamKind::KeepAlive => self.state.keep_alives.stream,
            StreamKind::Watch => self.state.watches.stream(),
        };
        current == Some(stream)
    }
}

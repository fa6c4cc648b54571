//! One connection to one server: handshake, framing, command queue, reconnect.
// P1 to P3

mod frame;
mod handshake;
mod idle;
mod protocol;
mod resp_fast_path;
#[cfg(test)]
mod tests;
mod wire;

use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;

pub use frame::Limits;
pub use handshake::{Hello, ServerInfo};
pub use protocol::Resp;

use self::frame::Decoded;
use self::handshake::HandshakeStep;
use self::protocol::HandshakeReplies;
use self::resp_fast_path::parse_common_reply;
use self::wire::{Job, PendingCommand, breach};
use super::batch;
use super::key::Key;
use super::request::{Identity, Reply, Request, Value};
use super::server_error::{asks_for_login, is_full, refuses_several, rejects_login};
use super::url::Endpoint;
use crate::connection::{Connection, Phase};
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::lock::{Backoff, Cause, CredentialsRequest, ErrorClass, Failures, Renewal, ServerError};
use crate::time::{Instant, sooner};

/// Configuration of a [`Pipe`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipeConfig {
    /// The server, and the login.
    pub endpoint: Endpoint,
    /// The node's number in the client.
    pub node: NodeId,
    /// The purpose of the connection.
    pub role: Role,
    /// Whether the handshake requests `INFO server`.
    // Q6
    pub server_info: bool,
    /// Whether the host supplies the login.
    pub request_credentials: bool,
    /// Silences of an open connection without requests, each of which is reported by
    /// [`PipeOutput::Idle`]. `None` for no reports.
    pub idle_checks: Option<[Duration; 2]>,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// The connection ends when requests are outstanding and nothing has arrived for this long.
    /// Also the longest time that a request waits while the connection is being opened.
    pub request_timeout: Duration,
    /// The pause before a failed connection is reopened; up to a quarter of it is jitter. After a
    /// connection that was up for `max`, pauses start again at `every`.
    pub reconnect: Backoff,
    /// Limits on what the server may send.
    pub limits: Limits,
}

/// An output of a [`Pipe`], for the host or the hub. All outputs share one ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the connection"]
pub enum PipeOutput {
    /// Open a connection to the endpoint, resolving its name anew. Then report `handle_connected`
    /// or `handle_disconnected`.
    Connect(ConnId),
    /// Supply credentials for this connection by `handle_credentials`.
    Credentials(ConnId, Box<CredentialsRequest>),
    /// Close this connection, or stop opening it. Nothing needs to be reported. The cause is that
    /// of a failure, for a log.
    Disconnect(ConnId, Option<Cause>),
    /// The handshake succeeded.
    Up(Hello),
    /// The answer to [`request_server_info`](Pipe::request_server_info).
    Server(Result<ServerInfo, ServerError>),
    /// The connection failed, or could not be opened. The pipe reopens it after a pause. The
    /// replies to all outstanding requests follow; a `block` has ended.
    Down(Cause),
    /// Nothing has arrived for this long, and nothing is outstanding. Repeated while that lasts,
    /// after the shorter of [`PipeConfig::idle_checks`]. The pipe itself neither pings nor closes.
    Idle(Duration),
    /// The reply to a `send`. Each `send` gets exactly one.
    Reply {
        /// The call that it belongs to.
        call: CallId,
        /// The reply.
        reply: Reply,
    },
    /// The reply to a `block`: the signal list that had an element, or `None` on timeout or
    /// unblock.
    Woken(Option<Bytes>),
    /// The server refused `BLPOP`.
    BlockRefused(ServerError),
    /// The server refused `CLIENT UNBLOCK`.
    UnblockRefused(ServerError),
    /// There was no `block` to end: the server has not received it yet, or it has already ended.
    NotBlocked,
}

/// The connection of one client to one server, without any I/O: bytes in, bytes out.
///
/// A failed connection is reopened after a pause, until [`close`](Self::close) or
/// [`rest`](Self::rest). Commands are pipelined as fast as the socket takes them. Requests for one
/// lock leave in the order of the verbs, except that renewals overtake the deletes of earlier
/// tokens; similar requests for several locks share one command. Each request gets exactly one
/// reply, when the server replies, the connection fails, or it has waited for too long. During the
/// pause, a request gets [`Reply::NotSent`] at once.
///
/// A slow reply does not end the connection. Each request stays in flight until its reply. At most
/// [`Limits::in_flight`] requests are in flight; the others wait in the client.
///
/// The host reports events by the `handle_` methods. The pipe drops input for any connection but
/// the current one, so such input may arrive late or twice.
// P4, M6
pub type Pipe = Connection<Resp>;

impl Pipe {
    /// Creates a closed connection. `seed` spreads the reconnects of many clients; equal seeds give
    /// equal runs.
    #[must_use]
    pub fn new(config: PipeConfig, identity: Identity, seed: u64) -> Self {
        let renewal = Renewal::new(config.endpoint.login.clone());
        let before = ConnId { node: config.node, role: config.role, generation: 0 };
        Self::with(Resp::new(config, identity), renewal, before, seed)
    }

    /// Opens the connection if it is closed; after the pause if it has failed.
    pub fn open(&mut self, now: Instant) {
        self.clock(now);
        self.state.rests = false;
        self.connect_if_wanted();
    }

    /// Closes the connection, until `open` or `send`. Outstanding requests get
    /// [`Fault::NotNeeded`]: as `Unknown` if the host has seen their bytes, else as `NotSent`.
    /// There is no [`PipeOutput::Down`].
    pub fn close(&mut self, now: Instant) {
        self.clock(now);
        self.failures = Failures::default();
        self.shut();
    }

    /// Sends a request, and opens the connection if it is closed. The request stays in flight until
    /// its reply, however late, or the end of the connection. The connection ends when nothing
    /// arrives for [`PipeConfig::request_timeout`], whether the server stopped reading or replying.
    ///
    /// An extension overtakes requests that have not left. Send it once its lock has been granted.
    ///
    /// The reply is [`Reply::NotSent`]:
    ///
    /// * at once, during the pause after a failure;
    /// * while the connection is being opened, after `request_timeout` or a fifth of the TTL,
    ///   whichever is shorter;
    /// * for a take that was queued here for half of its TTL, because too little of the TTL would
    ///   remain.
    ///
    /// A request also shortens the remaining pause after a failure to `request_timeout` or a fifth
    /// of its TTL, because the renewal of a short TTL cannot wait longer.
    pub fn send(&mut self, now: Instant, call: CallId, request: Request) {
        self.open(now);
        let now = self.now;
        let ttl = request.ttl();
        let connect_by = now + ttl.map_or(Duration::MAX, |ttl| ttl / 5).min(self.state.config.request_timeout);
        self.hurry(connect_by);
        let take = matches!(request, Request::Take { .. });
        let send_by = ttl.filter(|_| take).map_or(Instant::MAX, |ttl| now + ttl / 2);
        self.submit(PendingCommand { job: Job::Call { call, request, tries: 0 }, send_by }, connect_by);
    }

    /// Blocks in the server until one of these locks is signalled, for at most `timeout` (at least
    /// 1 ms). Does nothing during the pause after a failure: call it again when the connection is
    /// up.
    pub fn block(&mut self, now: Instant, keys: Vec<Key>, timeout: Duration) {
        self.open(now);
        self.submit_job(Job::Block { keys, timeout });
    }

    /// Ends the `block` of the connection with the server's client id `client`. Only opens the
    /// connection if it is not up: on the server that it leads to then, the id may be a stranger's.
    pub fn unblock(&mut self, now: Instant, client: i64) {
        self.open(now);
        if self.is_up() {
            self.submit_job(Job::Unblock { client });
        }
    }

    /// The server has turned out to be the wrong one: ends the connection, unless it ends already.
    // P5
    pub(crate) fn leave_server(&mut self, now: Instant, error: &ServerError) {
        self.clock(now);
        if self.is_up() {
            self.fail(error.clone().into(), true);
        }
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.state.wire.in_flight()
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &PipeConfig {
        &self.state.config
    }

    /// Bytes arrived. Report written bytes by [`consume`](Self::consume) first: a reply to a
    /// command that was not sent is a protocol violation.
    pub fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.clock(now);
        if !self.is_current(conn) {
            return;
        }
        self.heard = self.now;
        self.state.used(self.now);
        match self.read(bytes) {
            Ok(None) => {}
            Ok(Some(cause)) | Err(cause) if self.logs_in_again(&cause) => self.replace(Some(cause)),
            Ok(Some(cause)) | Err(cause) => self.fail(cause, true),
        }
    }

    /// Returns true if the host is asked for credentials once more before anything is refused.
    // N19
    fn logs_in_again(&mut self, cause: &Cause) -> bool {
        let (Phase::Handshake { .. }, Cause::Server(error)) = (&self.phase, cause) else { return false };
        rejects_login(&error.text) && self.renewal.reject(self.now, error, self.state.config.reconnect)
    }

    /// Does the work that is due at [`next_deadline`](Self::next_deadline). Harmless at any other
    /// time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock(now);
        self.phase_timeout();
        self.check_idle();
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<PipeOutput> {
        self.pop_output()
    }

    /// Returns bytes to write to `conn`; empty if there are none, or it is not the current
    /// connection. Commands are encoded here, not earlier, up to [`Limits::outgoing`] plus one
    /// command. Poll for outputs afterwards.
    pub fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        if !self.is_current(conn) {
            return &[];
        }
        let outputs = &mut self.outputs;
        self.state.wire.fill(self.now, &self.state.identity, &self.state.config.limits, |job| {
            if let Job::Call { call, .. } = job {
                let reply = Reply::NotSent(Fault::TimedOut.into());
                outputs.push_back(PipeOutput::Reply { call, reply });
            }
        })
    }

    /// Returns true if `outgoing` would return bytes. Encodes nothing.
    pub fn has_outgoing(&self, conn: ConnId) -> bool {
        self.is_current(conn) && self.state.wire.has_outgoing(&self.state.config.limits)
    }

    /// The host has written the first `n` bytes of `outgoing`.
    pub fn consume(&mut self, conn: ConnId, n: usize) {
        if self.is_current(conn) {
            self.state.wire.consume(n);
        }
    }

    /// Returns when to call `handle_timeout` at the latest; the time of the last call while output
    /// is queued.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.outputs.is_empty() {
            return Some(self.now);
        }
        sooner(self.phase_deadline(), self.idle_due().map(|at| (at, "idle connection"))).map(|(at, _)| at)
    }

    fn submit_job(&mut self, job: Job) {
        let connect_by = self.now + self.state.config.connect_timeout;
        self.submit(PendingCommand { job, send_by: Instant::MAX }, connect_by);
    }

    fn advance_login(&mut self, login: HandshakeReplies, until: Instant) {
        if login.unanswered > 0 {
            self.phase = Phase::Handshake { until, handshake: login };
            return;
        }
        self.complete(Some(login));
    }

    /// Processes received bytes. `Some` and `Err` are reasons to drop the connection. If the server
    /// is a replica, the replies already received are still processed.
    fn read(&mut self, mut bytes: &[u8]) -> Result<Option<Cause>, Cause> {
        if matches!(self.phase, Phase::Connecting { .. }) {
            return Err(breach(Breach::Unsolicited));
        }
        let (protocol, limits) = (self.state.config.endpoint.protocol, self.state.config.limits);
        let mut ending = None;
        loop {
            if self.state.wire.is_between_frames()
                && let Some((answer, len)) = parse_common_reply(bytes, protocol, &limits)
            {
                bytes = &bytes[len..];
                self.handle_answer(answer, &mut ending)?;
                continue;
            }
            let Some(frame) = self.state.wire.take_frame(&mut bytes, protocol, &limits).map_err(breach)? else { break };
            let answer = Decoded::decode(&frame, protocol).map_err(breach);
            let result = answer.and_then(|answer| self.handle_answer(answer, &mut ending));
            self.state.wire.recycle(frame);
            result?;
        }
        Ok(ending)
    }

    fn handle_answer(&mut self, answer: Decoded<'_>, ending: &mut Option<Cause>) -> Result<(), Cause> {
        if !self.state.wire.is_answered(&answer, &self.state.config.limits)? {
            return Ok(());
        }
        let Some(calls) = self.state.wire.first().map(|sent| usize::from(sent.calls)) else { return Ok(()) };
        if let Decoded::Error(text) = answer {
            return self.handle_error(answer, text, calls, ending);
        }
        if calls == 1 {
            return self.resolve(answer, answer.value(), None);
        }
        self.resolve_each(answer, answer.value(), calls, false, None)
    }

    fn handle_error(
        &mut self,
        answer: Decoded<'_>,
        text: &str,
        calls: usize,
        ending: &mut Option<Cause>,
    ) -> Result<(), Cause> {
        let resend = text.starts_with("NOSCRIPT") && self.state.wire.script_is_missing();
        let mut error = ServerError::classify(text);
        if self.is_logged_out(text) {
            // The next connection logs in again, and reports a refused login.
            error.class = ErrorClass::Reconnect;
        }
        let mut value = answer.value();
        // An error may concern only one lock of the batch. A missing login concerns all of them.
        let retry_alone = calls > 1 && !asks_for_login(text);
        match error.class {
            // The server closes the connection, and its words say why.
            ErrorClass::Transient if is_full(text) => *ending = Some(error.clone().into()),
            ErrorClass::KeyInUse | ErrorClass::Refused | ErrorClass::Transient if retry_alone => {
                if refuses_several(text) {
                    self.state.wire.disable_batching();
                }
                value = batch::NOT_DONE;
            }
            ErrorClass::Reconnect => *ending = Some(error.clone().into()),
            ErrorClass::KeyInUse | ErrorClass::Refused | ErrorClass::Transient | ErrorClass::Unclear => {}
        }
        self.resolve_each(answer, value, calls, resend, Some(&error))
    }

    /// Returns true if an open connection has lost its login and can log in again.
    fn is_logged_out(&self, text: &str) -> bool {
        self.is_up() && self.renewal.login().password.is_some() && asks_for_login(text)
    }

    /// Resolves the first `calls` in flight, which shared one command, or resends them.
    fn resolve_each(
        &mut self,
        answer: Decoded<'_>,
        value: Value<'_>,
        calls: usize,
        resend: bool,
        error: Option<&ServerError>,
    ) -> Result<(), Cause> {
        let mut result = Ok(());
        for place in 0..calls {
            let mut buffer = [0; 4];
            let kind = self.state.wire.first_kind();
            let value = kind.map_or(value, |kind| batch::part(kind, value, calls, place, &mut buffer));
            let resend = resend || (calls > 1 && value == batch::NOT_DONE);
            if !(resend && self.state.wire.resend_first()) {
                let resolved = self.resolve(answer, value, error);
                result = result.and(resolved);
            }
        }
        result
    }

    #[inline]
    fn resolve(&mut self, answer: Decoded<'_>, value: Value<'_>, error: Option<&ServerError>) -> Result<(), Cause> {
        let Some(sent) = self.state.wire.first() else { return Ok(()) };
        let wrong = || breach(Breach::WrongReply);
        let mut malformed = false;
        match &sent.pending.job {
            Job::Call { call, request, .. } => {
                let mut reply = request.read(value);
                if let (Some(Reply::Rejected(own)), Some(ErrorClass::Reconnect)) = (&mut reply, error.map(|e| e.class))
                {
                    own.class = ErrorClass::Reconnect;
                }
                malformed = reply.is_none();
                // A malformed reply does not show what the server did.
                let reply = reply.unwrap_or_else(|| Reply::Unknown(wrong()));
                self.outputs.push_back(PipeOutput::Reply { call: *call, reply });
            }
            Job::Login(HandshakeStep::Info) if self.is_up() => {
                self.outputs.push_back(PipeOutput::Server(ServerInfo::read(&answer)));
            }
            Job::Login(HandshakeStep::Auth) if self.is_up() => match error {
                // The connection keeps its earlier login.
                Some(error) => {
                    self.renewal.reject(self.now, error, self.state.config.reconnect);
                }
                None => self.renewal.confirm(),
            },
            Job::Login(step) => {
                let Phase::Handshake { until, handshake: mut login } = self.phase.clone() else { return Err(wrong()) };
                step.read(&answer, &mut login.hello)?;
                login.unanswered = login.unanswered.saturating_sub(1);
                self.advance_login(login, until);
            }
            Job::Block { .. } => self.outputs.push_back(match (answer, error) {
                (_, Some(error)) => PipeOutput::BlockRefused(error.clone()),
                (Decoded::Nil, _) => PipeOutput::Woken(None),
                (Decoded::List(key), _) => PipeOutput::Woken(Some(Bytes::copy_from_slice(key))),
                _ => return Err(wrong()),
            }),
            // A refusal shows as well that the server is there.
            Job::Ping => {}
            Job::Unblock { .. } => match (answer, error) {
                (_, Some(error)) => self.outputs.push_back(PipeOutput::UnblockRefused(error.clone())),
                (Decoded::Int(0), _) => self.outputs.push_back(PipeOutput::NotBlocked),
                (Decoded::Int(_), _) => {}
                _ => return Err(wrong()),
            },
        }
        self.state.wire.done();
        if malformed { Err(wrong()) } else { Ok(()) }
    }
}

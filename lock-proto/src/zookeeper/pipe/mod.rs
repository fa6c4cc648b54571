//! The connection of one session: handshake, framing, order of replies, pings, failover.
// ZK6, P1 to P3

mod credentials;
mod interface;
mod reply;
#[cfg(test)]
mod tests;
mod wire;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;
use core::{fmt, mem};

use bytes::Bytes;

pub use interface::{Limits, PipeConfig, PipeOutput};

use self::wire::{Pending, Wire};
use super::codec::{ConnectRequest, ConnectResponse, ErrorCode, Op};
use super::request::{Reply, SessionReport, server_error};
use crate::collections::{Waiting, burst};
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{Cause, Failures, Patience, Renewal, refusal};
use crate::time::{Instant, millis_up, soonest};
use crate::tls::TlsFault;

/// The connection of one session to one of the servers, without any I/O: bytes in, bytes out.
///
/// A failed connection is reopened with the same session, to the next server, until the session has
/// expired or is [ended](Self::end). Requests are pipelined. Replies and events arrive in the order
/// of the server's transactions. While the session is up, the pipe pings at least every tick.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pipe {
    config: PipeConfig,
    seed: u64,
    now: Instant,
    phase: Phase,
    mode: Mode,
    generation: u64,
    /// The place of the server in use, or of the next one to try.
    server: usize,
    backoff: Failures,
    patience: Patience,
    /// The session; 0 if there is none yet.
    session: i64,
    password: Bytes,
    granted: Duration,
    /// Half of the validity: enough remains for the next server. Computed once, as `next_deadline`
    /// needs it.
    // ZK1
    max_silence: Duration,
    /// Contacts are reported this often.
    contact_every: Duration,
    last_zxid: i64,
    waiting: Waiting<Pending>,
    wire: Wire,
    /// The connection is replaced once it is idle.
    reopens: bool,
    renewal: Renewal,
    /// When bytes last arrived, or when the first outstanding request was made if that is later.
    last_received: Instant,
    /// When bytes last left.
    last_sent: Instant,
    /// When a contact was last reported.
    contact: Instant,
    outputs: VecDeque<PipeOutput>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Closed,
    Opening { until: Instant, step: Opening },
    Up { since: Instant },
    BackingOff { until: Instant, cause: Cause },
}

/// A step towards an established session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Opening {
    Connecting,
    AwaitingCredentials,
    Handshake {
        emitted: Instant,
    },
    /// The session is established, and the reply to the login outstanding.
    LoggingIn {
        emitted: Instant,
    },
}

/// What the pipe does for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// Keeps it alive.
    Live,
    /// Sends nothing by itself, so that it ends.
    Quiet,
    /// Ends it, until the server has ended it in any case.
    Ending {
        until: Instant,
    },
    Over,
}

/// ClickHouse Keeper opens another session instead. The former one, and its locks, live on until
/// they time out.
// ZK6
const NOT_CONTINUED: &str = "the server did not continue the session but opened another one: ClickHouse Keeper, which does so, is not supported";

/// A session that is too short is ended, which takes time as well.
fn max_silence(granted: Duration, tick: Duration) -> Duration {
    granted.saturating_sub(tick * 2).max(tick) / 2
}

impl Pipe {
    /// Creates a closed connection without a session. `seed` chooses the first server, and spreads
    /// the reconnects of many clients; equal seeds give equal runs.
    #[must_use]
    pub fn new(config: PipeConfig, seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            phase: Phase::Closed,
            mode: Mode::Live,
            generation: config.generation,
            server: mix(seed, 0) as usize % config.servers.len().max(1),
            backoff: Failures::default(),
            patience: Patience::default(),
            session: 0,
            password: Bytes::from_static(&[0; 16]),
            granted: config.timeout,
            max_silence: max_silence(config.timeout, config.tick),
            contact_every: config.tick / 8,
            last_zxid: 0,
            waiting: Waiting::default(),
            wire: Wire::default(),
            reopens: false,
            renewal: Renewal::new(config.login.clone()),
            last_received: Instant::ZERO,
            last_sent: Instant::ZERO,
            contact: Instant::ZERO,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Opens the connection if it is closed.
    pub fn open(&mut self, now: Instant) {
        self.clock(now);
        if self.phase == Phase::Closed && self.mode == Mode::Live {
            self.connect();
        }
    }

    /// Continues the session on a new connection to the same server, which asks the leader whether
    /// it exists: once all requests are answered. Does nothing unless the session is established.
    // ZK1
    pub fn reopen(&mut self, now: Instant) {
        self.clock(now);
        self.reopens = matches!(self.phase, Phase::Up { .. });
        self.reopen_if_idle();
    }

    fn reopen_if_idle(&mut self) {
        if let (true, Mode::Live, Some(conn)) = (self.reopens && self.wire.is_idle(), self.mode, self.current()) {
            self.outputs.push_back(PipeOutput::Disconnect(conn, None));
            self.connect();
        }
    }

    /// Sends a request, behind all earlier ones. Only the hub's renewals of the session overtake
    /// requests that have not left. While the connection is being opened the request waits, at most
    /// for the request timeout. During the pause after a failure, the reply is [`Reply::NotSent`]
    /// at once.
    pub fn send(&mut self, now: Instant, call: CallId, op: Op) {
        self.open(now);
        let pending = Pending { call: Some(call), op };
        match &self.phase {
            Phase::Opening { .. } => {
                self.waiting.push(pending, self.now + self.config.request_timeout);
            }
            Phase::Up { .. } => self.queue(pending),
            Phase::BackingOff { cause, .. } => self.answer_unsent(Some(call), false, &cause.clone()),
            Phase::Closed => self.answer_unsent(Some(call), false, &Fault::NotNeeded.into()),
        }
    }

    /// Stops pings and reconnects, so that the session ends a timeout after its last request.
    pub fn quiet(&mut self, now: Instant) {
        self.clock(now);
        if self.mode != Mode::Live {
            return;
        }
        self.mode = Mode::Quiet;
        self.wire.drop_pings();
        if !matches!(self.phase, Phase::Up { .. }) {
            // Completing the handshake would renew the session.
            self.shut(Mode::Quiet);
        }
    }

    /// Ends the session. Answered by [`SessionReport::Ended`], or by [`SessionReport::Expired`] if
    /// a server refuses it, after a session timeout at the latest.
    pub fn end(&mut self, now: Instant) {
        self.clock(now);
        if !matches!(self.mode, Mode::Live | Mode::Quiet) {
            return;
        }
        if self.session == 0 {
            return self.ended(true);
        }
        self.mode = Mode::Ending { until: self.now + self.granted };
        match self.phase {
            Phase::Up { .. } => self.request_end(),
            Phase::Closed => self.connect(),
            Phase::Opening { until, step: Opening::AwaitingCredentials } => self.shake_hands(until),
            Phase::Opening { .. } | Phase::BackingOff { .. } => {}
        }
    }

    fn request_end(&mut self) {
        self.queue(Pending { call: None, op: Op::CloseSession });
    }

    /// Closes the connection at once, without ending the session. Outstanding requests are
    /// answered.
    pub fn close(&mut self, now: Instant) {
        self.clock(now);
        self.shut(Mode::Over);
    }

    /// Returns the connection that is open or being opened.
    pub const fn current(&self) -> Option<ConnId> {
        match self.phase {
            Phase::Opening { .. } | Phase::Up { .. } => {
                let node = NodeId::new(self.server as u16);
                Some(ConnId { node, role: Role::Commands, generation: self.generation })
            }
            Phase::Closed | Phase::BackingOff { .. } => None,
        }
    }

    /// Returns true if the session is established on the current connection.
    pub const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.wire.in_flight()
    }

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.clock(now);
        let Phase::Opening { until, step: Opening::Connecting } = self.phase else { return };
        if self.current() != Some(conn) {
            return;
        }
        if self.requests_credentials() {
            self.phase = Phase::Opening { until, step: Opening::AwaitingCredentials };
            return self.request_credentials(conn);
        }
        self.shake_hands(until);
    }

    /// Bytes arrived. Report written bytes by [`consume`](Self::consume) first.
    pub fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.clock(now);
        if self.current() != Some(conn) {
            return;
        }
        if let Phase::Up { since } = self.phase
            && !self.wire.is_idle()
        {
            let (timeout, servers) = (self.silence(), self.config.servers.len() as u32);
            self.patience.arrived(self.now.since(self.last_received), timeout);
            self.patience.lasts(self.now.since(since), timeout, servers);
        }
        self.last_received = self.now;
        // Taken out, so that the frames can be handled while they are borrowed.
        let mut frames = mem::take(&mut self.wire.frames);
        let mut rest = bytes;
        while self.current() == Some(conn) {
            let frame = match frames.next(&mut rest, self.config.limits.frame) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(Breach::TooLong) if self.is_up() => {
                    let Some(head) = frames.cut(&mut rest) else { break };
                    if let Err(cause) = self.handle_long_reply(&head) {
                        return self.fail(cause, true);
                    }
                    continue;
                }
                Err(breach) => return self.fail(Fault::Protocol(breach).into(), true),
            };
            if let Err(cause) = self.handle_frame(frame) {
                return self.fail(cause, true);
            }
        }
        if self.current() == Some(conn) {
            self.wire.frames = frames;
            self.reopen_if_idle();
        }
    }

    /// The connection has ended, or could not be opened.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.clock(now);
        if self.current() == Some(conn) {
            self.fail(why.into(), false);
        }
    }

    /// Does the work that is due at [`next_deadline`](Self::next_deadline). Harmless at any other
    /// time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock(now);
        if let Mode::Ending { until, .. } = self.mode
            && until <= self.now
        {
            return self.ended(false);
        }
        match &self.phase {
            Phase::Closed => {}
            Phase::Opening { until, .. } => {
                if *until <= self.now {
                    let fault = self.fault_of_timeout();
                    return self.fail(fault.into(), true);
                }
                while let Some(pending) = self.waiting.pop_due(self.now) {
                    self.answer_unsent(pending.call, false, &self.fault_of_timeout().into());
                }
            }
            Phase::Up { .. } => {
                if self.silent_until().is_some_and(|until| until <= self.now) {
                    return self.fail(Fault::TimedOut.into(), true);
                }
                if let (Some(conn), true) = (self.current(), self.renewal_due().is_some_and(|due| due <= self.now)) {
                    self.request_credentials(conn);
                }
                if self.ping_due().is_some_and(|due| due <= self.now) {
                    self.last_sent = self.now;
                    self.queue(Pending { call: None, op: Op::Ping });
                }
            }
            Phase::BackingOff { until, .. } => {
                if *until <= self.now {
                    self.connect();
                }
            }
        }
    }

    fn fault_of_timeout(&self) -> Fault {
        match self.phase {
            Phase::Opening { step: Opening::Connecting, .. } => {
                let server = self.config.servers.get(self.server);
                server.map_or(Fault::TimedOut, |server| server.fault_of_timeout())
            }
            Phase::Opening { step: Opening::AwaitingCredentials, .. } => Fault::NoCredentials,
            Phase::Opening { .. } | Phase::Closed | Phase::Up { .. } | Phase::BackingOff { .. } => Fault::TimedOut,
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<PipeOutput> {
        burst::pop(&mut self.outputs)
    }

    /// Returns bytes to write to `conn`; empty if there are none, or it is not the current
    /// connection. Requests are encoded here, not earlier.
    pub fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        if self.current() == Some(conn) { self.wire.fill(self.now, &self.config.limits) } else { &[] }
    }

    /// Returns true if `outgoing` would return bytes. Encodes nothing.
    pub fn has_outgoing(&self, conn: ConnId) -> bool {
        self.current() == Some(conn) && self.wire.has_outgoing(&self.config.limits)
    }

    /// The host has written the first `n` bytes of `outgoing`.
    pub fn consume(&mut self, conn: ConnId, n: usize) {
        if self.current() == Some(conn) {
            self.wire.consume(n);
        }
    }

    /// Returns when to call `handle_timeout` at the latest; the time of the last call while output
    /// is queued.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.outputs.is_empty() {
            return Some(self.now);
        }
        let ending = if let Mode::Ending { until, .. } = self.mode { Some(until) } else { None };
        let phase = match self.phase {
            Phase::Closed => None,
            Phase::Opening { until, .. } => soonest([self.waiting.earliest(), Some(until)]),
            Phase::Up { .. } => soonest([self.silent_until(), self.renewal_due(), self.ping_due()]),
            Phase::BackingOff { until, .. } => Some(until),
        };
        soonest([ending, phase])
    }

    // M1
    fn clock(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn queue(&mut self, pending: Pending) {
        if self.wire.is_idle() {
            self.last_received = self.now;
        }
        if pending.op != Op::Ping {
            self.last_sent = self.now;
        }
        self.wire.queue(pending);
    }

    /// When the next ping is due: less than a tick after the last request. A connection that is to
    /// be replaced would never be idle on a slow network.
    // ZK1
    fn ping_due(&self) -> Option<Instant> {
        (self.mode == Mode::Live && !self.reopens).then(|| self.last_sent + self.config.ping_after)
    }

    /// Returns when the connection ends if nothing arrives.
    // E13
    fn silent_until(&self) -> Option<Instant> {
        (!self.wire.is_idle()).then(|| self.last_received + self.longest_silence(self.silence()))
    }

    fn silence(&self) -> Duration {
        self.config.request_timeout.min(self.max_silence)
    }

    fn longest_silence(&self, timeout: Duration) -> Duration {
        self.patience.longest_silence(timeout, self.config.servers.len() as u32)
    }

    fn connect(&mut self) {
        self.generation += 1;
        self.reopens = false;
        self.wire.clear();
        // A session that is to be continued may end before: the next server needs time as well.
        let most = if self.session == 0 { Duration::MAX } else { self.max_silence };
        let until = self.now + self.longest_silence(self.config.connect_timeout.min(most));
        self.phase = Phase::Opening { until, step: Opening::Connecting };
        if let (Some(conn), Some(target)) = (self.current(), self.config.servers.get(self.server)) {
            self.outputs.push_back(PipeOutput::Connect(conn, Box::new(target.clone())));
        }
    }

    /// Requests the session, and logs in. The server handles both in this order.
    fn shake_hands(&mut self, until: Instant) {
        let request = ConnectRequest {
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(millis_up(self.config.timeout)).unwrap_or(i32::MAX),
            session_id: self.session,
            password: self.password.clone(),
            read_only: false,
        };
        self.wire.encode(|out| request.encode(out));
        if let Some(op) = self.auth().filter(|_| !matches!(self.mode, Mode::Ending { .. })) {
            self.wire.queue(Pending { call: None, op });
        }
        self.phase = Phase::Opening { until, step: Opening::Handshake { emitted: self.now } };
    }

    fn handle_frame(&mut self, frame: &[u8]) -> Result<(), Cause> {
        match self.phase {
            Phase::Opening { until, step: Opening::Handshake { emitted } } => self.connected(frame, until, emitted),
            Phase::Opening { step: Opening::LoggingIn { .. }, .. } | Phase::Up { .. } => self.handle_reply(frame),
            Phase::Opening { .. } | Phase::Closed | Phase::BackingOff { .. } => Err(breach(Breach::Unsolicited)),
        }
    }

    fn connected(&mut self, frame: &[u8], until: Instant, emitted: Instant) -> Result<(), Cause> {
        let response = ConnectResponse::decode(frame).map_err(breach)?;
        if response.session_id == 0 || response.timeout_ms <= 0 {
            if self.session == 0 {
                return Err(server_error(ErrorCode::SESSION_EXPIRED).into());
            }
            self.expired();
            return Ok(());
        }
        if response.read_only {
            return Err(breach(Breach::WrongReply));
        }
        if self.session != 0 && response.session_id != self.session {
            return Err(refusal(NOT_CONTINUED).into());
        }
        self.session = response.session_id;
        self.password = response.password;
        self.granted = Duration::from_millis(response.timeout_ms.unsigned_abs().into());
        self.max_silence = max_silence(self.granted, self.config.tick);
        if self.wire.is_idle() {
            self.established(emitted);
        } else {
            self.phase = Phase::Opening { until, step: Opening::LoggingIn { emitted } };
        }
        Ok(())
    }

    fn established(&mut self, emitted: Instant) {
        self.phase = Phase::Up { since: self.now };
        (self.last_received, self.last_sent) = (self.now, self.now);
        self.renewal.confirm();
        if let Mode::Ending { .. } = self.mode {
            return self.request_end();
        }
        self.report(SessionReport::Up { emitted, timeout: self.granted, owner: self.session });
        while let Some((pending, _)) = self.waiting.pop() {
            self.queue(pending);
        }
    }

    /// The server refuses the session.
    fn expired(&mut self) {
        self.shut(Mode::Over);
        self.report(SessionReport::Expired);
    }

    fn report(&mut self, report: SessionReport) {
        self.outputs.push_back(PipeOutput::Session(report));
    }

    fn ended(&mut self, confirmed: bool) {
        self.shut(Mode::Over);
        self.report(SessionReport::Ended { confirmed });
    }

    /// Closes the connection for good. The replies come before the reason.
    fn shut(&mut self, mode: Mode) {
        if let Some(conn) = self.current() {
            self.outputs.push_back(PipeOutput::Disconnect(conn, None));
        }
        self.phase = Phase::Closed;
        self.mode = mode;
        self.settle(&Fault::NotNeeded.into());
    }

    /// Ends the connection. Another server is tried next, after a pause if all have failed.
    fn fail(&mut self, cause: Cause, notify_host: bool) {
        if let Some(conn) = self.current().filter(|_| notify_host) {
            self.outputs.push_back(PipeOutput::Disconnect(conn, Some(cause.clone())));
        }
        let lasted = if let Phase::Up { since } = self.phase { self.now.since(since) } else { Duration::ZERO };
        if let Cause::Fault(Fault::TimedOut | Fault::Tls(TlsFault::TimedOut)) = cause {
            self.patience.connection_was_silent();
        }
        let servers = self.config.servers.len().max(1);
        self.server = (self.server + 1) % servers;
        self.backoff.failed(lasted, self.config.reconnect);
        let pause = self.backoff.pause(servers as u32 - 1, self.config.reconnect, self.seed, self.generation);
        self.phase = match self.mode {
            Mode::Live | Mode::Ending { .. } => Phase::BackingOff { until: self.now + pause, cause: cause.clone() },
            Mode::Quiet | Mode::Over => Phase::Closed,
        };
        self.report(SessionReport::Down(cause.clone()));
        if pause.is_zero() && matches!(self.phase, Phase::BackingOff { .. }) {
            // The next server is tried at once. Requests that wait for a connection wait for it.
            self.settle_sent(&cause);
        } else {
            self.settle(&cause);
        }
    }

    /// Answers everything outstanding.
    // M8
    fn settle(&mut self, cause: &Cause) {
        self.settle_sent(cause);
        while let Some((pending, _)) = self.waiting.pop() {
            self.answer_unsent(pending.call, false, cause);
        }
    }

    /// Answers the requests that were given to the connection.
    fn settle_sent(&mut self, cause: &Cause) {
        while let Some((call, seen)) = self.wire.pop_unanswered() {
            self.answer_unsent(call, seen, cause);
        }
        self.wire.clear();
    }

    fn answer_unsent(&mut self, call: Option<CallId>, seen: bool, cause: &Cause) {
        let Some(call) = call else { return };
        let reply = if seen { Reply::Unknown(cause.clone()) } else { Reply::NotSent(cause.clone()) };
        self.outputs.push_back(PipeOutput::Reply { call, reply });
    }
}

/// Shows no requests and no bytes: they may contain a login.
impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, mode, generation, server, session, .. } = self;
        let mut shown = f.debug_struct("Pipe");
        shown.field("phase", phase).field("mode", mode).field("generation", generation);
        shown.field("server", server).field("session", session).finish_non_exhaustive()
    }
}

const fn breach(breach: Breach) -> Cause {
    Cause::Fault(Fault::Protocol(breach))
}

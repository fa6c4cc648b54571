//! The connection of one session: handshake, framing, order of replies, pings, failover.
// ZK6, P1 to P3

mod interface;
mod protocol;
mod reply;
#[cfg(test)]
mod tests;
mod wire;

use core::mem;

pub use interface::{Limits, PipeConfig, PipeOutput};
pub use protocol::Jute;

use self::protocol::{Greeting, Mode};
use self::wire::UnsentRequest;
use super::codec::{ConnectResponse, ErrorCode, Op};
use super::request::{SessionReport, server_error};
use crate::connection::{Connection, Phase};
use crate::fault::{Breach, Fault};
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::lock::{Cause, Renewal, refusal};
use crate::time::{Instant, sooner};

/// The connection of one session to one of the servers, without any I/O: bytes in, bytes out.
///
/// A failed connection is reopened with the same session, to the next server, until the session has
/// expired or is [ended](Self::end). Requests are pipelined. Replies and events arrive in the order
/// of the server's transactions. While the session is up, the pipe pings at least every tick. It
/// never closes an idle connection, without which the session would expire: the hub ends the
/// session then.
pub type Pipe = Connection<Jute>;

/// ClickHouse Keeper opens another session instead. The former one, and its locks, live on until
/// they time out.
// ZK6
const NOT_CONTINUED: &str = "the server did not continue the session but opened another one: ClickHouse Keeper, which does so, is not supported";

impl Pipe {
    /// Creates a closed connection without a session. `seed` chooses the first server, and spreads
    /// the reconnects of many clients; equal seeds give equal runs.
    #[must_use]
    pub fn new(config: PipeConfig, seed: u64) -> Self {
        let renewal = Renewal::new(config.login.clone());
        let before = ConnId { node: NodeId::new(0), role: Role::Commands, generation: config.generation };
        Self::with(Jute::new(config, seed), renewal, before, seed)
    }

    /// Opens the connection if it is closed.
    pub fn open(&mut self, now: Instant) {
        self.clock(now);
        self.connect_if_wanted();
    }

    /// Continues the session on a new connection to the same server, which asks the leader whether
    /// it exists: once all requests are answered. Does nothing unless the session is established.
    // ZK1
    pub fn reopen(&mut self, now: Instant) {
        self.clock(now);
        self.state.reopens = matches!(self.phase, Phase::Up { .. });
        self.reopen_if_idle();
    }

    fn reopen_if_idle(&mut self) {
        if self.state.reopens && self.state.wire.is_idle() && self.state.mode == Mode::Live && self.is_up() {
            self.replace(None);
        }
    }

    /// Sends a request, behind all earlier ones. Only the hub's renewals of the session overtake
    /// requests that have not left. While the connection is being opened the request waits, at most
    /// for the request timeout. During the pause after a failure, the reply is [`Reply::NotSent`](super::Reply::NotSent)
    /// at once.
    pub fn send(&mut self, now: Instant, call: CallId, op: Op) {
        self.open(now);
        self.submit(UnsentRequest { call: Some(call), op }, self.now + self.state.config.request_timeout);
    }

    /// Stops pings and reconnects, so that the session ends a timeout after its last request.
    pub fn quiet(&mut self, now: Instant) {
        self.clock(now);
        if self.state.mode != Mode::Live {
            return;
        }
        self.state.mode = Mode::Quiet;
        self.state.wire.drop_pings();
        if !matches!(self.phase, Phase::Up { .. }) {
            // Completing the handshake would renew the session.
            self.leave(Mode::Quiet);
        }
    }

    /// Ends the session. Answered by [`SessionReport::Ended`], or by [`SessionReport::Expired`] if
    /// a server refuses it, after a session timeout at the latest.
    pub fn end(&mut self, now: Instant) {
        self.clock(now);
        if !matches!(self.state.mode, Mode::Live | Mode::Quiet) {
            return;
        }
        if self.state.session == 0 {
            return self.ended(true);
        }
        self.state.mode = Mode::Ending { until: self.now + self.state.granted };
        match self.phase {
            Phase::Up { .. } => self.request_end(),
            Phase::Closed => self.connect(),
            Phase::AwaitingCredentials { until } => self.log_in(until, false),
            Phase::Connecting { .. } | Phase::Handshake { .. } | Phase::BackingOff { .. } => {}
        }
    }

    fn request_end(&mut self) {
        self.submit(UnsentRequest { call: None, op: Op::CloseSession }, Instant::MAX);
    }

    /// Closes the connection at once, without ending the session. Outstanding requests are
    /// answered.
    pub fn close(&mut self, now: Instant) {
        self.clock(now);
        self.leave(Mode::Over);
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.state.wire.in_flight()
    }

    /// Bytes arrived. Report written bytes by [`consume`](Self::consume) first.
    pub fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.clock(now);
        if !self.is_current(conn) {
            return;
        }
        if let Phase::Up { since } = self.phase {
            self.state.arrived(self.now, since, self.heard);
        }
        self.heard = self.now;
        // Taken out, so that the frames can be handled while they are borrowed.
        let mut frames = mem::take(&mut self.state.wire.frames);
        let mut rest = bytes;
        while self.is_current(conn) {
            let frame = match frames.next(&mut rest, self.state.config.limits.frame) {
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
        if self.is_current(conn) {
            self.state.wire.frames = frames;
            self.reopen_if_idle();
        }
    }

    /// Does the work that is due at [`next_deadline`](Self::next_deadline). Harmless at any other
    /// time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock(now);
        if let Mode::Ending { until, .. } = self.state.mode
            && until <= self.now
        {
            return self.ended(false);
        }
        self.phase_timeout();
        if self.ping_due().is_some_and(|due| due <= self.now) {
            self.submit(UnsentRequest { call: None, op: Op::Ping }, Instant::MAX);
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<PipeOutput> {
        self.pop_output()
    }

    /// Returns bytes to write to `conn`; empty if there are none, or it is not the current
    /// connection. Requests are encoded here, not earlier.
    pub fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        if self.is_current(conn) { self.state.wire.fill(self.now, &self.state.config.limits) } else { &[] }
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
        let ending =
            if let Mode::Ending { until } = self.state.mode { Some((until, "end of the session")) } else { None };
        let due = sooner(self.phase_deadline(), self.ping_due().map(|at| (at, "ping")));
        sooner(ending, due).map(|(at, _)| at)
    }

    /// When the next ping is due: less than a tick after the last request. A connection that is to
    /// be replaced would never be idle on a slow network.
    // ZK1
    fn ping_due(&self) -> Option<Instant> {
        (self.is_up() && self.state.mode == Mode::Live && !self.state.reopens)
            .then(|| self.state.last_sent + self.state.config.ping_after)
    }

    fn handle_frame(&mut self, frame: &[u8]) -> Result<(), Cause> {
        match self.phase {
            Phase::Handshake { until, handshake: Greeting::Connect { emitted } } => {
                self.connected(frame, until, emitted)
            }
            Phase::Handshake { handshake: Greeting::LogIn { .. }, .. } | Phase::Up { .. } => self.handle_reply(frame),
            Phase::Closed | Phase::Connecting { .. } | Phase::AwaitingCredentials { .. } | Phase::BackingOff { .. } => {
                Err(breach(Breach::Unsolicited))
            }
        }
    }

    fn connected(&mut self, frame: &[u8], until: Instant, emitted: Instant) -> Result<(), Cause> {
        let response = ConnectResponse::decode(frame).map_err(breach)?;
        if response.session_id == 0 || response.timeout_ms <= 0 {
            if self.state.session == 0 {
                return Err(server_error(ErrorCode::SESSION_EXPIRED).into());
            }
            self.expired();
            return Ok(());
        }
        if response.read_only {
            return Err(breach(Breach::WrongReply));
        }
        if self.state.session != 0 && response.session_id != self.state.session {
            return Err(refusal(NOT_CONTINUED).into());
        }
        self.state.session = response.session_id;
        self.state.password = response.password;
        self.state.grant(response.timeout_ms);
        let handshake = Greeting::LogIn { emitted };
        if self.state.wire.is_idle() {
            self.complete(Some(handshake));
        } else {
            self.phase = Phase::Handshake { until, handshake };
        }
        Ok(())
    }

    /// The server refuses the session.
    fn expired(&mut self) {
        self.leave(Mode::Over);
        self.report(SessionReport::Expired);
    }

    fn report(&mut self, report: SessionReport) {
        self.outputs.push_back(PipeOutput::Session(report));
    }

    fn ended(&mut self, confirmed: bool) {
        self.leave(Mode::Over);
        self.report(SessionReport::Ended { confirmed });
    }

    /// Closes the connection for good. The replies come before the reason.
    fn leave(&mut self, mode: Mode) {
        self.state.mode = mode;
        self.shut();
    }
}

const fn breach(breach: Breach) -> Cause {
    Cause::Fault(Fault::Protocol(breach))
}

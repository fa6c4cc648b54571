//! The connection machine that all stores share: one connection at a time to one of some servers.
//!
//! It knows phases, pauses, credentials, silence and deadlines. What is sent and read is up to a
//! [`Protocol`], which receives and returns values and never calls back. No I/O, no clock.

mod credentials;
mod protocol;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use core::fmt;
use core::time::Duration;

pub use protocol::{Failed, Opening, Order, Policy, Protocol, Settlement};

use crate::collections::{Waiting, burst};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::lock::{Cause, Failures, Renewal};
use crate::time::{Deadline, Instant, sooner};

/// The connection of one client to one of the servers of `P`, without any I/O.
///
/// A failed connection is opened again after a pause, while `P` wants one. Requests wait while it
/// is being opened. The host reports events by the `handle_` methods. Input for any connection but
/// the current one is dropped, so it may arrive late or twice.
// P4, M6
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Connection<P: Protocol> {
    pub(crate) seed: u64,
    pub(crate) now: Instant,
    pub(crate) phase: Phase<P::Handshake>,
    /// The current connection, or the last one.
    pub(crate) conn: ConnId,
    /// When it was opened.
    pub(crate) opened: Instant,
    /// Consecutive failures since the last connection that lasted.
    pub(crate) failures: Failures,
    /// How many more servers are tried before the next pause, after one that ended early.
    pub(crate) more: u32,
    /// Requests that arrived while the connection is being opened.
    pub(crate) waiting: Waiting<P::Pending>,
    pub(crate) renewal: Renewal,
    /// When bytes last arrived, or when the first outstanding request was made if that is later.
    pub(crate) heard: Instant,
    pub(crate) outputs: VecDeque<P::Output>,
    /// What the store adds.
    pub(crate) state: P,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase<H> {
    /// There is no connection.
    Closed,
    /// The host opens it.
    Connecting {
        /// When the attempt fails.
        until: Instant,
    },
    /// The host supplies the login.
    AwaitingCredentials {
        /// When the attempt fails.
        until: Instant,
    },
    /// Login, and what else comes before the first request.
    Handshake {
        /// When the attempt fails.
        until: Instant,
        /// Its progress.
        handshake: H,
    },
    /// Requests are sent at once.
    Up {
        /// When the handshake was complete.
        since: Instant,
    },
    /// A pause after a failure.
    BackingOff {
        /// When it may end early.
        earliest: Instant,
        /// When it ends.
        until: Instant,
        /// Why the connection has failed.
        cause: Cause,
    },
}

impl<P: Protocol> Connection<P> {
    /// Creates a closed connection. The first one to be opened follows `before`.
    pub(crate) fn with(state: P, renewal: Renewal, before: ConnId, seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            phase: Phase::Closed,
            conn: before,
            opened: Instant::ZERO,
            failures: Failures::default(),
            more: 0,
            waiting: Waiting::default(),
            renewal,
            heard: Instant::ZERO,
            outputs: VecDeque::new(),
            state,
        }
    }

    /// Returns true if requests are sent at once.
    pub const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Returns true if the connection is being opened.
    pub(crate) const fn is_opening(&self) -> bool {
        self.current().is_some() && !self.is_up()
    }

    /// Returns true if the connection is closed and will not be reopened without a call.
    pub const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Returns the connection that is open or being opened.
    pub const fn current(&self) -> Option<ConnId> {
        match self.phase {
            Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::Up { .. } => Some(self.conn),
            Phase::Closed | Phase::BackingOff { .. } => None,
        }
    }

    /// Returns why there is no connection, during the pause before the next attempt.
    pub const fn down_cause(&self) -> Option<&Cause> {
        match &self.phase {
            Phase::BackingOff { cause, .. } => Some(cause),
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::Up { .. } => None,
        }
    }

    /// Returns true if the connection `conn` is current.
    #[inline]
    pub(crate) fn is_current(&self, conn: ConnId) -> bool {
        self.current() == Some(conn)
    }

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.clock(now);
        if let Phase::Connecting { until } = self.phase
            && self.is_current(conn)
        {
            self.opened = self.now;
            self.begin_login(until);
        }
    }

    /// The connection has ended, or could not be opened.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.clock(now);
        if self.is_current(conn) {
            self.fail(why.into(), false);
        }
    }

    #[inline]
    pub(crate) fn pop_output(&mut self) -> Option<P::Output> {
        burst::pop(&mut self.outputs)
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Advances the clock, which never goes back.
    // M1
    #[inline]
    pub(crate) fn clock(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Opens a new connection.
    pub(crate) fn connect(&mut self) {
        self.state.begin(self.seed, self.conn.generation);
        let Policy { node, connect_timeout, .. } = self.state.policy();
        self.conn = ConnId { node, generation: self.conn.generation + 1, ..self.conn };
        self.phase = Phase::Connecting { until: self.now + connect_timeout };
        self.order(Order::Connect(self.conn));
    }

    /// Opens the connection if it is closed and something needs it.
    #[inline]
    pub(crate) fn connect_if_wanted(&mut self) {
        if self.is_closed() && self.state.policy().wanted {
            self.connect();
        }
    }

    /// Replaces the connection. Queued requests stay queued.
    pub(crate) fn replace(&mut self, why: Option<Cause>) {
        self.disconnect(why);
        self.connect();
    }

    /// A request cannot wait for the end of the pause after a failure.
    pub(crate) fn hurry(&mut self, by: Instant) {
        if let Phase::BackingOff { until, .. } = &mut self.phase {
            *until = (*until).min(by);
        }
    }

    /// Somebody waits for an answer only until `by`. If the pause after a failure is longer, it ends
    /// once it has lasted [`Backoff::every`](crate::lock::Backoff::every), and each server is tried
    /// before the next one. Returns true if it ends now.
    // P9
    pub(crate) fn end_pause(&mut self, now: Instant, by: Instant) -> bool {
        self.clock(now);
        let now = self.now;
        let Phase::BackingOff { earliest, until, .. } = &mut self.phase else { return false };
        if *until > by {
            *until = (*until).min(*earliest);
        }
        if *until > now {
            return false;
        }
        self.more = self.state.policy().servers.saturating_sub(1);
        self.phase = Phase::Closed;
        self.connect_if_wanted();
        true
    }

    /// Queues a request. It waits for a connection until `connect_by`.
    #[inline]
    pub(crate) fn submit(&mut self, pending: P::Pending, connect_by: Instant) {
        match &self.phase {
            Phase::Up { .. } => {
                self.expect_replies();
                self.state.queue(self.now, pending);
            }
            Phase::Connecting { .. } | Phase::AwaitingCredentials { .. } | Phase::Handshake { .. } => {
                self.waiting.push(pending, connect_by);
            }
            Phase::BackingOff { cause, .. } => {
                let cause = cause.clone();
                self.answer_unsent(pending, &cause);
            }
            Phase::Closed => self.answer_unsent(pending, &Fault::NotNeeded.into()),
        }
    }

    /// Restarts the silence timeout if nothing was outstanding before.
    #[inline]
    pub(crate) fn expect_replies(&mut self) {
        if self.state.silent_until(self.heard).is_none() {
            self.heard = self.now;
        }
    }

    /// The handshake is complete.
    pub(crate) fn complete(&mut self, handshake: Option<P::Handshake>) {
        self.phase = Phase::Up { since: self.now };
        self.more = 0;
        self.heard = self.now;
        if self.state.established(self.now, handshake, &mut self.renewal, &mut self.outputs) {
            while let Some((pending, _)) = self.waiting.pop() {
                self.state.queue(self.now, pending);
            }
        }
    }

    /// Does what is due in this phase.
    pub(crate) fn phase_timeout(&mut self) {
        let now = self.now;
        match &self.phase {
            Phase::Closed => {}
            Phase::Connecting { until } | Phase::AwaitingCredentials { until } | Phase::Handshake { until, .. } => {
                let cause = self.fault_of_timeout().into();
                if *until <= now {
                    return self.fail(cause, true);
                }
                while let Some(pending) = self.waiting.pop_due(now) {
                    self.answer_unsent(pending, &cause);
                }
            }
            Phase::Up { .. } => {
                if self.state.silent_until(self.heard).is_some_and(|until| until <= now) {
                    return self.fail(Fault::TimedOut.into(), true);
                }
                if self.renewal_due().is_some_and(|due| due <= now) {
                    self.request_credentials();
                }
            }
            Phase::BackingOff { until, .. } => {
                if *until <= now {
                    self.phase = Phase::Closed;
                    self.connect_if_wanted();
                }
            }
        }
    }

    /// Returns when something is due in this phase.
    #[inline]
    pub(crate) fn phase_deadline(&self) -> Option<Deadline> {
        match &self.phase {
            Phase::Closed => None,
            Phase::Up { .. } => sooner(
                self.state.silent_until(self.heard).map(|at| (at, "something in flight")),
                self.renewal_due().map(|at| (at, "new credentials")),
            ),
            Phase::Connecting { until } => self.opening_deadline(*until, "connect timeout"),
            Phase::AwaitingCredentials { until } => self.opening_deadline(*until, "credentials"),
            Phase::Handshake { until, .. } => self.opening_deadline(*until, "login timeout"),
            Phase::BackingOff { until, .. } => Some((*until, "pause before the next connection")),
        }
    }

    fn opening_deadline(&self, until: Instant, why: &'static str) -> Option<Deadline> {
        sooner(Some((until, why)), self.waiting.earliest().map(|at| (at, "request that waits")))
    }

    fn fault_of_timeout(&self) -> Fault {
        match self.phase {
            Phase::Connecting { .. } => self.state.target().map_or(Fault::TimedOut, |at| at.fault_of_timeout()),
            Phase::AwaitingCredentials { .. } => Fault::NoCredentials,
            Phase::Closed | Phase::Handshake { .. } | Phase::Up { .. } | Phase::BackingOff { .. } => Fault::TimedOut,
        }
    }

    pub(crate) fn order(&mut self, order: Order) {
        let output = self.state.order(order);
        self.outputs.extend(output);
    }

    fn disconnect(&mut self, why: Option<Cause>) {
        if let Some(conn) = self.current() {
            self.order(Order::Disconnect(conn, why));
        }
    }

    /// Closes the connection because nothing needs it.
    pub(crate) fn shut(&mut self) {
        self.disconnect(None);
        self.phase = Phase::Closed;
        self.settle(&Fault::NotNeeded.into());
    }

    /// Ends the connection. Another is opened after a pause.
    pub(crate) fn fail(&mut self, cause: Cause, notify_host: bool) {
        if notify_host {
            self.disconnect(Some(cause.clone()));
        }
        let failed = Failed { now: self.now, opened: self.opened, phase: &self.phase, cause: &cause };
        let lasted = self.state.ended(&failed);
        let Policy { servers, reconnect, reopens, at_once, .. } = self.state.policy();
        self.failures.failed(lasted, reconnect);
        let pause = match self.more.checked_sub(1) {
            None => self.failures.pause(servers.saturating_sub(1), reconnect, self.seed, self.conn.generation),
            Some(more) => {
                self.more = more;
                Duration::ZERO
            }
        };
        self.phase = if reopens {
            let earliest = self.now + pause.min(reconnect.every);
            Phase::BackingOff { earliest, until: self.now + pause, cause: cause.clone() }
        } else {
            Phase::Closed
        };
        self.order(Order::Down(cause.clone()));
        if pause.is_zero() && reopens {
            // The next server is tried at once. Requests that wait for a connection wait for it.
            self.settle_sent(&cause);
        } else {
            self.settle(&cause);
        }
        if pause.is_zero() && at_once {
            self.phase = Phase::Closed;
            self.connect_if_wanted();
        }
    }

    /// Answers everything outstanding.
    // M8
    fn settle(&mut self, cause: &Cause) {
        self.settle_sent(cause);
        while let Some((pending, _)) = self.waiting.pop() {
            self.answer_unsent(pending, cause);
        }
    }

    /// Answers what was given to the connection. No other place does.
    fn settle_sent(&mut self, cause: &Cause) {
        let failures = self.failures.failures;
        self.state.settle(&Settlement { now: self.now, cause, failures }, &mut self.outputs);
    }

    pub(crate) fn answer_unsent(&mut self, pending: P::Pending, cause: &Cause) {
        let answer = self.state.answer_unsent(pending, cause);
        self.outputs.extend(answer);
    }
}

/// Shows no requests that wait: they may contain a login.
impl<P: Protocol + fmt::Debug> fmt::Debug for Connection<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, phase, conn, failures, outputs, state, .. } = self;
        let mut shown = f.debug_struct("Connection");
        shown.field("now", now).field("phase", phase).field("conn", conn).field("failures", failures);
        shown.field("outputs", outputs).field("state", state).finish_non_exhaustive()
    }
}

//! The login of a connection: credentials of the settings, of a file, or of the host.
// N19

use super::{Connection, Opening, Order, Phase, Policy, Protocol};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::lock::Credentials;
use crate::time::Instant;

impl<P: Protocol> Connection<P> {
    /// The host supplies the credentials that it was asked for, or none.
    pub fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.clock(now);
        let (until, open) = match self.phase {
            Phase::AwaitingCredentials { until } => (until, false),
            Phase::Up { .. } => (self.now + self.state.policy().connect_timeout, true),
            Phase::Closed | Phase::Connecting { .. } | Phase::Handshake { .. } | Phase::BackingOff { .. } => return,
        };
        if let Some(login) = self.state.asks()
            && self.is_current(conn)
        {
            if self.renewal.accept(self.now, credentials, login, self.state.policy().reconnect) {
                self.log_in(until, open);
            } else if !open {
                self.fail(Fault::NoCredentials.into(), true);
            }
        }
    }

    /// Begins the handshake, after the host has supplied the login if it does.
    pub(crate) fn begin_login(&mut self, until: Instant) {
        if self.state.asks().is_some() {
            self.phase = Phase::AwaitingCredentials { until };
            self.request_credentials();
        } else {
            self.log_in(until, false);
        }
    }

    /// `open`: the connection has an earlier login.
    pub(crate) fn log_in(&mut self, until: Instant, open: bool) {
        if open {
            self.expect_replies();
        }
        let (now, conn) = (self.now, self.conn);
        let mut opening = Opening { now, conn, until, open, renewal: &self.renewal, outputs: &mut self.outputs };
        match self.state.shake_hands(&mut opening) {
            Ok(Some(handshake)) => self.phase = Phase::Handshake { until: opening.until, handshake },
            Ok(None) if open => {}
            Ok(None) => self.complete(None),
            Err(fault) => self.fail(fault.into(), true),
        }
    }

    pub(crate) fn request_credentials(&mut self) {
        let Policy { connect_timeout, .. } = self.state.policy();
        if let (Some(login), Some(target)) = (self.state.asks(), self.state.target()) {
            let request = self.renewal.request(self.now, connect_timeout, target, login);
            self.order(Order::Credentials(self.conn, request));
        }
    }

    /// Returns when to request credentials for an open connection again.
    #[inline]
    pub(crate) fn renewal_due(&self) -> Option<Instant> {
        self.renewal.due().filter(|_| self.state.asks().is_some())
    }
}

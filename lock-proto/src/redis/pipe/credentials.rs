//! Credentials that the host supplies.

use super::{Phase, Pipe, PipeConfig, PipeOutput};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::lock::{Cause, Credentials};
use crate::redis::server_error::rejects_login;
use crate::time::Instant;

impl Pipe {
    /// The host supplies the credentials that it was asked for, or none.
    // N19
    pub fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.clock(now);
        if self.current() != Some(conn) || !self.requests_credentials() {
            return;
        }
        let PipeConfig { endpoint, reconnect, .. } = &self.config;
        match self.phase {
            Phase::AwaitingCredentials { until } => {
                if self.renewal.accept(self.now, credentials, &endpoint.login, *reconnect) {
                    self.log_in(self.renewal.valid_until().map_or(until, |end| end.min(until)));
                } else {
                    self.fail(Fault::NoCredentials.into(), true);
                }
            }
            Phase::Up { .. } => {
                if self.renewal.accept(self.now, credentials, &endpoint.login, *reconnect) {
                    self.expect_replies();
                    let until = self.renewal.valid_until();
                    self.wire.log_in_again(&self.config.endpoint, self.renewal.login(), until);
                }
            }
            Phase::Closed | Phase::Connecting { .. } | Phase::LoggingIn { .. } | Phase::BackingOff { .. } => {}
        }
    }

    pub(super) const fn requests_credentials(&self) -> bool {
        self.config.request_credentials || self.config.endpoint.login.password_file.is_some()
    }

    pub(super) fn request_credentials(&mut self, conn: ConnId) {
        let PipeConfig { endpoint, connect_timeout, .. } = &self.config;
        let request = self.renewal.request(self.now, *connect_timeout, &endpoint.target, &endpoint.login);
        self.outputs.push_back(PipeOutput::Credentials(conn, request));
    }

    /// Returns true if the host is asked for credentials once more before anything is refused.
    // N19
    pub(super) fn logs_in_again(&mut self, cause: &Cause) -> bool {
        let (Phase::LoggingIn { .. }, Cause::Server(error)) = (&self.phase, cause) else { return false };
        rejects_login(&error.text) && self.renewal.reject(self.now, error, self.config.reconnect)
    }

    pub(super) const fn fault_of_timeout(&self) -> Fault {
        match self.phase {
            Phase::Connecting { .. } => self.config.endpoint.target.fault_of_timeout(),
            Phase::AwaitingCredentials { .. } => Fault::NoCredentials,
            Phase::Closed | Phase::LoggingIn { .. } | Phase::Up { .. } | Phase::BackingOff { .. } => Fault::TimedOut,
        }
    }
}

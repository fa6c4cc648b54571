//! The login of a connection: credentials of the settings, of a file, or of the host.

use alloc::format;

use super::wire::Pending;
use super::{Mode, Opening, Phase, Pipe, PipeConfig, PipeOutput};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::lock::Credentials;
use crate::time::Instant;
use crate::url::Login;
use crate::zookeeper::codec::Op;

impl Pipe {
    /// The host supplies the credentials that it was asked for, or none.
    // N19
    pub fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.clock(now);
        if self.current() != Some(conn) || !self.requests_credentials() {
            return;
        }
        let PipeConfig { login, reconnect, .. } = &self.config;
        match self.phase {
            Phase::Opening { until, step: Opening::AwaitingCredentials } => {
                if !self.renewal.accept(self.now, credentials, login, *reconnect) {
                    self.fail(Fault::NoCredentials.into(), true);
                } else if self.auth().is_none() {
                    self.fail(Fault::NoUser.into(), true);
                } else {
                    self.shake_hands(until);
                }
            }
            Phase::Up { .. } => {
                if self.renewal.accept(self.now, credentials, login, *reconnect)
                    && let Some(op) = self.auth()
                {
                    self.queue(Pending { call: None, op });
                }
            }
            Phase::Opening { .. } | Phase::Closed | Phase::BackingOff { .. } => {}
        }
    }

    /// A session that is only to be ended needs no login, which may be what the server refuses.
    pub(super) const fn requests_credentials(&self) -> bool {
        let needs_login = !matches!(self.mode, Mode::Ending { .. });
        needs_login && (self.config.request_credentials || self.config.login.password_file.is_some())
    }

    pub(super) fn request_credentials(&mut self, conn: ConnId) {
        let PipeConfig { login, connect_timeout, .. } = &self.config;
        let Some(target) = self.config.servers.get(self.server) else { return };
        let request = self.renewal.request(self.now, *connect_timeout, target, login);
        self.outputs.push_back(PipeOutput::Credentials(conn, request));
    }

    /// Returns when to request credentials for an open connection again.
    pub(super) fn renewal_due(&self) -> Option<Instant> {
        self.renewal.due().filter(|_| self.mode == Mode::Live)
    }

    /// Returns the login of this connection.
    pub(super) fn auth(&self) -> Option<Op> {
        let Login { username, password, .. } = self.renewal.login();
        let (Some(user), Some(password)) = (username, password) else { return None };
        let auth = format!("{user}:{}", password.expose());
        Some(Op::Auth { scheme: "digest".into(), auth: auth.into() })
    }
}

//! Login and its token. Simple tokens, etcd's default, expire on each member five minutes after
//! their last use there, and a restarted member knows none. So each connection starts with a login.

use alloc::string::ToString as _;
use core::time::Duration;

use super::{Channel, ChannelConfig, ChannelOutput, Phase};
use crate::etcd::message::AuthenticateRequest;
use crate::etcd::output::Output;
use crate::etcd::request::{Refusal, Reply};
use crate::etcd::rpc::{Rpc, RpcId, RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::id::ConnId;
use crate::lock::{Credentials, ErrorClass, ServerError};
use crate::time::Instant;
use crate::url::{Login, Secret};

/// A token younger than this cannot have expired. Its TTL is a setting of the server, five minutes
/// by default.
const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// The current token and the number of its login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) token: Option<Secret>,
    /// Number of logins, including those that found authentication disabled. Only grows.
    pub(super) count: u64,
    /// When the last one was answered.
    at: Instant,
}

impl Session {
    fn done(&mut self, now: Instant, token: Option<&str>) {
        self.token = token.map(Secret::new);
        self.count += 1;
        self.at = now;
    }

    /// Returns true if the token of this login may have expired.
    pub(super) fn may_have_expired(&self, now: Instant, login: u64) -> bool {
        login != self.count || now.since(self.at) >= SHORTEST_TTL
    }
}

impl ChannelConfig {
    const fn requests_credentials(&self) -> bool {
        self.request_credentials || self.login.password_file.is_some()
    }

    pub(super) const fn logs_in(&self) -> bool {
        self.requests_credentials() || self.login.password.is_some()
    }
}

fn request(login: &Login) -> Rpc {
    Rpc::Authenticate(AuthenticateRequest {
        name: login.username.as_deref().unwrap_or_default().to_string(),
        password: login.password.as_ref().map(Secret::expose).unwrap_or_default().to_string(),
    })
}

impl Channel {
    /// Logs in on a new connection, if there are users.
    pub(super) fn begin_login(&mut self, until: Instant) {
        if self.config.requests_credentials() {
            self.phase = Phase::AwaitingCredentials { until };
            self.request_credentials();
        } else if self.config.logs_in() {
            self.log_in(until, false);
        } else {
            self.login.done(self.now, None);
            self.up();
        }
    }

    /// A login is a write, so it may take as long as one.
    // E13
    fn log_in(&mut self, until: Instant, open: bool) {
        let until = until.max(self.now + self.longest_silence());
        if let Some(rpc) = self.call_without_token(request(self.renewal.login())) {
            self.phase = Phase::LoggingIn { until, rpc, open };
        }
    }

    pub(super) fn call_without_token(&mut self, request: Rpc) -> Option<RpcId> {
        let conn = self.current()?;
        self.serial += 1;
        let rpc = RpcId { conn, serial: self.serial };
        self.out.push_back(ChannelOutput::Do(Output::Call { rpc, request, token: None }));
        Some(rpc)
    }

    /// Replaces the token of the login `seen`, which has expired, unless there was a newer login.
    pub(super) fn log_in_again(&mut self, seen: u64) {
        if self.login.count != seen || !self.config.logs_in() {
            return;
        }
        match &mut self.phase {
            // If the login under way fails, the earlier token does not help.
            Phase::LoggingIn { open, .. } => *open = false,
            Phase::Up => {
                let until = self.now + self.config.connect_timeout;
                if self.renewal.is_valid(self.now) { self.log_in(until, false) } else { self.begin_login(until) }
            }
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::Verifying { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::BackingOff { .. } => {}
        }
    }

    pub(super) fn request_credentials(&mut self) {
        let Some(conn) = self.current() else { return };
        let ChannelConfig { login, connect_timeout, .. } = &self.config;
        let Some(endpoint) = self.members.current() else { return };
        let request = self.renewal.request(self.now, *connect_timeout, &endpoint.target, login);
        self.out.push_back(ChannelOutput::Do(Output::Credentials { conn, request }));
    }

    /// When to request credentials again while the connection is open.
    pub(super) fn renewal_due(&self) -> Option<Instant> {
        self.renewal.due().filter(|_| self.is_up())
    }

    /// The host supplies the credentials that it was asked for, or none.
    // N19
    pub fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.advance(now);
        if self.current() != Some(conn) || !self.config.requests_credentials() {
            return;
        }
        let (now, ChannelConfig { login, reconnect, connect_timeout, .. }) = (self.now, &self.config);
        let (until, open) = match self.phase {
            Phase::AwaitingCredentials { until } => (until, false),
            Phase::Up => (now + *connect_timeout, true),
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::Verifying { .. }
            | Phase::LoggingIn { .. }
            | Phase::BackingOff { .. } => return,
        };
        if self.renewal.accept(now, credentials, login, *reconnect) {
            // It leaves at once, so the reply may come after the credentials have expired.
            self.log_in(until, open);
        } else if !open {
            self.drop_connection(Fault::NoCredentials.into());
        }
    }

    pub(super) fn logged_in(&mut self, result: Result<RpcReply, Status>, open: bool) {
        let status = match result {
            Ok(RpcReply::Authenticate(answer)) if !answer.token.is_empty() => {
                self.login.done(self.now, Some(&answer.token));
                self.renewal.confirm();
                return self.up();
            }
            Ok(_) => return self.drop_connection(Fault::Protocol(Breach::WrongReply).into()),
            Err(status) => status,
        };
        let meaning = Meaning::of(&status);
        match meaning {
            Meaning::LoginNotNeeded => {
                self.login.done(self.now, None);
                self.up();
            }
            Meaning::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                let again = self.renewal.reject(self.now, &error, self.config.reconnect);
                if open {
                    // The token of the earlier login is still good.
                    self.up();
                } else if again {
                    self.begin_login(self.now + self.config.connect_timeout);
                } else {
                    self.refuse_all(error);
                }
            }
            meaning @ (Meaning::Refused(_) | Meaning::LogIn(_) | Meaning::Unknown { .. }) => {
                self.drop_connection(meaning.error(&status).into());
            }
        }
    }

    fn up(&mut self) {
        self.phase = Phase::Up;
        self.last_error = None;
        self.update_silence();
    }

    /// The server rejected the login: refuses everything that is queued, and backs off as if every
    /// endpoint had failed. Members share their users.
    fn refuse_all(&mut self, error: ServerError) {
        self.refuse_queued(&error);
        self.backoff.failures = self.backoff.failures.max(self.members.count());
        self.drop_connection(error.into());
    }

    pub(super) fn refuse_queued(&mut self, error: &ServerError) {
        while let Some(call) = self.calls.pop_waiting().or_else(|| self.keep_alives.pop_waiting()) {
            self.reply(call, Reply::Refused(Refusal::Error(error.clone())));
        }
        self.watches.refuse_all(error, &mut self.out);
    }
}

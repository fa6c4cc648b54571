//! Login and its token. Simple tokens, etcd's default, expire on each member five minutes after
//! their last use there, and a restarted member knows none. So each connection starts with a login.

use alloc::string::ToString as _;
use core::time::Duration;

use super::protocol::FirstCall;
use super::{Channel, ChannelConfig, Phase};
use crate::etcd::message::AuthenticateRequest;
use crate::etcd::request::Refusal;
use crate::etcd::rpc::{Rpc, RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::lock::{ErrorClass, ServerError};
use crate::time::Instant;
use crate::url::{Login, Secret};

/// A token younger than this cannot have expired. Its TTL is a setting of the server, five minutes
/// by default.
const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// The current token and the number of its login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LoginToken {
    pub(super) token: Option<Secret>,
    /// Number of logins, including those that found authentication disabled. Only grows.
    pub(super) count: u64,
    /// When the last one was answered.
    at: Instant,
}

impl LoginToken {
    pub(super) fn done(&mut self, now: Instant, token: Option<&str>) {
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
    pub(super) const fn requests_credentials(&self) -> bool {
        self.request_credentials || self.login.password_file.is_some()
    }

    pub(super) const fn logs_in(&self) -> bool {
        self.requests_credentials() || self.login.password.is_some()
    }
}

pub(super) fn request(login: &Login) -> Rpc {
    Rpc::Authenticate(AuthenticateRequest {
        name: login.username.as_deref().unwrap_or_default().to_string(),
        password: login.password.as_ref().map(Secret::expose).unwrap_or_default().to_string(),
    })
}

impl Channel {
    /// Replaces the token of the login `seen`, which has expired, unless there was a newer login.
    pub(super) fn log_in_again(&mut self, seen: u64) {
        if self.state.login.count != seen || !self.state.config.logs_in() {
            return;
        }
        match &mut self.phase {
            // If the login under way fails, the earlier token does not help.
            Phase::Handshake { handshake: FirstCall::LogIn { open, .. }, .. } => *open = false,
            Phase::Up { .. } => {
                let until = self.now + self.state.config.connect_timeout;
                if self.renewal.is_valid(self.now) { self.log_in(until, false) } else { self.begin_login(until) }
            }
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::BackingOff { .. } => {}
        }
    }

    pub(super) fn logged_in(&mut self, result: Result<RpcReply, Status>, open: bool) {
        let status = match result {
            Ok(RpcReply::Authenticate(answer)) if !answer.token.is_empty() => {
                self.state.login.done(self.now, Some(&answer.token));
                self.renewal.confirm();
                return self.complete(None);
            }
            Ok(_) => return self.fail(Fault::Protocol(Breach::WrongReply).into(), true),
            Err(status) => status,
        };
        let meaning = Meaning::of(&status);
        match meaning {
            Meaning::LoginNotNeeded => {
                self.state.login.done(self.now, None);
                self.complete(None);
            }
            Meaning::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                let again = self.renewal.reject(self.now, &error, self.state.config.reconnect);
                if open {
                    // The token of the earlier login is still good.
                    self.complete(None);
                } else if again {
                    self.begin_login(self.now + self.state.config.connect_timeout);
                } else {
                    self.refuse_all(error);
                }
            }
            meaning @ (Meaning::Refused(_) | Meaning::LogIn(_) | Meaning::Unknown { .. }) => {
                self.fail(meaning.error(&status).into(), true);
            }
        }
    }

    /// The server rejected the login: refuses everything that is queued, and backs off as if every
    /// endpoint had failed. Members share their users.
    fn refuse_all(&mut self, error: ServerError) {
        self.state.refuse_queued(&error, &mut self.outputs);
        self.failures.failures = self.failures.failures.max(self.state.members.count());
        self.fail(error.into(), true);
    }
}

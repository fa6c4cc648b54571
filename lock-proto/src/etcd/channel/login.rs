//! Login and its token. Simple tokens, etcd's default, expire on each member five minutes after
//! their last use there, and a restarted member knows none. So each connection starts with a login.

use alloc::boxed::Box;
use alloc::string::ToString as _;

use super::{Channel, ChannelOutput, Phase};
use crate::etcd::message::AuthenticateRequest;
use crate::etcd::output::Output;
use crate::etcd::request::{Refusal, Reply};
use crate::etcd::rpc::{Rpc, RpcId, RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::lock::{ErrorClass, ServerError};
use crate::time::Instant;
use crate::url::Secret;

/// The current token and the number of its login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Login {
    pub(super) token: Option<Secret>,
    /// Number of logins, including those that found authentication disabled. Only grows.
    pub(super) count: u64,
}

impl Login {
    fn done(&mut self, token: Option<&str>) {
        self.token = token.map(Secret::new);
        self.count += 1;
    }

    fn request((name, password): &(Box<str>, Secret)) -> Rpc {
        Rpc::Authenticate(AuthenticateRequest { name: name.to_string(), password: password.expose().to_string() })
    }
}

impl Channel {
    pub(super) fn log_in(&mut self, until: Instant) {
        let Some(conn) = self.current() else { return };
        let Some(user) = &self.config.user else {
            self.login.done(None);
            return self.up();
        };
        let request = Login::request(user);
        self.serial += 1;
        let rpc = RpcId { conn, serial: self.serial };
        self.phase = Phase::LoggingIn { until, rpc };
        self.out.push_back(ChannelOutput::Do(Output::Call { rpc, request, token: None }));
    }

    /// Replaces the token of the login `seen`, which has expired, unless there was a newer login.
    pub(super) fn log_in_again(&mut self, seen: u64) {
        if self.is_up() && self.login.count == seen && self.config.user.is_some() {
            self.log_in(self.now + self.config.connect_timeout);
        }
    }

    pub(super) fn logged_in(&mut self, result: Result<RpcReply, Status>) {
        let status = match result {
            Ok(RpcReply::Authenticate(answer)) if !answer.token.is_empty() => {
                self.login.done(Some(&answer.token));
                return self.up();
            }
            Ok(_) => return self.drop_connection(Fault::Protocol(Breach::WrongReply).into()),
            Err(status) => status,
        };
        let meaning = Meaning::of(&status);
        match meaning {
            Meaning::LoginNotNeeded => {
                self.login.done(None);
                self.up();
            }
            Meaning::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => self.refuse_all(error),
            meaning @ (Meaning::Refused(_) | Meaning::LogIn(_) | Meaning::Unknown { .. }) => {
                self.drop_connection(meaning.error(&status).into());
            }
        }
    }

    fn up(&mut self) {
        self.phase = Phase::Up;
        self.last_error = None;
    }

    /// The server rejected the login: refuses everything that is queued, and backs off as if every
    /// endpoint had failed. Members share their users.
    fn refuse_all(&mut self, error: ServerError) {
        self.refuse_queued(&error);
        self.backoff.failures = self.backoff.failures.max(u32::from(self.config.endpoints));
        self.opened_at = self.now;
        self.drop_connection(error.into());
    }

    pub(super) fn refuse_queued(&mut self, error: &ServerError) {
        while let Some(call) = self.calls.pop_waiting().or_else(|| self.keep_alives.pop_waiting()) {
            self.reply(call, Reply::Refused(Refusal::Error(error.clone())));
        }
        self.watches.refuse_all(error, &mut self.out);
    }
}

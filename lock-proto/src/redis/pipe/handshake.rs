//! Handshake of a new connection: login, database, and the identity of the server.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::frame::Decoded;
use super::wire::Job;
use super::{Pipe, PipeConfig, PipeOutput, Resp};
use crate::fault::{Breach, Fault};
use crate::id::Role;
use crate::lock::{Cause, ErrorClass, ServerError};
use crate::redis::server_error;
use crate::redis::url::{Endpoint, Protocol};
use crate::time::Instant;
use crate::url::Login;

/// What a server reports about itself at connect.
// Q6
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Random, and new at each start of the server. Two nodes with the same run id are the same
    /// server.
    pub run_id: Box<str>,
    /// Uptime in whole seconds, rounded down.
    pub uptime: Duration,
}

impl ServerInfo {
    /// Creates it from the `run_id` and `uptime_in_seconds` of `INFO server`, for custom Redis
    /// clients.
    #[must_use]
    pub fn new(run_id: &str, uptime: Duration) -> Self {
        Self { run_id: run_id.into(), uptime }
    }
}

/// Result of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Hello {
    /// The server's id of the connection, for `CLIENT UNBLOCK`. Requested only on a [`Role::Wake`]
    /// connection. `None` also if the server refuses.
    pub client_id: Option<i64>,
    /// The reply to `INFO server`; `None` if it was not requested.
    pub server: Option<Result<ServerInfo, ServerError>>,
}

impl Pipe {
    /// Requests `INFO server`, ahead of all queued requests, if the connection is up. Unlike with
    /// [`PipeConfig::server_info`], no request waits for the reply.
    pub fn request_server_info(&mut self, now: Instant) {
        self.clock(now);
        if self.is_up() && self.state.avoided.contains(HandshakeStep::Info, self.now) {
            let text = "the server, or a proxy before it, closes the connection at INFO".into();
            let refused = ServerError { class: ErrorClass::Refused, text };
            self.outputs.push_back(PipeOutput::Server(Err(refused)));
        } else if self.is_up() {
            self.expect_replies();
            self.state.wire.login(HandshakeStep::Info, &self.state.config.endpoint, self.renewal.login());
        }
    }
}

/// How long a request is not made again at which the server has closed connections.
const AVOIDED_FOR: Duration = Duration::from_secs(600);

/// Requests that a connection can do without, and at which the server closes it: some proxies do so
/// for commands that they do not know. After the second connection in a row that ends so, they are
/// not made for a while, and count as refused.
// P8
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Avoided {
    /// The first request without a reply when the last connection ended. A server may end at any
    /// request, so once is no proof.
    suspect: Option<HandshakeStep>,
    /// The requests, until when.
    steps: Vec<(HandshakeStep, Instant)>,
}

impl Avoided {
    pub(super) fn contains(&self, step: HandshakeStep, now: Instant) -> bool {
        self.steps.iter().any(|(own, until)| *own == step && *until > now)
    }

    /// The server has closed a connection, at this request or not.
    fn closed_at(&mut self, step: Option<HandshakeStep>, now: Instant) {
        self.steps.retain(|(_, until)| *until > now);
        if let Some(step) = step.filter(|step| self.suspect == Some(*step)) {
            self.steps.push((step, now + AVOIDED_FOR));
        }
        self.suspect = step;
    }
}

impl Resp {
    /// The connection has failed, with requests in flight.
    pub(super) fn note_where_it_ended(&mut self, now: Instant, cause: &Cause) {
        if let Cause::Fault(Fault::Closed | Fault::ClosedEarly | Fault::Reset) = cause {
            let first = self.wire.first().map(|sent| &sent.pending.job);
            let step = first.and_then(|job| if let Job::Login(step) = job { Some(*step) } else { None });
            self.avoided.closed_at(step.filter(|step| step.is_optional(&self.config)), now);
        }
    }
}

/// One command of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandshakeStep {
    /// `HELLO 3`, with the login.
    Hello,
    Auth,
    Select,
    SetName,
    ClientId,
    Info,
}

impl HandshakeStep {
    /// Returns true if the connection can be used without it.
    const fn is_optional(self, config: &PipeConfig) -> bool {
        match self {
            Self::Hello | Self::Auth | Self::Select => false,
            Self::SetName | Self::ClientId => true,
            // A quorum does not count a node without it.
            // Q6
            Self::Info => !config.server_info,
        }
    }

    /// Returns the handshake commands of this connection, in order.
    pub(super) fn of(config: &PipeConfig, login: &Login) -> impl Iterator<Item = Self> + use<> {
        let at = &config.endpoint;
        let hello = at.protocol == Protocol::Resp3;
        [
            (Self::Hello, hello),
            (Self::Auth, !hello && login.password.is_some()),
            (Self::Select, at.database != 0),
            // Not part of HELLO, because a rejected name would fail the login.
            (Self::SetName, at.client_name.is_some()),
            (Self::ClientId, config.role == Role::Wake),
            (Self::Info, config.server_info),
        ]
        .into_iter()
        .filter_map(|(step, needed)| needed.then_some(step))
    }

    pub(super) fn with_args<R>(self, at: &Endpoint, login: &Login, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let user = login.username.as_deref().map(str::as_bytes);
        let password = login.password.as_ref().map(|password| password.expose().as_bytes());
        match (self, user, password) {
            (Self::Hello, _, None) => f(&[b"HELLO", b"3"]),
            (Self::Hello, user, Some(password)) => f(&[b"HELLO", b"3", b"AUTH", user.unwrap_or(b"default"), password]),
            (Self::Auth, Some(user), password) => f(&[b"AUTH", user, password.unwrap_or_default()]),
            (Self::Auth, None, password) => f(&[b"AUTH", password.unwrap_or_default()]),
            (Self::Select, ..) => f(&[b"SELECT", format!("{}", at.database).as_bytes()]),
            (Self::SetName, ..) => {
                f(&[b"CLIENT", b"SETNAME", at.client_name.as_deref().map(str::as_bytes).unwrap_or_default()])
            }
            (Self::ClientId, ..) => f(&[b"CLIENT", b"ID"]),
            (Self::Info, ..) => f(&[b"INFO", b"server"]),
        }
    }

    /// Processes a reply. An error means that the connection cannot be used.
    pub(super) fn read(self, answer: &Decoded<'_>, hello: &mut Hello) -> Result<(), Cause> {
        if let Decoded::Error(text) = answer
            && text.starts_with("NOAUTH")
        {
            // The login itself failed.
            return Err(ServerError::classify(text).into());
        }
        match (self, answer) {
            (Self::Hello, Decoded::Map(map)) if is_cluster_mode(map) => {
                Err(cluster("HELLO reports mode cluster").into())
            }
            (Self::Hello, Decoded::Map(_)) => Ok(()),
            (Self::Auth | Self::Select | Self::SetName, Decoded::Text(b"OK")) => Ok(()),
            (Self::Hello, Decoded::Error(text)) => Err(hello_refused(text).into()),
            (Self::Auth | Self::Select, Decoded::Error(text)) => Err(ServerError::classify(text).into()),
            // The name only shows up in CLIENT LIST; nothing depends on it.
            (Self::SetName, Decoded::Error(_)) => Ok(()),
            (Self::ClientId, Decoded::Int(id)) => {
                hello.client_id = Some(*id);
                Ok(())
            }
            (Self::ClientId, Decoded::Error(_)) => Ok(()),
            (Self::Info, Decoded::Text(_) | Decoded::Error(_)) => {
                if let Decoded::Text(text) = answer
                    && ["redis_mode", "server_mode"].iter().any(|name| field(text, name) == Some("cluster"))
                {
                    return Err(cluster("INFO says redis_mode cluster").into());
                }
                match ServerInfo::read(answer) {
                    // The next connection may learn the server's identity.
                    // Q6
                    Err(error) if error.is_temporary() => Err(error.into()),
                    server => {
                        hello.server = Some(server);
                        Ok(())
                    }
                }
            }
            (_, _) => Err(Fault::Protocol(Breach::WrongReply).into()),
        }
    }
}

/// Classifies an error reply to `HELLO`. Servers report an unknown command or version in many ways.
fn hello_refused(text: &str) -> ServerError {
    let error = ServerError::classify(text);
    let unknown = text.starts_with("NOPROTO") || text.starts_with("ERR");
    if !unknown || error.class == ErrorClass::Transient {
        return error;
    }
    let text = format!("RESP3 is not available, use protocol=resp2 ({})", error.text);
    ServerError { class: ErrorClass::Refused, ..ServerError::classify(&text) }
}

fn field<'a>(info: &'a [u8], name: &str) -> Option<&'a str> {
    info.split(|b| *b == b'\n').find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        core::str::from_utf8(value.trim_ascii()).ok()
    })
}

fn is_cluster_mode(map: &[u8]) -> bool {
    const MODE: &[u8] = b"mode\r\n";
    let mut fields = map.windows(MODE.len()).enumerate().filter(|(_, name)| *name == MODE);
    fields.any(|(at, _)| {
        let value = &map[at + MODE.len()..];
        value.starts_with(b"$7\r\ncluster\r\n") || value.starts_with(b"+cluster\r\n")
    })
}

/// The error for a server in cluster mode: the keys of one lock would lie in different slots.
fn cluster(how: &str) -> ServerError {
    ServerError { class: ErrorClass::Refused, text: crate::lock::printable(how, server_error::NO_CLUSTER) }
}

impl ServerInfo {
    pub(super) fn read(answer: &Decoded<'_>) -> Result<Self, ServerError> {
        if let Decoded::Error(text) = answer {
            return Err(ServerError::classify(text));
        }
        Self::parse(if let Decoded::Text(text) = answer { text } else { b"" })
    }

    /// Parses the text of `INFO server`: lines of `field:value`, see
    /// <https://redis.io/docs/latest/commands/info/>.
    ///
    /// # Errors
    ///
    /// The text lacks `run_id` or `uptime_in_seconds`.
    pub fn parse(text: &[u8]) -> Result<Self, ServerError> {
        let run_id = field(text, "run_id").filter(|id| (1..=64).contains(&id.len()));
        let uptime = field(text, "uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        match (run_id, uptime) {
            (Some(run_id), Some(uptime)) => Ok(Self { run_id: run_id.into(), uptime: Duration::from_secs(uptime) }),
            (None, _) | (_, None) => {
                let text = "INFO server reports no run_id and uptime_in_seconds".into();
                Err(ServerError { class: ErrorClass::Refused, text })
            }
        }
    }
}

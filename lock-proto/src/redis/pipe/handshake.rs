//! What is said on a new connection before any request: who we are, which database, and who the server is.

use alloc::boxed::Box;
use alloc::format;
use core::time::Duration;

use super::PipeConfig;
use super::frame::Answer;
use crate::fault::{Breach, Fault};
use crate::id::Role;
use crate::lock::{Cause, ErrorClass, ServerError};
use crate::redis::server_error;
use crate::redis::url::{Endpoint, Protocol};

/// What a server told about itself at connect (requirement Q6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Random, and new with every start of the server: two nodes with one run id are one server.
    pub run_id: Box<str>,
    /// For how long it has been running, in whole seconds, rounded down.
    pub uptime: Duration,
}

impl ServerInfo {
    /// What `INFO server` said: `run_id`, and `uptime_in_seconds`. For those who bring their own Redis client.
    #[must_use]
    pub fn new(run_id: &str, uptime: Duration) -> Self {
        Self { run_id: run_id.into(), uptime }
    }
}

/// What the handshake brought to light.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Hello {
    /// The connection's number in the server, for `CLIENT UNBLOCK`. Asked for on a [`Role::Wake`] connection only; `None` also if
    /// the server refuses to tell.
    pub client_id: Option<i64>,
    /// What `INFO server` said; `None` if it was not asked for.
    pub server: Option<Result<ServerInfo, ServerError>>,
}

/// One command of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// `HELLO 3`, with the login.
    Hello,
    /// `AUTH`.
    Auth,
    /// `SELECT`.
    Select,
    /// `CLIENT SETNAME`.
    SetName,
    /// `CLIENT ID`.
    ClientId,
    /// `INFO server`.
    Info,
}

impl Step {
    /// The commands that this connection starts with, in order.
    pub(super) fn of(config: &PipeConfig) -> impl Iterator<Item = Self> + use<> {
        let at = &config.endpoint;
        let hello = at.protocol == Protocol::Resp3;
        [
            (Self::Hello, hello),
            (Self::Auth, !hello && at.password.is_some()),
            (Self::Select, at.database != 0),
            // Not within HELLO: there a name that the server does not like would fail the login.
            (Self::SetName, at.client_name.is_some()),
            (Self::ClientId, config.role == Role::Wake),
            (Self::Info, config.server_info),
        ]
        .into_iter()
        .filter_map(|(step, wanted)| wanted.then_some(step))
    }

    /// Calls `f` with the arguments of the command.
    pub(super) fn with_args<R>(self, at: &Endpoint, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let user = at.username.as_deref().map(str::as_bytes);
        let password = at.password.as_ref().map(|password| password.expose().as_bytes());
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

    /// Takes in the answer. An error means that nothing can be done on this connection.
    pub(super) fn read(self, answer: &Answer<'_>, hello: &mut Hello) -> Result<(), Cause> {
        if let Answer::Error(text) = answer
            && text.starts_with("NOAUTH")
        {
            // Nothing can be done without a login, and this was it.
            return Err(ServerError::classify(text).into());
        }
        match (self, answer) {
            (Self::Hello, Answer::Map(map)) if says_cluster(map) => Err(cluster("HELLO says mode cluster").into()),
            (Self::Hello, Answer::Map(_)) => Ok(()),
            (Self::Auth | Self::Select | Self::SetName, Answer::Text(b"OK")) => Ok(()),
            (Self::Hello, Answer::Error(text)) => Err(hello_refused(text).into()),
            (Self::Auth | Self::Select, Answer::Error(text)) => Err(ServerError::classify(text).into()),
            // A name is for people who look at CLIENT LIST: nothing depends on it.
            (Self::SetName, Answer::Error(_)) => Ok(()),
            (Self::ClientId, Answer::Int(id)) => {
                hello.client_id = Some(*id);
                Ok(())
            }
            (Self::ClientId, Answer::Error(_)) => Ok(()),
            (Self::Info, Answer::Text(_) | Answer::Error(_)) => {
                if let Answer::Text(text) = answer
                    && ["redis_mode", "server_mode"].iter().any(|name| field(text, name) == Some("cluster"))
                {
                    return Err(cluster("INFO says redis_mode cluster").into());
                }
                hello.server = Some(ServerInfo::read(answer));
                Ok(())
            }
            (_, _) => Err(Fault::Protocol(Breach::WrongReply).into()),
        }
    }
}

/// A server that does not know `HELLO`, or not this version, answers in many ways; a refused login says so itself.
fn hello_refused(text: &str) -> ServerError {
    let error = ServerError::classify(text);
    let unknown = text.starts_with("NOPROTO") || text.starts_with("ERR");
    if !unknown || error.class == ErrorClass::Transient {
        return error;
    }
    let text = format!("RESP3 is not available, use protocol=resp2 ({})", error.text);
    ServerError { class: ErrorClass::Refused, ..ServerError::classify(&text) }
}

/// A field of what `INFO` answers.
fn field<'a>(info: &'a [u8], name: &str) -> Option<&'a str> {
    info.split(|b| *b == b'\n').find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        core::str::from_utf8(value.trim_ascii()).ok()
    })
}

/// Whether the answer to `HELLO` tells of cluster mode.
fn says_cluster(map: &[u8]) -> bool {
    const MODE: &[u8] = b"mode\r\n";
    let mut fields = map.windows(MODE.len()).enumerate().filter(|(_, name)| *name == MODE);
    fields.any(|(at, _)| {
        let value = &map[at + MODE.len()..];
        value.starts_with(b"$7\r\ncluster\r\n") || value.starts_with(b"+cluster\r\n")
    })
}

/// The keys of one lock lie in different slots of a cluster, and on different servers: nothing may be taken there.
fn cluster(how: &str) -> ServerError {
    ServerError { class: ErrorClass::Refused, text: crate::lock::printable(how, server_error::NO_CLUSTER) }
}

impl ServerInfo {
    /// What an answer to `INFO server` says.
    pub(super) fn read(answer: &Answer<'_>) -> Result<Self, ServerError> {
        if let Answer::Error(text) = answer {
            return Err(ServerError::classify(text));
        }
        Self::parse(if let Answer::Text(text) = answer { text } else { b"" })
    }

    /// Reads what `INFO server` answers: lines `field:value`, see <https://redis.io/docs/latest/commands/info/>.
    fn parse(text: &[u8]) -> Result<Self, ServerError> {
        let run_id = field(text, "run_id").filter(|id| (1..=64).contains(&id.len()));
        let uptime = field(text, "uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        match (run_id, uptime) {
            (Some(run_id), Some(uptime)) => Ok(Self { run_id: run_id.into(), uptime: Duration::from_secs(uptime) }),
            (None, _) | (_, None) => Err(ServerError::classify("INFO server tells no run_id and uptime_in_seconds")),
        }
    }
}

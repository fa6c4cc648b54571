//! The settings and outputs of the connection of a session.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::id::{CallId, ConnId};
use crate::lock::{Backoff, Cause, CredentialsRequest};
use crate::url::{Login, Target};
use crate::zookeeper::codec::{MAX_FRAME, WatcherEvent};
use crate::zookeeper::request::{Reply, SessionReport};

/// Limits on what a server may send, and on what is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Size of a received frame, in bytes.
    pub frame: usize,
    /// Encoded bytes that wait for the socket. One request may exceed it.
    pub outgoing: usize,
    /// Encoded requests without a reply. Further requests wait in the client.
    pub in_flight: usize,
}

impl Limits {
    pub(super) const DEFAULT: Self = Self { frame: MAX_FRAME, outgoing: 64 * 1024, in_flight: 1024 };
}

impl Default for Limits {
    /// 4 MiB per frame, 64 KiB outgoing, 1 024 requests in flight.
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Configuration of a [`Pipe`](super::Pipe).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipeConfig {
    /// The servers of the ensemble.
    pub servers: Vec<Target>,
    /// The user of the ACLs, if any.
    pub login: Login,
    /// Whether the host supplies the login.
    pub request_credentials: bool,
    /// The session timeout to request. The server may grant another one.
    pub timeout: Duration,
    /// The tick of the servers. At most eight contacts are reported per tick. A reply may take at
    /// most half of what is left of the granted timeout after two ticks, also while a session is
    /// continued.
    pub tick: Duration,
    /// The longest time without a request: then the pipe pings. At most a tick.
    // ZK1
    pub ping_after: Duration,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// How long a request may wait for the connection. The connection ends when replies are
    /// expected and nothing has arrived for this long, or for four times as long as recent replies
    /// took. Where all servers were silent for so long, the time doubles until a connection has
    /// lasted that long. At most eight times this value.
    pub request_timeout: Duration,
    /// The pause before the first server is tried again after all have failed.
    pub reconnect: Backoff,
    /// Limits on what the server may send.
    pub limits: Limits,
    /// The generation number of the first connection's id. The ranges of a client's pipes must not
    /// overlap.
    pub generation: u64,
}

/// An output of a [`Pipe`](super::Pipe), for the host or the hub.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the session"]
pub enum PipeOutput {
    /// Open a connection to this server. Then report `handle_connected` or `handle_disconnected`.
    Connect(ConnId, Box<Target>),
    /// Supply credentials for this connection by `handle_credentials`.
    Credentials(ConnId, Box<CredentialsRequest>),
    /// Close this connection, or stop opening it. Nothing needs to be reported. The cause is that
    /// of a failure, for a log.
    Disconnect(ConnId, Option<Cause>),
    /// A report of the session.
    Session(SessionReport),
    /// The reply to a `send`. Each `send` gets exactly one.
    Reply {
        /// The call that it belongs to.
        call: CallId,
        /// The reply.
        reply: Reply,
    },
    /// A watch was triggered.
    Event(WatcherEvent),
}

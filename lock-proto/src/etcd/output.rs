//! Outputs of the client to its host.

use alloc::boxed::Box;

use super::rpc::{Rpc, RpcId, StreamId, StreamSend};
use super::url::Endpoint;
use crate::id::{ConnId, LockId, NodeId};
use crate::lock::{Cause, CredentialsRequest, Event, OperationEvent, OperationId};
use crate::url::Secret;

/// What the host must do, in order. The enum is exhaustive, so that no host misses a new variant.
///
/// A *connection* is one HTTP/2 connection, which carries calls and streams. HTTP/2 and gRPC are up
/// to the host, which reports results with the `handle_` methods of `Client`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Open an HTTP/2 connection, then report `handle_connected` or `handle_disconnected`. Resolve
    /// the host name again each time. The host pings an idle connection to detect a dead peer.
    Connect {
        /// The member to connect to.
        node: NodeId,
        /// The id of the new connection.
        conn: ConnId,
        /// The member's address now.
        endpoint: Box<Endpoint>,
    },
    /// Supply credentials for this connection by `handle_credentials`. If the same connection
    /// requests again, only the latest request counts. Occurs only with
    /// [`Config::request_credentials`](super::Config::request_credentials) or a
    /// [`password_file`](crate::Login::password_file).
    Credentials {
        /// The connection.
        conn: ConnId,
        /// What is requested.
        request: Box<CredentialsRequest>,
    },
    /// Close this connection, or stop opening it, with all its calls and streams. Report nothing.
    Disconnect {
        /// The connection.
        conn: ConnId,
        /// Why it failed, for a log; `None` if the client no longer needs it.
        why: Option<Cause>,
    },
    /// Make a unary call, then report `handle_reply`. The client itself limits the time it takes.
    Call {
        /// The id of the call, which includes its connection.
        rpc: RpcId,
        /// The call.
        request: Rpc,
        /// The metadata entry `token`, if any.
        token: Option<Secret>,
    },
    /// Open a stream, and report `handle_message` and `handle_stream_ended`. The metadata entry
    /// `hasleader: true` makes the server end the stream when its member loses the leader.
    Open {
        /// The id of the stream, which includes its connection and method.
        stream: StreamId,
        /// The metadata entry `token`, if any.
        token: Option<Secret>,
    },
    /// Send a message on an open stream.
    Send {
        /// The stream.
        stream: StreamId,
        /// The message.
        message: StreamSend,
    },
    /// End a stream. Report nothing.
    Close {
        /// The stream.
        stream: StreamId,
    },
    /// Report an event of a lock or a candidacy.
    Event {
        /// The lock or candidacy.
        lock: LockId,
        /// The event.
        event: Event,
    },
    /// Report an event of an operation.
    Operation {
        /// The operation.
        id: OperationId,
        /// The event.
        event: OperationEvent,
    },
    /// The shutdown has finished, and every connection is closed.
    Stopped {
        /// Keys and leases whose removal was not confirmed. They may remain until their TTL ends.
        unreleased: u32,
    },
}

//! What the client asks of its host.

use super::rpc::{Rpc, RpcId, StreamId, StreamSend};
use crate::id::{ConnId, LockId, NodeId};
use crate::lock::{ElectionEvent, Event, QueryId};
use crate::url::Secret;

/// What the host has to do, in this order. Exhaustive on purpose: a new duty must not go unnoticed.
///
/// HTTP/2 and gRPC are the host's: a *connection* is one HTTP/2 connection, calls and streams go over it. What it reports is one of
/// the `handle_` facts of `Client`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Open an HTTP/2 connection, then report `handle_connected` or `handle_disconnected`. Resolve the name anew each time. The host
    /// pings an idle connection, so that a dead peer is noticed.
    Connect {
        /// Where to: see `Client::endpoint`.
        node: NodeId,
        /// Its name from now on.
        conn: ConnId,
    },
    /// Close this connection (or stop opening it), with all its calls and streams. Nothing needs to be reported.
    Disconnect {
        /// The connection.
        conn: ConnId,
    },
    /// Make a unary call, then report `handle_reply`. It needs no timeout: the machine closes the connection if it takes too long.
    Call {
        /// Its name; tells the connection too.
        rpc: RpcId,
        /// The call.
        request: Rpc,
        /// Goes into the metadata `token`, if there is one.
        token: Option<Secret>,
    },
    /// Open a stream, then report what comes by `handle_message` and its end by `handle_stream_ended`. The metadata
    /// `hasleader: true` lets the server end the stream when its member has lost the leader.
    Open {
        /// Its name; tells the connection and the method too.
        stream: StreamId,
        /// Goes into the metadata `token`, if there is one.
        token: Option<Secret>,
    },
    /// Send a message on a stream that was opened before.
    Send {
        /// The stream.
        stream: StreamId,
        /// The message.
        message: StreamSend,
    },
    /// End a stream. Nothing needs to be reported.
    Close {
        /// The stream.
        stream: StreamId,
    },
    /// Tell the owner of this acquisition or candidacy.
    Event {
        /// Which one.
        lock: LockId,
        /// What happened.
        event: Event,
    },
    /// Tell whoever asks about or observes an election.
    Election {
        /// Which question or observation.
        query: QueryId,
        /// What was learnt.
        event: ElectionEvent,
    },
    /// The shutdown is over, every connection is closed.
    Stopped {
        /// Keys and leases that may be left, until their TTL ends: their ends were not confirmed in time.
        unreleased: u32,
    },
}

//! Requests of the locks to the server of a session, their results, and reports of the session.

use core::time::Duration;

use super::codec::{ErrorCode, Op, ReplyBody};
use crate::lock::{self, Answer, Cause, ErrorClass, ServerError, SessionId, printable};
use crate::time::Instant;

/// A request on a session. The server executes the requests of a session in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The session.
    pub session: SessionId,
    /// The operation.
    pub op: Op,
}

/// The result of a request. A write on the next connection of the session decides an unknown one.
pub type Reply = lock::Reply<ReplyBody, ErrorCode>;

impl From<&ErrorCode> for Answer {
    fn from(code: &ErrorCode) -> Self {
        Self::Rejected(server_error(*code))
    }
}

/// What the connection of a session reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionReport {
    /// The session was created, or continues on a new connection, and the login was accepted. All
    /// watches are gone. If it continues, the hub sends nothing but a transaction until one is
    /// answered with its results.
    Up {
        /// When it was requested.
        emitted: Instant,
        /// The session timeout that the server granted.
        timeout: Duration,
        /// The session's id on the server.
        owner: i64,
    },
    /// The connection failed, or could not be opened. The session is continued on another one. The
    /// replies to all outstanding requests follow.
    Down(Cause),
    /// The server replied to a ping or any other request that left at this instant. Report this at
    /// least once a tick; of more than eight in a tick, the hub ignores some. Without it, sessions
    /// are opened again and again: a write only proves the session as far as the servers have heard
    /// of it before.
    // ZK1
    Contact(Instant),
    /// The server refuses the session as expired. It has ended it and deleted its nodes, or it is
    /// about to: a leader that has proposed the end may not have a majority for it. The last
    /// report.
    Expired,
    /// The answer to [`SessionOutput::End`](super::SessionOutput::End). The last report.
    Ended {
        /// The session and its nodes are gone. Otherwise they end with the session's timeout.
        confirmed: bool,
    },
}

/// Classifies an error code. What leaves open whether the request was executed ends the connection.
pub(crate) const fn class(code: ErrorCode) -> ErrorClass {
    match code {
        ErrorCode::NO_NODE
        | ErrorCode::NODE_EXISTS
        | ErrorCode::BAD_VERSION
        | ErrorCode::NOT_EMPTY
        | ErrorCode::NO_WATCHER
        | ErrorCode::THROTTLED_OP => ErrorClass::Transient,
        ErrorCode::SESSION_MOVED | ErrorCode::NOT_READ_ONLY | ErrorCode::SESSION_EXPIRED => ErrorClass::Reconnect,
        ErrorCode::UNIMPLEMENTED
        | ErrorCode::BAD_ARGUMENTS
        | ErrorCode::MARSHALLING_ERROR
        | ErrorCode::NO_AUTH
        | ErrorCode::NO_CHILDREN_FOR_EPHEMERALS
        | ErrorCode::INVALID_ACL
        | ErrorCode::AUTH_FAILED
        | ErrorCode::EPHEMERAL_ON_LOCAL_SESSION
        | ErrorCode::SESSION_CLOSED_REQUIRE_AUTH
        | ErrorCode::QUOTA_EXCEEDED
        | ErrorCode::REPLY_TOO_LONG => ErrorClass::Refused,
        ErrorCode(_) => ErrorClass::Unclear,
    }
}

pub(crate) fn server_error(code: ErrorCode) -> ServerError {
    ServerError { class: class(code), text: printable(&alloc::format!("{code}"), "") }
}

//! Remote procedure calls as the host sees them: what to send over a channel, and what comes back.

use alloc::string::String;
use core::fmt;

use super::message::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest,
    TxnResponse, WatchRequest, WatchResponse,
};
use crate::id::ConnId;

/// One unary call over one connection. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RpcId {
    pub(crate) conn: ConnId,
    pub(crate) serial: u64,
}

impl RpcId {
    /// For a client of your own: the caller sees to it that no `serial` is used twice.
    #[must_use]
    pub const fn new(conn: ConnId, serial: u64) -> Self {
        Self { conn, serial }
    }

    /// The connection that carries it.
    pub const fn conn(self) -> ConnId {
        self.conn
    }
}

/// One stream over one connection. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub(crate) conn: ConnId,
    pub(crate) kind: StreamKind,
    pub(crate) serial: u64,
}

impl StreamId {
    /// For a client of your own: the caller sees to it that no `serial` is used twice.
    #[must_use]
    pub const fn new(conn: ConnId, kind: StreamKind, serial: u64) -> Self {
        Self { conn, kind, serial }
    }

    /// The connection that carries it.
    pub const fn conn(self) -> ConnId {
        self.conn
    }

    /// What it is for.
    pub const fn kind(self) -> StreamKind {
        self.kind
    }
}

/// The two bidirectional streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamKind {
    /// `/etcdserverpb.Lease/LeaseKeepAlive`.
    KeepAlive,
    /// `/etcdserverpb.Watch/Watch`. One stream carries all watches.
    Watch,
}

impl StreamKind {
    /// The path of the method.
    pub const fn path(self) -> &'static str {
        match self {
            Self::KeepAlive => "/etcdserverpb.Lease/LeaseKeepAlive",
            Self::Watch => "/etcdserverpb.Watch/Watch",
        }
    }
}

/// A unary call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rpc {
    /// `/etcdserverpb.KV/Range`. Linearizable.
    Range(RangeRequest),
    /// `/etcdserverpb.KV/Txn`.
    Txn(TxnRequest),
    /// `/etcdserverpb.Lease/LeaseGrant`.
    Grant(LeaseGrantRequest),
    /// `/etcdserverpb.Lease/LeaseRevoke`.
    Revoke(LeaseRevokeRequest),
    /// `/etcdserverpb.Auth/Authenticate`.
    Authenticate(AuthenticateRequest),
}

impl Rpc {
    /// The path of the method.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Range(_) => "/etcdserverpb.KV/Range",
            Self::Txn(_) => "/etcdserverpb.KV/Txn",
            Self::Grant(_) => "/etcdserverpb.Lease/LeaseGrant",
            Self::Revoke(_) => "/etcdserverpb.Lease/LeaseRevoke",
            Self::Authenticate(_) => "/etcdserverpb.Auth/Authenticate",
        }
    }
}

/// The answer to a unary call: of the same kind as the call, or the machine takes it for a broken protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RpcReply {
    /// To [`Rpc::Range`].
    Range(RangeResponse),
    /// To [`Rpc::Txn`].
    Txn(TxnResponse),
    /// To [`Rpc::Grant`].
    Grant(LeaseGrantResponse),
    /// To [`Rpc::Revoke`].
    Revoke(LeaseRevokeResponse),
    /// To [`Rpc::Authenticate`].
    Authenticate(AuthenticateResponse),
}

/// A message to a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamSend {
    /// To [`StreamKind::KeepAlive`].
    KeepAlive(LeaseKeepAliveRequest),
    /// To [`StreamKind::Watch`].
    Watch(WatchRequest),
}

/// A message from a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamReceived {
    /// From [`StreamKind::KeepAlive`].
    KeepAlive(LeaseKeepAliveResponse),
    /// From [`StreamKind::Watch`].
    Watch(WatchResponse),
}

/// How a call or a stream ended if not by a message: the status of gRPC.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Status {
    /// Its code.
    pub code: Code,
    /// The server's words, percent-decoded, or the host's own. May be anything, of any length.
    pub message: String,
}

impl Status {
    /// A status of this code and with these words.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:?})", self.code, self.message)
    }
}

/// The codes of gRPC (`google.rpc.Code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are those of google.rpc.Code, which explains them")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; an unknown number is [`Code::Unknown`], as gRPC has it.
    #[must_use]
    pub const fn from_number(number: i32) -> Self {
        const ALL: [Code; 17] = [
            Code::Ok,
            Code::Cancelled,
            Code::Unknown,
            Code::InvalidArgument,
            Code::DeadlineExceeded,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        if 0 <= number && number < ALL.len() as i32 { ALL[number as usize] } else { Self::Unknown }
    }
}

//! Remote procedure calls as the host sees them: requests to send, and replies.

use alloc::string::String;
use core::fmt;

use super::message::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, MemberListRequest, MemberListResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::id::ConnId;

/// One unary call on one connection. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RpcId {
    pub(crate) conn: ConnId,
    pub(crate) serial: u64,
}

impl RpcId {
    /// Creates an id, for a client of your own. The caller must not use a `serial` twice.
    #[must_use]
    pub const fn new(conn: ConnId, serial: u64) -> Self {
        Self { conn, serial }
    }

    /// Returns the number of the call.
    pub const fn serial(self) -> u64 {
        self.serial
    }

    /// Returns the connection that carries the call.
    pub const fn conn(self) -> ConnId {
        self.conn
    }
}

/// One stream on one connection. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub(crate) conn: ConnId,
    pub(crate) kind: StreamKind,
    pub(crate) serial: u64,
}

impl StreamId {
    /// Creates an id, for a client of your own. The caller must not use a `serial` twice.
    #[must_use]
    pub const fn new(conn: ConnId, kind: StreamKind, serial: u64) -> Self {
        Self { conn, kind, serial }
    }

    /// Returns the number of the stream.
    pub const fn serial(self) -> u64 {
        self.serial
    }

    /// Returns the connection that carries the stream.
    pub const fn conn(self) -> ConnId {
        self.conn
    }

    /// Returns the kind of the stream.
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
    /// Returns the path of the method.
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
    /// `/etcdserverpb.Cluster/MemberList`.
    MemberList(MemberListRequest),
}

impl Rpc {
    /// Returns the path of the method.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Range(_) => "/etcdserverpb.KV/Range",
            Self::Txn(_) => "/etcdserverpb.KV/Txn",
            Self::Grant(_) => "/etcdserverpb.Lease/LeaseGrant",
            Self::Revoke(_) => "/etcdserverpb.Lease/LeaseRevoke",
            Self::Authenticate(_) => "/etcdserverpb.Auth/Authenticate",
            Self::MemberList(_) => "/etcdserverpb.Cluster/MemberList",
        }
    }
}

/// The reply to a unary call. A reply of another kind than the call is a protocol error.
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
    /// To [`Rpc::MemberList`].
    MemberList(MemberListResponse),
}

/// A message sent on a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamSend {
    /// On [`StreamKind::KeepAlive`].
    KeepAlive(LeaseKeepAliveRequest),
    /// On [`StreamKind::Watch`].
    Watch(WatchRequest),
}

/// A message received on a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamReceived {
    /// On [`StreamKind::KeepAlive`].
    KeepAlive(LeaseKeepAliveResponse),
    /// On [`StreamKind::Watch`].
    Watch(WatchResponse),
}

/// The gRPC status that ended a call or a stream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Status {
    /// The status code.
    pub code: Code,
    /// The message, percent-decoded, from the server or the host. Content and length are arbitrary.
    pub message: String,
}

impl Status {
    /// Creates a status.
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

/// The gRPC status codes (`google.rpc.Code`).
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
    /// Returns the code with this number. Unknown numbers are [`Code::Unknown`], as in gRPC.
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

impl From<LeaseGrantRequest> for Rpc {
    fn from(request: LeaseGrantRequest) -> Self {
        Self::Grant(request)
    }
}

impl From<LeaseRevokeRequest> for Rpc {
    fn from(request: LeaseRevokeRequest) -> Self {
        Self::Revoke(request)
    }
}

impl From<RangeRequest> for Rpc {
    fn from(request: RangeRequest) -> Self {
        Self::Range(request)
    }
}

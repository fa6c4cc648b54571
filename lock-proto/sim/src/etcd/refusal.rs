//! Errors with the codes and texts of etcd 3.4 (`etcdserver/api/v3rpc/rpctypes`).

use alloc::format;
use alloc::string::String;

use lock_proto::etcd::{Code, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RefusalStatus(Code, &'static str);

impl RefusalStatus {
    pub(super) const EMPTY_KEY: Self = Self(Code::InvalidArgument, "etcdserver: key is not provided");
    /// Also the reply to an empty operation.
    pub(super) const KEY_NOT_FOUND: Self = Self(Code::InvalidArgument, "etcdserver: key not found");
    pub(super) const VALUE_PROVIDED: Self = Self(Code::InvalidArgument, "etcdserver: value is provided");
    pub(super) const LEASE_PROVIDED: Self = Self(Code::InvalidArgument, "etcdserver: lease is provided");
    pub(super) const TOO_MANY_OPS: Self = Self(Code::InvalidArgument, "etcdserver: too many operations in txn request");
    pub(super) const DUPLICATE_KEY: Self =
        Self(Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
    pub(super) const TOO_LARGE: Self = Self(Code::InvalidArgument, "etcdserver: request is too large");
    pub(super) const COMPACTED: Self = Self(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
    pub(super) const FUTURE_REVISION: Self =
        Self(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
    pub(super) const NO_SPACE: Self = Self(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    pub(super) const TOO_MANY_REQUESTS: Self = Self(Code::ResourceExhausted, "etcdserver: too many requests");

    pub(super) const LEASE_NOT_FOUND: Self = Self(Code::NotFound, "etcdserver: requested lease not found");
    pub(super) const LEASE_EXISTS: Self = Self(Code::FailedPrecondition, "etcdserver: lease already exists");
    pub(super) const LEASE_TTL_TOO_LARGE: Self = Self(Code::OutOfRange, "etcdserver: too large lease TTL");

    pub(super) const AUTH_NOT_ENABLED: Self =
        Self(Code::FailedPrecondition, "etcdserver: authentication is not enabled");
    pub(super) const AUTH_FAILED: Self =
        Self(Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
    pub(super) const USER_EMPTY: Self = Self(Code::InvalidArgument, "etcdserver: user name is empty");
    pub(super) const PERMISSION_DENIED: Self = Self(Code::PermissionDenied, "etcdserver: permission denied");
    pub(super) const INVALID_TOKEN: Self = Self(Code::Unauthenticated, "etcdserver: invalid auth token");

    pub(super) const NO_LEADER: Self = Self(Code::Unavailable, "etcdserver: no leader");
    pub(super) const LEADER_CHANGED: Self = Self(Code::Unavailable, "etcdserver: leader changed");
    pub(super) const TIMED_OUT: Self = Self(Code::Unavailable, "etcdserver: request timed out");
    /// For a proposal that timed out without a known leader. A Go error, which has no code.
    pub(super) const DEADLINE_EXCEEDED: Self = Self(Code::Unknown, "context deadline exceeded");

    pub(super) fn status(self) -> Status {
        Status::new(self.0, self.1)
    }

    /// The cancel reason of a watch: the status as Go prints it.
    pub(super) fn reason(self) -> String {
        format!("rpc error: code = {:?} desc = {}", self.0, self.1)
    }
}

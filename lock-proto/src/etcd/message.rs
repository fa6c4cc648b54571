//! The messages of etcd's gRPC API that this library uses, with only the fields it uses.
//!
//! Names, field numbers and types follow `rpc.proto`, `kv.proto` and `auth.proto` of the public API
//! (etcd 3.4 and later). Undeclared fields are skipped. Enumerations are integer constants.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use prost::{Message, Oneof};

/// Header of every response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ResponseHeader {
    /// The member that answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Revision of the store when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Revision of its creation.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// Revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// Number of writes since its creation.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease it is attached to; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// [`RangeRequest::sort_order`]: descending.
pub const DESCEND: i32 = 2;
/// [`RangeRequest::sort_order`]: ascending.
pub const ASCEND: i32 = 1;
/// [`RangeRequest::sort_target`]: by creation revision.
pub const BY_CREATE: i32 = 2;

/// Reads keys.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RangeRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// End of the range, exclusive; empty for a single key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Maximum number of keys returned; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// Read the store as it was at this revision; 0 for the latest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// 0 none, [`ASCEND`], [`DESCEND`].
    #[prost(int32, tag = "5")]
    pub sort_order: i32,
    /// 0 the key, [`BY_CREATE`].
    #[prost(int32, tag = "6")]
    pub sort_target: i32,
    /// Read from the member alone, which may lag behind.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
    /// Omits the values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Returns only the number of keys.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    /// Only keys changed at this revision or later; 0 for all.
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    /// Only keys changed at this revision or before; 0 for all.
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
    /// Only keys created at this revision or later; 0 for all.
    #[prost(int64, tag = "12")]
    pub min_create_revision: i64,
    /// Only keys created at this revision or before; 0 for all.
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

/// Response to [`RangeRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RangeResponse {
    /// See [`ResponseHeader`]. Inside a transaction it has no revision.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// There are more keys than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// Number of keys in the range, regardless of the limit.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease to attach the key to; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Return the key as it was before.
    #[prost(bool, tag = "4")]
    pub prev_kv: bool,
    /// Keep the value. The key must exist.
    #[prost(bool, tag = "5")]
    pub ignore_value: bool,
    /// Keep the lease. The key must exist.
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

/// Response to [`PutRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PutResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The key as it was before, if the request wanted it.
    #[prost(message, optional, tag = "2")]
    pub prev_kv: Option<KeyValue>,
}

/// Deletes keys.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct DeleteRangeRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// End of the range, exclusive; empty for a single key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Return the deleted keys.
    #[prost(bool, tag = "3")]
    pub prev_kv: bool,
}

/// Response to [`DeleteRangeRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct DeleteRangeResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Number of deleted keys.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
    /// The deleted keys, if the request wanted them.
    #[prost(message, repeated, tag = "3")]
    pub prev_kvs: Vec<KeyValue>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RequestOp {
    /// The operation.
    #[prost(oneof = "Op", tags = "1, 2, 3, 4")]
    pub request: Option<Op>,
}

/// The operations of [`RequestOp`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum Op {
    /// Read.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Write.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Delete.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
    /// A nested transaction. Its conditions see the store as it was before the outer transaction.
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// The result of one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ResponseOp {
    /// The result.
    #[prost(oneof = "OpResponse", tags = "1, 2, 3, 4")]
    pub response: Option<OpResponse>,
}

/// The results of [`ResponseOp`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum OpResponse {
    /// Result of a read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// Result of a write.
    #[prost(message, tag = "2")]
    Put(PutResponse),
    /// Result of a delete.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
    /// Result of a nested transaction. Its header has no revision.
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// A condition of a transaction. An absent key compares as if its revisions were 0.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Compare {
    /// 0 equal, 1 greater, 2 less, 3 not equal.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// The compared field: [`COMPARE_VERSION`], [`COMPARE_CREATE`], [`COMPARE_MOD`],
    /// [`COMPARE_VALUE`] or [`COMPARE_LEASE`].
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key, or the first of a range. The condition must hold for each key in the range.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// The value to compare with.
    #[prost(oneof = "CompareWith", tags = "4, 5, 6, 7, 8")]
    pub with: Option<CompareWith>,
    /// End of the range, exclusive; empty for a single key.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
}

/// [`Compare::target`]: the number of changes since the creation.
pub const COMPARE_VERSION: i32 = 0;
/// [`Compare::target`]: the creation revision.
pub const COMPARE_CREATE: i32 = 1;
/// [`Compare::target`]: the revision of the last change.
pub const COMPARE_MOD: i32 = 2;
/// [`Compare::target`]: the value.
pub const COMPARE_VALUE: i32 = 3;
/// [`Compare::target`]: the lease.
pub const COMPARE_LEASE: i32 = 4;

/// The value a [`Compare`] compares with.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum CompareWith {
    /// A version.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// A creation revision.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// A modification revision.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// A value.
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    /// A lease.
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// A transaction: runs `success` if all conditions hold, else `failure`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// The operations if all conditions hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// The operations otherwise.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// Response to [`TxnRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct TxnResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The results of the operations, in order.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Grants a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseGrantRequest {
    /// The requested TTL, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Lease id, chosen by the client; 0 lets the server choose.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// Response to [`LeaseGrantRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseGrantResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The granted TTL, in seconds. The server enforces a minimum.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Revokes a lease, which deletes its keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseRevokeRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Response to [`LeaseRevokeRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseRevokeResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Renews a lease, on the keep-alive stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Response to [`LeaseKeepAliveRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseKeepAliveResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The remaining TTL, in seconds; 0 or less if the lease does not exist.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// A message sent on the watch stream.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchRequest {
    /// The request.
    #[prost(oneof = "WatchRequestUnion", tags = "1, 2, 3")]
    pub request: Option<WatchRequestUnion>,
}

/// The requests of [`WatchRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum WatchRequestUnion {
    /// Open a watch.
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    /// Cancel a watch.
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
    /// Report the revision up to which all watches of the stream have received all events.
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

/// Opens a watch.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchCreateRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// End of the range, exclusive; empty for a single key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The first revision to report; 0 for future changes only.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Reports the store's revision from time to time while there are no events.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Events to omit: [`NO_PUT`], [`NO_DELETE`].
    #[prost(int32, repeated, tag = "5")]
    pub filters: Vec<i32>,
    /// Report each key as it was before the event.
    #[prost(bool, tag = "6")]
    pub prev_kv: bool,
    /// Id of the watch on its stream, chosen by the client; 0 lets the server choose.
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
    /// Allows the server to split large messages.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// [`WatchCreateRequest::filters`]: omit writes.
pub const NO_PUT: i32 = 0;
/// [`WatchCreateRequest::filters`]: omit deletions.
pub const NO_DELETE: i32 = 1;

/// Cancels a watch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct WatchCancelRequest {
    /// Id of the watch on its stream.
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

/// See [`WatchRequestUnion::Progress`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct WatchProgressRequest {}

/// A message received on the watch stream.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Id of the watch; -1 in reply to [`WatchRequestUnion::Progress`] or if it failed to open.
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    /// The watch was opened.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// The watch has ended, or failed to open.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The oldest available revision, if the watch ended because its start was compacted.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why the watch ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Another message with events of the same revision follows.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// The events.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

/// [`WatchEvent::kind`]: the key was deleted or its lease ended. Otherwise it was written.
pub const DELETED: i32 = 1;

/// A change of a key (`Event` in `kv.proto`).
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchEvent {
    /// 0 for a write, or [`DELETED`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The changed key. After a deletion, only its name and the revision of the deletion are set.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
    /// The key as it was before, if the watch wants it and it is not compacted.
    #[prost(message, optional, tag = "3")]
    pub prev_kv: Option<KeyValue>,
}

/// Logs in. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
#[prost(skip_debug)]
pub struct AuthenticateRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The password.
    #[prost(string, tag = "2")]
    pub password: String,
}

impl core::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Response to [`AuthenticateRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
#[prost(skip_debug)]
pub struct AuthenticateResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The token that later requests carry in the metadata entry `token`.
    #[prost(string, tag = "2")]
    pub token: String,
}

impl core::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}

/// Lists the members of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct MemberListRequest {}

/// Response to [`MemberListRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct MemberListResponse {
    /// Which cluster answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ClusterHeader>,
    /// The members.
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

/// The header of a response, with only what tells clusters apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ClusterHeader {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
}

/// A member of a cluster.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Member {
    /// Where it serves clients, as URLs. Empty until it has started.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// It does not vote, and refuses most requests.
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

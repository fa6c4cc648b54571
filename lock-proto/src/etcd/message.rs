//! The messages of etcd's gRPC API that this library uses, with only the fields it uses.
//!
//! Names, field numbers and types are those of `rpc.proto`, `kv.proto` and `auth.proto` of the public API (etcd 3.4 and later);
//! a field that is not declared here is skipped when it is read. Enumerations are plain numbers, as constants.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use prost::{Message, Oneof};

/// What every reply carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ResponseHeader {
    /// The member that answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The store's revision when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key and what is stored under it.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The revision of its creation.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease it hangs on; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// [`RangeRequest::sort_order`]: largest first.
pub const DESCEND: i32 = 2;
/// [`RangeRequest::sort_order`]: smallest first.
pub const ASCEND: i32 = 1;
/// [`RangeRequest::sort_target`]: by the revision of creation.
pub const BY_CREATE: i32 = 2;

/// Reads keys.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RangeRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends, exclusive; empty for the one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The most keys that are wanted; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// 0 none, [`ASCEND`], [`DESCEND`].
    #[prost(int32, tag = "5")]
    pub sort_order: i32,
    /// 0 the key, [`BY_CREATE`].
    #[prost(int32, tag = "6")]
    pub sort_target: i32,
    /// Leaves the values out.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Gives the number of keys alone.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    /// Only keys created at this revision or before; 0 for all.
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

/// The answer to [`RangeRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RangeResponse {
    /// See [`ResponseHeader`]. Without a revision inside a transaction.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// How many keys the range has, whatever the limit.
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
    /// The lease that the key is to hang on; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// The answer to [`PutRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct PutResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Deletes keys.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct DeleteRangeRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends, exclusive; empty for the one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
}

/// The answer to [`DeleteRangeRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct DeleteRangeResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// How many keys were deleted.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RequestOp {
    /// Which one.
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
    /// A transaction within the transaction. Its conditions look at the store as it was before the whole.
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// What one operation of a transaction gave.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ResponseOp {
    /// Of which one.
    #[prost(oneof = "OpResponse", tags = "1, 2, 3, 4")]
    pub response: Option<OpResponse>,
}

/// The results of [`ResponseOp`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum OpResponse {
    /// Read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// Written.
    #[prost(message, tag = "2")]
    Put(PutResponse),
    /// Deleted.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
    /// A transaction's. Its header has no revision.
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// A condition of a transaction. An absent key compares as one whose revisions are 0.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Compare {
    /// 0: the two are equal. (Others are not used here.)
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// What is compared: [`COMPARE_CREATE`] or [`COMPARE_MOD`].
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key, or the first of a range: the condition must then hold for each key in it.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// What it is compared with.
    #[prost(oneof = "CompareWith", tags = "5, 6")]
    pub with: Option<CompareWith>,
    /// Where the range ends, exclusive; empty for the one key.
    #[prost(bytes = "bytes", tag = "64")]
    pub range_end: Bytes,
}

/// [`Compare::target`]: the revision of creation.
pub const COMPARE_CREATE: i32 = 1;
/// [`Compare::target`]: the revision of the last change.
pub const COMPARE_MOD: i32 = 2;

/// What a [`Compare`] compares with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Oneof)]
pub enum CompareWith {
    /// A revision of creation.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// A revision of the last change.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// A transaction: if all conditions hold, `success`, else `failure`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// What is done if they hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// What is done if not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The answer to [`TxnRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct TxnResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// What the operations gave, in their order.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Makes a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseGrantRequest {
    /// Life without a sign of life, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Its id, chosen by the client; 0 lets the server choose.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// The answer to [`LeaseGrantRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseGrantResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Its id.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The life that was granted, in seconds: the server has a minimum of its own.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Ends a lease, and deletes its keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseRevokeRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The answer to [`LeaseRevokeRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseRevokeResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// A sign of life for a lease, on the keep-alive stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The answer to [`LeaseKeepAliveRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct LeaseKeepAliveResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Its life from now on, in seconds; 0 or less if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// A message to the watch stream.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchRequest {
    /// What is asked for.
    #[prost(oneof = "WatchAsk", tags = "1, 2, 3")]
    pub request: Option<WatchAsk>,
}

/// The requests of [`WatchRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum WatchAsk {
    /// Open a watch.
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    /// End a watch.
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
    /// Tell the revision up to which all watches of the stream have heard everything.
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

/// Opens a watch.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchCreateRequest {
    /// The key, or the first of a range.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends, exclusive; empty for the one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The first revision that is told; 0 for what comes from now on.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Tells the store's revision now and then while nothing happens.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// What is not told: [`NO_PUT`]. (Others are not used here.)
    #[prost(int32, repeated, tag = "5")]
    pub filters: Vec<i32>,
    /// Its number on the stream, chosen by the client; 0 lets the server choose.
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
    /// The server may split what is too large for one message.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// [`WatchCreateRequest::filters`]: writes of a key.
pub const NO_PUT: i32 = 0;

/// Ends a watch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct WatchCancelRequest {
    /// Its number on the stream.
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

/// See [`WatchAsk::Progress`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct WatchProgressRequest {}

/// A message from the watch stream.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Which watch; -1 if it concerns all of them (the answer to [`WatchAsk::Progress`]) or one that could not be opened.
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    /// The watch was opened.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// The watch has ended, or could not be opened.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// If it has ended because its start was compacted away: the oldest revision that there is.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why it has ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// More of the same revision follows in another message.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// What happened.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

/// [`WatchEvent::kind`]: the key was deleted, or its lease ended. Otherwise it was written.
pub const DELETED: i32 = 1;

/// A change of a key. (`Event` in `kv.proto`.)
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchEvent {
    /// 0 written, [`DELETED`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The key as it is now; of a deleted one only its name and the revision of the deletion.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
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

/// The answer to [`AuthenticateRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Message)]
#[prost(skip_debug)]
pub struct AuthenticateResponse {
    /// See [`ResponseHeader`].
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// What later requests carry in the metadata `token`.
    #[prost(string, tag = "2")]
    pub token: String,
}

impl core::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}

//! Unary calls as a server gets them: a method's path and protobuf bytes. For programs that serve a
//! [`Cluster`] over gRPC.
//!
//! Covers the services KV and Lease, and what clients ask before they begin: `Authenticate`,
//! `MemberList`, and `Status`. The streams `Watch` and `LeaseKeepAlive` carry
//! [`StreamSend`](lock_proto::etcd::StreamSend) and [`StreamReceived`](lock_proto::etcd::StreamReceived).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use prost::Message;

use super::Cluster;
use super::refusal::RefusalStatus;
use lock_proto::Instant;
use lock_proto::etcd::message::{
    AuthenticateRequest, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseRevokeRequest,
    MemberListRequest, Op, OpResponse, PutRequest, PutResponse, RangeRequest, RequestOp, ResponseHeader, TxnRequest,
    TxnResponse,
};
use lock_proto::etcd::{Code, Rpc, RpcReply, Status};

/// A decoded unary call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnaryCall {
    /// Pass it to [`Cluster::handle_call`], and the reply to [`ReplyShape::encode`].
    Rpc(Rpc, ReplyShape),
    /// Answered already, with these bytes.
    Answered(Vec<u8>),
}

/// The message that a client expects in reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyShape {
    /// That of the call.
    Same,
    /// `PutResponse`: a put is executed as a transaction.
    Put,
    /// `DeleteRangeResponse`: a delete is executed as a transaction.
    Delete,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct CompactionRequest {
    #[prost(int64, tag = "1")]
    revision: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HeaderOnly {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TimeToLiveRequest {
    #[prost(int64, tag = "1")]
    id: i64,
    /// Return the keys, too.
    #[prost(bool, tag = "2")]
    keys: bool,
}

#[derive(Clone, PartialEq, Message)]
struct TimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    id: i64,
    /// Seconds left; -1 if there is no such lease.
    #[prost(int64, tag = "3")]
    ttl: i64,
    #[prost(int64, tag = "4")]
    granted_ttl: i64,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    keys: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct LeasesResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    leases: Vec<LeaseStatus>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LeaseStatus {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    version: String,
    /// The member id of the leader; 0 if there is none.
    #[prost(uint64, tag = "4")]
    leader: u64,
}

impl Cluster {
    /// Decodes a unary call to a member. `token` is the metadata entry of that name.
    ///
    /// # Errors
    ///
    /// The status to reply, if the method is not served, the message is malformed, or the server
    /// refuses.
    pub fn decode_call(
        &mut self,
        now: Instant,
        member: usize,
        token: Option<&str>,
        path: &str,
        body: &[u8],
    ) -> Result<UnaryCall, Status> {
        self.advance(now);
        let same = |rpc| Ok(UnaryCall::Rpc(rpc, ReplyShape::Same));
        match path {
            "/etcdserverpb.KV/Range" => same(Rpc::Range(decoded::<RangeRequest>(body)?)),
            "/etcdserverpb.KV/Txn" => same(Rpc::Txn(decoded::<TxnRequest>(body)?)),
            "/etcdserverpb.Lease/LeaseGrant" => same(Rpc::Grant(decoded::<LeaseGrantRequest>(body)?)),
            "/etcdserverpb.Lease/LeaseRevoke" => same(Rpc::Revoke(decoded::<LeaseRevokeRequest>(body)?)),
            "/etcdserverpb.Auth/Authenticate" => same(Rpc::Authenticate(decoded::<AuthenticateRequest>(body)?)),
            "/etcdserverpb.Cluster/MemberList" => same(Rpc::MemberList(decoded::<MemberListRequest>(body)?)),
            "/etcdserverpb.KV/Put" => Ok(UnaryCall::Rpc(one(Op::Put(decoded::<PutRequest>(body)?)), ReplyShape::Put)),
            "/etcdserverpb.KV/DeleteRange" => {
                Ok(UnaryCall::Rpc(one(Op::Delete(decoded::<DeleteRangeRequest>(body)?)), ReplyShape::Delete))
            }
            "/etcdserverpb.KV/Compact" => {
                let CompactionRequest { revision } = decoded(body)?;
                self.served(member, token)?;
                self.compact(now, revision)?;
                Ok(UnaryCall::Answered(HeaderOnly { header: self.header(member) }.encode_to_vec()))
            }
            "/etcdserverpb.Lease/LeaseTimeToLive" => {
                let request = decoded(body)?;
                self.served(member, token)?;
                Ok(UnaryCall::Answered(self.time_to_live(member, request).encode_to_vec()))
            }
            "/etcdserverpb.Lease/LeaseLeases" => {
                self.served(member, token)?;
                let leases = self.store.leases().iter().map(|(id, _)| LeaseStatus { id }).collect();
                Ok(UnaryCall::Answered(LeasesResponse { header: self.header(member), leases }.encode_to_vec()))
            }
            "/etcdserverpb.Maintenance/Status" => {
                let leader = self.leader.map_or(0, |leader| self.members[leader].id);
                let response = StatusResponse { header: self.header(member), version: "3.4.23".into(), leader };
                Ok(UnaryCall::Answered(response.encode_to_vec()))
            }
            _ => Err(Status::new(Code::Unimplemented, "not simulated")),
        }
    }

    /// Refuses a request that is not executed as a call, unless its member has a leader.
    fn served(&self, member: usize, token: Option<&str>) -> Result<(), Status> {
        if !self.has_leader(member) {
            return Err(RefusalStatus::NO_LEADER.status());
        }
        self.caller(member, token).map(drop).map_err(RefusalStatus::status)
    }

    fn time_to_live(&self, member: usize, TimeToLiveRequest { id, keys }: TimeToLiveRequest) -> TimeToLiveResponse {
        let header = self.header(member);
        let Some(lease) = self.store.leases().get(id) else {
            return TimeToLiveResponse { header, id, ttl: -1, ..TimeToLiveResponse::default() };
        };
        let keys = if keys { lease.keys.iter().cloned().collect() } else { Vec::new() };
        let left = i64::try_from(lease.expires.since(self.now).as_secs()).unwrap_or(i64::MAX);
        TimeToLiveResponse { header, id, ttl: left, granted_ttl: lease.ttl, keys }
    }
}

impl ReplyShape {
    /// Encodes the reply to a call.
    #[must_use]
    pub fn encode(self, reply: RpcReply) -> Vec<u8> {
        match (self, reply) {
            (Self::Put, RpcReply::Txn(TxnResponse { header, mut responses, .. })) => {
                let prev_kv = match responses.pop().and_then(|op| op.response) {
                    Some(OpResponse::Put(put)) => put.prev_kv,
                    Some(OpResponse::Range(_) | OpResponse::Delete(_) | OpResponse::Txn(_)) | None => None,
                };
                PutResponse { header, prev_kv }.encode_to_vec()
            }
            (Self::Delete, RpcReply::Txn(TxnResponse { header, mut responses, .. })) => {
                let deleted = match responses.pop().and_then(|op| op.response) {
                    Some(OpResponse::Delete(delete)) => delete,
                    Some(OpResponse::Range(_) | OpResponse::Put(_) | OpResponse::Txn(_)) | None => {
                        DeleteRangeResponse::default()
                    }
                };
                DeleteRangeResponse { header, ..deleted }.encode_to_vec()
            }
            (_, RpcReply::Range(reply)) => reply.encode_to_vec(),
            (_, RpcReply::Txn(reply)) => reply.encode_to_vec(),
            (_, RpcReply::Grant(reply)) => reply.encode_to_vec(),
            (_, RpcReply::Revoke(reply)) => reply.encode_to_vec(),
            (_, RpcReply::Authenticate(reply)) => reply.encode_to_vec(),
            (_, RpcReply::MemberList(reply)) => reply.encode_to_vec(),
        }
    }
}

fn one(op: Op) -> Rpc {
    Rpc::Txn(TxnRequest { success: vec![RequestOp { request: Some(op) }], ..TxnRequest::default() })
}

fn decoded<M: Message + Default>(body: &[u8]) -> Result<M, Status> {
    M::decode(body).map_err(|_| Status::new(Code::Internal, "grpc: error while unmarshaling request"))
}

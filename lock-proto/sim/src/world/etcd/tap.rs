//! Requests of a client and their replies, observed from outside.

use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::wire::{EtcdMessage, deletes_nothing};
use super::{EtcdClient, EtcdServers};
use crate::fingerprint::encoded;
use crate::world::World;
use lock_proto::ConnId;
use lock_proto::etcd::message::{Op, RequestOp, WatchRequest, WatchRequestUnion};
use lock_proto::etcd::{Code, Rpc, RpcReply, StreamId, StreamReceived, StreamSend};

pub(super) fn queue_of(key: &[u8]) -> &[u8] {
    &key[..key.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)]
}

impl<C: EtcdClient> World<EtcdServers<C>> {
    pub(super) fn note_call(&mut self, client: usize, conn: ConnId, number: u64, request: &Rpc) {
        if let Rpc::Revoke(revoke) = request {
            self.clients[client].own.revoking.insert(number, revoke.id);
        }
        if !self.checker.checks_requests() {
            return;
        }
        let Some(link) = self.network.find(client, conn) else { return };
        // Queries of the application are never repeated work, even if they are equal. Nor are reads
        // of the own key: a reply to one sent before its watch was open may be too old.
        let alone = match request {
            Rpc::Range(_) => true,
            Rpc::Txn(txn) => {
                matches!(&txn.failure[..], [RequestOp { request: Some(Op::Range(_)) }]) && deletes_nothing(txn)
            }
            Rpc::Grant(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => false,
        };
        if let Rpc::Grant(grant) = request
            && self.clients[client].own.granted.contains_key(&grant.id)
        {
            self.checker.repeated_after_reply(self.now, client, request.path(), &grant.id.to_be_bytes());
        }
        // Calls with equal bytes are the same work.
        let what = if alone { number.to_be_bytes().to_vec() } else { encoded(request) };
        self.checker.request_sent(self.now, client, link, number, request.path(), what);
    }

    /// Notes a stream message of a client that expects a reply.
    pub(super) fn note_message(&mut self, client: usize, stream: StreamId, message: &StreamSend) {
        if let StreamSend::Watch(WatchRequest { request: Some(WatchRequestUnion::Create(create)) }) = message
            && !create.range_end.is_empty()
        {
            self.clients[client].own.observing.insert((stream, create.watch_id));
        }
        let (what, lease) = match message {
            StreamSend::KeepAlive(request) => (request.encode_to_vec(), Some(request.id)),
            StreamSend::Watch(request) => match &request.request {
                // Never repeated work: a client may open several watches for one key.
                Some(WatchRequestUnion::Create(create)) => (create.encode_to_vec(), None),
                Some(WatchRequestUnion::Cancel(_) | WatchRequestUnion::Progress(_)) | None => return,
            },
        };
        let Some(link) = self.network.find(client, stream.conn()) else { return };
        let number = self.next_number();
        self.clients[client].own.pending.entry(stream).or_default().push((number, lease));
        self.checker.request_sent(self.now, client, link, number, stream.kind().path(), what);
    }

    pub(super) fn note_close(&mut self, client: usize, stream: StreamId) {
        let Some(open) = self.clients[client].own.pending.remove(&stream) else { return };
        if let Some(link) = self.network.find(client, stream.conn()) {
            let open: Vec<u64> = open.into_iter().map(|(number, _)| number).collect();
            self.checker.closed(self.now, link, Some(&open), self.is_alive(client, link));
        }
    }

    /// Nobody waits any more for what was sent on this stream.
    fn note_denied(&mut self, client: usize, stream: StreamId) {
        let Some(sent) = self.clients[client].own.pending.remove(&stream) else { return };
        if let Some(link) = self.network.find(client, stream.conn()) {
            sent.into_iter().for_each(|(number, _)| self.checker.reply_received(link, number));
        }
    }

    pub(super) fn note_received(&mut self, client: usize, wire: &EtcdMessage, deleted: &[(Bytes, i64)]) {
        for (key, _) in deleted {
            self.clients[client].reasons.notified(queue_of(key).to_vec());
        }
        let (stream, number) = match wire {
            EtcdMessage::Reply { rpc, reply } => {
                let conn = self.store.rpcs.get(rpc).map(|known| known.conn());
                if let Some(link) = conn.and_then(|conn| self.network.find(client, conn)) {
                    self.checker.reply_received(link, *rpc);
                    // Data from a replaced connection is not a reply.
                    let own = &mut self.clients[client].own;
                    let gone = match reply {
                        Ok(_) => true,
                        Err(status) => status.code == Code::NotFound,
                    };
                    own.revoked.extend(own.revoking.remove(rpc).filter(|_| gone));
                    if let Ok(RpcReply::Grant(granted)) = reply {
                        let until = self.now + Duration::from_secs(granted.ttl.unsigned_abs());
                        self.clients[client].own.granted.insert(granted.id, until);
                    }
                }
                return;
            }
            EtcdMessage::Message { stream, message } => {
                let Some(stream) = self.store.streams.get(stream).copied() else { return };
                let (answers, lease) = match message {
                    StreamReceived::KeepAlive(response) => {
                        if let Some(until) = self.clients[client].own.granted.get_mut(&response.id) {
                            *until = self.now + Duration::from_secs(response.ttl.unsigned_abs());
                        }
                        (true, Some(response.id))
                    }
                    // The client closes the stream of a watch that was denied for its token.
                    StreamReceived::Watch(response) if response.created && response.canceled => {
                        return self.note_denied(client, stream);
                    }
                    StreamReceived::Watch(response) => (response.created, None),
                };
                // A proxy answers the keep-alives of different leases in any order.
                let pending = &mut self.clients[client].own.pending;
                let Some(pending) = pending.get_mut(&stream).filter(|_| answers) else { return };
                let Some(place) = pending.iter().position(|(_, other)| *other == lease) else { return };
                (stream, pending.remove(place).0)
            }
            EtcdMessage::Ended { .. }
            | EtcdMessage::Call { .. }
            | EtcdMessage::Open { .. }
            | EtcdMessage::Send { .. }
            | EtcdMessage::Close { .. } => {
                return;
            }
        };
        if let Some(link) = self.network.find(client, stream.conn()) {
            self.checker.reply_received(link, number);
        }
    }
}

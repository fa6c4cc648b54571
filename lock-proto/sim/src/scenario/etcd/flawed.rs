//! Rewrites calls and replies between an etcd client and the world.

use alloc::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::etcd::EtcdClient;
use crate::scenario::flawed::{Flawed, OpenedConnections};
use lock_proto::Instant;
use lock_proto::etcd::message::{
    COMPARE_MOD, CompareWith, DELETED, KeyValue, Op, OpResponse, TxnRequest, WatchResponse,
};
use lock_proto::etcd::{
    Client, Config, Output, OwnerKey, Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend,
};
use lock_proto::{ClientId, LockId};
use lock_proto::{ConfigError, Misuse};
use lock_proto::{Event, Fence};

/// A flaw that can be planted in clients of etcd, see [`Plan::flaw`](crate::Plan::flaw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EtcdFlaw {
    /// No flaw: everything passes unchanged.
    None,
    /// A waiter without a predecessor takes the lock without checking that its own key exists.
    SkipsOwnKey,
    /// An unlock deletes the key without comparing its revision.
    DeletesAnyRevision,
    /// A deletion reported during a read of the queue is forgotten.
    ForgetsDeletion,
    /// Every transaction is sent twice.
    SendsTwice,
    /// A leader writes its key without comparing its revision.
    WritesAnyRevision,
    /// Data from a replaced connection counts as the reply to a request of the same kind.
    MixesConnections,
    /// A deletion that is older than what the client has read since counts as a new one.
    TakesOldDeletions,
    /// A waiter looks for its predecessor again as soon as it has the reply.
    LooksWithoutEnd,
    /// Every waiter takes the oldest key for its predecessor.
    WatchesOldest,
    /// Leases are not kept alive.
    NeverRenews,
    /// Once a connection was lost, no watch is opened.
    NeverWatchesAgain,
    /// A shutdown is reported to have left nothing, whatever is left.
    HidesLeftovers,
    /// A watch is taken for one that was opened at the last revision that the client has read.
    OpensWatchesInPast,
    /// The replies to keep-alives are matched in the order of the requests, whatever their leases.
    MixesLeases,
    /// A keep-alive of a lease that was revoked counts as a renewal.
    RenewsRevokedLease,
    /// Leases live a second shorter than the client believes.
    ShortensLeases,
    /// The deletion of an own key is not noticed.
    IgnoresOwnDeletion,
    /// The fencing token is that of the next revision.
    ShiftsTokens,
}

impl EtcdFlaw {
    /// Every flaw.
    pub const ALL: [Self; 18] = [
        Self::SkipsOwnKey,
        Self::DeletesAnyRevision,
        Self::ForgetsDeletion,
        Self::SendsTwice,
        Self::WritesAnyRevision,
        Self::MixesConnections,
        Self::TakesOldDeletions,
        Self::LooksWithoutEnd,
        Self::WatchesOldest,
        Self::NeverRenews,
        Self::NeverWatchesAgain,
        Self::HidesLeftovers,
        Self::OpensWatchesInPast,
        Self::MixesLeases,
        Self::RenewsRevokedLease,
        Self::ShortensLeases,
        Self::IgnoresOwnDeletion,
        Self::ShiftsTokens,
    ];
}

#[derive(Clone, Debug)]
pub(super) struct RpcRewriter {
    flaw: EtcdFlaw,
    creates: BTreeMap<RpcId, Bytes>,
    looks: BTreeMap<RpcId, Bytes>,
    /// Own keys as last seen.
    seen: BTreeMap<Bytes, KeyValue>,
    connections: OpenedConnections,
    pending: BTreeMap<RpcId, &'static str>,
    again: Option<Output>,
    /// Copies of requests that look for a predecessor, by their ids.
    repeats: BTreeMap<RpcId, Output>,
    /// The latest revision that a transaction has shown.
    latest: i64,
    /// The leases of the keep-alives without a reply, in order.
    kept_alive: VecDeque<i64>,
    /// The last TTL of each lease.
    ttls: BTreeMap<i64, i64>,
}

pub(super) fn clients(
    flaw: EtcdFlaw,
) -> impl Fn(Instant, Config, ClientId, u64) -> Result<Flawed<Client, RpcRewriter>, ConfigError> {
    move |now, config, id, seed| {
        let rewriter = RpcRewriter {
            flaw,
            creates: BTreeMap::new(),
            looks: BTreeMap::new(),
            seen: BTreeMap::new(),
            connections: OpenedConnections::default(),
            pending: BTreeMap::new(),
            again: None,
            repeats: BTreeMap::new(),
            latest: 0,
            kept_alive: VecDeque::new(),
            ttls: BTreeMap::new(),
        };
        Ok(Flawed::new(Client::new(now, config, id, seed)?, rewriter))
    }
}

/// Removes the conditions from the deletes of a transaction, including nested ones.
fn delete_anything(txn: &mut TxnRequest) {
    for op in &mut txn.success {
        match &mut op.request {
            // A read of the key deletes it if there is none.
            Some(Op::Delete(_)) => txn.compare.retain(|compare| compare.with == Some(CompareWith::ModRevision(0))),
            Some(Op::Txn(inner)) => delete_anything(inner),
            Some(Op::Range(_) | Op::Put(_)) | None => {}
        }
    }
}

/// Removes the revision checks from the writes of a transaction, including nested ones.
fn write_anything(txn: &mut TxnRequest) {
    let writes = txn.success.iter().any(|op| matches!(&op.request, Some(Op::Put(_))));
    if writes {
        txn.compare.retain(|compare| compare.target != COMPARE_MOD);
    }
    for op in &mut txn.success {
        if let Some(Op::Txn(inner)) = &mut op.request {
            write_anything(inner);
        }
    }
}

const fn path(reply: &RpcReply) -> &'static str {
    match reply {
        RpcReply::Range(_) => "/etcdserverpb.KV/Range",
        RpcReply::Txn(_) => "/etcdserverpb.KV/Txn",
        RpcReply::Grant(_) => "/etcdserverpb.Lease/LeaseGrant",
        RpcReply::Revoke(_) => "/etcdserverpb.Lease/LeaseRevoke",
        RpcReply::Authenticate(_) => "/etcdserverpb.Auth/Authenticate",
        RpcReply::MemberList(_) => "/etcdserverpb.Cluster/MemberList",
    }
}

/// Returns the own key of a waiter that looks for its predecessor, which it reads first.
fn looked_for(txn: &TxnRequest) -> Option<Bytes> {
    let mut reads = txn.success.iter().map(|op| match &op.request {
        Some(Op::Range(range)) => Some(range),
        Some(Op::Put(_) | Op::Delete(_) | Op::Txn(_)) | None => None,
    });
    let (own, _) = (reads.next()??, reads.next()??);
    Some(own.key.clone())
}

fn shows_predecessor(reply: &Result<RpcReply, Status>) -> bool {
    let Ok(RpcReply::Txn(txn)) = reply else { return false };
    let second = txn.responses.get(1).and_then(|second| second.response.as_ref());
    matches!(second, Some(OpResponse::Range(found)) if !found.kvs.is_empty())
}

/// Returns the id of a copy that the client does not know of.
const fn copy_of(rpc: RpcId) -> RpcId {
    RpcId::new(rpc.conn(), rpc.serial() | 1 << 60)
}

fn created(txn: &TxnRequest) -> Option<Bytes> {
    let first = txn.success.first().and_then(|op| op.request.as_ref())?;
    if let Op::Put(put) = first { Some(put.key.clone()) } else { None }
}

impl RpcRewriter {
    fn call(&mut self, rpc: RpcId, request: &mut Rpc) {
        match (self.flaw, request) {
            (EtcdFlaw::DeletesAnyRevision, Rpc::Txn(txn)) => delete_anything(txn),
            (EtcdFlaw::WritesAnyRevision, Rpc::Txn(txn)) => write_anything(txn),
            (EtcdFlaw::ShortensLeases, Rpc::Grant(grant)) => grant.ttl = (grant.ttl - 1).max(1),
            (
                EtcdFlaw::SkipsOwnKey
                | EtcdFlaw::ForgetsDeletion
                | EtcdFlaw::WatchesOldest
                | EtcdFlaw::IgnoresOwnDeletion,
                Rpc::Txn(txn),
            ) => {
                self.looks.extend(looked_for(txn).map(|own| (rpc, own)));
                self.creates.extend(created(txn).map(|own| (rpc, own)));
            }
            (
                EtcdFlaw::None
                | EtcdFlaw::SkipsOwnKey
                | EtcdFlaw::DeletesAnyRevision
                | EtcdFlaw::ForgetsDeletion
                | EtcdFlaw::SendsTwice
                | EtcdFlaw::WritesAnyRevision
                | EtcdFlaw::MixesConnections
                | EtcdFlaw::TakesOldDeletions
                | EtcdFlaw::LooksWithoutEnd
                | EtcdFlaw::WatchesOldest
                | EtcdFlaw::NeverRenews
                | EtcdFlaw::NeverWatchesAgain
                | EtcdFlaw::HidesLeftovers
                | EtcdFlaw::OpensWatchesInPast
                | EtcdFlaw::MixesLeases
                | EtcdFlaw::RenewsRevokedLease
                | EtcdFlaw::ShortensLeases
                | EtcdFlaw::IgnoresOwnDeletion
                | EtcdFlaw::ShiftsTokens,
                Rpc::Txn(_)
                | Rpc::Range(_)
                | Rpc::Grant(_)
                | Rpc::Revoke(_)
                | Rpc::Authenticate(_)
                | Rpc::MemberList(_),
            ) => {}
        }
    }

    fn reply(&mut self, rpc: RpcId, reply: &mut Result<RpcReply, Status>) {
        let (look, create) = (self.looks.remove(&rpc), self.creates.remove(&rpc));
        if let (EtcdFlaw::ShortensLeases, Ok(RpcReply::Grant(granted))) = (self.flaw, &mut *reply) {
            granted.ttl += 1;
        }
        let Ok(RpcReply::Txn(txn)) = reply else { return };
        self.latest = self.latest.max(txn.header.map_or(0, |header| header.revision));
        if let (EtcdFlaw::WatchesOldest, Some(own)) = (self.flaw, &create)
            && let Some(OpResponse::Range(queue)) = txn.responses.get_mut(1).and_then(|queue| queue.response.as_mut())
        {
            let oldest = queue.kvs.iter().map(|kv| kv.create_revision).min();
            queue.kvs.retain(|kv| kv.key == *own || Some(kv.create_revision) == oldest);
            queue.count = queue.kvs.len() as i64;
        }
        if let (Some(key), Some(header), true) = (create, txn.header, txn.succeeded) {
            let (create_revision, mod_revision) = (header.revision, header.revision);
            self.seen.insert(key.clone(), KeyValue { key, create_revision, mod_revision, ..KeyValue::default() });
        }
        let Some(own) = look.filter(|_| self.flaw == EtcdFlaw::SkipsOwnKey) else { return };
        let Some(OpResponse::Range(found)) = txn.responses.first_mut().and_then(|first| first.response.as_mut()) else {
            return;
        };
        match found.kvs.first() {
            Some(kv) => _ = self.seen.insert(own, kv.clone()),
            None => found.kvs.extend(self.seen.get(&own).cloned()),
        }
    }
}

impl EtcdClient for Flawed<Client, RpcRewriter> {
    fn handle_reply(&mut self, now: Instant, rpc: RpcId, mut reply: Result<RpcReply, Status>) {
        if self.flaw.flaw == EtcdFlaw::LooksWithoutEnd && shows_predecessor(&reply) {
            self.flaw.again = self.flaw.repeats.get(&copy_of(rpc)).cloned();
        }
        if rpc == copy_of(rpc) {
            return;
        }
        let mut rpc = rpc;
        if self.flaw.flaw == EtcdFlaw::MixesConnections && Some(rpc.conn()) != self.flaw.connections.current {
            let same = |known: &&'static str| reply.as_ref().is_ok_and(|reply| path(reply) == *known);
            rpc = self.flaw.pending.iter().find(|(_, known)| same(known)).map_or(rpc, |(other, _)| *other);
        }
        self.flaw.pending.remove(&rpc);
        self.flaw.reply(rpc, &mut reply);
        self.client.handle_reply(now, rpc, reply);
    }

    fn handle_message(&mut self, now: Instant, stream: StreamId, mut message: StreamReceived) {
        if let StreamReceived::KeepAlive(response) = &mut message {
            let asked = self.flaw.kept_alive.pop_front();
            if self.flaw.flaw == EtcdFlaw::MixesLeases {
                response.id = asked.unwrap_or(response.id);
            }
            if response.ttl > 0 {
                self.flaw.ttls.insert(response.id, response.ttl);
            } else if let (EtcdFlaw::RenewsRevokedLease, Some(ttl)) = (self.flaw.flaw, self.flaw.ttls.get(&response.id))
            {
                response.ttl = *ttl;
            }
        }
        if let StreamReceived::Watch(WatchResponse { created: true, canceled: false, header: Some(header), .. }) =
            &mut message
            && self.flaw.flaw == EtcdFlaw::OpensWatchesInPast
        {
            header.revision = header.revision.min(self.flaw.latest);
        }
        if let StreamReceived::Watch(response) = &mut message
            && self.flaw.flaw == EtcdFlaw::ForgetsDeletion
            && !self.flaw.looks.is_empty()
        {
            response.events.retain(|event| event.kind != DELETED);
        }
        if let StreamReceived::Watch(response) = &mut message
            && self.flaw.flaw == EtcdFlaw::TakesOldDeletions
        {
            let latest = self.flaw.latest;
            let deleted = response.events.iter_mut().filter(|event| event.kind == DELETED);
            let old = deleted.filter_map(|event| event.kv.as_mut()).filter(|kv| kv.mod_revision <= latest);
            old.for_each(|kv| kv.mod_revision = latest + 1);
        }
        match (&mut message, self.flaw.flaw) {
            (StreamReceived::KeepAlive(answer), EtcdFlaw::ShortensLeases) if answer.ttl > 0 => answer.ttl += 1,
            (StreamReceived::Watch(response), EtcdFlaw::IgnoresOwnDeletion) => {
                let is_own = |kv: &KeyValue| self.flaw.seen.contains_key(&kv.key);
                response.events.retain(|event| event.kind != DELETED || !event.kv.as_ref().is_some_and(is_own));
            }
            _ => {}
        }
        self.client.handle_message(now, stream, message);
    }

    fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.client.handle_stream_ended(now, stream, status);
    }

    fn poll_output(&mut self) -> Option<Output> {
        if let Some(again) = self.flaw.again.take() {
            return Some(again);
        }
        let mut output = self.client.poll_output()?;
        while match (self.flaw.flaw, &output) {
            (EtcdFlaw::NeverRenews, Output::Send { message: StreamSend::KeepAlive(_), .. }) => true,
            (EtcdFlaw::NeverWatchesAgain, Output::Send { message: StreamSend::Watch(_), .. }) => {
                self.flaw.connections.lost
            }
            _ => false,
        } {
            output = self.client.poll_output()?;
        }
        if let (EtcdFlaw::HidesLeftovers, Output::Stopped { unreleased }) = (self.flaw.flaw, &mut output) {
            *unreleased = 0;
        }
        if let (EtcdFlaw::ShiftsTokens, Output::Event { event: Event::Granted(grant), .. }) =
            (self.flaw.flaw, &mut output)
        {
            grant.fence = grant.fence.map(|fence| Fence::new(fence.get() + (1 << 16)));
        }
        if let Output::Disconnect { conn, .. } = &output {
            self.flaw.connections.closed(*conn);
        }
        if let Output::Send { message: StreamSend::KeepAlive(request), .. } = &output {
            self.flaw.kept_alive.push_back(request.id);
        }
        if let Output::Open { stream, .. } = &output
            && stream.kind() == StreamKind::KeepAlive
        {
            self.flaw.kept_alive.clear();
        }
        if let Output::Connect { conn, .. } = &output {
            self.flaw.connections.opened(*conn);
            self.flaw.pending.clear();
        }
        if let Output::Call { rpc, request, token } = &mut output {
            self.flaw.call(*rpc, request);
            self.flaw.pending.insert(*rpc, request.path());
            let copy = Output::Call { rpc: copy_of(*rpc), request: request.clone(), token: token.clone() };
            match (self.flaw.flaw, request) {
                (EtcdFlaw::SendsTwice, Rpc::Txn(_)) => self.flaw.again = Some(copy),
                (EtcdFlaw::LooksWithoutEnd, Rpc::Txn(txn)) if looked_for(txn).is_some() => {
                    self.flaw.repeats.insert(copy_of(*rpc), copy);
                }
                _ => {}
            }
        }
        Some(output)
    }

    fn owner(&self, lock: LockId) -> Option<OwnerKey> {
        self.client.owner(lock)
    }

    fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<OwnerKey, Misuse> {
        self.client.owner_guard(now, lock)
    }
}

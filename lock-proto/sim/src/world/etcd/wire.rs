//! Packets between a client and a member, and their log format.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;

use lock_proto::etcd::message::{
    COMPARE_CREATE, COMPARE_MOD, CompareWith, DELETED, Op, RangeRequest, RequestOp, TxnRequest, WatchRequestUnion,
    WatchResponse,
};
use lock_proto::etcd::{OwnerKey, Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};

/// A message on a connection. The world numbers calls and streams.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EtcdMessage {
    // To the member.
    Call { rpc: u64, token: Option<Box<str>>, request: Rpc },
    Open { stream: u64, kind: StreamKind, token: Option<Box<str>> },
    Send { stream: u64, message: StreamSend },
    Close { stream: u64 },
    // To the client.
    Reply { rpc: u64, reply: Result<RpcReply, Status> },
    Message { stream: u64, message: StreamReceived },
    Ended { stream: u64, status: Status },
}

impl EtcdMessage {
    /// Returns the stream on which a member sends this.
    pub(super) const fn answered_stream(&self) -> Option<u64> {
        match self {
            Self::Message { stream, .. } | Self::Ended { stream, .. } => Some(*stream),
            Self::Call { .. } | Self::Open { .. } | Self::Send { .. } | Self::Close { .. } | Self::Reply { .. } => None,
        }
    }

    /// Returns the deleted keys that this message reports, with their revisions.
    pub(super) fn deletions(&self) -> impl Iterator<Item = (&Bytes, i64)> {
        let events = match self {
            Self::Message { message: StreamReceived::Watch(response), .. } => &response.events[..],
            Self::Message { message: StreamReceived::KeepAlive(_), .. }
            | Self::Call { .. }
            | Self::Open { .. }
            | Self::Send { .. }
            | Self::Close { .. }
            | Self::Reply { .. }
            | Self::Ended { .. } => &[],
        };
        let deleted = events.iter().filter(|event| event.kind == DELETED);
        deleted.filter_map(|event| event.kv.as_ref().map(|kv| (&kv.key, kv.mod_revision)))
    }
}

/// A look at a queue by one of its waiters.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) own_key: Bytes,
    /// The key that it waits for, and that key's creation.
    pub(super) next: Option<(Bytes, i64)>,
}

/// Collects the looks of a transaction and of those nested in it. A waiter that looks at its queue
/// reads its own key first.
pub(super) fn collect_looks(txn: &TxnRequest, looks: &mut Vec<Look>) {
    for (i, op) in txn.success.iter().enumerate() {
        match &op.request {
            Some(Op::Range(own)) if i == 0 => {
                let next = txn.compare.first().and_then(|compare| match compare.with {
                    Some(CompareWith::CreateRevision(created)) => Some((compare.key.clone(), created)),
                    _ => None,
                });
                looks.push(Look { own_key: own.key.clone(), next });
            }
            Some(Op::Txn(inner)) => collect_looks(inner, looks),
            Some(Op::Range(_) | Op::Put(_) | Op::Delete(_)) | None => {}
        }
    }
}

pub(super) fn ends(request: &Rpc, owner: &OwnerKey) -> bool {
    match request {
        Rpc::Txn(txn) => deletes(txn, &owner.key),
        Rpc::Revoke(revoke) => revoke.id == owner.lease.get(),
        Rpc::Range(_) | Rpc::Grant(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => false,
    }
}

/// Returns true if the transaction deletes a key on condition that there is none: a read that goes
/// through the log.
// E14
pub(crate) fn deletes_nothing(txn: &TxnRequest) -> bool {
    txn.compare.iter().any(|compare| compare.with == Some(CompareWith::ModRevision(0)))
}

fn deletes(txn: &TxnRequest, key: &Bytes) -> bool {
    !deletes_nothing(txn)
        && txn.success.iter().any(|op| match &op.request {
            Some(Op::Delete(delete)) => delete.key == *key,
            Some(Op::Txn(inner)) => deletes(inner, key),
            Some(Op::Range(_) | Op::Put(_)) | None => false,
        })
}

impl fmt::Display for EtcdMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { request, .. } => show_call(f, request),
            Self::Open { kind, .. } => write!(f, "open {kind:?}"),
            Self::Send { message: StreamSend::KeepAlive(request), .. } => write!(f, "keep alive {:x}", request.id),
            Self::Send { message: StreamSend::Watch(request), .. } => match &request.request {
                Some(WatchRequestUnion::Create(want)) => write!(f, "watch {} as {}", key(&want.key), want.watch_id),
                Some(WatchRequestUnion::Cancel(cancel)) => write!(f, "unwatch {}", cancel.watch_id),
                Some(WatchRequestUnion::Progress(_)) => f.write_str("ask for progress"),
                None => f.write_str("nothing"),
            },
            Self::Close { .. } => f.write_str("close stream"),
            Self::Reply { reply, .. } => match reply {
                Ok(reply) => show_reply(f, reply),
                Err(status) => write!(f, "{status:?}"),
            },
            Self::Message { message: StreamReceived::KeepAlive(answer), .. } => {
                write!(f, "{:x} lives for {}s", answer.id, answer.ttl)
            }
            Self::Message { message: StreamReceived::Watch(response), .. } => show_watch(f, response),
            Self::Ended { status, .. } => write!(f, "stream ended: {status:?}"),
        }
    }
}

fn key(key: &Bytes) -> impl fmt::Display {
    key.escape_ascii()
}

fn show_call(f: &mut fmt::Formatter<'_>, request: &Rpc) -> fmt::Result {
    match request {
        Rpc::Range(range) => {
            f.write_str("read ")?;
            show_range(f, range)
        }
        Rpc::Txn(txn) => show_txn(f, txn),
        Rpc::Grant(grant) => write!(f, "grant {:x} {}s", grant.id, grant.ttl),
        Rpc::Revoke(revoke) => write!(f, "revoke {:x}", revoke.id),
        Rpc::Authenticate(login) => write!(f, "log in {}", login.name),
        Rpc::MemberList(_) => f.write_str("list members"),
    }
}

fn show_range(f: &mut fmt::Formatter<'_>, range: &RangeRequest) -> fmt::Result {
    write!(f, "{}", key(&range.key))?;
    if !range.range_end.is_empty() {
        f.write_str("*")?;
    }
    if range.max_create_revision > 0 {
        write!(f, " created by {}", range.max_create_revision)?;
    }
    Ok(())
}

fn show_txn(f: &mut fmt::Formatter<'_>, txn: &TxnRequest) -> fmt::Result {
    for (i, compare) in txn.compare.iter().enumerate() {
        f.write_str(if i == 0 { "if " } else { " and " })?;
        let target = match compare.target {
            COMPARE_CREATE => "created",
            COMPARE_MOD => "modified",
            _ => "?",
        };
        let Some(CompareWith::CreateRevision(revision) | CompareWith::ModRevision(revision)) = compare.with else {
            f.write_str("?")?;
            continue;
        };
        write!(f, "{} {target} {revision}", key(&compare.key))?;
    }
    if !txn.compare.is_empty() {
        f.write_str(": ")?;
    }
    for (i, RequestOp { request }) in txn.success.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { "; " })?;
        match request {
            Some(Op::Range(range)) => {
                f.write_str("read ")?;
                show_range(f, range)?;
            }
            Some(Op::Put(put)) => write!(f, "put {}", key(&put.key))?,
            Some(Op::Delete(delete)) => write!(f, "delete {}", key(&delete.key))?,
            Some(Op::Txn(inner)) => {
                f.write_str("(")?;
                show_txn(f, inner)?;
                f.write_str(")")?;
            }
            None => f.write_str("nothing")?,
        }
    }
    Ok(())
}

fn show_reply(f: &mut fmt::Formatter<'_>, reply: &RpcReply) -> fmt::Result {
    match reply {
        RpcReply::Range(range) => {
            write!(f, "{} keys at {}", range.kvs.len(), range.header.map_or(0, |header| header.revision))
        }
        RpcReply::Txn(txn) => {
            let done = if txn.succeeded { "done" } else { "not done" };
            write!(f, "{done} at {}", txn.header.map_or(0, |header| header.revision))
        }
        RpcReply::Grant(grant) => write!(f, "granted {:x} {}s", grant.id, grant.ttl),
        RpcReply::Revoke(_) => f.write_str("revoked"),
        RpcReply::Authenticate(_) => f.write_str("logged in"),
        RpcReply::MemberList(list) => write!(f, "{} members", list.members.len()),
    }
}

fn show_watch(f: &mut fmt::Formatter<'_>, response: &WatchResponse) -> fmt::Result {
    write!(f, "watch {}", response.watch_id)?;
    if response.created {
        f.write_str(" opened")?;
    }
    if response.canceled {
        write!(f, " cancelled {}", response.cancel_reason)?;
    }
    if response.compact_revision != 0 {
        write!(f, " compacted {}", response.compact_revision)?;
    }
    for event in &response.events {
        let Some(kv) = &event.kv else { continue };
        let what = if event.kind == DELETED { "deleted" } else { "put" };
        write!(f, " {what} {} at {}", key(&kv.key), kv.mod_revision)?;
    }
    Ok(())
}

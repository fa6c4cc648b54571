//! Short labels of packets for pictures. The log has the full text.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::wire::EtcdMessage;
use crate::direction::Direction;
use crate::network::Payload;
use lock_proto::etcd::message::{
    COMPARE_CREATE, Compare, CompareWith, DELETED, Op, RangeRequest, TxnRequest, WatchRequestUnion, WatchResponse,
};
use lock_proto::etcd::{Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};

/// Number of digits that identify a lease.
const DIGITS: usize = 4;

pub(super) fn lease(id: i64) -> String {
    shortened(&format!("{id:x}"))
}

/// Returns a key as text. A long part after the last slash is a lease id and is shortened.
fn key(key: &[u8]) -> String {
    let text = format!("{}", key.escape_ascii());
    match text.rsplit_once('/') {
        Some((name, lease)) if lease.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{name}/{}", shortened(lease))
        }
        Some(_) | None => text,
    }
}

fn shortened(digits: &str) -> String {
    match digits.get(..DIGITS).filter(|_| digits.len() > DIGITS + 2) {
        Some(first) => format!("{first}…"),
        None => digits.into(),
    }
}

impl Payload for EtcdMessage {
    /// Zero: HTTP/2 windows never fill up here, because a lock sends only small messages.
    fn size(&self) -> usize {
        0
    }

    fn label(&self, _: Direction) -> String {
        match self {
            Self::Call { request, .. } => call(request),
            Self::Open { kind: StreamKind::Watch, .. } => "open watches".into(),
            Self::Open { kind: StreamKind::KeepAlive, .. } => "open keep-alives".into(),
            Self::Send { message: StreamSend::KeepAlive(request), .. } => {
                format!("keep alive {}", lease(request.id))
            }
            Self::Send { message: StreamSend::Watch(request), .. } => match &request.request {
                Some(WatchRequestUnion::Create(want)) => format!("watch {}", range(&want.key, &want.range_end)),
                Some(WatchRequestUnion::Cancel(_)) => "unwatch".into(),
                Some(WatchRequestUnion::Progress(_)) => "ask for progress".into(),
                None => "nothing".into(),
            },
            Self::Close { .. } => "end of stream".into(),
            Self::Reply { reply, .. } => reply.as_ref().map_or_else(status, answer),
            Self::Message { message: StreamReceived::KeepAlive(alive), .. } if alive.ttl > 0 => {
                format!("{} lives {} s", lease(alive.id), alive.ttl)
            }
            Self::Message { message: StreamReceived::KeepAlive(alive), .. } => format!("no lease {}", lease(alive.id)),
            Self::Message { message: StreamReceived::Watch(response), .. } => watch(response),
            Self::Ended { status: why, .. } => format!("stream ends: {}", status(why)),
        }
    }
}

fn status(status: &Status) -> String {
    // Most messages begin with the name of the server.
    let words = status.message.strip_prefix("etcdserver: ").unwrap_or(&status.message);
    format!("{:?}: {words}", status.code)
}

fn call(request: &Rpc) -> String {
    match request {
        Rpc::Range(read) => format!("read {}", range(&read.key, &read.range_end)),
        Rpc::Txn(txn) => transaction(txn),
        Rpc::Grant(grant) => format!("lease {} of {} s", lease(grant.id), grant.ttl),
        Rpc::Revoke(revoke) => format!("revoke {}", lease(revoke.id)),
        Rpc::Authenticate(login) => format!("log in {}", login.name),
        Rpc::MemberList(_) => "list members".into(),
    }
}

/// Lists nested transactions one after the other.
fn transaction(txn: &TxnRequest) -> String {
    let inner: Vec<String> = txn
        .success
        .iter()
        .filter_map(|op| match &op.request {
            Some(Op::Txn(inner)) => Some(transaction(inner)),
            Some(Op::Range(_) | Op::Put(_) | Op::Delete(_)) | None => None,
        })
        .collect();
    if !inner.is_empty() {
        return inner.join(", ");
    }
    let does = match txn.success.first().and_then(|op| op.request.as_ref()) {
        Some(Op::Put(put)) => format!("put {}", key(&put.key)),
        Some(Op::Delete(delete)) => format!("delete {}", range(&delete.key, &delete.range_end)),
        Some(Op::Range(RangeRequest { key, range_end, .. })) => format!("look at {}", range(key, range_end)),
        Some(Op::Txn(_)) | None => "nothing".into(),
    };
    let conditions: Vec<String> = txn.compare.iter().map(condition).collect();
    if conditions.is_empty() { does } else { format!("{does} if {}", conditions.join(" and ")) }
}

fn condition(compare: &Compare) -> String {
    match compare.with {
        Some(CompareWith::CreateRevision(0)) if compare.range_end.is_empty() => "new".into(),
        Some(CompareWith::CreateRevision(0)) => "alone".into(),
        Some(CompareWith::CreateRevision(revision) | CompareWith::ModRevision(revision)) => {
            let verb = if compare.target == COMPARE_CREATE { "created" } else { "written" };
            format!("{verb} at {revision}")
        }
        Some(CompareWith::Version(version)) => format!("version {version}"),
        Some(CompareWith::Value(ref value)) => format!("value {}", value.escape_ascii()),
        Some(CompareWith::Lease(lease)) => format!("lease {lease:x}"),
        None => "?".into(),
    }
}

fn range(first: &[u8], end: &[u8]) -> String {
    if end.is_empty() { key(first) } else { format!("{}*", first.escape_ascii()) }
}

fn answer(reply: &RpcReply) -> String {
    match reply {
        RpcReply::Range(found) => {
            format!("{} found at {}", found.kvs.len(), found.header.map_or(0, |header| header.revision))
        }
        RpcReply::Txn(txn) => {
            let done = if txn.succeeded { "yes" } else { "no" };
            format!("{done}, at {}", txn.header.map_or(0, |header| header.revision))
        }
        RpcReply::Grant(grant) => format!("{} lives {} s", lease(grant.id), grant.ttl),
        RpcReply::Revoke(_) => "revoked".into(),
        RpcReply::Authenticate(_) => "logged in".into(),
        RpcReply::MemberList(list) => format!("{} members", list.members.len()),
    }
}

fn watch(response: &WatchResponse) -> String {
    let mut words = Vec::new();
    if response.created {
        words.push("watch is open".into());
    }
    if response.compact_revision != 0 {
        words.push(format!("compacted up to {}", response.compact_revision));
    }
    if response.canceled {
        words.push("watch is cancelled".into());
    }
    for event in &response.events {
        let Some(kv) = &event.kv else { continue };
        let what = if event.kind == DELETED { "deleted" } else { "written" };
        words.push(format!("{} {what}", key(&kv.key)));
    }
    if words.is_empty() { "progress".into() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;
    use lock_proto::etcd::message::{DeleteRangeRequest, PutRequest, RequestOp};

    fn guarded(key: &'static [u8], with: CompareWith, op: Op) -> TxnRequest {
        let target = if matches!(with, CompareWith::CreateRevision(_)) { COMPARE_CREATE } else { 2 };
        let compare = Compare { target, key: Bytes::from_static(key), with: Some(with), ..Compare::default() };
        let success = vec![RequestOp { request: Some(op) }];
        TxnRequest { compare: vec![compare], success, ..TxnRequest::default() }
    }

    #[test]
    fn transaction_label_starts_with_operation_and_shortens_keys() {
        let own = b"jobs/694d81d3e1a2b3c4";
        let put = Op::Put(PutRequest { key: Bytes::from_static(own), ..PutRequest::default() });
        let put = guarded(own, CompareWith::CreateRevision(0), put);
        let delete = Op::Delete(DeleteRangeRequest {
            key: Bytes::from_static(own),
            range_end: Bytes::new(),
            ..DeleteRangeRequest::default()
        });
        let delete = guarded(own, CompareWith::ModRevision(7), delete);
        assert_eq!(transaction(&put), "put jobs/694d… if new");
        assert_eq!(transaction(&delete), "delete jobs/694d… if written at 7");
        let both = [put, delete].map(|inner| RequestOp { request: Some(Op::Txn(inner)) });
        let both = TxnRequest { success: both.to_vec(), ..TxnRequest::default() };
        assert_eq!(transaction(&both), "put jobs/694d… if new, delete jobs/694d… if written at 7");
    }

    #[test]
    fn keys_without_lease_are_not_shortened() {
        assert_eq!(
            [key(b"jobs/other-thing"), key(b"jobs"), key(b"a/12ab"), lease(0x1f)],
            ["jobs/other-thing", "jobs", "a/12ab", "1f"]
        );
        assert_eq!(range(b"jobs/", b"jobs0"), "jobs/*");
    }
}

//! Frames as text.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use super::tap::path_of;
use crate::zookeeper::Seen;
use lock_proto::zookeeper::codec::{ConnectRequest, MultiOp, Op};

fn kind(op: &Op) -> String {
    let text = format!("{:?}", op.code());
    if let Op::Write(MultiOp::Create { mode, .. }) = op { format!("{text} {mode:?}") } else { text }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most requests have the same form")]
pub(super) fn request(op: &Op) -> String {
    let watch = match op {
        Op::Exists { watch: true, .. } | Op::GetData { watch: true, .. } | Op::GetChildren { watch: true, .. } => {
            " watch"
        }
        _ => "",
    };
    match op {
        Op::Multi(ops) => {
            let ops: Vec<String> = ops.iter().map(|op| request(&Op::Write(op.clone()))).collect();
            format!("Multi [{}]", ops.join(", "))
        }
        _ => format!("{} {}{watch}", kind(op), path_of(op).unwrap_or_default()).trim_end().to_string(),
    }
}

pub(super) fn seen(what: &Seen) -> String {
    match what {
        Seen::Connect(ConnectRequest { session_id: 0, timeout_ms, .. }) => {
            format!("Connect, new session of {timeout_ms} ms")
        }
        Seen::Connect(ConnectRequest { session_id, last_zxid_seen, .. }) => {
            format!("Connect, session {session_id:x}, has seen {last_zxid_seen:x}")
        }
        Seen::Request(found) => format!("{} {}", found.xid, request(&found.op)),
    }
}

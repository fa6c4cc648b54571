//! Frames of both servers, in one form.

use std::collections::{BTreeMap, BTreeSet};

use lock_proto::zookeeper::codec::{EventType, MultiResult, OpCode, ReplyBody, ReplyHeader, Stat, XID_EVENT, XID_PING};

/// What a server has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Reply { xid: i32, zxid: i64, code: i32, body: ReplyBody },
    Event { zxid: i64, kind: EventType, path: String },
    Closed,
}

/// What differs between two servers with the same history: the ids of sessions, the first
/// transaction, and the time.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The sessions, in the order of their creation.
    pub(crate) sessions: BTreeMap<i64, i64>,
    /// The transaction that created the first session.
    pub(crate) first: Option<i64>,
}

impl Names {
    fn zxid(&self, zxid: i64) -> i64 {
        if zxid > 0 { zxid - self.first.unwrap_or(0) } else { zxid }
    }

    fn stat(&self, stat: &mut Stat) {
        for zxid in [&mut stat.czxid, &mut stat.mzxid, &mut stat.pzxid] {
            *zxid = self.zxid(*zxid);
        }
        (stat.ctime, stat.mtime) = (0, 0);
        stat.ephemeral_owner = self.sessions.get(&stat.ephemeral_owner).copied().unwrap_or(stat.ephemeral_owner);
    }

    /// Decodes a frame. `sent` are the requests without a reply, by number.
    pub(crate) fn read(&self, frame: &[u8], sent: &BTreeMap<i32, OpCode>) -> Frame {
        let (ReplyHeader { xid, zxid, code }, rest) = ReplyHeader::decode(frame).unwrap();
        if xid == XID_EVENT {
            let event = ReplyBody::decode_event(rest).unwrap();
            return Frame::Event { zxid: self.zxid(zxid), kind: event.kind, path: event.path.into() };
        }
        let kind = if xid == XID_PING { OpCode::Ping } else { sent.get(&xid).copied().unwrap_or(OpCode::Auth) };
        let mut body = if code.0 == 0 || kind == OpCode::Multi && !rest.is_empty() {
            ReplyBody::decode(kind, rest).unwrap()
        } else {
            assert!(rest.is_empty(), "{code:?} with {rest:?}");
            ReplyBody::Empty
        };
        match &mut body {
            ReplyBody::Created { stat, .. } | ReplyBody::Stat(stat) | ReplyBody::Data { stat, .. } => self.stat(stat),
            // In the order of a hash table.
            ReplyBody::Children(names) => {
                let sorted: BTreeSet<&str> = names.iter().collect();
                *names = sorted.into_iter().collect();
            }
            ReplyBody::Multi(results) => {
                for result in results {
                    if let MultiResult::Created { stat: Some(stat), .. } | MultiResult::Set(stat) = result {
                        self.stat(stat);
                    }
                }
            }
            ReplyBody::Empty | ReplyBody::Synced { .. } | ReplyBody::Event(_) => {}
        }
        Frame::Reply { xid, zxid: self.zxid(zxid), code: code.0, body }
    }
}

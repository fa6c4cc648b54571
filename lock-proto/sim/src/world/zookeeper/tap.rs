//! Requests, replies and watch events of a connection, observed from outside.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use lock_proto::zookeeper::codec::{
    ConnectRequest, ConnectResponse, Frames, Op, ReplyBody, ReplyHeader, RequestFrame, WatcherEvent, XID_EVENT,
};

#[derive(Clone, Debug, Default)]
pub(super) struct ZooKeeperTap {
    sent: Half,
    received: Half,
    /// Numbers of the requests by this tap, and by the protocol.
    pending: VecDeque<(u64, i32)>,
    number: u64,
    /// The number of the last request for a watch.
    pub(super) watch: u64,
    /// The session, once it is known.
    pub(super) session: i64,
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
struct Half {
    frames: Frames,
    /// The first frame has passed.
    started: bool,
}

impl Half {
    /// Returns the contents of the frames that are complete now, and whether each is the first.
    fn read(&mut self, mut bytes: &[u8]) -> Vec<(bool, Vec<u8>)> {
        let mut found = Vec::new();
        while let Ok(Some(frame)) = self.frames.next(&mut bytes, usize::MAX) {
            found.push((!core::mem::replace(&mut self.started, true), frame.to_vec()));
        }
        found
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Started(ConnectResponse),
    Reply { number: u64 },
    Event(WatcherEvent),
}

impl ZooKeeperTap {
    /// Returns the requests that are complete now, with their numbers.
    pub(super) fn sent(&mut self, bytes: &[u8]) -> Vec<(u64, RequestFrame)> {
        let mut found = Vec::new();
        for (first, frame) in self.sent.read(bytes) {
            // The first frame opens the session, or continues it.
            if first {
                self.session = ConnectRequest::decode(&frame).map_or(0, |request| request.session_id);
            } else if let Ok(request) = RequestFrame::decode(&frame) {
                self.number += 1;
                self.pending.push_back((self.number, request.xid));
                found.push((self.number, request));
            }
        }
        found
    }

    pub(super) fn received(&mut self, bytes: &[u8]) -> Vec<Received> {
        let mut found = Vec::new();
        for (first, frame) in self.received.read(bytes) {
            if first {
                let response = ConnectResponse::decode(&frame);
                self.session = response.as_ref().map_or(0, |response| response.session_id);
                found.extend(response.map(Received::Started));
                continue;
            }
            let Ok((header, body)) = ReplyHeader::decode(&frame) else { continue };
            if header.xid == XID_EVENT {
                found.extend(ReplyBody::decode_event(body).map(Received::Event));
            } else if let Some(place) = self.pending.iter().position(|(_, xid)| *xid == header.xid)
                && let Some((number, _)) = self.pending.remove(place)
            {
                found.push(Received::Reply { number });
            }
        }
        found
    }
}

/// Returns the node of a request, if it is about one.
pub(super) fn path_of(op: &Op) -> Option<&str> {
    use lock_proto::zookeeper::codec::MultiOp::{Check, Create, Delete, SetData};
    match op {
        Op::Write(Create { path, .. } | Delete { path, .. } | SetData { path, .. } | Check { path, .. })
        | Op::Exists { path, .. }
        | Op::GetData { path, .. }
        | Op::GetChildren { path, .. } => Some(path),
        Op::Multi(_) | Op::Sync { .. } | Op::RemoveWatches { .. } | Op::Ping | Op::Auth { .. } | Op::CloseSession => {
            None
        }
    }
}

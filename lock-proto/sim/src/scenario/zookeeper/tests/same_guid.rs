//! A client that recognises its nodes by the GUID in their names alone, as Curator did: it uses one
//! GUID for a queue, and takes the owner of every node with it for its session.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use lock_proto::zookeeper::codec::{ConnectResponse, CreateMode, MultiOp, Op};

/// The length of a GUID in the name of a node.
const LEN: usize = 36;

#[derive(Clone, Debug, Default)]
pub(super) struct SameGuid {
    /// The first GUID for each queue, which is the only one that the server sees.
    first: BTreeMap<Box<str>, Box<str>>,
    /// What the client calls it, for each session and queue.
    latest: BTreeMap<(i64, Box<str>), Box<str>>,
    /// All GUIDs of the client, with their queues.
    all: Vec<(Box<str>, Box<str>)>,
    sessions: Vec<i64>,
}

impl SameGuid {
    /// Returns the session of a connection.
    pub(super) fn connected(&mut self, frame: &[u8]) -> i64 {
        let session = ConnectResponse::decode(frame).map_or(0, |response| response.session_id);
        if session != 0 && !self.sessions.contains(&session) {
            self.sessions.push(session);
        }
        session
    }

    pub(super) fn send(&mut self, session: i64, op: &Op, frame: &mut [u8]) {
        if let Op::Write(MultiOp::Create { path, mode: CreateMode::EphemeralSequential, .. }) = op
            && let Some((queue, name)) = path.split_once("/_c_")
            && let Some(guid) = name.get(..LEN)
        {
            self.first.entry(queue.into()).or_insert_with(|| guid.into());
            self.latest.insert((session, queue.into()), guid.into());
            self.all.push((guid.into(), queue.into()));
        }
        for (guid, queue) in &self.all {
            replace(frame, guid.as_bytes(), self.first[queue].as_bytes());
        }
    }

    pub(super) fn receive(&self, session: i64, frame: &mut [u8]) {
        for ((_, queue), guid) in self.latest.iter().filter(|((of, _), _)| *of == session) {
            replace(frame, self.first[queue].as_bytes(), guid.as_bytes());
        }
        for other in &self.sessions {
            replace(frame, &other.to_be_bytes(), &session.to_be_bytes());
        }
    }
}

/// Replaces bytes by others of the same length.
fn replace(frame: &mut [u8], from: &[u8], to: &[u8]) {
    let mut start = 0;
    while let Some(place) = frame[start..].windows(from.len()).position(|bytes| bytes == from) {
        let at = start + place;
        frame[at..at + to.len()].copy_from_slice(to);
        start = at + to.len();
    }
}

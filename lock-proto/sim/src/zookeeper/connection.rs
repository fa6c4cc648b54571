//! Server-side state of a connection.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::acl::DigestUser;
use lock_proto::Instant;
use lock_proto::zookeeper::codec::Op;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ZooKeeperPeer {
    pub(super) member: usize,
    /// Received bytes of incomplete frames, or of frames that wait for the session.
    pub(super) received: Vec<u8>,
    pub(super) state: LoginState,
    pub(super) identities: BTreeSet<DigestUser>,
    pub(super) last_heard: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LoginState {
    /// Waits for the connect request.
    New,
    /// The session is being created or continued. Nothing else is read meanwhile.
    Starting(PeerSession),
    Open(PeerSession),
}

/// The session of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerSession {
    pub(super) id: i64,
    /// In ms, as negotiated for this connection.
    pub(super) timeout: i32,
}

impl ZooKeeperPeer {
    pub(super) const fn new(member: usize, now: Instant) -> Self {
        Self { member, received: Vec::new(), state: LoginState::New, identities: BTreeSet::new(), last_heard: now }
    }

    pub(super) const fn session(&self) -> Option<PeerSession> {
        match self.state {
            LoginState::New => None,
            LoginState::Starting(session) | LoginState::Open(session) => Some(session),
        }
    }

    /// Removes the next frame. `None` if it is incomplete.
    pub(super) fn next_frame(&mut self, limit: usize) -> Result<Option<Vec<u8>>, TooLong> {
        let Some((header, _)) = self.received.split_first_chunk() else { return Ok(None) };
        let len = usize::try_from(i32::from_be_bytes(*header)).map_err(|_| TooLong)?;
        if len > limit {
            return Err(TooLong);
        }
        if self.received.len() < 4 + len {
            return Ok(None);
        }
        Ok(Some(self.received.drain(..4 + len).skip(4).collect()))
    }
}

/// A frame has an invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// A request that waits for a commit: its own, or that of an earlier request of its session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitingRequest {
    pub(super) conn: u64,
    pub(super) xid: i32,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// It was given to the leader.
    Write,
    Sync {
        path: Box<str>,
    },
    CreateSession,
    CloseSession,
    /// It is answered when all before it are.
    Read(Op),
    /// It is rejected then.
    Throttled,
}

//! A ZooKeeper ensemble as a state machine: bytes of clients in, bytes out, no I/O.
//!
//! [`Ensemble`] answers as ZooKeeper 3.8 does. Each member has a tree of its own, and applies what
//! the leader commits. So it also reproduces what surprises clients: a follower that is cut off
//! from its leader answers pings and reads, and knows nothing of sessions that the leader has
//! ended, until it gives up the leader. A slow follower answers from an old tree. A request whose
//! session has moved closes its connection. A leader that was elected just now gives every session
//! its whole timeout.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Instant;
//! use lock_sim::zookeeper::{Ensemble, EnsembleConfig, EnsembleOutput};
//! use lock_proto::zookeeper::codec::{ConnectRequest, ConnectResponse};
//!
//! let mut now = Instant::from_millis(1);
//! let mut ensemble = Ensemble::new(now, EnsembleConfig::new(3, 7));
//!
//! // Connection 1, to a follower, which has a session created.
//! ensemble.handle_connected(now, 1, 1);
//! let mut bytes = Vec::new();
//! let password = vec![0; 16].into();
//! let connect =
//!     ConnectRequest { last_zxid_seen: 0, timeout_ms: 10_000, session_id: 0, password, read_only: false };
//! connect.encode(&mut bytes);
//! ensemble.handle_received(now, 1, &bytes);
//! now = now + Duration::from_millis(10);
//! ensemble.handle_timeout(now);
//! let Some(EnsembleOutput::Send { conn: 1, bytes }) = ensemble.poll_output() else { panic!() };
//! let session = ConnectResponse::decode(&bytes[4..]).unwrap();
//! assert_eq!((session.timeout_ms, ensemble.sessions().len()), (10_000, 1));
//!
//! // The client is silent, and the session expires at a multiple of the tick.
//! now = now + Duration::from_secs(14);
//! ensemble.handle_timeout(now);
//! assert_eq!(ensemble.poll_output(), Some(EnsembleOutput::Closed { conn: 1 }));
//! assert!(ensemble.sessions().is_empty());
//! ```
//!
//! # What is simulated
//!
//! The leader validates requests, proposes them, and commits what a majority has logged. An
//! election takes some time and is won by the member that has logged most; the others then take
//! over its tree. Not simulated: observers, local sessions, nodes with a TTL, persistent watches,
//! quotas, reconfiguration, SASL, and requests that locks do not use, which close the connection.

// S14

mod acl;
mod admin;
mod config;
mod connection;
mod election;
mod member;
mod prep;
mod quorum;
mod serve;
mod session;
mod timers;
mod tree;
mod txn;
mod watch;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::rng::Rng;
use connection::ZooKeeperPeer;
use lock_proto::Instant;
use lock_proto::zookeeper::codec::{ConnectRequest, RequestFrame};
use member::{EnsembleMember, FollowerLink};

pub use super::world::zookeeper::{Builder, World, ZookeeperClient};
pub use admin::{NodeChange, OpenSession};
pub use config::{EnsembleConfig, ServerRelease};

/// A state in which an ensemble rejects requests of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Requests wait for long, and every other one is rejected with `THROTTLEDOP` in place of its
    /// execution, as with the property `zookeeper.throttledOpWaitTime`. Pings and the ends of
    /// sessions are executed.
    Throttled,
    /// No client may delete nodes. Sessions still end, and their nodes with them.
    NoDelete,
}

/// An output of an [`Ensemble`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EnsembleOutput {
    /// Bytes for a client.
    Send {
        /// The connection.
        conn: u64,
        /// Whole frames.
        bytes: Vec<u8>,
    },
    /// The member closed the connection. No more output follows on it.
    Closed {
        /// The connection.
        conn: u64,
    },
}

/// What a member received, for a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// The first frame of a connection.
    Connect(ConnectRequest),
    /// A request.
    Request(RequestFrame),
}

/// A simulated ZooKeeper ensemble.
///
/// Feed it events (`handle_*`), carry out what [`poll_output`](Self::poll_output) returns, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline). Members are
/// identified by index. The caller numbers connections, and never reuses a number. Events for
/// unknown or closed connections are ignored.
///
/// # Panics
///
/// Every method that takes a member panics if the index is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ensemble {
    config: EnsembleConfig,
    now: Instant,
    /// The start, from which the members' periodic work is scheduled.
    epoch: Instant,
    rng: Rng,
    members: Vec<EnsembleMember>,
    /// Connections between members.
    links: BTreeMap<u64, FollowerLink>,
    next_link: u64,
    /// A leader that stepped down by hand.
    avoided: Option<usize>,
    conditions: BTreeSet<Condition>,
    connections: BTreeMap<u64, ZooKeeperPeer>,
    seen: VecDeque<(u64, Seen)>,
    changes: VecDeque<NodeChange>,
    /// The last transaction whose changes were recorded.
    recorded: i64,
    outputs: VecDeque<EnsembleOutput>,
}

impl Ensemble {
    /// Creates an empty ensemble with all members connected, led by the first one.
    #[must_use]
    pub fn new(now: Instant, config: EnsembleConfig) -> Self {
        let zxid = i64::from(config.epoch.saturating_sub(1)) << 32;
        let mut ensemble = Self {
            now,
            epoch: now,
            rng: Rng::new(config.seed),
            members: (0..config.members).map(|_| EnsembleMember::new(zxid)).collect(),
            links: BTreeMap::new(),
            next_link: 0,
            avoided: None,
            conditions: BTreeSet::new(),
            connections: BTreeMap::new(),
            seen: VecDeque::new(),
            changes: VecDeque::new(),
            recorded: zxid,
            outputs: VecDeque::new(),
            config,
        };
        ensemble.lead(0);
        for member in 1..ensemble.members.len() {
            ensemble.join(member, 0);
        }
        ensemble
    }

    /// A client has connected to a member. If the member is down, the connection is closed.
    pub fn handle_connected(&mut self, now: Instant, member: usize, conn: u64) {
        self.advance(now);
        if self.members[member].up {
            self.connections.insert(conn, ZooKeeperPeer::new(member, now));
        } else {
            self.outputs.push_back(EnsembleOutput::Closed { conn });
        }
    }

    /// The client has disconnected. Its requests that were received are still executed, and its
    /// session goes on.
    pub fn handle_disconnected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        if let Some(connection) = self.connections.remove(&conn) {
            self.members[connection.member].watches.forget(conn);
        }
        self.outputs.retain(|output| output.conn() != conn);
    }

    /// Bytes arrived from a client, in portions of any size.
    pub fn handle_received(&mut self, now: Instant, conn: u64, bytes: &[u8]) {
        self.advance(now);
        self.receive(conn, bytes);
        self.advance(now);
    }

    /// Handles everything that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Returns the next output for a client. The order must be kept.
    pub fn poll_output(&mut self) -> Option<EnsembleOutput> {
        self.outputs.pop_front()
    }

    /// Returns the next frame that a member received, and its connection. Recorded only with
    /// [`EnsembleConfig::monitor`].
    pub fn poll_seen(&mut self) -> Option<(u64, Seen)> {
        self.seen.pop_front()
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next: now, if there is output.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.outputs.is_empty() { self.next_due() } else { Some(self.now) }
    }

    fn note_seen(&mut self, conn: u64, what: impl FnOnce() -> Seen) {
        if self.config.monitor {
            self.seen.push_back((conn, what()));
        }
    }
}

impl EnsembleOutput {
    /// Returns the connection.
    #[must_use]
    pub const fn conn(&self) -> u64 {
        match self {
            Self::Send { conn, .. } | Self::Closed { conn } => *conn,
        }
    }
}

#[cfg(test)]
mod tests;

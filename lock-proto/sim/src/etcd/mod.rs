//! An etcd cluster as a state machine: typed calls and stream messages in, replies out, no I/O.
//!
//! [`Cluster`] replies as etcd 3.4 does, with its codes, texts and revisions. It also reproduces
//! surprising behaviour. A watch that starts at or before the current revision is parked and synced
//! only every 100 ms. Expired leases are looked for every 500 ms. A new leader renews every lease.
//! A rejected watch has no id. `lock-tokio/tests/etcd_model` compares it with a real server, call
//! by call.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Instant;
//! use lock_proto::etcd::message::{LeaseGrantRequest, PutRequest, RequestOp, Op, TxnRequest};
//! use lock_proto::etcd::{Rpc, RpcReply};
//! use lock_sim::etcd::{Cluster, ClusterConfig, ClusterOutput};
//!
//! let mut now = Instant::from_millis(1);
//! let mut cluster = Cluster::new(now, ClusterConfig::new(3, 7));
//!
//! // Connection 1, to the first member: a lease of ten seconds, and a key attached to it.
//! cluster.handle_connected(now, 0, 1);
//! cluster.handle_call(now, 1, 100, None, &Rpc::Grant(LeaseGrantRequest { ttl: 10, id: 77 }));
//! let put = PutRequest { key: "stock/4d".into(), value: "".into(), lease: 77, ..PutRequest::default() };
//! let put = RequestOp { request: Some(Op::Put(put)) };
//! let put = TxnRequest { success: vec![put], ..TxnRequest::default() };
//! cluster.handle_call(now, 1, 101, None, &Rpc::Txn(put));
//! let Some(ClusterOutput::Reply { rpc: 100, reply, .. }) = cluster.poll_output() else {
//!     panic!()
//! };
//! let Ok(RpcReply::Grant(grant)) = reply else { panic!() };
//! assert_eq!(grant.ttl, 10);
//! let reply = cluster.poll_output();
//! assert!(matches!(reply, Some(ClusterOutput::Reply { rpc: 101, reply: Ok(_), .. })));
//! assert_eq!(cluster.keys().len(), 1);
//!
//! // The leader dies. Another one is elected a second later and renews the lease.
//! let leader = cluster.leader().unwrap();
//! assert_eq!(leader, 0);
//! cluster.crash(now, leader);
//! assert_eq!(cluster.poll_output(), Some(ClusterOutput::Dropped { conn: 1 }));
//! while cluster.leader().is_none() {
//!     now = cluster.next_deadline().unwrap();
//!     cluster.handle_timeout(now);
//! }
//! now = now + Duration::from_secs(10);
//! cluster.handle_timeout(now);
//! assert_eq!(cluster.keys().len(), 1);
//!
//! // Without a keep-alive the lease expires, and its key is deleted.
//! now = now + Duration::from_secs(2);
//! cluster.handle_timeout(now);
//! assert!(cluster.keys().is_empty() && cluster.leases().is_empty());
//! ```
//!
//! # What is simulated
//!
//! All members share one store, which is what consensus guarantees. A member that is cut off from
//! the others ([`Cluster::isolate`]) makes no progress: calls wait and time out, watches receive
//! nothing until it is back, and its streams end when it has had no leader for a while. Not
//! simulated: the log itself (a write that was acknowledged is never lost), a replaced leader that
//! still confirms keep-alives (before 3.4.31 and 3.5.13, etcd issue 15247), learners,
//! reconfiguration, serializable transactions, which wait for a leader like others, and other
//! services than KV, Lease and Watch.

mod admin;
mod calls;
mod config;
mod connection;
mod gateway;
mod keep_alive;
mod lease;
mod members;
mod refusal;
mod span;
mod store;
mod streams;
mod timers;
mod txn;
mod user;
mod watch;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::rng::Rng;
use calls::IssuedToken;
use connection::{EtcdPeer, Inbound, Pending};
use lock_proto::Instant;
use lock_proto::etcd::{Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};
use members::ClusterMember;
use store::KeySpace;

pub use super::world::etcd::{Builder, EtcdClient, World};
pub use admin::Lease;
pub use config::{ClusterConfig, ProposalOutcome};
pub use gateway::{ReplyShape, UnaryCall};
pub use user::User;

/// A state in which a cluster rejects requests, or shows a defect that versions of etcd have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Too many proposals are waiting to be applied. Proposals are rejected, reads are not.
    TooManyRequests,
    /// The database has reached its quota. Requests that put a key or grant a lease are rejected.
    NoSpace,
    /// A member that led when it was cut off, and is connected again after another was elected,
    /// answers reads from its old state until it learns of that. It takes up to 100 ms. So do etcd
    /// before 3.4.42, 3.5.28 and 3.6.9 after a pause (issue 20418).
    StaleReads,
    /// A keep-alive that arrives before its lease expires is answered with the TTL, although the
    /// lease was revoked meanwhile. So do etcd before 3.4.38, 3.5.23 and 3.6.5 (issue 20547).
    RevokedKeepAlives,
}

/// An output of a [`Cluster`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterOutput {
    /// The reply to a call.
    Reply {
        /// The connection.
        conn: u64,
        /// The call.
        rpc: u64,
        /// The reply.
        reply: Result<RpcReply, Status>,
    },
    /// A message on a stream.
    Message {
        /// The connection.
        conn: u64,
        /// The stream.
        stream: u64,
        /// The message.
        message: StreamReceived,
    },
    /// The end of a stream.
    Ended {
        /// The connection.
        conn: u64,
        /// The stream.
        stream: u64,
        /// The reason.
        status: Status,
    },
    /// The member closed the connection, or could not be reached. No more output follows on it.
    Dropped {
        /// The connection.
        conn: u64,
    },
}

impl ClusterOutput {
    /// Returns the connection.
    #[must_use]
    pub const fn conn(&self) -> u64 {
        match self {
            Self::Reply { conn, .. }
            | Self::Message { conn, .. }
            | Self::Ended { conn, .. }
            | Self::Dropped { conn } => *conn,
        }
    }
}

/// A simulated etcd cluster.
///
/// Feed it events (`handle_*`), carry out what [`poll_output`](Self::poll_output) returns, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline). Members are
/// identified by index. The caller numbers connections, calls and streams, and never reuses the
/// number of a connection. Events for unknown or closed connections and streams are ignored.
///
/// # Panics
///
/// Every method that takes a member panics if the index is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    config: ClusterConfig,
    now: Instant,
    /// The start, from which the members' periodic work is scheduled.
    epoch: Instant,
    rng: Rng,
    store: KeySpace,
    members: Vec<ClusterMember>,
    leader: Option<usize>,
    /// When the connected members will have elected a leader.
    election: Option<Instant>,
    /// Set by `lose_quorum`: no leader can be elected.
    quorum_lost: bool,
    conditions: BTreeSet<Condition>,
    logins: BTreeMap<String, IssuedToken>,
    connections: BTreeMap<u64, EtcdPeer>,
    pending: VecDeque<Pending>,
    /// Proposals without a caller that will be applied once there is a leader.
    orphans: VecDeque<Pending>,
    /// When parked watches are synced.
    sync: Option<Instant>,
    calls: BTreeMap<&'static str, u64>,
    outputs: VecDeque<ClusterOutput>,
    /// Where clients reach the members, if that is set.
    client_urls: Vec<String>,
}

impl Cluster {
    /// Creates an empty cluster with all members connected, led by the first one.
    #[must_use]
    pub fn new(now: Instant, config: ClusterConfig) -> Self {
        Self {
            now,
            epoch: now,
            rng: Rng::new(config.seed),
            store: KeySpace::new(),
            members: (0..config.members).map(ClusterMember::new).collect(),
            leader: Some(0),
            election: None,
            quorum_lost: false,
            conditions: BTreeSet::new(),
            logins: BTreeMap::new(),
            connections: BTreeMap::new(),
            pending: VecDeque::new(),
            orphans: VecDeque::new(),
            sync: None,
            calls: BTreeMap::new(),
            outputs: VecDeque::new(),
            client_urls: Vec::new(),
            config,
        }
    }

    /// A client has connected to a member. If the member is down, the connection is dropped.
    pub fn handle_connected(&mut self, now: Instant, member: usize, conn: u64) {
        self.advance(now);
        if self.members[member].up {
            self.connections.insert(conn, EtcdPeer::new(member));
        } else {
            self.outputs.push_back(ClusterOutput::Dropped { conn });
        }
    }

    /// The client has disconnected. Its pending requests may still be executed, as in etcd.
    pub fn handle_disconnected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        let Some(connection) = self.connections.remove(&conn) else { return };
        let calls = connection.inbox.into_iter().filter_map(|(_, inbound)| match inbound {
            Inbound::Call { token, request, .. } => Some((token, request)),
            Inbound::Open { .. } | Inbound::Send { .. } | Inbound::Close { .. } => None,
        });
        for (token, request) in calls.collect::<Vec<_>>() {
            self.call_orphaned(connection.member, token, request);
        }
        self.drop_pending(|call| call.conn == conn);
        self.outputs.retain(|output| output.conn() != conn);
    }

    /// A client makes a unary call.
    pub fn handle_call(&mut self, now: Instant, conn: u64, rpc: u64, token: Option<&str>, request: &Rpc) {
        self.advance(now);
        *self.calls.entry(request.path()).or_default() += 1;
        self.accept(conn, Inbound::Call { rpc, token: token.map(Into::into), request: request.clone() });
    }

    /// A client opens a stream, with the metadata `hasleader: true`, so that the stream ends when
    /// its member has no leader.
    pub fn handle_open(&mut self, now: Instant, conn: u64, stream: u64, kind: StreamKind, token: Option<&str>) {
        self.advance(now);
        *self.calls.entry(kind.path()).or_default() += 1;
        self.accept(conn, Inbound::Open { stream, kind, token: token.map(Into::into) });
    }

    /// A client sends a message on a stream.
    pub fn handle_send(&mut self, now: Instant, conn: u64, stream: u64, message: &StreamSend) {
        self.advance(now);
        self.accept(conn, Inbound::Send { stream, message: message.clone() });
    }

    /// A client closes a stream.
    pub fn handle_close(&mut self, now: Instant, conn: u64, stream: u64) {
        self.advance(now);
        self.accept(conn, Inbound::Close { stream });
    }

    /// Handles everything that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Returns the next output for a client. The order must be kept.
    pub fn poll_output(&mut self) -> Option<ClusterOutput> {
        self.outputs.pop_front()
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next: now, if there is output.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.outputs.is_empty() { self.next_due() } else { Some(self.now) }
    }

    /// Accepts a client's input. A slow member delays it.
    fn accept(&mut self, conn: u64, inbound: Inbound) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let due = self.now + self.members[connection.member].inward;
        let due = connection.inbox.back().map_or(due, |(last, _)| due.max(*last));
        if due <= self.now {
            self.take(conn, inbound);
        } else {
            connection.inbox.push_back((due, inbound));
        }
    }

    fn take(&mut self, conn: u64, inbound: Inbound) {
        match inbound {
            Inbound::Call { rpc, token, request } => self.call(conn, rpc, token, request),
            Inbound::Open { stream, kind, token } => self.open(conn, stream, kind, token),
            Inbound::Send { stream, message } => self.receive(conn, stream, message),
            Inbound::Close { stream } => self.close(conn, stream),
        }
    }

    /// Sends an output. A slow member delays it.
    fn emit(&mut self, output: ClusterOutput) {
        let Some(connection) = self.connections.get_mut(&output.conn()) else { return };
        let due = self.now + self.members[connection.member].outward;
        let due = connection.outbox.back().map_or(due, |(last, _)| due.max(*last));
        if due <= self.now {
            self.outputs.push_back(output);
        } else {
            connection.outbox.push_back((due, output));
        }
    }
}

#[cfg(test)]
mod tests;

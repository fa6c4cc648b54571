//! An etcd cluster as a machine: typed calls and stream messages in, replies out, no I/O.
//!
//! [`Cluster`] answers as etcd 3.4 does, with its codes and texts, its revisions and its habits, also the awkward ones: a watch that
//! begins at or before the current revision is parked and brought up to date every 100 ms only, a lease that has expired is looked for
//! every 500 ms, a new leader gives every lease its whole TTL again, a refused watch has no number. `lock-tokio/tests/etcd_model`
//! compares it with a real server, call by call.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Instant;
//! use lock_proto::etcd::message::{LeaseGrantRequest, PutRequest, RequestOp, Op, TxnRequest};
//! use lock_proto::etcd::{Rpc, RpcReply};
//! use lock_proto::sim::etcd::{Cluster, ClusterConfig, ClusterOutput};
//!
//! let mut now = Instant::from_millis(1);
//! let mut cluster = Cluster::new(now, ClusterConfig::new(3, 7));
//!
//! // Connection 1, to the first member: a lease of ten seconds, and a key that hangs on it.
//! cluster.handle_connected(now, 0, 1);
//! cluster.handle_call(now, 1, 100, None, &Rpc::Grant(LeaseGrantRequest { ttl: 10, id: 77 }));
//! let put = PutRequest { key: "stock/4d".into(), value: "".into(), lease: 77 };
//! let put = TxnRequest { success: vec![RequestOp { request: Some(Op::Put(put)) }], ..TxnRequest::default() };
//! cluster.handle_call(now, 1, 101, None, &Rpc::Txn(put));
//! let Some(ClusterOutput::Reply { rpc: 100, reply: Ok(RpcReply::Grant(grant)), .. }) = cluster.poll_output() else { panic!() };
//! assert_eq!(grant.ttl, 10);
//! assert!(matches!(cluster.poll_output(), Some(ClusterOutput::Reply { rpc: 101, reply: Ok(_), .. })));
//! assert_eq!(cluster.keys().len(), 1);
//!
//! // The leader dies. Somebody else leads a second later, and the lease has its whole life again.
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
//! // Nobody gives a sign of life: it ends, and its key with it.
//! now = now + Duration::from_secs(2);
//! cluster.handle_timeout(now);
//! assert!(cluster.keys().is_empty() && cluster.leases().is_empty());
//! ```
//!
//! # What is simulated
//!
//! All members answer from one store, which is what consensus promises. A member that is cut off from the others
//! ([`Cluster::isolate`]) does not get on: calls wait and time out, its watches hear nothing until it is back, and its streams end when it
//! has had no leader for a while. Not simulated: the log itself (no write is ever lost once it was answered), learners,
//! reconfiguration, and requests that a lock does not make.

mod calls;
mod config;
mod connection;
mod due;
mod hand;
mod lease;
mod members;
mod refusal;
mod span;
mod store;
mod streams;
mod txn;
mod user;
mod watch;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::rng::Rng;
use crate::etcd::{Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};
use crate::time::Instant;
use calls::Login;
use connection::{Connection, Inbound, Pending};
use members::Member;
use store::Store;

pub use super::world::etcd::{Builder, EtcdClient, World};
pub use config::{ClusterConfig, Fate};
pub use hand::Lease;
pub use user::User;

/// A state of a cluster in which it refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Too much waits to be applied: proposals are refused, reads are not.
    TooManyRequests,
    /// The database has reached its quota: what would put a key or make a lease is refused.
    NoSpace,
}

/// What a [`Cluster`] tells its surroundings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterOutput {
    /// A call is answered.
    Reply {
        /// The connection.
        conn: u64,
        /// The call.
        rpc: u64,
        /// The answer.
        reply: Result<RpcReply, Status>,
    },
    /// A stream has a message.
    Message {
        /// The connection.
        conn: u64,
        /// The stream.
        stream: u64,
        /// The message.
        message: StreamReceived,
    },
    /// A stream is over.
    Ended {
        /// The connection.
        conn: u64,
        /// The stream.
        stream: u64,
        /// Why.
        status: Status,
    },
    /// The member has closed the connection, or could not be reached. Nothing more comes on it.
    Dropped {
        /// The connection.
        conn: u64,
    },
}

impl ClusterOutput {
    /// The connection that it is for.
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
/// Feed it facts (`handle_*`), carry out what [`poll_output`](Self::poll_output) tells, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline). Members are named by their index;
/// connections, calls and streams are numbered by the caller, a connection's number being used once. Facts for what is not there (any
/// more) are harmless.
///
/// # Panics
///
/// Everything that names a member panics if there is none of that index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    config: ClusterConfig,
    now: Instant,
    /// When it was started: the members' periodic work is counted from there.
    epoch: Instant,
    rng: Rng,
    store: Store,
    members: Vec<Member>,
    leader: Option<usize>,
    /// When the members that are connected will have elected one.
    election: Option<Instant>,
    /// By hand: nobody can lead.
    quorum_lost: bool,
    conditions: BTreeSet<Condition>,
    logins: BTreeMap<String, Login>,
    connections: BTreeMap<u64, Connection>,
    /// Calls that wait for a leader, in the order in which they came.
    pending: VecDeque<Pending>,
    /// Proposals that nobody waits for any more, and that will be applied when there is a leader.
    ghosts: VecDeque<Pending>,
    /// When parked watches are brought up to date.
    sync: Option<Instant>,
    calls: BTreeMap<&'static str, u64>,
    outputs: VecDeque<ClusterOutput>,
}

impl Cluster {
    /// A cluster without data, all of whose members are connected; the first one leads.
    #[must_use]
    pub fn new(now: Instant, config: ClusterConfig) -> Self {
        Self {
            now,
            epoch: now,
            rng: Rng::new(config.seed),
            store: Store::new(),
            members: (0..config.members).map(Member::new).collect(),
            leader: Some(0),
            election: None,
            quorum_lost: false,
            conditions: BTreeSet::new(),
            logins: BTreeMap::new(),
            connections: BTreeMap::new(),
            pending: VecDeque::new(),
            ghosts: VecDeque::new(),
            sync: None,
            calls: BTreeMap::new(),
            outputs: VecDeque::new(),
            config,
        }
    }

    // ---- facts ----

    /// A client has connected to a member. If that one is down, the connection is dropped.
    pub fn handle_connected(&mut self, now: Instant, member: usize, conn: u64) {
        self.advance(now);
        if self.members[member].up {
            self.connections.insert(conn, Connection::new(member));
        } else {
            self.outputs.push_back(ClusterOutput::Dropped { conn });
        }
    }

    /// The client has hung up. What it sent before may still be done, as with a real server.
    pub fn handle_disconnected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        let Some(connection) = self.connections.remove(&conn) else { return };
        let calls = connection.inbox.into_iter().filter_map(|(_, inbound)| match inbound {
            Inbound::Call { token, request, .. } => Some((token, request)),
            Inbound::Open { .. } | Inbound::Send { .. } | Inbound::Close { .. } => None,
        });
        for (token, request) in calls.collect::<Vec<_>>() {
            self.call_unheard(connection.member, token, request);
        }
        self.forget_pending(|call| call.conn == conn);
        self.outputs.retain(|output| output.conn() != conn);
    }

    /// A unary call.
    pub fn handle_call(&mut self, now: Instant, conn: u64, rpc: u64, token: Option<&str>, request: &Rpc) {
        self.advance(now);
        *self.calls.entry(request.path()).or_default() += 1;
        self.accept(conn, Inbound::Call { rpc, token: token.map(Into::into), request: request.clone() });
    }

    /// A stream is opened, with the metadata `hasleader: true`, so that it ends when its member has no leader.
    pub fn handle_open(&mut self, now: Instant, conn: u64, stream: u64, kind: StreamKind, token: Option<&str>) {
        self.advance(now);
        *self.calls.entry(kind.path()).or_default() += 1;
        self.accept(conn, Inbound::Open { stream, kind, token: token.map(Into::into) });
    }

    /// A message on a stream.
    pub fn handle_send(&mut self, now: Instant, conn: u64, stream: u64, message: &StreamSend) {
        self.advance(now);
        self.accept(conn, Inbound::Send { stream, message: message.clone() });
    }

    /// The client has ended a stream.
    pub fn handle_close(&mut self, now: Instant, conn: u64, stream: u64) {
        self.advance(now);
        self.accept(conn, Inbound::Close { stream });
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    // ---- drains ----

    /// What is to be told to clients, in this order.
    pub fn poll_output(&mut self) -> Option<ClusterOutput> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next; now, while output is queued.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.outputs.is_empty() { self.next_due() } else { Some(self.now) }
    }

    // ---- inside ----

    /// Takes what a client has sent; a slow member only lays it aside.
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

    /// Looks at what a client has sent.
    fn take(&mut self, conn: u64, inbound: Inbound) {
        match inbound {
            Inbound::Call { rpc, token, request } => self.call(conn, rpc, token, request),
            Inbound::Open { stream, kind, token } => self.open(conn, stream, kind, token),
            Inbound::Send { stream, message } => self.receive(conn, stream, message),
            Inbound::Close { stream } => self.close(conn, stream),
        }
    }

    /// Tells a client; a slow member does it later.
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

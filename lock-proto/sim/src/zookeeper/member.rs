//! A member, and the connections between members.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::acl::DigestUser;
use super::connection::WaitingRequest;
use super::prep::Outstanding;
use super::session::{LeaderSessions, SessionOwner};
use super::tree::Tree;
use super::txn::ZooKeeperTxn;
use super::watch::NodeWatches;
use lock_proto::Instant;
use lock_proto::zookeeper::codec::MultiOp;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EnsembleMember {
    pub(super) up: bool,
    /// Its process is stopped, as by `SIGSTOP`.
    pub(super) frozen: bool,
    /// When its periodic work goes on after a stop.
    pub(super) awake: Instant,
    /// Cut off from the other members.
    pub(super) isolated: bool,
    /// What comes from the leader is handled this much later.
    pub(super) lag: Duration,
    pub(super) tree: Tree,
    /// Logged transactions that are not committed, as far as this member knows.
    pub(super) log: VecDeque<Arc<ZooKeeperTxn>>,
    pub(super) role: MemberRole,
    pub(super) watches: NodeWatches,
    /// By session.
    pub(super) waiting: BTreeMap<i64, VecDeque<WaitingRequest>>,
    /// Sessions and numbers of the writes of its clients, in the order of the leader.
    pub(super) writes: VecDeque<(i64, i32)>,
    /// Number of sessions that it has created.
    pub(super) sessions: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MemberRole {
    /// Looks for a leader, and serves nobody.
    Looking {
        since: Instant,
    },
    Following {
        link: u64,
        /// Sessions of clients that were heard since the leader asked last, with their timeouts.
        touched: BTreeMap<i64, i32>,
    },
    Leading(Leading),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leading {
    /// The last zxid that was given to a transaction.
    pub(super) zxid: i64,
    pub(super) outstanding: Outstanding,
    pub(super) proposals: VecDeque<Proposal>,
    pub(super) sessions: LeaderSessions,
    /// When it steps down, since too few members follow it.
    pub(super) gives_up: Option<Instant>,
    /// When it last looked for empty containers.
    pub(super) containers_checked: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Proposal {
    pub(super) txn: Arc<ZooKeeperTxn>,
    pub(super) acks: BTreeSet<usize>,
    /// Requests to `sync` that are answered after it, by connection.
    pub(super) syncs: Vec<(u64, i64, i32)>,
}

impl EnsembleMember {
    pub(super) fn new(zxid: i64) -> Self {
        Self {
            up: true,
            frozen: false,
            awake: Instant::ZERO,
            isolated: false,
            lag: Duration::ZERO,
            tree: Tree::new(zxid),
            log: VecDeque::new(),
            role: MemberRole::Looking { since: Instant::ZERO },
            watches: NodeWatches::default(),
            waiting: BTreeMap::new(),
            writes: VecDeque::new(),
            sessions: 0,
        }
    }

    /// Returns the last transaction that it has logged.
    pub(super) fn logged(&self) -> i64 {
        self.log.back().map_or(self.tree.zxid, |txn| txn.zxid)
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.up && !self.isolated
    }

    pub(super) const fn runs(&self) -> bool {
        self.up && !self.frozen
    }

    pub(super) const fn leading(&self) -> Option<&Leading> {
        match &self.role {
            MemberRole::Leading(leading) => Some(leading),
            MemberRole::Looking { .. } | MemberRole::Following { .. } => None,
        }
    }

    pub(super) const fn leading_mut(&mut self) -> Option<&mut Leading> {
        match &mut self.role {
            MemberRole::Leading(leading) => Some(leading),
            MemberRole::Looking { .. } | MemberRole::Following { .. } => None,
        }
    }

    pub(super) const fn is_looking(&self) -> bool {
        matches!(self.role, MemberRole::Looking { .. })
    }
}

/// A connection between a leader and a follower.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FollowerLink {
    pub(super) leader: usize,
    pub(super) follower: usize,
    pub(super) to_follower: VecDeque<(Instant, Down)>,
    pub(super) to_leader: VecDeque<(Instant, Up)>,
    /// Whether each side uses it still.
    pub(super) leader_open: bool,
    pub(super) follower_open: bool,
    /// Since when each side hears nothing.
    pub(super) leader_deaf: Option<Instant>,
    pub(super) follower_deaf: Option<Instant>,
    /// The leader asks for the sessions that were heard at the next half tick after this.
    pub(super) asks_after: Instant,
}

/// A message to a follower.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Down {
    Propose(Arc<ZooKeeperTxn>),
    Commit(i64),
    Synced {
        session: i64,
        xid: i32,
    },
    /// Whether a session may continue on this connection of a client.
    Validated {
        conn: u64,
        session: i64,
        valid: bool,
    },
    Ping,
    Closed,
}

/// A message to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Up {
    Ack(i64),
    Request(Submit),
    Sync { session: i64, xid: i32 },
    Validate { conn: u64, session: i64, timeout: i32 },
    Touched(BTreeMap<i64, i32>),
    Closed,
}

/// A request for a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Submit {
    pub(super) session: i64,
    pub(super) xid: Option<i32>,
    pub(super) wish: RoleWish,
    pub(super) identities: Vec<DigestUser>,
    pub(super) owner: SessionOwner,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RoleWish {
    Write(MultiOp),
    Multi(Vec<MultiOp>),
    CreateSession { timeout: i32 },
    CloseSession,
    DeleteContainer(Arc<str>),
}

/// Removes and returns the first element if it matches.
pub(super) fn pop_front_if<T>(queue: &mut VecDeque<T>, matches: impl FnOnce(&T) -> bool) -> Option<T> {
    if matches(queue.front()?) { queue.pop_front() } else { None }
}

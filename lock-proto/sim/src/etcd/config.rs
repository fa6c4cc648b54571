//! Configuration of a simulated cluster.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::time::Duration;

use super::user::User;

/// What happens to an unacknowledged proposal when its member crashes or loses its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProposalOutcome {
    /// Decided randomly, from the seed.
    Random,
    /// It is applied: immediately if there is a leader, otherwise once there is one.
    Applied,
    /// It is lost.
    Dropped,
}

/// The settings of a [`Cluster`](super::Cluster). The defaults are those of etcd 3.4.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a ClusterConfig does nothing until it is given to a Cluster"]
pub struct ClusterConfig {
    pub(super) members: usize,
    pub(super) seed: u64,
    pub(super) request_timeout: Duration,
    pub(super) election_timeout: Duration,
    pub(super) sync_interval: Duration,
    pub(super) lessor_interval: Duration,
    pub(super) progress_interval: Duration,
    pub(super) token_ttl: Duration,
    pub(super) min_ttl: i64,
    pub(super) max_txn_ops: usize,
    pub(super) max_request: usize,
    pub(super) max_message: usize,
    pub(super) users: BTreeMap<String, User>,
    pub(super) proposal_outcome: ProposalOutcome,
    pub(super) keep_alives_per_lease: bool,
}

impl ClusterConfig {
    /// Creates the settings of an empty cluster with this many members (at least one), without
    /// authentication. All random choices follow from `seed`.
    pub fn new(members: usize, seed: u64) -> Self {
        Self {
            members: members.max(1),
            seed,
            request_timeout: Duration::from_secs(7),
            election_timeout: Duration::from_secs(1),
            sync_interval: Duration::from_millis(100),
            lessor_interval: Duration::from_millis(500),
            progress_interval: Duration::from_secs(600),
            token_ttl: Duration::from_secs(300),
            min_ttl: 2,
            max_txn_ops: 128,
            max_request: 1_572_864,
            max_message: 1_572_864 + 512 * 1024,
            users: BTreeMap::new(),
            proposal_outcome: ProposalOutcome::Random,
            keep_alives_per_lease: false,
        }
    }

    /// Sets the timeout of a call without consensus. Default 7 s: 5 s and two election timeouts.
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the time to detect the loss of the leader and to elect another. Default 1 s.
    pub const fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = timeout;
        self
    }

    /// Sets the minimum TTL of a lease in seconds; shorter requests are raised to it. Default 2:
    /// one and a half election timeouts, rounded up.
    pub const fn min_ttl(mut self, seconds: i64) -> Self {
        self.min_ttl = seconds;
        self
    }

    /// Sets how long a token stays valid on a member without use. Default 5 minutes.
    pub const fn token_ttl(mut self, ttl: Duration) -> Self {
        self.token_ttl = ttl;
        self
    }

    /// Limits the conditions, and the operations of each branch, of a transaction. Default 128.
    pub const fn max_txn_ops(mut self, most: usize) -> Self {
        self.max_txn_ops = most;
        self
    }

    /// Limits the bytes of a request, and the bytes of a watch message, above which it is split if
    /// the watch allows that. Default 1.5 MiB and 2 MiB.
    pub const fn sizes(mut self, request: usize, message: usize) -> Self {
        (self.max_request, self.max_message) = (request, message);
        self
    }

    /// Sets the interval of the progress notifications of idle watches. Default 10 minutes.
    pub const fn progress_interval(mut self, interval: Duration) -> Self {
        self.progress_interval = interval;
        self
    }

    /// Adds a user. The first one turns authentication on.
    pub fn user(mut self, user: User) -> Self {
        self.users.insert(user.name.clone(), user);
        self
    }

    /// Sets whether members answer keep-alives as etcd's gRPC proxy does: the first of a lease at once,
    /// later ones up to a quarter of the TTL late, those of one lease in order, and those of different
    /// leases in any order. Default: false.
    pub const fn keep_alives_per_lease(mut self, on: bool) -> Self {
        self.keep_alives_per_lease = on;
        self
    }

    /// Sets what happens to proposals when a member crashes. Default: [`ProposalOutcome::Random`].
    pub const fn proposal_outcome(mut self, proposal_outcome: ProposalOutcome) -> Self {
        self.proposal_outcome = proposal_outcome;
        self
    }
}

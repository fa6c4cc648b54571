//! Scenarios on one Redis node, and on a quorum of several.

mod draw;
mod flawed;
mod run;

use core::fmt;
use core::time::Duration;

use super::tls::Tls;
use super::{Backend, Bounds, Scenario};
use crate::check::Rule;
use crate::redis::Condition;
use draw::{Kind, Recipe};
use lock_proto::Backoff;
use lock_proto::redis::{Protocol, Wake};

pub(super) use draw::loses_track;
pub use flawed::RedisFlaw;

/// Settings of every client that a plan varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// The longest TTL of any lock. A restarted quorum node does not vote for this long.
    pub ttl: Duration,
    /// Timeout of a quorum round.
    pub round: Duration,
    /// Polling interval of waiters.
    pub poll: Backoff,
    /// How waiters are woken.
    pub wake: Wake,
    /// How long a client hands a lock over locally, and how long it then backs off.
    pub turn: (Duration, Duration),
    /// Whether grants carry fencing tokens. Those of a quorum never do.
    pub fencing: bool,
    /// Maximum number of fencing tokens that one script mints.
    pub fence_block: u32,
    /// How long client hosts gather writes.
    pub gather: Duration,
    /// Whether clients have to log in.
    pub login: bool,
    /// Whether every client connects to every node before the first step.
    pub preconnect: bool,
    /// How long after its last login a node closes a connection.
    pub login_limit: Option<Duration>,
    /// The version of the protocol that clients ask for.
    pub protocol: Protocol,
}

/// Time for the clients to connect.
const CONNECT_TIME: Duration = Duration::from_millis(500);

/// Actions specific to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisAction {
    /// A condition in which a node refuses commands begins or ends.
    Condition {
        /// The node.
        node: usize,
        /// The condition.
        condition: Condition,
        /// Whether it begins.
        on: bool,
    },
    /// A node drops its script cache.
    FlushScripts(usize),
    /// A node requires every connection to log in again.
    LogOut(usize),
    /// A key is evicted or deleted by another program.
    Evict {
        /// The node.
        node: usize,
        /// The name of the lock, or `None` for the fence counter.
        name: Option<&'static str>,
    },
    /// Another program creates a key with the name of a lock, if there is none.
    Occupy {
        /// The node.
        node: usize,
        /// The lock's name.
        name: &'static str,
        /// A list, otherwise a foreign lock.
        list: bool,
        /// TTL of the key.
        key_ttl: Duration,
    },
    /// Replication to the replica of a node stops.
    StopReplication(usize),
    /// The replica of a node is promoted with the data it has.
    Promote(usize),
    /// Like `Promote`, with a replica that has been running for long.
    FailOver(usize),
    /// The address of a node leads a client to another node.
    Redirect {
        /// The client.
        client: usize,
        /// The node of the address.
        node: usize,
        /// The node that the client reaches.
        to: usize,
    },
}

impl fmt::Display for RedisAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { node, condition, on: true } => write!(f, "node {node} refuses: {condition:?}"),
            Self::Condition { node, condition, on: false } => write!(f, "node {node} recovers from {condition:?}"),
            Self::LogOut(node) => write!(f, "node {node} logs all connections out"),
            Self::FlushScripts(node) => write!(f, "node {node} drops its scripts"),
            Self::Evict { node, name: Some(name) } => write!(f, "node {node} evicts the key of {name}"),
            Self::Evict { node, name: None } => write!(f, "node {node} evicts the counter of fencing tokens"),
            Self::Occupy { node, name, list, key_ttl } => {
                let what = if *list { "data" } else { "a foreign lock" };
                write!(f, "another program puts {what} under {name} on node {node}, for {key_ttl:?}")
            }
            Self::StopReplication(node) => write!(f, "replication of node {node} stops"),
            Self::Promote(node) => write!(f, "the replica of node {node} is promoted"),
            Self::FailOver(node) => write!(f, "the long-running replica of node {node} is promoted"),
            Self::Redirect { client, node, to } => {
                write!(f, "the address of node {node} leads client {client} to node {to}")
            }
        }
    }
}

/// Rules that cannot hold if the server loses a lock, or expires it before the holder does. A
/// resource accepts a stale write until it has seen a newer fencing token.
const TWO_HOLDERS: &[Rule] = &[Rule::MutualExclusion, Rule::Ghost];
/// The same, where a holder cannot know how long the server keeps the lock.
const WRONG_CLOCKS: &[Rule] = &[Rule::MutualExclusion, Rule::Ghost, Rule::Validity];

const fn within_bounds(
    name: &'static str,
    about: &'static str,
    draw: fn(&mut super::Chance) -> super::Draft,
) -> Scenario {
    Scenario {
        name,
        about,
        backend: Backend::Redis,
        bounds: Bounds::Within,
        weight: 1,
        excused: &[],
        draw,
        run: run::run,
    }
}

const fn beyond_bounds(
    name: &'static str,
    about: &'static str,
    what: &'static str,
    draw: fn(&mut super::Chance) -> super::Draft,
) -> Scenario {
    let bounds = Bounds::Beyond(what);
    Scenario { name, about, backend: Backend::Redis, bounds, weight: 1, excused: TWO_HOLDERS, draw, run: run::run }
}

const fn wrong_clocks(scenario: Scenario) -> Scenario {
    Scenario { excused: WRONG_CLOCKS, ..scenario }
}

/// Maximum drift within the bounds, in µs per second. The clocks of a client and a server may
/// differ by 1 %; 0.4 % in either direction stays within.
const WITHIN: u64 = 4_000;

const QUIET: Recipe = Recipe {
    nodes: &[1, 3, 5],
    clients: 2..5,
    names: &[1, 2],
    gather: 0,
    drift: WITHIN,
    fenced: false,
    login: false,
    preconnect: false,
    stale: false,
    service: 0,
    tls: Tls::Never,
    credentials: false,
    notify: false,
    rates: &[],
};

pub(super) const CONTENTION: Scenario = within_bounds(
    "redis-contention",
    "clients contend for locks, while clients, servers and connections die",
    |chance| {
        let rates = &[(Kind::LockAction, 3), (Kind::KillClient, 1), (Kind::Crash, 2), (Kind::Reset, 2)];
        draw::draw(chance, &Recipe { rates, service: 200, ..QUIET })
    },
);

pub(super) const PAUSES: Scenario =
    within_bounds("redis-pauses", "clients and servers are paused for longer than a TTL", |chance| {
        let rates = &[(Kind::Pause, 4), (Kind::StopNode, 2), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], rates, ..QUIET })
    });

pub(super) const DRIFT: Scenario =
    within_bounds("redis-drift", "clocks run at different paces, within the allowance; packets are slow", |chance| {
        draw::draw(chance, &Recipe { rates: &[(Kind::Slow, 4), (Kind::LockAction, 1), (Kind::Pause, 1)], ..QUIET })
    });

pub(super) const DRIFT_BEYOND: Scenario = wrong_clocks(beyond_bounds(
    "redis-drift-beyond",
    "clocks run at paces that differ by up to a quarter",
    "clocks drift apart faster than the allowance",
    |chance| draw::draw(chance, &Recipe { drift: 120_000, fenced: true, rates: &[(Kind::Pause, 2)], ..QUIET }),
));

pub(super) const SUSPENDED: Scenario = wrong_clocks(beyond_bounds(
    "redis-suspended",
    "clients are suspended together with their clocks",
    "a client's clock stops",
    |chance| draw::draw(chance, &Recipe { fenced: true, rates: &[(Kind::Suspend, 4), (Kind::LockAction, 1)], ..QUIET }),
));

pub(super) const PARTITIONS: Scenario = within_bounds(
    "redis-partitions",
    "the network between a client and a node is cut, in one direction or both, and heals",
    |chance| {
        let rates =
            &[(Kind::Partition, 4), (Kind::OneDirection, 4), (Kind::Slow, 1), (Kind::Reset, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { rates, ..QUIET })
    },
);

pub(super) const DATA_LOSS: Scenario =
    within_bounds("redis-data-loss", "nodes of a quorum lose their data and start again", |chance| {
        let rates =
            &[(Kind::Forget, 4), (Kind::Crash, 2), (Kind::StopNode, 1), (Kind::LockAction, 1), (Kind::OneDirection, 1)];
        draw::draw(chance, &Recipe { nodes: &[3, 5], rates, ..QUIET })
    });

pub(super) const FORGETFUL: Scenario = beyond_bounds(
    "redis-forgetful",
    "the only node loses its data and starts again",
    "a single node forgets",
    |chance| {
        let rates = &[(Kind::Forget, 3), (Kind::Crash, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[1], fenced: true, rates, ..QUIET })
    },
);

pub(super) const PROMOTION: Scenario = beyond_bounds(
    "redis-promotion",
    "a replica without the last writes is promoted",
    "acknowledged writes are lost",
    |chance| {
        let rates = &[(Kind::Promote, 3), (Kind::Pause, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[1], fenced: true, rates, ..QUIET })
    },
);

pub(super) const CANCEL: Scenario =
    within_bounds("redis-cancel", "applications drop acquisitions and guards at every step", |chance| {
        let rates = &[(Kind::Abandon, 12), (Kind::LockAction, 3), (Kind::Reset, 2), (Kind::Slow, 1), (Kind::Pause, 1)];
        draw::draw(chance, &Recipe { rates, ..QUIET })
    });

pub(super) const TURNS: Scenario =
    within_bounds("redis-turns", "waiters of one client hand a lock over locally, under faults", |chance| {
        let rates =
            &[(Kind::Abandon, 3), (Kind::Reset, 1), (Kind::Pause, 1), (Kind::OneDirection, 1), (Kind::Crash, 1)];
        draw::draw(chance, &Recipe { clients: 1..3, nodes: &[1, 1, 3], rates, ..QUIET })
    });

pub(super) const SHUTDOWN: Scenario =
    within_bounds("redis-shutdown", "clients are shut down while they hold and wait, under faults", |chance| {
        let rates =
            &[(Kind::Shutdown, 2), (Kind::Reset, 2), (Kind::OneDirection, 1), (Kind::Crash, 1), (Kind::LockAction, 2)];
        draw::draw(chance, &Recipe { rates, ..QUIET })
    });

pub(super) const WAKE: Scenario = within_bounds(
    "redis-wake",
    "waiters are woken by releases, while signals are lost with connections, servers and waiters",
    |chance| {
        let rates =
            &[(Kind::Reset, 4), (Kind::KillClient, 1), (Kind::Crash, 1), (Kind::Abandon, 2), (Kind::OneDirection, 1)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], clients: 2..6, rates, ..QUIET })
    },
);

pub(super) const CLOCK_JUMPS: Scenario = wrong_clocks(beyond_bounds(
    "redis-clock-jumps",
    "the wall clocks of nodes are set, forward and back",
    "a server's clock is set",
    |chance| {
        let rates = &[(Kind::Jump, 4), (Kind::Pause, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { fenced: true, rates, ..QUIET })
    },
))
.weigh(8);

pub(super) const TOGETHER: Scenario = within_bounds(
    "redis-together",
    "clients take and release several locks at once, and hosts gather writes: one command releases many; nodes refuse commands for a while",
    |chance| {
        let rates = &[
            (Kind::Bunch, 20),
            (Kind::LockAction, 2),
            (Kind::Reset, 2),
            (Kind::FlushScripts, 2),
            (Kind::Refuse, 1),
            (Kind::Pause, 1),
            (Kind::OneDirection, 1),
            (Kind::Crash, 1),
            (Kind::Shutdown, 1),
        ];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], names: &[3, 8], gather: 3, rates, ..QUIET })
    },
);

pub(super) const STRANGERS: Scenario =
    within_bounds("redis-strangers", "other programs put locks and data where keys are free", |chance| {
        let rates = &[
            (Kind::Stranger, 12),
            (Kind::Bunch, 10),
            (Kind::LockAction, 2),
            (Kind::Pause, 4),
            (Kind::OneDirection, 1),
            (Kind::Reset, 1),
            (Kind::FlushScripts, 1),
            (Kind::Crash, 1),
            (Kind::Shutdown, 1),
        ];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], names: &[1, 3, 8], gather: 3, rates, ..QUIET })
    });

pub(super) const LATE: Scenario = within_bounds(
    "redis-late",
    "requests arrive after their client gave up, cleaned up, and used the lock again",
    |chance| {
        let rates = &[(Kind::Late, 30), (Kind::LockAction, 1), (Kind::Reset, 1), (Kind::Crash, 1)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], names: &[1, 3], clients: 1..4, rates, ..QUIET })
    },
);

pub(super) const CALM: Scenario = within_bounds(
    "redis-calm",
    "no faults: a release reaches the next waiter promptly, and no request is repeated",
    |chance| {
        let rates = &[(Kind::Bunch, 4), (Kind::Abandon, 2)];
        let recipe = Recipe { nodes: &[1, 1, 3], clients: 2..8, names: &[1, 1, 3], preconnect: true, ..QUIET };
        draw::draw(chance, &Recipe { notify: true, service: 500, rates, ..recipe })
    },
);

pub(super) const SLOW: Scenario = within_bounds(
    "redis-slow",
    "packets travel for up to several times the shortest TTL, and nodes are busy",
    |chance| {
        let rates = &[(Kind::Crawl, 8), (Kind::Slow, 2), (Kind::LockAction, 2), (Kind::Abandon, 1), (Kind::Bunch, 2)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], names: &[1, 3], service: 20_000, rates, ..QUIET })
    },
);

pub(super) const STALE: Scenario =
    within_bounds("redis-stale", "replies and disconnects arrive from replaced connections", |chance| {
        let rates = &[(Kind::Replace, 10), (Kind::LockAction, 2), (Kind::Abandon, 2), (Kind::Bunch, 2)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], names: &[1, 3], stale: true, rates, ..QUIET })
    })
    .weigh(4);

pub(super) const REFUSALS: Scenario = within_bounds(
    "redis-refusals",
    "nodes are out of memory, read-only, cannot write their snapshot, or are loading; they drop scripts",
    |chance| {
        let rates = &[(Kind::Refuse, 4), (Kind::FlushScripts, 2), (Kind::Reset, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { rates, ..QUIET })
    },
);

pub(super) const EVICTION: Scenario = beyond_bounds(
    "redis-eviction",
    "the only node evicts the keys of locks, and the counter of fencing tokens",
    "a key is deleted before it expires",
    |chance| {
        let rates = &[(Kind::Evict, 4), (Kind::Refuse, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[1], fenced: true, rates, ..QUIET })
    },
)
.weigh(4);

pub(super) const LOGINS: Scenario = within_bounds(
    "redis-logins",
    "nodes log open connections out, while clients contend and connections break",
    |chance| {
        let rates = &[(Kind::LogOut, 8), (Kind::Reset, 1), (Kind::LockAction, 2), (Kind::Pause, 1), (Kind::Crash, 1)];
        draw::draw(chance, &Recipe { login: true, rates, ..QUIET })
    },
);

pub(super) const BURSTS: Scenario = beyond_bounds(
    "redis-bursts",
    "the only node loses its counter of fencing tokens right after a burst of grants: evicted, gone in a restart, or missing on a promoted replica",
    "a single node forgets",
    |chance| {
        let rates = &[(Kind::Burst, 8), (Kind::LockAction, 1), (Kind::Reset, 1)];
        let recipe = Recipe { nodes: &[1], clients: 1..5, names: &[1, 3, 8], fenced: true, rates, ..QUIET };
        let mut draft = draw::draw(chance, &recipe);
        // A script mints one token per µs, so the clock passes them before the node grants again.
        let latency = &mut draft.setup.latency;
        *latency = latency.start.max(Duration::from_millis(1))..latency.end.max(Duration::from_millis(1));
        draft
    },
);

pub(super) const NAMES: Scenario = within_bounds(
    "redis-names",
    "addresses of quorum nodes lead to other nodes for a while, and partitions occur",
    |chance| {
        let rates =
            &[(Kind::Redirect, 6), (Kind::Partition, 6), (Kind::Reset, 1), (Kind::LockAction, 1), (Kind::Pause, 1)];
        draw::draw(chance, &Recipe { nodes: &[3, 5], names: &[1], rates, ..QUIET })
    },
);

pub(super) const FAIL_OVER: Scenario = within_bounds(
    "redis-fail-over",
    "long-running replicas without the last writes replace quorum nodes that every client knew",
    |chance| {
        let rates =
            &[(Kind::FailOver, 12), (Kind::Partition, 4), (Kind::Pause, 4), (Kind::Crash, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[3, 3, 5], names: &[1], preconnect: true, rates, ..QUIET })
    },
);

pub(super) const FIRST_SIGHT: Scenario = wrong_clocks(beyond_bounds(
    "redis-first-sight",
    "quorum nodes restart empty and their clocks jump forward, before some client first connects",
    "a server reports a wrong uptime to a client that connects first",
    |chance| {
        let rates = &[(Kind::ForgetAndStep, 4), (Kind::Partition, 1), (Kind::LockAction, 1)];
        draw::draw(chance, &Recipe { nodes: &[3], clients: 3..6, names: &[1], rates, ..QUIET })
    },
));

const TLS_RATES: &[(Kind, u64)] =
    &[(Kind::Handshake, 6), (Kind::LockAction, 2), (Kind::Reset, 2), (Kind::Crash, 1), (Kind::StopNode, 1)];

pub(super) const TLS: Scenario = within_bounds(
    "redis-tls",
    "certificates break for a while: handshakes fail, are cut, or take long, while connections break",
    |chance| draw::draw(chance, &Recipe { nodes: &[1], rates: TLS_RATES, tls: Tls::Always, ..QUIET }),
);

pub(super) const TLS_QUORUM: Scenario =
    within_bounds("redis-tls-quorum", "certificates break for a while, at one node of a quorum or all", |chance| {
        draw::draw(chance, &Recipe { nodes: &[3, 5], rates: TLS_RATES, tls: Tls::Always, ..QUIET })
    });

/// In half of the runs nothing fails but logins.
fn draw_credentials(chance: &mut super::Chance, nodes: &'static [usize]) -> super::Draft {
    let rates: &[(Kind, u64)] = if chance.one_in(2) {
        &[(Kind::ChangePasswords, 8), (Kind::LockAction, 2)]
    } else {
        &[
            (Kind::ChangePasswords, 6),
            (Kind::Source, 6),
            (Kind::LockAction, 2),
            (Kind::Reset, 4),
            (Kind::LogOut, 2),
            (Kind::Pause, 1),
            (Kind::Crash, 1),
            (Kind::StopNode, 1),
            (Kind::OneDirection, 1),
        ]
    };
    draw::draw(chance, &Recipe { nodes, rates, credentials: true, ..QUIET })
}

pub(super) const CREDENTIALS: Scenario = within_bounds(
    "redis-credentials",
    "credentials expire and passwords change; their source is slow, fails or is silent, and connections break",
    |chance| draw_credentials(chance, &[1]),
);

pub(super) const CREDENTIALS_QUORUM: Scenario = within_bounds(
    "redis-credentials-quorum",
    "credentials for the nodes of a quorum expire and change; their source is slow, fails or is silent",
    |chance| draw_credentials(chance, &[3, 5]),
);

pub(super) const SOCKETS: Scenario = within_bounds(
    "redis-sockets",
    "sockets take nothing for a while, also logins whose credentials expire meanwhile",
    |chance| {
        let rates = &[(Kind::BlockSocket, 12), (Kind::ChangePasswords, 2), (Kind::LockAction, 2), (Kind::Reset, 1)];
        draw::draw(chance, &Recipe { nodes: &[1, 1, 3], rates, credentials: true, ..QUIET })
    },
)
.weigh(4);

/// All faults within the bounds.
const EVERY_RATE: &[(Kind, u64)] = &[
    (Kind::LockAction, 3),
    (Kind::Abandon, 2),
    (Kind::Pause, 2),
    (Kind::StopNode, 1),
    (Kind::KillClient, 1),
    (Kind::Crash, 1),
    (Kind::ForgetInQuorum, 1),
    (Kind::Partition, 1),
    (Kind::OneDirection, 1),
    (Kind::Reset, 2),
    (Kind::Slow, 1),
    (Kind::Refuse, 1),
    (Kind::FlushScripts, 1),
    (Kind::Shutdown, 1),
];

pub(super) const EVERYTHING: Scenario = within_bounds("redis-everything", "all faults within the bounds", |chance| {
    draw::draw(chance, &Recipe { rates: EVERY_RATE, service: 1_000, tls: Tls::Sometimes, ..QUIET })
});

pub(super) const QUORUM: Scenario =
    within_bounds("redis-quorum", "all faults within the bounds, on quorums only", |chance| {
        draw::draw(chance, &Recipe { nodes: &[3, 5], rates: EVERY_RATE, tls: Tls::Sometimes, ..QUIET })
    });

pub(super) const BEYOND: Scenario = wrong_clocks(beyond_bounds(
    "redis-beyond",
    "all faults, within the bounds and beyond",
    "clocks and data",
    |chance| {
        let rates = &[
            (Kind::LockAction, 2),
            (Kind::Abandon, 2),
            (Kind::Pause, 2),
            (Kind::Suspend, 1),
            (Kind::StopNode, 1),
            (Kind::KillClient, 1),
            (Kind::Crash, 1),
            (Kind::OneDirection, 1),
            (Kind::Reset, 2),
            (Kind::Refuse, 1),
            (Kind::Evict, 1),
            (Kind::JumpForward, 1),
            (Kind::Promote, 1),
            (Kind::Shutdown, 1),
        ];
        draw::draw(chance, &Recipe { drift: 60_000, fenced: true, rates, ..QUIET })
    },
));

#[cfg(test)]
mod tests;

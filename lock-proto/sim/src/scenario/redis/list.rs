//! The scenarios on Redis.

use core::time::Duration;

use super::draw::RedisRecipe;
use crate::check::Rule;
use crate::scenario::faults::redis::{
    ABANDON, BUNCH, BURST, CRASH, CRAWL, EVICT, FAIL_OVER, FLUSH_SCRIPTS, FORGET, FORGET_AND_STEP, FORGET_IN_QUORUM,
    JUMP, JUMP_FORWARD, LATE, LOCK_ACTION, LOG_OUT, ONE_DIRECTION, PARTITION, PROMOTE, REDIRECT, REFUSE, SHUTDOWN,
    SLOW, STRANGER,
};
use crate::scenario::faults::{
    BLOCK_SOCKET, CHANGE_PASSWORDS, FaultEntry, HANDSHAKE, KILL_CLIENT, PAUSE_CLIENT, PAUSE_NODE, REPLACE, RESET,
    SOURCE, SUSPEND_CLIENT,
};
use crate::scenario::often::Often;
use crate::scenario::{Draws, Scenario};

/// Rules that cannot hold if the server loses a lock, or expires it before the holder does. A
/// resource accepts a stale write until it has seen a newer fencing token.
const TWO_HOLDERS: &[Rule] = &[Rule::MutualExclusion, Rule::Ghost];
/// The same, where a holder cannot know how long the server keeps the lock.
const WRONG_CLOCKS: &[Rule] = &[Rule::MutualExclusion, Rule::Ghost, Rule::Validity];

/// Maximum drift within the bounds, in µs per second. The clocks of a client and a server may
/// differ by 1 %; 0.4 % in either direction stays within.
const WITHIN: u64 = 4_000;

pub(super) const QUIET: RedisRecipe = RedisRecipe {
    faults: &[],
    other_faults: &[],
    nodes: &[1, 3, 5],
    clients: 2..5,
    names: &[1, 2],
    gather: 0,
    drift: WITHIN,
    fenced: false,
    login: false,
    preconnect: false,
    stale: false,
    least_latency: Duration::ZERO,
    service: 0,
    tls: Often::Never,
    credentials: false,
    notify: false,
};

const fn on_redis(name: &'static str, about: &'static str, recipe: &'static RedisRecipe) -> Scenario {
    Scenario::new(name, about, Draws::Redis(recipe))
}

const TLS_FAULTS: &[(FaultEntry, u64)] = &[(HANDSHAKE, 6), (LOCK_ACTION, 2), (RESET, 2), (CRASH, 1), (PAUSE_NODE, 1)];

/// In half of the runs nothing fails but logins.
const CREDENTIALS: RedisRecipe = RedisRecipe {
    other_faults: &[(CHANGE_PASSWORDS, 8), (LOCK_ACTION, 2)],
    faults: &[
        (CHANGE_PASSWORDS, 6),
        (SOURCE, 6),
        (LOCK_ACTION, 2),
        (RESET, 4),
        (LOG_OUT, 2),
        (PAUSE_CLIENT, 1),
        (CRASH, 1),
        (PAUSE_NODE, 1),
        (ONE_DIRECTION, 1),
    ],
    credentials: true,
    ..QUIET
};

/// All faults within the bounds.
const EVERY_FAULT: &[(FaultEntry, u64)] = &[
    (LOCK_ACTION, 3),
    (ABANDON, 2),
    (PAUSE_CLIENT, 2),
    (PAUSE_NODE, 1),
    (KILL_CLIENT, 1),
    (CRASH, 1),
    (FORGET_IN_QUORUM, 1),
    (PARTITION, 1),
    (ONE_DIRECTION, 1),
    (RESET, 2),
    (SLOW, 1),
    (REFUSE, 1),
    (FLUSH_SCRIPTS, 1),
    (SHUTDOWN, 1),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    on_redis(
        "redis-contention",
        "clients contend for locks, while clients, servers and connections die",
        &RedisRecipe {
            faults: &[(LOCK_ACTION, 3), (KILL_CLIENT, 1), (CRASH, 2), (RESET, 2)],
            service: 200,
            ..QUIET
        },
    ),
    on_redis(
        "redis-pauses",
        "clients and servers are paused for longer than a TTL",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            faults: &[(PAUSE_CLIENT, 4), (PAUSE_NODE, 2), (LOCK_ACTION, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-drift",
        "clocks run at different paces, within the allowance; packets are slow",
        &RedisRecipe { faults: &[(SLOW, 4), (LOCK_ACTION, 1), (PAUSE_CLIENT, 1)], ..QUIET },
    ),
    on_redis(
        "redis-drift-beyond",
        "clocks run at paces that differ by up to a quarter",
        &RedisRecipe { drift: 120_000, fenced: true, faults: &[(PAUSE_CLIENT, 2)], ..QUIET },
    )
    .beyond("clocks drift apart faster than the allowance", WRONG_CLOCKS),
    on_redis(
        "redis-suspended",
        "clients are suspended together with their clocks",
        &RedisRecipe { fenced: true, faults: &[(SUSPEND_CLIENT, 4), (LOCK_ACTION, 1)], ..QUIET },
    )
    .beyond("a client's clock stops", WRONG_CLOCKS),
    on_redis(
        "redis-partitions",
        "the network between a client and a node is cut, in one direction or both, and heals",
        &RedisRecipe {
            faults: &[(PARTITION, 4), (ONE_DIRECTION, 4), (SLOW, 1), (RESET, 1), (LOCK_ACTION, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-data-loss",
        "nodes of a quorum lose their data and start again",
        &RedisRecipe {
            nodes: &[3, 5],
            faults: &[(FORGET, 4), (CRASH, 2), (PAUSE_NODE, 1), (LOCK_ACTION, 1), (ONE_DIRECTION, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-names",
        "addresses of quorum nodes lead to other nodes for a while, and partitions occur",
        &RedisRecipe {
            nodes: &[3, 5],
            names: &[1],
            faults: &[(REDIRECT, 6), (PARTITION, 6), (RESET, 1), (LOCK_ACTION, 1), (PAUSE_CLIENT, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-fail-over",
        "long-running replicas without the last writes replace quorum nodes that every client knew",
        &RedisRecipe {
            nodes: &[3, 3, 5],
            names: &[1],
            preconnect: true,
            faults: &[(FAIL_OVER, 12), (PARTITION, 4), (PAUSE_CLIENT, 4), (CRASH, 1), (LOCK_ACTION, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-first-sight",
        "quorum nodes restart empty and their clocks jump forward, before some client first connects",
        &RedisRecipe {
            nodes: &[3],
            clients: 3..6,
            names: &[1],
            faults: &[(FORGET_AND_STEP, 4), (PARTITION, 1), (LOCK_ACTION, 1)],
            ..QUIET
        },
    )
    .beyond("a server reports a wrong uptime to a client that connects first", WRONG_CLOCKS),
    on_redis(
        "redis-forgetful",
        "the only node loses its data and starts again",
        &RedisRecipe { nodes: &[1], fenced: true, faults: &[(FORGET, 3), (CRASH, 1), (LOCK_ACTION, 1)], ..QUIET },
    )
    .beyond("a single node forgets", TWO_HOLDERS),
    on_redis(
        "redis-promotion",
        "a replica without the last writes is promoted",
        &RedisRecipe {
            nodes: &[1],
            fenced: true,
            faults: &[(PROMOTE, 3), (PAUSE_CLIENT, 1), (LOCK_ACTION, 1)],
            ..QUIET
        },
    )
    .beyond("acknowledged writes are lost", TWO_HOLDERS),
    on_redis(
        "redis-cancel",
        "applications drop acquisitions and guards at every step",
        &RedisRecipe {
            faults: &[(ABANDON, 12), (LOCK_ACTION, 3), (RESET, 2), (SLOW, 1), (PAUSE_CLIENT, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-turns",
        "waiters of one client hand a lock over locally, under faults",
        &RedisRecipe {
            clients: 1..3,
            nodes: &[1, 1, 3],
            faults: &[(ABANDON, 3), (RESET, 1), (PAUSE_CLIENT, 1), (ONE_DIRECTION, 1), (CRASH, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-shutdown",
        "clients are shut down while they hold and wait, under faults",
        &RedisRecipe {
            faults: &[(SHUTDOWN, 2), (RESET, 2), (ONE_DIRECTION, 1), (CRASH, 1), (LOCK_ACTION, 2)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-wake",
        "waiters are woken by releases, while signals are lost with connections, servers and waiters",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            clients: 2..6,
            faults: &[(RESET, 4), (KILL_CLIENT, 1), (CRASH, 1), (ABANDON, 2), (ONE_DIRECTION, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-clock-jumps",
        "the wall clocks of nodes are set, forward and back",
        &RedisRecipe { fenced: true, faults: &[(JUMP, 4), (PAUSE_CLIENT, 1), (LOCK_ACTION, 1)], ..QUIET },
    )
    .beyond("a server's clock is set", WRONG_CLOCKS)
    .weigh(8),
    on_redis(
        "redis-together",
        "clients take and release several locks at once, and hosts gather writes: one command releases many; nodes refuse commands for a while",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            names: &[3, 8],
            gather: 3,
            faults: &[
                (BUNCH, 20),
                (LOCK_ACTION, 2),
                (RESET, 2),
                (FLUSH_SCRIPTS, 2),
                (REFUSE, 1),
                (PAUSE_CLIENT, 1),
                (ONE_DIRECTION, 1),
                (CRASH, 1),
                (SHUTDOWN, 1),
            ],
            ..QUIET
        },
    ),
    on_redis(
        "redis-strangers",
        "other programs put locks and data where keys are free",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            names: &[1, 3, 8],
            gather: 3,
            faults: &[
                (STRANGER, 12),
                (BUNCH, 10),
                (LOCK_ACTION, 2),
                (PAUSE_CLIENT, 4),
                (ONE_DIRECTION, 1),
                (RESET, 1),
                (FLUSH_SCRIPTS, 1),
                (CRASH, 1),
                (SHUTDOWN, 1),
            ],
            ..QUIET
        },
    ),
    on_redis(
        "redis-late",
        "requests arrive after their client gave up, cleaned up, and used the lock again",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            names: &[1, 3],
            clients: 1..4,
            faults: &[(LATE, 30), (LOCK_ACTION, 1), (RESET, 1), (CRASH, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-calm",
        "no faults: a release reaches the next waiter promptly, and no request is repeated",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            clients: 2..8,
            names: &[1, 1, 3],
            preconnect: true,
            notify: true,
            service: 500,
            faults: &[(BUNCH, 4), (ABANDON, 2)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-slow",
        "packets travel for up to several times the shortest TTL, and nodes are busy",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            names: &[1, 3],
            service: 20_000,
            faults: &[(CRAWL, 8), (SLOW, 2), (LOCK_ACTION, 2), (ABANDON, 1), (BUNCH, 2)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-stale",
        "replies and disconnects arrive from replaced connections",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            names: &[1, 3],
            stale: true,
            faults: &[(REPLACE, 10), (LOCK_ACTION, 2), (ABANDON, 2), (BUNCH, 2)],
            ..QUIET
        },
    )
    .weigh(4),
    on_redis(
        "redis-refusals",
        "nodes are out of memory, read-only, cannot write their snapshot, or are loading; they drop scripts",
        &RedisRecipe { faults: &[(REFUSE, 4), (FLUSH_SCRIPTS, 2), (RESET, 1), (LOCK_ACTION, 1)], ..QUIET },
    ),
    on_redis(
        "redis-logins",
        "nodes log open connections out, while clients contend and connections break",
        &RedisRecipe {
            login: true,
            faults: &[(LOG_OUT, 8), (RESET, 1), (LOCK_ACTION, 2), (PAUSE_CLIENT, 1), (CRASH, 1)],
            ..QUIET
        },
    ),
    on_redis(
        "redis-eviction",
        "the only node evicts the keys of locks, and the counter of fencing tokens",
        &RedisRecipe { nodes: &[1], fenced: true, faults: &[(EVICT, 4), (REFUSE, 1), (LOCK_ACTION, 1)], ..QUIET },
    )
    .beyond("a key is deleted before it expires", TWO_HOLDERS)
    .weigh(4),
    on_redis(
        "redis-everything",
        "all faults within the bounds",
        &RedisRecipe { faults: EVERY_FAULT, service: 1_000, tls: Often::OneIn(8), ..QUIET },
    ),
    on_redis(
        "redis-quorum",
        "all faults within the bounds, on quorums only",
        &RedisRecipe { nodes: &[3, 5], faults: EVERY_FAULT, tls: Often::OneIn(8), ..QUIET },
    ),
    on_redis(
        "redis-beyond",
        "all faults, within the bounds and beyond",
        &RedisRecipe {
            drift: 60_000,
            fenced: true,
            faults: &[
                (LOCK_ACTION, 2),
                (ABANDON, 2),
                (PAUSE_CLIENT, 2),
                (SUSPEND_CLIENT, 1),
                (PAUSE_NODE, 1),
                (KILL_CLIENT, 1),
                (CRASH, 1),
                (ONE_DIRECTION, 1),
                (RESET, 2),
                (REFUSE, 1),
                (EVICT, 1),
                (JUMP_FORWARD, 1),
                (PROMOTE, 1),
                (SHUTDOWN, 1),
            ],
            ..QUIET
        },
    )
    .beyond("clocks and data", WRONG_CLOCKS),
    on_redis(
        "redis-bursts",
        "the only node loses its counter of fencing tokens right after a burst of grants: evicted, gone in a restart, or missing on a promoted replica",
        &RedisRecipe {
            nodes: &[1],
            clients: 1..5,
            names: &[1, 3, 8],
            fenced: true,
            // A script mints one token per µs, so the clock passes them before the node grants again.
            least_latency: Duration::from_millis(1),
            faults: &[(BURST, 8), (LOCK_ACTION, 1), (RESET, 1)],
            ..QUIET
        },
    )
    .beyond("a single node forgets", TWO_HOLDERS),
    on_redis(
        "redis-tls",
        "certificates break for a while: handshakes fail, are cut, or take long, while connections break",
        &RedisRecipe { nodes: &[1], faults: TLS_FAULTS, tls: Often::Always, ..QUIET },
    ),
    on_redis(
        "redis-tls-quorum",
        "certificates break for a while, at one node of a quorum or all",
        &RedisRecipe { nodes: &[3, 5], faults: TLS_FAULTS, tls: Often::Always, ..QUIET },
    ),
    on_redis(
        "redis-credentials",
        "credentials expire and passwords change; their source is slow, fails or is silent, and connections break",
        &RedisRecipe { nodes: &[1], ..CREDENTIALS },
    ),
    on_redis(
        "redis-credentials-quorum",
        "credentials for the nodes of a quorum expire and change; their source is slow, fails or is silent",
        &RedisRecipe { nodes: &[3, 5], ..CREDENTIALS },
    ),
    on_redis(
        "redis-sockets",
        "sockets take nothing for a while, also logins whose credentials expire meanwhile",
        &RedisRecipe {
            nodes: &[1, 1, 3],
            credentials: true,
            faults: &[(BLOCK_SOCKET, 12), (CHANGE_PASSWORDS, 2), (LOCK_ACTION, 2), (RESET, 1)],
            ..QUIET
        },
    )
    .weigh(4),
];

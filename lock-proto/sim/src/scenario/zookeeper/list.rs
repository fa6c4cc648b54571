//! The scenarios on ZooKeeper.

use super::draw::{EnsembleRecipe, SERVERS};
use super::stops::Between;
use crate::check::Rule;
use crate::scenario::faults::queue::{
    BURST, CAMPAIGN, CANCEL, CHANGE_LEADER, CUT, CUT_ALL, ISOLATE, KILL_MEMBER, LOSE_QUORUM, OBSERVE, SHUTDOWN, SLOW,
};
use crate::scenario::faults::zookeeper::{
    ADD_FOREIGN, DELAY, ISOLATE as ISOLATE_AT_ANY_TIME, OVERLOAD, PAUSE_AND_ISOLATE, REFUSE, SET_SEQUENCE,
};
use crate::scenario::faults::{KILL_CLIENT, PAUSE_CLIENT, PAUSE_NODE, RESET};
use crate::scenario::often::Often;
use crate::scenario::queue::draw::{PLAIN, QueueRecipe};
use crate::scenario::queue::{WRONG_CLOCKS, recipes};
use crate::scenario::{Draws, Scenario};

const fn on_zookeeper(
    name: &'static str,
    about: &'static str,
    recipe: &'static QueueRecipe,
    servers: &'static EnsembleRecipe,
) -> Scenario {
    Scenario::new(name, about, Draws::Zookeeper(recipe, servers))
}

/// Three members.
const THREE: EnsembleRecipe = EnsembleRecipe { members: &[3], ..SERVERS };
/// Followers seldom give their leader up before a session ends.
const STOPPED: EnsembleRecipe = EnsembleRecipe { sync_limits: &[50, 50, 20, 10], ..THREE };

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    on_zookeeper(
        "zookeeper-contention",
        "clients contend; clients and members die, members come back",
        &QueueRecipe { faults: &[(KILL_CLIENT, 4), (KILL_MEMBER, 6), (RESET, 4)], service: 1_000, ..PLAIN },
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-pauses",
        "clients and members are paused for longer than a session",
        &recipes::PAUSES,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-drift",
        "clocks drift as far as allowed, while clients and followers are lost",
        &recipes::DRIFT,
        &EnsembleRecipe { faults: &[(ISOLATE_AT_ANY_TIME, 3)], ..THREE },
    ),
    on_zookeeper("zookeeper-drift-beyond", "clocks drift further than allowed", &recipes::DRIFT_BEYOND, &SERVERS)
        .beyond("clocks drift by up to a half", WRONG_CLOCKS),
    on_zookeeper(
        "zookeeper-suspended",
        "the machines of clients are suspended, and their clocks with them",
        &recipes::SUSPENDED,
        &SERVERS,
    )
    .beyond("clocks stop while a machine is suspended", WRONG_CLOCKS),
    on_zookeeper(
        "zookeeper-partitions",
        "clients and members are partitioned, in one direction or both, and reconnected",
        &recipes::PARTITIONS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-followers",
        "followers are cut off from their leader, and answer pings and reads all the same",
        &QueueRecipe { faults: &[(ISOLATE, 12), (RESET, 3), (BURST, 2)], ..PLAIN },
        &EnsembleRecipe { faults: &[(ISOLATE_AT_ANY_TIME, 6), (DELAY, 2)], sync_limits: &[50, 20, 5], ..THREE },
    ),
    on_zookeeper(
        "zookeeper-wakes",
        "clients are stopped, and followers are cut off soon after they go on",
        &QueueRecipe { faults: &[(RESET, 2)], ..PLAIN },
        &EnsembleRecipe { faults: &[(PAUSE_AND_ISOLATE, 8)], sync_limits: &[50, 20, 5], ..THREE },
    )
    .weigh(8),
    on_zookeeper(
        "zookeeper-stops",
        "members are stopped for long, some again and again, while clients with idle sessions take locks",
        &PLAIN,
        &EnsembleRecipe { stops: Some(Between::Round), ..STOPPED },
    ),
    on_zookeeper(
        "zookeeper-revalidate",
        "members are stopped again at once, while clients with the strictest setting take locks",
        &PLAIN,
        &EnsembleRecipe { stops: Some(Between::Nothing), ..STOPPED },
    ),
    on_zookeeper(
        "zookeeper-behind",
        "followers apply what the leader commits much later",
        &QueueRecipe { faults: &[(RESET, 8), (CANCEL, 6), (BURST, 4), (CAMPAIGN, 4), (OBSERVE, 3)], ..PLAIN },
        &EnsembleRecipe { faults: &[(DELAY, 10)], ..THREE },
    ),
    on_zookeeper("zookeeper-failover", "leaders change or are lost, and so is the majority", &recipes::LEADERS, &THREE),
    on_zookeeper(
        "zookeeper-late",
        "requests take longer than their senders wait, and are executed",
        &recipes::LATE,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-expiry",
        "sessions expire while their owners hold, wait, or come and go",
        &recipes::EXPIRY,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-by-hand",
        "nodes and sessions of holders and waiters are ended by hand",
        &recipes::BY_HAND,
        &SERVERS,
    )
    // A client may hand a lock over before it learns that its node is gone.
    .beyond("another program deletes nodes of locks", &[Rule::MutualExclusion, Rule::Fifo])
    .weigh(4),
    on_zookeeper(
        "zookeeper-cancel",
        "waits and holds are dropped at every step on the way",
        &recipes::CANCELS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-turns",
        "waiters of one client hand a lock over locally, under faults",
        &recipes::TURNS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-shutdown",
        "clients are shut down, with time and without, under faults",
        &recipes::SHUTDOWNS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-elections",
        "candidates campaign, proclaim and resign, others observe, under faults",
        &recipes::ELECTIONS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-nested",
        "elections whose names begin with the name of another election and a slash",
        &recipes::NESTED,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-foreign",
        "other programs put nodes into the queues of locks",
        &QueueRecipe { faults: &[(BURST, 8), (CANCEL, 6), (RESET, 3)], ..PLAIN },
        &EnsembleRecipe { faults: &[(ADD_FOREIGN, 8)], ..SERVERS },
    ),
    on_zookeeper(
        "zookeeper-sequence",
        "the sequence numbers of queues come to their end",
        &QueueRecipe { faults: &[(BURST, 8), (CANCEL, 4), (RESET, 3), (KILL_CLIENT, 1)], ..PLAIN },
        &EnsembleRecipe { faults: &[(SET_SEQUENCE, 6)], ..SERVERS },
    ),
    on_zookeeper(
        "zookeeper-calm",
        "no faults: a release reaches the next waiter promptly, and no request is repeated",
        &recipes::CALM,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-slow",
        "packets travel for up to several times the shortest TTL, and members are busy",
        &QueueRecipe { service: 8_000, ..recipes::CRAWLING },
        &SERVERS,
    ),
    on_zookeeper("zookeeper-stale", "bytes and ends arrive from replaced connections", &recipes::STALE, &SERVERS),
    on_zookeeper(
        "zookeeper-logins",
        "clients log in, and their nodes belong to their user",
        &QueueRecipe {
            faults: &[
                (KILL_MEMBER, 4),
                (RESET, 6),
                (BURST, 4),
                (PAUSE_CLIENT, 3),
                (CAMPAIGN, 3),
                (OBSERVE, 3),
                (CUT_ALL, 2),
            ],
            ..PLAIN
        },
        &EnsembleRecipe { login: Often::Always, ..SERVERS },
    ),
    on_zookeeper(
        "zookeeper-refusals",
        "servers are overloaded, or refuse to delete nodes",
        &QueueRecipe {
            faults: &[(CANCEL, 8), (BURST, 8), (CAMPAIGN, 4), (OBSERVE, 3), (RESET, 4), (KILL_CLIENT, 1)],
            ..PLAIN
        },
        &EnsembleRecipe { faults: &[(REFUSE, 6)], ..SERVERS },
    ),
    on_zookeeper(
        "zookeeper-throttled",
        "servers are overloaded: they reject requests and commit slowly, and connections break",
        &QueueRecipe { faults: &[(RESET, 4), (BURST, 8), (CANCEL, 6), (CAMPAIGN, 3)], ..PLAIN },
        &EnsembleRecipe { faults: &[(OVERLOAD, 6)], ..THREE },
    ),
    on_zookeeper(
        "zookeeper-tls",
        "certificates break for a while: handshakes fail, are cut, or take long, while connections break",
        &recipes::TLS,
        &SERVERS,
    ),
    on_zookeeper(
        "zookeeper-everything",
        "all faults within the bounds",
        &QueueRecipe {
            faults: &[
                (CANCEL, 10),
                (BURST, 5),
                (CAMPAIGN, 5),
                (OBSERVE, 3),
                (SHUTDOWN, 1),
                (PAUSE_CLIENT, 4),
                (KILL_CLIENT, 1),
                (PAUSE_NODE, 2),
                (KILL_MEMBER, 3),
                (ISOLATE, 3),
                (LOSE_QUORUM, 1),
                (CHANGE_LEADER, 2),
                (CUT, 3),
                (CUT_ALL, 2),
                (RESET, 4),
                (SLOW, 3),
            ],
            late: Often::OneIn(4),
            service: 5_000,
            tls: Often::OneIn(8),
            ..PLAIN
        },
        &EnsembleRecipe { faults: &[(DELAY, 3), (ADD_FOREIGN, 1), (REFUSE, 1)], login: Often::OneIn(3), ..SERVERS },
    ),
];

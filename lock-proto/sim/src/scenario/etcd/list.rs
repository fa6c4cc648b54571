//! The scenarios on etcd.

use crate::etcd::Condition::{RevokedKeepAlives, StaleReads};
use crate::scenario::faults::etcd::{
    CANCEL_WATCHES, COMPACT, END_STREAMS, EXPIRE_TOKENS, LOSE_EVENTS, PAUSE_LEADER, REFUSE, REPLACE_KEY, STOP_MEMBER,
    TOUCH,
};
use crate::scenario::faults::queue::{
    BURST, CAMPAIGN, CANCEL, CHANGE_LEADER, CUT, CUT_ALL, ISOLATE, KILL_MEMBER, LOSE_QUORUM, OBSERVE, SHUTDOWN, SLOW,
};
use crate::scenario::faults::{CHANGE_PASSWORDS, KILL_CLIENT, PAUSE_CLIENT, PAUSE_NODE, RESET, SOURCE};
use crate::scenario::often::Often;
use crate::scenario::queue::draw::{PLAIN, QueueRecipe};
use crate::scenario::queue::{CHANGED_BY_HAND, WRONG_CLOCKS, recipes};
use crate::scenario::{Draws, Scenario};

const fn on_etcd(name: &'static str, about: &'static str, recipe: &'static QueueRecipe) -> Scenario {
    Scenario::new(name, about, Draws::Etcd(recipe))
}

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    on_etcd(
        "etcd-contention",
        "clients contend; clients and members die, members come back",
        &QueueRecipe {
            faults: &[(KILL_CLIENT, 4), (KILL_MEMBER, 6), (STOP_MEMBER, 3), (RESET, 4)],
            service: 1_000,
            ..PLAIN
        },
    ),
    on_etcd("etcd-pauses", "clients and members are paused for longer than a lease", &recipes::PAUSES),
    on_etcd("etcd-drift", "clocks drift as far as allowed, while clients and leaders are lost", &recipes::DRIFT),
    on_etcd("etcd-drift-beyond", "clocks drift further than allowed", &recipes::DRIFT_BEYOND)
        .beyond("clocks drift by up to a half", WRONG_CLOCKS),
    on_etcd("etcd-suspended", "the machines of clients are suspended, and their clocks with them", &recipes::SUSPENDED)
        .beyond("clocks stop while a machine is suspended", WRONG_CLOCKS),
    on_etcd(
        "etcd-partitions",
        "clients and members are partitioned, in one direction or both, and reconnected",
        &recipes::PARTITIONS,
    ),
    on_etcd("etcd-late", "requests take longer than their senders wait, and are still executed", &recipes::LATE),
    on_etcd("etcd-leaders", "leaders change or are lost, and so is the majority", &recipes::LEADERS),
    on_etcd(
        "etcd-members",
        "clients know one member, which dies, and learn of the others",
        &QueueRecipe { faults: &[(KILL_MEMBER, 8), (STOP_MEMBER, 4), (ISOLATE, 4), (RESET, 5)], sync: true, ..PLAIN },
    ),
    on_etcd("etcd-expiry", "leases expire while their owners hold, wait, or come and go", &recipes::EXPIRY),
    on_etcd("etcd-by-hand", "keys and leases of holders and waiters are deleted by hand", &recipes::BY_HAND)
        .beyond("another program deletes keys of locks", CHANGED_BY_HAND)
        .weigh(4),
    on_etcd(
        "etcd-watches",
        "histories are compacted, watches cancelled and streams ended while clients wait",
        &QueueRecipe {
            faults: &[(COMPACT, 8), (TOUCH, 10), (CANCEL_WATCHES, 8), (END_STREAMS, 8), (RESET, 3), (KILL_MEMBER, 2)],
            ..PLAIN
        },
    ),
    on_etcd("etcd-cancel", "waits and holds are dropped at every step on the way", &recipes::CANCELS),
    on_etcd("etcd-turns", "waiters of one client hand a lock over locally, under faults", &recipes::TURNS),
    on_etcd("etcd-shutdown", "clients are shut down, with time and without, under faults", &recipes::SHUTDOWNS),
    on_etcd(
        "etcd-elections",
        "candidates campaign, proclaim and resign, others observe, under faults",
        &QueueRecipe {
            faults: &[
                (CAMPAIGN, 20),
                (OBSERVE, 10),
                (RESET, 4),
                (CUT_ALL, 3),
                (PAUSE_CLIENT, 3),
                (KILL_CLIENT, 2),
                (KILL_MEMBER, 2),
                (CHANGE_LEADER, 2),
                (CANCEL_WATCHES, 2),
            ],
            ..recipes::ELECTIONS
        },
    ),
    on_etcd(
        "etcd-nested",
        "elections whose names begin with the name of another election and a slash",
        &recipes::NESTED,
    ),
    on_etcd(
        "etcd-lost-events",
        "members lose watch events silently",
        &QueueRecipe {
            faults: &[
                (LOSE_EVENTS, 10),
                (CAMPAIGN, 8),
                (OBSERVE, 8),
                (CANCEL, 5),
                (TOUCH, 5),
                (BURST, 5),
                (PAUSE_CLIENT, 2),
                (KILL_CLIENT, 2),
            ],
            recheck: true,
            ..PLAIN
        },
    ),
    on_etcd(
        "etcd-logins",
        "clients log in, and their tokens expire",
        &QueueRecipe {
            faults: &[(EXPIRE_TOKENS, 10), (KILL_MEMBER, 4), (RESET, 4), (PAUSE_CLIENT, 3), (OBSERVE, 3), (CUT_ALL, 2)],
            login: Often::Always,
            ..PLAIN
        },
    ),
    on_etcd(
        "etcd-refusals",
        "the cluster is out of space or overloaded",
        &QueueRecipe { faults: &[(REFUSE, 10), (RESET, 3), (PAUSE_CLIENT, 3), (CANCEL, 5)], ..PLAIN },
    ),
    on_etcd(
        "etcd-calm",
        "no faults: a release reaches the next waiter promptly, and no request is repeated",
        &recipes::CALM,
    ),
    on_etcd(
        "etcd-slow",
        "packets travel for up to several times the shortest TTL, and members are busy",
        &QueueRecipe { service: 50_000, ..recipes::CRAWLING },
    ),
    on_etcd("etcd-stale", "replies and disconnects arrive from replaced connections", &recipes::STALE),
    on_etcd(
        "etcd-replaced",
        "the keys of leaders are replaced by hand, and they proclaim and write before they learn of it",
        &QueueRecipe {
            faults: &[(REPLACE_KEY, 20), (CAMPAIGN, 10), (OBSERVE, 4), (PAUSE_CLIENT, 2), (RESET, 2)],
            elections_only: true,
            ..PLAIN
        },
    )
    .beyond("another program replaces a leader's key", CHANGED_BY_HAND),
    on_etcd(
        "etcd-tls",
        "certificates break for a while: handshakes fail, are cut, or take long, while connections break",
        &recipes::TLS,
    ),
    on_etcd(
        "etcd-credentials",
        "credentials expire and passwords change; their source is slow, fails or is silent, and tokens expire",
        &QueueRecipe {
            // Nothing fails but logins.
            other_faults: &[(CHANGE_PASSWORDS, 10), (BURST, 4), (CAMPAIGN, 3), (OBSERVE, 2)],
            faults: &[
                (CHANGE_PASSWORDS, 8),
                (SOURCE, 8),
                (EXPIRE_TOKENS, 4),
                (RESET, 4),
                (BURST, 4),
                (KILL_MEMBER, 2),
                (PAUSE_CLIENT, 2),
                (CUT_ALL, 1),
                (CAMPAIGN, 3),
                (OBSERVE, 2),
            ],
            login: Often::Always,
            credentials: true,
            ..PLAIN
        },
    ),
    on_etcd(
        "etcd-stale-reads",
        "leaders are paused until they are replaced, and answer reads from their old state (etcd issue 20418)",
        &QueueRecipe {
            faults: &[
                (PAUSE_LEADER, 20),
                (CANCEL, 6),
                (BURST, 4),
                (CAMPAIGN, 4),
                (OBSERVE, 3),
                (RESET, 6),
                (CUT, 2),
                (PAUSE_CLIENT, 2),
                (KILL_CLIENT, 1),
            ],
            members: &[3],
            defects: &[(StaleReads, 1)],
            ..PLAIN
        },
    ),
    on_etcd(
        "etcd-keep-alives",
        "keep-alives are answered per lease, or for a lease that was revoked (etcd issue 20547), while clients stop",
        &QueueRecipe {
            faults: &[
                (CUT_ALL, 8),
                (PAUSE_CLIENT, 8),
                (CANCEL, 4),
                (BURST, 4),
                (RESET, 3),
                (CHANGE_LEADER, 2),
                (KILL_MEMBER, 2),
            ],
            own_ttls: true,
            per_lease: true,
            defects: &[(RevokedKeepAlives, 2)],
            ..PLAIN
        },
    ),
    on_etcd(
        "etcd-everything",
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
                (STOP_MEMBER, 1),
                (ISOLATE, 2),
                (LOSE_QUORUM, 1),
                (CHANGE_LEADER, 2),
                (REFUSE, 1),
                (CUT, 3),
                (CUT_ALL, 2),
                (RESET, 4),
                (SLOW, 3),
                (COMPACT, 3),
                (TOUCH, 4),
                (CANCEL_WATCHES, 2),
                (END_STREAMS, 2),
                (EXPIRE_TOKENS, 2),
            ],
            login: Often::OneIn(3),
            late: Often::OneIn(4),
            service: 5_000,
            tls: Often::OneIn(8),
            per_lease: true,
            defects: &[(StaleReads, 4), (RevokedKeepAlives, 4)],
            ..PLAIN
        },
    ),
];

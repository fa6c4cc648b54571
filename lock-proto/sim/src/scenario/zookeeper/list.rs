//! The scenarios on ZooKeeper.

use super::super::etcd::draw::{Kind, Mix, PLAIN};
use super::super::tls::Tls;
use super::super::{Backend, Bounds, Draft, Scenario};
use super::draw::{Fault, SERVERS, Servers, draft};
use super::run::run;
use super::stops::{self, Between};
use crate::chance::Chance;
use crate::check::Rule;

/// Within the bounds every rule must hold.
const fn within_bounds(name: &'static str, about: &'static str, draw: fn(&mut Chance) -> Draft) -> Scenario {
    Scenario { name, about, backend: Backend::Zookeeper, bounds: Bounds::Within, weight: 1, excused: &[], draw, run }
}

/// Outside the bounds two clients may believe to hold a lock; stale writes must still be rejected.
const fn beyond_bounds(
    name: &'static str,
    about: &'static str,
    what: &'static str,
    draw: fn(&mut Chance) -> Draft,
) -> Scenario {
    let bounds = Bounds::Beyond(what);
    Scenario {
        name,
        about,
        backend: Backend::Zookeeper,
        bounds,
        weight: 1,
        excused: &[Rule::MutualExclusion],
        draw,
        run,
    }
}

/// Nor can a holder know how long the servers keep its lock.
const fn wrong_clocks(scenario: Scenario) -> Scenario {
    Scenario { excused: &[Rule::MutualExclusion, Rule::Validity], ..scenario }
}

/// Three members.
const THREE: Servers = Servers { members: &[3], ..SERVERS };

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    within_bounds("zookeeper-contention", "clients contend; clients and members die, members come back", |chance| {
        use Kind::{KillClient, KillMember, Reset};
        let kinds = &[(KillClient, 4), (KillMember, 6), (Reset, 4)];
        draft(chance, &Mix { kinds, service: 1_000, ..PLAIN }, &SERVERS)
    }),
    within_bounds("zookeeper-pauses", "clients and members are paused for longer than a session", |chance| {
        use Kind::{PauseClient, PauseMember};
        draft(chance, &Mix { kinds: &[(PauseClient, 10), (PauseMember, 4)], ..PLAIN }, &SERVERS)
    }),
    within_bounds(
        "zookeeper-drift",
        "clocks drift as far as allowed, while clients and followers are lost",
        |chance| {
            use Kind::{CutAll, KillClient, PauseClient};
            let kinds = &[(PauseClient, 4), (KillClient, 2), (CutAll, 5)];
            let servers = Servers { faults: &[(Fault::Isolate, 3)], ..THREE };
            draft(chance, &Mix { kinds, drift: 9_800, ..PLAIN }, &servers)
        },
    ),
    wrong_clocks(beyond_bounds(
        "zookeeper-drift-beyond",
        "clocks drift further than allowed",
        "clocks drift by up to a half",
        |chance| {
            use Kind::{CutAll, KillClient, PauseClient};
            let kinds = &[(PauseClient, 4), (KillClient, 2), (CutAll, 8)];
            draft(chance, &Mix { kinds, drift: 500_000, ..PLAIN }, &SERVERS)
        },
    )),
    wrong_clocks(beyond_bounds(
        "zookeeper-suspended",
        "the machines of clients are suspended, and their clocks with them",
        "clocks stop while a machine is suspended",
        |chance| {
            use Kind::{Reset, SuspendClient};
            draft(chance, &Mix { kinds: &[(SuspendClient, 10), (Reset, 2)], ..PLAIN }, &SERVERS)
        },
    )),
    within_bounds(
        "zookeeper-partitions",
        "clients and members are partitioned, in one direction or both, and reconnected",
        |chance| {
            use Kind::{Cut, CutAll, Isolate, Reset, Slow};
            let kinds = &[(Cut, 10), (CutAll, 5), (Reset, 5), (Slow, 5), (Isolate, 5)];
            draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds(
        "zookeeper-followers",
        "followers are cut off from their leader, and answer pings and reads all the same",
        |chance| {
            use Kind::{Burst, Isolate, Reset};
            let faults = &[(Fault::Isolate, 6), (Fault::Delay, 2)];
            let servers = Servers { faults, sync_limits: &[50, 20, 5], ..THREE };
            draft(chance, &Mix { kinds: &[(Isolate, 12), (Reset, 3), (Burst, 2)], ..PLAIN }, &servers)
        },
    ),
    within_bounds(
        "zookeeper-wakes",
        "clients are stopped, and followers are cut off soon after they go on",
        |chance| {
            let servers = Servers { faults: &[(Fault::PauseAndIsolate, 8)], sync_limits: &[50, 20, 5], ..THREE };
            draft(chance, &Mix { kinds: &[(Kind::Reset, 2)], ..PLAIN }, &servers)
        },
    )
    .weigh(8),
    within_bounds(
        "zookeeper-stops",
        "members are stopped for long, some again and again, while clients with idle sessions take locks",
        |chance| stops::draft(chance, Between::Round),
    ),
    within_bounds(
        "zookeeper-revalidate",
        "members are stopped again at once, while clients with the strictest setting take locks",
        |chance| stops::draft(chance, Between::Nothing),
    ),
    within_bounds("zookeeper-behind", "followers apply what the leader commits much later", |chance| {
        use Kind::{Burst, Campaign, Cancel, Observe, Reset};
        let kinds = &[(Reset, 8), (Cancel, 6), (Burst, 4), (Campaign, 4), (Observe, 3)];
        draft(chance, &Mix { kinds, ..PLAIN }, &Servers { faults: &[(Fault::Delay, 10)], ..THREE })
    }),
    within_bounds("zookeeper-failover", "leaders change or are lost, and so is the majority", |chance| {
        use Kind::{ChangeLeader, Isolate, KillMember, Quorum};
        let kinds = &[(ChangeLeader, 5), (Quorum, 5), (Isolate, 5), (KillMember, 5)];
        draft(chance, &Mix { kinds, ..PLAIN }, &THREE)
    }),
    within_bounds("zookeeper-late", "requests take longer than their senders wait, and are executed", |chance| {
        use Kind::{Burst, Cut, Reset, Slow};
        let kinds = &[(Burst, 20), (Slow, 5), (Cut, 3), (Reset, 3)];
        draft(chance, &Mix { kinds, late: true, ..PLAIN }, &SERVERS)
    }),
    within_bounds("zookeeper-expiry", "sessions expire while their owners hold, wait, or come and go", |chance| {
        use Kind::{Cancel, CutAll, PauseClient};
        let kinds = &[(CutAll, 10), (PauseClient, 6), (Cancel, 6)];
        draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
    }),
    Scenario {
        // A client may hand a lock over before it learns that its node is gone.
        excused: &[Rule::MutualExclusion, Rule::Fifo],
        weight: 4,
        ..beyond_bounds(
            "zookeeper-by-hand",
            "nodes and sessions of holders and waiters are ended by hand",
            "another program deletes nodes of locks",
            |chance| {
                use Kind::{DeleteKey, PauseClient, Reset, RevokeLease};
                let kinds = &[(DeleteKey, 10), (RevokeLease, 10), (Reset, 3), (PauseClient, 2)];
                draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
            },
        )
    },
    within_bounds("zookeeper-cancel", "waits and holds are dropped at every step on the way", |chance| {
        use Kind::{Cancel, Cut, KillMember, Reset};
        let kinds = &[(Cancel, 40), (Reset, 4), (Cut, 3), (KillMember, 2)];
        draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
    }),
    within_bounds("zookeeper-turns", "waiters of one client hand a lock over locally, under faults", |chance| {
        use Kind::{Burst, CutAll, KillClient, PauseClient, Reset};
        let kinds = &[(Burst, 20), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillClient, 2)];
        draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
    }),
    within_bounds("zookeeper-shutdown", "clients are shut down, with time and without, under faults", |chance| {
        use Kind::{Burst, CutAll, KillMember, PauseClient, Reset, Shutdown};
        let kinds = &[(Shutdown, 6), (Burst, 5), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillMember, 3)];
        draft(chance, &Mix { kinds, ..PLAIN }, &SERVERS)
    }),
    within_bounds(
        "zookeeper-elections",
        "candidates campaign, proclaim and resign, others observe, under faults",
        |chance| {
            use Kind::{Campaign, ChangeLeader, CutAll, KillClient, KillMember, Observe, PauseClient, Reset};
            let kinds = &[
                (Campaign, 20),
                (Observe, 10),
                (Reset, 4),
                (CutAll, 3),
                (PauseClient, 3),
                (KillClient, 2),
                (KillMember, 2),
                (ChangeLeader, 2),
            ];
            draft(chance, &Mix { kinds, elections_only: true, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds(
        "zookeeper-nested",
        "elections whose names begin with the name of another election and a slash",
        |chance| {
            use Kind::{Campaign, CampaignNested, Cancel, KillClient, Observe, PauseClient, Reset};
            let kinds = &[
                (CampaignNested, 10),
                (Campaign, 10),
                (Observe, 10),
                (Cancel, 3),
                (Reset, 3),
                (PauseClient, 2),
                (KillClient, 2),
            ];
            draft(chance, &Mix { kinds, elections_only: true, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds("zookeeper-foreign", "other programs put nodes into the queues of locks", |chance| {
        use Kind::{Burst, Cancel, Reset};
        let servers = Servers { faults: &[(Fault::AddForeign, 8)], ..SERVERS };
        draft(chance, &Mix { kinds: &[(Burst, 8), (Cancel, 6), (Reset, 3)], ..PLAIN }, &servers)
    }),
    within_bounds("zookeeper-sequence", "the sequence numbers of queues come to their end", |chance| {
        use Kind::{Burst, Cancel, KillClient, Reset};
        let servers = Servers { faults: &[(Fault::SetSequence, 6)], ..SERVERS };
        draft(chance, &Mix { kinds: &[(Burst, 8), (Cancel, 4), (Reset, 3), (KillClient, 1)], ..PLAIN }, &servers)
    }),
    within_bounds(
        "zookeeper-calm",
        "no faults: a release reaches the next waiter promptly, and no request is repeated",
        |chance| {
            use Kind::{Burst, Campaign, Cancel};
            let kinds = &[(Cancel, 6), (Burst, 6), (Campaign, 6)];
            draft(chance, &Mix { kinds, service: 2_000, fast: true, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds(
        "zookeeper-slow",
        "packets travel for up to several times the shortest TTL, and members are busy",
        |chance| {
            use Kind::{Burst, Cancel, Crawl, Slow};
            let kinds = &[(Crawl, 10), (Slow, 4), (Burst, 5), (Cancel, 5)];
            draft(chance, &Mix { kinds, service: 8_000, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds("zookeeper-stale", "bytes and ends arrive from replaced connections", |chance| {
        use Kind::{Burst, Campaign, Cancel, Replace};
        let kinds = &[(Replace, 20), (Burst, 5), (Campaign, 4), (Cancel, 5)];
        draft(chance, &Mix { kinds, stale: true, late: true, ..PLAIN }, &SERVERS)
    }),
    within_bounds("zookeeper-logins", "clients log in, and their nodes belong to their user", |chance| {
        use Kind::{Burst, Campaign, CutAll, KillMember, Observe, PauseClient, Reset};
        let kinds =
            &[(KillMember, 4), (Reset, 6), (Burst, 4), (PauseClient, 3), (Campaign, 3), (Observe, 3), (CutAll, 2)];
        draft(chance, &Mix { kinds, ..PLAIN }, &Servers { login: true, ..SERVERS })
    }),
    within_bounds("zookeeper-refusals", "servers are overloaded, or refuse to delete nodes", |chance| {
        use Kind::{Burst, Campaign, Cancel, KillClient, Observe, Reset};
        let kinds = &[(Cancel, 8), (Burst, 8), (Campaign, 4), (Observe, 3), (Reset, 4), (KillClient, 1)];
        let servers = Servers { faults: &[(Fault::Refuse, 6)], ..SERVERS };
        draft(chance, &Mix { kinds, ..PLAIN }, &servers)
    }),
    within_bounds(
        "zookeeper-throttled",
        "servers are overloaded: they reject requests and commit slowly, and connections break",
        |chance| {
            use Kind::{Burst, Campaign, Cancel, Reset};
            let kinds = &[(Reset, 4), (Burst, 8), (Cancel, 6), (Campaign, 3)];
            let servers = Servers { faults: &[(Fault::Overload, 6)], ..THREE };
            draft(chance, &Mix { kinds, ..PLAIN }, &servers)
        },
    ),
    within_bounds(
        "zookeeper-tls",
        "certificates break for a while: handshakes fail, are cut, or take long, while connections break",
        |chance| {
            use Kind::{Burst, Campaign, Handshake, KillMember, Observe, PauseMember, Reset};
            let kinds = &[
                (Handshake, 12),
                (Reset, 4),
                (Burst, 4),
                (KillMember, 2),
                (PauseMember, 2),
                (Campaign, 3),
                (Observe, 2),
            ];
            draft(chance, &Mix { kinds, tls: Tls::Always, ..PLAIN }, &SERVERS)
        },
    ),
    within_bounds("zookeeper-everything", "all faults within the bounds", |chance| {
        use Kind::{
            Burst, Campaign, Cancel, ChangeLeader, Cut, CutAll, Isolate, KillClient, KillMember, Observe, PauseClient,
            PauseMember, Quorum, Reset, Shutdown, Slow,
        };
        let kinds = &[
            (Cancel, 10),
            (Burst, 5),
            (Campaign, 5),
            (Observe, 3),
            (Shutdown, 1),
            (PauseClient, 4),
            (KillClient, 1),
            (PauseMember, 2),
            (KillMember, 3),
            (Isolate, 3),
            (Quorum, 1),
            (ChangeLeader, 2),
            (Cut, 3),
            (CutAll, 2),
            (Reset, 4),
            (Slow, 3),
        ];
        let late = chance.one_in(4);
        let servers = Servers {
            faults: &[(Fault::Delay, 3), (Fault::AddForeign, 1), (Fault::Refuse, 1)],
            login: chance.one_in(3),
            ..SERVERS
        };
        draft(chance, &Mix { kinds, late, service: 5_000, tls: Tls::Sometimes, ..PLAIN }, &servers)
    }),
];

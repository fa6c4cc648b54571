//! The scenarios on etcd.

use super::super::tls::Tls;
use super::super::{Backend, Bounds, Draft, Scenario};
use super::draw::{Kind, Mix, PLAIN, draft};
use super::run::run;
use crate::chance::Chance;
use crate::check::Rule;
use crate::etcd::Condition::{RevokedKeepAlives, StaleReads};

/// Within the bounds every rule must hold.
const fn within_bounds(name: &'static str, about: &'static str, draw: fn(&mut Chance) -> Draft) -> Scenario {
    Scenario { name, about, backend: Backend::Etcd, bounds: Bounds::Within, weight: 1, excused: &[], draw, run }
}

/// Outside the bounds two clients may believe to hold a lock; stale writes must still be rejected.
const fn beyond_bounds(
    name: &'static str,
    about: &'static str,
    what: &'static str,
    draw: fn(&mut Chance) -> Draft,
) -> Scenario {
    let bounds = Bounds::Beyond(what);
    Scenario { name, about, backend: Backend::Etcd, bounds, weight: 1, excused: &[Rule::MutualExclusion], draw, run }
}

/// Nor can a holder know how long the servers keep its lock.
const fn wrong_clocks(scenario: Scenario) -> Scenario {
    Scenario { excused: &[Rule::MutualExclusion, Rule::Validity], ..scenario }
}

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    within_bounds("etcd-contention", "clients contend; clients and members die, members come back", |chance| {
        use Kind::{KillClient, KillMember, Reset, StopMember};
        draft(
            chance,
            &Mix { kinds: &[(KillClient, 4), (KillMember, 6), (StopMember, 3), (Reset, 4)], service: 1_000, ..PLAIN },
        )
    }),
    within_bounds("etcd-pauses", "clients and members are paused for longer than a lease", |chance| {
        use Kind::{PauseClient, PauseMember};
        draft(chance, &Mix { kinds: &[(PauseClient, 10), (PauseMember, 4)], ..PLAIN })
    }),
    within_bounds("etcd-drift", "clocks drift as far as allowed, while clients and leaders are lost", |chance| {
        use Kind::{CutAll, KillClient, PauseClient};
        draft(chance, &Mix { kinds: &[(PauseClient, 4), (KillClient, 2), (CutAll, 5)], drift: 9_800, ..PLAIN })
    }),
    wrong_clocks(beyond_bounds(
        "etcd-drift-beyond",
        "clocks drift further than allowed",
        "clocks drift by up to a half",
        |chance| {
            use Kind::{CutAll, KillClient, PauseClient};
            draft(chance, &Mix { kinds: &[(PauseClient, 4), (KillClient, 2), (CutAll, 8)], drift: 500_000, ..PLAIN })
        },
    )),
    wrong_clocks(beyond_bounds(
        "etcd-suspended",
        "the machines of clients are suspended, and their clocks with them",
        "clocks stop while a machine is suspended",
        |chance| {
            use Kind::{Reset, SuspendClient};
            draft(chance, &Mix { kinds: &[(SuspendClient, 10), (Reset, 2)], ..PLAIN })
        },
    )),
    within_bounds(
        "etcd-partitions",
        "clients and members are partitioned, in one direction or both, and reconnected",
        |chance| {
            use Kind::{Cut, CutAll, Isolate, Reset, Slow};
            let kinds = &[(Cut, 10), (CutAll, 5), (Reset, 5), (Slow, 5), (Isolate, 5)];
            draft(chance, &Mix { kinds, ..PLAIN })
        },
    ),
    within_bounds("etcd-late", "requests take longer than their senders wait, and are still executed", |chance| {
        use Kind::{Burst, Cut, Reset, Slow};
        draft(chance, &Mix { kinds: &[(Burst, 20), (Slow, 5), (Cut, 3), (Reset, 3)], late: true, ..PLAIN })
    }),
    within_bounds("etcd-leaders", "leaders change or are lost, and so is the majority", |chance| {
        use Kind::{ChangeLeader, Isolate, KillMember, Quorum};
        draft(chance, &Mix { kinds: &[(ChangeLeader, 5), (Quorum, 5), (Isolate, 5), (KillMember, 5)], ..PLAIN })
    }),
    within_bounds("etcd-members", "clients know one member, which dies, and learn of the others", |chance| {
        use Kind::{Isolate, KillMember, Reset, StopMember};
        let kinds = &[(KillMember, 8), (StopMember, 4), (Isolate, 4), (Reset, 5)];
        draft(chance, &Mix { kinds, sync: true, ..PLAIN })
    }),
    within_bounds("etcd-expiry", "leases expire while their owners hold, wait, or come and go", |chance| {
        use Kind::{Cancel, CutAll, PauseClient};
        draft(chance, &Mix { kinds: &[(CutAll, 10), (PauseClient, 6), (Cancel, 6)], ..PLAIN })
    }),
    beyond_bounds(
        "etcd-by-hand",
        "keys and leases of holders and waiters are deleted by hand",
        "another program deletes keys of locks",
        |chance| {
            use Kind::{DeleteKey, PauseClient, Reset, RevokeLease};
            let kinds = &[(DeleteKey, 10), (RevokeLease, 10), (Reset, 3), (PauseClient, 2)];
            draft(chance, &Mix { kinds, ..PLAIN })
        },
    )
    .weigh(4),
    within_bounds(
        "etcd-watches",
        "histories are compacted, watches cancelled and streams ended while clients wait",
        |chance| {
            use Kind::{CancelWatches, Compact, EndStreams, KillMember, Reset, Touch};
            let kinds = &[(Compact, 8), (Touch, 10), (CancelWatches, 8), (EndStreams, 8), (Reset, 3), (KillMember, 2)];
            draft(chance, &Mix { kinds, ..PLAIN })
        },
    ),
    within_bounds("etcd-cancel", "waits and holds are dropped at every step on the way", |chance| {
        use Kind::{Cancel, Cut, KillMember, Reset};
        draft(chance, &Mix { kinds: &[(Cancel, 40), (Reset, 4), (Cut, 3), (KillMember, 2)], ..PLAIN })
    }),
    within_bounds("etcd-turns", "waiters of one client hand a lock over locally, under faults", |chance| {
        use Kind::{Burst, CutAll, KillClient, PauseClient, Reset};
        let kinds = &[(Burst, 20), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillClient, 2)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    within_bounds("etcd-shutdown", "clients are shut down, with time and without, under faults", |chance| {
        use Kind::{Burst, CutAll, KillMember, PauseClient, Reset, Shutdown};
        let kinds = &[(Shutdown, 6), (Burst, 5), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillMember, 3)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    within_bounds(
        "etcd-elections",
        "candidates campaign, proclaim and resign, others observe, under faults",
        |chance| {
            use Kind::{
                Campaign, CancelWatches, ChangeLeader, CutAll, KillClient, KillMember, Observe, PauseClient, Reset,
            };
            let kinds = &[
                (Campaign, 20),
                (Observe, 10),
                (Reset, 4),
                (CutAll, 3),
                (PauseClient, 3),
                (KillClient, 2),
                (KillMember, 2),
                (ChangeLeader, 2),
                (CancelWatches, 2),
            ];
            draft(chance, &Mix { kinds, elections_only: true, ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-nested",
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
            draft(chance, &Mix { kinds, elections_only: true, ..PLAIN })
        },
    ),
    within_bounds("etcd-lost-events", "members lose watch events silently", |chance| {
        use Kind::{Burst, Campaign, Cancel, KillClient, LoseEvents, Observe, PauseClient, Touch};
        let kinds = &[
            (LoseEvents, 10),
            (Campaign, 8),
            (Observe, 8),
            (Cancel, 5),
            (Touch, 5),
            (Burst, 5),
            (PauseClient, 2),
            (KillClient, 2),
        ];
        draft(chance, &Mix { kinds, recheck: true, ..PLAIN })
    }),
    within_bounds("etcd-logins", "clients log in, and their tokens expire", |chance| {
        use Kind::{CutAll, ExpireTokens, KillMember, Observe, PauseClient, Reset};
        let kinds = &[(ExpireTokens, 10), (KillMember, 4), (Reset, 4), (PauseClient, 3), (Observe, 3), (CutAll, 2)];
        draft(chance, &Mix { kinds, login: true, ..PLAIN })
    }),
    within_bounds("etcd-refusals", "the cluster is out of space or overloaded", |chance| {
        use Kind::{Cancel, PauseClient, Refuse, Reset};
        draft(chance, &Mix { kinds: &[(Refuse, 10), (Reset, 3), (PauseClient, 3), (Cancel, 5)], ..PLAIN })
    }),
    within_bounds(
        "etcd-calm",
        "no faults: a release reaches the next waiter promptly, and no request is repeated",
        |chance| {
            use Kind::{Burst, Campaign, Cancel};
            let kinds = &[(Cancel, 6), (Burst, 6), (Campaign, 6)];
            draft(chance, &Mix { kinds, service: 2_000, fast: true, ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-slow",
        "packets travel for up to several times the shortest TTL, and members are busy",
        |chance| {
            use Kind::{Burst, Cancel, Crawl, Slow};
            let kinds = &[(Crawl, 10), (Slow, 4), (Burst, 5), (Cancel, 5)];
            draft(chance, &Mix { kinds, service: 50_000, ..PLAIN })
        },
    ),
    within_bounds("etcd-stale", "replies and disconnects arrive from replaced connections", |chance| {
        use Kind::{Burst, Campaign, Cancel, Replace};
        let kinds = &[(Replace, 20), (Burst, 5), (Campaign, 4), (Cancel, 5)];
        draft(chance, &Mix { kinds, stale: true, late: true, ..PLAIN })
    }),
    beyond_bounds(
        "etcd-replaced",
        "the keys of leaders are replaced by hand, and they proclaim and write before they learn of it",
        "another program replaces a leader's key",
        |chance| {
            use Kind::{Campaign, Observe, PauseClient, ReplaceKey, Reset};
            let kinds = &[(ReplaceKey, 20), (Campaign, 10), (Observe, 4), (PauseClient, 2), (Reset, 2)];
            draft(chance, &Mix { kinds, elections_only: true, ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-tls",
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
            draft(chance, &Mix { kinds, tls: Tls::Always, ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-credentials",
        "credentials expire and passwords change; their source is slow, fails or is silent, and tokens expire",
        |chance| {
            use Kind::{
                Burst, Campaign, ChangePasswords, CutAll, ExpireTokens, KillMember, Observe, PauseClient, Reset, Source,
            };
            // In half of the runs nothing fails but logins.
            let kinds: &[(Kind, u64)] = if chance.one_in(2) {
                &[(ChangePasswords, 10), (Burst, 4), (Campaign, 3), (Observe, 2)]
            } else {
                &[
                    (ChangePasswords, 8),
                    (Source, 8),
                    (ExpireTokens, 4),
                    (Reset, 4),
                    (Burst, 4),
                    (KillMember, 2),
                    (PauseClient, 2),
                    (CutAll, 1),
                    (Campaign, 3),
                    (Observe, 2),
                ]
            };
            draft(chance, &Mix { kinds, login: true, credentials: true, ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-stale-reads",
        "leaders are paused until they are replaced, and answer reads from their old state (etcd issue 20418)",
        |chance| {
            use Kind::{Burst, Campaign, Cancel, Cut, KillClient, Observe, PauseClient, PauseLeader, Reset};
            let kinds = &[
                (PauseLeader, 20),
                (Cancel, 6),
                (Burst, 4),
                (Campaign, 4),
                (Observe, 3),
                (Reset, 6),
                (Cut, 2),
                (PauseClient, 2),
                (KillClient, 1),
            ];
            draft(chance, &Mix { kinds, members: &[3], defects: &[(StaleReads, 1)], ..PLAIN })
        },
    ),
    within_bounds(
        "etcd-keep-alives",
        "keep-alives are answered per lease, or for a lease that was revoked (etcd issue 20547), while clients stop",
        |chance| {
            use Kind::{Burst, Cancel, ChangeLeader, CutAll, KillMember, PauseClient, Reset};
            let kinds = &[
                (CutAll, 8),
                (PauseClient, 8),
                (Cancel, 4),
                (Burst, 4),
                (Reset, 3),
                (ChangeLeader, 2),
                (KillMember, 2),
            ];
            let defects = &[(RevokedKeepAlives, 2)];
            draft(chance, &Mix { kinds, own_ttls: true, per_lease: true, defects, ..PLAIN })
        },
    ),
    within_bounds("etcd-everything", "all faults within the bounds", |chance| {
        use Kind::{
            Burst, Campaign, Cancel, CancelWatches, ChangeLeader, Compact, Cut, CutAll, EndStreams, ExpireTokens,
            Isolate, KillClient, KillMember, Observe, PauseClient, PauseMember, Quorum, Refuse, Reset, Shutdown, Slow,
            StopMember, Touch,
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
            (StopMember, 1),
            (Isolate, 2),
            (Quorum, 1),
            (ChangeLeader, 2),
            (Refuse, 1),
            (Cut, 3),
            (CutAll, 2),
            (Reset, 4),
            (Slow, 3),
            (Compact, 3),
            (Touch, 4),
            (CancelWatches, 2),
            (EndStreams, 2),
            (ExpireTokens, 2),
        ];
        let login = chance.one_in(3);
        let late = chance.one_in(4);
        let defects = &[(StaleReads, 4), (RevokedKeepAlives, 4)];
        draft(
            chance,
            &Mix { kinds, login, late, service: 5_000, tls: Tls::Sometimes, per_lease: true, defects, ..PLAIN },
        )
    }),
];

//! The scenarios on etcd, and how their runs are drawn.

use alloc::vec::Vec;
use core::time::Duration;

use super::super::{Action, Backend, Bounds, Draft, Pace, Scenario, Setup, Step, Store};
use super::run::run;
use super::{EtcdAction, EtcdStore};
use crate::lock::{Renew, Wait};
use crate::sim::chance::Chance;
use crate::sim::check::Rule;
use crate::sim::etcd::Condition;
use crate::sim::way::Way;

const LOCKS: [&str; 2] = ["a", "b"];
const ELECTION: &str = "e";
/// Its keys lie in the range of the other's, and are foreign there.
const NESTED: &str = "e/x";

/// Something that may happen in a run, a few times or often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    // Applications.
    Cancel,
    Burst,
    Campaign,
    CampaignNested,
    Observe,
    Shutdown,
    // Clients.
    PauseClient,
    SuspendClient,
    KillClient,
    // Members.
    PauseMember,
    KillMember,
    StopMember,
    Isolate,
    Quorum,
    ChangeLeader,
    Refuse,
    // The network.
    Cut,
    CutAll,
    Reset,
    Slow,
    // The store.
    Compact,
    Touch,
    CancelWatches,
    EndStreams,
    LoseEvents,
    ExpireTokens,
    DeleteKey,
    RevokeLease,
}

/// What a scenario is made of.
struct Mix {
    /// What may happen, each as often as chance says for this run, up to this weight.
    kinds: &'static [(Kind, u64)],
    /// How far a client's clock may drift, in µs a second, either way.
    drift: u64,
    login: bool,
    elections_only: bool,
    /// Calls may be executed after their clients have given them up.
    late: bool,
    /// What is watched is read more often than by default.
    recheck: bool,
}

/// The default.
const RECHECK: Duration = Duration::from_secs(30);

const PLAIN: Mix = Mix { kinds: &[], drift: 8_000, login: false, elections_only: false, late: false, recheck: false };

/// Within the bounds everything is promised.
const fn kept(name: &'static str, about: &'static str, draw: fn(&mut Chance) -> Draft) -> Scenario {
    Scenario { name, about, backend: Backend::Etcd, bounds: Bounds::Kept, excused: &[], draw, run }
}

/// Beyond them two may believe to hold a lock; what they write is still refused in time.
const fn broken(
    name: &'static str,
    about: &'static str,
    what: &'static str,
    draw: fn(&mut Chance) -> Draft,
) -> Scenario {
    let bounds = Bounds::Broken(what);
    Scenario { name, about, backend: Backend::Etcd, bounds, excused: &[Rule::MutualExclusion], draw, run }
}

/// Every scenario on etcd.
pub(in crate::sim::scenario) const SCENARIOS: &[Scenario] = &[
    kept("etcd-contention", "clients contend; clients and members die, members come back", |chance| {
        use Kind::{KillClient, KillMember, Reset, StopMember};
        draft(chance, &Mix { kinds: &[(KillClient, 4), (KillMember, 6), (StopMember, 3), (Reset, 4)], ..PLAIN })
    }),
    kept("etcd-pauses", "clients stand still for longer than their lease, and so do members", |chance| {
        use Kind::{PauseClient, PauseMember};
        draft(chance, &Mix { kinds: &[(PauseClient, 10), (PauseMember, 4)], ..PLAIN })
    }),
    kept("etcd-drift", "clocks drift as far as is allowed, while clients and leaders are lost", |chance| {
        use Kind::{CutAll, KillClient, PauseClient};
        draft(chance, &Mix { kinds: &[(PauseClient, 4), (KillClient, 2), (CutAll, 5)], drift: 9_800, ..PLAIN })
    }),
    broken("etcd-drift-beyond", "clocks drift further than is allowed", "clocks drift by up to a half", |chance| {
        use Kind::{CutAll, KillClient, PauseClient};
        draft(chance, &Mix { kinds: &[(PauseClient, 4), (KillClient, 2), (CutAll, 8)], drift: 500_000, ..PLAIN })
    }),
    broken(
        "etcd-suspended",
        "the machines of clients are suspended, and their clocks with them",
        "clocks stand still while a machine is suspended",
        |chance| {
            use Kind::{Reset, SuspendClient};
            draft(chance, &Mix { kinds: &[(SuspendClient, 10), (Reset, 2)], ..PLAIN })
        },
    ),
    kept("etcd-partitions", "clients and members cannot hear each other, one way or both, and can again", |chance| {
        use Kind::{Cut, CutAll, Isolate, Reset, Slow};
        let kinds = &[(Cut, 10), (CutAll, 5), (Reset, 5), (Slow, 5), (Isolate, 5)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    kept("etcd-late", "requests take longer than their senders wait, and are executed all the same", |chance| {
        use Kind::{Burst, Cut, Reset, Slow};
        draft(chance, &Mix { kinds: &[(Burst, 20), (Slow, 5), (Cut, 3), (Reset, 3)], late: true, ..PLAIN })
    }),
    kept("etcd-leaders", "leaders change or are lost, and so is the majority", |chance| {
        use Kind::{ChangeLeader, Isolate, KillMember, Quorum};
        draft(chance, &Mix { kinds: &[(ChangeLeader, 5), (Quorum, 5), (Isolate, 5), (KillMember, 5)], ..PLAIN })
    }),
    kept("etcd-expiry", "leases end while their owners hold, wait, or come and go", |chance| {
        use Kind::{Cancel, CutAll, PauseClient};
        draft(chance, &Mix { kinds: &[(CutAll, 10), (PauseClient, 6), (Cancel, 6)], ..PLAIN })
    }),
    broken(
        "etcd-by-hand",
        "keys are deleted and leases revoked by hand, of holders and of waiters",
        "somebody deletes what locks have written",
        |chance| {
            use Kind::{DeleteKey, PauseClient, Reset, RevokeLease};
            let kinds = &[(DeleteKey, 10), (RevokeLease, 10), (Reset, 3), (PauseClient, 2)];
            draft(chance, &Mix { kinds, ..PLAIN })
        },
    ),
    kept("etcd-watches", "histories are compacted, watches cancelled and streams ended while clients wait", |chance| {
        use Kind::{CancelWatches, Compact, EndStreams, KillMember, Reset, Touch};
        let kinds = &[(Compact, 8), (Touch, 10), (CancelWatches, 8), (EndStreams, 8), (Reset, 3), (KillMember, 2)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    kept("etcd-cancel", "waits and holds are dropped at every step on the way", |chance| {
        use Kind::{Cancel, Cut, KillMember, Reset};
        draft(chance, &Mix { kinds: &[(Cancel, 40), (Reset, 4), (Cut, 3), (KillMember, 2)], ..PLAIN })
    }),
    kept("etcd-turns", "many waiters of one client pass a lock on among themselves, under faults", |chance| {
        use Kind::{Burst, CutAll, KillClient, PauseClient, Reset};
        let kinds = &[(Burst, 20), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillClient, 2)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    kept("etcd-shutdown", "clients are shut down, with time and without, under faults", |chance| {
        use Kind::{Burst, CutAll, KillMember, PauseClient, Reset, Shutdown};
        let kinds = &[(Shutdown, 6), (Burst, 5), (Reset, 4), (CutAll, 3), (PauseClient, 3), (KillMember, 3)];
        draft(chance, &Mix { kinds, ..PLAIN })
    }),
    kept("etcd-elections", "candidates campaign, proclaim and resign, others observe, under faults", |chance| {
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
    }),
    kept("etcd-nested", "elections whose names begin with the name of another election and a slash", |chance| {
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
    }),
    kept("etcd-lost-events", "members lose watch events and do not say so", |chance| {
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
    kept("etcd-logins", "clients log in, and their tokens end before they do", |chance| {
        use Kind::{CutAll, ExpireTokens, KillMember, Observe, PauseClient, Reset};
        let kinds = &[(ExpireTokens, 10), (KillMember, 4), (Reset, 4), (PauseClient, 3), (Observe, 3), (CutAll, 2)];
        draft(chance, &Mix { kinds, login: true, ..PLAIN })
    }),
    kept("etcd-refusals", "the cluster has no room, or too much to do", |chance| {
        use Kind::{Cancel, PauseClient, Refuse, Reset};
        draft(chance, &Mix { kinds: &[(Refuse, 10), (Reset, 3), (PauseClient, 3), (Cancel, 5)], ..PLAIN })
    }),
    kept("etcd-everything", "whatever may happen within the bounds", |chance| {
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
        draft(chance, &Mix { kinds, login, late, ..PLAIN })
    }),
];

/// A run under construction.
struct Drawing<'a> {
    chance: &'a mut Chance,
    steps: Vec<Step>,
    at: Duration,
    clients: usize,
    members: usize,
    tag: u32,
    elections_only: bool,
    late: bool,
}

fn draft(chance: &mut Chance, mix: &Mix) -> Draft {
    let seed = chance.next();
    let clients = 2 + chance.index(3);
    let members = chance.pick(&[1, 3]);
    let least = chance.millis(3);
    // Most networks are fast.
    let spread = chance.pick(&[5, 5, 5, 100]);
    let latency = least..least + Duration::from_millis(1) + chance.millis(spread);
    let session_ttl = Duration::from_secs(2 + chance.below(7));
    let store = EtcdStore {
        session_ttl,
        turn: chance.pick(&[Duration::from_millis(100), Duration::ZERO, Duration::from_secs(1)]),
        // Shorter than a late call may take.
        request_timeout: if mix.late {
            Duration::from_millis(150) + chance.millis(150)
        } else {
            Duration::from_secs(1) - chance.millis(800)
        },
        watch_own_after: chance.pick(&[None, Some(Duration::ZERO), Some(Duration::from_millis(500))]),
        watch_quiet: Duration::from_secs(10) - chance.millis(9_000),
        late: if mix.late { Duration::from_millis(1_000) - chance.millis(400) } else { Duration::from_millis(2) },
        token_ttl: mix.login.then(|| Duration::from_secs(60) - chance.millis(58_000)),
        recheck: if mix.recheck { chance.pick(&[RECHECK, Duration::from_secs(3)]) } else { RECHECK },
    };
    let pace = |chance: &mut Chance| Pace {
        offset: chance.millis(100_000),
        drift_ppm: i32::try_from(chance.below(2 * mix.drift + 1)).unwrap_or(0) - i32::try_from(mix.drift).unwrap_or(0),
    };
    let setup = Setup {
        seed,
        latency,
        clients: (0..clients).map(|_| pace(chance)).collect(),
        nodes: (0..members).map(|_| Pace::default()).collect(),
        store: Store::Etcd(store),
    };
    let weights: Vec<(Kind, u64)> = mix.kinds.iter().map(|(kind, most)| (*kind, chance.below(most + 1))).collect();
    // Some runs are crowded, some have long quiet stretches.
    let gap = chance.pick(&[200, 50, 1_000]);
    let count = 10 + chance.below(70);
    let mut drawing = Drawing {
        chance,
        steps: Vec::new(),
        at: Duration::ZERO,
        clients,
        members,
        tag: 0,
        elections_only: mix.elections_only,
        late: mix.late,
    };
    for _ in 0..count {
        if drawing.chance.is_exhausted() {
            break;
        }
        drawing.at += drawing.chance.millis(gap);
        drawing.one(&weights);
    }
    Draft { setup, steps: drawing.steps, excused: Vec::new() }
}

impl Drawing<'_> {
    fn one(&mut self, weights: &[(Kind, u64)]) {
        // As much as everything else together, or nobody would hold a lock that could be lost.
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.chance.below(2 * total + 5);
        for (kind, weight) in weights {
            match draw.checked_sub(*weight) {
                Some(rest) => draw = rest,
                None => return self.happens(*kind),
            }
        }
        if self.elections_only { self.happens(Kind::Campaign) } else { self.acquire() }
    }

    fn push(&mut self, after: Duration, action: Action) {
        self.steps.push(Step { at: self.at + after, action });
    }

    fn etcd(&mut self, after: Duration, action: EtcdAction) {
        self.push(after, Action::Etcd(action));
    }

    fn client(&mut self) -> usize {
        self.chance.index(self.clients)
    }

    fn member(&mut self) -> usize {
        self.chance.index(self.members)
    }

    /// Mostly short; sometimes longer than any lease lives.
    fn while_it_lasts(&mut self) -> Duration {
        let bound = self.chance.pick(&[1_000, 4_000, 20_000]);
        self.chance.millis(bound)
    }

    fn next_tag(&mut self) -> u32 {
        self.tag += 1;
        self.tag
    }

    fn wait(&mut self) -> Wait {
        match self.chance.below(5) {
            0..3 => Wait::Forever,
            3 => Wait::For(self.chance.millis(8_000)),
            _ => Wait::Try,
        }
    }

    fn renew(&mut self) -> Renew {
        match self.chance.below(8) {
            0..6 => Renew::Auto,
            6 => Renew::Manual,
            _ => Renew::AtMost(Duration::from_millis(1) + self.chance.millis(4_000)),
        }
    }

    fn ttl(&mut self) -> Option<Duration> {
        let own = self.chance.one_in(5);
        own.then(|| Duration::from_secs(1 + self.chance.below(6)))
    }

    fn acquire(&mut self) {
        let client = self.client();
        let name = self.chance.pick(&LOCKS[..]);
        self.acquire_by(client, name);
    }

    fn acquire_by(&mut self, client: usize, name: &'static str) {
        let (tag, wait, renew, ttl) = (self.next_tag(), self.wait(), self.renew(), self.ttl());
        let claim = !self.chance.one_in(12);
        let hold = self.hold();
        let write_every = self.chance.one_in(3).then(|| Duration::from_millis(20) + self.chance.millis(500));
        let want = Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every };
        self.push(Duration::ZERO, want);
        self.loose(tag, hold.is_none() || !claim);
    }

    fn hold(&mut self) -> Option<Duration> {
        // Long enough for what is late.
        if self.late {
            return Some(self.chance.millis(1_500));
        }
        match self.chance.below(6) {
            0..4 => Some(self.chance.millis(400)),
            4 => Some(self.chance.millis(6_000)),
            _ => None,
        }
    }

    /// What an application does later with something that nobody gives back by itself.
    fn loose(&mut self, tag: u32, loose: bool) {
        if !loose {
            return;
        }
        for _ in 0..1 + self.chance.below(3) {
            let after = self.while_it_lasts();
            let action = match self.chance.below(5) {
                0 => Action::Release(tag),
                1 => Action::Claim(tag),
                2 => Action::Extend(tag),
                3 => Action::Write(tag),
                _ => Action::Abandon(tag),
            };
            self.push(after, action);
        }
    }

    fn campaign(&mut self, name: &'static str) {
        let (client, tag) = (self.client(), self.next_tag());
        let (ttl, wait, renew) = (self.ttl(), self.wait(), self.renew());
        let claim = !self.chance.one_in(12);
        let hold = self.hold();
        self.etcd(Duration::ZERO, EtcdAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold });
        for _ in 0..self.chance.below(3) {
            let after = self.while_it_lasts();
            self.etcd(after, EtcdAction::Proclaim(tag));
        }
        self.loose(tag, hold.is_none() || !claim);
    }

    /// Dropped within a few round trips, wherever it is by then.
    fn cancel(&mut self) {
        self.acquire();
        let after = Duration::from_micros(self.chance.below(20_000));
        let tag = self.tag;
        self.push(after, Action::Abandon(tag));
    }

    /// Many of one client want one lock.
    fn burst(&mut self) {
        let (client, name) = (self.client(), if self.late { LOCKS[0] } else { self.chance.pick(&LOCKS[..]) });
        for _ in 0..2 + self.chance.below(5) {
            self.acquire_by(client, name);
        }
    }

    fn happens(&mut self, kind: Kind) {
        let now = Duration::ZERO;
        match kind {
            Kind::Cancel => self.cancel(),
            Kind::Burst => self.burst(),
            Kind::Campaign => self.campaign(ELECTION),
            Kind::CampaignNested => self.campaign(NESTED),
            Kind::Observe => {
                let (client, tag, always) = (self.client(), self.next_tag(), !self.chance.one_in(3));
                self.etcd(now, EtcdAction::Observe { client, tag, name: ELECTION, always });
                let after = self.while_it_lasts();
                self.etcd(after, EtcdAction::Close(tag));
            }
            Kind::Shutdown => {
                let (client, within) = (self.client(), self.chance.pick(&[5_000, 300, 1]));
                self.push(now, Action::Shutdown { client, within: Duration::from_millis(within) });
            }
            Kind::PauseClient => {
                let client = self.client();
                self.for_a_while(Action::PauseClient(client), Action::ResumeClient(client));
            }
            Kind::SuspendClient => {
                let client = self.client();
                self.for_a_while(Action::SuspendClient(client), Action::ResumeClient(client));
            }
            Kind::KillClient => {
                let client = self.client();
                self.push(now, Action::KillClient(client));
            }
            Kind::PauseMember => {
                let member = self.member();
                self.for_a_while(Action::PauseNode(member), Action::ResumeNode(member));
            }
            Kind::KillMember => {
                let node = self.member();
                self.for_a_while(Action::KillNode(node), Action::RestartNode { node, keep_data: true });
            }
            Kind::StopMember => {
                let node = self.member();
                let stop = Action::Etcd(EtcdAction::StopMember(node));
                self.for_a_while(stop, Action::RestartNode { node, keep_data: true });
            }
            Kind::Isolate => {
                let member = self.member();
                self.for_a_while_in_etcd(EtcdAction::Isolate(member), EtcdAction::Rejoin(member));
            }
            Kind::Quorum => self.for_a_while_in_etcd(EtcdAction::LoseQuorum, EtcdAction::RestoreQuorum),
            Kind::ChangeLeader => self.etcd(now, EtcdAction::ChangeLeader),
            Kind::Refuse => {
                let condition = self.chance.pick(&[Condition::TooManyRequests, Condition::NoSpace]);
                let state = |on| EtcdAction::Condition { condition, on };
                self.for_a_while_in_etcd(state(true), state(false));
            }
            Kind::Cut => {
                let (client, node) = (self.client(), self.member());
                self.cut(client, node);
            }
            Kind::CutAll => {
                let client = self.client();
                (0..self.members).for_each(|node| self.cut(client, node));
            }
            Kind::Reset => {
                let (client, node) = (self.client(), self.member());
                self.push(now, Action::Reset { client, node });
            }
            Kind::Slow => {
                let (client, node, way) = (self.client(), self.member(), self.chance.pick(&Way::BOTH));
                // Up to longer than an answer is waited for.
                let bound = self.chance.pick(&[300, 1_500]);
                let least = self.chance.millis(bound);
                let latency = least..least + Duration::from_millis(50);
                self.push(now, Action::Slow { client, node, way, latency });
            }
            Kind::Compact => self.etcd(now, EtcdAction::Compact),
            Kind::Touch => self.etcd(now, EtcdAction::Touch),
            Kind::CancelWatches => self.etcd(now, EtcdAction::CancelWatches),
            Kind::EndStreams => {
                let member = self.member();
                self.etcd(now, EtcdAction::EndStreams(member));
            }
            Kind::LoseEvents => {
                let member = self.member();
                self.for_a_while_in_etcd(EtcdAction::LoseEvents(member), EtcdAction::KeepEvents(member));
            }
            Kind::ExpireTokens => self.etcd(now, EtcdAction::ExpireTokens),
            Kind::DeleteKey => {
                let (name, oldest) = (self.chance.pick(&LOCKS[..]), !self.chance.one_in(3));
                self.etcd(now, EtcdAction::DeleteKey { name, oldest });
            }
            Kind::RevokeLease => {
                let (name, oldest) = (self.chance.pick(&LOCKS[..]), !self.chance.one_in(3));
                self.etcd(now, EtcdAction::RevokeLease { name, oldest });
            }
        }
    }

    fn cut(&mut self, client: usize, node: usize) {
        let ways = self.chance.pick(&[&Way::BOTH[..], &[Way::ToNode], &[Way::ToClient]]);
        for way in ways {
            self.push(Duration::ZERO, Action::Cut { client, node, way: *way });
        }
        let after = self.while_it_lasts();
        self.push(after, Action::Heal { client, node });
    }

    fn for_a_while(&mut self, begins: Action, ends: Action) {
        self.push(Duration::ZERO, begins);
        let after = self.while_it_lasts();
        self.push(after, ends);
    }

    fn for_a_while_in_etcd(&mut self, begins: EtcdAction, ends: EtcdAction) {
        self.for_a_while(Action::Etcd(begins), Action::Etcd(ends));
    }
}

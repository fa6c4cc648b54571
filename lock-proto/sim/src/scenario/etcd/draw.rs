//! Draws the runs of a scenario on etcd.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::super::queue::QueueAction;
use super::super::tls::{self, Tls};
use super::super::{Action, Draft, Pace, Setup, Step, Store, claims, credentials, lost};
use super::{EtcdAction, EtcdStore};
use crate::chance::Chance;
use crate::check::Rule;
use crate::direction::Direction;
use crate::etcd::Condition;
use lock_proto::{Renew, Wait};

/// No lease has a longer TTL.
pub(super) const LONGEST_TTL: Duration = Duration::from_secs(8);
const LOCKS: [&str; 2] = ["a", "b"];
const ELECTION: &str = "e";
/// A name whose keys lie in the key range of another lock, which must ignore them.
const NESTED: &str = "e/x";

/// A kind of step. Its weight is drawn per run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scenario) enum Kind {
    Cancel,
    Burst,
    Campaign,
    CampaignNested,
    Observe,
    Shutdown,
    PauseClient,
    SuspendClient,
    KillClient,
    PauseMember,
    KillMember,
    StopMember,
    Isolate,
    Quorum,
    ChangeLeader,
    Refuse,
    /// A member is paused for long enough that another leads.
    PauseLeader,
    Cut,
    CutAll,
    Reset,
    Slow,
    /// For a while the latency of a client is up to several times the shortest TTL.
    Crawl,
    /// Data in flight arrives after its connection was replaced.
    Replace,
    Compact,
    Touch,
    CancelWatches,
    EndStreams,
    LoseEvents,
    ExpireTokens,
    DeleteKey,
    /// A leader proclaims a value after its key was replaced.
    ReplaceKey,
    RevokeLease,
    /// For a while connections to a member fail because of TLS.
    Handshake,
    /// For a while the source of credentials does not work.
    Source,
    ChangePasswords,
}

pub(in crate::scenario) struct Mix {
    /// Kinds of steps with their maximum weights.
    pub(in crate::scenario) kinds: &'static [(Kind, u64)],
    /// Maximum drift of a client's clock in either direction, in µs per second.
    pub(in crate::scenario) drift: u64,
    /// Numbers of members to choose from.
    pub(in crate::scenario) members: &'static [usize],
    pub(in crate::scenario) login: bool,
    pub(in crate::scenario) elections_only: bool,
    /// Calls may be executed after the client has given them up.
    pub(in crate::scenario) late: bool,
    /// Watched keys are also read without an event. Otherwise a watch that misses one is wrong, not
    /// slow.
    pub(in crate::scenario) recheck: bool,
    /// Clients still get data from ended connections.
    pub(in crate::scenario) stale: bool,
    /// Maximum service time in µs, used in some runs.
    pub(in crate::scenario) service: u64,
    pub(in crate::scenario) fast: bool,
    pub(in crate::scenario) tls: Tls,
    /// Clients obtain credentials.
    pub(in crate::scenario) credentials: bool,
    /// Clients know one member, and ask the cluster for the others.
    pub(in crate::scenario) sync: bool,
    /// Most locks have a TTL, and so a lease, of their own.
    pub(in crate::scenario) own_ttls: bool,
    /// Keep-alives are answered per lease in some runs.
    pub(in crate::scenario) per_lease: bool,
    /// Defects that the cluster has in one run of so many.
    pub(in crate::scenario) defects: &'static [(Condition, u64)],
}

/// Longer than any run: a client that misses a change never learns of it by a later read.
// S8
const NO_RECHECK: Duration = Duration::from_secs(20_000);

pub(in crate::scenario) const PLAIN: Mix = Mix {
    kinds: &[],
    drift: 8_000,
    members: &[1, 3],
    login: false,
    elections_only: false,
    late: false,
    recheck: false,
    stale: false,
    service: 0,
    fast: false,
    tls: Tls::Never,
    credentials: false,
    sync: false,
    own_ttls: false,
    per_lease: false,
    defects: &[],
};

struct Drawing<'a> {
    chance: &'a mut Chance,
    tls: Option<u8>,
    steps: Vec<Step>,
    at: Duration,
    clients: usize,
    members: usize,
    latency: Range<Duration>,
    tag: u32,
    elections_only: bool,
    late: bool,
    own_ttls: bool,
}

pub(super) fn draft(chance: &mut Chance, mix: &Mix) -> Draft {
    let mut draft = queue_draft(chance, mix);
    let Store::Etcd(store) = &draft.setup.store else { return draft };
    claims::sometimes_late(chance, &mut draft.steps, store.session_ttl);
    lost::sometimes_before_shutdown(chance, &mut draft.steps, store.session_ttl);
    draft
}

/// Draws what does not depend on the kind of queue store.
pub(in crate::scenario) fn queue_draft(chance: &mut Chance, mix: &Mix) -> Draft {
    let seed = chance.next();
    let clients = 2 + chance.index(3);
    let members = chance.pick(mix.members);
    let least = chance.millis(3);
    // Most networks are fast.
    let spread = if mix.fast { 5 } else { chance.pick(&[5, 5, 5, 100]) };
    let latency = least..least + Duration::from_millis(1) + chance.millis(spread);
    let session_ttl = Duration::from_secs(2 + chance.below(7));
    let store = EtcdStore {
        session_ttl,
        turn: chance.pick(&[Duration::from_millis(100), Duration::ZERO, Duration::from_secs(1)]),
        // Shorter than the delay of a late call.
        request_timeout: if mix.late {
            Duration::from_millis(150) + chance.millis(150)
        } else {
            Duration::from_secs(1) - chance.millis(800)
        },
        watch_own_after: chance.pick(&[None, Some(Duration::ZERO), Some(Duration::from_millis(500))]),
        watch_quiet: Duration::from_secs(10) - chance.millis(9_000),
        late: if mix.late { Duration::from_millis(1_000) - chance.millis(400) } else { Duration::from_millis(2) },
        known: mix.sync.then_some(1),
        token_ttl: mix.login.then(|| Duration::from_secs(60) - chance.millis(58_000)),
        recheck: if mix.recheck { Duration::from_secs(chance.pick(&[30, 3])) } else { NO_RECHECK },
        per_lease: false,
    };
    let (quiet, late) = (store.watch_quiet, store.late);
    let pace = |chance: &mut Chance| Pace {
        offset: chance.millis(100_000),
        drift_ppm: i32::try_from(chance.below(2 * mix.drift + 1)).unwrap_or(0) - i32::try_from(mix.drift).unwrap_or(0),
    };
    let mut setup = Setup {
        seed,
        latency,
        service: Duration::ZERO,
        stale: mix.stale,
        credentials: mix.credentials.then(|| credentials::provider(chance, Duration::from_millis(100))),
        tls: (mix.tls == Tls::Always).then(|| 1 + u8::from(chance.one_in(2))),
        clients: (0..clients).map(|_| pace(chance)).collect(),
        nodes: (0..members).map(|_| Pace::default()).collect(),
        store: Store::Etcd(store),
    };
    let weights: Vec<(Kind, u64)> = mix.kinds.iter().map(|(kind, most)| (*kind, chance.below(most + 1))).collect();
    // Some runs are crowded; others have long quiet stretches.
    let gap = chance.pick(&[200, 50, 1_000]);
    let count = 10 + chance.below(70);
    let mut drawing = Drawing {
        chance,
        tls: setup.tls,
        steps: Vec::new(),
        at: Duration::ZERO,
        clients,
        members,
        latency: setup.latency.clone(),
        tag: 0,
        elections_only: mix.elections_only,
        late: mix.late,
        own_ttls: mix.own_ttls,
    };
    for _ in 0..count {
        if drawing.chance.is_exhausted() {
            break;
        }
        drawing.at += drawing.chance.millis(gap);
        drawing.add_random(&weights);
    }
    let mut steps = drawing.steps;
    // Drawn last, so that the rest of the run does not depend on it.
    if mix.service > 0 && chance.one_in(3) {
        setup.service = Duration::from_micros(chance.below(mix.service));
    }
    if mix.tls == Tls::Sometimes {
        tls::sometimes(chance, &mut setup, &mut steps);
    }
    if mix.per_lease
        && let Store::Etcd(store) = &mut setup.store
    {
        store.per_lease = chance.one_in(2);
    }
    for (condition, n) in mix.defects {
        if !steps.is_empty() && chance.one_in(*n) {
            let action = Action::Etcd(EtcdAction::Condition { condition: *condition, on: true });
            steps.push(Step { at: Duration::ZERO, action });
        }
    }
    // If only the watches are late, the client reopens the stream while other replies arrive.
    let slow = |step: &Step| matches!(&step.action, Action::Slow { latency, .. } if latency.end * 2 + late > quiet);
    let excused = if mix.late && steps.iter().any(slow) { [Rule::Twice].to_vec() } else { Vec::new() };
    Draft { setup, steps, excused }
}

impl Drawing<'_> {
    fn add_random(&mut self, weights: &[(Kind, u64)]) {
        // As likely as all faults together; otherwise few locks would be held when a fault strikes.
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.chance.below(2 * total + 5);
        for (kind, weight) in weights {
            match draw.checked_sub(*weight) {
                Some(rest) => draw = rest,
                None => return self.add(*kind),
            }
        }
        if self.elections_only { self.add(Kind::Campaign) } else { self.acquire() }
    }

    fn push(&mut self, after: Duration, action: Action) {
        self.steps.push(Step { at: self.at + after, action });
    }

    fn etcd(&mut self, after: Duration, action: EtcdAction) {
        self.push(after, Action::Etcd(action));
    }

    fn queue(&mut self, after: Duration, action: QueueAction) {
        self.push(after, Action::Queue(action));
    }

    fn client(&mut self) -> usize {
        self.chance.index(self.clients)
    }

    fn member(&mut self) -> usize {
        self.chance.index(self.members)
    }

    /// Draws a duration: mostly short, sometimes longer than any lease lives.
    fn fault_duration(&mut self) -> Duration {
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
        let own = if self.own_ttls { !self.chance.one_in(3) } else { self.chance.one_in(5) };
        own.then(|| Duration::from_secs(1 + self.chance.below(6)))
    }

    fn acquire(&mut self) {
        let client = self.client();
        let name = self.chance.pick(&LOCKS[..]);
        self.acquire_by(client, name);
    }

    fn acquire_by(&mut self, client: usize, name: &'static str) {
        let (tag, wait, renew, ttl) = (self.next_tag(), self.wait(), self.renew(), self.ttl());
        let claim = (!self.chance.one_in(12)).then_some(Duration::ZERO);
        let hold = self.hold();
        let write_every = self.chance.one_in(3).then(|| Duration::from_millis(20) + self.chance.millis(500));
        let want = Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every };
        self.push(Duration::ZERO, want);
        self.add_later_actions(tag, hold.is_none() || claim.is_none());
    }

    fn hold(&mut self) -> Option<Duration> {
        // Long enough for late calls.
        if self.late {
            return Some(self.chance.millis(1_500));
        }
        match self.chance.below(6) {
            0..4 => Some(self.chance.millis(400)),
            4 => Some(self.chance.millis(6_000)),
            _ => None,
        }
    }

    /// Draws the later actions of an application without a hold time.
    fn add_later_actions(&mut self, tag: u32, needed: bool) {
        if !needed {
            return;
        }
        for _ in 0..1 + self.chance.below(3) {
            let after = self.fault_duration();
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
        let claim = (!self.chance.one_in(12)).then_some(Duration::ZERO);
        let hold = self.hold();
        self.queue(Duration::ZERO, QueueAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold });
        for _ in 0..self.chance.below(3) {
            let after = self.fault_duration();
            self.queue(after, QueueAction::Proclaim(tag));
        }
        self.add_later_actions(tag, hold.is_none() || claim.is_none());
    }

    /// Drops an acquisition within a few round trips, in whatever state it is in.
    fn cancel(&mut self) {
        self.acquire();
        let after = Duration::from_micros(self.chance.below(20_000));
        let tag = self.tag;
        self.push(after, Action::Abandon(tag));
    }

    /// Requests one lock several times in one client.
    fn burst(&mut self) {
        let (client, name) = (self.client(), if self.late { LOCKS[0] } else { self.chance.pick(&LOCKS[..]) });
        for _ in 0..2 + self.chance.below(5) {
            self.acquire_by(client, name);
        }
    }

    fn add(&mut self, kind: Kind) {
        let now = Duration::ZERO;
        match kind {
            Kind::Cancel => self.cancel(),
            Kind::Burst => self.burst(),
            Kind::Campaign => self.campaign(ELECTION),
            Kind::CampaignNested => self.campaign(NESTED),
            Kind::Observe => {
                let (client, tag, always) = (self.client(), self.next_tag(), !self.chance.one_in(3));
                self.queue(now, QueueAction::Observe { client, tag, name: ELECTION, always });
                let after = self.fault_duration();
                self.queue(after, QueueAction::Close(tag));
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
                self.for_a_while(
                    Action::Queue(QueueAction::Isolate(member)),
                    Action::Queue(QueueAction::Rejoin(member)),
                );
            }
            Kind::Quorum => {
                let (lost, restored) = (QueueAction::LoseQuorum, QueueAction::RestoreQuorum);
                self.for_a_while(Action::Queue(lost), Action::Queue(restored));
            }
            Kind::ChangeLeader => self.queue(now, QueueAction::ChangeLeader),
            Kind::Refuse => {
                let condition = self.chance.pick(&[Condition::TooManyRequests, Condition::NoSpace]);
                let state = |on| EtcdAction::Condition { condition, on };
                self.for_a_while_in_etcd(state(true), state(false));
            }
            Kind::PauseLeader => {
                // One of three members leads.
                let member = self.member();
                self.push(now, Action::PauseNode(member));
                let after = Duration::from_millis(1_100) + self.chance.millis(3_000);
                self.push(after, Action::ResumeNode(member));
                // Connections break around that time, so that clients come back to the member.
                for _ in 0..self.chance.below(2 * self.clients as u64) {
                    let (client, node) = (self.client(), self.member());
                    let after = after + self.chance.millis(80);
                    self.push(after, Action::Reset { client, node });
                }
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
                let (client, node, direction) = (self.client(), self.member(), self.chance.pick(&Direction::BOTH));
                // Up to more than the request timeout.
                let bound = self.chance.pick(&[300, 1_500]);
                let least = self.chance.millis(bound);
                let latency = least..least + Duration::from_millis(50);
                self.push(now, Action::Slow { client, node, direction, latency });
            }
            Kind::Crawl => {
                let (client, direction) = (self.client(), self.chance.pick(&Direction::BOTH));
                let least = self.chance.millis(4_000);
                for node in 0..self.members {
                    self.push(
                        now,
                        Action::Slow { client, node, direction, latency: least..least + Duration::from_millis(50) },
                    );
                }
                let after = self.fault_duration();
                let latency = self.latency.clone();
                for node in 0..self.members {
                    self.push(after, Action::Slow { client, node, direction, latency: latency.clone() });
                }
            }
            Kind::Replace => {
                let (client, node) = (self.client(), self.member());
                if self.chance.one_in(2) {
                    return self.push(now, Action::Reset { client, node });
                }
                // Longer than the request timeout.
                let span = Duration::from_millis(1_100) + self.chance.millis(1_000);
                self.push(now, Action::Stall { client, node, direction: Direction::ToClient, span });
            }
            Kind::ReplaceKey => {
                let name = if self.elections_only { ELECTION } else { self.chance.pick(&LOCKS[..]) };
                self.etcd(now, EtcdAction::ReplaceKey { name, oldest: true });
                for tag in self.tag.saturating_sub(6)..=self.tag {
                    let after = Duration::from_micros(self.chance.below(5_000));
                    let write = self.chance.one_in(3);
                    let action = if write { Action::Write(tag) } else { Action::Queue(QueueAction::Proclaim(tag)) };
                    self.push(after, action);
                }
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
            Kind::Handshake => {
                let span = self.fault_duration();
                let pairs = (self.clients, self.members);
                tls::add_failure(self.chance, pairs, self.tls, &mut self.steps, (self.at, span));
            }
            Kind::Source => {
                let span = self.fault_duration();
                credentials::add_failure(self.chance, &mut self.steps, (self.at, span));
            }
            Kind::ChangePasswords => {
                let change = credentials::change(self.chance);
                self.push(now, change);
            }
            Kind::ExpireTokens => self.etcd(now, EtcdAction::ExpireTokens),
            Kind::DeleteKey => {
                let (name, oldest) = (self.chance.pick(&LOCKS[..]), !self.chance.one_in(3));
                self.queue(now, QueueAction::DeleteKey { name, oldest });
            }
            Kind::RevokeLease => {
                let (name, oldest) = (self.chance.pick(&LOCKS[..]), !self.chance.one_in(3));
                self.queue(now, QueueAction::EndSession { name, oldest });
            }
        }
    }

    fn cut(&mut self, client: usize, node: usize) {
        let directions = self.chance.pick(&[&Direction::BOTH[..], &[Direction::ToNode], &[Direction::ToClient]]);
        for direction in directions {
            self.push(Duration::ZERO, Action::Cut { client, node, direction: *direction });
        }
        let after = self.fault_duration();
        self.push(after, Action::Heal { client, node });
    }

    fn for_a_while(&mut self, begins: Action, ends: Action) {
        self.push(Duration::ZERO, begins);
        let after = self.fault_duration();
        self.push(after, ends);
    }

    fn for_a_while_in_etcd(&mut self, begins: EtcdAction, ends: EtcdAction) {
        self.for_a_while(Action::Etcd(begins), Action::Etcd(ends));
    }
}

//! Draws the runs of a scenario on Redis. The rate of every fault is drawn from the seed, so that
//! some runs have many faults of a kind and others none.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::{CONNECT_TIME, RedisAction, RedisStore};
use crate::chance::Chance;
use crate::check::Rule;
use crate::direction::Direction;
use crate::redis::Condition;
use crate::scenario::tls::{self, Tls};
use crate::scenario::{Action, Draft, Pace, Setup, Step, Store, claims, credentials, lost};
use lock_proto::Backoff;
use lock_proto::redis::{MAX_FENCE_BLOCK, Protocol, Wake};
use lock_proto::{Renew, Wait};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const CONDITIONS: [Condition; 4] =
    [Condition::Loading, Condition::OutOfMemory, Condition::ReadOnly, Condition::DiskError];
/// Rate of new requests, relative to the rates of a recipe.
const REQUEST_RATE: u64 = 10;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A kind of step apart from new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Claim, extend, release or drop a lock.
    LockAction,
    /// Drop the latest request soon.
    Abandon,
    /// A client requests several locks and releases them together.
    Bunch,
    /// All clients take all locks repeatedly, before and after the node loses its fence counter.
    Burst,
    Pause,
    Suspend,
    KillClient,
    Shutdown,
    StopNode,
    /// A node restarts with its data.
    Crash,
    /// A node restarts without its data.
    Forget,
    /// Like `Forget`, for nodes of a quorum.
    ForgetInQuorum,
    Partition,
    OneDirection,
    Reset,
    Slow,
    /// For a while the latency of a client is up to several times the shortest TTL.
    Crawl,
    /// Data in flight arrives after its connection was replaced.
    Replace,
    Refuse,
    FlushScripts,
    LogOut,
    /// A request arrives after its client has given up and used the name again.
    Late,
    Jump,
    JumpForward,
    Evict,
    Stranger,
    Promote,
    /// Like `Promote`, with a replica that has been running for long.
    FailOver,
    /// For a while the address of a node leads a client to another node.
    Redirect,
    /// A node restarts without its data, and its clock jumps forward at once.
    ForgetAndStep,
    /// For a while connections to a node fail because of TLS.
    Handshake,
    /// For a while sockets take nothing, some of them those of new connections.
    BlockSocket,
    /// For a while the source of credentials does not work.
    Source,
    ChangePasswords,
}

#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) nodes: &'static [usize],
    pub(super) clients: Range<u64>,
    pub(super) names: &'static [usize],
    /// Maximum time in ms that hosts gather writes; 0 if they write at once.
    pub(super) gather: u64,
    /// Maximum clock drift in either direction, in µs per second.
    pub(super) drift: u64,
    /// Grants carry fencing tokens wherever possible.
    pub(super) fenced: bool,
    pub(super) login: bool,
    /// Every client connects to every node before the first fault.
    pub(super) preconnect: bool,
    /// Clients still get data from ended connections.
    pub(super) stale: bool,
    /// Maximum service time of nodes in µs, used in some runs.
    pub(super) service: u64,
    pub(super) tls: Tls,
    /// Clients obtain credentials.
    pub(super) credentials: bool,
    /// Waiters always use wake-ups.
    pub(super) notify: bool,
    /// Maximum rate of each kind.
    pub(super) rates: &'static [(Kind, u64)],
}

pub(super) fn draw(chance: &mut Chance, recipe: &Recipe) -> Draft {
    let nodes = chance.pick(recipe.nodes);
    let clients = recipe.clients.start + chance.below(recipe.clients.end - recipe.clients.start);
    let ttl = ms(300 + chance.below(2_700));
    let slow = chance.pick(&[2, 5, 20]);
    let mut latency = ms(chance.below(slow))..ms(slow + chance.below(slow));
    let gather = if recipe.gather > 0 { chance.millis(recipe.gather) } else { Duration::ZERO };
    // A round needs two round trips within a quarter of the shortest TTL; a request must be
    // answered within a fifth.
    latency.end = latency.end.min(((ttl / 8).saturating_sub(ms(5)) / 4).saturating_sub(gather));
    latency.start = latency.start.min(latency.end);
    let store = RedisStore {
        ttl,
        round: (latency.end + gather) * 4 + ms(5),
        poll: Backoff::exponential(ms(10 + chance.below(50)), ms(100 + chance.below(200))),
        wake: if !recipe.notify && chance.one_in(4) { Wake::Poll } else { Wake::Notify },
        turn: (chance.pick(&[ms(100), ms(0), ms(20), ms(1_000)]), ms(1 + chance.below(10))),
        fencing: recipe.fenced || !chance.one_in(4),
        fence_block: chance.pick(&[MAX_FENCE_BLOCK, 1, 2, 5]),
        gather,
        login: recipe.login,
        preconnect: recipe.preconnect,
        login_limit: None,
        protocol: Protocol::Resp2,
    };
    let mut excused = Vec::new();
    if !store.fencing || nodes > 1 {
        excused.push(Rule::StaleWrite);
    }
    let names = chance.pick(recipe.names);
    let gap = chance.pick(&[120, 30, 400, 1_000]);
    let count = 20 + chance.below(100);
    let rates: Vec<(Kind, u64)> = recipe.rates.iter().map(|(kind, most)| (*kind, chance.below(most + 1))).collect();
    let mut setup = Setup {
        seed: chance.next(),
        latency,
        service: Duration::ZERO,
        stale: recipe.stale,
        credentials: None,
        tls: (recipe.tls == Tls::Always).then(|| 1 + u8::from(chance.one_in(2))),
        clients: (0..clients).map(|_| pace(chance, recipe.drift, 100_000)).collect(),
        nodes: (0..nodes).map(|_| pace(chance, recipe.drift, 1)).collect(),
        store: Store::Redis(store),
    };
    if recipe.credentials {
        let provider = credentials::provider(chance, ttl / 16);
        if let Store::Redis(store) = &mut setup.store {
            store.login_limit = credentials::login_limit(chance, &provider);
        }
        setup.credentials = Some(provider);
    }
    let mut drawing = Drawing {
        chance,
        setup,
        steps: Vec::new(),
        at: if recipe.preconnect { CONNECT_TIME } else { Duration::ZERO },
        tags: 0,
        ttl,
        names,
        gap,
        drops: 0,
    };
    drawing.drops = rates.iter().find(|(kind, _)| *kind == Kind::Abandon).map_or(0, |(_, rate)| *rate);
    for _ in 0..count {
        if drawing.chance.is_exhausted() {
            break;
        }
        drawing.next(&rates);
    }
    let Drawing { mut setup, mut steps, .. } = drawing;
    // Drawn last, so that the rest of the run does not depend on it.
    if recipe.service > 0 && chance.one_in(3) {
        setup.service = Duration::from_micros(chance.below(recipe.service));
        // A busy node's reply must be in time for the round.
        if let Store::Redis(store) = &mut setup.store {
            store.round = (store.round + setup.service * 2).min(ttl / 8);
        }
    }
    if recipe.tls == Tls::Sometimes {
        tls::sometimes(chance, &mut setup, &mut steps);
    }
    if (recipe.tls == Tls::Sometimes || recipe.credentials)
        && chance.one_in(8)
        && let Store::Redis(store) = &mut setup.store
    {
        store.protocol = Protocol::Resp3;
    }
    if steps.iter().any(|step| loses_track(step, ttl)) {
        excused.push(Rule::Ghost);
    }
    // After everything else, so that the rest of the run does not depend on it.
    claims::sometimes_late(chance, &mut steps, ttl);
    lost::sometimes_before_shutdown(chance, &mut steps, ttl);
    Draft { setup, steps, excused }
}

/// Returns whether clients may leave a key from this step on: they do not clean up a request that
/// arrives later than a TTL after it was given up. Nor do they reach data on a server their address
/// no longer leads to, or on a promoted replica. `ttl` is the longest TTL.
pub(in crate::scenario) fn loses_track(step: &Step, ttl: Duration) -> bool {
    use RedisAction::{FailOver, Promote, Redirect};
    let moved = matches!(step.action, Action::Redis(Redirect { .. } | Promote(_) | FailOver(_)));
    // The shortest TTL is half of the longest.
    moved || matches!(&step.action, Action::Slow { latency, .. } if latency.end >= ttl / 2)
}

fn pace(chance: &mut Chance, drift: u64, offset: u64) -> Pace {
    let drift = i32::try_from(chance.below(2 * drift + 1)).unwrap_or(0) - i32::try_from(drift).unwrap_or(0);
    Pace { offset: ms(chance.below(offset)), drift_ppm: drift }
}

struct Drawing<'a> {
    chance: &'a mut Chance,
    setup: Setup,
    steps: Vec<Step>,
    at: Duration,
    tags: u32,
    ttl: Duration,
    names: usize,
    /// Maximum time between two steps, in ms.
    gap: u64,
    /// How often a request is dropped soon.
    drops: u64,
}

impl Drawing<'_> {
    fn push(&mut self, after: Duration, action: Action) {
        self.steps.push(Step { at: self.at + after, action });
    }

    fn next(&mut self, rates: &[(Kind, u64)]) {
        self.at += self.chance.millis(self.gap);
        let total: u64 = rates.iter().map(|(_, rate)| rate).sum();
        let mut roll = self.chance.below(REQUEST_RATE + total);
        if roll < REQUEST_RATE {
            return self.request();
        }
        roll -= REQUEST_RATE;
        for (kind, rate) in rates {
            if roll < *rate {
                return self.add(*kind);
            }
            roll -= rate;
        }
    }

    fn client(&mut self) -> usize {
        self.chance.index(self.setup.clients.len())
    }

    fn node(&mut self) -> usize {
        self.chance.index(self.setup.nodes.len())
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.chance.index(self.names)]
    }

    /// Draws a duration: mostly shorter than a TTL, sometimes much longer.
    fn span(&mut self) -> Duration {
        let most = self.chance.pick(&[1, 4, 12]) * u64::try_from(self.ttl.as_millis()).unwrap_or(1_000) / 4;
        self.chance.millis(most)
    }

    fn request(&mut self) {
        self.tags += 1;
        let tag = self.tags;
        let client = self.client();
        let name = self.name();
        let wait = match self.chance.below(4) {
            3 => Wait::Try,
            2 => Wait::For(self.chance.millis(2_000)),
            _ => Wait::Forever,
        };
        let renew = match self.chance.below(6) {
            5 => Renew::Manual,
            4 => Renew::AtMost(ms(1) + self.chance.millis(2_000)),
            _ => Renew::Auto,
        };
        let hold = if self.chance.one_in(4) { None } else { Some(self.span() / 2) };
        let ttl = self.chance.one_in(3).then(|| self.ttl / 2 + self.ttl / 16 * (tag % 8));
        let write_every = if self.chance.one_in(2) { None } else { Some(ms(5) + self.chance.millis(100)) };
        let claim = (!self.chance.one_in(16)).then_some(Duration::ZERO);
        let action = Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every };
        self.push(Duration::ZERO, action);
        if self.drops > 0 && self.chance.one_in(20 / self.drops) {
            let most = self.chance.pick(&[self.setup.latency.end * 6, ms(100), self.ttl * 2]);
            let after = self.chance.duration(&(Duration::ZERO..most));
            self.push(after, Action::Abandon(tag));
        }
    }

    fn add(&mut self, kind: Kind) {
        let none = Duration::ZERO;
        match kind {
            Kind::LockAction | Kind::Abandon => {
                if self.tags == 0 {
                    return;
                }
                let back = self.chance.below(8.min(u64::from(self.tags)));
                let tag = self.tags - u32::try_from(back).unwrap_or(0);
                let action = match (kind, self.chance.below(6)) {
                    (Kind::LockAction, 0 | 1) => Action::Release(tag),
                    (Kind::LockAction, 2) => Action::Extend(tag),
                    (Kind::LockAction, 3) => Action::Claim(tag),
                    (Kind::LockAction, 4) => Action::Write(tag),
                    _ => Action::Abandon(tag),
                };
                self.push(none, action);
            }
            Kind::Bunch => self.bunch(),
            Kind::Burst => self.burst(),
            Kind::Pause | Kind::Suspend => {
                let (client, span) = (self.client(), self.span());
                let stop =
                    if kind == Kind::Pause { Action::PauseClient(client) } else { Action::SuspendClient(client) };
                self.push(none, stop);
                self.push(span, Action::ResumeClient(client));
            }
            Kind::KillClient => {
                let client = self.client();
                self.push(none, Action::KillClient(client));
            }
            Kind::Shutdown => {
                let client = self.client();
                let within = self.chance.millis(3_000);
                self.push(none, Action::Shutdown { client, within });
            }
            Kind::StopNode => {
                let (node, span) = (self.node(), self.span());
                self.push(none, Action::PauseNode(node));
                self.push(span, Action::ResumeNode(node));
            }
            Kind::Crash | Kind::Forget | Kind::ForgetInQuorum => {
                let (node, span) = (self.node(), self.span());
                let forgets = kind == Kind::Forget || kind == Kind::ForgetInQuorum && self.setup.nodes.len() > 1;
                // Sometimes so fast that only the connections reveal it.
                if !self.chance.one_in(3) {
                    self.push(none, Action::KillNode(node));
                }
                self.push(span, Action::RestartNode { node, keep_data: !forgets });
            }
            Kind::Partition | Kind::OneDirection => self.cut(kind == Kind::Partition),
            Kind::Reset => {
                let (client, node) = (self.client(), self.node());
                self.push(none, Action::Reset { client, node });
            }
            Kind::Slow => {
                let (client, node, direction) = (self.client(), self.node(), self.direction());
                let least = self.chance.millis(200);
                self.push(none, Action::Slow { client, node, direction, latency: least..least + ms(50) });
                let latency = self.setup.latency.clone();
                let span = self.span();
                self.push(span, Action::Slow { client, node, direction, latency });
            }
            Kind::Crawl => {
                let (client, direction) = (self.client(), self.direction());
                // The shortest TTL is half of the longest.
                let least = self.chance.duration(&(none..self.ttl * 2));
                let (span, latency) = (self.span(), self.setup.latency.clone());
                for node in 0..self.setup.nodes.len() {
                    self.push(none, Action::Slow { client, node, direction, latency: least..least + ms(50) });
                    self.push(span, Action::Slow { client, node, direction, latency: latency.clone() });
                }
            }
            Kind::Replace => {
                let (client, node) = (self.client(), self.node());
                if self.chance.one_in(2) {
                    return self.push(none, Action::Reset { client, node });
                }
                // Longer than the request timeout.
                let span = ms(600) + self.chance.millis(600);
                self.push(none, Action::Stall { client, node, direction: Direction::ToClient, span });
            }
            Kind::Refuse => {
                let (node, condition, span) = (self.node(), self.chance.pick(&CONDITIONS), self.span());
                self.push(none, Action::Redis(RedisAction::Condition { node, condition, on: true }));
                self.push(span, Action::Redis(RedisAction::Condition { node, condition, on: false }));
            }
            Kind::FlushScripts => {
                let node = self.node();
                self.push(none, Action::Redis(RedisAction::FlushScripts(node)));
            }
            Kind::LogOut => {
                let node = self.node();
                self.push(none, Action::Redis(RedisAction::LogOut(node)));
            }
            Kind::Late => self.late(),
            Kind::Handshake => {
                let span = self.span();
                let pairs = (self.setup.clients.len(), self.setup.nodes.len());
                tls::add_failure(self.chance, pairs, self.setup.tls, &mut self.steps, (self.at, span));
            }
            Kind::BlockSocket => {
                let (client, node, span) = (self.client(), self.node(), self.span());
                self.push(none, Action::BlockSocket { client, node, span });
                if self.chance.one_in(2) {
                    self.push(none, Action::Reset { client, node });
                }
            }
            Kind::Source => {
                let span = self.span();
                credentials::add_failure(self.chance, &mut self.steps, (self.at, span));
            }
            Kind::ChangePasswords => {
                let change = credentials::change(self.chance);
                self.push(none, change);
            }
            Kind::Jump | Kind::JumpForward => {
                let node = self.node();
                let by = i64::try_from(self.chance.below(5_000)).unwrap_or(0);
                let back = kind == Kind::Jump && self.chance.one_in(3);
                self.push(none, Action::JumpNode { node, ms: if back { -by } else { by } });
            }
            Kind::Evict => {
                let node = self.node();
                let name = if self.chance.one_in(3) { None } else { Some(self.name()) };
                self.push(none, Action::Redis(RedisAction::Evict { node, name }));
            }
            Kind::Stranger => {
                let (node, name) = (self.node(), self.name());
                let key_ttl = ms(1) + self.span().min(self.ttl);
                let list = self.chance.one_in(2);
                self.push(none, Action::Redis(RedisAction::Occupy { node, name, list, key_ttl }));
            }
            Kind::Promote | Kind::FailOver => {
                let (node, span) = (self.node(), self.span());
                self.push(none, Action::Redis(RedisAction::StopReplication(node)));
                let old = kind == Kind::FailOver;
                let action = if old { RedisAction::FailOver(node) } else { RedisAction::Promote(node) };
                self.push(span, Action::Redis(action));
            }
            Kind::Redirect => {
                let (client, node, to, span) = (self.client(), self.node(), self.node(), self.span());
                self.push(none, Action::Redis(RedisAction::Redirect { client, node, to }));
                self.push(span, Action::Redis(RedisAction::Redirect { client, node, to: node }));
            }
            Kind::ForgetAndStep => {
                let node = self.node();
                self.push(none, Action::RestartNode { node, keep_data: false });
                self.push(none, Action::JumpNode { node, ms: 10_000 });
            }
        }
    }

    /// Requests each lock separately and releases all of them at once.
    fn bunch(&mut self) {
        let (client, span) = (self.client(), self.span());
        for name in &NAMES[..self.names] {
            self.tags += 1;
            let tag = self.tags;
            self.push(
                Duration::ZERO,
                Action::Acquire {
                    client,
                    tag,
                    name,
                    ttl: None,
                    wait: Wait::For(span / 2),
                    renew: Renew::Auto,
                    claim: Some(Duration::ZERO),
                    hold: None,
                    write_every: None,
                },
            );
            self.push(span, Action::Release(tag));
        }
    }

    /// Delays a client's requests to a node until it has timed out and taken the lock again.
    fn late(&mut self) {
        let (client, node, name) = (self.client(), self.node(), self.name());
        // Less than the shortest TTL: clients do not clean up requests that arrive later.
        let span = self.ttl / 3 + self.chance.duration(&(Duration::ZERO..self.ttl / 8));
        self.push(Duration::ZERO, Action::Stall { client, node, direction: Direction::ToNode, span });
        let again = self.ttl / 4 + self.chance.duration(&(Duration::ZERO..self.ttl / 8));
        let hold = self.chance.duration(&(Duration::ZERO..self.ttl / 16));
        for (after, wait) in [(Duration::ZERO, Wait::Try), (again, Wait::For(self.ttl))] {
            self.tags += 1;
            let (tag, ttl, renew) = (self.tags, None, Renew::Auto);
            self.push(
                after,
                Action::Acquire {
                    client,
                    tag,
                    name,
                    ttl,
                    wait,
                    renew,
                    claim: Some(Duration::ZERO),
                    hold: Some(hold),
                    write_every: None,
                },
            );
        }
    }

    /// Takes all locks repeatedly. The counter is lost about when the last grants are known.
    fn burst(&mut self) {
        let (node, trip) = (self.node(), self.setup.latency.end * 2);
        let rounds = 1 + self.chance.below(12);
        let lost = trip + self.chance.duration(&(Duration::ZERO..trip * 4));
        match self.chance.below(3) {
            0 => self.push(lost, Action::Redis(RedisAction::Evict { node, name: None })),
            1 => {
                self.push(lost, Action::KillNode(node));
                self.push(lost + ms(1), Action::RestartNode { node, keep_data: false });
            }
            _ => {
                self.push(Duration::ZERO, Action::Redis(RedisAction::StopReplication(node)));
                self.push(lost, Action::Redis(RedisAction::Promote(node)));
            }
        }
        for at in (0..rounds).map(|_| Duration::ZERO).chain([lost + ms(1)]) {
            for client in 0..self.setup.clients.len() {
                for name in &NAMES[..self.names] {
                    self.tags += 1;
                    let action = Action::Acquire {
                        client,
                        tag: self.tags,
                        name,
                        ttl: None,
                        wait: Wait::For(trip * 20),
                        renew: Renew::Auto,
                        claim: Some(Duration::ZERO),
                        hold: Some(Duration::ZERO),
                        write_every: None,
                    };
                    self.push(at, action);
                }
            }
        }
    }

    fn direction(&mut self) -> Direction {
        self.chance.pick(&Direction::BOTH)
    }

    fn cut(&mut self, both: bool) {
        let (node, span) = (self.node(), self.span());
        let clients = if self.chance.one_in(3) {
            0..self.setup.clients.len()
        } else {
            let client = self.client();
            client..client + 1
        };
        let directions = if both { Direction::BOTH.to_vec() } else { alloc::vec![self.direction()] };
        for client in clients {
            for direction in &directions {
                self.push(Duration::ZERO, Action::Cut { client, node, direction: *direction });
            }
            self.push(span, Action::Heal { client, node });
        }
    }
}

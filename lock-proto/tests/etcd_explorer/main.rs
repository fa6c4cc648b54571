//! The etcd hub against an adversary: the world of the catalogue, one seed per run.
//!
//! In the first phase anything may happen. Requests are lost or executed late or without a reply,
//! watches break, leases expire, processes are paused, keys are deleted by hand, verbs come in
//! every state. In the second phase everything works again and every guard is released. Then
//! nothing may be left: no key, lease, waiter or timer.
//!
//! `LOCK_SEEDS=100000` explores more, `LOCK_FIRST=5000` sets the first seed, and `LOCK_SEED=17`
//! runs one seed and prints its verbs.
// S2, S3
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

extern crate alloc;

mod app;
#[path = "../common/etcd.rs"]
mod etcd;
#[path = "../common/seeds.rs"]
mod seeds;
#[path = "../common/etcd_world/mod.rs"]
mod world;

use core::time::Duration;

use bytes::Bytes;
use lock_proto::etcd::Reply;
use lock_proto::{Acquire, Cause, Fault, LockId, Operation, Renew, Wait};

use app::{App, Fences, State};
use seeds::{Rng, run_seeds};
use world::{Clock, Outcome, World};

const STEPS: usize = 1_000;
/// Everything must be over within this time after the faults: several TTLs for each acquisition.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// No request is executed later than this after it was sent.
const LATEST: Duration = Duration::from_secs(4);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Draws what happens to a request.
fn outcome(rng: &mut Rng) -> Outcome {
    let unreachable = Cause::Fault(Fault::Reset);
    let most = [500, 20_000, 300_000][rng.index(3)];
    let (to, back) = (Duration::from_micros(rng.below(most)), Duration::from_micros(rng.below(most)));
    match rng.below(100) {
        0..54 => Outcome::After(to, back),
        54..80 => Outcome::After(to, ms(rng.below(4_000))),
        80..82 => Outcome::Lost,
        82..85 => Outcome::Unanswered,
        85..92 => Outcome::Late(ms(rng.below(3_500))),
        92..96 => Outcome::Reset,
        96..98 => Outcome::Answer(Reply::NotSent(unreachable)),
        _ => Outcome::Answer(Reply::Unknown(unreachable)),
    }
}

struct Explorer {
    w: World,
    rng: Rng,
    apps: Vec<App>,
    fences: Fences,
    names: u64,
    /// Keys are deleted by hand, so only fencing is guaranteed, not mutual exclusion.
    by_hand: bool,
    log: bool,
}

fn name(n: u8) -> String {
    format!("lock-{n}")
}

fn draw_request(rng: &mut Rng, of: u8) -> Acquire {
    let mut want = Acquire::new(name(of));
    match rng.below(10) {
        0 => want = want.wait(Wait::Try),
        1..4 => want = want.wait(Wait::For(ms(rng.below(8_000)))),
        _ => {}
    }
    match rng.below(10) {
        0 => want = want.ttl(Duration::from_secs(1 + rng.below(5))),
        1 => want = want.renew(Renew::Manual),
        2 => want = want.renew(Renew::AtMost(ms(1 + rng.below(4_000)))),
        _ => {}
    }
    want
}

impl Explorer {
    fn new(seed: u64, log: bool) -> Self {
        let mut rng = Rng(seed);
        let (names, by_hand) = (1 + rng.below(2), rng.one_in(4));
        let mut w = World::new(0);
        let mut faults = Rng(rng.next());
        w.faults = Box::new(move || Some(outcome(&mut faults)));
        let mut explorer = Self { w, rng, apps: Vec::new(), fences: Fences::new(by_hand), names, by_hand, log };
        for _ in 0..2 + explorer.rng.below(2) {
            let app = explorer.start();
            explorer.apps.push(app);
        }
        explorer
    }

    fn start(&mut self) -> App {
        let turn = ms([0, 20, 100, 2_000][self.rng.index(4)]);
        let config = world::config().session_ttl(Duration::from_secs(3)).handover_window(turn);
        let clock = Clock { offset: self.rng.below(1_000_000_000_000), pace: 995 + self.rng.below(11) };
        let client = self.w.add_with(config, clock);
        self.w.leave_unclaimed(client);
        App::new(client)
    }

    fn note(&self, what: &dyn core::fmt::Debug) {
        if self.log {
            println!("{:?} {what:?}", self.w.now);
        }
    }

    /// Lets time pass. Every step is checked.
    fn pass(&mut self, time: Duration) {
        let Self { w, apps, fences, by_hand, .. } = self;
        w.run_until(time, |w| {
            app::check(w, apps, fences, *by_hand);
            false
        });
    }

    fn check(&mut self) {
        app::check(&self.w, &mut self.apps, &mut self.fences, self.by_hand);
    }

    fn chaos(&mut self) {
        for _ in 0..STEPS {
            let a = self.rng.index(self.apps.len());
            let client = self.apps[a].client;
            match self.rng.below(100) {
                // Mostly no faults; otherwise no client would hold a lock that could be lost.
                0..38 => self.pass(Duration::from_micros(self.rng.clone().below(5_000))),
                38..50 => self.pass(ms(self.rng.clone().below(800))),
                50..51 => self.pass(ms(self.rng.clone().below(4_000))),
                51..62 => self.claim_offers(a),
                62..63 => self.w.cut(client),
                63..66 if self.w.is_running(client) => self.w.heal(client),
                66..67 if self.w.is_running(client) => self.w.break_watches(client),
                67..68 => self.w.clients[client].lag = Duration::from_micros(self.rng.below(100_000)),
                68..69 => self.w.pause(client),
                69..72 => self.resume(client),
                72..73 if self.by_hand => self.tamper(),
                73..74 if self.rng.one_in(6) => self.crash(a),
                74..75 if self.rng.one_in(20) => self.shut_down(a),
                _ => self.verb(a),
            }
            self.rng.next();
            self.check();
        }
    }

    fn resume(&mut self, client: usize) {
        self.w.resume(client);
        self.pass(Duration::ZERO);
    }

    /// Holders learn of it only by an event.
    fn tamper(&mut self) {
        if self.rng.one_in(4) {
            let leases: Vec<i64> = self.w.store.leases().into_keys().collect();
            if let Some(lease) = leases.get(self.rng.index(leases.len().max(1))) {
                self.note(&("revoked by hand", lease));
                self.w.revoke_by_hand(*lease);
            }
            return;
        }
        let keys: Vec<Bytes> = self.w.store.keys().into_keys().collect();
        if let Some(key) = keys.get(self.rng.index(keys.len().max(1))) {
            self.note(&("deleted by hand", key));
            self.w.delete_by_hand(key);
        }
    }

    fn crash(&mut self, a: usize) {
        self.note(&("crash", self.apps[a].client));
        self.w.kill(self.apps[a].client);
        self.apps[a] = self.start();
    }

    fn shut_down(&mut self, a: usize) {
        let client = self.apps[a].client;
        if self.w.is_running(client) && self.w.clients[client].stopped.is_none() {
            self.note(&("shutdown", client));
            // The shutdown releases the locks, so their holders do not.
            self.apps[a].release_all();
            self.w.shut_down(client, Duration::from_secs(2));
        }
        self.check();
        if self.w.clients[client].stopped.is_some() {
            assert!(self.apps[a].is_over(), "{}", self.w.describe());
            self.w.kill(client);
            self.apps[a] = self.start();
        }
    }

    fn claim_offers(&mut self, a: usize) {
        let client = self.apps[a].client;
        if self.w.is_running(client) {
            for lock in self.apps[a].in_state(&[State::Offered]) {
                self.claim(a, lock);
            }
        }
    }

    fn claim(&mut self, a: usize, lock: LockId) {
        if self.w.verb(self.apps[a].client, |hub, now| hub.claim(now, lock)).is_ok() {
            self.apps[a].claimed(lock);
        }
    }

    fn release(&mut self, a: usize, lock: LockId) {
        if self.w.verb(self.apps[a].client, |hub, now| hub.release(now, lock)).is_ok() {
            // Events from before the release are reported before its result.
            self.apps[a].set(lock, State::Released);
        }
    }

    fn verb(&mut self, a: usize) {
        let client = self.apps[a].client;
        if !self.w.is_running(client) || self.w.clients[client].stopped.is_some() {
            return;
        }
        let all = self.apps[a].locks();
        let one = all.get(self.rng.index(all.len().max(1))).copied();
        let verb = self.rng.below(9);
        self.note(&(client, "verb", verb, one));
        match (verb, one) {
            (0 | 1, _) if all.len() < 6 => {
                let of = self.rng.below(self.names) as u8;
                let want = draw_request(&mut self.rng, of);
                // One of the names is an election.
                let requested = self.w.verb(client, |hub, now| match of {
                    1 => hub.campaign(now, &want, format!("p{client}").into()),
                    _ => hub.acquire(now, &want),
                });
                if let Ok(lock) = requested {
                    self.apps[a].requested(lock, of);
                }
            }
            (2, Some(lock)) => self.claim(a, lock),
            (3, Some(lock)) => self.release(a, lock),
            (4, Some(lock)) => {
                self.apps[a].forget(lock);
                self.w.abandon(client, lock);
            }
            (5, Some(lock)) => _ = self.w.verb(client, |hub, now| hub.extend(now, lock)),
            (6, Some(lock)) => _ = self.w.verb(client, |hub, now| hub.owner_guard(now, lock)),
            (7, Some(lock)) if self.apps[a].name_of(lock) == 1 => {
                let value = format!("at {:?}", self.w.now);
                let _ = self.w.verb(client, |hub, now| hub.proclaim(now, lock, value.into()));
            }
            (8, _) => {
                if let Some(query) = self.apps[a].surplus_query() {
                    self.w.verb(client, |hub, now| hub.cancel(now, query));
                    let seen = self.w.election_events(client, query).len();
                    self.apps[a].closed(query, seen);
                } else {
                    let always = self.rng.one_in(2);
                    let election = name(1);
                    let query = self.w.verb(client, |hub, now| match always {
                        true => hub.start(now, Operation::Observe(election.clone().into())),
                        false => hub.start(now, Operation::Leader(election.clone().into())),
                    });
                    self.apps[a].queries.extend(query.ok());
                }
            }
            _ => {}
        }
    }

    /// Ends all faults and releases every guard. Within a bounded time nothing may be left.
    fn settle(&mut self) {
        self.note(&"--- the faults are over ---");
        self.w.faults = Box::new(|| None);
        for a in 0..self.apps.len() {
            let client = self.apps[a].client;
            self.w.clients[client].lag = world::LATENCY;
            self.resume(client);
            self.w.heal(client);
        }
        self.pass(LATEST);
        let end = self.w.now + SETTLED_WITHIN;
        while !self.apps.iter().all(App::is_over) || !self.w.store.keys().is_empty() {
            for a in 0..self.apps.len() {
                self.claim_offers(a);
                self.check();
                for lock in self.apps[a].in_state(&[State::Held, State::Lost]) {
                    self.release(a, lock);
                }
            }
            self.check();
            self.pass(ms(5));
            assert!(self.w.now < end, "not settled: {}", self.w.describe());
        }
        self.end();
    }

    fn end(&mut self) {
        let clients: Vec<usize> = self.apps.iter().map(|app| app.client).collect();
        for client in &clients {
            if self.w.clients[*client].stopped.is_none() {
                self.w.shut_down(*client, Duration::from_secs(60));
            }
        }
        let stopped = |w: &World| clients.iter().all(|client| w.clients[*client].stopped.is_some());
        self.w.expect(SETTLED_WITHIN, "all have stopped", stopped);
        for client in clients {
            assert!(self.w.clients[client].hub.next_deadline().is_none(), "a timer runs after the end");
        }
        // A lease whose grant was executed after its revocation expires; it has no keys.
        assert!(self.w.store.keys().is_empty(), "left: {}", self.w.describe());
    }
}

#[test]
fn invariants_hold_under_faults_and_nothing_is_left_after() {
    // S2
    run_seeds(300, |seed, log| {
        let mut explorer = Explorer::new(seed, log);
        explorer.chaos();
        explorer.settle();
    });
}

//! Runs a plan in a world of Redis.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use super::flawed::clients;
use super::{CONNECT_TIME, RedisAction, RedisStore};
use crate::error::ConfigError;
use crate::id::{ClientId, LockId};
use crate::lock::Acquire;
use crate::lock::Wait;
use crate::redis::{Client, Config, Wake};
use crate::sim::check::{Rule, Stage};
use crate::sim::journal::Keep;
use crate::sim::own::{OwnClient, OwnLock};
use crate::sim::scenario::{Action, Bounds, Flaw, Outcome, Plan, Store, panic_text};
use crate::sim::trace::Trace;
use crate::sim::world::redis::{Builder, RedisClient, World};
use crate::time::Instant;
use crate::url::Secret;

const COUNTER: &str = "lock-proto:fence";
const PASSWORD: &str = "secret";
/// Maximum round trips from a release to the next grant without faults, see `Rule::Prompt`.
const TRIPS: u32 = 8;
/// The same for a quorum, where votes may be split.
const QUORUM_TRIPS: u32 = 16;
/// Extra time for jitter after the expiry of a key, and to gather notifications from several nodes.
const SPREAD: Duration = Duration::from_millis(16);
/// Longest pause before a connection is opened again that was closed repeatedly, a second apart.
const RECONNECT: Duration = Duration::from_millis(125);
/// Number of TTLs after the end of the faults until every waiter must be served.
const SERVED: u32 = 20;
/// Additional time for backoff and quarantine.
const GRACE: Duration = Duration::from_secs(20);

impl Plan {
    /// Runs the plan with clients other than [`redis::Client`](Client), see
    /// [`Builder::machine`](crate::sim::Builder::machine). They must keep every rule of the plan.
    ///
    /// # Panics
    ///
    /// If the plan is not for Redis.
    #[must_use]
    pub fn run_redis<C: RedisClient>(
        &self,
        keep: Keep,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
    ) -> Outcome {
        // S4
        assert!(matches!(self.setup.store, Store::Redis(_)), "not a plan for Redis: {self}");
        self.judge(run_clients(self, build(self), true, keep, false, make).0)
    }

    /// Runs the plan with a lock of your own. It must keep the rules of the plan that concern any
    /// lock; the others are in [`Outcome::excused`]: the order of waiters, tidiness after failures,
    /// and without fencing tokens stale writes.
    ///
    /// # Panics
    ///
    /// If the plan is not for Redis.
    #[must_use]
    pub fn run_own<L: OwnLock + 'static>(&self, keep: Keep, lock: L) -> Outcome {
        self.run_own_keeping(keep, false, lock).0
    }

    /// Like [`run_own`](Self::run_own). Keeps the end of the log, and returns a trace for pictures.
    ///
    /// # Panics
    ///
    /// If the plan is not for Redis.
    #[must_use]
    pub fn run_own_traced<L: OwnLock + 'static>(&self, lock: L) -> (Outcome, Trace) {
        self.run_own_keeping(Keep::Lines(200), true, lock)
    }

    pub(in crate::sim) fn run_own_keeping<L: OwnLock + 'static>(
        &self,
        keep: Keep,
        traced: bool,
        lock: L,
    ) -> (Outcome, Trace) {
        assert!(matches!(self.setup.store, Store::Redis(_)), "not a plan for Redis: {self}");
        let mut builder =
            lock.scripts().iter().fold(build(self), |builder, (source, run)| builder.script(source, *run));
        if self.setup.credentials.is_some() {
            for i in 0..self.setup.nodes.len() {
                builder = builder.endpoint(i, |at| at.login.password = Some(Secret::new(PASSWORD)));
            }
        }
        let make = move |_, config: Config, id, seed| Ok(OwnClient::new(&config, id, seed, lock.clone()));
        let (outcome, trace) = run_clients(self, builder, false, keep, traced, make);
        (self.judge_own(outcome, OwnClient::<L>::EXCUSED), trace)
    }
}

pub(super) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.flaw {
        Some(Flaw::Redis(flaw)) => run_clients(plan, build(plan), true, keep, traced, clients(flaw)),
        Some(Flaw::Etcd(_)) | None => run_clients(plan, build(plan), true, keep, traced, Client::new),
    }
}

fn run_clients<C: RedisClient>(
    plan: &Plan,
    builder: Builder,
    ours: bool,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let Store::Redis(store) = &plan.setup.store else { return Default::default() };
    let mut world = builder.keep(keep).traced(traced).machine(make).build();
    world.expect_violation();
    let mut runner = Runner { world, tags: BTreeMap::new(), set_back: Duration::ZERO, ours };
    // A panic in a machine counts as a violation.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runner.run_phases(plan, store))) {
        runner.world.report(Rule::Contract, format!("panic: {}", panic_text(&panic)));
    }
    let mut world = runner.world;
    let outcome = Outcome {
        violations: world.violations().to_vec(),
        excused: Vec::new(),
        grants: world.grants(),
        handovers: world.handovers(),
        steps: world.steps(),
        network_steps: world.network_steps(),
        time: world.now().since(Instant::ZERO),
        digest: world.log_digest(),
        fingerprint: world.fingerprint(),
        log: world.log_tail(200),
        fenced: world.has_fences(),
    };
    (outcome, world.take_trace())
}

fn build(plan: &Plan) -> Builder {
    let setup = &plan.setup;
    let Store::Redis(store) = &setup.store else { return World::redis(setup.nodes.len()) };
    let settings = store.clone();
    let obtains = setup.credentials.is_some();
    let change = move |config: Config| {
        let (turn, pause) = settings.turn;
        let config = config.poll(settings.poll).wake(settings.wake).fencing(settings.fencing);
        config
            .fence_block(settings.fence_block)
            .handover_window(turn)
            .handover_pause(pause)
            .quarantine(settings.ttl)
            .request_credentials(obtains)
            .round_timeout(settings.round)
    };
    let mut builder = World::redis(setup.nodes.len())
        .seed(setup.seed)
        .clients(setup.clients.len())
        .latency(setup.latency.clone())
        .gather(store.gather)
        .service(setup.service)
        .stale(setup.stale)
        .tls(setup.tls)
        .config(change);
    for (i, pace) in setup.clients.iter().enumerate() {
        builder = builder.clock(i, pace.offset, pace.drift_ppm);
    }
    for (i, pace) in setup.nodes.iter().enumerate() {
        builder = builder.node(i, |config| config.drift_ppm(pace.drift_ppm));
        if obtains {
            // A password that the source does not supply.
            builder = builder.node(i, |config| config.password(PASSWORD).login_limit(store.login_limit));
        }
        if store.login {
            builder = builder.node(i, |config| config.password(PASSWORD));
            builder = builder.endpoint(i, |at| at.login.password = Some(Secret::new(PASSWORD)));
        }
    }
    builder
}

struct Runner<C: RedisClient> {
    world: World<C>,
    tags: BTreeMap<u32, (usize, LockId)>,
    /// Total time that node clocks were set back. Keys live longer by this.
    set_back: Duration,
    /// The clients are prompt, and do nothing twice.
    ours: bool,
}

impl<C: RedisClient> Runner<C> {
    fn run_phases(&mut self, plan: &Plan, store: &RedisStore) {
        let ttl = store.ttl;
        if plan.model && plan.scenario.bounds == Bounds::Within && plan.setup.nodes.len() == 1 {
            self.world.compare_with_model(plan.is_quiet());
        }
        if plan.scenario.bounds == Bounds::Within && self.ours {
            self.world.expect_once();
            if let Some(provider) = &plan.setup.credentials {
                self.world.set_provider(provider.clone());
                // A hold with the shortest TTL outlives a connection that the server closes: the pause, a few
                // round trips, and the credentials.
                let reconnected = plan.setup.latency.end * 10 + provider.delay.end + RECONNECT;
                if reconnected < ttl / 3 {
                    self.world.expect_kept();
                }
            }
            // On a quorum, the first round would end before its connections are up.
            let quick = store.wake == Wake::Notify && plan.setup.credentials.is_none();
            if quick && (plan.setup.nodes.len() == 1 || store.preconnect) {
                let trips = if plan.setup.nodes.len() == 1 { TRIPS } else { QUORUM_TRIPS };
                // A handshake for requests, and one for signals.
                let trips = trips + 2 * u32::from(plan.setup.tls.unwrap_or(0));
                let slack = store.turn.1 * 2 + store.gather * trips + SPREAD;
                self.world.expect_prompt(trips, slack, ttl / 16);
            }
        }
        if store.preconnect {
            for client in 0..plan.setup.clients.len() {
                let want = Acquire::new(format!("meet {client}")).ttl(ttl).wait(Wait::Try);
                let _ = self.world.try_acquire(client, &want, true, Some(Duration::ZERO), None);
            }
            self.world.run_for(CONNECT_TIME);
        }
        for step in &plan.steps {
            let now = self.world.now().since(Instant::ZERO);
            self.world.run_for(step.at.saturating_sub(now));
            self.act(&step.action, ttl);
        }
        let lifetime = ttl * 2 + self.set_back + Duration::from_secs(1);
        self.world.finish(ttl * SERVED + self.set_back + GRACE, ttl * 4 + GRACE + self.set_back, lifetime);
    }

    fn act(&mut self, action: &Action, ttl: Duration) {
        let w = &mut self.world;
        match action {
            Action::Acquire { client, tag, name, ttl: own, wait, renew, claim, hold, write_every } => {
                // The application of a paused process does not run.
                if !w.is_running(*client) {
                    return;
                }
                let want = Acquire::new(name).ttl(own.unwrap_or(ttl)).wait(*wait).renew(*renew);
                // Refused after a shutdown.
                if let Ok(lock) = w.try_acquire(*client, &want, *claim, *hold, *write_every) {
                    self.tags.insert(*tag, (*client, lock));
                }
            }
            Action::Claim(tag)
            | Action::Extend(tag)
            | Action::Release(tag)
            | Action::Abandon(tag)
            | Action::Write(tag) => {
                self.act_on(action, *tag);
            }
            Action::Shutdown { client, within } => {
                if w.is_running(*client) {
                    w.shutdown(*client, *within);
                }
            }
            Action::PauseClient(client) => w.pause_client(*client),
            Action::SuspendClient(client) => w.suspend_client(*client),
            Action::ResumeClient(client) => w.resume_client(*client),
            Action::KillClient(client) => w.kill_client(*client),
            Action::PauseNode(node) => w.pause_node(*node),
            Action::ResumeNode(node) => w.resume_node(*node),
            Action::KillNode(node) => w.kill_node(*node),
            Action::RestartNode { node, keep_data } => w.restart_node(*node, *keep_data),
            Action::JumpNode { node, ms } => {
                let by = Duration::from_millis(ms.unsigned_abs());
                if *ms < 0 {
                    self.set_back += by;
                    w.jump_node_clock_back(*node, by);
                } else {
                    w.jump_node_clock_forward(*node, by);
                }
            }
            Action::Cut { client, node, direction } => w.cut(*client, *node, *direction),
            Action::Heal { client, node } => w.heal(*client, *node),
            Action::Reset { client, node } => w.drop_connections(*client, *node),
            Action::Slow { client, node, direction, latency } => w.slow(*client, *node, *direction, latency.clone()),
            Action::Stall { client, node, direction, span } => w.stall(*client, *node, *direction, *span),
            Action::Source(source) => w.set_source(*source),
            Action::ChangePasswords(keep) => w.change_passwords(*keep),
            Action::Handshake { client, node, handshake } => w.set_handshake(*client, *node, *handshake),
            Action::Etcd(_) | Action::Zookeeper(_) => {}
            Action::Redis(RedisAction::Condition { node, condition, on }) => w.set_condition(*node, *condition, *on),
            Action::Redis(RedisAction::FlushScripts(node)) => {
                w.on_node(*node, "forgets its scripts", |node, _| node.flush_scripts());
            }
            Action::Redis(RedisAction::LogOut(node)) => {
                w.on_node(*node, "wants everybody to log in again", |node, now| node.log_out(now));
            }
            Action::Redis(RedisAction::Evict { node, name }) => {
                let key = name.unwrap_or(COUNTER);
                w.on_node(*node, "evicts a key", |node, now| node.remove(now, key));
            }
            Action::Redis(RedisAction::Occupy { node, name, list, key_ttl }) => w.occupy(*node, name, *list, *key_ttl),
            Action::Redis(RedisAction::StopReplication(node)) => w.stop_replication(*node),
            Action::Redis(RedisAction::Promote(node)) => w.promote(*node),
            Action::Redis(RedisAction::FailOver(node)) => w.fail_over(*node),
            Action::Redis(RedisAction::Redirect { client, node, to }) => w.redirect(*client, *node, *to),
        }
    }

    fn act_on(&mut self, action: &Action, tag: u32) {
        let w = &mut self.world;
        let Some(&(client, lock)) = self.tags.get(&tag) else { return };
        if !w.is_running(client) {
            return;
        }
        match (action, w.stage(client, lock)) {
            (Action::Claim(_), Some(Stage::Offered)) => w.claim(client, lock),
            (Action::Extend(_), Some(Stage::Held)) if w.is_held(client, lock) => w.extend(client, lock),
            (Action::Release(_), Some(Stage::Offered | Stage::Held | Stage::Lost)) => w.release(client, lock),
            (Action::Abandon(_), Some(_)) => w.abandon(client, lock),
            (Action::Write(_), Some(_)) => w.write(client, lock),
            _ => {}
        }
    }
}

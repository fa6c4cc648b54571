//! Runs a plan in a world of Redis.

use alloc::format;
use core::time::Duration;

use super::flawed::clients;
use super::{CONNECT_TIME, RedisAction, RedisStore};
use crate::journal::Keep;
use crate::own::{OwnClient, OwnLock};
use crate::scenario::run::{PlanServers, Promises, Runner, TRIPS};
use crate::scenario::{Action, Backend, Flaw, Outcome, Plan, StoreSetup};
use crate::trace::Trace;
use crate::world::redis::{Builder, RedisClient, RedisServers, World};
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::Secret;
use lock_proto::redis::{Client, Config, Wake};
use lock_proto::{Acquire, Wait};

const COUNTER: &str = "lock-proto:fence";
const PASSWORD: &str = "secret";
/// [`TRIPS`] on a quorum, where votes may be split.
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
    /// [`Builder::machine`](crate::Builder::machine). They must keep every rule of the plan.
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
        self.require(Backend::Redis);
        self.judge(run_clients(self, build(self), true, keep, false, make).0)
    }

    /// Runs the plan with a lock of your own. It must keep the rules of the plan that concern any
    /// lock; the others are in [`Outcome::excused`]: the order of waiters, how they are woken,
    /// tidiness after failures, shortened TTLs, and without fencing tokens stale writes.
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

    pub(crate) fn run_own_keeping<L: OwnLock + 'static>(&self, keep: Keep, traced: bool, lock: L) -> (Outcome, Trace) {
        self.require(Backend::Redis);
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

pub(in crate::scenario) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.flaw {
        Some(Flaw::Redis(flaw)) => run_clients(plan, build(plan), true, keep, traced, clients(flaw)),
        Some(Flaw::Etcd(_) | Flaw::Register(_)) | None => {
            run_clients(plan, build(plan), true, keep, traced, Client::new)
        }
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
    let StoreSetup::Redis(store) = &plan.setup.store else { return Default::default() };
    let world = builder.keep(keep).traced(traced).machine(make).build();
    let run = RedisRun { store: store.clone(), set_back: Duration::ZERO };
    Runner::new(plan, world, run, ours, Some(store.ttl), store.ttl).run(plan)
}

fn build(plan: &Plan) -> Builder {
    let setup = &plan.setup;
    let StoreSetup::Redis(store) = &setup.store else { return World::redis(setup.nodes.len()) };
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
        builder = builder.endpoint(i, |at| at.protocol = store.protocol);
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

pub(crate) struct RedisRun {
    store: RedisStore,
    /// Total time that node clocks were set back. Keys live longer by this.
    set_back: Duration,
}

impl<C: RedisClient> PlanServers for RedisServers<C> {
    type Run = RedisRun;

    fn promises(run: &RedisRun, plan: &Plan) -> Promises {
        let (store, setup) = (&run.store, &plan.setup);
        let ttl = store.ttl;
        let kept = match &setup.credentials {
            // A fifth of the shortest TTL.
            None => Some(ttl / 10),
            // A hold with the shortest TTL outlives a connection that the server closes: the pause, a
            // few round trips, and the credentials.
            Some(provider) => {
                let reconnected = setup.latency.end * 10 + provider.delay.end + RECONNECT;
                (reconnected < ttl / 3).then_some(Duration::MAX)
            }
        };
        // On a quorum, the first round would end before its connections are up.
        let quick = store.wake == Wake::Notify && setup.credentials.is_none();
        let prompt = (quick && (setup.nodes.len() == 1 || store.preconnect)).then(|| {
            let trips = if setup.nodes.len() == 1 { TRIPS } else { QUORUM_TRIPS };
            // A handshake for requests, and one for signals.
            let trips = trips + 2 * u32::from(setup.tls.unwrap_or(0));
            (trips, store.turn.1 * 2 + store.gather * trips + SPREAD, ttl / 16)
        });
        Promises { kept, prompt }
    }

    fn begin_plan(r: &mut Runner<Self>, plan: &Plan) {
        let (w, store) = (&mut r.w, &r.own.store);
        if plan.model && plan.supports_model() {
            w.compare_with_model(plan.is_quiet());
        }
        if store.preconnect {
            for client in 0..plan.setup.clients.len() {
                let want = Acquire::new(format!("meet {client}")).ttl(store.ttl).wait(Wait::Try);
                let _ = w.try_acquire(client, &want, Some(Duration::ZERO), Some(Duration::ZERO), None);
            }
            w.run_for(CONNECT_TIME);
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other actions do not depend on the servers")]
    fn act_on_servers(r: &mut Runner<Self>, action: &Action) {
        let w = &mut r.w;
        match action {
            Action::PauseNode(node) => w.pause_node(*node),
            Action::ResumeNode(node) => w.resume_node(*node),
            Action::KillNode(node) => w.kill_node(*node),
            Action::RestartNode { node, keep_data } => w.restart_node(*node, *keep_data),
            Action::JumpNode { node, ms } => {
                let by = Duration::from_millis(ms.unsigned_abs());
                if *ms < 0 {
                    r.own.set_back += by;
                    w.jump_node_clock_back(*node, by);
                } else {
                    w.jump_node_clock_forward(*node, by);
                }
            }
            Action::Reset { client, node } => w.drop_connections(*client, *node),
            Action::Redis(action) => act_on_nodes(w, action),
            _ => {}
        }
    }

    fn finish_plan(r: &mut Runner<Self>) {
        let (ttl, set_back) = (r.own.store.ttl, r.own.set_back);
        let lifetime = ttl * 2 + set_back + Duration::from_secs(1);
        r.w.finish(ttl * SERVED + set_back + GRACE, ttl * 4 + GRACE + set_back, lifetime);
    }
}

fn act_on_nodes<C: RedisClient>(w: &mut World<C>, action: &RedisAction) {
    match action {
        RedisAction::Condition { node, condition, on } => w.set_condition(*node, *condition, *on),
        RedisAction::FlushScripts(node) => {
            w.on_node(*node, "forgets its scripts", |node, _| node.flush_scripts());
        }
        RedisAction::LogOut(node) => {
            w.on_node(*node, "wants everybody to log in again", |node, now| node.log_out(now));
        }
        RedisAction::Evict { node, name } => {
            let key = name.map_or_else(|| COUNTER.as_bytes().to_vec(), |name| w.machine(0).key(name.as_bytes()));
            w.on_node(*node, "evicts a key", |node, now| node.remove(now, key));
        }
        RedisAction::Occupy { node, name, list, key_ttl } => w.occupy(*node, name, *list, *key_ttl),
        RedisAction::StopReplication(node) => w.stop_replication(*node),
        RedisAction::Promote(node) => w.promote(*node),
        RedisAction::FailOver(node) => w.fail_over(*node),
        RedisAction::Redirect { client, node, to } => w.redirect(*client, *node, *to),
    }
}

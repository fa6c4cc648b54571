//! Runs a plan in a world of ZooKeeper.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use super::super::{Action, Bounds, Outcome, Plan, Store, panic_text};
use super::{ZookeeperAction, ZookeeperStore};
use crate::error::ConfigError;
use crate::id::{ClientId, LockId};
use crate::lock::{Acquire, QueryId, Renew, Wait};
use crate::sim::check::Rule;
use crate::sim::journal::Keep;
use crate::sim::trace::Trace;
use crate::sim::zookeeper::{Builder, World, ZookeeperClient};
use crate::time::Instant;
use crate::zookeeper::{Client, Config};

/// Maximum round trips from a release to the next grant without faults, see `Rule::Prompt`.
const TRIPS: u32 = 8;
/// Time that a commit takes among the members, and that an application needs to react.
const COMMIT: Duration = Duration::from_millis(2);

/// The name of a node of another dialect.
const FOREIGN: &str = "N__lock__0000000000";

struct Request {
    client: usize,
    tag: u32,
    name: &'static str,
    ttl: Option<Duration>,
    wait: Wait,
    renew: Renew,
    claim: bool,
    hold: Option<Duration>,
}

struct Runner<C: ZookeeperClient> {
    w: World<C>,
    locks: BTreeMap<u32, (usize, LockId)>,
    queries: BTreeMap<u32, (usize, QueryId)>,
    stopping: Vec<bool>,
    longest: Duration,
    members: usize,
    foreign: u32,
    /// Locks whose sequence numbers were set.
    exhausted: BTreeSet<&'static str>,
}

impl Plan {
    /// Runs the plan with clients other than [`zookeeper::Client`](Client), see
    /// [`Builder::machine`](crate::sim::zookeeper::Builder::machine). They must keep every rule of
    /// the plan.
    ///
    /// # Panics
    ///
    /// If the plan is not for ZooKeeper.
    #[must_use]
    pub fn run_zookeeper<C: ZookeeperClient>(
        &self,
        keep: Keep,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
    ) -> Outcome {
        assert!(matches!(self.setup.store, Store::Zookeeper(_)), "not a plan for ZooKeeper: {self}");
        self.judge(run_clients(self, keep, false, make).0)
    }
}

pub(super) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    run_clients(plan, keep, traced, Client::new)
}

fn run_clients<C: ZookeeperClient>(
    plan: &Plan,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let Store::Zookeeper(store) = &plan.setup.store else { return Default::default() };
    let mut runner = Runner {
        w: build(plan, store).keep(keep).traced(traced).machine(make).build(),
        locks: BTreeMap::new(),
        queries: BTreeMap::new(),
        stopping: plan.setup.clients.iter().map(|_| false).collect(),
        longest: store.session_ttl,
        members: plan.setup.nodes.len(),
        foreign: 0,
        exhausted: BTreeSet::new(),
    };
    runner.w.expect_violation();
    // A panic in a machine counts as a violation.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runner.run_phases(plan))) {
        runner.w.report(Rule::Contract, format!("panic: {}", panic_text(&panic)));
    }
    let mut w = runner.w;
    let trace = w.take_trace();
    let outcome = Outcome {
        violations: w.violations().to_vec(),
        excused: Vec::new(),
        fenced: true,
        grants: w.grants(),
        handovers: w.handovers(),
        steps: w.steps(),
        network_steps: w.network_steps(),
        time: w.now().since(Instant::ZERO),
        digest: w.log_digest(),
        fingerprint: w.fingerprint(),
        log: if matches!(keep, Keep::Lines(_)) { w.log() } else { String::new() },
    };
    (outcome, trace)
}

fn build(plan: &Plan, store: &ZookeeperStore) -> Builder {
    let setup = &plan.setup;
    let mut builder = World::zookeeper(setup.nodes.len())
        .clients(setup.clients.len())
        .seed(setup.seed)
        .latency(setup.latency.clone())
        .service(setup.service)
        .stale(setup.stale)
        .tls(setup.tls);
    for (i, pace) in setup.clients.iter().enumerate() {
        builder = builder.clock(i, pace.offset, pace.drift_ppm);
    }
    let servers = store.clone();
    builder = builder.ensemble(move |ensemble| {
        let ensemble = ensemble.tick(servers.tick).sync_limit(servers.sync_limit).election(servers.tick * 2);
        ensemble.release(servers.release).container_interval(Some(servers.container_interval))
    });
    let store = store.clone();
    builder.config(move |config| {
        let config = config
            .tick(store.tick)
            .session_ttl(store.session_ttl)
            .handover_window(store.turn)
            .request_timeout(store.request_timeout)
            .recheck(store.recheck);
        let config = if let Some(after) = store.watch_own_after { config.watch_own_after(after) } else { config };
        if store.login { config.user("app", "sesame") } else { config }
    })
}

impl<C: ZookeeperClient> Runner<C> {
    fn run_phases(&mut self, plan: &Plan) {
        if let (Bounds::Within, Store::Zookeeper(store)) = (plan.scenario.bounds, &plan.setup.store) {
            self.w.expect_once();
            let trips = TRIPS + u32::from(plan.setup.tls.unwrap_or(0));
            self.w.expect_prompt(trips, COMMIT * TRIPS, store.request_timeout / 4);
        }
        for step in &plan.steps {
            let at = Instant::ZERO + step.at;
            self.w.run_for(at.since(self.w.now()));
            self.act(&step.action);
        }
        self.w.finish(self.longest);
    }

    /// Returns whether the application of a client may act: it runs and is not shutting down.
    fn can_act(&self, client: usize) -> bool {
        self.stopping.get(client).is_some_and(|stopping| !stopping) && self.w.is_running(client)
    }

    fn lock(&self, tag: u32) -> Option<(usize, LockId)> {
        let (client, lock) = self.locks.get(&tag).copied()?;
        self.can_act(client).then_some((client, lock))
    }

    fn held(&self, tag: u32) -> Option<(usize, LockId)> {
        self.lock(tag).filter(|(client, lock)| self.w.is_held(*client, *lock))
    }

    fn act(&mut self, action: &Action) {
        let clients = self.stopping.len();
        if self.w.is_halted() || action.client().is_some_and(|client| client >= clients) {
            return;
        }
        match action {
            Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every } => {
                let (client, tag, ttl, wait, renew, claim) = (*client, *tag, *ttl, *wait, *renew, *claim);
                let request = Request { client, tag, name, ttl, wait, renew, claim, hold: *hold };
                self.acquire(&request, None, *write_every);
            }
            Action::Claim(tag) => {
                if let Some((client, lock)) = self.lock(*tag).filter(|(c, lock)| self.w.is_offered(*c, *lock)) {
                    self.w.claim(client, lock);
                }
            }
            Action::Extend(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    self.w.extend(client, lock);
                }
            }
            Action::Release(tag) => {
                if let Some((client, lock)) = self.lock(*tag).filter(|(c, lock)| self.w.has_guard(*c, *lock)) {
                    self.w.release(client, lock);
                }
            }
            Action::Abandon(tag) => {
                if let Some((client, lock)) = self.lock(*tag) {
                    self.w.abandon(client, lock);
                }
            }
            Action::Write(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    self.w.write(client, lock);
                }
            }
            Action::Shutdown { client, within } => {
                if self.can_act(*client) {
                    self.stopping[*client] = true;
                    self.w.shutdown(*client, *within);
                }
            }
            Action::PauseClient(client) => self.w.pause_client(*client),
            Action::SuspendClient(client) => self.w.suspend_client(*client),
            Action::ResumeClient(client) => self.w.resume_client(*client),
            Action::KillClient(client) => self.w.kill_client(*client),
            Action::PauseNode(member) => self.w.pause_member(*member),
            Action::ResumeNode(member) => self.w.resume_member(*member),
            Action::KillNode(member) => self.w.kill_member(*member),
            // A member always restarts with its data: the other members would not know of a loss.
            Action::RestartNode { node, .. } => {
                self.w.kill_member(*node);
                self.w.start_member(*node);
            }
            // The members' clocks keep true time.
            Action::JumpNode { .. } => {}
            Action::Cut { client, node, direction } => self.w.cut(*client, *node, *direction),
            Action::Heal { client, node } => self.w.heal(*client, *node),
            Action::Reset { client, node } => self.w.drop_connections(*client, *node),
            Action::Slow { client, node, direction, latency } => {
                self.w.slow(*client, *node, *direction, latency.clone())
            }
            Action::Stall { client, node, direction, span } => self.w.stall(*client, *node, *direction, *span),
            Action::Source(source) => self.w.set_source(*source),
            Action::ChangePasswords(keep) => self.w.change_passwords(*keep),
            Action::Handshake { client, node, handshake } => self.w.set_handshake(*client, *node, *handshake),
            Action::Redis(_) | Action::Etcd(_) => {}
            Action::Zookeeper(action) => self.act_on_zookeeper(action),
        }
    }

    fn act_on_zookeeper(&mut self, action: &ZookeeperAction) {
        match action {
            ZookeeperAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold } => {
                let (client, tag, ttl, wait, renew, claim) = (*client, *tag, *ttl, *wait, *renew, *claim);
                let request = Request { client, tag, name, ttl, wait, renew, claim, hold: *hold };
                self.acquire(&request, Some(format!("#{tag}")), None);
            }
            ZookeeperAction::Proclaim(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    let value = format!("#{tag} at {}", self.w.now());
                    self.w.proclaim(client, lock, value);
                }
            }
            ZookeeperAction::Observe { client, tag, name, always } => {
                if self.can_act(*client) {
                    let query = if *always { self.w.observe(*client, name) } else { self.w.leader(*client, name) };
                    self.queries.insert(*tag, (*client, query));
                }
            }
            ZookeeperAction::Close(tag) => {
                if let Some((client, query)) = self.queries.get(tag).copied()
                    && self.can_act(client)
                {
                    self.w.close_query(client, query);
                }
            }
            ZookeeperAction::Isolate(member) => self.w.isolate_member(*member),
            ZookeeperAction::Rejoin(member) => self.w.rejoin_member(*member),
            ZookeeperAction::LoseQuorum => (0..self.members).for_each(|member| self.w.isolate_member(member)),
            ZookeeperAction::RestoreQuorum => (0..self.members).for_each(|member| self.w.rejoin_member(member)),
            ZookeeperAction::ChangeLeader => self.w.change_leader(),
            ZookeeperAction::Delay { member, lag } => self.w.delay_member(*member, *lag),
            ZookeeperAction::DeleteNode { name, oldest } => {
                self.w.delete_node(name, *oldest);
            }
            ZookeeperAction::EndSession { name, oldest } => {
                self.w.end_session(name, *oldest);
            }
            ZookeeperAction::AddForeign { name } => {
                self.foreign += 1;
                let path = format!("/{name}/{}", FOREIGN.replace("N", &format!("{}", self.foreign)));
                self.w.on_ensemble("a foreign node joins a queue", |ensemble, now| ensemble.create(now, &path, b""));
            }
            // Numbers never go back.
            ZookeeperAction::SetSequence { name, next } if self.exhausted.insert(name) => {
                let path = format!("/{name}");
                self.w.on_ensemble("sequence numbers are set", |ensemble, _| ensemble.set_sequence(&path, *next));
            }
            ZookeeperAction::SetSequence { .. } => {}
        }
    }

    fn acquire(&mut self, request: &Request, value: Option<String>, write_every: Option<Duration>) {
        if !self.can_act(request.client) {
            return;
        }
        let mut want = Acquire::new(request.name).wait(request.wait).renew(request.renew);
        if let Some(ttl) = request.ttl {
            want = want.ttl(ttl);
            self.longest = self.longest.max(ttl);
        }
        let (client, hold) = (request.client, request.hold.filter(|_| request.claim));
        self.w.auto_claim(request.claim);
        let lock = match (value, hold) {
            (None, hold) => self.w.try_acquire(client, &want, request.claim, hold, write_every),
            (Some(value), None) => Ok(self.w.campaign(client, want, value)),
            (Some(value), Some(hold)) => Ok(self.w.campaign_for(client, want, value, hold)),
        };
        self.w.auto_claim(true);
        match lock {
            Ok(lock) => _ = self.locks.insert(request.tag, (client, lock)),
            Err(misuse) => self.w.report(Rule::Contract, format!("client {client} cannot acquire: {misuse}")),
        }
    }
}

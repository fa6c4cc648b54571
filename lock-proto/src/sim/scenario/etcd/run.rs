//! Runs a plan in a world of etcd.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use super::super::{Action, Bounds, Flaw, Outcome, Plan, Store, panic_text};
use super::flawed::clients;
use super::{EtcdAction, EtcdStore};
use crate::error::ConfigError;
use crate::etcd::{Client, Config, QueryId};
use crate::id::{ClientId, LockId};
use crate::lock::{Acquire, Renew, Wait};
use crate::sim::check::Rule;
use crate::sim::etcd::{Builder, EtcdClient, User, World};
use crate::sim::journal::Keep;
use crate::sim::own::etcd::{OwnClient, OwnLock};
use crate::sim::trace::Trace;
use crate::time::Instant;

/// Maximum round trips from a release to the next grant without faults, see `Rule::Prompt`.
const TRIPS: u32 = 8;
/// How often clients ask for the members.
const SYNC: Duration = Duration::from_secs(10);
/// Delay of a watch that was opened in the past.
// E5
const LATE_WATCH: Duration = Duration::from_millis(100);

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

struct Runner<C: EtcdClient> {
    w: World<C>,
    locks: BTreeMap<u32, (usize, LockId)>,
    queries: BTreeMap<u32, (usize, QueryId)>,
    stopping: Vec<bool>,
    longest: Duration,
    /// The clients are prompt, and do nothing twice.
    ours: bool,
}

impl Plan {
    /// Runs the plan with clients other than [`etcd::Client`](Client), see
    /// [`Builder::machine`](crate::sim::etcd::Builder::machine). They must keep every rule of the
    /// plan.
    ///
    /// # Panics
    ///
    /// If the plan is not for etcd.
    #[must_use]
    pub fn run_etcd<C: EtcdClient>(
        &self,
        keep: Keep,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
    ) -> Outcome {
        assert!(matches!(self.setup.store, Store::Etcd(_)), "not a plan for etcd: {self}");
        self.judge(run_clients(self, true, keep, false, make).0)
    }

    /// Runs the plan with a lock of your own on etcd, see [`run_own`](Self::run_own). Clients do
    /// not log in, candidates of elections become requests for the lock, and nobody observes.
    ///
    /// # Panics
    ///
    /// If the plan is not for etcd.
    #[must_use]
    pub fn run_own_etcd<L: OwnLock + 'static>(&self, keep: Keep, lock: L) -> Outcome {
        self.run_own_etcd_keeping(keep, false, lock).0
    }

    pub(in crate::sim) fn run_own_etcd_keeping<L: OwnLock + 'static>(
        &self,
        keep: Keep,
        traced: bool,
        lock: L,
    ) -> (Outcome, Trace) {
        let plan = self.without_elections();
        assert!(matches!(plan.setup.store, Store::Etcd(_)), "not a plan for etcd: {self}");
        let make = move |_, config: Config, id, seed| Ok(OwnClient::of_cluster(&config, id, seed, lock.clone()));
        let (outcome, trace) = run_clients(&plan, false, keep, traced, make);
        (plan.judge_own(outcome, OwnClient::<L>::EXCUSED), trace)
    }

    /// The same plan for clients that only lock, and log in nowhere.
    fn without_elections(&self) -> Self {
        let mut plan = self.clone();
        plan.setup.credentials = None;
        if let Store::Etcd(store) = &mut plan.setup.store {
            store.token_ttl = None;
        }
        plan.steps.retain_mut(|step| {
            if let Action::Etcd(EtcdAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold }) =
                &step.action
            {
                let (client, tag, name, ttl, wait, renew) = (*client, *tag, *name, *ttl, *wait, *renew);
                let (claim, hold, write_every) = (*claim, *hold, None);
                step.action = Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every };
            }
            !matches!(
                step.action,
                Action::Source(_)
                    | Action::ChangePasswords(_)
                    | Action::Etcd(
                        EtcdAction::Proclaim(_)
                            | EtcdAction::Observe { .. }
                            | EtcdAction::Close(_)
                            | EtcdAction::ExpireTokens,
                    )
            )
        });
        plan
    }
}

pub(super) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.flaw {
        Some(Flaw::Etcd(flaw)) => run_clients(plan, true, keep, traced, clients(flaw)),
        Some(Flaw::Redis(_)) | None => run_clients(plan, true, keep, traced, Client::new),
    }
}

fn run_clients<C: EtcdClient>(
    plan: &Plan,
    ours: bool,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let Store::Etcd(store) = &plan.setup.store else { return Default::default() };
    let mut runner = Runner {
        w: build(plan, store).keep(keep).traced(traced).machine(make).build(),
        locks: BTreeMap::new(),
        queries: BTreeMap::new(),
        stopping: plan.setup.clients.iter().map(|_| false).collect(),
        longest: store.session_ttl,
        ours,
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
        grants: w.grants(),
        handovers: w.handovers(),
        steps: w.steps(),
        network_steps: w.network_steps(),
        time: w.now().since(Instant::ZERO),
        digest: w.log_digest(),
        fingerprint: w.fingerprint(),
        log: if matches!(keep, Keep::Lines(_)) { w.log() } else { String::new() },
        fenced: ours || w.has_fences(),
    };
    (outcome, trace)
}

fn build(plan: &Plan, store: &EtcdStore) -> Builder {
    let setup = &plan.setup;
    let mut builder = World::cluster(setup.nodes.len())
        .clients(setup.clients.len())
        .seed(setup.seed)
        .latency(setup.latency.clone())
        .late(store.late)
        .service(setup.service)
        .stale(setup.stale)
        .tls(setup.tls);
    for (i, pace) in setup.clients.iter().enumerate() {
        builder = builder.clock(i, pace.offset, pace.drift_ppm);
    }
    let (token_ttl, obtains) = (store.token_ttl, setup.credentials.is_some());
    builder = builder.cluster(move |cluster| match token_ttl {
        Some(ttl) => cluster.user(User::new("app", "sesame").read_write("")).token_ttl(ttl),
        None => cluster,
    });
    let store = store.clone();
    builder.config(move |config| {
        let config = config
            .session_ttl(store.session_ttl)
            .handover_window(store.turn)
            .request_timeout(store.request_timeout)
            .watch_quiet(store.watch_quiet)
            .recheck(store.recheck);
        let config = match store.known {
            Some(known) => config.known_members(known).sync_members(SYNC),
            None => config,
        };
        let config = if let Some(after) = store.watch_own_after { config.watch_own_after(after) } else { config };
        if obtains {
            return config.request_credentials(true);
        }
        if store.token_ttl.is_some() { config.user("app", "sesame") } else { config }
    })
}

impl<C: EtcdClient> Runner<C> {
    fn run_phases(&mut self, plan: &Plan) {
        if let (Bounds::Within, Store::Etcd(store), true) = (plan.scenario.bounds, &plan.setup.store, self.ours) {
            if let Some(provider) = &plan.setup.credentials {
                // A watch that is denied for its token ends the others on its stream, so work is repeated.
                self.w.set_provider(provider.clone());
                self.w.expect_kept();
            } else {
                self.w.expect_once();
                let most = (store.request_timeout / 4).saturating_sub(store.late);
                let trips = TRIPS + u32::from(plan.setup.tls.unwrap_or(0));
                // Calls are late, and their replies.
                self.w.expect_prompt(trips, 2 * store.late * TRIPS + LATE_WATCH, most);
            }
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
            Action::Redis(_) | Action::Zookeeper(_) => {}
            Action::Etcd(action) => self.act_on_etcd(action),
        }
    }

    fn act_on_etcd(&mut self, action: &EtcdAction) {
        match action {
            EtcdAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold } => {
                let (client, tag, ttl, wait, renew, claim) = (*client, *tag, *ttl, *wait, *renew, *claim);
                let request = Request { client, tag, name, ttl, wait, renew, claim, hold: *hold };
                self.acquire(&request, Some(format!("#{tag}")), None);
            }
            EtcdAction::Proclaim(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    let value = format!("#{tag} at {}", self.w.now());
                    self.w.proclaim(client, lock, value);
                }
            }
            EtcdAction::Observe { client, tag, name, always } => {
                if self.can_act(*client) {
                    let query = if *always { self.w.observe(*client, name) } else { self.w.leader(*client, name) };
                    self.queries.insert(*tag, (*client, query));
                }
            }
            EtcdAction::Close(tag) => {
                if let Some((client, query)) = self.queries.get(tag).copied()
                    && self.can_act(client)
                {
                    self.w.close_query(client, query);
                }
            }
            EtcdAction::StopMember(member) => self.w.stop_member(*member),
            EtcdAction::Isolate(member) => self.w.isolate_member(*member),
            EtcdAction::Rejoin(member) => self.w.rejoin_member(*member),
            EtcdAction::LoseQuorum => self.w.lose_quorum(),
            EtcdAction::RestoreQuorum => self.w.restore_quorum(),
            EtcdAction::ChangeLeader => self.w.change_leader(),
            EtcdAction::Compact => self.w.compact(),
            EtcdAction::Touch => self.w.touch(),
            EtcdAction::CancelWatches => self.w.cancel_watches(),
            EtcdAction::EndStreams(member) => self.w.end_streams(*member),
            EtcdAction::LoseEvents(member) => self.w.lose_events(*member),
            EtcdAction::KeepEvents(member) => self.w.keep_events(*member),
            EtcdAction::ExpireTokens => self.w.expire_tokens(),
            EtcdAction::DeleteKey { name, oldest } => {
                self.w.delete_key(name, *oldest);
            }
            EtcdAction::ReplaceKey { name, oldest } => {
                self.w.replace_key(name, *oldest);
            }
            EtcdAction::RevokeLease { name, oldest } => {
                self.w.revoke_lease(name, *oldest);
            }
            EtcdAction::Condition { condition, on } => self.w.set_condition(*condition, *on),
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

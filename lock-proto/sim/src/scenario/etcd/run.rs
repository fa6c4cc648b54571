//! Runs a plan in a world of etcd.

use core::time::Duration;

use super::super::queue::QueueAction;
use super::super::run::{PlanServers, Promises, Runner, TRIPS};
use super::super::{Action, Backend, Flaw, Outcome, Plan, StoreSetup};
use super::draw::LONGEST_TTL;
use super::flawed::clients;
use super::{EtcdAction, EtcdStore};
use crate::etcd::{Builder, EtcdClient, User, World};
use crate::journal::Keep;
use crate::own::etcd::{OwnClient, OwnLock};
use crate::trace::Trace;
use crate::world::EtcdServers;
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::etcd::{Client, Config};

/// How often clients ask for the members.
const SYNC: Duration = Duration::from_secs(10);
/// Delay of a watch that was opened in the past.
// E5
const LATE_WATCH: Duration = Duration::from_millis(100);

impl Plan {
    /// Runs the plan with clients other than [`etcd::Client`](Client), see
    /// [`Builder::machine`](crate::etcd::Builder::machine). They must keep every rule of the
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
        self.require(Backend::Etcd);
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

    pub(crate) fn run_own_etcd_keeping<L: OwnLock + 'static>(
        &self,
        keep: Keep,
        traced: bool,
        lock: L,
    ) -> (Outcome, Trace) {
        let plan = self.without_elections();
        self.require(Backend::Etcd);
        let make = move |_, config: Config, id, seed| Ok(OwnClient::of_cluster(&config, id, seed, lock.clone()));
        let (outcome, trace) = run_clients(&plan, false, keep, traced, make);
        (plan.judge_own(outcome, OwnClient::<L>::EXCUSED), trace)
    }

    /// The same plan for clients that only lock, and log in nowhere.
    fn without_elections(&self) -> Self {
        let mut plan = self.clone();
        plan.setup.credentials = None;
        if let StoreSetup::Etcd(store) = &mut plan.setup.store {
            store.token_ttl = None;
        }
        plan.steps.retain_mut(|step| {
            if let Action::Queue(QueueAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold }) =
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
                    | Action::Queue(QueueAction::Proclaim(_) | QueueAction::Observe { .. } | QueueAction::Close(_))
                    | Action::Etcd(EtcdAction::ExpireTokens)
            )
        });
        plan
    }
}

pub(in crate::scenario) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.flaw {
        Some(Flaw::Etcd(flaw)) => run_clients(plan, true, keep, traced, clients(flaw)),
        Some(Flaw::Redis(_) | Flaw::Register(_)) | None => run_clients(plan, true, keep, traced, Client::new),
    }
}

fn run_clients<C: EtcdClient>(
    plan: &Plan,
    ours: bool,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let StoreSetup::Etcd(store) = &plan.setup.store else { return Default::default() };
    let world = build(plan, store).keep(keep).traced(traced).machine(make).build();
    let run = EtcdRun { store: store.clone() };
    Runner::new(plan, world, run, ours, None, store.session_ttl).run(plan)
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
    let per_lease = store.per_lease;
    builder = builder.cluster(move |cluster| {
        let cluster = cluster.keep_alives_per_lease(per_lease);
        match token_ttl {
            Some(ttl) => cluster.user(User::new("app", "sesame").read_write("")).token_ttl(ttl),
            None => cluster,
        }
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

pub(crate) struct EtcdRun {
    store: EtcdStore,
}

impl<C: EtcdClient> PlanServers for EtcdServers<C> {
    type Run = EtcdRun;

    fn promises(run: &EtcdRun, plan: &Plan) -> Promises {
        if plan.setup.credentials.is_some() {
            return Promises { kept: Some(Duration::MAX), prompt: None };
        }
        let store = &run.store;
        let most = (store.request_timeout / 4).saturating_sub(store.late);
        let trips = TRIPS + u32::from(plan.setup.tls.unwrap_or(0));
        // A hold for a limited time begins with a keep-alive.
        let extends = if store.per_lease { LONGEST_TTL / 4 } else { Duration::ZERO };
        // Calls are late, and their replies.
        let slack = 2 * store.late * TRIPS + LATE_WATCH + extends;
        Promises { kept: Some(most), prompt: Some((trips, slack, most)) }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other actions do not depend on the servers")]
    fn act_on_servers(r: &mut Runner<Self>, action: &Action) {
        let w = &mut r.w;
        match action {
            Action::PauseNode(member) => w.pause_member(*member),
            Action::ResumeNode(member) => w.resume_member(*member),
            Action::KillNode(member) => w.kill_member(*member),
            // A member always restarts with its data: the other members would not know of a loss.
            Action::RestartNode { node, .. } => {
                w.kill_member(*node);
                w.start_member(*node);
            }
            Action::Reset { client, node } => w.drop_connections(*client, *node),
            Action::Queue(QueueAction::Isolate(member)) => w.isolate_member(*member),
            Action::Queue(QueueAction::Rejoin(member)) => w.rejoin_member(*member),
            Action::Queue(QueueAction::LoseQuorum) => w.lose_quorum(),
            Action::Queue(QueueAction::RestoreQuorum) => w.restore_quorum(),
            Action::Queue(QueueAction::ChangeLeader) => w.change_leader(),
            Action::Queue(QueueAction::DeleteKey { name, oldest }) => {
                w.delete_key(name, *oldest);
            }
            Action::Queue(QueueAction::EndSession { name, oldest }) => {
                w.revoke_lease(name, *oldest);
            }
            Action::Etcd(action) => act_on_cluster(w, action),
            // The members' clocks keep true time.
            _ => {}
        }
    }

    fn finish_plan(r: &mut Runner<Self>) {
        r.w.finish(r.longest);
    }
}

fn act_on_cluster<C: EtcdClient>(w: &mut World<C>, action: &EtcdAction) {
    match action {
        EtcdAction::StopMember(member) => w.stop_member(*member),
        EtcdAction::Compact => w.compact(),
        EtcdAction::Touch => w.touch(),
        EtcdAction::CancelWatches => w.cancel_watches(),
        EtcdAction::EndStreams(member) => w.end_streams(*member),
        EtcdAction::LoseEvents(member) => w.lose_events(*member),
        EtcdAction::KeepEvents(member) => w.keep_events(*member),
        EtcdAction::ExpireTokens => w.expire_tokens(),
        EtcdAction::ReplaceKey { name, oldest } => {
            w.replace_key(name, *oldest);
        }
        EtcdAction::Condition { condition, on } => w.set_condition(*condition, *on),
    }
}

//! Runs a plan in a world of ZooKeeper.

use alloc::collections::BTreeSet;
use alloc::format;
use core::time::Duration;

use super::super::queue::QueueAction;
use super::super::run::{PlanServers, Promises, Runner, TRIPS};
use super::super::{Action, Backend, Outcome, Plan, StoreSetup};
use super::{ZookeeperAction, ZookeeperStore};
use crate::journal::Keep;
use crate::trace::Trace;
use crate::world::Zookeeper;
use crate::zookeeper::{Builder, World, ZookeeperClient};
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::zookeeper::{Client, Config};

/// Time that a commit takes among the members, and that an application needs to react.
const COMMIT: Duration = Duration::from_millis(2);

/// The name of a node of another dialect.
const FOREIGN: &str = "N__lock__0000000000";

impl Plan {
    /// Runs the plan with clients other than [`zookeeper::Client`](Client), see
    /// [`Builder::machine`](crate::zookeeper::Builder::machine). They must keep every rule of
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
        self.require(Backend::Zookeeper);
        self.judge(run_clients(self, keep, false, make).0)
    }
}

pub(in crate::scenario) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    run_clients(plan, keep, traced, Client::new)
}

fn run_clients<C: ZookeeperClient>(
    plan: &Plan,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let StoreSetup::Zookeeper(store) = &plan.setup.store else { return Default::default() };
    let world = build(plan, store).keep(keep).traced(traced).machine(make).build();
    let (members, foreign, exhausted) = (plan.setup.nodes.len(), 0, BTreeSet::new());
    let run = ZooKeeperRun { request_timeout: store.request_timeout, members, foreign, exhausted };
    Runner::new(plan, world, run, true, None, store.session_ttl).run(plan)
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
            .idle_timeout(store.idle_timeout)
            .revalidate(store.revalidate)
            .handover_window(store.turn)
            .request_timeout(store.request_timeout)
            .recheck(store.recheck);
        let config = if let Some(after) = store.watch_own_after { config.watch_own_after(after) } else { config };
        if store.login { config.user("app", "sesame") } else { config }
    })
}

pub(crate) struct ZooKeeperRun {
    request_timeout: Duration,
    members: usize,
    foreign: u32,
    /// Locks whose sequence numbers were set.
    exhausted: BTreeSet<&'static str>,
}

impl<C: ZookeeperClient> PlanServers for Zookeeper<C> {
    type Run = ZooKeeperRun;

    fn promises(run: &ZooKeeperRun, plan: &Plan) -> Promises {
        let most = run.request_timeout / 4;
        let trips = TRIPS + u32::from(plan.setup.tls.unwrap_or(0));
        Promises { kept: Some(most), prompt: Some((trips, COMMIT * TRIPS, most)) }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other actions do not depend on the servers")]
    fn act_on_servers(r: &mut Runner<Self>, action: &Action) {
        let (w, members) = (&mut r.w, r.own.members);
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
            Action::Queue(QueueAction::LoseQuorum) => (0..members).for_each(|member| w.isolate_member(member)),
            Action::Queue(QueueAction::RestoreQuorum) => (0..members).for_each(|member| w.rejoin_member(member)),
            Action::Queue(QueueAction::ChangeLeader) => w.change_leader(),
            Action::Queue(QueueAction::DeleteKey { name, oldest }) => {
                w.delete_node(name, *oldest);
            }
            Action::Queue(QueueAction::EndSession { name, oldest }) => {
                w.end_session(name, *oldest);
            }
            Action::Zookeeper(ZookeeperAction::Delay { member, lag }) => w.delay_member(*member, *lag),
            Action::Zookeeper(ZookeeperAction::AddForeign { name }) => {
                r.own.foreign += 1;
                let path = format!("/{name}/{}", FOREIGN.replace("N", &format!("{}", r.own.foreign)));
                w.on_ensemble("a foreign node joins a queue", |ensemble, now| ensemble.create(now, &path, b""));
            }
            Action::Zookeeper(ZookeeperAction::Condition { condition, on }) => w.set_condition(*condition, *on),
            // Numbers never go back.
            Action::Zookeeper(ZookeeperAction::SetSequence { name, next }) if r.own.exhausted.insert(name) => {
                let path = format!("/{name}");
                w.on_ensemble("sequence numbers are set", |ensemble, _| ensemble.set_sequence(&path, *next));
                // Waiters delete an exhausted queue and create it again.
                w.forgo_prompt();
            }
            // The members' clocks keep true time.
            _ => {}
        }
    }

    fn finish_plan(r: &mut Runner<Self>) {
        r.w.finish(r.longest);
    }
}

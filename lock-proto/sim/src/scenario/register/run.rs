//! Runs a plan in a world of a store with compare-and-set.

use core::time::Duration;

use super::super::queue::QueueAction;
use super::super::run::{PlanServers, Promises, Runner, TRIPS};
use super::super::{Action, Backend, Flaw, Outcome, Plan, Step, StoreSetup};
use super::flawed::{RegisterHostFlaw, clients};
use super::{RegisterAction, RegisterStore};
use crate::journal::Keep;
use crate::register::{Builder, RegisterClient, World};
use crate::scenario::faults::register::MARGIN_MS;
use crate::trace::Trace;
use crate::world::Registers;
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::register::{Client, Config};

/// No request takes as long: a cut ends earlier.
const LONG: Duration = Duration::from_secs(25);

/// How long a client stays away after a release.
const HANDOVER_PAUSE: Duration = Duration::from_millis(5);

impl Plan {
    /// Runs the plan with clients other than [`register::Client`](Client), see
    /// [`Builder::machine`](crate::register::Builder::machine). They must keep every rule of the plan.
    ///
    /// # Panics
    ///
    /// If the plan is not for a store with compare-and-set.
    #[must_use]
    pub fn run_register<C: RegisterClient>(
        &self,
        keep: Keep,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
    ) -> Outcome {
        self.require(Backend::Register);
        self.judge(run_clients(self, keep, false, make).0)
    }
}

pub(in crate::scenario) fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.flaw {
        Some(Flaw::Register(flaw)) => run_clients(plan, keep, traced, clients(flaw)),
        Some(Flaw::Redis(_) | Flaw::Etcd(_)) | None => run_clients(plan, keep, traced, Client::new),
    }
}

fn run_clients<C: RegisterClient>(
    plan: &Plan,
    keep: Keep,
    traced: bool,
    make: impl Fn(Instant, Config, ClientId, u64) -> Result<C, ConfigError> + 'static,
) -> (Outcome, Trace) {
    let StoreSetup::Register(store) = &plan.setup.store else { return Default::default() };
    let world = build(plan, store).keep(keep).traced(traced).machine(make).build();
    Runner::new(plan, world, store.clone(), true, Some(store.ttl), store.ttl).run(plan)
}

fn build(plan: &Plan, store: &RegisterStore) -> Builder {
    let setup = &plan.setup;
    let mut servers = store.store;
    servers.ignores_expected = plan.flaw == Some(Flaw::Register(RegisterHostFlaw::IgnoresExpected));
    let mut builder = World::register()
        .clients(setup.clients.len())
        .seed(setup.seed)
        .latency(setup.latency.clone())
        .service(setup.service)
        .stale(setup.stale)
        .tls(setup.tls)
        .late(store.late)
        .store(servers);
    for (i, pace) in setup.clients.iter().enumerate() {
        builder = builder.clock(i, pace.offset, pace.drift_ppm);
    }
    let store = store.clone();
    builder.config(move |config| {
        config
            .poll(store.poll)
            .store_clock(store.store_clock)
            .clock_margin(Duration::from_millis(MARGIN_MS))
            .handover_window(store.turn)
            .request_timeout(store.request_timeout)
    })
}

impl<C: RegisterClient> PlanServers for Registers<C> {
    type Run = RegisterStore;

    fn promises(run: &RegisterStore, plan: &Plan) -> Promises {
        // A renewal must be answered within a fifth of the shortest TTL.
        let most = (run.request_timeout / 4).min(Duration::from_millis(100)).saturating_sub(run.late);
        let trips = TRIPS + u32::from(plan.setup.tls.unwrap_or(0));
        let slack = (run.late + HANDOVER_PAUSE) * TRIPS;
        // Without a watch, waiters poll. That of an observer in the same client may replace theirs, while a
        // report is on its way.
        let observes = |step: &Step| matches!(step.action, Action::Queue(QueueAction::Observe { .. }));
        let is_woken = run.store.watches && !plan.steps.iter().any(observes);
        Promises { kept: Some(most), prompt: is_woken.then_some((trips, slack, most)) }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other actions do not depend on the servers")]
    fn act_on_servers(r: &mut Runner<Self>, action: &Action) {
        let w = &mut r.w;
        match action {
            Action::PauseNode(_) => w.pause_store(),
            Action::ResumeNode(_) => w.resume_store(),
            Action::KillNode(_) => w.kill_store(),
            Action::RestartNode { .. } => {
                w.kill_store();
                w.start_store();
            }
            Action::Reset { client, node } => w.drop_connections(*client, *node),
            Action::Queue(QueueAction::DeleteKey { name, .. }) => _ = w.delete_record(name),
            Action::Register(action) => match action {
                RegisterAction::Lag(lag) => w.delay_reads(*lag),
                RegisterAction::Fail(on) => w.fail_requests(*on),
                RegisterAction::LoseHints(on) => w.lose_hints(*on),
                RegisterAction::SetClock(ms) => w.set_store_clock(*ms),
                RegisterAction::Sweep => w.sweep_records(LONG),
                RegisterAction::BackUp => w.back_up(),
                RegisterAction::Restore => w.restore(),
            },
            _ => {}
        }
    }

    fn finish_plan(r: &mut Runner<Self>) {
        r.w.finish(r.longest);
    }
}

//! One run as plain data.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::etcd::{EtcdAction, EtcdStore};
use super::queue::QueueAction;
use super::redis::{RedisAction, RedisStore, loses_track};
use super::register::{RegisterAction, RegisterStore};
use super::zookeeper::{ZookeeperAction, ZookeeperStore};
use super::{Backend, Bounds, Flaw, Outcome, PlanDraft, Scenario, run};
use crate::chance::Chance;
use crate::check::{Rule, Violation};
use crate::direction::Direction;
use crate::journal::Keep;
use crate::trace::Trace;
use crate::world::{Handshake, Provider, Source};
use lock_proto::Instant;
use lock_proto::{Renew, Wait};

/// One run of a [`Scenario`]. Every field may be changed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// The source of the plan.
    pub origin: Origin,
    /// Settings of the world.
    pub setup: Setup,
    /// Actions and faults, ordered by time.
    pub steps: Vec<Step>,
    /// Rules that need not hold with these settings, in addition to the scenario's.
    pub excused: Vec<Rule>,
    /// A flaw to plant in every client, if they are of [its store](Flaw::backend). Drawn plans have
    /// none.
    pub flaw: Option<Flaw>,
    /// Whether the naive reference model runs beside the clients, see [`Rule::Model`], if the plan
    /// [supports](Self::supports_model) it. Drawn plans run without it.
    pub model: bool,
    /// Set if the plan no longer matches its origin.
    pub(super) changed: bool,
}

/// The source of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A seed.
    Seed(u64),
    /// A byte string.
    Bytes(Vec<u8>),
}

/// Settings of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Seed of the world's random choices: latencies, packet sizes, order of simultaneous events.
    pub seed: u64,
    /// Latency of a packet.
    pub latency: Range<Duration>,
    /// Service time of a server for one command.
    pub service: Duration,
    /// Whether clients still get data from ended connections.
    pub stale: bool,
    /// Clients connect by TLS, with a handshake of this many round trips.
    pub tls: Option<u8>,
    /// The source of the clients' credentials, if they obtain some.
    pub credentials: Option<Provider>,
    /// The clock of each client.
    pub clients: Vec<Pace>,
    /// The clock of each node.
    pub nodes: Vec<Pace>,
    /// Settings that depend on the kind of store.
    pub store: StoreSetup,
}

/// A clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Time that it reads at the start.
    pub offset: Duration,
    /// Drift in µs per second.
    pub drift_ppm: i32,
}

/// Settings that depend on the kind of store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreSetup {
    /// Redis.
    Redis(RedisStore),
    /// etcd.
    Etcd(EtcdStore),
    /// ZooKeeper.
    Zookeeper(ZookeeperStore),
    /// A store with compare-and-set.
    Register(RegisterStore),
}

impl StoreSetup {
    const fn backend(&self) -> Backend {
        match self {
            Self::Redis(_) => Backend::Redis,
            Self::Etcd(_) => Backend::Etcd,
            Self::Zookeeper(_) => Backend::Zookeeper,
            Self::Register(_) => Backend::Register,
        }
    }

    /// Returns the TTL of locks without one of their own: on Redis the longest of all.
    pub(super) const fn ttl(&self) -> Duration {
        match self {
            Self::Redis(store) => store.ttl,
            Self::Etcd(store) => store.session_ttl,
            Self::Zookeeper(store) => store.session_ttl,
            Self::Register(store) => store.ttl,
        }
    }
}

/// A timed action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The true time since the start.
    pub at: Duration,
    /// The action.
    pub action: Action,
}

/// An action of an application or a fault. It does nothing if it no longer applies, as to a dead
/// process, so any step may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// An application requests a lock.
    Acquire {
        /// The client.
        client: usize,
        /// Identifies this acquisition in other actions.
        tag: u32,
        /// The lock's name.
        name: &'static str,
        /// TTL, or `None` for the client's default.
        ttl: Option<Duration>,
        /// Maximum wait.
        wait: Wait,
        /// How the lock is renewed.
        renew: Renew,
        /// Claim the lock this long after it is offered. `None`: only a later action does.
        claim: Option<Duration>,
        /// Release the lock this long after the grant. With `None` a later action or the end of the
        /// first phase releases it.
        hold: Option<Duration>,
        /// Interval of writes to the protected resource while the lock is held.
        write_every: Option<Duration>,
    },
    /// An application claims an offered lock.
    Claim(u32),
    /// An application extends a lock.
    Extend(u32),
    /// An application releases a lock.
    Release(u32),
    /// An application drops an acquisition in whatever state it is in.
    Abandon(u32),
    /// An application checks that it holds the lock, and then writes to the protected resource.
    Write(u32),
    /// A client is shut down.
    Shutdown {
        /// The client.
        client: usize,
        /// Time to release its locks.
        within: Duration,
    },
    /// A client process is paused, as by `SIGSTOP`.
    PauseClient(usize),
    /// A client's machine is suspended and its clock stops, as `CLOCK_MONOTONIC` does on Linux. A
    /// host must not use such a clock.
    // T4
    SuspendClient(usize),
    /// A paused or suspended client resumes.
    ResumeClient(usize),
    /// A client process dies for good.
    KillClient(usize),
    /// A server process is paused, as by `SIGSTOP`.
    PauseNode(usize),
    /// A paused server process resumes.
    ResumeNode(usize),
    /// A server process dies.
    KillNode(usize),
    /// A server process restarts. A running one is killed first.
    RestartNode {
        /// The node.
        node: usize,
        /// Whether it keeps its data.
        keep_data: bool,
    },
    /// The wall clock of a node jumps.
    JumpNode {
        /// The node.
        node: usize,
        /// Milliseconds; negative for backwards.
        ms: i64,
    },
    /// A partition between a client and a node in one direction.
    Cut {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The blocked direction.
        direction: Direction,
    },
    /// All partitions between a client and a node end.
    Heal {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
    },
    /// All connections between a client and a node are reset.
    Reset {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
    },
    /// The latency between a client and a node changes.
    Slow {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The affected direction.
        direction: Direction,
        /// The new latency.
        latency: Range<Duration>,
    },
    /// The open connections between a client and a node stall. New connections are not affected.
    Stall {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The affected direction.
        direction: Direction,
        /// Duration of the stall.
        span: Duration,
    },
    /// The sockets of a client to a node take no bytes for a while.
    BlockSocket {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// How long.
        span: Duration,
    },
    /// From now on TLS handshakes between a client and a node go like this.
    Handshake {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// What happens.
        handshake: Handshake,
    },
    /// How the source of credentials answers from now on.
    Source(Source),
    /// All passwords change. The old ones work for a while.
    ChangePasswords(Duration),
    /// An action specific to the queue stores, etcd and ZooKeeper.
    Queue(QueueAction),
    /// An action specific to Redis.
    Redis(RedisAction),
    /// An action specific to etcd.
    Etcd(EtcdAction),
    /// An action specific to ZooKeeper.
    Zookeeper(ZookeeperAction),
    /// An action specific to a store with compare-and-set.
    Register(RegisterAction),
}

impl Action {
    /// Returns the client of this action, if it has one.
    #[must_use]
    pub fn client(&self) -> Option<usize> {
        self.clone().client_mut().copied()
    }

    pub(super) const fn client_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Acquire { client, .. }
            | Self::Shutdown { client, .. }
            | Self::PauseClient(client)
            | Self::SuspendClient(client)
            | Self::ResumeClient(client)
            | Self::KillClient(client)
            | Self::Cut { client, .. }
            | Self::Heal { client, .. }
            | Self::Reset { client, .. }
            | Self::Slow { client, .. }
            | Self::Stall { client, .. }
            | Self::BlockSocket { client, .. }
            | Self::Handshake { client, .. } => Some(client),
            Self::Redis(RedisAction::Redirect { client, .. }) => Some(client),
            Self::Queue(action) => action.client_mut(),
            Self::Claim(_)
            | Self::Extend(_)
            | Self::Release(_)
            | Self::Abandon(_)
            | Self::Write(_)
            | Self::PauseNode(_)
            | Self::ResumeNode(_)
            | Self::KillNode(_)
            | Self::RestartNode { .. }
            | Self::JumpNode { .. }
            | Self::Source(_)
            | Self::ChangePasswords(_)
            | Self::Redis(_)
            | Self::Etcd(_)
            | Self::Zookeeper(_)
            | Self::Register(_) => None,
        }
    }
}

impl Action {
    /// Returns the member of this action of a queue store, if it has one.
    pub(super) const fn node_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::PauseNode(node)
            | Self::ResumeNode(node)
            | Self::KillNode(node)
            | Self::RestartNode { node, .. }
            | Self::JumpNode { node, .. }
            | Self::Cut { node, .. }
            | Self::Heal { node, .. }
            | Self::Reset { node, .. }
            | Self::Slow { node, .. }
            | Self::Stall { node, .. }
            | Self::BlockSocket { node, .. }
            | Self::Handshake { node, .. } => Some(node),
            Self::Queue(action) => action.node_mut(),
            Self::Acquire { .. }
            | Self::Claim(_)
            | Self::Extend(_)
            | Self::Release(_)
            | Self::Abandon(_)
            | Self::Write(_)
            | Self::Shutdown { .. }
            | Self::PauseClient(_)
            | Self::SuspendClient(_)
            | Self::ResumeClient(_)
            | Self::KillClient(_)
            | Self::Source(_)
            | Self::ChangePasswords(_)
            | Self::Redis(_)
            | Self::Etcd(_)
            | Self::Zookeeper(_)
            | Self::Register(_) => None,
        }
    }
}

impl Plan {
    /// Draws the run of `scenario` for this seed.
    #[must_use]
    pub fn from_seed(scenario: &'static Scenario, seed: u64) -> Self {
        Self::draw(scenario, Origin::Seed(seed), Chance::seed(seed))
    }

    /// Draws the run of `scenario` for any byte string. Fewer bytes give a smaller run.
    #[must_use]
    pub fn from_bytes(scenario: &'static Scenario, bytes: &[u8]) -> Self {
        Self::draw(scenario, Origin::Bytes(bytes.to_vec()), Chance::bytes(bytes))
    }

    fn draw(scenario: &'static Scenario, origin: Origin, mut chance: Chance) -> Self {
        let PlanDraft { setup, mut steps, excused } = scenario.draw(&mut chance);
        // Stable: steps of equal time keep the order in which they were drawn.
        steps.sort_by_key(|step| step.at);
        Self { scenario, origin, setup, steps, excused, flaw: None, model: false, changed: false }
    }

    /// Returns whether this rule must hold.
    #[must_use]
    pub fn promises(&self, rule: Rule) -> bool {
        self.scenario.promises(rule) && !self.excused.contains(&rule)
    }

    /// Runs the plan without a log. If a rule is violated, runs it again with one.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let outcome = self.run_keeping(Keep::Nothing);
        if outcome.violations.is_empty() { outcome } else { self.run_keeping(Keep::Lines(200)) }
    }

    /// Runs the plan and keeps this much of the log. This changes nothing else.
    #[must_use]
    pub fn run_keeping(&self, keep: Keep) -> Outcome {
        self.judge(run(self, keep, false).0)
    }

    /// Runs the plan and returns the end of the log and a trace for pictures.
    #[must_use]
    pub fn run_traced(&self) -> (Outcome, Trace) {
        let (outcome, trace) = run(self, Keep::Lines(200), true);
        (self.judge(outcome), trace)
    }

    pub(super) fn judge(&self, mut outcome: Outcome) -> Outcome {
        let broken = |found: &Violation| found.at < self.excused_from(found.rule);
        let (broken, excused) = outcome.violations.into_iter().partition(broken);
        (outcome.violations, outcome.excused) = (broken, excused);
        outcome
    }

    /// Returns when the time begins in which this rule need not hold.
    fn excused_from(&self, rule: Rule) -> Instant {
        match &self.setup.store {
            _ if self.promises(rule) => Instant::MAX,
            StoreSetup::Redis(store) if rule == Rule::Ghost && self.scenario.promises(rule) => {
                let lost = self.steps.iter().find(|step| loses_track(step, store.ttl));
                lost.map_or(Instant::MAX, |step| Instant::ZERO + step.at)
            }
            StoreSetup::Redis(_) | StoreSetup::Etcd(_) | StoreSetup::Zookeeper(_) | StoreSetup::Register(_) => {
                Instant::ZERO
            }
        }
    }

    /// Judges a lock from outside this library: what it does not promise is excused, and without
    /// fencing tokens stale writes are.
    pub(super) fn judge_own(&self, outcome: Outcome, unpromised: &[Rule]) -> Outcome {
        let mut outcome = self.judge(outcome);
        let fenced = outcome.fenced;
        let own = |rule| !unpromised.contains(&rule) && (fenced || rule != Rule::StaleWrite);
        let (broken, excused): (Vec<_>, Vec<_>) = outcome.violations.into_iter().partition(|found| own(found.rule));
        outcome.violations = broken;
        outcome.excused.extend(excused);
        outcome
    }

    /// Panics unless the plan is for this store.
    #[track_caller]
    pub(super) fn require(&self, backend: Backend) {
        let own = self.setup.store.backend();
        let name = self.scenario.name;
        assert!(own == backend, "not a plan for {backend:?}: {name} is a scenario of {own:?}");
    }

    /// Returns whether nothing fails in this run: all steps are those of applications, and the
    /// clients need no credentials.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let by_application = |step: &Step| {
            matches!(
                step.action,
                Action::Acquire { .. }
                    | Action::Claim(_)
                    | Action::Extend(_)
                    | Action::Release(_)
                    | Action::Abandon(_)
                    | Action::Write(_)
            )
        };
        self.setup.credentials.is_none() && self.setup.tls.is_none() && self.steps.iter().all(by_application)
    }

    /// Returns whether [`model`](Self::model) has an effect: on one Redis node, within the bounds.
    #[must_use]
    pub fn supports_model(&self) -> bool {
        let one_node = matches!(self.setup.store, StoreSetup::Redis(_)) && self.setup.nodes.len() == 1;
        one_node && self.scenario.bounds == Bounds::Within
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether the plan has no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns a copy without these steps.
    #[must_use]
    pub fn without(&self, range: Range<usize>) -> Self {
        let mut plan = self.clone();
        let end = range.end.min(plan.steps.len());
        plan.steps.drain(range.start.min(end)..end);
        plan.changed = true;
        plan
    }

    /// Returns whether the plan is the one of its seed or bytes, apart from a flaw and the model.
    pub(super) fn is_as_drawn(&self) -> bool {
        let drawn = match &self.origin {
            Origin::Seed(seed) => Self::from_seed(self.scenario, *seed),
            Origin::Bytes(bytes) => Self::from_bytes(self.scenario, bytes),
        };
        (&self.setup, &self.steps, &self.excused) == (&drawn.setup, &drawn.steps, &drawn.excused)
    }

    /// Returns the command that replays the plan as drawn, with the clients of this library. A run
    /// of other clients is replayed by the call that ran it, such as
    /// [`own::find`](crate::own::find) with the seed.
    #[must_use]
    pub fn replay(&self) -> String {
        let name = self.scenario.name;
        let from = match &self.origin {
            Origin::Seed(seed) => format!("LOCK_SEED={seed}"),
            Origin::Bytes(bytes) => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("LOCK_BYTES={hex}")
            }
        };
        let flaw = self.flaw.map(|flaw| format!("LOCK_FLAW={flaw} ")).unwrap_or_default();
        let model = if self.model { "LOCK_MODEL=1 " } else { "" };
        let changed = if self.is_as_drawn() { "" } else { "  # as drawn; then changed" };
        format!(
            "LOCK_SCENARIO={name} {from} {flaw}{model}cargo test -p lock-sim --test scenarios -- --nocapture replay{changed}"
        )
    }
}

//! One run as plain data.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::etcd::{EtcdAction, EtcdStore};
use super::redis::{RedisAction, RedisStore};
use super::{Draft, Outcome, Scenario};
use crate::lock::{Renew, Wait};
use crate::sim::chance::Chance;
use crate::sim::check::Rule;
use crate::sim::direction::Direction;
use crate::sim::journal::Keep;
use crate::sim::trace::Trace;

/// One run of a [`Scenario`]. Every field may be changed by hand.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of which scenario.
    pub scenario: &'static Scenario,
    /// What it was drawn from.
    pub origin: Origin,
    /// How the world is made.
    pub setup: Setup,
    /// What happens in it, in order of time.
    pub steps: Vec<Step>,
    /// Rules that cannot be promised with these settings, beside those of the scenario.
    pub excused: Vec<Rule>,
    /// It is no more what its origin gives.
    pub(super) changed: bool,
}

/// What a plan was drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A seed.
    Seed(u64),
    /// A byte string.
    Bytes(Vec<u8>),
}

/// How a world is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Where chance inside the world comes from: latencies, the sizes of packets, the order of what happens at one time.
    pub seed: u64,
    /// How long a packet travels.
    pub latency: Range<Duration>,
    /// How long a server takes for a command.
    pub service: Duration,
    /// Whether clients are told what comes over connections that are over.
    pub stale: bool,
    /// The clock of each client.
    pub clients: Vec<Pace>,
    /// The clock of each node.
    pub nodes: Vec<Pace>,
    /// Everything that depends on the kind of store.
    pub store: Store,
}

/// A clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pace {
    /// What it reads at the start.
    pub offset: Duration,
    /// µs that it gains a second.
    pub drift_ppm: i32,
}

/// Settings that depend on the kind of store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// Redis.
    Redis(RedisStore),
    /// etcd.
    Etcd(EtcdStore),
}

/// Something that happens at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in true time since the start.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What an application does, or what goes wrong. An action that makes no sense when its time comes (for an acquisition that is over, for a process
/// that is dead) does nothing, so that any part of a plan may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// An application wants a lock.
    Acquire {
        /// The client.
        client: usize,
        /// What other actions call this acquisition.
        tag: u32,
        /// The lock's name.
        name: &'static str,
        /// Its TTL; `None` for the client's own.
        ttl: Option<Duration>,
        /// How long to wait.
        wait: Wait,
        /// Who keeps it alive.
        renew: Renew,
        /// Claim it as soon as it is offered.
        claim: bool,
        /// Give it back so long after the grant; `None`: a later action does, or the end of the first phase.
        hold: Option<Duration>,
        /// While it is held, write to what it protects this often.
        write_every: Option<Duration>,
    },
    /// An application takes what it is offered.
    Claim(u32),
    /// An application asks for more time.
    Extend(u32),
    /// An application gives a lock back.
    Release(u32),
    /// An application drops an acquisition, whatever its state.
    Abandon(u32),
    /// An application sees that it holds the lock, and then writes to what it protects.
    Write(u32),
    /// A client is shut down, with so much time.
    Shutdown {
        /// The client.
        client: usize,
        /// For releasing what it holds.
        within: Duration,
    },
    /// A client process is stopped, as by `SIGSTOP`.
    PauseClient(usize),
    /// The machine of a client is suspended, and its clock stands still meanwhile, as `CLOCK_MONOTONIC` does on Linux: not what a host
    /// should use (requirement T4).
    SuspendClient(usize),
    /// It goes on.
    ResumeClient(usize),
    /// A client process dies, for ever.
    KillClient(usize),
    /// A server process is stopped, as by `SIGSTOP`.
    PauseNode(usize),
    /// It goes on.
    ResumeNode(usize),
    /// A server process dies.
    KillNode(usize),
    /// It starts again; if it runs, it is killed first.
    RestartNode {
        /// The node.
        node: usize,
        /// With the data that it had.
        keep_data: bool,
    },
    /// The wall clock of a node is set, in ms.
    JumpNode {
        /// The node.
        node: usize,
        /// Forward, or back if negative.
        ms: i64,
    },
    /// Nothing passes.
    Cut {
        /// Between this client
        client: usize,
        /// and this node,
        node: usize,
        /// in this direction.
        direction: Direction,
    },
    /// Everything passes again.
    Heal {
        /// Between this client
        client: usize,
        /// and this node.
        node: usize,
    },
    /// Every connection is reset.
    Reset {
        /// Between this client
        client: usize,
        /// and this node.
        node: usize,
    },
    /// Packets travel so long from now on.
    Slow {
        /// Between this client
        client: usize,
        /// and this node,
        node: usize,
        /// in this direction.
        direction: Direction,
        /// How long.
        latency: Range<Duration>,
    },
    /// For a while nothing more arrives over the connections that are open now; new ones are not
    /// affected.
    Stall {
        /// Between this client
        client: usize,
        /// and this node,
        node: usize,
        /// in this direction.
        direction: Direction,
        /// For so long.
        span: Duration,
    },
    /// What can happen to Redis only.
    Redis(RedisAction),
    /// What can happen with etcd only.
    Etcd(EtcdAction),
}

impl Action {
    /// The client that it is about, if it names one.
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
            | Self::Stall { client, .. } => Some(client),
            Self::Redis(RedisAction::Redirect { client, .. }) => Some(client),
            Self::Etcd(action) => action.client_mut(),
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
            | Self::Redis(_) => None,
        }
    }
}

impl Plan {
    /// The run of `scenario` that this seed gives.
    #[must_use]
    pub fn from_seed(scenario: &'static Scenario, seed: u64) -> Self {
        Self::draw(scenario, Origin::Seed(seed), Chance::seed(seed))
    }

    /// The run of `scenario` that this byte string gives. Fewer bytes give a smaller run; none is too long or too short.
    #[must_use]
    pub fn from_bytes(scenario: &'static Scenario, bytes: &[u8]) -> Self {
        Self::draw(scenario, Origin::Bytes(bytes.to_vec()), Chance::bytes(bytes))
    }

    fn draw(scenario: &'static Scenario, origin: Origin, mut chance: Chance) -> Self {
        let Draft { setup, mut steps, excused } = (scenario.draw)(&mut chance);
        // Stable: what is drawn first happens first.
        steps.sort_by_key(|step| step.at);
        Self { scenario, origin, setup, steps, excused, changed: false }
    }

    /// Whether this is promised.
    #[must_use]
    pub fn promises(&self, rule: Rule) -> bool {
        self.scenario.promises(rule) && !self.excused.contains(&rule)
    }

    /// Runs it, as fast as may be. The log is made (by running once more) only if a promise is broken.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let outcome = self.run_keeping(Keep::Nothing);
        if outcome.violations.is_empty() { outcome } else { self.run_keeping(Keep::Lines(200)) }
    }

    /// Runs it with this much of a log. How much is kept changes nothing else.
    #[must_use]
    pub fn run_keeping(&self, keep: Keep) -> Outcome {
        self.judge((self.scenario.run)(self, keep, false).0)
    }

    /// Runs it, with the end of its log and a record of everything for pictures.
    #[must_use]
    pub fn run_traced(&self) -> (Outcome, Trace) {
        let (outcome, trace) = (self.scenario.run)(self, Keep::Lines(200), true);
        (self.judge(outcome), trace)
    }

    pub(super) fn judge(&self, mut outcome: Outcome) -> Outcome {
        let (broken, excused) = outcome.violations.into_iter().partition(|found| self.promises(found.rule));
        (outcome.violations, outcome.excused) = (broken, excused);
        outcome
    }

    /// How many steps it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing happens in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The same without these steps.
    #[must_use]
    pub fn without(&self, range: Range<usize>) -> Self {
        let mut plan = self.clone();
        let end = range.end.min(plan.steps.len());
        plan.steps.drain(range.start.min(end)..end);
        plan.changed = true;
        plan
    }

    /// The command that runs it again, as it was drawn.
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
        format!(
            "LOCK_SCENARIO={name} {from} cargo test -p lock-proto --features sim --test scenarios -- --nocapture replay"
        )
    }
}

//! Scenarios: named situations, each of which yields a different run for every seed.
//!
//! A [`Scenario`] defines the possible faults, whether they stay within the bounds of the
//! guarantees, and which rules must hold. A [`Plan`] is one run as plain data: settings, and a
//! timed list of actions and faults. It is drawn from a seed or a byte string, and can be printed,
//! changed, [shrunk](Plan::shrink) and run.
//!
//! A run has two phases. First the listed steps happen; then the faults end, every waiter must be
//! served, and nothing may be left behind.
//!
//! ```
//! use lock_sim::{Plan};
//!
//! for scenario in lock_sim::scenarios() {
//!     let plan = Plan::from_seed(scenario, 7);
//!     let outcome = plan.run();
//!     assert!(outcome.violations.is_empty(), "{}\n{plan}\n{outcome}", plan.replay());
//! }
//! ```
// S2

mod claims;
mod credentials;
mod etcd;
mod faults;
mod flaw;
mod flawed;
mod lost;
mod needs;
mod often;
mod plan;
mod queue;
mod redis;
mod register;
mod run;
mod show;
mod shrink;
mod tls;
mod zookeeper;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::time::Duration;

use super::chance::Chance;
use super::check::{Rule, Violation};
use super::journal::Keep;
use super::trace::Trace;
use super::world::Handovers;

pub use etcd::{EtcdAction, EtcdFlaw, EtcdStore};
pub use flaw::Flaw;
pub use plan::{Action, Origin, Pace, Plan, Setup, Step, StoreSetup};
pub use queue::QueueAction;
pub use redis::{RedisAction, RedisFlaw, RedisStore};
pub use register::{RegisterAction, RegisterHostFlaw, RegisterStore};
pub use zookeeper::{ZookeeperAction, ZookeeperStore};

/// The kind of store of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// One Redis node, or a quorum of several.
    Redis,
    /// An etcd cluster.
    Etcd,
    /// A ZooKeeper ensemble.
    Zookeeper,
    /// A store with compare-and-set.
    Register,
}

/// Whether a scenario stays within the bounds of the guarantees: clocks agree within the drift
/// allowance, and servers keep their data as promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bounds {
    /// Within the bounds.
    Within,
    /// Outside the bounds, for this reason.
    Beyond(&'static str),
}

/// A named situation.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name by which [`Scenario::named`] finds it.
    pub name: &'static str,
    /// A description in one sentence.
    pub about: &'static str,
    /// The kind of store.
    pub backend: Backend,
    /// Whether the bounds of the guarantees are kept.
    pub bounds: Bounds,
    /// How many seeds it gets where others get one: more if it alone shows something, and rarely.
    // S4
    pub weight: u64,
    /// Rules that need not hold here. All others must.
    pub excused: &'static [Rule],
    draws: Draws,
}

/// What the runs of a scenario are drawn from.
#[derive(Clone, Copy, Debug)]
enum Draws {
    Redis(&'static redis::RedisRecipe),
    Etcd(&'static queue::draw::QueueRecipe),
    Zookeeper(&'static queue::draw::QueueRecipe, &'static zookeeper::EnsembleRecipe),
    Register(&'static queue::draw::QueueRecipe),
}

#[derive(Clone, Debug)]
struct PlanDraft {
    setup: Setup,
    steps: Vec<Step>,
    /// Rules that need not hold with these settings, in addition to the scenario's.
    excused: Vec<Rule>,
}

impl Scenario {
    /// Returns the scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        scenarios().iter().find(|scenario| scenario.name == name)
    }

    /// A scenario within the bounds, where every rule must hold.
    const fn new(name: &'static str, about: &'static str, draws: Draws) -> Self {
        let backend = match draws {
            Draws::Redis(_) => Backend::Redis,
            Draws::Etcd(_) => Backend::Etcd,
            Draws::Zookeeper(..) => Backend::Zookeeper,
            Draws::Register(_) => Backend::Register,
        };
        Self { name, about, backend, bounds: Bounds::Within, weight: 1, excused: &[], draws }
    }

    /// The scenario is beyond the bounds for this reason, and these rules need not hold.
    const fn beyond(self, why: &'static str, excused: &'static [Rule]) -> Self {
        Self { bounds: Bounds::Beyond(why), excused, ..self }
    }

    const fn weigh(self, weight: u64) -> Self {
        Self { weight, ..self }
    }

    /// Returns whether this rule must hold in every run of the scenario. A plan's settings may
    /// excuse more rules: without fencing tokens, for example, a stale write cannot be rejected.
    #[must_use]
    pub fn promises(&self, rule: Rule) -> bool {
        !self.excused.contains(&rule)
    }

    fn draw(&self, chance: &mut Chance) -> PlanDraft {
        match self.draws {
            Draws::Redis(recipe) => redis::draw(chance, recipe),
            Draws::Etcd(recipe) => etcd::draw(chance, recipe),
            Draws::Zookeeper(recipe, servers) => zookeeper::draw(chance, recipe, servers),
            Draws::Register(recipe) => register::draw(chance, recipe),
        }
    }
}

/// Runs a plan with this much of a log, and with a trace on request. The outcome has all
/// violations, excused or not.
fn run(plan: &Plan, keep: Keep, traced: bool) -> (Outcome, Trace) {
    match plan.scenario.backend {
        Backend::Redis => redis::run(plan, keep, traced),
        Backend::Etcd => etcd::run(plan, keep, traced),
        Backend::Zookeeper => zookeeper::run(plan, keep, traced),
        Backend::Register => register::run(plan, keep, traced),
    }
}

/// Returns all scenarios.
#[must_use]
pub const fn scenarios() -> &'static [Scenario] {
    &ALL
}

const LISTS: [&[Scenario]; 4] = [redis::SCENARIOS, etcd::SCENARIOS, zookeeper::SCENARIOS, register::SCENARIOS];

const COUNT: usize = LISTS[0].len() + LISTS[1].len() + LISTS[2].len() + LISTS[3].len();

const ALL: [Scenario; COUNT] = {
    let mut all = [redis::SCENARIOS[0]; COUNT];
    let (mut list, mut place, mut i) = (0, 0, 0);
    while i < all.len() {
        if place == LISTS[list].len() {
            (list, place) = (list + 1, 0);
        }
        all[i] = LISTS[list][place];
        all[i].check();
        (place, i) = (place + 1, i + 1);
    }
    all
};

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Violations of rules that must hold.
    pub violations: Vec<Violation>,
    /// Violations of excused rules.
    pub excused: Vec<Violation>,
    /// Number of grants.
    pub grants: u64,
    /// How locks went from one client to another before the first fault.
    pub handovers: Handovers,
    /// Number of machine calls, clients and servers.
    pub steps: u64,
    /// Number of network steps.
    pub network_steps: u64,
    /// Simulated time.
    pub time: Duration,
    /// Digest of the log and its number of lines, if a log was written.
    pub digest: (u64, u64),
    /// Digest of the clients' requests and events, without names, if a log was written.
    pub fingerprint: u64,
    /// The end of the log, if it was kept.
    pub log: String,
    /// Whether any grant had a fencing token.
    pub fenced: bool,
}

impl Outcome {
    /// Returns whether this rule was violated, excused or not.
    #[must_use]
    pub fn has(&self, rule: Rule) -> bool {
        self.violations.iter().chain(&self.excused).any(|found| found.rule == rule)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} grants, {} steps, {:?} simulated", self.grants, self.steps, self.time)?;
        for violation in &self.violations {
            writeln!(f, "BROKEN {violation}")?;
        }
        for violation in &self.excused {
            writeln!(f, "not promised: {violation}")?;
        }
        f.write_str(&self.log)
    }
}

fn panic_text(panic: &Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| String::from(*text));
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".into())
}

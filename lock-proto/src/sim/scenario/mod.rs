//! Scenarios: named situations, each of which makes as many different runs as there are seeds.
//!
//! A [`Scenario`] says what goes wrong in it, whether the bounds of the promises are kept, and what is promised then. A [`Plan`] is one
//! run of it as plain data: settings, and a list of what applications do and what goes wrong, each with its time. It is drawn from a seed
//! or from a byte string, it can be printed, changed, [shrunk](Plan::shrink) and run. A run has two phases (requirement S2): first
//! everything in the list happens; then the faults stop, and everybody must be served and nothing be left behind.
//!
//! ```
//! use lock_proto::sim::{self, Plan};
//!
//! for scenario in sim::scenarios() {
//!     let plan = Plan::from_seed(scenario, 7);
//!     let outcome = plan.run();
//!     assert!(outcome.violations.is_empty(), "{}\n{plan}\n{outcome}", plan.replay());
//! }
//! ```

mod etcd;
mod plan;
mod redis;
mod show;
mod shrink;
#[cfg(test)]
mod tests;

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

pub use etcd::{EtcdAction, EtcdStore};
pub use plan::{Action, Origin, Pace, Plan, Setup, Step, Store};
pub use redis::{RedisAction, RedisStore};

/// What kind of store the locks of a scenario are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// One Redis node, or a quorum of several.
    Redis,
    /// An etcd cluster.
    Etcd,
}

/// Whether a scenario stays within what the promises are made for: clocks that agree within the drift allowance, servers that keep
/// their data as promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bounds {
    /// It does.
    Kept,
    /// It does not, in this.
    Broken(&'static str),
}

/// A named situation.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name, to ask for it.
    pub name: &'static str,
    /// What happens in it, in one sentence.
    pub about: &'static str,
    /// Which kind of store.
    pub backend: Backend,
    /// Whether the bounds of the promises are kept.
    pub bounds: Bounds,
    /// Rules that cannot be promised here; everything else is.
    pub excused: &'static [Rule],
    /// Draws one run.
    pub(crate) draw: fn(&mut Chance) -> Draft,
    /// Runs it: with this log, and with a trace if it is wanted. All violations are in the outcome, whether promised or not.
    pub(crate) run: fn(&Plan, Keep, bool) -> (Outcome, Trace),
}

/// What a scenario draws.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<Step>,
    /// What cannot be promised with these settings, beside what the scenario says.
    pub(crate) excused: Vec<Rule>,
}

impl Scenario {
    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        scenarios().iter().find(|scenario| scenario.name == name)
    }

    /// Whether this is promised in every run of it. With some settings less is: without fencing tokens nobody can refuse a stale write.
    #[must_use]
    pub fn promises(&self, rule: Rule) -> bool {
        !self.excused.contains(&rule)
    }
}

/// Every scenario there is.
#[must_use]
pub const fn scenarios() -> &'static [Scenario] {
    &ALL
}

const REDIS: &[Scenario] = &[
    redis::CONTENTION,
    redis::PAUSES,
    redis::DRIFT,
    redis::DRIFT_BEYOND,
    redis::SUSPENDED,
    redis::PARTITIONS,
    redis::DATA_LOSS,
    redis::NAMES,
    redis::FAIL_OVER,
    redis::FIRST_SIGHT,
    redis::FORGETFUL,
    redis::PROMOTION,
    redis::CANCEL,
    redis::TURNS,
    redis::SHUTDOWN,
    redis::WAKE,
    redis::CLOCK_JUMPS,
    redis::TOGETHER,
    redis::STRANGERS,
    redis::LATE,
    redis::CALM,
    redis::SLOW,
    redis::STALE,
    redis::REFUSALS,
    redis::LOGINS,
    redis::EVICTION,
    redis::EVERYTHING,
    redis::QUORUM,
    redis::BEYOND,
    redis::BURSTS,
];

const ALL: [Scenario; REDIS.len() + etcd::SCENARIOS.len()] = {
    let mut all = [REDIS[0]; REDIS.len() + etcd::SCENARIOS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < REDIS.len() { REDIS[i] } else { etcd::SCENARIOS[i - REDIS.len()] };
        i += 1;
    }
    all
};

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Broken promises. Empty is what everybody hopes for.
    pub violations: Vec<Violation>,
    /// What was found and cannot be promised in this scenario.
    pub excused: Vec<Violation>,
    /// How often a lock was granted.
    pub grants: u64,
    /// How locks went from one client to another, until something went wrong.
    pub handovers: Handovers,
    /// How often a machine was called: clients and servers.
    pub steps: u64,
    /// The same of the network.
    pub network_steps: u64,
    /// Simulated time.
    pub time: Duration,
    /// A digest of the log and the number of its lines, if it was made.
    pub digest: (u64, u64),
    /// A digest of what the clients sent and what their applications were told, if a log was made. It does not depend on
    /// how anything is named.
    pub fingerprint: u64,
    /// The end of the log, if it was kept.
    pub log: String,
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

/// What a panic said.
fn text_of(panic: &Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| String::from(*text));
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".into())
}

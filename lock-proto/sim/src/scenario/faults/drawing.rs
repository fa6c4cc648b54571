//! Draws the steps of a run: what applications do, and the faults of the scenario.

use alloc::vec::Vec;
use core::time::Duration;

use super::FaultEntry;
use crate::chance::Chance;
use crate::check::Rule;
use crate::direction::Direction;
use crate::scenario::{Action, PlanDraft, QueueAction, Setup, Step, claims, lost};
use lock_proto::{Renew, Wait};

pub(in crate::scenario) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Draws the weights of a run, up to those of its scenario: some runs have many faults of a kind
/// and others none.
pub(in crate::scenario) fn weigh(chance: &mut Chance, faults: &[(FaultEntry, u64)]) -> Vec<(FaultEntry, u64)> {
    faults.iter().map(|(fault, most)| (*fault, chance.below(most + 1))).collect()
}

/// Draws the drift of a clock in either direction, in µs per second.
pub(in crate::scenario) fn drift(chance: &mut Chance, most: u64) -> i32 {
    i32::try_from(chance.below(2 * most + 1)).unwrap_or(0) - i32::try_from(most).unwrap_or(0)
}

/// Draws the service time in one run of three, below `most` µs.
pub(in crate::scenario) fn service(chance: &mut Chance, most: u64) -> Duration {
    let busy = most > 0 && chance.one_in(3);
    Duration::from_micros(if busy { chance.below(most) } else { 0 })
}

/// A run that is being drawn.
pub(in crate::scenario) struct Drawing<'a> {
    pub(in crate::scenario) chance: &'a mut Chance,
    pub(in crate::scenario) setup: Setup,
    pub(in crate::scenario) habits: Habits,
    pub(in crate::scenario) steps: Vec<Step>,
    /// The time of the current step.
    pub(in crate::scenario) at: Duration,
    /// The tag of the latest request.
    pub(in crate::scenario) tag: u32,
}

/// What applications do, and how long faults take.
#[derive(Clone, Debug, Default)]
pub(in crate::scenario) struct Habits {
    /// Names of locks.
    pub(in crate::scenario) names: &'static [&'static str],
    /// Maximum durations of faults in ms: mostly short, sometimes longer than any lock.
    pub(in crate::scenario) spans: [u64; 3],
    /// Minimum time in ms for which replies on a replaced connection are delayed, and how much
    /// longer it may be: longer than the request timeout.
    pub(in crate::scenario) stall: (u64, u64),
    /// How often a request is dropped soon, on Redis.
    pub(in crate::scenario) drops: u64,
    /// No locks are requested, only elections.
    pub(in crate::scenario) elections_only: bool,
    /// Calls may be executed after the client has given them up.
    pub(in crate::scenario) late: bool,
    /// Most locks have a TTL of their own.
    pub(in crate::scenario) own_ttls: bool,
}

impl<'a> Drawing<'a> {
    pub(in crate::scenario) const fn new(chance: &'a mut Chance, setup: Setup, habits: Habits) -> Self {
        Self { chance, setup, habits, steps: Vec::new(), at: Duration::ZERO, tag: 0 }
    }

    /// Draws up to `count` faults and requests, up to `gap` ms apart, by their weights.
    pub(in crate::scenario) fn draw(&mut self, count: u64, gap: u64, weights: &[(FaultEntry, u64)]) {
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        for _ in 0..count {
            if self.chance.is_exhausted() {
                break;
            }
            self.at += self.chance.millis(gap);
            let mut roll = self.chance.below(total);
            let drawn = weights.iter().find(|(_, weight)| match roll.checked_sub(*weight) {
                Some(rest) => {
                    roll = rest;
                    false
                }
                None => true,
            });
            if let Some((fault, _)) = drawn {
                (fault.apply)(self);
            }
        }
    }

    /// Ends the drawing. What applications do besides is drawn last, so that the rest of the run
    /// does not depend on it.
    pub(in crate::scenario) fn finish(self, excused: Vec<Rule>) -> PlanDraft {
        let Self { chance, setup, mut steps, .. } = self;
        let ttl = setup.store.ttl();
        claims::sometimes_late(chance, &mut steps, ttl);
        lost::sometimes_before_shutdown(chance, &mut steps, ttl);
        PlanDraft { setup, steps, excused }
    }

    pub(in crate::scenario) fn push(&mut self, after: Duration, action: Action) {
        self.steps.push(Step { at: self.at + after, action });
    }

    pub(in crate::scenario) fn now(&mut self, action: Action) {
        self.push(Duration::ZERO, action);
    }

    /// Pushes a fault that ends after a random time.
    pub(in crate::scenario) fn for_a_while(&mut self, begins: Action, ends: Action) {
        self.now(begins);
        let after = self.span();
        self.push(after, ends);
    }

    pub(in crate::scenario) fn client(&mut self) -> usize {
        self.chance.index(self.setup.clients.len())
    }

    pub(in crate::scenario) fn node(&mut self) -> usize {
        self.chance.index(self.setup.nodes.len())
    }

    pub(in crate::scenario) fn name(&mut self) -> &'static str {
        self.chance.pick(self.habits.names)
    }

    pub(in crate::scenario) fn direction(&mut self) -> Direction {
        self.chance.pick(&Direction::BOTH)
    }

    /// Draws the duration of a fault: mostly short, sometimes longer than any lock.
    pub(in crate::scenario) fn span(&mut self) -> Duration {
        let most = self.chance.pick(&self.habits.spans);
        self.chance.millis(most)
    }

    pub(in crate::scenario) const fn next_tag(&mut self) -> u32 {
        self.tag += 1;
        self.tag
    }

    pub(in crate::scenario) fn queue(&mut self, after: Duration, action: QueueAction) {
        self.push(after, Action::Queue(action));
    }

    /// Pushes a request for a lock that is claimed at once, and renewed. `None`: it is not released.
    pub(in crate::scenario) fn acquire(
        &mut self,
        after: Duration,
        client: usize,
        name: &'static str,
        wait: Wait,
        hold: Option<Duration>,
    ) {
        let (tag, ttl, renew, claim) = (self.next_tag(), None, Renew::Auto, Some(Duration::ZERO));
        let write_every = None;
        self.push(after, Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every });
    }

    /// For a while the latency of a client to all nodes is at least `least`.
    pub(in crate::scenario) fn crawl(&mut self, client: usize, direction: Direction, least: Duration) {
        let (span, usual) = (self.span(), self.setup.latency.clone());
        for node in 0..self.setup.nodes.len() {
            self.now(Action::Slow { client, node, direction, latency: least..least + ms(50) });
            self.push(span, Action::Slow { client, node, direction, latency: usual.clone() });
        }
    }
}

//! Shrinks failing plans (Zeller, Hildebrandt, "Simplifying and isolating failure-inducing input",
//! 2002).

use core::time::Duration;

use super::{Pace, Plan};

const BUDGET: usize = 3_000;

impl Plan {
    /// Returns the smallest failing plan found: fewer steps and clients, simpler clocks and
    /// latencies.
    ///
    /// The number of calls of `fails` is bounded. A plan that does not fail is returned unchanged.
    #[must_use]
    pub fn shrink(&self, fails: impl FnMut(&Self) -> bool) -> Self {
        let mut shrinker = Shrinker { best: self.clone(), fails, left: BUDGET };
        loop {
            let before = shrinker.left;
            let smaller = shrinker.fewer_steps() | shrinker.fewer_clients() | shrinker.simpler_setup();
            if !smaller || shrinker.left == 0 || shrinker.left == before {
                return shrinker.best;
            }
        }
    }
}

struct Shrinker<F> {
    best: Plan,
    fails: F,
    left: usize,
}

impl<F: FnMut(&Plan) -> bool> Shrinker<F> {
    fn take(&mut self, mut smaller: Plan) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        smaller.changed = true;
        let failed = (self.fails)(&smaller);
        if failed {
            self.best = smaller;
        }
        failed
    }

    /// Removes runs of steps, long ones first.
    fn fewer_steps(&mut self) -> bool {
        let before = self.best.len();
        let mut chunk = before.next_power_of_two();
        while chunk > 0 {
            // From the end: late steps are least likely to matter.
            let mut end = self.best.len();
            while end > 0 {
                let start = end.saturating_sub(chunk);
                let smaller = self.best.without(start..end);
                self.take(smaller);
                end = start;
            }
            chunk /= 2;
        }
        self.best.len() < before
    }

    /// Removes clients one by one, with all their steps.
    fn fewer_clients(&mut self) -> bool {
        let mut any = false;
        for gone in (0..self.best.setup.clients.len()).rev() {
            if self.best.setup.clients.len() == 1 {
                break;
            }
            let mut smaller = self.best.clone();
            smaller.setup.clients.remove(gone);
            smaller.steps.retain(|step| step.action.client() != Some(gone));
            for step in &mut smaller.steps {
                if let Some(client) = step.action.client_mut().filter(|client| **client > gone) {
                    *client -= 1;
                }
            }
            any |= self.take(smaller);
        }
        any
    }

    /// Tries clocks without drift and a single latency.
    fn simpler_setup(&mut self) -> bool {
        let mut any = false;
        for client in [true, false] {
            let paces = |plan: &Plan| if client { plan.setup.clients.len() } else { plan.setup.nodes.len() };
            for i in 0..paces(&self.best) {
                let mut smaller = self.best.clone();
                let list = if client { &mut smaller.setup.clients } else { &mut smaller.setup.nodes };
                if list[i] != Pace::default() {
                    list[i] = Pace::default();
                    any |= self.take(smaller);
                }
            }
        }
        let quick = Duration::from_millis(1)..Duration::from_millis(1);
        if self.best.setup.latency != quick {
            let mut smaller = self.best.clone();
            smaller.setup.latency = quick;
            any |= self.take(smaller);
        }
        if !self.best.setup.service.is_zero() {
            let mut smaller = self.best.clone();
            smaller.setup.service = Duration::ZERO;
            any |= self.take(smaller);
        }
        any
    }
}

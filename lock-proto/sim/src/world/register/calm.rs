//! The end of all faults, and the conditions that must hold then.
// S2

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{RegisterClient, Registers};
use crate::check::Rule;
use crate::world::World;

impl<C: RegisterClient> World<Registers<C>> {
    /// The store runs with its data, fails no request and is not behind.
    pub(super) fn calm_store(&mut self) {
        self.resume_store();
        self.start_store();
        self.delay_reads(Duration::ZERO);
        self.fail_requests(false);
        self.lose_hints(false);
        self.heal_all();
    }

    /// Runs the whole second phase and reports every violation.
    ///
    /// After [`calm`](Self::calm) and [`wind_down`](Self::wind_down) every waiter must be served, then
    /// nobody may hold a record, and clients may send nothing. Then all clients are shut down. `ttl` is
    /// the longest TTL.
    ///
    /// If prompt grants were required, locks are handed over again before all that is checked.
    pub fn finish(&mut self, ttl: Duration) {
        self.calm();
        let served = ttl * 4 + Duration::from_secs(60);
        self.check_answers(served);
        self.wind_locks_down();
        if !self.run_until(served, Self::is_idle) {
            return self.report(Rule::Liveness, format!("not over after {served:?}: {}", self.unfinished()));
        }
        // The record of a dead client becomes old.
        let rest = ttl * 3 + Duration::from_secs(30);
        let is_free = |w: &Self| w.store.ledger.held(w.now).is_none();
        self.run_until(rest, is_free);
        self.take_over(rest);
        self.hand_over_again(ttl * 2, is_free);
        self.run_until(rest, is_free);
        if let Some(key) = self.store.ledger.held(self.now) {
            let text = format!("the record of {} is left after {rest:?}", key.escape_ascii());
            return self.report(Rule::Leftover, text);
        }
        self.check_observers(rest);
        self.close_queries();
        self.run_for(rest);
        self.check_idle(ttl);
        self.shut_clients_down(Duration::from_secs(30));
        if !self.run_until(Duration::from_secs(60), Self::is_quiet) {
            self.report(Rule::Leftover, format!("no rest at the end: {}", self.timers()));
        }
    }

    /// A client takes each lock once: the record of a dead holder must be seen for a TTL.
    // RG1
    fn take_over(&mut self, rest: Duration) {
        let Some(client) = self.alive().first().copied() else { return };
        for want in self.contended_locks() {
            let lock = self.acquire_for(client, want, Duration::ZERO);
            if !self.run_until(rest, |w| w.is_over(client, lock)) {
                return self.report(Rule::Liveness, format!("not taken over: {}", self.unfinished()));
            }
        }
    }

    /// Checks that idle clients send nothing, and watch nothing.
    fn check_idle(&mut self, ttl: Duration) {
        let sent = |w: &Self| (0..w.clients.len()).map(|client| w.sent(client)).collect::<Vec<_>>();
        let before = sent(self);
        self.run_for(ttl * 4);
        if before != sent(self) {
            self.report(Rule::Bounded, format!("clients with nothing to do send requests: {:?}", sent(self)));
        }
        if !self.store.watches.is_empty() {
            self.report(Rule::Leftover, format!("{} keys are still watched", self.store.watches.len()));
        }
    }
}

//! The end of all faults, and the conditions that must hold then.
// S2

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::queue_log::split_number;
use super::{Zookeeper, ZookeeperClient};
use crate::check::Rule;
use crate::trace::ProcessState;
use crate::world::World;
use crate::world::calm::LONGEST_RECHECK;
use crate::zookeeper::Condition;

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    /// Restarts and reconnects all members, which then follow the leader without delay, and refuse
    /// nothing.
    pub(super) fn calm_members(&mut self) {
        for member in 0..self.hosts.len() {
            match self.hosts[member].state {
                ProcessState::Running => {}
                ProcessState::Paused => self.resume_member(member),
                ProcessState::Down => self.start_member(member),
            }
            self.rejoin_member(member);
            self.delay_member(member, Duration::ZERO);
        }
        for condition in [Condition::Throttled, Condition::NoDelete] {
            self.set_condition(condition, false);
        }
        self.heal_all();
    }

    /// Runs the whole second phase and reports every violation.
    ///
    /// After [`calm`](Self::calm) and [`wind_down`](Self::wind_down) every waiter must be served,
    /// then every contender's node and every watch must be gone, and each client may only keep its
    /// session alive. Then all clients are shut down, and no session, connection or timer may be
    /// left. `ttl` is the longest session timeout.
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
        // The session of a dead client ends.
        let rest = ttl * 3 + Duration::from_secs(30);
        let is_empty = |w: &Self| w.ephemerals().is_empty();
        if self.run_until(rest, is_empty) {
            // A new connection of an idle session would end them.
            self.check_watches(rest);
            self.hand_over_again(ttl * 2, is_empty);
        }
        if !self.run_until(rest, is_empty) {
            return self.report(Rule::Leftover, format!("left after {rest:?}: {}", self.ephemerals().join(", ")));
        }
        self.check_watches(rest);
        let recheck = self.clients.iter().map(|process| process.own.recheck).max().unwrap_or_default();
        self.check_observers(rest + recheck.min(LONGEST_RECHECK));
        self.close_queries();
        self.check_idle_traffic(ttl);
        self.shut_down_all(ttl);
    }

    /// Checks that nobody watches the node of a contender once all are gone. Idle connections are
    /// closed a while later.
    // ZK3
    fn check_watches(&mut self, rest: Duration) {
        const SOON: Duration = Duration::from_secs(1);
        // A member that looks for a leader has not applied the end of the last node.
        let members = self.hosts.len();
        self.run_until(rest, |w| (0..members).all(|member| w.store.ensemble.is_serving(member)));
        self.run_until(SOON, |w| w.left_watch().is_none());
        if let Some(path) = self.left_watch() {
            let text = format!("{path} is still watched {SOON:?} after the last node");
            self.report(Rule::Leftover, text);
        }
    }

    fn left_watch(&self) -> Option<&str> {
        let is_contender = |path: &&str| path.rsplit_once('/').is_some_and(|(_, name)| split_number(name).is_some());
        self.store.ensemble.watched().find(is_contender)
    }

    /// Checks that an idle client only keeps its session alive: by three pings in two ticks, and a
    /// few requests for each connection.
    fn check_idle_traffic(&mut self, ttl: Duration) {
        let before: Vec<u64> = self.clients.iter().map(|process| process.own.sent).collect();
        self.run_for(ttl * 4);
        for (client, before) in before.into_iter().enumerate() {
            let sent = self.clients[client].own.sent - before;
            let ticks = (ttl * 4).as_millis() / self.clients[client].own.tick.as_millis().max(1) + 1;
            if u128::from(sent) > ticks * 8 / 5 + 20 {
                self.report(Rule::Bounded, format!("client {client} sent {sent} requests with nothing to do"));
            }
        }
        for left in self.ephemerals() {
            self.report(Rule::Leftover, format!("{left} has appeared"));
        }
    }

    fn shut_down_all(&mut self, ttl: Duration) {
        self.shut_clients_down(Duration::from_secs(30));
        // The session of a dead process expires.
        self.run_until(ttl * 2 + Duration::from_secs(5), |w| w.store.ensemble.sessions().is_empty());
        let (ephemerals, sessions) = (self.ephemerals(), self.store.ensemble.sessions().len());
        let (connections, watches) = (self.store.ensemble.connection_count(), self.store.ensemble.watch_count());
        if !ephemerals.is_empty() || sessions + connections + watches > 0 {
            let text = format!(
                "left at the end: {ephemerals:?}, {sessions} sessions, {connections} connections, {watches} watches"
            );
            self.report(Rule::Leftover, text);
        }
        // Empty containers are deleted after a while.
        if !self.run_until(Duration::from_secs(500), Self::is_quiet) {
            let (timers, ensemble) = (self.timers(), self.store.ensemble.next_deadline());
            let text = format!("no rest at the end: {timers}, the servers' {ensemble:?}");
            self.report(Rule::Leftover, text);
        }
    }
}

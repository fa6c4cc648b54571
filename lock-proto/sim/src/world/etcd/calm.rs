//! The end of all faults, and the conditions that must hold then.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::builder::LATE;
use super::{EtcdClient, EtcdServers};
use crate::check::Rule;
use crate::etcd::Condition;
use crate::trace::ProcessState;
use crate::world::World;
use crate::world::calm::LONGEST_RECHECK;

/// Value of a key that no lock created.
const UNRELATED: &str = "something else";

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Restarts and reconnects all members, ends refusals and partitions, and limits call delays.
    pub(super) fn calm_members(&mut self) {
        // A client keeps replacing a connection with late replies, so the world would not settle.
        self.store.late = self.store.late.min(LATE);
        for member in 0..self.hosts.len() {
            match self.hosts[member].state {
                ProcessState::Running => {}
                ProcessState::Paused => self.resume_member(member),
                ProcessState::Down => self.start_member(member),
            }
            self.rejoin_member(member);
            if self.store.cluster.loses_events(member) {
                self.keep_events(member);
            }
        }
        self.restore_quorum();
        self.delete_replaced();
        for condition in
            [Condition::TooManyRequests, Condition::NoSpace, Condition::StaleReads, Condition::RevokedKeepAlives]
        {
            self.change_condition(condition, false);
        }
        self.heal_all();
    }

    /// Runs the whole second phase and reports every violation.
    ///
    /// After [`calm`](Self::calm) and [`wind_down`](Self::wind_down) every waiter must be served,
    /// then every key must be deleted, and each client may only send keep-alives. Then all clients
    /// are shut down, and no key, lease, connection or timer may be left. `ttl` is the longest TTL
    /// that any lease was requested with.
    ///
    /// If prompt grants were required, locks are handed over again before all that is checked.
    pub fn finish(&mut self, ttl: Duration) {
        self.calm();
        let served = ttl * 3 + Duration::from_secs(30);
        self.check_answers(served);
        self.wind_locks_down();
        if !self.run_until(served, Self::is_idle) {
            return self.report(Rule::Liveness, format!("not over after {served:?}: {}", self.unfinished()));
        }
        // A create without a reply is watched for at least one more TTL.
        let rest = ttl * 3 + Duration::from_secs(10);
        let is_empty = |w: &Self| w.remaining_queue_keys().next().is_none();
        if self.run_until(rest, is_empty) {
            self.hand_over_again(ttl * 2, is_empty);
        }
        if !self.run_until(rest, is_empty) {
            let left: Vec<_> = self.remaining_queue_keys().collect();
            return self.report(Rule::Leftover, format!("left after {rest:?}: {}", left.join(", ")));
        }
        let recheck = self.clients.iter().map(|process| process.own.config.store.recheck).max().unwrap_or_default();
        self.check_observers(rest + recheck.min(LONGEST_RECHECK));
        self.close_queries();
        self.check_idle_traffic(ttl);
        self.shut_down_all(ttl);
    }

    fn remaining_queue_keys(&self) -> impl Iterator<Item = String> {
        self.keys().into_iter().filter(|key| key != UNRELATED)
    }

    /// Checks that an idle client only keeps its lease and connection alive.
    fn check_idle_traffic(&mut self, ttl: Duration) {
        // A key whose delete timed out is still watched, even if it is gone.
        self.run_for(ttl);
        let before: Vec<u64> = self.clients.iter().map(|process| process.own.sent).collect();
        self.run_for(ttl * 10);
        for (client, before) in before.into_iter().enumerate() {
            let sent = self.clients[client].own.sent - before;
            // Three keep-alives per TTL, less jitter and drift, plus the upkeep of the connection.
            // A client whose request timeout is below the round trip reconnects for each of them,
            // with a login and its watches. While the reply to a keep-alive is late, it sends a small
            // read for each half of a request timeout.
            let config = &self.clients[client].own.config;
            let session_ttl = config.store.session_ttl.max(Duration::from_secs(1)).as_millis();
            let each = if config.request_timeout < self.network.round_trip() { 12 } else { 4 };
            let late = self.store.cluster.answers_keep_alives_per_lease();
            let reads = if late { 2 * session_ttl / config.request_timeout.as_millis().max(1) } else { 0 };
            let (each, lifetimes) = (each + reads, (ttl * 10).as_millis() / session_ttl + 1);
            if u128::from(sent) > lifetimes * each + 20 {
                self.report(Rule::Bounded, format!("client {client} sent {sent} messages with nothing to do"));
            }
        }
        for left in self.remaining_queue_keys().collect::<Vec<_>>() {
            self.report(Rule::Leftover, format!("{left} has appeared"));
        }
    }

    fn shut_down_all(&mut self, ttl: Duration) {
        self.shut_clients_down(Duration::from_secs(30));
        self.on_cluster("cleared", |cluster, now| cluster.delete(now, UNRELATED));
        // The lease of a dead process, or of a grant that was executed late, expires.
        self.run_until(ttl + Duration::from_secs(5), |w| w.store.cluster.leases().is_empty());
        if !self.run_until(Duration::from_secs(60), Self::is_quiet) {
            let (timers, cluster) = (self.timers(), self.store.cluster.next_deadline());
            let text = format!("no rest at the end: {timers}, the cluster's timer {cluster:?}");
            self.report(Rule::Leftover, text);
        }
        let (keys, leases) = (self.keys(), self.store.cluster.leases().len());
        let (connections, streams) = (self.store.cluster.connection_count(), self.store.cluster.stream_count());
        if !keys.is_empty() || leases + connections + streams > 0 {
            let text =
                format!("left at the end: {keys:?}, {leases} leases, {connections} connections, {streams} streams");
            self.report(Rule::Leftover, text);
        }
    }
}

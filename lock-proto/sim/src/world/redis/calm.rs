//! The end of all faults, and the conditions that must hold then.
// S2

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{RedisClient, RedisServers};
use crate::check::Rule;
use crate::redis::Condition;
use crate::trace::ProcessState;
use crate::world::World;
use crate::world::process::Input;
use lock_proto::LockId;
use lock_proto::{Acquire, Wait};

const CONDITIONS: [Condition; 4] =
    [Condition::OutOfMemory, Condition::ReadOnly, Condition::DiskError, Condition::Loading];

impl<C: RedisClient> World<RedisServers<C>> {
    /// Restarts all nodes with their data, ends refusals and partitions, and restores addresses.
    pub(super) fn calm_nodes(&mut self) {
        for node in 0..self.hosts.len() {
            match self.hosts[node].state {
                ProcessState::Running => {}
                ProcessState::Paused => self.resume_node(node),
                ProcessState::Down => self.restart_node(node, true),
            }
            // Idle clients connect again, and never come to rest.
            self.store.nodes[node].node.set_login_limit(self.now, None);
            for condition in CONDITIONS {
                self.change_condition(node, condition, false);
            }
        }
        self.heal_all();
        for (client, node) in self.store.redirects.keys().copied().collect::<Vec<_>>() {
            self.redirect(client, node, node);
        }
    }

    /// Runs the whole second phase and reports every violation.
    ///
    /// After [`calm`](Self::calm) and [`wind_down`](Self::wind_down) every waiter must be served
    /// within `served`. If prompt grants were required, locks are then handed over again.
    /// Everything must settle within `rest`. After another `lifetimes`, only the fence counter,
    /// which has no TTL, may be left. If clients close idle connections, none is open. In the end
    /// all clients are shut down.
    pub fn finish(&mut self, served: Duration, rest: Duration, lifetimes: Duration) {
        self.calm();
        self.check_answers(served);
        self.wind_down();
        if !self.run_until(served, Self::is_idle) && !self.halted {
            return self.report(Rule::Liveness, format!("not over after {served:?}: {}", self.unfinished()));
        }
        if self.hosts.len() > 1 && self.expects_prompt() {
            self.meet_again(lifetimes);
        }
        self.hand_over_again(lifetimes, |w| !w.is_any_locked());
        if !self.run_until(rest, Self::is_quiet) && !self.halted {
            return self.report(Rule::Leftover, format!("no rest after {rest:?}: {}", self.timers()));
        }
        self.run_for(lifetimes);
        for node in 0..self.hosts.len() {
            for key in self.keys(node) {
                let expires = self.store.nodes[node].node.pttl(self.now, &key).is_some();
                if !self.clients.iter().any(|process| process.machine.may_leave(key.as_bytes(), expires)) {
                    self.report(Rule::Leftover, format!("{key} stays on node {node}"));
                }
            }
            if self.store.nodes[node].node.blocked_count() > 0 {
                self.report(Rule::Leftover, format!("somebody still waits on node {node}"));
            }
            let connections = self.store.nodes[node].node.connection_count();
            if C::CLOSES_IDLE && connections > 0 {
                self.report(Rule::Leftover, format!("{connections} connections to node {node} stay open"));
            }
        }
        self.shut_clients_down(Duration::from_secs(30));
    }

    /// Connects every client to every node of a quorum. A client does not trust a restarted node
    /// for a while after it has learned of that.
    // Q7
    fn meet_again(&mut self, quarantine: Duration) {
        let Some(ttl) = self.contended_locks().iter().find_map(|want| want.ttl) else { return };
        for pause in [quarantine, Duration::ZERO] {
            for client in self.alive() {
                let want = Acquire::new(format!("meet {client}")).ttl(ttl).wait(Wait::Try);
                self.acquire_for(client, want, Duration::ZERO);
            }
            self.run_for(pause);
        }
    }

    /// Returns whether any node has the key of a lock.
    fn is_any_locked(&self) -> bool {
        (0..self.hosts.len()).any(|node| self.store.names.iter().any(|name| self.get(node, name).is_some()))
    }

    /// Returns whether a node is dead.
    #[must_use]
    pub fn is_down(&self, node: usize) -> bool {
        self.hosts[node].state == ProcessState::Down
    }

    /// Makes the application release a held or lost lock as soon as its process runs.
    pub fn release_when_running(&mut self, client: usize, lock: LockId) {
        self.deliver_input(client, Input::Release(lock));
    }
}

//! The end of all faults, and what must be true then (requirement S2).

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Redis, RedisClient};
use crate::id::LockId;
use crate::sim::check::{Rule, Stage};
use crate::sim::redis::Condition;
use crate::sim::trace::State;
use crate::sim::world::World;
use crate::sim::world::process::Fact;

const CONDITIONS: [Condition; 4] =
    [Condition::OutOfMemory, Condition::ReadOnly, Condition::DiskError, Condition::Loading];

/// The end.
impl<C: RedisClient> World<Redis<C>> {
    /// Nodes run with their data and refuse nothing, addresses lead where they should, nothing is
    /// cut.
    pub(super) fn calm_nodes(&mut self) {
        for node in 0..self.hosts.len() {
            match self.hosts[node].state {
                State::Running => {}
                State::Paused => self.resume_node(node),
                State::Down => self.restart_node(node, true),
            }
            for condition in CONDITIONS {
                self.change_condition(node, condition, false);
            }
        }
        self.heal_all();
        for (client, node) in self.store.leads.keys().copied().collect::<Vec<_>>() {
            self.redirect(client, node, node);
        }
    }

    /// From now on every application wants to come to an end: what is held or lost is given back,
    /// what is offered is taken, and whatever is granted later is given back in a moment.
    pub fn wind_down(&mut self) {
        self.wind_locks_down();
    }

    /// Whether nobody waits for anything any more: every acquisition is over, every shutdown done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        (0..self.clients.len())
            .all(|client| self.checker.live(client).next().is_none() && !self.checker.is_stopping(client))
    }

    /// The whole second phase: after [`calm`](Self::calm) and [`wind_down`](Self::wind_down)
    /// everybody is served within `served`, then everything comes to rest within `rest`, and
    /// `lives` later no key is left but those that promise to stay: the fence counter. What is not
    /// so is reported.
    pub fn come_to_an_end(&mut self, served: Duration, rest: Duration, lives: Duration) {
        self.calm();
        self.wind_down();
        if !self.run_until(served, Self::is_idle) && !self.halted {
            let all = self.clients.iter().enumerate().flat_map(|(client, process)| {
                process.records.iter().map(move |(lock, record)| (client, *lock, record))
            });
            let waiting = all.filter(|(client, lock, _)| self.checker.stage(*client, *lock) != Some(Stage::Over));
            let texts: Vec<_> = waiting
                .map(|(client, lock, record)| {
                    let stage = self.checker.stage(client, lock);
                    format!("client {client} {lock} ({}) is {stage:?}", record.shown())
                })
                .collect();
            return self.report(Rule::Liveness, format!("not over after {served:?}: {}", texts.join(", ")));
        }
        if !self.run_until(rest, Self::is_quiet) && !self.halted {
            return self.report(Rule::Leftover, format!("no rest after {rest:?}: {:?}", self.timers()));
        }
        self.run_for(lives);
        for node in 0..self.hosts.len() {
            for key in self.keys(node) {
                let expires = self.store.nodes[node].node.pttl(self.now, &key).is_some();
                // Signals for waiters, and the memory of who waited, end by themselves.
                let known = key.contains("lock-proto:") && (expires || key.ends_with("lock-proto:fence"));
                if !known {
                    self.report(Rule::Leftover, format!("{key} stays on node {node}"));
                }
            }
            if self.store.nodes[node].node.blocked_count() > 0 {
                self.report(Rule::Leftover, format!("somebody still waits on node {node}"));
            }
        }
    }

    /// Whether a node is dead.
    #[must_use]
    pub fn is_down(&self, node: usize) -> bool {
        self.hosts[node].state == State::Down
    }

    /// The application of a client gives a lock back as soon as its process runs, if it is held or
    /// lost then.
    pub fn let_go(&mut self, client: usize, lock: LockId) {
        self.tell_process(client, Fact::Release(lock));
    }
}

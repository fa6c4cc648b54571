//! The end of all faults, and what must be true then (requirement S2).

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::trace::State;
use super::{Planned, World};
use crate::id::LockId;
use crate::sim::check::{Rule, Stage};
use crate::sim::redis::Condition;
use crate::sim::world::process::{Chore, Fact};

const CONDITIONS: [Condition; 4] =
    [Condition::OutOfMemory, Condition::ReadOnly, Condition::DiskError, Condition::Loading];

/// How long an application holds a lock once there is nothing to do but to come to an end.
const SHORT: Duration = Duration::from_millis(10);

impl World {
    /// Ends every fault: what is cut is healed, addresses lead where they should, what is stopped goes on, what is dead starts with its data (but for clients, which stay
    /// dead), nodes refuse nothing, packets travel as fast as at first.
    pub fn calm(&mut self) {
        self.note("calm");
        self.recorder.calm(self.now);
        self.network.quick();
        for node in 0..self.nodes.len() {
            match self.nodes[node].state {
                State::Running => {}
                State::Paused => self.resume_node(node),
                State::Down => self.restart_node(node, true),
            }
            for condition in CONDITIONS {
                self.change_condition(node, condition, false);
            }
        }
        self.heal_all();
        for (client, node) in self.leads.keys().copied().collect::<Vec<_>>() {
            self.redirect(client, node, node);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].state == State::Paused {
                self.resume_client(client);
            }
        }
    }

    /// From now on every application wants to come to an end: what is held or lost is given back, what is offered is taken, and
    /// whatever is granted later is given back in a moment.
    pub fn wind_down(&mut self) {
        for client in 0..self.clients.len() {
            for record in self.clients[client].records.values_mut() {
                (record.claim, record.hold) = (true, Some(record.hold.map_or(SHORT, |hold| hold.min(SHORT))));
            }
            let live: Vec<(LockId, Stage)> = self.checker.live(client).collect();
            for (lock, stage) in live {
                match stage {
                    Stage::Waiting | Stage::Releasing | Stage::Over => continue,
                    Stage::Offered => self.claim(client, lock),
                    Stage::Held | Stage::Lost => {}
                }
                self.agenda.plan(self.now + SHORT, Planned::Chore(client, Chore::Release(lock)));
            }
        }
    }

    /// Whether nobody waits for anything any more: every acquisition is over, every shutdown done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        (0..self.clients.len())
            .all(|client| self.checker.live(client).next().is_none() && !self.checker.is_stopping(client))
    }

    /// Whether nothing will ever happen again by itself: no timer runs, nothing is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.network.is_quiet()
            && self.agenda.is_empty()
            && self.clients.iter().all(|process| process.deadline().is_none())
            && self.nodes.iter().all(|server| server.deadline().is_none())
    }

    /// The whole second phase: after [`calm`](Self::calm) and [`wind_down`](Self::wind_down) everybody is served within `served`, then
    /// everything comes to rest within `rest`, and `lives` later no key is left but those that promise to stay: the fence counter. What
    /// is not so is reported.
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
            let timers: Vec<_> = self.clients.iter().map(|process| process.machine.next_deadline_reason()).collect();
            return self.report(Rule::Leftover, format!("no rest after {rest:?}: {timers:?}"));
        }
        self.run_for(lives);
        for node in 0..self.nodes.len() {
            for key in self.keys(node) {
                let expires = self.nodes[node].node.pttl(self.now, &key).is_some();
                // Signals for waiters, and the memory of who waited, end by themselves.
                let known = key.contains("lock-proto:") && (expires || key.ends_with("lock-proto:fence"));
                if !known {
                    self.report(Rule::Leftover, format!("{key} stays on node {node}"));
                }
            }
            if self.nodes[node].node.blocked_count() > 0 {
                self.report(Rule::Leftover, format!("somebody still waits on node {node}"));
            }
        }
    }

    /// Whether a node is dead.
    #[must_use]
    pub fn is_down(&self, node: usize) -> bool {
        self.nodes[node].state == State::Down
    }

    /// The application of a client gives a lock back as soon as its process runs, if it is held or lost then.
    pub fn let_go(&mut self, client: usize, lock: LockId) {
        self.tell_process(client, Fact::Chore(Chore::Release(lock)));
    }
}

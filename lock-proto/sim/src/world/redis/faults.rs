//! Faults of Redis nodes.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use core::time::Duration;

use super::{RedisClient, RedisServers};
use crate::direction::Direction;
use crate::network::Packet;
use crate::redis::{Condition, Node};
use crate::trace::{Lane, ProcessState, TraceEvent};
use crate::world::World;
use crate::world::check::signed;
use lock_proto::Fault;

impl<C: RedisClient> World<RedisServers<C>> {
    /// Pauses the server process, as by `SIGSTOP`. Its kernel still accepts connections and data.
    pub fn pause_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} paused"));
        self.note_fault();
        if self.hosts[node].state == ProcessState::Running {
            self.set_host(node, ProcessState::Paused);
        }
    }

    /// Resumes the server process. It first executes what has arrived, even on closed connections.
    pub fn resume_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} resumed"));
        if self.hosts[node].state != ProcessState::Paused {
            return;
        }
        self.set_host(node, ProcessState::Running);
        while let Some((id, packet)) = self.hosts[node].inbox.pop_front() {
            self.serve(id, node, packet);
        }
        self.wake_node(node);
        // Several commands at once: the model sees only the result.
        self.disturb_model();
    }

    /// Kills the server process, as by `kill -9`. Its connections end, new ones are refused.
    pub fn kill_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} killed"));
        self.note_fault();
        self.set_host(node, ProcessState::Down);
        self.hosts[node].clear();
        for id in self.network.of_node(node) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            let why = if self.rng.one_in(2) { Fault::Closed } else { Fault::Reset };
            self.send(id, Direction::ToClient, Packet::Close(why));
        }
    }

    /// Restarts the server process with its data or without.
    pub fn restart_node(&mut self, node: usize, keep_data: bool) {
        if self.hosts[node].state != ProcessState::Down {
            self.kill_node(node);
        }
        self.journal
            .write(self.now, format_args!("n{node} started, {}", if keep_data { "with its data" } else { "empty" }));
        self.store.nodes[node].node.restart(self.now, keep_data);
        if !keep_data {
            self.store.truth.lost_data(self.now, node);
        }
        while let Some(id) = self.store.nodes[node].node.poll_closed() {
            self.store.nodes[node].node.handle_disconnected(self.now, id);
        }
        self.store.nodes[node].update_deadline();
        self.set_host(node, ProcessState::Running);
        self.data_changed(node);
        self.update_model();
    }

    /// Stops replication to the replica of this node. The primary still confirms writes:
    /// replication is asynchronous.
    pub fn stop_replication(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} its replica stays behind"));
        self.note_fault();
        self.annotate(Some(Lane::Node(node)), || "replication stops".into());
        self.store.nodes[node].replica = Some(Box::new(self.store.nodes[node].node.clone()));
    }

    /// Kills the node and promotes its replica at the same address. The replica has the writes up
    /// to [`stop_replication`](Self::stop_replication), or all of them.
    pub fn promote(&mut self, node: usize) {
        self.kill_node(node);
        if let Some(mut replica) = self.store.nodes[node].replica.take() {
            replica.succeed(&self.store.nodes[node].node);
            self.store.truth.lost_data(self.now, node);
            self.store.nodes[node].node = *replica;
        }
        self.annotate(Some(Lane::Node(node)), || "its replica is promoted".into());
        self.restart_node(node, true);
    }

    /// Like [`promote`](Self::promote), but the replica reports an uptime of an hour.
    pub fn fail_over(&mut self, node: usize) {
        self.promote(node);
        self.store.nodes[node].node.set_uptime(self.now, Duration::from_secs(3_600));
    }

    /// Makes the address of `node` lead this client to node `to`, and resets its connections.
    pub fn redirect(&mut self, client: usize, node: usize, to: usize) {
        self.journal.write(self.now, format_args!("the address of n{node} leads c{client} to n{to}"));
        self.note_fault();
        self.annotate(Some(Lane::Client(client)), || format!("the address of node {node} leads it to node {to}"));
        if to == node {
            self.store.redirects.remove(&(client, node));
        } else {
            self.store.redirects.insert((client, node), to);
        }
        self.reset(client, |link| link.conn.node().index() == node);
    }

    /// Sets the wall clock of a node and of its replica forward by `by`, so that keys expire early.
    pub fn jump_node_clock_forward(&mut self, node: usize, by: Duration) {
        self.journal.write(self.now, format_args!("n{node} clock set forward by {by:?}"));
        self.note_fault();
        self.recorder.note(self.now, || TraceEvent::Clock { lane: Lane::Node(node), by: signed(by) });
        for node in self.store.nodes[node].with_replica() {
            node.jump_forward(self.now, by);
        }
        self.store.nodes[node].update_deadline();
        self.disturb_model();
    }

    /// Sets the wall clock of a node and of its replica back by `by`, so that keys live longer.
    pub fn jump_node_clock_back(&mut self, node: usize, by: Duration) {
        self.journal.write(self.now, format_args!("n{node} clock set back by {by:?}"));
        self.note_fault();
        self.recorder.note(self.now, || TraceEvent::Clock { lane: Lane::Node(node), by: -signed(by) });
        for node in self.store.nodes[node].with_replica() {
            node.jump_back(self.now, by);
        }
        self.checker.clock_set_back(node, by);
        self.store.nodes[node].update_deadline();
        self.disturb_model();
    }

    /// Begins or ends a condition in which a node refuses commands.
    pub fn set_condition(&mut self, node: usize, condition: Condition, on: bool) {
        self.note_fault();
        self.annotate(Some(Lane::Node(node)), || format!("{condition:?} {}", if on { "begins" } else { "is over" }));
        self.change_condition(node, condition, on);
    }

    /// Like [`set_condition`](Self::set_condition), but not shown in pictures.
    pub(super) fn change_condition(&mut self, node: usize, condition: Condition, on: bool) {
        self.journal.write(self.now, format_args!("n{node} {condition:?} {on}"));
        self.store.nodes[node].node.set(self.now, condition, on);
        self.pump_node(node);
    }

    /// Creates a foreign key on a running node if there is none of this name: a list, or another
    /// lock made by `SET NX PX`. It expires after `lifetime`.
    pub fn occupy(&mut self, node: usize, name: &str, list: bool, lifetime: Duration) {
        let key = self.clients.first().map(|process| process.machine.key(name.as_bytes()));
        let key: &[u8] = key.as_deref().unwrap_or(name.as_bytes());
        if self.hosts[node].state != ProcessState::Running || self.store.nodes[node].node.exists(self.now, key) {
            return;
        }
        let lifetime = lock_proto::time::millis_up(lifetime).max(1).to_string();
        let commands: &[&[&[u8]]] = if list {
            &[&[b"RPUSH", key, b"data"], &[b"PEXPIRE", key, lifetime.as_bytes()]]
        } else {
            &[&[b"SET", key, b"stranger", b"NX", b"PX", lifetime.as_bytes()]]
        };
        let what = if list { "data" } else { "a lock of its own" };
        let there = self.on_node(node, &format!("a stranger puts {what} in the place of {name}"), |node, now| {
            for command in commands {
                node.command(now, command);
            }
            node.exists(now, key)
        });
        if there && self.store.nodes.len() == 1 {
            self.checker.foreign_key_created(self.now, key);
            self.check();
        }
    }

    /// Applies any other change to a node's data, as by other programs or operators.
    pub fn on_node<T>(
        &mut self,
        node: usize,
        what: &str,
        change: impl FnOnce(&mut Node, lock_proto::Instant) -> T,
    ) -> T {
        self.journal.write(self.now, format_args!("n{node} {what}"));
        self.note_fault();
        self.annotate(Some(Lane::Node(node)), || what.into());
        let done = change(&mut self.store.nodes[node].node, self.now);
        self.data_changed(node);
        self.update_model();
        self.pump_node(node);
        done
    }

    fn data_changed(&mut self, node: usize) {
        let server = &self.store.nodes[node].node;
        for key in &self.store.names {
            if let Some((value, _)) = server.string(self.now, key)
                && !self.checker.has_stored(node, key, value)
            {
                self.store.truth.restored(node, key, value);
            }
        }
        let clock = server.unix_micros(self.now);
        self.checker.data_changed(node, clock);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::string::String;

    use crate::World;

    #[test]
    fn replica_that_takes_over_has_a_run_id_that_no_client_knows() {
        // Q7: the replica was cloned before its node restarted.
        let mut w = World::redis(1).build();
        let mut seen = BTreeSet::from([String::from(w.node(0).run_id())]);
        w.stop_replication(0);
        w.restart_node(0, true);
        assert!(seen.insert(w.node(0).run_id().into()));
        w.fail_over(0);
        assert!(seen.insert(w.node(0).run_id().into()));
        w.restart_node(0, true);
        assert!(seen.insert(w.node(0).run_id().into()));
    }
}

//! What goes wrong in a world.

use crate::lock::Machine;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::super::common::signed;
use super::super::network::{Link, Packet};
use super::super::trace::{Fate, Lane, State, What};
use super::super::way::Way;
use super::World;

use super::process::Fact;
use super::server::Inbound;
use crate::fault::Fault;
use crate::sim::redis::{Condition, Node};

/// So many requests more are right after a fault.
const PER_FAULT: u64 = 50;

impl World {
    // ---- nodes ----

    /// The server process is stopped, as by `SIGSTOP`: its kernel still accepts connections and bytes.
    pub fn pause_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} paused"));
        if self.nodes[node].state == State::Running {
            self.set_node(node, State::Paused);
        }
    }

    /// The server process goes on, and executes first what has come meanwhile, even on connections that are closed by now.
    pub fn resume_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} resumed"));
        if self.nodes[node].state != State::Paused {
            return;
        }
        self.set_node(node, State::Running);
        while let Some(inbound) = self.nodes[node].inbox.pop_front() {
            self.node_takes(node, inbound);
            self.pump_node(node);
        }
        self.steps += 1;
        self.nodes[node].node.handle_timeout(self.now);
        self.pump_node(node);
    }

    /// The server process dies, as by `kill -9`: its connections end, new ones are refused.
    pub fn kill_node(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} killed"));
        self.set_node(node, State::Down);
        self.nodes[node].inbox.clear();
        for id in self.network.of_node(node) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            let why = if self.rng.one_in(2) { Fault::Closed } else { Fault::Reset };
            self.send(id, Way::ToClient, Packet::Close(why));
        }
    }

    /// The server process starts again, with the data it had or with none.
    pub fn restart_node(&mut self, node: usize, keep_data: bool) {
        if self.nodes[node].state != State::Down {
            self.kill_node(node);
        }
        self.journal
            .write(self.now, format_args!("n{node} started, {}", if keep_data { "with its data" } else { "empty" }));
        self.nodes[node].node.restart(self.now, keep_data);
        while let Some(id) = self.nodes[node].node.poll_closed() {
            self.nodes[node].node.handle_disconnected(self.now, id);
        }
        self.nodes[node].look();
        self.set_node(node, State::Running);
        self.checker.forget_stored(node);
    }

    /// The replica of this node hears of nothing more that is written from now on, though its primary answers as if it did: replication is
    /// asynchronous.
    pub fn stop_replication(&mut self, node: usize) {
        self.journal.write(self.now, format_args!("n{node} its replica stays behind"));
        self.word(Some(Lane::Node(node)), || "its replica stays behind".into());
        self.nodes[node].replica = Some(Box::new(self.nodes[node].node.clone()));
    }

    /// The node dies and its replica takes its place and its address, with what it has heard of: everything, or what was written until
    /// [`stop_replication`](Self::stop_replication).
    pub fn promote(&mut self, node: usize) {
        self.kill_node(node);
        if let Some(replica) = self.nodes[node].replica.take() {
            self.nodes[node].node = *replica;
        }
        self.word(Some(Lane::Node(node)), || "its replica takes its place".into());
        self.restart_node(node, true);
    }

    /// The same, but the replica has been running for an hour, as its uptime says.
    pub fn fail_over(&mut self, node: usize) {
        self.promote(node);
        self.nodes[node].node.set_uptime(self.now, Duration::from_secs(3_600));
    }

    /// From now on the address of `node` leads this client to the server of the node `to`. Its connections to that address are reset.
    pub fn redirect(&mut self, client: usize, node: usize, to: usize) {
        self.journal.write(self.now, format_args!("the address of n{node} leads c{client} to n{to}"));
        self.word(Some(Lane::Client(client)), || format!("the address of node {node} leads it to node {to}"));
        if to == node {
            self.leads.remove(&(client, node));
        } else {
            self.leads.insert((client, node), to);
        }
        self.reset(client, |link| link.conn.node().index() == node);
    }

    /// The wall clock of a node is set forward: keys expire early by so much. Its replica's goes with it: a promotion sets no clock back.
    pub fn jump_node_clock_forward(&mut self, node: usize, by: Duration) {
        self.journal.write(self.now, format_args!("n{node} clock set forward by {by:?}"));
        self.recorder.note(self.now, || What::Clock { lane: Lane::Node(node), by: signed(by) });
        for node in self.nodes[node].with_replica() {
            node.jump_forward(self.now, by);
        }
        self.nodes[node].look();
    }

    /// The wall clock of a node, and that of its replica, is set back: keys live longer by so much.
    pub fn jump_node_clock_back(&mut self, node: usize, by: Duration) {
        self.journal.write(self.now, format_args!("n{node} clock set back by {by:?}"));
        self.recorder.note(self.now, || What::Clock { lane: Lane::Node(node), by: -signed(by) });
        for node in self.nodes[node].with_replica() {
            node.jump_back(self.now, by);
        }
        self.checker.clock_set_back(node, by);
        self.nodes[node].look();
    }

    /// A node enters or leaves a condition in which it refuses commands.
    pub fn set_condition(&mut self, node: usize, condition: Condition, on: bool) {
        self.word(Some(Lane::Node(node)), || format!("{condition:?} {}", if on { "begins" } else { "is over" }));
        self.change_condition(node, condition, on);
    }

    /// The same, but nobody needs to see it in a picture.
    pub(super) fn change_condition(&mut self, node: usize, condition: Condition, on: bool) {
        self.journal.write(self.now, format_args!("n{node} {condition:?} {on}"));
        self.nodes[node].node.set(self.now, condition, on);
        self.pump_node(node);
    }

    /// A program that knows nothing of us finds no such key on a running node, and makes one that ends by itself after `life`: a list, or
    /// a lock of its own as by `SET NX PX`.
    pub fn occupy(&mut self, node: usize, name: &str, list: bool, life: Duration) {
        let key = name.as_bytes();
        if self.nodes[node].state != State::Running || self.nodes[node].node.exists(self.now, key) {
            return;
        }
        let life = crate::time::millis_up(life).max(1).to_string();
        let commands: &[&[&[u8]]] = if list {
            &[&[b"RPUSH", key, b"data"], &[b"PEXPIRE", key, life.as_bytes()]]
        } else {
            &[&[b"SET", key, b"stranger", b"NX", b"PX", life.as_bytes()]]
        };
        let what = if list { "data" } else { "a lock of its own" };
        let there = self.on_node(node, &format!("a stranger puts {what} in the place of {name}"), |node, now| {
            for command in commands {
                node.command(now, command);
            }
            node.exists(now, key)
        });
        if there && self.nodes.len() == 1 {
            self.checker.occupied(self.now, key);
            self.check();
        }
    }

    /// Anything else that happens to a node's data from outside: other programs, operators.
    pub fn on_node<T>(&mut self, node: usize, what: &str, change: impl FnOnce(&mut Node, crate::Instant) -> T) -> T {
        self.journal.write(self.now, format_args!("n{node} {what}"));
        self.word(Some(Lane::Node(node)), || what.into());
        let done = change(&mut self.nodes[node].node, self.now);
        self.checker.forget_stored(node);
        self.pump_node(node);
        done
    }

    // ---- clients ----

    /// The machine of the client is suspended, and its clock stands still meanwhile, as `CLOCK_MONOTONIC` does on Linux. No host should use such a
    /// clock (requirement T4): what it holds when it goes on it believes to hold still.
    pub fn suspend_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} suspended with its clock"));
        if self.is_running(client) {
            self.clients[client].asleep = Some(self.now);
            self.set_process(client, State::Paused);
        }
    }

    /// The client process goes on. Whether it hears first of timers or of the network is left to chance.
    pub fn resume_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} resumed"));
        if self.clients[client].state != State::Paused {
            return;
        }
        self.start_clock(client);
        self.set_process(client, State::Running);
        if self.rng.one_in(2) {
            self.wake_client(client);
        }
        while let Some(fact) = self.clients[client].inbox.pop_front() {
            self.process_takes(client, fact);
            self.pump_client(client);
        }
        self.wake_client(client);
    }

    pub(super) fn wake_client(&mut self, client: usize) {
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_timeout(local);
        self.pump_client(client);
    }

    /// The client process dies, as by `kill -9`: its kernel closes its connections. It never comes back.
    pub fn kill_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} killed"));
        if !self.is_dead(client) {
            self.set_process(client, State::Down);
        }
        self.clients[client].inbox.clear();
        self.checker.dies(client);
        for id in self.network.of_client(client) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.client_open = false;
            }
            self.send(id, Way::ToNode, Packet::Close(Fault::Closed));
        }
    }

    // ---- the network ----

    /// No packet passes between this client and this node, in either direction.
    pub fn partition(&mut self, client: usize, node: usize) {
        self.cut(client, node, Way::ToNode);
        self.cut(client, node, Way::ToClient);
    }

    /// No packet passes this way. What is sent is held back and arrives after [`heal`](Self::heal).
    pub fn cut(&mut self, client: usize, node: usize, way: Way) {
        self.journal.write(self.now, format_args!("cut c{client} n{node} {way:?}"));
        self.network.cut(client, node, way);
        self.recorder.note(self.now, || What::Cut { client, node, way });
    }

    /// Every packet passes again between this client and this node.
    pub fn heal(&mut self, client: usize, node: usize) {
        self.journal.write(self.now, format_args!("heal c{client} n{node}"));
        self.healed(|c, n| (c, n) == (client, node));
    }

    /// Every packet passes again everywhere.
    pub fn heal_all(&mut self) {
        self.journal.write(self.now, format_args!("heal all"));
        self.healed(|_, _| true);
    }

    fn healed(&mut self, which: impl Fn(usize, usize) -> bool) {
        for (client, node, way) in self.network.cuts().iter().copied().filter(|(c, n, _)| which(*c, *n)) {
            self.recorder.note(self.now, || What::Healed { client, node, way });
        }
        self.network.heal(self.now, |client, node, _| which(client, node));
    }

    /// Packets of this client to (or from) this node travel so long from now on.
    pub fn slow(&mut self, client: usize, node: usize, way: Way, latency: Range<Duration>) {
        self.journal.write(self.now, format_args!("slow c{client} n{node} {way:?} {latency:?}"));
        self.network.slow(client, node, way, latency);
    }

    /// For so long nothing more arrives at the node over the connections that this client has now: lost packets are sent again, with
    /// growing pauses. What was sent arrives late, also if the client has closed the connection meanwhile. New connections are not
    /// affected.
    pub fn stall(&mut self, client: usize, node: usize, span: Duration) {
        self.journal.write(self.now, format_args!("stall c{client} n{node} {span:?}"));
        self.word(Some(Lane::Client(client)), || format!("its connections to node {node} lose packets for {span:?}"));
        self.network.stall(client, node, Way::ToNode, self.now + span);
    }

    /// Every open connection between this client and this node is reset, seen by both at once. What was under way is lost.
    pub fn drop_connections(&mut self, client: usize, node: usize) {
        self.journal.write(self.now, format_args!("reset c{client} n{node}"));
        self.reset(client, |link| link.node == node);
    }

    fn reset(&mut self, client: usize, which: impl Fn(&Link<Vec<u8>>) -> bool) {
        let mut any = false;
        self.checker.allow(client, PER_FAULT);
        for id in self.network.of_client(client) {
            let Some(link) = self.network.links.get_mut(&id).filter(|link| which(link)) else { continue };
            let (node, conn, known) = (link.node, link.conn, link.node_open);
            link.node_open = false;
            if !core::mem::replace(&mut any, true) {
                self.word(Some(Lane::Client(client)), || format!("its connections to node {node} are reset"));
            }
            for message in self.network.lose(id) {
                self.recorder.fate(Some(message), Fate::Lost(self.now));
            }
            if known {
                match self.nodes[node].state {
                    State::Running => self.node_takes(node, Inbound::Close(id)),
                    State::Paused => self.nodes[node].inbox.push_back(Inbound::Close(id)),
                    State::Down => {}
                }
            }
            self.tell_process(client, Fact::Disconnected(conn, Fault::Reset));
        }
    }
}

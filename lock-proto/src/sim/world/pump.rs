//! The event loop: what a host does for a machine, for all of them at once.

use alloc::format;
use alloc::vec::Vec;

use super::super::way::Way;
use super::World;
use super::check::next_stage;
use super::label::command;
use super::network::{Arrival, Packet};
use super::process::{Fact, ProcessState, Stage};
use super::server::{Inbound, ServerState};
use crate::fault::Fault;
use crate::id::LockId;
use crate::redis::{Event, Grant, Output};
use crate::time::Instant;

/// So many steps without time moving are a loop without end.
const MAX_SPINS: u32 = 100_000;

impl World {
    /// Goes to the next thing that happens and lets it happen; at most to `end`. False once `end` is reached.
    pub(super) fn step(&mut self, end: Instant) -> bool {
        let next = [
            self.network.next_arrival(),
            self.plans.first_key_value().map(|((at, _), _)| *at),
            self.clients.iter().filter_map(super::process::Process::deadline).min(),
            self.running_nodes().filter_map(|node| self.nodes[node].node.next_deadline()).min(),
        ];
        let next = next.into_iter().flatten().min().unwrap_or(Instant::MAX);
        if next > end {
            self.now = self.now.max(end);
            return false;
        }
        if next > self.now {
            self.now = next;
            self.spins = 0;
        }
        self.spins += 1;
        if self.spins > MAX_SPINS {
            self.fail("time stands still: a machine wants to be called again and again");
        }
        // One thing a step, so that a condition is asked in between.
        if let Some(arrival) = self.network.arrive(self.now) {
            self.deliver(arrival);
        } else if let Some(plan) = self.plans.first_entry().filter(|plan| plan.key().0 <= self.now) {
            let (client, lock) = plan.remove();
            self.tell_process(client, Fact::Release(lock));
        } else if let Some(client) = (0..self.clients.len()).find(|c| self.is_client_due(*c)) {
            let process = &mut self.clients[client];
            let local = process.local(self.now);
            process.machine.handle_timeout(local);
            self.pump_client(client);
        } else if let Some(node) = self.due_node() {
            self.nodes[node].node.handle_timeout(self.now);
            self.pump_node(node);
        }
        true
    }

    fn running_nodes(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].state == ServerState::Running)
    }

    fn is_client_due(&self, client: usize) -> bool {
        self.clients[client].deadline().is_some_and(|at| at <= self.now)
    }

    fn due_node(&self) -> Option<usize> {
        self.running_nodes().find(|node| self.nodes[*node].node.next_deadline().is_some_and(|at| at <= self.now))
    }

    fn deliver(&mut self, arrival: Arrival<Vec<u8>>) {
        let Some(link) = self.network.links.get(&arrival.link) else { return };
        let (client, node, conn) = (link.client, link.node, link.conn);
        match arrival.way {
            Way::ToNode => {
                let freed = matches!(arrival.packet, Packet::Data(_));
                self.deliver_to_node(arrival.link, node, arrival.packet);
                if freed {
                    // The sender's buffer has room again.
                    self.pump_client(client);
                }
            }
            Way::ToClient => match arrival.packet {
                Packet::Open => self.tell_process(client, Fact::Connected(conn)),
                Packet::Data(bytes) => self.tell_process(client, Fact::Received(conn, bytes)),
                Packet::Close(why) => self.tell_process(client, Fact::Disconnected(conn, why)),
            },
        }
    }

    fn deliver_to_node(&mut self, id: u64, node: usize, packet: Packet<Vec<u8>>) {
        let state = self.nodes[node].state;
        let Some(link) = self.network.links.get_mut(&id) else { return };
        let inbound = match packet {
            Packet::Open if state == ServerState::Down => {
                self.network.send(self.now, id, Way::ToClient, Packet::Close(Fault::Refused));
                return;
            }
            // The kernel accepts, whether or not the process runs.
            Packet::Open => {
                link.node_open = true;
                self.network.send(self.now, id, Way::ToClient, Packet::Open);
                Inbound::Open(id)
            }
            Packet::Data(bytes) if link.node_open => Inbound::Bytes(id, bytes),
            Packet::Close(_) if link.node_open => Inbound::Close(id),
            Packet::Data(_) | Packet::Close(_) => return,
        };
        match state {
            ServerState::Running => {
                self.node_takes(node, inbound);
                self.pump_node(node);
            }
            ServerState::Paused => self.nodes[node].inbox.push_back(inbound),
            ServerState::Down => {}
        }
    }

    pub(super) fn node_takes(&mut self, node: usize, inbound: Inbound) {
        let (now, server) = (self.now, &mut self.nodes[node].node);
        match inbound {
            Inbound::Open(id) => server.handle_connected(now, id),
            Inbound::Bytes(id, bytes) => server.handle_received(now, id, &bytes),
            Inbound::Close(id) => {
                server.handle_disconnected(now, id);
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.node_open = false;
                }
                self.network.sweep();
            }
        }
    }

    /// Sends what a node has to say, closes what it closes, logs what it has seen.
    pub(super) fn pump_node(&mut self, node: usize) {
        while let Some(seen) = self.nodes[node].node.poll_seen() {
            let text = command(&seen.args);
            let from = self.network.links.get(&seen.conn).map(|link| (link.client, link.conn));
            match from {
                Some((client, conn)) => {
                    self.journal.write(self.now, format_args!("n{node} from c{client}/{conn}: {text}"))
                }
                None => self.journal.write(self.now, format_args!("n{node}: {text}")),
            }
        }
        for id in self.network.of_node(node) {
            let server = &mut self.nodes[node].node;
            let bytes = server.outgoing(id).to_vec();
            if !bytes.is_empty() {
                server.consume(id, bytes.len());
                self.network.send_bytes(self.now, id, Way::ToClient, &bytes);
            }
        }
        while let Some(id) = self.nodes[node].node.poll_closed() {
            self.nodes[node].node.handle_disconnected(self.now, id);
            if let Some(link) = self.network.links.get_mut(&id)
                && link.node_open
            {
                link.node_open = false;
                self.network.send(self.now, id, Way::ToClient, Packet::Close(Fault::Closed));
            }
        }
        self.check_keys(node);
    }

    fn check_keys(&mut self, node: usize) {
        let mut keys: Vec<Vec<u8>> =
            self.clients.iter().flat_map(|process| process.records.values()).map(|record| record.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let server = &self.nodes[node].node;
            let found = server.get(self.now, &key).map(|value| (value, server.expires_at(self.now, &key)));
            let found = self.checker.key(node, &key, found);
            self.check(found);
        }
    }

    /// Something reaches a process: at once, or when it goes on.
    pub(super) fn tell_process(&mut self, client: usize, fact: Fact) {
        match self.clients[client].state {
            ProcessState::Running => {
                self.process_takes(client, fact);
                self.pump_client(client);
            }
            ProcessState::Paused => self.clients[client].inbox.push_back(fact),
            ProcessState::Dead => {}
        }
    }

    pub(super) fn process_takes(&mut self, client: usize, fact: Fact) {
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        let open = |world: &Self, conn| world.network.find(client, conn);
        match fact {
            Fact::Connected(conn) => {
                let Some(id) = open(self, conn) else { return };
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.established = true;
                }
                self.journal.write(self.now, format_args!("c{client}/{conn} connected"));
                self.clients[client].machine.handle_connected(local, conn);
            }
            Fact::Received(conn, bytes) => {
                if open(self, conn).is_some() {
                    self.clients[client].machine.handle_received(local, conn, &bytes);
                }
            }
            Fact::Disconnected(conn, why) => {
                let Some(id) = open(self, conn) else { return };
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.client_open = false;
                }
                self.network.sweep();
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnected: {why}"));
                self.clients[client].machine.handle_disconnected(local, conn, why);
            }
            Fact::Release(lock) => {
                let stage = self.clients[client].records.get(&lock).map(|record| record.stage);
                if matches!(stage, Some(Stage::Held | Stage::Lost)) {
                    self.release(client, lock);
                }
            }
        }
    }

    /// Carries out what a machine asks for, until it asks for nothing more. Whether bytes or outputs go first is left to
    /// chance: nothing may depend on it (requirement M2).
    pub(super) fn pump_client(&mut self, client: usize) {
        if self.clients[client].state != ProcessState::Running {
            return;
        }
        let bytes_first = self.rng.one_in(2);
        loop {
            let mut moved = bytes_first && self.send_bytes(client);
            while let Some(output) = self.clients[client].machine.poll_output() {
                moved = true;
                self.carry_out(client, output);
            }
            moved |= self.send_bytes(client);
            if !moved {
                break;
            }
            self.spins += 1;
            if self.spins > MAX_SPINS {
                self.fail("a machine asks for more and more without end");
            }
        }
        // Whatever is due is still to come.
        if !self.is_client_due(client) {
            let found = self.checker.overdue(self.now, client);
            self.check(found);
        }
    }

    fn send_bytes(&mut self, client: usize) -> bool {
        let mut moved = false;
        for id in self.network.of_client(client) {
            let room = self.network.room(id, Way::ToNode);
            let Some(link) = self.network.links.get(&id).filter(|link| link.established) else { continue };
            let conn = link.conn;
            let machine = &mut self.clients[client].machine;
            let bytes = machine.outgoing(conn);
            let bytes = bytes[..bytes.len().min(room)].to_vec();
            if !bytes.is_empty() {
                machine.consume(conn, bytes.len());
                self.network.send_bytes(self.now, id, Way::ToNode, &bytes);
                moved = true;
            }
        }
        moved
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} connect"));
                if node.index() >= self.nodes.len() || self.network.find(client, conn).is_some() {
                    self.fail(&format!("client {client} asks for the connection {conn}, which cannot be"));
                }
                self.network.open(self.now, client, node.index(), conn);
            }
            Output::Disconnect { conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnect"));
                if let Some(id) = self.network.find(client, conn) {
                    self.network.send(self.now, id, Way::ToNode, Packet::Close(Fault::Closed));
                    if let Some(link) = self.network.links.get_mut(&id) {
                        link.client_open = false;
                    }
                }
            }
            Output::Event { lock, event } => self.told(client, lock, event),
            Output::Stopped { unreleased } => {
                self.journal.write(self.now, format_args!("c{client} stopped, {unreleased} not released"));
                self.clients[client].stopped = Some(unreleased);
            }
        }
    }

    fn told(&mut self, client: usize, lock: LockId, event: Event) {
        self.journal.write(self.now, format_args!("c{client} {lock} {event:?}"));
        let now = self.now;
        let process = &mut self.clients[client];
        let until = if let Event::Granted(Grant { valid_until, .. }) | Event::Renewed { valid_until } = &event {
            Some(process.when(*valid_until))
        } else {
            None
        };
        let Some(record) = process.records.get_mut(&lock) else {
            self.check(Err(format!("client {client} tells of {lock}, which nobody asked for: {event:?}")));
            return;
        };
        match next_stage(record, &event) {
            Ok(stage) => record.stage = stage,
            Err(found) => {
                let found = format!("client {client} {lock}: {found}");
                self.check(Err(found));
                return;
            }
        }
        let (key, claim, hold) = (record.key.clone(), record.claim, record.hold);
        record.events.push(event.clone());
        record.times.push(now);
        if let Event::Granted(grant) = &event {
            record.grant = Some(*grant);
            let found = self.checker.granted(&key, grant.fence);
            self.check(found);
            if let Some(hold) = hold {
                self.plan_serial += 1;
                self.plans.insert((now + hold, self.plan_serial), (client, lock));
            }
        }
        if matches!(event, Event::Withdrawn | Event::Failed(_) | Event::Lost(_) | Event::Released(_)) {
            self.checker.ends(&key, client, lock);
        }
        if matches!(event, Event::Renewed { .. }) {
            let found = self.checker.renewed(now, &key, client, lock);
            self.check(found);
        }
        if let Some(until) = until {
            let found = self.checker.holds(now, &key, client, lock, until);
            self.check(found);
        }
        if claim && matches!(event, Event::Granted(_)) {
            self.must(client, lock, |machine, now| machine.claim(now, lock));
            self.set_stage(client, lock, Stage::Held);
        }
    }
}

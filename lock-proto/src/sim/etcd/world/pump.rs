//! The event loop: what a host does for a machine, and the network for both sides.

use crate::lock::Machine;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::World;
use super::process::{Fact, Process};
use super::wire::{Wire, ends, looked_at};
use crate::etcd::{Output, Rpc, Token};
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::sim::check::{Rule, Stage};
use crate::sim::common::MAX_SPINS;
use crate::sim::etcd::ClusterOutput;
use crate::sim::network::{Arrival, Packet, Posted};
use crate::sim::trace::{Fate, Lane, State};
use crate::sim::way::Way;
use crate::time::Instant;

impl World {
    /// Goes to the next thing that happens and lets it happen; at most to `end`. False once `end` is reached.
    pub(super) fn step(&mut self, end: Instant) -> bool {
        if self.halted {
            return false;
        }
        let cluster = if self.is_frozen() { None } else { self.cluster_due };
        let next = [
            self.network.next_arrival(),
            self.dawdling.first_key_value().map(|((at, _), _)| *at),
            self.lingering.first_key_value().map(|((at, _), _)| *at),
            self.agenda.next(),
            self.resource.on_the_way.next(),
            self.clients.iter().filter_map(Process::deadline).min(),
            cluster,
        ];
        let next = next.into_iter().flatten().min().unwrap_or(Instant::MAX);
        if !self.advance(next, end) {
            return false;
        }
        // One thing a step, so that a condition is asked in between.
        if let Some(arrival) = self.network.arrive(self.now) {
            self.deliver(arrival);
        } else if let Some(call) = self.dawdling.first_entry().filter(|call| call.key().0 <= self.now) {
            let (link, wire) = call.remove();
            self.look_at(link, wire);
            if self.hung_up.contains(&link) {
                self.hang_up(link);
                self.pump_cluster();
            }
        } else if let Some(over) = self.lingering.first_entry().filter(|over| over.key().0 <= self.now) {
            let link = over.remove();
            self.linger_ends(link);
        } else if let Some((client, fact)) = self.agenda.due(self.now) {
            self.tell_process(client, fact);
        } else if let Some(write) = self.resource.on_the_way.due(self.now) {
            self.write_lands(write);
        } else if let Some(client) = (0..self.clients.len()).find(|client| self.is_due(*client)) {
            self.time_out(client);
        } else if cluster.is_some_and(|at| at <= self.now) {
            self.steps += 1;
            self.cluster.handle_timeout(self.now);
            self.pump_cluster();
        }
        true
    }

    pub(super) fn is_due(&self, client: usize) -> bool {
        self.clients[client].deadline().is_some_and(|at| at <= self.now)
    }

    pub(super) fn time_out(&mut self, client: usize) {
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_timeout(local);
        self.pump_client(client);
    }

    /// The only member is stopped: nothing at all happens in the cluster.
    fn is_frozen(&self) -> bool {
        matches!(&self.members[..], [member] if member.state == State::Paused)
    }

    // ---- the network ----

    pub(super) fn send_to_member(&mut self, link: u64, packet: Packet<Wire>) {
        self.send(link, Way::ToNode, packet);
    }

    pub(super) fn send_to_client(&mut self, link: u64, packet: Packet<Wire>) {
        let Some(member) = self.network.links.get(&link).map(|link| link.node) else { return };
        if self.members[member].state == State::Paused {
            self.members[member].outbox.push_back((link, packet));
        } else {
            self.send(link, Way::ToClient, packet);
        }
    }

    /// Puts a packet on its way, and into the record.
    pub(super) fn send(&mut self, id: u64, way: Way, packet: Packet<Wire>) {
        let Some(link) = self.network.links.get(&id) else { return };
        let (client, member) = (Lane::Client(link.client), Lane::Node(link.node));
        let (from, to) = match way {
            Way::ToNode => (client, member),
            Way::ToClient => (member, client),
        };
        let message = self.recorder.sent(self.now, from, to, || match (&packet, way) {
            (Packet::Open, Way::ToNode) => "connect".into(),
            (Packet::Open, Way::ToClient) => "connected".into(),
            (Packet::Data(wire), _) => wire.label(),
            (Packet::Close(why), _) => format!("close ({why})"),
        });
        self.network.send(self.now, id, way, Posted { packet, message });
    }

    /// Loses what is under way on a connection.
    pub(super) fn lose(&mut self, id: u64) {
        for message in self.network.lose(id) {
            self.recorder.fate(Some(message), Fate::Lost(self.now));
        }
    }

    fn deliver(&mut self, arrival: Arrival<Wire>) {
        self.recorder.fate(arrival.posted.message, Fate::Arrived(self.now));
        let Some(link) = self.network.links.get(&arrival.link) else { return };
        let (client, member, conn) = (link.client, link.node, link.conn);
        match (arrival.way, arrival.posted.packet) {
            (Way::ToNode, packet) => self.deliver_to_member(arrival.link, member, packet),
            (Way::ToClient, Packet::Open) => self.tell_process(client, Fact::Connected(conn)),
            (Way::ToClient, Packet::Data(wire)) => self.tell_process(client, Fact::Heard(conn, wire)),
            (Way::ToClient, Packet::Close(why)) => self.tell_process(client, Fact::Disconnected(conn, why)),
        }
    }

    fn deliver_to_member(&mut self, id: u64, member: usize, packet: Packet<Wire>) {
        let Some(link) = self.network.links.get_mut(&id) else { return };
        match (&packet, self.members[member].state) {
            (Packet::Open, State::Down) => {
                self.send(id, Way::ToClient, Packet::Close(Fault::Refused));
                return;
            }
            // The kernel accepts, whether or not the process runs; and the client's side of HTTP/2 does not wait for the other.
            (Packet::Open, State::Running | State::Paused) => {
                link.node_open = true;
                self.send(id, Way::ToClient, Packet::Open);
            }
            (Packet::Data(_) | Packet::Close(_), _) if !link.node_open => return,
            (Packet::Data(_) | Packet::Close(_), _) => {}
        }
        match self.members[member].state {
            State::Running => self.member_takes(id, member, packet),
            State::Paused => self.members[member].inbox.push_back((id, packet)),
            State::Down => {}
        }
    }

    pub(super) fn member_takes(&mut self, id: u64, member: usize, packet: Packet<Wire>) {
        match packet {
            Packet::Open => {
                self.steps += 1;
                self.cluster.handle_connected(self.now, member, id);
            }
            // Calls run side by side in the server: some are looked at later than those that came after them.
            Packet::Data(wire @ Wire::Call { .. }) if self.rng.one_in(4) => {
                let later = self.now + self.rng.duration(&(Duration::ZERO..self.late));
                let number = self.next_number();
                self.dawdling.insert((later, number), (id, wire));
                return;
            }
            Packet::Data(wire) => return self.look_at(id, wire),
            Packet::Close(_) => self.hang_up(id),
        }
        self.pump_cluster();
    }

    /// A member looks at something that it has received.
    fn look_at(&mut self, id: u64, wire: Wire) {
        let Some(link) = self.network.links.get(&id).filter(|link| link.node_open) else { return };
        let (client, member) = (link.client, link.node);
        match self.members[member].state {
            State::Running => {}
            State::Paused => return self.members[member].inbox.push_back((id, Packet::Data(wire))),
            State::Down => return,
        }
        self.journal.write(self.now, format_args!("m{member} from c{client}: {wire}"));
        self.remember_owner(client, &wire);
        self.steps += 1;
        let now = self.now;
        match wire {
            Wire::Call { rpc, token, request } => {
                self.cluster.handle_call(now, id, rpc, token.as_deref(), &request);
            }
            Wire::Open { stream, kind, token } => self.cluster.handle_open(now, id, stream, kind, token.as_deref()),
            Wire::Send { stream, message } => {
                self.cluster.handle_send(now, id, stream, &message);
                if self.cluster.parked_count() > 0 {
                    self.report(Rule::Contract, format!("client {client} watches from the past"));
                }
            }
            Wire::Close { stream } => self.cluster.handle_close(now, id, stream),
            // What members say does not come back to them.
            Wire::Reply { .. } | Wire::Message { .. } | Wire::Ended { .. } => {}
        }
        self.pump_cluster();
    }

    /// The client closes a connection. What was sent before is still delivered, if that takes no longer than the client's kernel tries.
    pub(super) fn close(&mut self, id: u64) {
        self.send_to_member(id, Packet::Close(Fault::Closed));
        if let Some(link) = self.network.links.get_mut(&id) {
            link.client_open = false;
        }
        let number = self.next_number();
        self.lingering.insert((self.now + self.linger, number), id);
    }

    /// What has not arrived by now is lost, and the member notices that the other side is gone.
    fn linger_ends(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        let (member, known) = (link.node, link.node_open);
        self.lose(id);
        let paused = &mut self.members[member];
        paused.inbox.retain(|(link, _)| *link != id);
        if known {
            match paused.state {
                State::Paused => paused.inbox.push_back((id, Packet::Close(Fault::Reset))),
                State::Running => {
                    self.dawdling.retain(|_, (link, _)| *link != id);
                    self.hang_up(id);
                    self.pump_cluster();
                }
                State::Down => {}
            }
        }
        self.network.sweep();
    }

    /// The member learns that a connection has ended. What it had received before may be executed all the same, when its time comes.
    pub(super) fn hang_up(&mut self, id: u64) {
        if self.hung_up.insert(id) {
            let rng = &mut self.rng;
            self.dawdling.retain(|_, (link, _)| *link != id || rng.one_in(2));
        }
        if self.dawdling.values().any(|(link, _)| *link == id) {
            return;
        }
        self.hung_up.remove(&id);
        self.steps += 1;
        self.cluster.handle_disconnected(self.now, id);
        if let Some(link) = self.network.links.get_mut(&id) {
            link.node_open = false;
        }
        self.network.sweep();
    }

    /// Sends what the cluster has to say, and takes down what has happened to its keys.
    pub(super) fn pump_cluster(&mut self) {
        while let Some(output) = self.cluster.poll_output() {
            let link = output.conn();
            match output {
                ClusterOutput::Reply { rpc, reply, .. } => {
                    self.send_to_client(link, Packet::Data(Wire::Reply { rpc, reply }));
                }
                ClusterOutput::Message { stream, message, .. } => {
                    self.send_to_client(link, Packet::Data(Wire::Message { stream, message }));
                }
                ClusterOutput::Ended { stream, status, .. } => {
                    self.send_to_client(link, Packet::Data(Wire::Ended { stream, status }));
                }
                ClusterOutput::Dropped { .. } => {
                    let why = if self.rng.one_in(2) { Fault::Closed } else { Fault::Reset };
                    if let Some(open) = self.network.links.get_mut(&link).filter(|link| link.node_open) {
                        open.node_open = false;
                        self.send(link, Way::ToClient, Packet::Close(why));
                    }
                }
            }
        }
        self.cluster_due = self.cluster.next_deadline();
        self.record_changes();
        self.record_cluster();
    }

    /// Must be done before a compaction forgets.
    pub(super) fn record_changes(&mut self) {
        let last = self.cluster.revision();
        if last > self.recorded {
            for (revision, events) in self.cluster.changes(self.recorded + 1) {
                self.queue_log.record(revision, events);
            }
            self.recorded = last;
        }
    }

    // ---- the clients ----

    /// Something reaches a process: at once, or when it goes on.
    pub(super) fn tell_process(&mut self, client: usize, fact: Fact) {
        match self.clients[client].state {
            State::Running => self.process_takes(client, fact),
            State::Paused => self.clients[client].inbox.push_back(fact),
            State::Down => {}
        }
    }

    pub(super) fn process_takes(&mut self, client: usize, fact: Fact) {
        let local = self.clients[client].local(self.now);
        match fact {
            Fact::Connected(conn) => {
                let Some(id) = self.network.find(client, conn) else { return };
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.established = true;
                }
                self.journal.write(self.now, format_args!("c{client}/{conn} connected"));
                self.steps += 1;
                self.clients[client].machine.handle_connected(local, conn);
            }
            Fact::Heard(conn, wire) => {
                if self.network.find(client, conn).is_some() {
                    self.hear(client, wire);
                }
            }
            Fact::Disconnected(conn, why) => {
                let Some(id) = self.network.find(client, conn) else { return };
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.client_open = false;
                }
                self.network.sweep();
                self.forget_conn(client, conn);
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnected: {why}"));
                self.steps += 1;
                self.clients[client].machine.handle_disconnected(local, conn, why);
            }
            Fact::Release(lock) => {
                if matches!(self.stage(client, lock), Some(Stage::Held | Stage::Lost)) {
                    self.release(client, lock);
                }
            }
            Fact::Write(lock) => {
                if self.is_held(client, lock) {
                    self.write(client, lock);
                    let every = self.clients[client].records.get(&lock).and_then(|record| record.write_every);
                    if let Some(every) = every {
                        self.agenda.plan(self.now + every, (client, Fact::Write(lock)));
                    }
                }
            }
        }
        self.pump_client(client);
    }

    fn hear(&mut self, client: usize, wire: Wire) {
        let deleted: Vec<(Bytes, i64)> = wire.deletions().map(|(key, revision)| (key.clone(), revision)).collect();
        if !deleted.is_empty() {
            // What the machine does by its clock is done before, so that what it does next is its reaction.
            self.time_out(client);
        }
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        match wire {
            Wire::Reply { rpc, reply } => {
                if let Some(rpc) = self.rpcs.remove(&rpc) {
                    self.steps += 1;
                    process.machine.handle_reply(local, rpc, reply);
                }
            }
            Wire::Message { stream, message } => {
                if let Some(stream) = self.streams.get(&stream) {
                    self.steps += 1;
                    process.machine.handle_message(local, *stream, message);
                }
            }
            Wire::Ended { stream, status } => {
                if let Some(stream) = self.streams.remove(&stream) {
                    process.streams.remove(&stream);
                    self.steps += 1;
                    process.machine.handle_stream_ended(local, stream, status);
                }
            }
            // What clients say does not come back to them.
            Wire::Call { .. } | Wire::Open { .. } | Wire::Send { .. } | Wire::Close { .. } => {}
        }
        if !deleted.is_empty() {
            let asked = self.pump_client(client);
            self.check_woken(client, &deleted, &asked);
        }
    }

    /// One release makes one waiter react (requirement E5): at most one client asks about its own key when another's was deleted.
    fn check_woken(&mut self, client: usize, deleted: &[(Bytes, i64)], asked: &[Bytes]) {
        for (key, revision) in deleted {
            let prefix = &key[..key.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)];
            let reacts = asked.iter().any(|own| own.starts_with(prefix) && own != key);
            if !reacts {
                continue;
            }
            let woken = self.woken.entry((key.clone(), *revision)).or_default();
            if !woken.contains(&client) {
                woken.push(client);
            }
            if woken.len() > 1 {
                let text = format!("clients {woken:?} react to the end of {}", key.escape_ascii());
                self.report(Rule::OneWoken, text);
            }
        }
        // Nobody hears of so old a deletion any more.
        while self.woken.len() > 1_000 {
            self.woken.pop_first();
        }
    }

    /// The key of a holder that was notified of a loss is not deleted before its guard is back (requirement H6).
    fn check_left_alone(&mut self, client: usize, request: &Rpc) {
        let checker = &self.checker;
        let owners = &mut self.clients[client].owners;
        owners.retain(|lock, _| checker.stage(client, *lock).is_some_and(|stage| stage != Stage::Over));
        let lost = |lock: &LockId| checker.stage(client, *lock) == Some(Stage::Lost);
        let found = owners.iter().find(|(lock, owner)| ends(request, owner) && lost(lock));
        if let Some((lock, owner)) = found {
            let text = format!("client {client} ends {} while the guard of {lock} is out", owner.key.escape_ascii());
            self.report(Rule::ShortenedKey, text);
        }
    }

    /// Carries out what a machine asks for, until it asks for nothing more. The own keys that it asked the store about.
    pub(super) fn pump_client(&mut self, client: usize) -> Vec<Bytes> {
        let mut asked = Vec::new();
        if !self.is_running(client) {
            return asked;
        }
        while let Some(output) = self.clients[client].machine.poll_output() {
            if let Output::Call { request: Rpc::Txn(txn), .. } = &output {
                looked_at(txn, &mut asked);
            }
            self.carry_out(client, output);
            self.spins += 1;
            if self.spins > MAX_SPINS {
                self.halt(format!("client {client} asks for more and more without end"));
                return asked;
            }
        }
        self.clients[client].look();
        // Whatever is due is still to come.
        if !self.is_due(client) {
            self.checker.up_to_date(self.now, client);
            self.check();
        }
        asked
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} connect"));
                self.journal.facts.connect(self.now, client, conn);
                if node.index() >= self.members.len() || self.network.find(client, conn).is_some() {
                    return self.halt(format!("client {client} asks for the connection {conn}, which cannot be"));
                }
                let id = self.network.open(client, node.index(), conn);
                self.send_to_member(id, Packet::Open);
            }
            Output::Disconnect { conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnect"));
                self.journal.facts.disconnect(self.now, client, conn);
                self.forget_conn(client, conn);
                if let Some(id) = self.network.find(client, conn) {
                    self.close(id);
                }
            }
            Output::Call { rpc, request, token } => {
                self.journal.facts.call(self.now, client, rpc.conn(), &request);
                self.check_left_alone(client, &request);
                let number = self.next_number();
                self.rpcs.insert(number, rpc);
                self.say(client, rpc.conn(), Wire::Call { rpc: number, token: reveal(token.as_ref()), request });
            }
            Output::Open { stream, token } => {
                self.journal.facts.open(self.now, client, stream.conn(), stream.kind());
                let number = self.next_number();
                self.streams.insert(number, stream);
                self.clients[client].streams.insert(stream, number);
                let open = Wire::Open { stream: number, kind: stream.kind(), token: reveal(token.as_ref()) };
                self.say(client, stream.conn(), open);
            }
            Output::Send { stream, message } => {
                self.journal.facts.message(self.now, client, stream.conn(), &message);
                let Some(number) = self.clients[client].streams.get(&stream).copied() else {
                    return self.halt(format!("client {client} sends {message:?} on a stream that is not open"));
                };
                self.say(client, stream.conn(), Wire::Send { stream: number, message });
            }
            Output::Close { stream } => {
                self.journal.facts.close(self.now, client, stream.conn(), stream.kind());
                if let Some(number) = self.clients[client].streams.remove(&stream) {
                    self.streams.remove(&number);
                    self.say(client, stream.conn(), Wire::Close { stream: number });
                }
            }
            Output::Event { lock, event } => self.told(client, lock, event),
            Output::Election { query, event } => self.heard_of_election(client, query, event),
            Output::Stopped { unreleased } => {
                self.journal.write(self.now, format_args!("c{client} stopped, {unreleased} may be left"));
                self.journal.facts.stopped(self.now, client, unreleased);
                self.clients[client].stopped = Some(unreleased);
                self.word(Some(Lane::Client(client)), || "has stopped".into());
                self.checker.stopped(self.now, client);
                self.check();
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn say(&mut self, client: usize, conn: ConnId, wire: Wire) {
        self.clients[client].sent += 1;
        self.checker.request(self.now, client, conn.node().index());
        let Some(id) = self.network.find(client, conn) else {
            return self.halt(format!("client {client} says {wire} on {conn}, which is not open"));
        };
        if self.network.links.get(&id).is_some_and(|link| !link.established) {
            return self.halt(format!("client {client} says {wire} on {conn}, which is still being opened"));
        }
        self.send_to_member(id, Packet::Data(wire));
    }

    /// Calls and streams of a connection that has ended.
    pub(super) fn forget_conn(&mut self, client: usize, conn: ConnId) {
        let process = &mut self.clients[client];
        process.streams.retain(|stream, number| {
            let gone = stream.conn() == conn;
            if gone {
                self.streams.remove(number);
            }
            !gone
        });
    }
}

fn reveal(token: Option<&Token>) -> Option<Box<str>> {
    token.map(|token| token.reveal().into())
}

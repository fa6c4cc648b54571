//! The event loop of the cluster, and what a host does for the machine of a client: calls and
//! streams.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::resource::overwritten;
use super::tap::queue_of;
use super::wire::{Wire, ends, looked_at};
use super::{Etcd, EtcdClient};
use crate::etcd::{Output, Rpc};
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::sim::check::{Rule, Stage};
use crate::sim::direction::Direction;
use crate::sim::etcd::ClusterOutput;
use crate::sim::network::Packet;
use crate::sim::trace::State;
use crate::sim::world::World;
use crate::time::Instant;
use crate::url::Secret;

/// Members.
impl<C: EtcdClient> World<Etcd<C>> {
    /// When a member looks at a call, or a kernel gives up a connection.
    pub(super) fn members_due(&self) -> Option<Instant> {
        let next = [
            self.store.dawdling.first_key_value().map(|((at, _), _)| *at),
            self.store.lingering.first_key_value().map(|((at, _), _)| *at),
            self.store.cluster_due.filter(|_| !self.is_frozen()),
        ];
        next.into_iter().flatten().min()
    }

    /// What a member has received is looked at, or what a client has closed is over.
    pub(super) fn act_first(&mut self) -> bool {
        let now = self.now;
        if let Some(call) = self.store.dawdling.first_entry().filter(|call| call.key().0 <= now) {
            let (link, wire) = call.remove();
            self.look_at(link, wire);
            if self.store.hung_up.contains(&link) {
                self.hang_up(link);
                self.pump_cluster();
            }
        } else if let Some(over) = self.store.lingering.first_entry().filter(|over| over.key().0 <= now) {
            let link = over.remove();
            self.linger_ends(link);
        } else {
            return false;
        }
        true
    }

    pub(super) fn wake_cluster(&mut self) {
        self.steps += 1;
        self.store.cluster.handle_timeout(self.now);
        self.pump_cluster();
    }

    /// The only member is stopped: nothing at all happens in the cluster.
    fn is_frozen(&self) -> bool {
        matches!(&self.hosts[..], [host] if host.state == State::Paused)
    }

    pub(super) fn send_to_client(&mut self, link: u64, packet: Packet<Wire>) {
        let Some(member) = self.network.links.get(&link).map(|link| link.node) else { return };
        if self.hosts[member].state == State::Paused {
            self.store.members[member].outbox.push_back((link, packet));
        } else {
            self.send(link, Direction::ToClient, packet);
        }
    }

    pub(super) fn member_takes(&mut self, id: u64, member: usize, packet: Packet<Wire>) {
        match packet {
            Packet::Open => {
                self.steps += 1;
                self.store.cluster.handle_connected(self.now, member, id);
            }
            Packet::Data(wire) => {
                let mut at = self.turn_of(member);
                // Calls run side by side in the server: some are looked at later than those that
                // came after them.
                let late = matches!(wire, Wire::Call { .. }) && self.rng.one_in(4);
                if late {
                    at = at + self.rng.duration(&(Duration::ZERO..self.store.late));
                }
                if !late && at == self.now {
                    return self.look_at(id, wire);
                }
                let number = self.next_number();
                self.store.dawdling.insert((at, number), (id, wire));
                return;
            }
            Packet::Close(_) => self.hang_up(id),
        }
        self.pump_cluster();
    }

    /// When a member has done what has just come, after all that came before.
    fn turn_of(&mut self, member: usize) -> Instant {
        let busy = self.hosts[member].busy_until.unwrap_or(self.now).max(self.now);
        if self.service.is_zero() {
            // What came before, and took time, is looked at first.
            return busy;
        }
        let at = busy + self.service;
        self.hosts[member].busy_until = Some(at);
        self.served(at.since(self.now));
        at
    }

    /// A member looks at something that it has received.
    fn look_at(&mut self, id: u64, wire: Wire) {
        let Some(link) = self.network.links.get(&id).filter(|link| link.node_open) else { return };
        let (client, member) = (link.client, link.node);
        match self.hosts[member].state {
            State::Running => {}
            State::Paused => return self.hosts[member].inbox.push_back((id, Packet::Data(wire))),
            State::Down => return,
        }
        self.journal.write(self.now, format_args!("m{member} from c{client}: {wire}"));
        self.remember_owner(client, &wire);
        self.steps += 1;
        let now = self.now;
        match wire {
            Wire::Call { rpc, token, request } => {
                self.store.cluster.handle_call(now, id, rpc, token.as_deref(), &request);
            }
            Wire::Open { stream, kind, token } => {
                self.store.cluster.handle_open(now, id, stream, kind, token.as_deref())
            }
            Wire::Send { stream, message } => {
                self.store.cluster.handle_send(now, id, stream, &message);
                if self.store.cluster.parked_count() > 0 {
                    self.report(Rule::Contract, format!("client {client} watches from the past"));
                }
            }
            Wire::Close { stream } => self.store.cluster.handle_close(now, id, stream),
            // What members say does not come back to them.
            Wire::Reply { .. } | Wire::Message { .. } | Wire::Ended { .. } => {}
        }
        self.pump_cluster();
    }

    /// What has not arrived by now is lost, and the member notices that the other side is gone.
    fn linger_ends(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        let (member, known) = (link.node, link.node_open);
        self.lose(id);
        let host = &mut self.hosts[member];
        host.inbox.retain(|(link, _)| *link != id);
        if known {
            match host.state {
                State::Paused => host.inbox.push_back((id, Packet::Close(Fault::Reset))),
                State::Running => {
                    self.store.dawdling.retain(|_, (link, _)| *link != id);
                    self.hang_up(id);
                    self.pump_cluster();
                }
                State::Down => {}
            }
        }
        self.network.sweep();
    }

    /// The member learns that a connection has ended. What it had received before may be executed
    /// all the same, when its time comes.
    pub(super) fn hang_up(&mut self, id: u64) {
        if self.store.hung_up.insert(id) {
            let rng = &mut self.rng;
            self.store.dawdling.retain(|_, (link, _)| *link != id || rng.one_in(2));
        }
        if self.store.dawdling.values().any(|(link, _)| *link == id) {
            return;
        }
        self.store.hung_up.remove(&id);
        self.steps += 1;
        self.store.cluster.handle_disconnected(self.now, id);
        if let Some(link) = self.network.links.get_mut(&id) {
            link.node_open = false;
        }
        self.network.sweep();
    }

    /// Sends what the cluster has to say, and takes down what has happened to its keys.
    pub(super) fn pump_cluster(&mut self) {
        while let Some(output) = self.store.cluster.poll_output() {
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
                        self.send(link, Direction::ToClient, Packet::Close(why));
                    }
                }
            }
        }
        self.store.cluster_due = self.store.cluster.next_deadline();
        self.record_changes();
        self.record_cluster();
    }

    /// Must be done before a compaction forgets.
    pub(super) fn record_changes(&mut self) {
        let last = self.store.cluster.revision();
        if last > self.store.recorded {
            let mut found = Vec::new();
            for (revision, events) in self.store.cluster.changes(self.store.recorded + 1) {
                self.store.queue_log.record(revision, events);
                found.extend(overwritten(&self.store.proclaimed, events));
            }
            for text in found {
                self.checker.report(self.now, Rule::StaleWrite, text);
            }
            self.store.recorded = last;
        }
    }
}

/// Clients.
impl<C: EtcdClient> World<Etcd<C>> {
    /// A client has closed a connection, or is told that it has ended.
    pub(super) fn ended(&mut self, client: usize, id: u64, by_client: bool) {
        if let Some(conn) = self.network.links.get(&id).map(|link| link.conn) {
            self.forget_conn(client, conn);
        }
        // What was sent before is still delivered, if that takes no longer than the client's kernel
        // tries.
        if by_client {
            let number = self.next_number();
            self.store.lingering.insert((self.now + self.store.linger, number), id);
        }
    }

    pub(super) fn hear(&mut self, client: usize, wire: Wire) {
        let deleted: Vec<(Bytes, i64)> = wire.deletions().map(|(key, revision)| (key.clone(), revision)).collect();
        if !deleted.is_empty() {
            // What the machine does by its clock is done before, so that what it does next is its
            // reaction.
            self.wake_client(client);
        }
        self.overhears(client, &wire, &deleted);
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        match wire {
            Wire::Reply { rpc, reply } => {
                if let Some(rpc) = self.store.rpcs.remove(&rpc) {
                    self.steps += 1;
                    process.machine.handle_reply(local, rpc, reply);
                }
            }
            Wire::Message { stream, message } => {
                if let Some(stream) = self.store.streams.get(&stream) {
                    self.steps += 1;
                    process.machine.handle_message(local, *stream, message);
                }
            }
            Wire::Ended { stream, status } => {
                if let Some(stream) = self.store.streams.remove(&stream) {
                    process.own.streams.remove(&stream);
                    self.steps += 1;
                    process.machine.handle_stream_ended(local, stream, status);
                }
            }
            // What clients say does not come back to them.
            Wire::Call { .. } | Wire::Open { .. } | Wire::Send { .. } | Wire::Close { .. } => {}
        }
        if !deleted.is_empty() {
            let asked = self.pump_calls(client);
            self.check_woken(client, &deleted, &asked);
        }
    }

    /// One release makes one waiter react : at most one client asks about its own key when
    /// another's was deleted.
    fn check_woken(&mut self, client: usize, deleted: &[(Bytes, i64)], asked: &[Bytes]) {
        for (key, revision) in deleted {
            let prefix = queue_of(key);
            let reacts = asked.iter().any(|own| own.starts_with(prefix) && own != key);
            if !reacts {
                continue;
            }
            let woken = self.store.woken.entry((key.clone(), *revision)).or_default();
            if !woken.contains(&client) {
                woken.push(client);
            }
            if woken.len() > 1 {
                let text = format!("clients {woken:?} react to the end of {}", key.escape_ascii());
                self.report(Rule::OneWoken, text);
            }
        }
        // Nobody hears of so old a deletion any more.
        while self.store.woken.len() > 1_000 {
            self.store.woken.pop_first();
        }
    }

    /// The key of a holder that was notified of a loss is not deleted before its guard is back .
    fn check_left_alone(&mut self, client: usize, request: &Rpc) {
        let checker = &self.checker;
        let owners = &mut self.clients[client].own.owners;
        owners.retain(|lock, _| checker.stage(client, *lock).is_some_and(|stage| stage != Stage::Over));
        let lost = |lock: &LockId| checker.stage(client, *lock) == Some(Stage::Lost);
        let found = owners.iter().find(|(lock, owner)| ends(request, owner) && lost(lock));
        if let Some((lock, owner)) = found {
            let text = format!("client {client} ends {} while the guard of {lock} is out", owner.key.escape_ascii());
            self.report(Rule::ShortenedKey, text);
        }
    }

    /// Carries out what a machine asks for, until it asks for nothing more. The own keys that it
    /// asked the store about.
    pub(super) fn pump_calls(&mut self, client: usize) -> Vec<Bytes> {
        let mut asked = Vec::new();
        while let Some(output) = self.clients[client].machine.poll_output() {
            if let Output::Call { request: Rpc::Txn(txn), .. } = &output {
                let before = asked.len();
                looked_at(txn, &mut asked);
                for key in &asked[before..] {
                    self.clients[client].reasons.asks(queue_of(key), self.cause);
                }
            }
            self.carry_out(client, output);
            if !self.may_go_on(client) {
                return asked;
            }
        }
        self.clients[client].look();
        asked
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn } => self.connect(client, node, conn),
            Output::Disconnect { conn } => self.disconnect(client, conn),
            Output::Call { rpc, request, token } => {
                self.journal.facts.call(self.now, client, rpc.conn(), &request);
                self.check_left_alone(client, &request);
                let number = self.next_number();
                self.store.rpcs.insert(number, rpc);
                self.watches_call(client, rpc.conn(), number, &request);
                self.say(client, rpc.conn(), Wire::Call { rpc: number, token: reveal(token.as_ref()), request });
            }
            Output::Open { stream, token } => {
                self.journal.facts.open(self.now, client, stream.conn(), stream.kind());
                let number = self.next_number();
                self.store.streams.insert(number, stream);
                self.clients[client].own.streams.insert(stream, number);
                let open = Wire::Open { stream: number, kind: stream.kind(), token: reveal(token.as_ref()) };
                self.say(client, stream.conn(), open);
            }
            Output::Send { stream, message } => {
                self.journal.facts.message(self.now, client, stream.conn(), &message);
                let Some(number) = self.clients[client].own.streams.get(&stream).copied() else {
                    return self.halt(format!("client {client} sends {message:?} on a stream that is not open"));
                };
                self.watches_message(client, stream, &message);
                self.say(client, stream.conn(), Wire::Send { stream: number, message });
            }
            Output::Close { stream } => {
                self.journal.facts.close(self.now, client, stream.conn(), stream.kind());
                if let Some(number) = self.clients[client].own.streams.remove(&stream) {
                    self.store.streams.remove(&number);
                    self.closes(client, stream);
                    self.say(client, stream.conn(), Wire::Close { stream: number });
                }
            }
            Output::Event { lock, event } => self.told(client, lock, event),
            Output::Election { query, event } => self.heard_of_election(client, query, event),
            Output::Stopped { unreleased } => self.has_stopped(client, unreleased),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.store.number += 1;
        self.store.number
    }

    fn say(&mut self, client: usize, conn: ConnId, wire: Wire) {
        self.clients[client].own.sent += 1;
        self.checker.request(self.now, client, conn.node().index());
        let Some(id) = self.network.find(client, conn) else {
            return self.halt(format!("client {client} says {wire} on {conn}, which is not open"));
        };
        if self.network.links.get(&id).is_some_and(|link| !link.established) {
            return self.halt(format!("client {client} says {wire} on {conn}, which is still being opened"));
        }
        self.send(id, Direction::ToNode, Packet::Data(wire));
    }

    /// Calls and streams of a connection that has ended.
    fn forget_conn(&mut self, client: usize, conn: ConnId) {
        let stale = self.stale;
        let process = &mut self.clients[client];
        process.own.asked.retain(|stream, _| stream.conn() != conn);
        process.own.streams.retain(|stream, number| {
            let gone = stream.conn() == conn;
            // What still comes on it is told as what it is.
            if gone && !stale {
                self.store.streams.remove(number);
            }
            !gone
        });
    }
}

fn reveal(token: Option<&Secret>) -> Option<Box<str>> {
    token.map(|token| token.expose().into())
}

//! The event loop of the cluster, and the host of a client's machine: calls and streams.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::resource::overwritten;
use super::tap::queue_of;
use super::wire::{EtcdMessage, Look, collect_looks, ends};
use super::{EtcdClient, EtcdServers};
use crate::check::{Rule, Stage};
use crate::direction::Direction;
use crate::etcd::ClusterOutput;
use crate::network::Packet;
use crate::trace::ProcessState;
use crate::world::World;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::Secret;
use lock_proto::etcd::{Output, Rpc, StreamReceived};
use lock_proto::{ConnId, LockId};

/// How often etcd serves watches whose reader is slow.
const LATE_EVENT: Duration = Duration::from_millis(100);

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Returns when a member next executes a call or a kernel gives up a connection.
    pub(super) fn members_due(&self) -> Option<Instant> {
        let next = [
            self.store.delayed_calls.first_key_value().map(|((at, _), _)| *at),
            self.store.delayed_replies.first_key_value().map(|((at, _), _)| *at),
            self.store.lingering.first_key_value().map(|((at, _), _)| *at),
            self.store.cluster_due.filter(|_| !self.is_frozen()),
        ];
        next.into_iter().flatten().min()
    }

    pub(super) fn act_first(&mut self) -> bool {
        let now = self.now;
        if let Some(call) = self.store.delayed_calls.first_entry().filter(|call| call.key().0 <= now) {
            let (link, wire) = call.remove();
            self.execute(link, wire);
            if self.store.hung_up.contains(&link) {
                self.hang_up(link);
                self.pump_cluster();
            }
        } else if let Some(reply) = self.store.delayed_replies.first_entry().filter(|reply| reply.key().0 <= now) {
            let (link, wire) = reply.remove();
            if self.network.links.get(&link).is_some_and(|link| link.node_open) {
                self.send_to_client(link, Packet::Data(wire));
            }
        } else if let Some(over) = self.store.lingering.first_entry().filter(|over| over.key().0 <= now) {
            let link = over.remove();
            self.end_linger(link);
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

    fn is_frozen(&self) -> bool {
        matches!(&self.hosts[..], [host] if host.state == ProcessState::Paused)
    }

    pub(super) fn send_to_client(&mut self, link: u64, packet: Packet<EtcdMessage>) {
        let Some((member, client)) = self.network.links.get(&link).map(|link| (link.node, link.client)) else { return };
        if let Packet::Data(EtcdMessage::Reply { reply: Err(status), .. }) = &packet {
            self.journal.write(self.now, format_args!("m{member} to c{client}: {:?}: {}", status.code, status.message));
        }
        if self.hosts[member].state == ProcessState::Paused {
            self.store.members[member].outbox.push_back((link, packet));
        } else {
            self.send(link, Direction::ToClient, packet);
        }
    }

    pub(super) fn receive_on_member(&mut self, id: u64, member: usize, packet: Packet<EtcdMessage>) {
        match packet {
            Packet::Open => {
                self.steps += 1;
                self.store.cluster.handle_connected(self.now, member, id);
            }
            Packet::Handshake(left) => {
                if self.answer_handshake(id, left) {
                    self.hang_up(id);
                }
            }
            Packet::Data(wire) => {
                let mut at = self.execution_time(member);
                // Calls run concurrently in the server, so some are overtaken by later ones.
                let late = matches!(wire, EtcdMessage::Call { .. }) && self.rng.one_in(4);
                if late {
                    at = at + self.rng.duration(&(Duration::ZERO..self.store.late));
                }
                if !late && at == self.now {
                    return self.execute(id, wire);
                }
                let number = self.next_number();
                self.store.delayed_calls.insert((at, number), (id, wire));
                return;
            }
            Packet::Close(_) => self.hang_up(id),
        }
        self.pump_cluster();
    }

    /// Returns when a member executes a call that arrives now, after all earlier ones.
    fn execution_time(&mut self, member: usize) -> Instant {
        let busy = self.hosts[member].busy_until.unwrap_or(self.now).max(self.now);
        if self.service.is_zero() {
            // Earlier calls that take time come first.
            return busy;
        }
        let at = busy + self.service;
        self.hosts[member].busy_until = Some(at);
        self.served(at.since(self.now));
        at
    }

    fn execute(&mut self, id: u64, wire: EtcdMessage) {
        let Some(link) = self.network.links.get(&id).filter(|link| link.node_open) else { return };
        let (client, member) = (link.client, link.node);
        match self.hosts[member].state {
            ProcessState::Running => {}
            ProcessState::Paused => return self.hosts[member].inbox.push_back((id, Packet::Data(wire))),
            ProcessState::Down => return,
        }
        self.journal.write(self.now, format_args!("m{member} from c{client}: {wire}"));
        self.remember_owner(client, &wire);
        self.steps += 1;
        let now = self.now;
        match wire {
            EtcdMessage::Call { rpc, token, request } => {
                self.store.cluster.handle_call(now, id, rpc, token.as_deref(), &request);
            }
            EtcdMessage::Open { stream, kind, token } => {
                self.store.cluster.handle_open(now, id, stream, kind, token.as_deref())
            }
            EtcdMessage::Send { stream, message } => {
                self.store.cluster.handle_send(now, id, stream, &message);
                if C::PROVES && self.store.cluster.parked_count() > 0 {
                    self.report(Rule::Contract, format!("client {client} watches from the past"));
                }
            }
            EtcdMessage::Close { stream } => self.store.cluster.handle_close(now, id, stream),
            // Only members send these.
            EtcdMessage::Reply { .. } | EtcdMessage::Message { .. } | EtcdMessage::Ended { .. } => {}
        }
        self.pump_cluster();
    }

    /// Drops undelivered data of a closed connection. The member notices the end.
    fn end_linger(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        let (member, known) = (link.node, link.node_open);
        self.lose(id);
        let host = &mut self.hosts[member];
        host.inbox.retain(|(link, _)| *link != id);
        if known {
            match host.state {
                ProcessState::Paused => host.inbox.push_back((id, Packet::Close(Fault::Reset))),
                ProcessState::Running => {
                    self.store.delayed_calls.retain(|_, (link, _)| *link != id);
                    self.hang_up(id);
                    self.pump_cluster();
                }
                ProcessState::Down => {}
            }
        }
        self.network.sweep();
    }

    /// Reports the end of a connection to the member. Calls received before may be executed later.
    pub(super) fn hang_up(&mut self, id: u64) {
        if self.store.hung_up.insert(id) {
            let rng = &mut self.rng;
            self.store.delayed_calls.retain(|_, (link, _)| *link != id || rng.one_in(2));
        }
        if self.store.delayed_calls.values().any(|(link, _)| *link == id) {
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

    pub(super) fn pump_cluster(&mut self) {
        while let Some(output) = self.store.cluster.poll_output() {
            let link = output.conn();
            match output {
                ClusterOutput::Reply { rpc, reply, .. } => {
                    self.answer(link, EtcdMessage::Reply { rpc, reply });
                }
                ClusterOutput::Message { stream, message, .. } => {
                    self.answer(link, EtcdMessage::Message { stream, message });
                }
                ClusterOutput::Ended { stream, status, .. } => {
                    self.answer(link, EtcdMessage::Ended { stream, status });
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

    /// Sends what a member answers. One reply or message of a watch stream in four is late: an event
    /// may arrive after the reply to a younger read. The messages of one stream keep their order.
    fn answer(&mut self, link: u64, wire: EtcdMessage) {
        let stream = wire.answered_stream();
        let same = |earlier: &EtcdMessage| stream.is_some() && earlier.answered_stream() == stream;
        let earlier = self.store.delayed_replies.iter().rfind(|(_, (_, wire))| same(wire)).map(|((at, _), _)| *at);
        let late = match &wire {
            EtcdMessage::Reply { .. } => self.store.late,
            EtcdMessage::Message { message: StreamReceived::Watch(_), .. } => self.store.late.min(LATE_EVENT),
            EtcdMessage::Message { message: StreamReceived::KeepAlive(_), .. }
            | EtcdMessage::Ended { .. }
            | EtcdMessage::Call { .. }
            | EtcdMessage::Open { .. }
            | EtcdMessage::Send { .. }
            | EtcdMessage::Close { .. } => Duration::ZERO,
        };
        let late = (!late.is_zero() && self.rng.one_in(4)).then(|| self.rng.duration(&(Duration::ZERO..late)));
        let own = late.map(|late| self.now + late);
        match own.max(earlier) {
            Some(at) => {
                let number = self.next_number();
                self.store.delayed_replies.insert((at, number), (link, wire));
            }
            None => self.send_to_client(link, Packet::Data(wire)),
        }
    }

    /// Records changes. Must run before a compaction drops them.
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

impl<C: EtcdClient> World<EtcdServers<C>> {
    pub(super) fn ended(&mut self, client: usize, id: u64, by_client: bool) {
        if let Some(conn) = self.network.links.get(&id).map(|link| link.conn) {
            self.forget_conn(client, conn);
        }
        // Data sent before is still delivered, within the kernel's linger time.
        if by_client {
            let number = self.next_number();
            self.store.lingering.insert((self.now + self.store.linger, number), id);
        }
    }

    pub(super) fn receive(&mut self, client: usize, wire: EtcdMessage) {
        let deleted: Vec<(Bytes, i64)> = wire.deletions().map(|(key, revision)| (key.clone(), revision)).collect();
        if !deleted.is_empty() {
            // Run due timers first, so that the machine's next action is its reaction.
            self.wake_client(client);
        }
        self.note_received(client, &wire, &deleted);
        self.note_told(client, &wire, &deleted);
        self.note_login_reply(client, &wire);
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        match wire {
            EtcdMessage::Reply { rpc, reply } => {
                if let Some(rpc) = self.store.rpcs.remove(&rpc) {
                    self.steps += 1;
                    process.machine.handle_reply(local, rpc, reply);
                }
            }
            EtcdMessage::Message { stream, message } => {
                if let Some(stream) = self.store.streams.get(&stream) {
                    self.steps += 1;
                    process.machine.handle_message(local, *stream, message);
                }
            }
            EtcdMessage::Ended { stream, status } => {
                if let Some(stream) = self.store.streams.remove(&stream) {
                    process.own.streams.remove(&stream);
                    self.steps += 1;
                    process.machine.handle_stream_ended(local, stream, status);
                }
            }
            // Only clients send these.
            EtcdMessage::Call { .. }
            | EtcdMessage::Open { .. }
            | EtcdMessage::Send { .. }
            | EtcdMessage::Close { .. } => {}
        }
        if !deleted.is_empty() {
            let looks = self.pump_calls(client);
            self.check_woken(client, &deleted, &looks);
        }
    }

    /// Notes of which deletions the client is told, unless the connection was replaced.
    fn note_told(&mut self, client: usize, wire: &EtcdMessage, deleted: &[(Bytes, i64)]) {
        let EtcdMessage::Message { stream, message: StreamReceived::Watch(response) } = wire else { return };
        let Some(stream) = self.store.streams.get(stream).copied() else { return };
        let own = &mut self.clients[client].own;
        let is_for_holders = !own.observing.contains(&(stream, response.watch_id));
        if is_for_holders && self.network.find(client, stream.conn()).is_some() {
            let told = &mut own.told;
            for (key, revision) in deleted {
                let last = told.entry(key.clone()).or_default();
                *last = (*last).max(*revision);
            }
        }
    }

    fn note_login_reply(&mut self, client: usize, wire: &EtcdMessage) {
        let EtcdMessage::Reply { rpc: number, reply } = wire else { return };
        let Some(password) = self.store.logins.remove(number) else { return };
        let Some(conn) = self.store.rpcs.get(number).map(|rpc| rpc.conn()) else { return };
        match reply {
            Ok(_) => self.login_answered(client, conn, &password, true),
            Err(status) if status.message.contains("authentication failed") => {
                self.login_answered(client, conn, &password, false);
            }
            Err(_) => {}
        }
    }

    /// Checks that one release triggers one waiter: at most one client looks at its queue after the
    /// deletion of another's key.
    fn check_woken(&mut self, client: usize, deleted: &[(Bytes, i64)], looks: &[Look]) {
        for (key, revision) in deleted {
            let prefix = queue_of(key);
            let created = self.store.queue_log.creation(key, *revision);
            // A client that missed an earlier deletion of this key waits for that one.
            let earlier = |(next, of): &(Bytes, i64)| next == key && created.is_some_and(|created| *of < created);
            let reacts = |look: &Look| {
                look.own_key.starts_with(prefix) && look.own_key != *key && !look.next.as_ref().is_some_and(earlier)
            };
            if !looks.iter().any(reacts) {
                continue;
            }
            if let Some(woken) = self.store.woken.record((key.clone(), *revision), client) {
                let text = format!("clients {woken:?} react to the end of {}", key.escape_ascii());
                self.report(Rule::OneWoken, text);
            }
        }
    }

    /// Checks that the key of a lost hold is not deleted before its guard is released.
    fn check_left_alone(&mut self, client: usize, request: &Rpc) {
        let checker = &self.checker;
        let owners = &mut self.clients[client].own.owners;
        let lost: Vec<LockId> = checker.lost_guards(client).collect();
        owners.retain(|lock, _| {
            checker.stage(client, *lock).is_some_and(|stage| stage != Stage::Over) || lost.contains(lock)
        });
        let found = owners.iter().find(|(lock, owner)| ends(request, owner) && lost.contains(lock));
        if let Some((lock, owner)) = found {
            let text = format!("client {client} deletes {} while the guard of {lock} exists", owner.key.escape_ascii());
            self.report(Rule::ShortenedKey, text);
        }
    }

    /// Carries out all outputs of a machine. Returns the client's looks at its queues.
    pub(super) fn pump_calls(&mut self, client: usize) -> Vec<Look> {
        let mut looks = Vec::new();
        while let Some(output) = self.clients[client].machine.poll_output() {
            if let Output::Call { request: Rpc::Txn(txn), .. } = &output {
                let before = looks.len();
                collect_looks(txn, &mut looks);
                for look in &looks[before..] {
                    self.clients[client].reasons.requested(queue_of(&look.own_key), self.cause);
                }
            }
            self.carry_out(client, output);
            if !self.count_round(client) {
                return looks;
            }
        }
        self.clients[client].update_deadline();
        looks
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn, .. } => self.connect(client, node, conn),
            Output::Credentials { conn, request } => self.request_credentials(client, conn, &request),
            Output::Disconnect { conn, .. } => self.disconnect(client, conn),
            Output::Call { rpc, request, token } => {
                self.journal.fingerprint.call(self.now, client, rpc.conn(), &request);
                self.check_left_alone(client, &request);
                let number = self.next_number();
                self.store.rpcs.insert(number, rpc);
                self.note_call(client, rpc.conn(), number, &request);
                if let Rpc::Authenticate(login) = &request {
                    self.store.logins.insert(number, login.password.as_str().into());
                    self.login_sent(client, rpc.conn(), &login.password);
                }
                self.send_wire(
                    client,
                    rpc.conn(),
                    EtcdMessage::Call { rpc: number, token: reveal(token.as_ref()), request },
                );
            }
            Output::Open { stream, token } => {
                self.journal.fingerprint.open(self.now, client, stream.conn(), stream.kind());
                let number = self.next_number();
                self.store.streams.insert(number, stream);
                self.clients[client].own.streams.insert(stream, number);
                let open = EtcdMessage::Open { stream: number, kind: stream.kind(), token: reveal(token.as_ref()) };
                self.send_wire(client, stream.conn(), open);
            }
            Output::Send { stream, message } => {
                self.journal.fingerprint.message(self.now, client, stream.conn(), &message);
                let Some(number) = self.clients[client].own.streams.get(&stream).copied() else {
                    return self.halt(format!("client {client} sends {message:?} on a stream that is not open"));
                };
                self.note_message(client, stream, &message);
                self.send_wire(client, stream.conn(), EtcdMessage::Send { stream: number, message });
            }
            Output::Close { stream } => {
                self.journal.fingerprint.close(self.now, client, stream.conn(), stream.kind());
                if let Some(number) = self.clients[client].own.streams.remove(&stream) {
                    self.store.streams.remove(&number);
                    self.note_close(client, stream);
                    self.send_wire(client, stream.conn(), EtcdMessage::Close { stream: number });
                }
            }
            Output::Event { lock, event } => self.deliver_event(client, lock, event),
            Output::Operation { id, event } => self.deliver_operation_event(client, id, event),
            Output::Stopped { unreleased } => self.has_stopped(client, unreleased),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.store.number += 1;
        self.store.number
    }

    fn send_wire(&mut self, client: usize, conn: ConnId, wire: EtcdMessage) {
        // How often clients log in depends on the validity of their credentials.
        let renews = self.logins.is_on() && matches!(wire, EtcdMessage::Call { request: Rpc::Authenticate(_), .. });
        self.clients[client].own.sent += u64::from(!renews);
        self.checker.count_request(self.now, client, conn.node().index());
        let Some(id) = self.network.find(client, conn) else {
            return self.halt(format!("client {client} sends {wire} on {conn}, which is not open"));
        };
        if self.network.links.get(&id).is_some_and(|link| !link.established) {
            return self.halt(format!("client {client} sends {wire} on {conn}, which is still being opened"));
        }
        self.send(id, Direction::ToNode, Packet::Data(wire));
    }

    fn forget_conn(&mut self, client: usize, conn: ConnId) {
        let stale = self.stale;
        let process = &mut self.clients[client];
        process.own.pending.retain(|stream, _| stream.conn() != conn);
        process.own.streams.retain(|stream, number| {
            let gone = stream.conn() == conn;
            // In stale mode, later data on the stream is still delivered.
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

//! The event loop of the store, and the host of a client's machine: requests and watches.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::ledger::{RecordedHold, fence_of};
use super::{RegisterClient, RegisterMessage, Registers, Use};
use crate::check::Rule;
use crate::direction::Direction;
use crate::network::{Packet, Payload as _};
use crate::trace::ProcessState;
use crate::world::World;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::register::{Output, Record, Reply, Request};
use lock_proto::{ConnId, LockId, NodeId, Role};

/// The time of day at the start.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How often a host reports the time of day.
const TELLS_TIME: Duration = Duration::from_secs(1);

impl<C: RegisterClient> World<Registers<C>> {
    pub(super) fn execute_delayed(&mut self) -> bool {
        let now = self.now;
        let Some(due) = self.store.delayed.first_entry().filter(|due| due.key().0 <= now) else { return false };
        let (link, message) = due.remove();
        self.execute(link, message);
        true
    }

    pub(super) fn receive_on_store(&mut self, id: u64, packet: Packet<RegisterMessage>) {
        self.steps += 1;
        match packet {
            Packet::Open => {}
            Packet::Handshake(left) => {
                if self.answer_handshake(id, left) {
                    self.store_hangs_up(id);
                }
            }
            Packet::Data(message) => {
                let at = self.execution_time(&message);
                if at == self.now {
                    return self.execute(id, message);
                }
                self.store.number += 1;
                self.store.delayed.insert((at, self.store.number), (id, message));
            }
            // Requests that have arrived are executed.
            Packet::Close(_) => self.store_hangs_up(id),
        }
    }

    fn store_hangs_up(&mut self, id: u64) {
        self.store.watches.remove(&id);
        if let Some(link) = self.network.links.get_mut(&id) {
            link.node_open = false;
        }
        self.network.sweep();
    }

    /// Returns when a request that arrives now is executed: after all earlier ones, or late.
    fn execution_time(&mut self, message: &RegisterMessage) -> Instant {
        let busy = self.hosts[0].busy_until.unwrap_or(self.now).max(self.now);
        let mut at = busy;
        if !self.service.is_zero() {
            at = busy + self.service;
            self.hosts[0].busy_until = Some(at);
            self.served(at.since(self.now));
        }
        if matches!(message, RegisterMessage::Call { .. }) && self.rng.one_in(4) {
            at = at + self.rng.duration(&(Duration::ZERO..self.store.late));
        }
        at
    }

    fn execute(&mut self, id: u64, message: RegisterMessage) {
        match self.hosts[0].state {
            ProcessState::Running => {}
            ProcessState::Paused => return self.hosts[0].inbox.push_back((id, Packet::Data(message))),
            ProcessState::Down => return,
        }
        self.steps += 1;
        match message {
            RegisterMessage::Call { request, sent } => {
                let (reply, wrote) = self.store.register.execute(self.now, &request);
                let label = RegisterMessage::Reply(reply.clone()).label(Direction::ToClient);
                if let (true, Request::Write { key, record, .. }) = (wrote, &request) {
                    self.note_written(sent, key, record);
                }
                let call = RegisterMessage::Call { request, sent };
                self.journal.write(self.now, format_args!("{}: {label}", call.label(Direction::ToNode)));
                self.answer(id, RegisterMessage::Reply(reply));
            }
            RegisterMessage::Watch { key, seen } => {
                if self.network.links.get(&id).is_some_and(|link| link.node_open) {
                    self.store.watches.insert(id, (key, seen));
                }
            }
            // Only the store sends these.
            RegisterMessage::Reply(_) | RegisterMessage::Changed => {}
        }
        self.changed();
    }

    fn answer(&mut self, id: u64, message: RegisterMessage) {
        if self.network.links.get(&id).is_some_and(|link| link.node_open) {
            self.send(id, Direction::ToClient, Packet::Data(message));
        }
    }

    /// Reports changes to those who watch, and checks what is there now.
    pub(super) fn changed(&mut self) {
        let register = &self.store.register;
        let changed = |(key, seen): &(Bytes, _)| register.revision(key) != Option::as_ref(seen);
        let told: Vec<u64> = self.store.watches.iter().filter(|(_, watch)| changed(watch)).map(|(id, _)| *id).collect();
        for id in told {
            self.store.watches.remove(&id);
            if !self.store.loses_hints || self.rng.one_in(2) {
                self.answer(id, RegisterMessage::Changed);
            }
        }
        self.report_ghosts();
    }

    fn note_written(&mut self, sent: Instant, key: &Bytes, record: &Record) {
        let (before, value) = self.store.ledger.wrote(self.now, sent, key, record);
        self.checker.stored(self.now, 0, key, value.as_deref().map(|value| (value, None)));
        if let Some(before) = before.filter(|before| before.until > self.now) {
            self.check_replaced(key, record, before);
        }
        self.check();
    }

    /// Checks who replaces a record before its time is over: its own client, and not while the guard
    /// of a lost hold exists.
    // RG1, H6
    fn check_replaced(&mut self, key: &Bytes, record: &Record, before: RecordedHold) {
        let RecordedHold { client, fence, until, known_until } = before;
        if self.clients[client].own.id != record.writer.client {
            let text = format!("the record of client {client} was replaced before {until}: {}", key.escape_ascii());
            return self.report(Rule::ShortenedKey, text);
        }
        if (record.held && record.fence == fence) || known_until <= self.now {
            return;
        }
        let is_of = |lock: &LockId| {
            let record = self.clients[client].records.get(lock).filter(|record| *record.name == **key);
            record.and_then(|record| fence_of(record.grant.as_ref()?)) == Some(fence)
        };
        let found = self.checker.lost_guards(client).find(is_of);
        if let Some(lock) = found {
            let text = format!("the record of client {client} {lock} was replaced while its guard exists");
            self.report(Rule::ShortenedKey, text);
        }
    }
}

impl<C: RegisterClient> World<Registers<C>> {
    pub(super) fn receive_on_client(&mut self, client: usize, conn: ConnId, message: RegisterMessage) {
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        let Some(used) = process.own.uses.remove(&conn) else { return };
        process.own.idle.push(conn);
        match (used, message) {
            (Use::Call(call), RegisterMessage::Reply(reply)) => process.machine.handle_reply(local, call, &reply),
            (Use::Watch(key), RegisterMessage::Changed) => {
                process.reasons.notified(key.to_vec());
                process.machine.handle_changed(local, &key);
            }
            (Use::Call(_) | Use::Watch(_), _) => {}
        }
    }

    /// The outcome of a request in flight is unknown. A watch that ends reports nothing any more.
    pub(super) fn connection_ended(&mut self, client: usize, id: u64) {
        let Some(conn) = self.network.links.get(&id).map(|link| link.conn) else { return };
        let is_dead = self.is_dead(client);
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.own.idle.retain(|idle| *idle != conn);
        if let Some(Use::Call(call)) = process.own.uses.remove(&conn).filter(|_| !is_dead) {
            process.machine.handle_reply(local, call, &Reply::Unknown(Fault::Reset.into()));
        }
    }

    /// Carries out all outputs of a machine.
    pub(super) fn pump_requests(&mut self, client: usize) {
        self.tell_time(client);
        let local = self.clients[client].local(self.now);
        while let Some(output) = self.clients[client].machine.poll_output(local) {
            self.carry_out(client, output);
            if !self.count_round(client) {
                return;
            }
        }
        self.clients[client].update_deadline();
    }

    fn tell_time(&mut self, client: usize) {
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        if process.own.told_time.is_some_and(|at| self.now < at + TELLS_TIME) {
            return;
        }
        process.own.told_time = Some(self.now);
        process.machine.set_time_of_day(local, EPOCH + self.now.since(Instant::ZERO) + process.own.skew);
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Send { call, request, timeout: _ } => {
                self.journal.fingerprint.register(self.now, client, &request);
                self.checker.count_request(self.now, client, 0);
                let process = &mut self.clients[client];
                process.own.sent += 1;
                process.reasons.requested(request.key(), self.cause);
                self.post(client, RegisterMessage::Call { request, sent: self.now }, Use::Call(call));
            }
            Output::Watch { key, seen } => {
                self.unwatch(client, &key);
                if self.store.register.config().watches {
                    self.post(client, RegisterMessage::Watch { key: key.clone(), seen }, Use::Watch(key));
                }
            }
            Output::Unwatch { key } => self.unwatch(client, &key),
            Output::Event { lock, event } => self.deliver_event(client, lock, event),
            Output::Operation { id, event } => self.deliver_operation_event(client, id, event),
            Output::Stopped { unreleased } => self.has_stopped(client, unreleased),
        }
    }

    /// Sends a message on a connection that is not in use, a new one if there is none.
    fn post(&mut self, client: usize, message: RegisterMessage, used: Use) {
        let own = &mut self.clients[client].own;
        let conn = own.idle.pop().unwrap_or_else(|| {
            own.generation += 1;
            ConnId::new(NodeId::new(0), Role::Commands, own.generation)
        });
        own.uses.insert(conn, used);
        if self.network.find(client, conn).is_none() {
            self.connect(client, conn.node(), conn);
        }
        if let Some(id) = self.network.find(client, conn) {
            self.send(id, Direction::ToNode, Packet::Data(message));
        }
    }

    fn unwatch(&mut self, client: usize, key: &Bytes) {
        let uses = &mut self.clients[client].own.uses;
        let watch = uses.iter().find(|(_, used)| matches!(used, Use::Watch(watched) if watched == key));
        let Some(conn) = watch.map(|(conn, _)| *conn) else { return };
        uses.remove(&conn);
        self.disconnect(client, conn);
    }
}

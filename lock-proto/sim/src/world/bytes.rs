//! The host of clients that exchange bytes with their servers, and the resource that checks fencing
//! tokens.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::World;
use super::handover::CallCause;
use super::process::Input;
use super::store::{Planned, SimServers, SimStore};
use crate::check::{Permit, Stage};
use crate::direction::Direction;
use crate::network::Packet;
use crate::trace::{Delivery, Lane, MessageId, TraceEvent};
use lock_proto::ByteClient;
use lock_proto::lock::Output;
use lock_proto::{ConnId, LockId};

/// Delay of an application between checking that it holds a lock and writing.
const THINK_TIME: Range<Duration> = Duration::ZERO..Duration::from_millis(3);

#[derive(Clone, Debug)]
pub(crate) enum Chore {
    /// Checks that the lock is held and writes a moment later. Repeated if an interval is given.
    Look(LockId, Option<Duration>),
    /// Writes to the protected resource without another check.
    Write(Permit),
    /// The host writes the gathered data.
    Flush,
}

#[derive(Clone, Debug)]
pub(crate) struct BytesWrite {
    name: Arc<[u8]>,
    permit: Permit,
    message: Option<MessageId>,
}

/// Servers that speak a byte protocol.
pub(super) trait ByteServers:
    SimServers<Packet = Vec<u8>, Chore = Chore, Write = BytesWrite> + SimStore<Client: ByteClient>
{
    /// How long client hosts gather writes.
    fn gather(&self) -> Duration {
        Duration::ZERO
    }
    /// Why the host has a write scheduled, if it has.
    fn pending_flush(own: &mut Self::Own) -> &mut Option<CallCause>;
    /// A client's host has written these bytes.
    fn note_requests(w: &mut World<Self>, client: usize, link: u64, conn: ConnId, bytes: &[u8]);
    /// A machine has no outputs left.
    fn pumped(_: &mut World<Self>, _client: usize) {}
}

/// What applications do that write with a fencing token.
impl<S: SimServers<Chore = Chore, Write = BytesWrite>> World<S> {
    /// Checks that the application holds the lock, and writes a moment later.
    pub(super) fn write_with_token(&mut self, client: usize, lock: LockId) {
        self.deliver_input(client, Input::Chore(Chore::Look(lock, None)));
    }

    pub(super) fn do_application_chore(&mut self, client: usize, chore: Chore) {
        match chore {
            Chore::Look(lock, every) => {
                if self.is_held(client, lock)
                    && let Some(permit) = self.checker.permit(client, lock)
                {
                    let thinks = self.rng.duration(&THINK_TIME);
                    self.plan(self.now + thinks, client, Input::Chore(Chore::Write(permit)));
                }
                if let (Some(every), Some(Stage::Held)) = (every, self.checker.stage(client, lock)) {
                    self.plan(self.now + every, client, Input::Chore(Chore::Look(lock, Some(every))));
                }
            }
            Chore::Flush => {}
            Chore::Write(permit) => {
                let Some(record) = self.clients[client].records.get(&permit.lock) else { return };
                let (name, draw_latency) = (record.name.clone(), self.network.draw_latency());
                let label = || permit.fence.map_or_else(|| "write".into(), |fence| format!("write, fence {fence}"));
                let message = self.recorder.sent(self.now, Lane::Client(client), Lane::Resource, label);
                self.agenda.plan(self.now + draw_latency, Planned::Write(BytesWrite { name, permit, message }));
            }
        }
    }

    pub(super) fn byte_write_arrives(&mut self, write: BytesWrite) {
        let BytesWrite { name, permit, message } = write;
        let accepted = self.checker.write(self.now, &name, permit);
        let Permit { client, lock, fence, .. } = permit;
        let taken = if accepted { "taken" } else { "refused" };
        self.journal.write(self.now, format_args!("resource: write of c{client} {lock}, fence {fence:?}: {taken}"));
        self.recorder.set_delivery(message, Delivery::Arrived(self.now));
        let shown = || format!("{}", name.escape_ascii());
        self.recorder.note(self.now, || TraceEvent::Write { client, lock, name: shown(), fence, accepted });
        self.check();
    }

    /// Schedules the writes of a holder.
    pub(super) fn write_while_held(&mut self, client: usize, lock: LockId) {
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        if let (Some(every), Some(Duration::ZERO)) = (record.habits.write_every, record.habits.claim) {
            self.plan(self.now + every, client, Input::Chore(Chore::Look(lock, Some(every))));
        }
    }
}

impl<S: ByteServers> World<S> {
    pub(super) fn do_byte_chore(&mut self, client: usize, chore: Chore) {
        if let Chore::Flush = chore {
            self.cause = S::pending_flush(&mut self.clients[client].own).take().unwrap_or(self.cause);
            self.send_all(client);
        }
        self.do_application_chore(client, chore);
    }

    pub(super) fn receive_bytes(&mut self, client: usize, conn: ConnId, bytes: &[u8]) {
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_received(local, conn, bytes);
    }

    /// Carries out the outputs of a machine until there are none left. Whether bytes or outputs go
    /// first is random, because nothing may depend on it.
    // M2
    pub(super) fn pump_bytes(&mut self, client: usize) {
        let bytes_first = self.rng.one_in(2);
        if bytes_first {
            self.write_out(client);
        }
        loop {
            let mut polled = false;
            while let Some(output) = self.clients[client].machine.poll_output() {
                polled = true;
                self.carry_out_bytes(client, output);
            }
            // An output, or the first round, may have left bytes.
            let sent = (polled || !bytes_first) && self.write_out(client);
            if !polled && !sent {
                break;
            }
            if !self.count_round(client) {
                return;
            }
        }
        self.clients[client].update_deadline();
        S::pumped(self, client);
    }

    /// Writes pending bytes, or schedules the write. Returns whether it wrote any.
    fn write_out(&mut self, client: usize) -> bool {
        if self.store.gather().is_zero() {
            return self.send_all(client);
        }
        if S::pending_flush(&mut self.clients[client].own).is_none() && self.has_outgoing(client) {
            *S::pending_flush(&mut self.clients[client].own) = Some(self.cause);
            self.plan(self.now + self.store.gather(), client, Input::Chore(Chore::Flush));
        }
        false
    }

    fn has_outgoing(&self, client: usize) -> bool {
        let mut place = 0;
        while let Some((found, _, link)) = self.network.next_of_client(client, place) {
            if self.network.room(link, Direction::ToNode) > 0 && self.clients[client].machine.has_outgoing(link.conn) {
                return true;
            }
            place = found + 1;
        }
        false
    }

    fn send_all(&mut self, client: usize) -> bool {
        let mut moved = false;
        let mut place = 0;
        while let Some((found, id, link)) = self.network.next_of_client(client, place) {
            let (conn, room) = (link.conn, self.network.room(link, Direction::ToNode));
            let machine = &mut self.clients[client].machine;
            let bytes = machine.outgoing(conn);
            let bytes = &bytes[..bytes.len().min(room)];
            if bytes.is_empty() {
                place = found + 1;
                continue;
            }
            let bytes = bytes.to_vec();
            machine.consume(conn, bytes.len());
            self.checker.count_request(self.now, client, conn.node().index());
            S::note_requests(self, client, id, conn, &bytes);
            self.journal.fingerprint.sent(self.now, client, conn, &bytes);
            self.send_bytes(id, Direction::ToNode, bytes);
            moved = true;
        }
        moved
    }

    /// Sends bytes, sometimes in several pieces.
    pub(super) fn send_bytes(&mut self, id: u64, direction: Direction, mut bytes: Vec<u8>) {
        loop {
            let draw_piece = self.network.draw_piece(bytes.len());
            if draw_piece >= bytes.len() {
                return self.send(id, direction, Packet::Data(bytes));
            }
            let rest = bytes.split_off(draw_piece);
            self.send(id, direction, Packet::Data(bytes));
            bytes = rest;
        }
    }

    fn carry_out_bytes(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn, .. } => self.connect(client, node, conn),
            Output::Credentials { conn, request } => self.request_credentials(client, conn, &request),
            Output::Disconnect { conn, .. } => self.disconnect(client, conn),
            Output::Event { lock, event } => self.deliver_event(client, lock, event),
            Output::Operation { id, event } => self.deliver_operation_event(client, id, event),
            Output::Stopped { unreleased } => self.has_stopped(client, unreleased),
        }
    }
}

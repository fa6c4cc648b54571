//! The event loop: what a host does for a machine, for all of them at once.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::super::check::{Permit, Rule, Stage};
use super::super::common::MAX_SPINS;
use super::super::network::{Arrival, Packet, Posted};
use super::super::trace::{Fate, Lane, MessageId, Point, State, What};
use super::super::way::Way;
use super::label::{command, replies, requests};

use super::process::{Chore, Fact};
use super::server::Inbound;
use super::{Planned, World};
use crate::fault::Fault;
use crate::id::LockId;
use crate::lock::Event;
use crate::redis::Output;
use crate::time::Instant;

/// How long an application takes from seeing that it holds a lock to writing.
const THINKS: Range<Duration> = Duration::ZERO..Duration::from_millis(3);

impl World {
    /// Goes to the next thing that happens and lets it happen; at most to `end`. False once `end` is reached.
    pub(super) fn step(&mut self, end: Instant) -> bool {
        if self.halted {
            return false;
        }
        let mut next = self.network.next_arrival().unwrap_or(Instant::MAX);
        if let Some(at) = self.agenda.next() {
            next = next.min(at);
        }
        for process in &self.clients {
            next = process.deadline().map_or(next, |at| next.min(at));
        }
        for server in &self.nodes {
            next = server.deadline().map_or(next, |at| next.min(at));
        }
        if !self.advance(next, end) {
            return false;
        }
        // One thing a step, so that a condition is asked in between.
        if let Some(arrival) = self.network.arrive(self.now) {
            self.deliver(arrival);
        } else if let Some(planned) = self.agenda.due(self.now) {
            match planned {
                Planned::Chore(client, chore) => self.tell_process(client, Fact::Chore(chore)),
                Planned::Write(name, permit, message) => self.write_arrives(&name, permit, message),
            }
        } else if let Some(client) = (0..self.clients.len()).find(|c| self.is_client_due(*c)) {
            self.wake_client(client);
        } else if let Some(node) = self.due_node() {
            self.steps += 1;
            self.nodes[node].node.handle_timeout(self.now);
            self.pump_node(node);
        }
        true
    }

    fn is_client_due(&self, client: usize) -> bool {
        self.clients[client].deadline().is_some_and(|at| at <= self.now)
    }

    fn due_node(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| self.nodes[*node].deadline().is_some_and(|at| at <= self.now))
    }

    fn deliver(&mut self, arrival: Arrival<Vec<u8>>) {
        let Some(link) = self.network.links.get(&arrival.link) else { return };
        let (client, node, conn) = (link.client, link.node, link.conn);
        let Posted { packet, message } = arrival.posted;
        self.recorder.fate(message, Fate::Arrived(self.now));
        match arrival.way {
            Way::ToNode => {
                self.deliver_to_node(arrival.link, node, packet);
                if arrival.frees {
                    self.pump_client(client);
                }
            }
            Way::ToClient => match packet {
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
            Packet::Open if state == State::Down => {
                self.send(id, Way::ToClient, Packet::Close(Fault::Refused));
                return;
            }
            // The kernel accepts, whether or not the process runs.
            Packet::Open => {
                link.node_open = true;
                self.send(id, Way::ToClient, Packet::Open);
                Inbound::Open(id)
            }
            Packet::Data(bytes) if link.node_open => Inbound::Bytes(id, bytes),
            Packet::Close(_) if link.node_open => Inbound::Close(id),
            Packet::Data(_) | Packet::Close(_) => return,
        };
        match state {
            State::Running => {
                self.node_takes(node, inbound);
                self.pump_node(node);
            }
            State::Paused => self.nodes[node].inbox.push_back(inbound),
            State::Down => {}
        }
    }

    pub(super) fn node_takes(&mut self, node: usize, inbound: Inbound) {
        self.steps += 1;
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
        let mut place = 0;
        while let Some((found, id)) = self.network.next_of_node(node, place) {
            place = found + 1;
            let server = &mut self.nodes[node].node;
            let bytes = server.outgoing(id);
            if !bytes.is_empty() {
                let bytes = bytes.to_vec();
                server.consume(id, bytes.len());
                self.send_bytes(id, Way::ToClient, bytes);
            }
        }
        while let Some(id) = self.nodes[node].node.poll_closed() {
            self.nodes[node].node.handle_disconnected(self.now, id);
            if let Some(link) = self.network.links.get_mut(&id)
                && link.node_open
            {
                link.node_open = false;
                self.send(id, Way::ToClient, Packet::Close(Fault::Closed));
            }
        }
        self.nodes[node].look();
        self.check_keys(node);
    }

    fn check_keys(&mut self, node: usize) {
        let server = &self.nodes[node].node;
        for key in &self.names {
            self.checker.stored(self.now, node, key, server.string(self.now, key));
        }
        for key in &self.counters {
            let text = server.get(self.now, key).and_then(|text| core::str::from_utf8(text).ok());
            if let Some(counter) = text.and_then(|text| text.parse().ok()) {
                self.checker.counted(self.now, node, counter, server.unix_micros(self.now));
            }
        }
        self.look_for_ghosts(node);
        self.check();
    }

    /// A client that has no timer, and nobody who waits or holds, will delete nothing more: no key of it may be there.
    fn look_for_ghosts(&mut self, node: usize) {
        for key in &self.names {
            let Some((value, _)) = self.nodes[node].node.string(self.now, key) else { continue };
            let owner = self.clients.iter().position(|process| process.has_forgotten(value));
            if let Some(client) = owner.filter(|client| self.checker.live(*client).next().is_none()) {
                let text = format!("client {client} is idle, and {} on node {node} is its key", key.escape_ascii());
                self.checker.report(self.now, Rule::Ghost, text);
            }
        }
    }

    // ---- what travels ----

    /// Puts a packet on its way, and into the record.
    pub(super) fn send(&mut self, id: u64, way: Way, packet: Packet<Vec<u8>>) {
        if !self.recorder.is_on() {
            return self.network.send(self.now, id, way, Posted { packet, message: None });
        }
        let Some(link) = self.network.links.get(&id) else { return };
        let (client, node) = (Lane::Client(link.client), Lane::Node(link.node));
        let (from, to) = match way {
            Way::ToNode => (client, node),
            Way::ToClient => (node, client),
        };
        let message = self.recorder.sent(self.now, from, to, || match (&packet, way) {
            (Packet::Open, Way::ToNode) => "connect".into(),
            (Packet::Open, Way::ToClient) => "connected".into(),
            (Packet::Data(bytes), Way::ToNode) => requests(bytes),
            (Packet::Data(bytes), Way::ToClient) => replies(bytes),
            (Packet::Close(why), _) => format!("close ({why})"),
        });
        self.network.send(self.now, id, way, Posted { packet, message });
    }

    /// Sends bytes, now and then in several pieces.
    fn send_bytes(&mut self, id: u64, way: Way, mut bytes: Vec<u8>) {
        loop {
            let piece = self.network.piece(bytes.len());
            if piece >= bytes.len() {
                return self.send(id, way, Packet::Data(bytes));
            }
            let rest = bytes.split_off(piece);
            self.send(id, way, Packet::Data(bytes));
            bytes = rest;
        }
    }

    /// A write reaches what a lock protects.
    fn write_arrives(&mut self, name: &[u8], permit: Permit, message: Option<MessageId>) {
        let accepted = self.checker.write(self.now, name, permit);
        let Permit { client, lock, fence, .. } = permit;
        let taken = if accepted { "taken" } else { "refused" };
        self.journal.write(self.now, format_args!("resource: write of c{client} {lock}, fence {fence:?}: {taken}"));
        self.recorder.fate(message, Fate::Arrived(self.now));
        let shown = || format!("{}", name.escape_ascii());
        self.recorder.note(self.now, || What::Write { client, lock, name: shown(), fence, accepted });
        self.check();
    }

    /// Something reaches a process: at once, or when it goes on.
    pub(super) fn tell_process(&mut self, client: usize, fact: Fact) {
        match self.clients[client].state {
            State::Running => {
                self.process_takes(client, fact);
                self.pump_client(client);
            }
            State::Paused => self.clients[client].inbox.push_back(fact),
            State::Down => {}
        }
    }

    pub(super) fn process_takes(&mut self, client: usize, fact: Fact) {
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        let open = |world: &Self, conn| world.network.find(client, conn);
        match fact {
            Fact::Connected(conn) => {
                let Some(id) = open(self, conn) else { return };
                self.steps += 1;
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.established = true;
                }
                self.journal.write(self.now, format_args!("c{client}/{conn} connected"));
                self.clients[client].machine.handle_connected(local, conn);
            }
            Fact::Received(conn, bytes) => {
                if open(self, conn).is_some() {
                    self.steps += 1;
                    self.clients[client].machine.handle_received(local, conn, &bytes);
                }
            }
            Fact::Disconnected(conn, why) => {
                let Some(id) = open(self, conn) else { return };
                self.steps += 1;
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.client_open = false;
                }
                self.network.sweep();
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnected: {why}"));
                self.clients[client].machine.handle_disconnected(local, conn, why);
            }
            Fact::Chore(chore) => self.do_chore(client, chore),
        }
    }

    fn do_chore(&mut self, client: usize, chore: Chore) {
        match chore {
            Chore::Release(lock) => {
                if matches!(self.checker.stage(client, lock), Some(Stage::Held | Stage::Lost)) {
                    self.release(client, lock);
                }
            }
            Chore::Look(lock, every) => {
                if self.is_held(client, lock)
                    && let Some(permit) = self.checker.permit(client, lock)
                {
                    let thinks = self.rng.duration(&THINKS);
                    self.agenda.plan(self.now + thinks, Planned::Chore(client, Chore::Write(permit)));
                }
                if let (Some(every), Some(Stage::Held)) = (every, self.checker.stage(client, lock)) {
                    self.agenda.plan(self.now + every, Planned::Chore(client, Chore::Look(lock, Some(every))));
                }
            }
            Chore::Flush => {
                self.clients[client].gathers = false;
                self.send_all(client);
            }
            Chore::Write(permit) => {
                let Some(record) = self.clients[client].records.get(&permit.lock) else { return };
                let (name, travel) = (record.name.clone(), self.network.travel());
                let label = || permit.fence.map_or_else(|| "write".into(), |fence| format!("write, fence {fence}"));
                let message = self.recorder.sent(self.now, Lane::Client(client), Lane::Resource, label);
                self.agenda.plan(self.now + travel, Planned::Write(name, permit, message));
            }
        }
    }

    /// Carries out what a machine asks for, until it asks for nothing more. Whether bytes or outputs go first is left to
    /// chance: nothing may depend on it (requirement M2).
    pub(super) fn pump_client(&mut self, client: usize) {
        if self.clients[client].state != State::Running {
            return;
        }
        let bytes_first = self.rng.one_in(2);
        if bytes_first {
            self.write_out(client);
        }
        loop {
            let mut asked = false;
            while let Some(output) = self.clients[client].machine.poll_output() {
                asked = true;
                self.carry_out(client, output);
            }
            // What was carried out, or nothing at all so far, may have left bytes.
            let sent = (asked || !bytes_first) && self.write_out(client);
            if !asked && !sent {
                break;
            }
            self.spins += 1;
            if self.spins > MAX_SPINS {
                self.halt("a machine asks for more and more without end".into());
                return;
            }
        }
        self.clients[client].look();
        if self.clients[client].deadline().is_none() {
            (0..self.nodes.len()).for_each(|node| self.look_for_ghosts(node));
        }
        // Whatever is due is still to come.
        if !self.is_client_due(client) {
            self.checker.up_to_date(self.now, client);
            self.check();
        }
    }

    /// Writes what there is, now or in a moment. True if it was now, and some.
    fn write_out(&mut self, client: usize) -> bool {
        if self.gather.is_zero() {
            return self.send_all(client);
        }
        let process = &mut self.clients[client];
        let mut place = 0;
        while !process.gathers
            && let Some((found, _, link)) = self.network.next_of_client(client, place)
        {
            if self.network.room(link, Way::ToNode) > 0 && process.machine.has_outgoing(link.conn) {
                process.gathers = true;
                self.agenda.plan(self.now + self.gather, Planned::Chore(client, Chore::Flush));
            }
            place = found + 1;
        }
        false
    }

    fn send_all(&mut self, client: usize) -> bool {
        let mut moved = false;
        let mut place = 0;
        while let Some((found, id, link)) = self.network.next_of_client(client, place) {
            let (conn, room) = (link.conn, self.network.room(link, Way::ToNode));
            let machine = &mut self.clients[client].machine;
            let bytes = machine.outgoing(conn);
            let bytes = &bytes[..bytes.len().min(room)];
            if bytes.is_empty() {
                place = found + 1;
                continue;
            }
            let bytes = bytes.to_vec();
            machine.consume(conn, bytes.len());
            self.checker.request(self.now, client, conn.node().index());
            self.journal.facts.sent(self.now, client, conn, &bytes);
            self.send_bytes(id, Way::ToNode, bytes);
            moved = true;
        }
        moved
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        match output {
            Output::Connect { node, conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} connect"));
                self.journal.facts.connect(self.now, client, conn);
                if node.index() >= self.nodes.len() || self.network.find(client, conn).is_some() {
                    self.halt(format!("client {client} asks for the connection {conn}, which cannot be"));
                    return;
                }
                let server = self.leads.get(&(client, node.index())).copied().unwrap_or_else(|| node.index());
                let id = self.network.open(client, server, conn);
                self.send(id, Way::ToNode, Packet::Open);
            }
            Output::Disconnect { conn } => {
                self.journal.write(self.now, format_args!("c{client}/{conn} disconnect"));
                self.journal.facts.disconnect(self.now, client, conn);
                if let Some(id) = self.network.find(client, conn) {
                    self.send(id, Way::ToNode, Packet::Close(Fault::Closed));
                    if let Some(link) = self.network.links.get_mut(&id) {
                        link.client_open = false;
                    }
                }
            }
            Output::Event { lock, event } => self.told(client, lock, event),
            Output::Stopped { unreleased } => {
                self.journal.write(self.now, format_args!("c{client} stopped, {unreleased} not released"));
                self.journal.facts.stopped(self.now, client, unreleased);
                self.clients[client].stopped = Some(unreleased);
                self.word(Some(Lane::Client(client)), || "stopped".into());
                self.checker.stopped(self.now, client);
                self.check();
            }
        }
    }

    fn told(&mut self, client: usize, lock: LockId, event: Event) {
        self.journal.write(self.now, format_args!("c{client} {lock} {event:?}"));
        self.journal.facts.event(self.now, client, lock, &event);
        let now = self.now;
        let until = self.valid_until(client, &event);
        let Some(record) = self.clients[client].records.get_mut(&lock) else {
            self.checker.told(now, client, lock, &event, until, None);
            return self.check();
        };
        record.events.push(event.clone());
        record.times.push(now);
        let (claim, hold, write_every) = (record.claim, record.hold, record.write_every);
        let mut order = None;
        if let Event::Granted(grant) = &event {
            record.grant = Some(*grant);
            // A quorum has no one order.
            if self.nodes.len() == 1 {
                order = self.checker.order(&record.name, format!("{}", grant.token).as_bytes());
            }
        }
        self.checker.told(now, client, lock, &event, until, order);
        self.check_extend(client, lock, &event);
        let fence = self.checker.permit(client, lock).and_then(|permit| permit.fence);
        self.record_told(client, lock, &event, fence, until);
        self.check();
        if !matches!(event, Event::Granted(_)) {
            return;
        }
        if let Some(hold) = hold {
            self.agenda.plan(now + hold, Planned::Chore(client, Chore::Release(lock)));
        }
        if claim {
            self.take(client, lock);
            if let Some(every) = write_every {
                self.agenda.plan(now + every, Planned::Chore(client, Chore::Look(lock, Some(every))));
            }
        }
    }

    fn record_told(&mut self, client: usize, lock: LockId, event: &Event, fence: Option<u64>, until: Option<Instant>) {
        let valid_until = until.unwrap_or(self.now);
        let point = match event {
            Event::Granted(_) => Point::Granted { fence, valid_until },
            Event::Renewed { .. } => Point::Renewed { valid_until },
            Event::Lost(why) => return self.point(client, lock, || Point::Lost(format!("{why}"))),
            Event::Withdrawn | Event::Failed(_) | Event::Released(_) => {
                return self.point(client, lock, || Point::Ended(format!("{event:?}")));
            }
            Event::Blocked(_)
            | Event::Extended
            | Event::ExtendFailed(_)
            | Event::AtRisk { .. }
            | Event::Proclaimed { .. }
            | Event::ProclaimFailed(_) => return,
        };
        self.point(client, lock, || point);
    }
}

//! The event loop, which plays the host of every machine.

use alloc::format;
use core::ops::Range;
use core::time::Duration;

use super::super::check::{Rule, Stage};
use super::super::direction::Direction;
use super::super::network::{Arrival, Packet, Posted};
use super::super::trace::{Delivery, Lane, ProcessState, TraceEvent};
use super::World;
use super::handover::CallCause;
use super::process::{Input, Process};
use super::store::{Planned, SimServers, label};
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::TlsFault;
use lock_proto::{ConnId, LockId, NodeId};
use lock_proto::{Event, LockClient as _, Machine as _};

/// This many steps without an advance of time count as an endless loop.
pub(super) const MAX_STEPS_AT_INSTANT: u32 = 100_000;

/// Two conversions between clocks may differ by this much.
const ROUNDING: Duration = Duration::from_micros(1);

/// Delay of stale data after the end of its connection.
const STALE: Range<Duration> = Duration::ZERO..Duration::from_millis(200);

impl<S: SimServers> World<S> {
    /// Returns the true time since the start.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Runs the world for `time`.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
    }

    /// Runs the world until `condition` holds, at most for `within`. Returns whether it held.
    pub fn run_until(&mut self, within: Duration, mut condition: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + within;
        loop {
            if condition(self) {
                return true;
            }
            if !self.step(end) {
                return condition(self);
            }
        }
    }

    /// Runs the world until `condition` holds.
    ///
    /// # Panics
    ///
    /// If `condition` does not hold within `within`.
    #[track_caller]
    pub fn expect(&mut self, within: Duration, what: &str, condition: impl FnMut(&Self) -> bool) {
        if !self.run_until(within, condition) {
            self.fail(&format!("not within {within:?}: {what}"));
        }
    }

    /// Runs the next event, if it is not later than `end`. Returns false once `end` is reached.
    fn step(&mut self, end: Instant) -> bool {
        if self.halted {
            return false;
        }
        let mut next = self.network.next_arrival().unwrap_or(Instant::MAX);
        for at in [self.agenda.next(), S::next_due(self)].into_iter().flatten() {
            next = next.min(at);
        }
        for at in self.clients.iter().filter_map(Process::deadline) {
            next = next.min(at);
        }
        if !self.advance(next, end) {
            return false;
        }
        // One event per step, so that a condition is evaluated in between.
        if let Some(arrival) = self.network.arrive(self.now) {
            self.deliver(arrival);
        } else if S::act_first(self) {
        } else if let Some(planned) = self.agenda.due(self.now) {
            match planned {
                Planned::Input(client, input) => self.deliver_input(client, input),
                Planned::Writable(client, node) => {
                    self.network.set_full(client, node, false);
                    self.pump_client(client);
                }
                Planned::Write(write) => S::write_arrives(self, write),
                Planned::Retire(password) => self.retire(&password),
            }
        } else if let Some(client) = (0..self.clients.len()).find(|client| self.is_client_due(*client)) {
            self.wake_client(client);
        } else {
            S::act(self);
        }
        S::stepped(self);
        true
    }

    /// Advances to `next`, at most to `end`. Returns whether the event is due now.
    fn advance(&mut self, next: Instant, end: Instant) -> bool {
        if next > end {
            self.now = self.now.max(end);
            self.checker.advance(self.now);
            return false;
        }
        if next > self.now {
            self.now = next;
            self.checker.advance(next);
            self.steps_at_instant = 0;
        }
        self.steps_at_instant += 1;
        if self.steps_at_instant > MAX_STEPS_AT_INSTANT {
            self.halt("time does not advance: a machine wants to be called again and again".into());
        }
        !self.halted
    }

    pub(super) fn send(&mut self, id: u64, direction: Direction, packet: Packet<S::Packet>) {
        let mut message = None;
        if self.recorder.is_on() {
            let Some(link) = self.network.links.get(&id) else { return };
            let (client, node) = (Lane::Client(link.client), Lane::Node(link.node));
            let (from, to) = match direction {
                Direction::ToNode => (client, node),
                Direction::ToClient => (node, client),
            };
            message = self.recorder.sent(self.now, from, to, || label(&packet, direction));
        }
        self.network.send(self.now, id, direction, Posted { packet, message });
    }

    pub(super) fn lose(&mut self, id: u64) {
        self.lose_directions(id, &Direction::BOTH);
    }

    /// Resets a connection. Both sides notice at once, and everything in flight is lost. In stale
    /// mode the client may get it later, when it already has another connection.
    pub(super) fn break_off(&mut self, id: u64) {
        if !self.stale {
            return self.lose(id);
        }
        self.lose_directions(id, &[Direction::ToNode]);
        let later = self.rng.duration(&STALE);
        self.network.delay(self.now, id, Direction::ToClient, later);
        self.send(id, Direction::ToClient, Packet::Close(Fault::Reset));
    }

    fn lose_directions(&mut self, id: u64, directions: &[Direction]) {
        for message in self.network.lose(id, directions) {
            self.recorder.set_delivery(Some(message), Delivery::Lost(self.now));
        }
    }

    pub(super) fn connect(&mut self, client: usize, node: NodeId, conn: ConnId) {
        self.journal.write(self.now, format_args!("c{client}/{conn} connect"));
        self.journal.fingerprint.connect(self.now, client, conn);
        if node.index() >= self.hosts.len() || self.network.find(client, conn).is_some() {
            return self.halt(format!("client {client} requests the connection {conn}, which is in use or invalid"));
        }
        let node = self.store.resolve(client, node.index());
        let id = self.network.open(self.now, client, node, conn);
        self.send(id, Direction::ToNode, Packet::Open);
    }

    pub(super) fn disconnect(&mut self, client: usize, conn: ConnId) {
        self.journal.write(self.now, format_args!("c{client}/{conn} disconnect"));
        self.journal.fingerprint.disconnect(self.now, client, conn);
        if let Some(id) = self.network.find(client, conn) {
            self.close(client, id);
        }
    }

    /// Closes a connection. Data sent before is still delivered.
    pub(super) fn close(&mut self, client: usize, id: u64) {
        self.send(id, Direction::ToNode, Packet::Close(Fault::Closed));
        self.checker.closed(self.now, id, None, self.is_alive(client, id));
        if let Some(link) = self.network.links.get_mut(&id) {
            link.client_open = false;
        }
        S::ended(self, client, id, true);
    }

    /// Returns whether the connection received data recently, by the client's clock.
    pub(super) fn is_alive(&self, client: usize, id: u64) -> bool {
        let process = &self.clients[client];
        let silence = S::silence(&process.own);
        let silent = |last_received| process.local(self.now).since(process.local(last_received));
        self.network.links.get(&id).is_some_and(|link| silent(link.last_received) < silence)
    }

    fn deliver(&mut self, arrival: Arrival<S::Packet>) {
        let now = self.now;
        let Some(link) = self.network.links.get_mut(&arrival.link) else { return };
        if arrival.direction == Direction::ToClient {
            link.last_received = now;
        }
        let (client, node, conn) = (link.client, link.node, link.conn);
        let Posted { packet, message } = arrival.posted;
        self.recorder.set_delivery(message, Delivery::Arrived(self.now));
        match (arrival.direction, packet) {
            (Direction::ToNode, packet) => {
                self.deliver_to_node(arrival.link, node, packet);
                if arrival.frees_window {
                    self.pump_client(client);
                }
            }
            (Direction::ToClient, Packet::Open) => self.deliver_input(client, Input::Connected(conn)),
            (Direction::ToClient, Packet::Handshake(left)) => self.deliver_input(client, Input::Handshake(conn, left)),
            (Direction::ToClient, Packet::Data(data)) => self.deliver_input(client, Input::Received(conn, data)),
            (Direction::ToClient, Packet::Close(why)) => self.deliver_input(client, Input::Disconnected(conn, why)),
        }
    }

    fn deliver_to_node(&mut self, id: u64, node: usize, packet: Packet<S::Packet>) {
        let state = self.hosts[node].state;
        let Some(link) = self.network.links.get_mut(&id) else { return };
        match &packet {
            Packet::Open if state == ProcessState::Down => {
                return self.send(id, Direction::ToClient, Packet::Close(Fault::Refused));
            }
            // The kernel accepts whether or not the process runs.
            Packet::Open => self.accept(id),
            Packet::Handshake(_) | Packet::Data(_) | Packet::Close(_) if !link.node_open => return,
            Packet::Handshake(_) | Packet::Data(_) | Packet::Close(_) => {}
        }
        match state {
            ProcessState::Running => S::receive_on_server(self, id, node, packet),
            ProcessState::Paused => self.hosts[node].inbox.push_back((id, packet)),
            ProcessState::Down => {}
        }
    }

    pub(super) fn set_host(&mut self, node: usize, state: ProcessState) {
        self.hosts[node].state = state;
        self.recorder.note(self.now, || TraceEvent::State { lane: Lane::Node(node), state });
    }

    pub(super) fn is_client_due(&self, client: usize) -> bool {
        self.clients[client].deadline().is_some_and(|at| at <= self.now)
    }

    pub(super) fn wake_client(&mut self, client: usize) {
        self.steps += 1;
        self.cause = CallCause::Timer;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_timeout(local);
        self.pump_client(client);
    }

    pub(super) fn plan(&mut self, at: Instant, client: usize, input: Input<S>) {
        self.agenda.plan(at, Planned::Input(client, input));
    }

    /// Delivers an input to a process, or queues it while the process is paused.
    pub(super) fn deliver_input(&mut self, client: usize, input: Input<S>) {
        match self.clients[client].state {
            ProcessState::Running => self.handle_input(client, input),
            ProcessState::Paused => self.clients[client].inbox.push_back(input),
            ProcessState::Down => {}
        }
    }

    pub(super) fn handle_input(&mut self, client: usize, input: Input<S>) {
        self.cause = CallCause::Received;
        match input {
            Input::Connected(conn) => self.connected(client, conn),
            Input::Handshake(conn, left) => {
                if let Some(id) = self.network.find(client, conn) {
                    self.continue_handshake(id, left);
                }
            }
            Input::Received(conn, packet) => {
                if self.stale || self.network.find(client, conn).is_some() {
                    S::receive_on_client(self, client, conn, packet);
                }
            }
            Input::Disconnected(conn, why) => self.disconnected(client, conn, why),
            Input::Claim(lock) => {
                if self.stage(client, lock) == Some(Stage::Offered) {
                    self.claim_late(client, lock);
                }
            }
            Input::Release(lock) => {
                if self.stage(client, lock).is_some_and(Stage::has_guard) {
                    self.release(client, lock);
                }
            }
            Input::Credentials(conn, number) => self.supply_credentials(client, conn, number),
            Input::Chore(chore) => S::do_chore(self, client, chore),
        }
        self.pump_client(client);
    }

    fn connected(&mut self, client: usize, conn: ConnId) {
        let Some(id) = self.network.find(client, conn) else { return };
        if let Some(link) = self.network.links.get_mut(&id) {
            link.established = true;
            if link.refusal.is_some() {
                // The client's certificate arrives before its first request.
                self.continue_handshake(id, 0);
            }
        }
        self.journal.write(self.now, format_args!("c{client}/{conn} connected"));
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_connected(local, conn);
    }

    fn disconnected(&mut self, client: usize, conn: ConnId, why: Fault) {
        let Some(id) = self.network.find(client, conn) else { return self.end_stale(client, conn, why) };
        self.checker.closed(self.now, id, None, false);
        let mut why = why;
        if let Some(link) = self.network.links.get_mut(&id) {
            link.client_open = false;
            if link.in_handshake && !link.established && matches!(why, Fault::Closed | Fault::Reset) {
                why = Fault::Tls(TlsFault::Closed);
            }
        }
        S::ended(self, client, id, false);
        self.network.sweep();
        self.journal.write(self.now, format_args!("c{client}/{conn} disconnected: {why}"));
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_disconnected(local, conn, why);
    }

    /// Reports the end of a connection to a machine that already knows of it.
    fn end_stale(&mut self, client: usize, conn: ConnId, why: Fault) {
        if self.stale {
            self.journal.write(self.now, format_args!("c{client}/{conn} disconnected, late: {why}"));
            self.steps += 1;
            let process = &mut self.clients[client];
            let local = process.local(self.now);
            process.machine.handle_disconnected(local, conn, why);
        }
    }

    /// Carries out the outputs of a machine until there are none left.
    pub(super) fn pump_client(&mut self, client: usize) {
        if self.clients[client].state != ProcessState::Running {
            return;
        }
        S::pump_client(self, client);
        while let Some((rule, text)) = S::poll_violation(&mut self.clients[client].machine) {
            self.report(rule, format!("client {client} {text}"));
        }
        if self.halted {
            return;
        }
        // Otherwise the machine has yet to run its timers.
        if !self.is_client_due(client) {
            self.checker.check_overdue(self.now, client);
            self.check_told(client);
            self.check();
        }
    }

    /// Checks, before an application acts, that its client has reported everything in time, unless
    /// the client's timers have yet to run.
    pub(super) fn check_overdue(&mut self, client: usize) {
        if self.clients[client].state == ProcessState::Running && !self.is_client_due(client) {
            self.checker.check_overdue(self.now, client);
        }
    }

    /// Checks that no holder was told a later end of validity than its machine knows, and that this
    /// is not later than the servers know.
    fn check_told(&mut self, client: usize) {
        let process = &self.clients[client];
        let later = |(lock, told): &(LockId, Instant)| {
            process.machine.valid_until(*lock).is_some_and(|until| process.when(until) + ROUNDING < *told)
        };
        let told = self.checker.held(client).find(later);
        if let Some((lock, told)) = told {
            let text = format!("client {client} {lock} was told that it is valid until {told}, and it is not");
            self.checker.report(self.now, Rule::Notified, text);
        }
        // Its guard may say more than it was told: an offer that was extended before the claim.
        let process = &self.clients[client];
        let more = |(lock, told): (LockId, Instant)| {
            let valid_until = process.machine.valid_until(lock)?;
            let until = process.when(valid_until);
            (told + ROUNDING < until).then_some((lock, valid_until, until))
        };
        let found = self.checker.held(client).find_map(more);
        if let Some((lock, valid_until, until)) = found {
            self.check_servers(client, lock, &Event::Renewed { valid_until }, Some(until));
        }
    }

    /// Counts another round of outputs. Returns false if there are too many.
    pub(super) fn count_round(&mut self, client: usize) -> bool {
        self.steps_at_instant += 1;
        if self.steps_at_instant > MAX_STEPS_AT_INSTANT {
            self.halt(format!("client {client} produces outputs without end"));
        }
        !self.halted
    }
}

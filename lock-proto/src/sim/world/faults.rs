//! What goes wrong with clients and with the network, whatever the servers are.

use alloc::format;
use core::ops::Range;
use core::time::Duration;

use super::super::direction::Direction;
use super::super::trace::{Lane, State, What};
use super::World;
use super::check::signed;
use super::store::Servers;

/// What goes wrong with clients.
impl<S: Servers> World<S> {
    /// The client process is stopped, as by `SIGSTOP` or a suspended machine: it hears and does
    /// nothing, while its clock goes on.
    pub fn pause_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} paused"));
        self.troubled();
        if self.is_running(client) {
            self.set_process(client, State::Paused);
        }
    }

    /// The machine of the client is suspended, and its clock stands still meanwhile, as
    /// `CLOCK_MONOTONIC` does on Linux. No host should use such a clock: what it holds when it goes
    /// on it believes to hold still.
    // T4
    pub fn suspend_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} {}", S::SUSPENDED));
        self.troubled();
        if self.is_running(client) {
            self.clients[client].asleep = Some(self.now);
            self.set_process(client, State::Paused);
        }
    }

    /// The client process goes on. Whether it hears first of timers or of the network is left to
    /// chance.
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
        }
        self.wake_client(client);
    }

    /// The client process dies, as by `kill -9`: its kernel closes its connections. It never comes
    /// back.
    pub fn kill_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} killed"));
        self.troubled();
        if !self.is_dead(client) {
            self.set_process(client, State::Down);
        }
        self.clients[client].inbox.clear();
        self.checker.dies(client);
        for id in self.network.of_client(client) {
            self.close(client, id);
        }
    }

    /// The clock of a client goes on, if it stood still.
    fn start_clock(&mut self, client: usize) {
        let process = &mut self.clients[client];
        let Some(since) = process.asleep.take() else { return };
        process.clock.stood_still(since, self.now);
        let slept = self.now.since(since);
        self.recorder.note(self.now, || What::Clock { lane: Lane::Client(client), by: -signed(slept) });
        self.checker.slept(self.now, client, slept);
        self.check();
    }

    /// A client process stops, goes on or dies.
    fn set_process(&mut self, client: usize, state: State) {
        self.clients[client].state = state;
        self.recorder.note(self.now, || What::State { lane: Lane::Client(client), state });
    }
}

/// What goes wrong with the network between clients and servers.
impl<S: Servers> World<S> {
    /// No packet passes between this client and this node, in either direction.
    pub fn partition(&mut self, client: usize, node: usize) {
        self.cut(client, node, Direction::ToNode);
        self.cut(client, node, Direction::ToClient);
    }

    /// No packet passes this way. What is sent is held back and arrives after [`heal`](Self::heal).
    pub fn cut(&mut self, client: usize, node: usize, direction: Direction) {
        self.journal
            .write(self.now, format_args!("cut c{client} {}{node} {}", S::NODE, S::DIRECTIONS[direction.index()]));
        self.troubled();
        self.network.cut(client, node, direction);
        self.recorder.note(self.now, || What::Cut { client, node, direction });
    }

    /// Every packet passes again between this client and this node.
    pub fn heal(&mut self, client: usize, node: usize) {
        self.journal.write(self.now, format_args!("heal c{client} {}{node}", S::NODE));
        self.healed(|c, n| (c, n) == (client, node));
    }

    pub(super) fn healed(&mut self, which: impl Fn(usize, usize) -> bool) {
        for (client, node, direction) in self.network.cuts().iter().copied().filter(|(c, n, _)| which(*c, *n)) {
            self.recorder.note(self.now, || What::Healed { client, node, direction });
        }
        self.network.heal(self.now, |client, node, _| which(client, node));
    }

    /// Packets of this client to (or from) this node travel so long from now on.
    pub fn slow(&mut self, client: usize, node: usize, direction: Direction, latency: Range<Duration>) {
        let shown = S::DIRECTIONS[direction.index()];
        self.journal.write(self.now, format_args!("slow c{client} {}{node} {shown} {latency:?}", S::NODE));
        // Slow is not lost: work is still done once.
        self.checker.troubled();
        self.network.slow(client, node, direction, latency);
    }
    /// For so long nothing more arrives, this way, over the connections that this client has now to
    /// this node: lost packets are sent again, with growing pauses. What was sent arrives late,
    /// also if the client has closed the connection meanwhile. New connections are not affected.
    pub fn stall(&mut self, client: usize, node: usize, direction: Direction, span: Duration) {
        let shown = S::DIRECTIONS[direction.index()];
        self.journal.write(self.now, format_args!("stall c{client} {}{node} {shown} {span:?}", S::NODE));
        self.troubled();
        self.word(Some(Lane::Client(client)), || format!("its connections to node {node} lose packets for {span:?}"));
        self.network.stall(client, node, direction, self.now + span);
    }
}

//! Faults of clients and of the network, for all stores.

use alloc::format;
use core::ops::Range;
use core::time::Duration;

use super::super::direction::Direction;
use super::super::network::{NetworkLink, Packet};
use super::super::trace::{Lane, ProcessState, TraceEvent};
use super::World;
use super::check::signed;
use super::process::Input;
use super::store::{Planned, SimServers};
use lock_proto::Fault;

/// Extra requests allowed after a fault.
const PER_FAULT: u64 = 50;

impl<S: SimServers> World<S> {
    /// Pauses the client process, as by `SIGSTOP`. Its clock continues.
    pub fn pause_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} paused"));
        self.note_fault();
        if self.is_running(client) {
            self.set_process(client, ProcessState::Paused);
        }
    }

    /// Suspends the client's machine and stops its clock, as `CLOCK_MONOTONIC` does on Linux. No
    /// host should use such a clock: after the resume the client still believes to hold its locks.
    // T4
    pub fn suspend_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} {}", S::SUSPENDED));
        self.note_fault();
        if self.is_running(client) {
            self.clients[client].suspended_at = Some(self.now);
            self.set_process(client, ProcessState::Paused);
        }
    }

    /// Resumes the client process. Whether timers or the network come first is random.
    pub fn resume_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} resumed"));
        if self.clients[client].state != ProcessState::Paused {
            return;
        }
        self.start_clock(client);
        self.set_process(client, ProcessState::Running);
        if self.rng.one_in(2) {
            self.wake_client(client);
        }
        while let Some(input) = self.clients[client].inbox.pop_front() {
            self.handle_input(client, input);
        }
        self.wake_client(client);
    }

    /// Kills the client process for good, as by `kill -9`. Its kernel closes its connections.
    pub fn kill_client(&mut self, client: usize) {
        self.journal.write(self.now, format_args!("c{client} killed"));
        self.note_fault();
        if !self.is_dead(client) {
            self.set_process(client, ProcessState::Down);
        }
        self.clients[client].inbox.clear();
        self.checker.killed(client);
        for id in self.network.of_client(client) {
            self.close(client, id);
        }
    }

    fn start_clock(&mut self, client: usize) {
        let process = &mut self.clients[client];
        let Some(since) = process.suspended_at.take() else { return };
        process.clock.pause(since, self.now);
        let slept = self.now.since(since);
        self.recorder.note(self.now, || TraceEvent::Clock { lane: Lane::Client(client), by: -signed(slept) });
        self.checker.suspended(self.now, client, slept);
        self.check();
    }

    fn set_process(&mut self, client: usize, state: ProcessState) {
        self.clients[client].state = state;
        self.recorder.note(self.now, || TraceEvent::State { lane: Lane::Client(client), state });
    }
}

impl<S: SimServers> World<S> {
    /// Blocks packets between this client and this node in both directions.
    pub fn partition(&mut self, client: usize, node: usize) {
        self.cut(client, node, Direction::ToNode);
        self.cut(client, node, Direction::ToClient);
    }

    /// Blocks packets in one direction. They are held back and arrive after [`heal`](Self::heal).
    pub fn cut(&mut self, client: usize, node: usize, direction: Direction) {
        self.journal
            .write(self.now, format_args!("cut c{client} {}{node} {}", S::NODE, S::DIRECTIONS[direction.index()]));
        self.note_fault();
        self.network.cut(client, node, direction);
        self.recorder.note(self.now, || TraceEvent::Cut { client, node, direction });
    }

    /// Ends all partitions between this client and this node.
    pub fn heal(&mut self, client: usize, node: usize) {
        self.journal.write(self.now, format_args!("heal c{client} {}{node}", S::NODE));
        self.healed(|c, n| (c, n) == (client, node));
    }

    /// Ends all partitions.
    pub fn heal_all(&mut self) {
        self.journal.write(self.now, format_args!("heal all"));
        self.healed(|_, _| true);
    }

    fn healed(&mut self, which: impl Fn(usize, usize) -> bool) {
        for (client, node, direction) in self.network.cuts().iter().copied().filter(|(c, n, _)| which(*c, *n)) {
            self.recorder.note(self.now, || TraceEvent::Healed { client, node, direction });
        }
        self.network.heal(self.now, |client, node, _| which(client, node));
    }

    /// Resets every open connection between this client and this node. Both sides notice at once,
    /// and everything in flight is lost.
    pub fn drop_connections(&mut self, client: usize, node: usize) {
        self.journal.write(self.now, format_args!("reset c{client} {}{node}", S::NODE));
        self.note_fault();
        self.reset(client, |link| link.node == node);
    }

    pub(super) fn reset(&mut self, client: usize, which: impl Fn(&NetworkLink<S::Packet>) -> bool) {
        let mut any = false;
        self.checker.allow(client, PER_FAULT);
        for id in self.network.of_client(client) {
            let Some(link) = self.network.links.get_mut(&id).filter(|link| which(link)) else { continue };
            let (node, conn, known) = (link.node, link.conn, link.node_open);
            link.node_open &= !S::FORGETS_RESET;
            if !core::mem::replace(&mut any, true) {
                self.annotate(Some(Lane::Client(client)), || format!("its connections to node {node} are reset"));
            }
            self.break_off(id);
            if known {
                match self.hosts[node].state {
                    ProcessState::Running => S::hang_up(self, id, node),
                    ProcessState::Paused => self.hosts[node].inbox.push_back((id, Packet::Close(Fault::Reset))),
                    ProcessState::Down => {}
                }
            }
            self.deliver_input(client, Input::Disconnected(conn, Fault::Reset));
        }
    }

    /// Sets the latency of packets between this client and this node in one direction.
    pub fn slow(&mut self, client: usize, node: usize, direction: Direction, latency: Range<Duration>) {
        let shown = S::DIRECTIONS[direction.index()];
        self.journal.write(self.now, format_args!("slow c{client} {}{node} {shown} {latency:?}", S::NODE));
        // Slow packets are not lost: the check for repeated work stays on.
        self.checker.waive_prompt();
        self.checker.waive_kept();
        self.network.slow(client, node, direction, latency);
    }

    /// The sockets of this client to this node take no bytes for `span`, as if the kernel had no
    /// room for them. The client notices nothing but that they are not taken.
    pub fn block_socket(&mut self, client: usize, node: usize, span: Duration) {
        self.journal.write(self.now, format_args!("the sockets of c{client} to {}{node} take nothing", S::NODE));
        self.note_fault();
        self.annotate(Some(Lane::Client(client)), || format!("its sockets to node {node} take nothing for {span:?}"));
        self.network.set_full(client, node, true);
        self.agenda.plan(self.now + span, Planned::Writable(client, node));
    }

    /// Stalls the current connections between this client and this node in one direction for
    /// `span`, as if packets were lost and retransmitted with backoff. Data in flight arrives late,
    /// even if the client has closed the connection. New connections are not affected.
    pub fn stall(&mut self, client: usize, node: usize, direction: Direction, span: Duration) {
        let shown = S::DIRECTIONS[direction.index()];
        self.journal.write(self.now, format_args!("stall c{client} {}{node} {shown} {span:?}", S::NODE));
        self.note_fault();
        self.annotate(Some(Lane::Client(client)), || {
            format!("its connections to node {node} lose packets for {span:?}")
        });
        self.network.stall(client, node, direction, self.now + span);
    }
}

//! Faults of a store with compare-and-set.

use alloc::format;
use core::time::Duration;

use super::{RegisterClient, Registers};
use crate::direction::Direction;
use crate::network::Packet;
use crate::register::SimRegister;
use crate::trace::{Lane, ProcessState};
use crate::world::World;
use lock_proto::Fault;

impl<C: RegisterClient> World<Registers<C>> {
    /// Pauses the store, as by `SIGSTOP`. Its kernel still accepts connections and data.
    pub fn pause_store(&mut self) {
        if self.hosts[0].state == ProcessState::Running {
            self.set_host(0, ProcessState::Paused);
            self.on_store("paused", |_| ());
        }
    }

    /// Resumes the store, which then executes what has arrived.
    pub fn resume_store(&mut self) {
        if self.hosts[0].state != ProcessState::Paused {
            return;
        }
        self.set_host(0, ProcessState::Running);
        self.on_store("resumed", |_| ());
        while let Some((id, packet)) = self.hosts[0].inbox.pop_front() {
            self.receive_on_store(id, packet);
        }
    }

    /// Kills the store, as by `kill -9`. Its data survives; requests that it has not executed are
    /// lost.
    pub fn kill_store(&mut self) {
        if self.hosts[0].state == ProcessState::Down {
            return;
        }
        self.set_host(0, ProcessState::Down);
        self.hosts[0].clear();
        self.store.delayed.clear();
        self.store.watches.clear();
        self.on_store("killed", |_| ());
        for id in self.network.of_node(0) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            self.send(id, Direction::ToClient, Packet::Close(Fault::Reset));
        }
    }

    /// Starts the store again, with its data.
    pub fn start_store(&mut self) {
        if self.hosts[0].state == ProcessState::Down {
            self.set_host(0, ProcessState::Running);
            self.on_store("started", |_| ());
        }
    }

    /// Deletes the record of a lock by hand. Returns whether there was one.
    pub fn delete_record(&mut self, name: &str) -> bool {
        let (now, key) = (self.now, self.full_name(0, name.as_bytes()));
        self.on_store(&format!("loses the record of {name}"), |register| register.delete(now, &key))
    }

    /// Deletes the records of locks that nobody has held for this long.
    pub fn sweep_records(&mut self, for_long: Duration) {
        let now = self.now;
        self.on_store("is swept", |register| register.sweep(now, for_long));
    }

    /// Makes a backup of the store.
    pub fn back_up(&mut self) {
        self.on_store("is backed up", SimRegister::back_up);
    }

    /// Restores the last backup. Writes since then are lost, and revisions repeat.
    pub fn restore(&mut self) {
        self.on_store("is restored", SimRegister::restore);
    }

    /// Sets by how many ms the clock of the store is ahead of true time.
    pub fn set_store_clock(&mut self, ahead_ms: i64) {
        self.on_store(&format!("is {ahead_ms} ms ahead"), |register| register.set_clock(ahead_ms));
    }

    /// Sets by how much reads may be behind.
    pub fn delay_reads(&mut self, lag: Duration) {
        self.on_store(&format!("answers reads from up to {lag:?} ago"), |register| register.set_lag(lag));
    }

    /// Sets whether some requests fail.
    pub fn fail_requests(&mut self, fails: bool) {
        self.on_store(if fails { "fails" } else { "does not fail" }, |register| register.set_failing(fails));
    }

    /// Sets whether watches miss changes.
    pub fn lose_hints(&mut self, on: bool) {
        self.store.loses_hints = on;
        self.on_store(if on { "loses hints" } else { "keeps hints" }, |_| ());
    }

    fn on_store<T>(&mut self, what: &str, change: impl FnOnce(&mut SimRegister) -> T) -> T {
        self.journal.write(self.now, format_args!("the store {what}"));
        self.note_fault();
        self.annotate(Some(Lane::Node(0)), || what.into());
        let done = change(&mut self.store.register);
        self.changed();
        done
    }
}

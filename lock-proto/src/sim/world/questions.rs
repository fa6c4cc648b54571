//! What a test can ask a world.

use super::super::check::Stage;
use super::super::trace::State;
use super::World;
use super::handover::Handovers;
use super::store::Servers;
use crate::id::LockId;
use crate::lock::{Event, Grant, Machine as _};
use crate::time::Instant;

/// Questions.
impl<S: Servers> World<S> {
    /// Everything that was told of an acquisition so far.
    #[must_use]
    pub fn events(&self, client: usize, lock: LockId) -> &[Event] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.events)
    }

    /// When each of [`events`](Self::events) was told, in true time.
    #[must_use]
    pub fn event_times(&self, client: usize, lock: LockId) -> &[Instant] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.times)
    }

    /// What was granted, if it was.
    #[must_use]
    pub fn grant(&self, client: usize, lock: LockId) -> Option<&Grant> {
        self.clients[client].records.get(&lock)?.grant.as_ref()
    }

    /// Whether the lock is claimed and valid by the client's own clock, and neither lost nor given
    /// back.
    #[must_use]
    pub fn is_held(&self, client: usize, lock: LockId) -> bool {
        let process = &self.clients[client];
        self.stage(client, lock) == Some(Stage::Held)
            && process.machine.valid_until(lock).is_some_and(|until| until > process.local(self.now))
    }

    /// Whether nothing more will be told of it.
    #[must_use]
    pub fn is_over(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Over)
    }

    /// Where an acquisition stands; `None` if nobody asked for it.
    #[must_use]
    pub fn stage(&self, client: usize, lock: LockId) -> Option<Stage> {
        self.checker.stage(client, lock)
    }

    /// Every acquisition that this client was asked for.
    pub fn locks(&self, client: usize) -> impl Iterator<Item = LockId> {
        self.clients[client].records.keys().copied()
    }

    /// Whether a client process runs: it is neither stopped nor dead.
    #[must_use]
    pub fn is_running(&self, client: usize) -> bool {
        self.clients[client].state == State::Running
    }

    /// Whether a client process is dead.
    #[must_use]
    pub fn is_dead(&self, client: usize) -> bool {
        self.clients[client].state == State::Down
    }

    /// Whether the client has said that its shutdown is over, and how much may be left: locks that
    /// it could not release, on etcd keys and leases.
    #[must_use]
    pub fn stopped(&self, client: usize) -> Option<u32> {
        self.clients[client].stopped
    }

    /// The machine of a client.
    #[must_use]
    pub fn machine(&self, client: usize) -> &S::Client {
        &self.clients[client].machine
    }

    /// How often a machine was called so far: a verb of a client, something that reaches a client
    /// or a server, a deadline of one.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The same of the network: a packet is handed to it, and the time comes at which it arrives
    /// (or is held back by a cut).
    #[must_use]
    pub const fn network_steps(&self) -> u64 {
        self.network.steps()
    }

    /// How often a lock was granted in this world.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.checker.grants()
    }

    /// How locks went from one client to another so far, until something went wrong. Counted once
    /// promptness is promised: see [`expect_prompt`](Self::expect_prompt).
    #[must_use]
    pub const fn handovers(&self) -> Handovers {
        self.handovers
    }

    /// Whether it was offered and is not claimed yet.
    #[must_use]
    pub fn is_offered(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Offered)
    }

    /// Whether a guard is out: claimed, and not given back, though it may be lost.
    #[must_use]
    pub fn has_guard(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock).is_some_and(Stage::is_out)
    }
}

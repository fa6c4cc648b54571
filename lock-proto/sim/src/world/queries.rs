//! Queries for tests.

use super::super::check::Stage;
use super::super::trace::ProcessState;
use super::World;
use super::handover::Handovers;
use super::store::SimServers;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::{Event, Grant, LockClient as _};

impl<S: SimServers> World<S> {
    /// Returns all events of an acquisition so far.
    #[must_use]
    pub fn events(&self, client: usize, lock: LockId) -> &[Event] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.events)
    }

    /// Returns the true time of each of [`events`](Self::events).
    #[must_use]
    pub fn event_times(&self, client: usize, lock: LockId) -> &[Instant] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.times)
    }

    /// Returns the grant, if the lock was granted.
    #[must_use]
    pub fn grant(&self, client: usize, lock: LockId) -> Option<&Grant> {
        self.clients[client].records.get(&lock)?.grant.as_ref()
    }

    /// Returns whether any grant had a fencing token.
    pub(crate) fn has_fences(&self) -> bool {
        let mut records = self.clients.iter().flat_map(|process| process.records.values());
        records.any(|record| record.grant.as_ref().is_some_and(|grant| grant.fence.is_some()))
    }

    /// Returns whether the lock is claimed, not released, and valid by the client's own clock.
    #[must_use]
    pub fn is_held(&self, client: usize, lock: LockId) -> bool {
        let process = &self.clients[client];
        self.stage(client, lock) == Some(Stage::Held)
            && process.machine.valid_until(lock).is_some_and(|until| until > process.local(self.now))
    }

    /// Returns whether the acquisition will get no further events.
    #[must_use]
    pub fn is_over(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Over)
    }

    /// Returns the stage of an acquisition, or `None` if it does not exist.
    #[must_use]
    pub fn stage(&self, client: usize, lock: LockId) -> Option<Stage> {
        self.checker.stage(client, lock)
    }

    /// Returns all acquisitions of this client.
    pub fn locks(&self, client: usize) -> impl Iterator<Item = LockId> {
        self.clients[client].records.keys().copied()
    }

    /// Returns whether a client process is running, i.e. neither paused nor dead.
    #[must_use]
    pub fn is_running(&self, client: usize) -> bool {
        self.clients[client].state == ProcessState::Running
    }

    /// Returns whether a client process is dead.
    #[must_use]
    pub fn is_dead(&self, client: usize) -> bool {
        self.clients[client].state == ProcessState::Down
    }

    /// Returns the result of a completed shutdown: how many locks (Redis), keys and leases (etcd)
    /// or nodes and sessions (ZooKeeper) the client could not release.
    #[must_use]
    pub fn stopped(&self, client: usize) -> Option<u32> {
        self.clients[client].stopped
    }

    /// Returns the machine of a client.
    #[must_use]
    pub fn machine(&self, client: usize) -> &S::Client {
        &self.clients[client].machine
    }

    /// Returns the number of machine calls so far: verbs, inputs and deadlines.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of packets sent and arrived so far, including those held back.
    #[must_use]
    pub const fn network_steps(&self) -> u64 {
        self.network.steps()
    }

    /// Returns the number of grants.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.checker.grants()
    }

    /// Returns how locks went from one client to another until the first fault. Counted only after
    /// [`expect_prompt`](Self::expect_prompt).
    #[must_use]
    pub const fn handovers(&self) -> Handovers {
        self.handovers
    }

    /// Returns whether the lock is offered and not yet claimed.
    #[must_use]
    pub fn is_offered(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Offered)
    }

    /// Returns whether a guard exists: claimed and not released, though the lock may be lost.
    #[must_use]
    pub fn has_guard(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock).is_some_and(Stage::has_guard)
    }
}

//! What a test can ask a world.

use alloc::string::String;
use alloc::vec::Vec;

use super::World;
use crate::etcd::{Client, ElectionEvent, QueryId};
use crate::event::{Event, Grant};
use crate::id::LockId;
use crate::sim::check::{Stage, Violation};
use crate::sim::etcd::Cluster;
use crate::sim::trace::{State, Trace};
use crate::time::Instant;

impl World {
    /// Everything that was told of an acquisition or a candidacy so far.
    #[must_use]
    pub fn events(&self, client: usize, lock: LockId) -> &[Event] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.events)
    }

    /// When each of [`events`](Self::events) was told, in true time.
    #[must_use]
    pub fn event_times(&self, client: usize, lock: LockId) -> &[Instant] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.times)
    }

    /// What a question or an observation was told so far.
    #[must_use]
    pub fn observed(&self, client: usize, query: QueryId) -> &[ElectionEvent] {
        self.clients[client].queries.get(&query).map_or(&[], |observed| &observed.events)
    }

    /// What was granted, if it was.
    #[must_use]
    pub fn grant(&self, client: usize, lock: LockId) -> Option<&Grant> {
        self.clients[client].records.get(&lock)?.grant.as_ref()
    }

    /// Whether the lock is claimed and valid by the client's own clock, and neither lost nor given back.
    #[must_use]
    pub fn is_held(&self, client: usize, lock: LockId) -> bool {
        let process = &self.clients[client];
        let held = self.stage(client, lock) == Some(Stage::Held);
        held && process.machine.valid_until(lock).is_some_and(|until| until > process.local(self.now))
    }

    /// Whether it was offered and is not claimed yet.
    #[must_use]
    pub fn is_offered(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Offered)
    }

    /// Whether a guard is out: claimed, and not given back, though it may be lost.
    #[must_use]
    pub fn has_guard(&self, client: usize, lock: LockId) -> bool {
        matches!(self.stage(client, lock), Some(Stage::Held | Stage::Lost))
    }

    /// Whether nothing more will be told of it.
    #[must_use]
    pub fn is_over(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Over)
    }

    /// Every acquisition and candidacy that this client was asked for.
    pub fn locks(&self, client: usize) -> impl Iterator<Item = LockId> {
        self.clients[client].records.keys().copied()
    }

    /// The questions and observations of this client that are not over.
    pub fn queries(&self, client: usize) -> impl Iterator<Item = QueryId> {
        self.clients[client].queries.iter().filter(|(_, observed)| !observed.over).map(|(query, _)| *query)
    }

    /// Whether the client's process runs: it is neither stopped nor dead.
    #[must_use]
    pub fn is_running(&self, client: usize) -> bool {
        self.clients[client].state == State::Running
    }

    /// Whether the client's process is dead.
    #[must_use]
    pub fn is_dead(&self, client: usize) -> bool {
        self.clients[client].state == State::Down
    }

    /// Whether the client has said that its shutdown is over, and how many keys and leases may be left.
    #[must_use]
    pub fn stopped(&self, client: usize) -> Option<u32> {
        self.clients[client].stopped
    }

    /// The machine of a client.
    #[must_use]
    pub fn machine(&self, client: usize) -> &Client {
        &self.clients[client].machine
    }

    /// The cluster, to look at.
    #[must_use]
    pub const fn cluster_now(&self) -> &Cluster {
        &self.cluster
    }

    /// The names of all keys now, as text.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.cluster.keys().iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
    }

    /// How many calls and messages a client has sent.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].sent
    }

    /// How often a lock was granted in this world.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.checker.grants()
    }

    /// How often somebody was granted a lock, or more time for it, while another believed to hold it.
    #[must_use]
    pub const fn overlaps(&self) -> u64 {
        self.checker.overlaps()
    }

    /// Writes that the guarded resource has accepted and refused (see [`write`](Self::write)).
    #[must_use]
    pub const fn writes(&self) -> (u64, u64) {
        self.resource.counts()
    }

    /// How many things have happened: arrivals, deadlines, calls that were looked at.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a machine has broken its contract so badly that time does not go on.
    #[must_use]
    pub const fn is_halted(&self) -> bool {
        self.halted
    }

    /// What the checkers have found.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The log so far, as far as it is kept. The same seed and the same calls give the same bytes.
    #[must_use]
    pub fn log(&self) -> String {
        self.journal.text()
    }

    /// A digest of every line of the log, and their number.
    #[must_use]
    pub const fn log_digest(&self) -> (u64, u64) {
        self.journal.digest()
    }

    /// What was recorded, if that was [asked for](super::Builder::traced). Nothing is recorded after it.
    pub fn take_trace(&mut self) -> Trace {
        self.recorder.finish(self.now)
    }
}

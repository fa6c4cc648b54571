//! Configuration of a simulated ensemble.

use alloc::collections::BTreeMap;
use core::ops::{Range, RangeInclusive};
use core::time::Duration;

use lock_proto::time::millis_up;

/// A release of the servers, as far as clients see a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerRelease {
    /// 3.8 and before.
    V3_8,
    /// 3.9: watch events carry the zxid of the change in place of -1, `exists` needs the permission
    /// to read, and the result of a transaction has the state of every node that it created, not of
    /// containers only.
    V3_9,
}

/// The settings of an [`Ensemble`](super::Ensemble). The defaults are those of the example
/// configuration of ZooKeeper 3.8.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an EnsembleConfig does nothing until it is given to an Ensemble"]
pub struct EnsembleConfig {
    pub(super) members: usize,
    pub(super) seed: u64,
    pub(super) tick: Duration,
    pub(super) sync_limit: u32,
    pub(super) election: Duration,
    pub(super) hop: Range<Duration>,
    pub(super) wake: Range<Duration>,
    /// By member.
    pub(super) session_timeouts: BTreeMap<usize, RangeInclusive<Duration>>,
    pub(super) epoch: u32,
    pub(super) containers: bool,
    pub(super) container_interval: Option<Duration>,
    pub(super) release: ServerRelease,
    pub(super) max_frame: usize,
    pub(super) monitor: bool,
}

impl EnsembleConfig {
    /// Creates the settings of an empty ensemble with this many members (at least one). All random
    /// choices follow from `seed`.
    pub fn new(members: usize, seed: u64) -> Self {
        Self {
            members: members.max(1),
            seed,
            tick: Duration::from_secs(2),
            sync_limit: 5,
            election: Duration::from_millis(300),
            hop: Duration::from_micros(50)..Duration::from_micros(300),
            wake: Duration::ZERO..Duration::from_millis(3),
            session_timeouts: BTreeMap::new(),
            epoch: 1,
            containers: true,
            container_interval: Some(Duration::from_secs(60)),
            release: ServerRelease::V3_8,
            max_frame: 0xf_ffff,
            monitor: false,
        }
    }

    /// Sets the tick. Session timeouts lie between 2 and 20 ticks, and sessions expire at multiples
    /// of it. Default 2 s.
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets after how many ticks without each other a leader and a follower part. Default 5.
    pub const fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_limit = ticks;
        self
    }

    /// Sets how long an election takes. Default 300 ms.
    pub const fn election(mut self, time: Duration) -> Self {
        self.election = time;
        self
    }

    /// Sets the latency of a message between two members. Default 50 to 300 µs.
    pub const fn hop(mut self, latency: Range<Duration>) -> Self {
        self.hop = latency;
        self
    }

    /// Sets how long after a stop a leader asks its followers which sessions they have heard of, if
    /// it should have asked before: its threads go on in any order, and what has arrived meanwhile
    /// is handled first. Default 0 to 3 ms.
    pub const fn wake(mut self, time: Range<Duration>) -> Self {
        self.wake = time;
        self
    }

    /// Sets the session timeouts that a member grants, as by `minSessionTimeout` and
    /// `maxSessionTimeout`. Default: 2 to 20 ticks.
    pub fn session_timeouts(mut self, member: usize, range: RangeInclusive<Duration>) -> Self {
        self.session_timeouts.insert(member, range);
        self
    }

    /// Sets the epoch of the first leader: the high half of a zxid, which grows with each leader.
    /// Default 1.
    pub const fn epoch(mut self, epoch: u32) -> Self {
        self.epoch = epoch;
        self
    }

    /// Sets whether the servers know container nodes. Those before 3.5.1 reject the request, and
    /// close the connection. Default: yes.
    pub const fn containers(mut self, on: bool) -> Self {
        self.containers = on;
        self
    }

    /// Sets how often the leader deletes empty containers; `None` for never. Default: every minute.
    pub const fn container_interval(mut self, interval: Option<Duration>) -> Self {
        self.container_interval = interval;
        self
    }

    /// Sets the release of the servers. Default: 3.8.
    pub const fn release(mut self, release: ServerRelease) -> Self {
        self.release = release;
        self
    }

    /// Sets whether requests are recorded for [`poll_seen`](super::Ensemble::poll_seen). Default:
    /// no.
    pub const fn monitor(mut self, on: bool) -> Self {
        self.monitor = on;
        self
    }

    /// The session timeout that a member grants, in ms.
    pub(super) fn granted(&self, member: usize, requested: i32) -> i32 {
        let ms = |time: Duration| i32::try_from(millis_up(time)).unwrap_or(i32::MAX);
        let tick = ms(self.tick);
        match self.session_timeouts.get(&member) {
            Some(range) => requested.min(ms(*range.end())).max(ms(*range.start())),
            None => requested.min(tick.saturating_mul(20)).max(tick.saturating_mul(2)),
        }
    }

    /// How long a leader and a follower wait for each other.
    pub(super) fn sync_timeout(&self) -> Duration {
        self.tick * self.sync_limit
    }
}

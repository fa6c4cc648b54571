//! State shared by the locks of a client: its nodes and its identity.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::Redis;
use super::wakeup::WakeRefusals;
use crate::error::ConfigError;
use crate::id::{CallId, CallOwner, ClientId, NodeId};
use crate::lock::{self, Answer, Failure, MAX_TTL, NoElections, ServerError, SharedState};
use crate::redis::config::{Config, UnknownAge};
use crate::redis::key::Key;
use crate::redis::output::LocksOutput;
use crate::redis::pipe::ServerInfo;
use crate::redis::request::{Identity, Reply, Request};
use crate::redis::verify::Verifications;
use crate::time::Instant;

/// Known state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeHealth {
    /// The node does not vote until then, since a restart may have lost its data.
    // Q6
    pub quarantined_until: Option<Instant>,
    /// The node does not vote, because its uptime cannot be read.
    pub age_refused: Option<ServerError>,
    /// The server has run a script. Until then locks are taken by a script too: a server that forbids
    /// scripts must refuse a lock that could not be renewed or released there.
    // P2
    pub runs_scripts: bool,
    /// Identifies the server process. `None` before the first connection, or if unknown.
    pub run_id: Option<Box<str>>,
    /// The node's own server, by its run id: the last one that was not another node's `home`.
    home: Option<Box<str>>,
    /// The connection may lead to another server process, so earlier confirmations must be
    /// verified.
    // Q7
    pub changed: bool,
    /// A connection to the node had a run id.
    identified: bool,
    /// The node was connected before.
    connected_before: bool,
    /// Times of the last two changes of the run id.
    changes: [Option<Instant>; 2],
    /// The run id changed three times within a quarantine.
    unstable: bool,
    /// Why the server ended the last connection or refused its login, until the next one is up.
    pub login_refused: Option<ServerError>,
}

/// By how much a reported uptime may exceed the true one: it is the difference of two times that
/// are rounded down to seconds (`genRedisInfoString` and `initServer` in Redis's `server.c`).
// Q6
const UPTIME_ERROR: Duration = Duration::from_secs(1);

impl NodeHealth {
    /// Returns why the node may not vote at `now`.
    pub(crate) fn excluded(&self, now: Instant) -> Option<Answer> {
        if let Some(error) = &self.age_refused {
            return Some(Answer::Rejected(error.clone()));
        }
        self.quarantined_until.filter(|until| now < *until)?;
        Some(if self.unstable { Answer::UnstableIdentity } else { Answer::RecentlyRestarted })
    }

    /// Records the identity of the server that a new connection leads to, if known.
    pub(crate) fn identify(&mut self, now: Instant, config: &Config, server: Option<&Result<ServerInfo, ServerError>>) {
        let run_id = server.and_then(|server| server.as_ref().ok()).map(|info| info.run_id.clone());
        let before = mem::replace(&mut self.run_id, run_id);
        let first = !mem::replace(&mut self.connected_before, true);
        self.login_refused = None;
        self.changed = !first && (self.run_id.is_none() || self.run_id != before);
        self.identified |= self.run_id.is_some();
        self.runs_scripts &= !self.changed;
        if !config.is_quorum() {
            return;
        }
        self.age_refused = None;
        match server {
            // The uptime depends on the server's wall clock, so later restarts are timed by our own
            // clock.
            Some(Ok(info)) if first => {
                let uptime = info.uptime.saturating_sub(UPTIME_ERROR);
                self.quarantined_until = config.store.quarantine.checked_sub(uptime).map(|left| now + left);
            }
            Some(Ok(_)) if !self.changed => {}
            // The next connection may learn the identity.
            Some(Err(error)) if error.is_temporary() || config.store.unknown_age == UnknownAge::Refuse => {
                self.age_refused = Some(error.clone())
            }
            // Trusted, unless the identity was ever known.
            Some(Err(_)) | None if !self.identified => {}
            Some(Ok(_) | Err(_)) | None => {
                self.quarantined_until = Some(now + config.store.quarantine);
                self.unstable = self.changes[0].is_some_and(|at| now.since(at) <= config.store.quarantine);
                self.changes = [self.changes[1], Some(now)];
            }
        }
    }
}

/// Returns the first node that is the same server as the one at `place`.
pub(crate) fn server_of(nodes: &[NodeHealth], place: usize) -> usize {
    let run_id = nodes.get(place).and_then(|node| node.run_id.as_ref());
    run_id.and_then(|id| nodes.iter().position(|other| other.run_id.as_ref() == Some(id))).unwrap_or(place)
}

/// Environment of a step of a Redis lock, with its line.
pub type RedisContext = lock::Context<Redis>;
/// What the store machine of a Redis lock sees in a step.
pub(crate) type RedisEnv = lock::Env<Redis>;

/// State shared by the locks of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisShared {
    pub(crate) identity: Identity,
    pub(crate) nodes: Vec<NodeHealth>,
    /// Two nodes that are the same server.
    pub(crate) duplicates: Option<(NodeId, NodeId)>,
    pub(crate) wake_refusals: WakeRefusals,
    pub(crate) verifications: Verifications,
}

impl RedisShared {
    /// Looks for two nodes that are the same server, after a new connection to `node`.
    // Q6
    pub(crate) fn find_duplicates(&mut self, node: NodeId) {
        self.duplicates = (0..self.nodes.len()).find_map(|second| {
            let first = server_of(&self.nodes, second);
            (first != second).then(|| (NodeId::new(first as u16), NodeId::new(second as u16)))
        });
        let elsewhere = self.leads_elsewhere(node);
        if let Some(known) = self.nodes.get_mut(node.index()).filter(|known| !elsewhere && known.run_id.is_some()) {
            known.home.clone_from(&known.run_id);
        }
    }

    /// Returns until when the replies of a node say nothing about the keys on its own server: its
    /// address has recently changed, and leads to the server of another node.
    // Q6
    pub(crate) fn away_until(&self, now: Instant, node: NodeId) -> Option<Instant> {
        let until = self.nodes.get(node.index()).and_then(|known| known.quarantined_until);
        until.filter(|until| now < *until && self.leads_elsewhere(node))
    }

    fn leads_elsewhere(&self, node: NodeId) -> bool {
        let run_id = self.nodes.get(node.index()).and_then(|known| known.run_id.as_ref());
        let mut others = self.nodes.iter().enumerate().filter(|(place, _)| *place != node.index());
        run_id.is_some() && others.any(|(_, other)| other.home.as_ref() == run_id)
    }

    /// Returns when the first node in quarantine votes again.
    // Q6
    pub(crate) fn quarantine_end(&self, now: Instant) -> Option<Instant> {
        self.nodes.iter().filter_map(|node| node.quarantined_until).filter(|until| now < *until).min()
    }

    /// Records that a node executed a request. The first ones on a server are all scripts, but for
    /// those that were queued while the connection was being opened.
    // P2
    pub(crate) fn executed(&mut self, node: NodeId, reply: &Reply) {
        let ran = match reply {
            Reply::Granted { .. }
            | Reply::Busy { .. }
            | Reply::Extended
            | Reply::Deleted { .. }
            | Reply::Absent
            | Reply::Taken
            | Reply::Announced => true,
            Reply::Rejected(_) | Reply::NotSent(_) | Reply::Unknown(_) => false,
        };
        if ran && let Some(node) = self.nodes.get_mut(node.index()) {
            node.runs_scripts = true;
        }
    }
}

impl SharedState<Redis> for RedisShared {
    type Query = NoElections;

    fn refuses(&self) -> Option<Failure> {
        self.duplicates.map(|(a, b)| Failure::EqualNodes(a, b))
    }

    fn servers(&self) -> u16 {
        self.nodes.len() as u16
    }

    /// An extension of a token that does not exist changes nothing, and needs the same permissions
    /// as a lock: to run scripts, and to read the fence counter. The TTL does not limit how long it
    /// may wait for the connection.
    fn ping(env: &mut RedisEnv, call: CallId) {
        let key = env.shared.identity.counter.clone();
        let request = Request::Extend { key, number: 0, ttl_ms: MAX_TTL.as_millis() as u64, fence_block: 0 };
        env.out.push_back(LocksOutput::Send { call, request });
    }

    fn stopped(_: &mut lock::Locks<Redis>, unreleased: u32) -> LocksOutput {
        LocksOutput::Stopped { unreleased }
    }
}

impl RedisContext {
    /// Creates the environment for the nodes of `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let shared = RedisShared {
            identity: Identity::new(client, config.store.layout, &config.prefix),
            nodes: config.nodes().iter().map(|_| NodeHealth::default()).collect(),
            duplicates: None,
            wake_refusals: WakeRefusals::default(),
            verifications: Verifications::default(),
        };
        Ok(Self::with(now, config, seed, shared))
    }
}

impl RedisEnv {
    pub(crate) const fn quorum(&self) -> usize {
        self.shared.nodes.len() / 2 + 1
    }

    /// Returns why a node may not vote in a new round.
    pub(crate) fn excluded(&self, node: NodeId) -> Option<Answer> {
        self.shared.nodes.get(node.index())?.excluded(self.now)
    }

    /// Returns true if a release of the lock at the node can wake waiters.
    pub(crate) fn may_wake(&self, node: NodeId, key: &Key) -> bool {
        self.excluded(node).is_none() && !self.refuses_wake(node, key)
    }

    /// Returns true if requests to the node omit the wake-up keys of the lock.
    pub(crate) fn refuses_wake(&self, node: NodeId, key: &Key) -> bool {
        self.shared.wake_refusals.contains(self.now, node, key)
    }

    /// Returns the maximum number of fencing tokens to mint; 0 for a quorum.
    pub(crate) fn fence_block(&self) -> u32 {
        if self.config.is_quorum() || !self.config.store.fencing { 0 } else { self.config.store.fence_block }
    }

    /// Emits a request, and returns the serial of its call.
    pub(crate) fn send(&mut self, owner: CallOwner, node: NodeId, request: Request) -> u64 {
        let call = self.next_call(owner, node);
        self.out.push_back(LocksOutput::Send { call, request });
        call.serial
    }

    /// Wakes a waiter of another client. Nothing depends on the reply.
    pub(crate) fn announce(&mut self, node: NodeId, key: &Key) {
        self.send(CallOwner::Nobody, node, Request::Announce { key: key.clone() });
    }

    pub(crate) fn listen(&mut self, node: NodeId, key: &Key, on: bool) {
        let key = key.clone();
        self.out.push_back(if on { LocksOutput::Listen { node, key } } else { LocksOutput::Unlisten { node, key } });
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeSet(u16);

impl NodeSet {
    pub(crate) fn insert(&mut self, node: NodeId) {
        self.0 |= 1u16.checked_shl(u32::from(node.0)).unwrap_or(0);
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.0 &= !1u16.checked_shl(u32::from(node.0)).unwrap_or(0);
    }

    pub(crate) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub(crate) fn contains(self, node: NodeId) -> bool {
        self.0 & 1u16.checked_shl(u32::from(node.0)).unwrap_or(0) != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let lowest = NodeId::new(left.trailing_zeros() as u16);
            (left != 0).then(|| {
                left &= left - 1;
                lowest
            })
        })
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u16]) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.iter().for_each(|node| set.insert(NodeId::new(*node)));
        set
    }

    fn nodes(set: NodeSet) -> Vec<u16> {
        set.iter().map(|node| node.0).collect()
    }

    /// Both times are rounded down to seconds, so a server that has run for 9.01 s may say 10.
    #[test]
    fn uptime_may_be_a_second_too_long() {
        // Q6
        let config = Config::new(["redis://a", "redis://b", "redis://c"].map(|url| url.parse().expect("a URL")));
        let seconds = Duration::from_secs;
        let config = config.quarantine(seconds(10));
        for (uptime, until) in [(0, Some(10)), (1, Some(10)), (10, Some(1)), (11, Some(0)), (12, None)] {
            let mut node = NodeHealth::default();
            node.identify(Instant::ZERO, &config, Some(&Ok(ServerInfo::new("1", seconds(uptime)))));
            assert_eq!(node.quarantined_until, until.map(|until| Instant::ZERO + seconds(until)), "{uptime} s");
        }
    }

    /// Another server may forbid scripts.
    #[test]
    fn new_server_has_not_run_scripts() {
        // P2
        let config = Config::new(["redis://a".parse().expect("a URL")]);
        let server = |id: &str| Ok(ServerInfo::new(id, Duration::from_secs(99)));
        let mut node = NodeHealth { runs_scripts: true, ..NodeHealth::default() };
        for (server, same) in
            [(Some(server("1")), true), (Some(server("1")), true), (Some(server("2")), false), (None, false)]
        {
            node.runs_scripts = true;
            node.identify(Instant::ZERO, &config, server.as_ref());
            assert_eq!(node.runs_scripts, same, "{server:?}");
        }
    }

    #[test]
    fn node_set_tracks_membership() {
        let mut some = set(&[15, 3, 0, 3]);
        assert_eq!((nodes(some), some.len()), (alloc::vec![0, 3, 15], 3));
        assert_eq!([0, 1, 3, 15].map(|node| some.contains(NodeId::new(node))), [true, false, true, true]);
        assert_eq!(nodes(some.without(set(&[3, 4]))), [0, 15]);
        some.remove(NodeId::new(3));
        some.remove(NodeId::new(4));
        assert_eq!(nodes(some), [0, 15]);
        // Larger node numbers do not occur. They leave the others unchanged.
        some.insert(NodeId::new(16));
        some.remove(NodeId::new(16));
        assert_eq!((nodes(some), some.contains(NodeId::new(16))), (alloc::vec![0, 15], false));
    }
}

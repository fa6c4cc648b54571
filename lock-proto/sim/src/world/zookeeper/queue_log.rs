//! The queues as transactions have changed them, to judge grants by.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crate::zookeeper::NodeChange;
use lock_proto::Instant;
use lock_proto::zookeeper::is_exhausted;

/// Splits the name of a node into what comes before its sequence number, and the number: ten
/// characters or more.
pub(super) fn split_number(name: &str) -> Option<(&str, i32)> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let rest = &name[digits..];
    let (start, text) = match rest.len() {
        // The sign of a negative number is a part of its width.
        9 | 10 if name[..digits].ends_with("--") || rest.len() == 9 && name[..digits].ends_with('-') => {
            (&name[..digits - 1], &name[digits - 1..])
        }
        10.. => name.split_at(name.len() - 10),
        _ => return None,
    };
    Some((start, text.parse().ok()?))
}

/// Returns whether a node is one of a lock's or an election's queue, of the dialect of Curator.
fn is_queued(name: &str) -> bool {
    split_number(name).is_some_and(|(start, _)| start.ends_with("-lock-") || start.ends_with("-latch-"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct QueuedNode {
    session: i64,
    czxid: i64,
    number: i32,
}

/// The queue nodes that exist, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLog {
    nodes: BTreeMap<Arc<str>, QueuedNode>,
    /// Sessions of the nodes that were first, and until when, by queue and creating transaction.
    led: BTreeMap<Arc<str>, BTreeMap<i64, (i64, Instant)>>,
    /// The sessions of all nodes so far.
    owners: BTreeMap<Arc<str>, i64>,
    /// All nodes so far, by the transaction that created them.
    paths: BTreeMap<i64, Arc<str>>,
}

/// Returns the path of the queue that contains this node.
pub(super) fn queue_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl NodeLog {
    pub(super) fn record(&mut self, now: Instant, change: &NodeChange) {
        let Some((queue, name)) = change.path.rsplit_once('/') else { return };
        if !is_queued(name) {
            return;
        }
        self.note_first(now, queue);
        match (change.created, split_number(name)) {
            (Some(session), Some((_, number))) => {
                self.owners.insert(change.path.clone(), session);
                self.paths.insert(change.zxid, change.path.clone());
                self.nodes.insert(change.path.clone(), QueuedNode { session, czxid: change.zxid, number });
            }
            (Some(_), None) => {}
            (None, _) => _ = self.nodes.remove(&change.path),
        }
        self.note_first(now, queue);
    }

    fn note_first(&mut self, now: Instant, queue: &str) {
        if let Some((czxid, session)) = self.first(queue).map(|(_, node)| (node.czxid, node.session)) {
            self.led.entry(queue.into()).or_default().insert(czxid, (session, now));
        }
    }

    fn first(&self, queue: &str) -> Option<(&Arc<str>, &QueuedNode)> {
        self.nodes.iter().filter(|(path, _)| queue_of(path) == queue).min_by_key(|(_, node)| (node.number, node.czxid))
    }

    /// Returns the transaction that created the node by which one of these sessions leads a queue,
    /// if it is known: the node may have been deleted between the acquisition's request and the
    /// grant. `created` is the transaction that the grant names.
    pub(super) fn proves(
        &self,
        queue: &str,
        requested: Instant,
        created: Option<i64>,
        is_own: impl Fn(i64) -> bool,
    ) -> Result<Option<i64>, String> {
        let is_granted = |czxid, session| is_own(session) && created.is_none_or(|created| created == czxid);
        let first = self.first(queue);
        if let Some((_, node)) = first.filter(|(_, node)| is_granted(node.czxid, node.session)) {
            return Ok(Some(node.czxid));
        }
        // At their end, numbers order nothing.
        // ZK5
        let mut numbers = self.nodes.iter().filter(|(path, _)| queue_of(path) == queue).map(|(_, node)| node.number);
        let since =
            |(czxid, (session, until)): (&i64, &(i64, Instant))| is_granted(*czxid, *session) && *until >= requested;
        let led = self.led.get(queue).is_some_and(|led| led.iter().any(since));
        match first {
            _ if led || numbers.any(is_exhausted) => Ok(None),
            Some((path, _)) => Err(format!("was granted while {path} was first, of another")),
            None => Err(format!("was granted while {queue} was empty")),
        }
    }

    /// Returns true if one of these sessions has a node in a queue.
    pub(super) fn contends(&self, queue: &str, is_own: impl Fn(i64) -> bool) -> bool {
        self.nodes.iter().any(|(path, node)| queue_of(path) == queue && is_own(node.session))
    }

    /// Returns the transactions that created the nodes which end with a session, or with a path.
    pub(super) fn created(&self, ends: impl Fn(&str, i64) -> bool) -> impl Iterator<Item = i64> {
        self.nodes.iter().filter(move |(path, node)| ends(path, node.session)).map(|(_, node)| node.czxid)
    }

    /// Returns the node that a transaction created, and its session, also if it was deleted since.
    pub(super) fn created_by(&self, czxid: i64) -> Option<(&str, i64)> {
        let path = self.paths.get(&czxid)?;
        Some((path, self.last_owner(path)?))
    }

    /// Returns the session of a node, also of one that was deleted a while ago.
    pub(super) fn last_owner(&self, path: &str) -> Option<i64> {
        self.owners.get(path).copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn numbers_are_split_from_names() {
        assert_eq!(split_number("_c_1-lock-0000000012"), Some(("_c_1-lock-", 12)));
        assert_eq!(split_number("_c_1-lock-2147483647"), Some(("_c_1-lock-", i32::MAX)));
        assert_eq!(split_number("_c_1-lock--2147483648"), Some(("_c_1-lock-", i32::MIN)));
        assert_eq!(split_number("_c_1-lock--000000001"), Some(("_c_1-lock-", -1)));
        assert_eq!(split_number("1234__lock__0000000003"), Some(("1234__lock__", 3)));
        assert_eq!(split_number("data"), None);
        assert!(is_queued("x-lock-0000000001") && is_queued("_c_1-latch-0000000001"));
        assert!(!is_queued("1__lock__0000000001") && !is_queued("x-lock-1"));
    }

    #[test]
    fn only_first_in_queue_is_proven() {
        let mut log = NodeLog::default();
        let at = Instant::from_millis;
        let mut change =
            |zxid, path: &str, created| log.record(at(zxid as u64), &NodeChange { zxid, path: path.into(), created });
        change(1, "/a", Some(0));
        change(2, "/a/1-lock-0000000000", Some(7));
        change(3, "/a/2-lock-0000000001", Some(8));
        change(4, "/a/x", Some(9));
        change(5, "/b/2-lock-0000000001", Some(9));
        assert_eq!(log.proves("/a", at(2), None, |session| session == 7), Ok(Some(2)));
        assert!(
            log.proves("/a", at(2), None, |session| session == 8).unwrap_err().contains("1-lock-0000000000 was first")
        );
        assert_eq!(log.last_owner("/a/2-lock-0000000001"), Some(8));
        log.record(at(6), &NodeChange { zxid: 6, path: "/a/1-lock-0000000000".into(), created: None });
        assert_eq!(log.proves("/a", at(3), None, |session| session == 8), Ok(Some(3)));
        // It was first until just now. A later request has no part in that.
        assert_eq!(log.proves("/a", at(6), None, |session| session == 7), Ok(None));
        assert!(
            log.proves("/a", at(7), None, |session| session == 7).unwrap_err().contains("2-lock-0000000001 was first")
        );
        assert!(log.proves("/c", at(2), None, |_| true).unwrap_err().contains("empty"));
        // Another node of the client was first since its request.
        log.record(at(7), &NodeChange { zxid: 7, path: "/a/1-lock-0000000002".into(), created: Some(7) });
        assert_eq!(log.proves("/a", at(3), Some(2), |session| session == 7), Ok(None));
        assert!(log.proves("/a", at(3), Some(7), |session| session == 7).is_err());
        assert_eq!(log.proves("/a", at(3), Some(3), |session| session == 8), Ok(Some(3)));
        assert!(log.proves("/a", at(3), Some(2), |session| session == 8).is_err());
    }
}

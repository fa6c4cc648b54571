//! Paths and names of nodes: the queue of a lock, and its contenders.
// ZK7

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use super::codec::{Names, Op};
use crate::error::{Invalid, Misuse};
use crate::id::ClientId;
use crate::jitter::mix;

/// The names of the nodes in the queue of a lock. Clients exclude each other only if they use the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Those of Apache Curator's `InterProcessMutex`: `_c_<uuid>-lock-<number>`.
    #[default]
    Curator,
    /// Those of kazoo's `Lock`: `<uuid>__lock__<number>`.
    Kazoo,
}

/// What the nodes of a queue contend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum QueueKind {
    Lock(Dialect),
    /// The leadership, as with Curator's `LeaderLatch`: `_c_<uuid>-latch-<number>`.
    Latch,
}

/// The queue of a lock or an election: the node whose children contend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    pub(crate) path: Arc<str>,
    pub(crate) kind: QueueKind,
}

/// The UUID in the names of the nodes of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Guid(u128);

impl Guid {
    /// Derives the UUID of attempt `number` from the client id, in the form of a random UUID (RFC
    /// 9562, version 4).
    pub(crate) fn new(client: ClientId, number: u64) -> Self {
        let bits = client.bits();
        let half = |part: u64| u128::from(mix(mix(part, number) ^ (bits >> 64) as u64, number));
        let random = half(bits as u64) << 64 | half(!bits as u64);
        Self(random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62)
    }

    /// Appends its 32 digits in lower-case hexadecimal, on request with hyphens as Java prints a
    /// UUID.
    fn write(self, name: &mut String, hyphens: bool) {
        for (place, byte) in self.0.to_be_bytes().into_iter().enumerate() {
            if hyphens && matches!(place, 4 | 6 | 8 | 10) {
                name.push('-');
            }
            name.extend([byte >> 4, byte & 0xf].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
    }
}

/// A child of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child<'a> {
    /// A contender, and its place in the queue.
    Contender(i32),
    /// Something else, which clients of another dialect may wait for.
    Foreign(&'a str),
}

/// The length of the start of a name, at most.
const OWN_LENGTH: usize = 46;

/// The last numbers of a queue. The server counts on with negative ones, which come first.
// ZK5
const LAST_NUMBERS: i32 = 1 << 16;

/// Returns true if the queue must be emptied, so that its numbers begin anew.
#[must_use]
pub const fn is_exhausted(sequence: i32) -> bool {
    sequence < 0 || sequence > i32::MAX - LAST_NUMBERS
}

impl Queue {
    /// Returns the queue at this path below the chroot.
    ///
    /// # Errors
    ///
    /// [`Invalid::Path`] for a path that ZooKeeper does not allow.
    pub(crate) fn new(chroot: &str, prefix: &[u8], name: &[u8], kind: QueueKind) -> Result<Self, Misuse> {
        let text = |bytes| core::str::from_utf8(bytes).map_err(|_| Invalid::Path);
        let name = format!("{}{}", text(prefix)?, text(name)?);
        let name = name.strip_prefix('/').unwrap_or(&name);
        let path = format!("{chroot}/{name}");
        // The quotas and the configuration of the server are there.
        let is_own = path.strip_prefix("/zookeeper").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_own || !is_path(name) {
            return Err(Invalid::Path.into());
        }
        Ok(Self { path: path.into(), kind })
    }

    /// Returns what is before and behind the UUID in the names of nodes of ours.
    const fn affixes(&self) -> (&'static str, &'static str) {
        match self.kind {
            QueueKind::Lock(Dialect::Curator) => ("_c_", "-lock-"),
            QueueKind::Lock(Dialect::Kazoo) => ("", "__lock__"),
            QueueKind::Latch => ("_c_", "-latch-"),
        }
    }

    /// Returns the start of the name of a node of ours.
    pub(crate) fn own(&self, guid: Guid) -> String {
        let (start, end) = self.affixes();
        let mut name = String::with_capacity(OWN_LENGTH);
        name.push_str(start);
        guid.write(&mut name, end.starts_with('-'));
        name.push_str(end);
        name
    }

    /// Lists the contenders.
    pub(crate) fn list(&self) -> Op {
        Op::GetChildren { path: (*self.path).into(), watch: false }
    }

    /// Returns the path of the node of ours with this mark, if it is among these children.
    pub(crate) fn find(&self, names: &Names, guid: Guid) -> Option<Box<str>> {
        let own = self.own(guid);
        names.iter().find(|name| name.starts_with(&own)).map(|name| self.child(name))
    }

    /// Returns the path of a child.
    pub(crate) fn child(&self, name: &str) -> Box<str> {
        format!("{}/{name}", self.path).into()
    }

    /// Returns the name of a child with this path.
    pub(crate) fn name_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&*self.path)?.strip_prefix('/').filter(|name| !name.contains('/'))
    }

    /// Returns the paths of the queue and the nodes above it, from the top.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &str> {
        let ends = self.path.match_indices('/').map(|(at, _)| at).skip(1).chain([self.path.len()]);
        ends.filter_map(|end| self.path.get(..end))
    }

    /// Tells what a child is.
    pub(crate) fn classify<'a>(&self, name: &'a str) -> Child<'a> {
        let marker = self.affixes().1.trim_start_matches('-');
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let start = name.get(..name.len() - digits).unwrap_or_default();
        let start = [Some(start), start.strip_suffix('-')].into_iter().flatten().find(|start| start.ends_with(marker));
        let number = start.and_then(|start| name.get(start.len()..));
        // Servers append `%010d`.
        let number = number.filter(|number| number.len() >= 10 && digits <= 10);
        number.and_then(|number| number.parse().ok()).map_or(Child::Foreign(name), Child::Contender)
    }
}

/// Returns true for a path without the first slash that ZooKeeper accepts
/// (`PathUtils.validatePath`).
pub(crate) fn is_path(path: &str) -> bool {
    let allowed = |c: char| !c.is_control() && !('\u{e000}'..='\u{f8ff}').contains(&c) && c < '\u{fff0}';
    path.split('/').all(|part| !matches!(part, "" | "." | "..")) && path.chars().all(allowed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    const CURATOR: QueueKind = QueueKind::Lock(Dialect::Curator);

    fn queue(kind: QueueKind) -> Queue {
        Queue::new("/app", b"locks/", b"a", kind).unwrap()
    }

    #[test]
    fn names_are_those_of_curator_and_kazoo() {
        // ZK7
        let guid = Guid::new(ClientId::from_bits(1), 1);
        let name = queue(CURATOR).own(guid);
        let uuid = name.strip_prefix("_c_").unwrap().strip_suffix("-lock-").unwrap();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!((parts, &uuid[14..15]), ([8, 4, 4, 4, 12].to_vec(), "4"));
        assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
        let kazoo = queue(QueueKind::Lock(Dialect::Kazoo)).own(guid);
        assert_eq!(kazoo, format!("{}__lock__", uuid.replace('-', "")));
        assert_eq!(queue(QueueKind::Latch).own(guid), format!("_c_{uuid}-latch-"));
    }

    #[test]
    fn guids_of_clients_and_attempts_differ() {
        // ZK2
        let clients = [0, 1, 1 << 64, u128::MAX].map(ClientId::from_bits);
        let all = clients.iter().flat_map(|client| (0..100).map(|number| Guid::new(*client, number).0));
        assert_eq!(all.collect::<alloc::collections::BTreeSet<_>>().len(), 400);
    }

    #[test]
    fn children_of_other_dialects_are_foreign() {
        // ZK7
        let names = [
            ("_c_0e3a-lock-0000000007", [Some(7), None, None]),
            ("x-lock-0000000007", [Some(7), None, None]),
            ("lock-2147483647", [Some(i32::MAX), None, None]),
            ("a-lock--2147483648", [Some(i32::MIN), None, None]),
            ("a-lock--000000005", [Some(-5), None, None]),
            ("0e3a__lock__0000000012", [None, Some(12), None]),
            ("_c_0e3a-latch-0000000003", [None, None, Some(3)]),
            ("_c_0e3a-__WRIT__0000000003", [None, None, None]),
            ("_c_0e3a-lock-000000007", [None, None, None]),
            ("_c_0e3a-lock-99999999999", [None, None, None]),
            ("_c_0e3a-lock-9999999999", [None, None, None]),
            ("data", [None, None, None]),
        ];
        let kinds = [CURATOR, QueueKind::Lock(Dialect::Kazoo), QueueKind::Latch];
        for (name, expected) in names {
            for (kind, number) in kinds.into_iter().zip(expected) {
                let child = number.map_or(Child::Foreign(name), Child::Contender);
                assert_eq!(queue(kind).classify(name), child, "{kind:?} {name}");
            }
        }
    }

    #[test]
    fn numbers_near_the_end_exhaust_queue() {
        // ZK5
        let end = i32::MAX - (1 << 16);
        assert_eq!([0, end, end + 1, i32::MAX, i32::MIN, -1].map(is_exhausted), [false, false, true, true, true, true]);
    }

    #[test]
    fn paths_have_ancestors_and_children() {
        let queue = queue(CURATOR);
        assert_eq!(queue.ancestors().collect::<Vec<_>>(), ["/app", "/app/locks", "/app/locks/a"]);
        assert_eq!(&*queue.child("x"), "/app/locks/a/x");
        assert_eq!(queue.name_of("/app/locks/a/x"), Some("x"));
        assert_eq!([queue.name_of("/app/locks/a/x/y"), queue.name_of("/app/locks/ab/x")], [None, None]);
    }

    /// Regression: lock nodes were made in the quotas of the server.
    #[test]
    fn tree_of_the_server_is_refused() {
        let path = |chroot, name: &[u8]| Queue::new(chroot, b"", name, CURATOR).map(|queue| queue.path.to_string());
        for (chroot, name) in [
            ("", &b"zookeeper"[..]),
            ("", b"/zookeeper"),
            ("", b"zookeeper/quota"),
            ("", b"zookeeper/config/a"),
            ("/zookeeper", b"quota"),
            ("/zookeeper/quota", b"a"),
        ] {
            assert_eq!(path(chroot, name), Err(Invalid::Path.into()), "{chroot} {}", name.escape_ascii());
        }
        assert_eq!(path("", b"zookeepers"), Ok("/zookeepers".into()));
        assert_eq!(path("/app", b"zookeeper/quota"), Ok("/app/zookeeper/quota".into()));
    }

    #[test]
    fn invalid_paths_are_refused_and_first_slash_is_optional() {
        let path = |name: &[u8]| Queue::new("", b"", name, CURATOR).map(|queue| queue.path.to_string());
        assert_eq!(path("/füße:42".as_bytes()), Ok("/füße:42".into()));
        assert_eq!(path(b"a/b"), Ok("/a/b".into()));
        for name in [
            &b"a//b"[..],
            b"a/",
            b"",
            b"/",
            b".",
            b"a/../b",
            b"a\0",
            b"a\x1f",
            b"\xff",
            "\u{e000}".as_bytes(),
            "\u{1f512}".as_bytes(),
        ] {
            assert_eq!(path(name), Err(Invalid::Path.into()), "{}", name.escape_ascii());
        }
    }
}

//! Watches of the connections of a member (`WatchManager`). They are not replicated: they end with
//! the connection.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use lock_proto::zookeeper::codec::{Acl, EventType, WatchKind};

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trigger {
    Created,
    Deleted,
    Changed,
    Children,
}

/// The changes of a transaction, in order, with the ACLs of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Triggered(Vec<(Trigger, Arc<str>, Arc<[Acl]>)>);

impl Triggered {
    pub(super) fn push(&mut self, trigger: Trigger, path: &str, acl: &Arc<[Acl]>) {
        // Clients know the root by its other name.
        self.0.push((trigger, if path.is_empty() { "/" } else { path }.into(), acl.clone()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Trigger, &str, &[Acl])> {
        self.0.iter().map(|(trigger, path, acl)| (*trigger, &**path, &**acl))
    }
}

type Table = BTreeMap<Arc<str>, BTreeSet<u64>>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NodeWatches {
    /// Of `getData` and `exists`.
    data: Table,
    children: Table,
}

fn remove(table: &mut Table, path: &str, conn: u64) -> bool {
    let Some(conns) = table.get_mut(path) else { return false };
    let removed = conns.remove(&conn);
    if conns.is_empty() {
        table.remove(path);
    }
    removed
}

impl NodeWatches {
    pub(super) fn watch_data(&mut self, path: &str, conn: u64) {
        self.data.entry(path.into()).or_default().insert(conn);
    }

    pub(super) fn watch_children(&mut self, path: &str, conn: u64) {
        self.children.entry(path.into()).or_default().insert(conn);
    }

    /// Removes the watches of a connection on a node. Returns false if there are none.
    pub(super) fn remove(&mut self, path: &str, kind: WatchKind, conn: u64) -> bool {
        let (data, children) = match kind {
            WatchKind::Children => (false, true),
            WatchKind::Data => (true, false),
            WatchKind::Any => (true, true),
        };
        let data = data && remove(&mut self.data, path, conn);
        children && remove(&mut self.children, path, conn) || data
    }

    /// The connection has ended.
    pub(super) fn forget(&mut self, conn: u64) {
        for table in [&mut self.data, &mut self.children] {
            table.retain(|_, conns| {
                conns.remove(&conn);
                !conns.is_empty()
            });
        }
    }

    /// Removes the watches that a change triggers. Returns the connections to notify.
    pub(super) fn trigger(&mut self, trigger: Trigger, path: &str) -> (EventType, BTreeSet<u64>) {
        let data = |watches: &mut Self| watches.data.remove(path).unwrap_or_default();
        let children = |watches: &mut Self| watches.children.remove(path).unwrap_or_default();
        match trigger {
            Trigger::Created => (EventType::Created, data(self)),
            Trigger::Changed => (EventType::DataChanged, data(self)),
            Trigger::Children => (EventType::ChildrenChanged, children(self)),
            // One event for a connection that watches both.
            Trigger::Deleted => (EventType::Deleted, &data(self) | &children(self)),
        }
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.data.keys().chain(self.children.keys())
    }

    pub(super) fn count(&self) -> usize {
        self.data.values().chain(self.children.values()).map(BTreeSet::len).sum()
    }
}

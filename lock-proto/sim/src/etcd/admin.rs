//! Inspecting the cluster, and changing it as another client or an operator would. These methods do
//! not wait for a leader.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher};

use bytes::Bytes;

use super::refusal::RefusalStatus;
use super::span::KeySpan;
use super::user::User;
use super::{Cluster, connection::CallKind};
use lock_proto::Instant;
use lock_proto::etcd::Status;
use lock_proto::etcd::message::{KeyValue, WatchEvent};

/// A lease, for inspection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Lease {
    /// The lease id.
    pub id: i64,
    /// The granted TTL, in seconds.
    pub ttl: i64,
    /// When it expires. It is revoked some time later.
    pub expires: Instant,
    /// The keys attached to it.
    pub keys: Vec<Bytes>,
}

impl Cluster {
    /// Returns every key, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<KeyValue> {
        self.store.range(&KeySpan::From(Bytes::new())).map(|(key, entry)| entry.to_kv(key)).collect()
    }

    /// Returns when a lease may be revoked, unless it is renewed before.
    pub(crate) fn lease_expires(&self, id: i64) -> Option<Instant> {
        self.store.leases().get(id).map(|lease| lease.expires)
    }

    /// Returns a key, if it exists.
    #[must_use]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<KeyValue> {
        let key = Bytes::copy_from_slice(key.as_ref());
        self.store.range(&KeySpan::One(key)).map(|(key, entry)| entry.to_kv(key)).next()
    }

    /// Returns every lease, ordered by id.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        let seen = self.store.leases().iter().map(|(id, lease)| Lease {
            id,
            ttl: lease.ttl,
            expires: lease.expires,
            keys: lease.keys.iter().cloned().collect(),
        });
        seen.collect()
    }

    /// Returns the store's revision.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.store.revision()
    }

    /// Returns the number of calls of each method, by its path. Opening a stream counts as a call.
    #[must_use]
    pub const fn calls(&self) -> &BTreeMap<&'static str, u64> {
        &self.calls
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.connections.values().map(|connection| connection.streams.len()).sum()
    }

    /// Returns the number of parked watches. Without watches from the past there are none.
    // E5
    #[must_use]
    pub fn parked_count(&self) -> usize {
        let streams = self.connections.values().flat_map(|connection| connection.streams.values());
        let parked = streams.map(|stream| match &stream.kind {
            CallKind::KeepAlive(_) => 0,
            CallKind::Watch(watches, _) => watches.parked_count(),
        });
        parked.sum()
    }

    /// Hashes all that later behaviour depends on, apart from random choices. For exhaustive
    /// searches.
    pub(crate) fn hash_data(&self, into: &mut impl Hasher) {
        (&self.store, &self.members, self.leader, self.election, self.quorum_lost).hash(into);
        (&self.connections, &self.pending, &self.orphans, self.sync).hash(into);
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// Fails if the lease does not exist.
    pub fn put(
        &mut self,
        now: Instant,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        lease: i64,
    ) -> Result<(), Status> {
        self.advance(now);
        if lease != 0 && self.store.leases().get(lease).is_none() {
            return Err(RefusalStatus::LEASE_NOT_FOUND.status());
        }
        let mut change = self.store.write();
        change.put(&Bytes::copy_from_slice(key.as_ref()), &Bytes::copy_from_slice(value.as_ref()), lease);
        change.end();
        self.publish();
        Ok(())
    }

    /// Deletes a key, and returns whether it existed.
    pub fn delete(&mut self, now: Instant, key: impl AsRef<[u8]>) -> bool {
        self.advance(now);
        let mut change = self.store.write();
        let deleted = change.delete(&KeySpan::One(Bytes::copy_from_slice(key.as_ref())));
        change.end();
        self.publish();
        !deleted.is_empty()
    }

    /// Revokes a lease and deletes its keys. Returns whether it existed.
    pub fn revoke(&mut self, now: Instant, lease: i64) -> bool {
        self.advance(now);
        let there = self.store.revoke(lease).is_ok();
        self.publish();
        there
    }

    /// Compacts the history before `revision`. Watches that start earlier end.
    ///
    /// # Errors
    ///
    /// Fails if the revision is compacted already or in the future.
    pub fn compact(&mut self, now: Instant, revision: i64) -> Result<(), Status> {
        self.advance(now);
        for member in &mut self.members {
            // An isolated member still receives the events later, from the others' logs.
            let missed = self.store.history(member.seen + 1, revision.min(self.store.revision()));
            member.backlog.extend(missed.map(|(revision, events)| (revision, events.clone())));
            member.seen = member.seen.max(member.backlog.last().map_or(member.seen, |(revision, _)| *revision));
        }
        self.store.compact(revision).map_err(RefusalStatus::status)
    }

    /// Sets the URLs that `MemberList` reports, in the order of the members. By default it reports
    /// `http://member0:2379` and so on, and a learner.
    pub fn set_client_urls(&mut self, urls: Vec<String>) {
        self.client_urls = urls;
    }

    /// Adds a user. Replacing a user invalidates the user's tokens.
    pub fn set_user(&mut self, now: Instant, user: User) {
        self.advance(now);
        self.logins.retain(|_, login| login.user != user.name);
        self.config.users.insert(user.name.clone(), user);
    }

    /// Adds or removes a password of a user. Unlike here, a user of etcd has one password: several
    /// stand for a directory of users behind it. Tokens of a removed password become invalid.
    pub fn set_password(&mut self, now: Instant, user: &str, password: &str, on: bool) {
        self.advance(now);
        if let Some(user) = self.config.users.get_mut(user) {
            user.set_password(password, on);
        }
        if !on {
            self.logins.retain(|_, login| login.user != user || login.password != password);
        }
    }

    /// Cancels every watch, as a member does that can no longer serve it.
    pub fn cancel_watches(&mut self, now: Instant) {
        self.advance(now);
        for member in 0..self.members.len() {
            self.each_watch(member, |watches, _, out| out.extend(watches.cancel_all()));
        }
    }

    /// Makes the watches of a member silently lose events for good, or stops that.
    pub fn set_loses_events(&mut self, now: Instant, member: usize, loses: bool) {
        self.advance(now);
        self.members[member].loses_events = loses;
    }

    /// Returns true if the watches of a member lose events.
    #[must_use]
    pub fn loses_events(&self, member: usize) -> bool {
        self.members[member].loses_events
    }

    /// Ends every stream of a member, as it does when it loses the leader.
    pub fn end_streams_of(&mut self, now: Instant, member: usize) {
        self.advance(now);
        self.end_where(|of, _| of == member);
    }

    /// Returns the events since revision `first` that were not compacted.
    pub(crate) fn changes(&self, first: i64) -> impl Iterator<Item = (i64, &Vec<WatchEvent>)> {
        self.store.history(first, self.store.revision())
    }

    /// Invalidates every token.
    pub fn expire_tokens(&mut self, now: Instant) {
        self.advance(now);
        self.logins.clear();
    }
}

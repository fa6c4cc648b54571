//! Faults of etcd members.

use alloc::format;

use super::{EtcdClient, EtcdServers};
use crate::direction::Direction;
use crate::etcd::{Cluster, Condition};
use crate::network::Packet;
use crate::trace::{Lane, ProcessState};
use crate::world::World;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::etcd::Queue;

/// Value of a key that was replaced by hand.
const REPLACED: &str = "somebody else";

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Pauses the member's process, as by `SIGSTOP`. Its kernel still accepts connections and data.
    pub fn pause_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} paused"));
        self.note_fault();
        if self.hosts[member].state == ProcessState::Running {
            self.set_host(member, ProcessState::Paused);
            self.update_isolation(member);
        }
    }

    /// Resumes the member's process, which then handles the data that has arrived.
    pub fn resume_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} resumed"));
        if self.hosts[member].state != ProcessState::Paused {
            return;
        }
        self.set_host(member, ProcessState::Running);
        while let Some((link, packet)) = self.store.members[member].outbox.pop_front() {
            self.send(link, Direction::ToClient, packet);
        }
        self.update_isolation(member);
        while let Some((link, packet)) = self.hosts[member].inbox.pop_front() {
            self.receive_on_member(link, member, packet);
        }
        self.steps += 1;
        self.store.cluster.handle_timeout(self.now);
        self.pump_cluster();
    }

    /// Kills the member's process, as by `kill -9`. It may drop the last requests, not its data.
    pub fn kill_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} killed"));
        self.take_down(member, |cluster, now| cluster.crash(now, member));
    }

    /// Stops the member in order: accepted requests are executed and answered first.
    pub fn stop_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} stopped"));
        if self.hosts[member].state != ProcessState::Down {
            self.annotate(Some(Lane::Node(member)), || "is stopped".into());
        }
        self.take_down(member, |cluster, now| cluster.stop(now, member));
    }

    fn take_down(&mut self, member: usize, how: impl FnOnce(&mut Cluster, Instant)) {
        if self.hosts[member].state == ProcessState::Down {
            return;
        }
        self.note_fault();
        self.set_host(member, ProcessState::Down);
        self.hosts[member].clear();
        self.store.members[member].outbox.clear();
        how(&mut self.store.cluster, self.now);
        self.pump_cluster();
        self.update_isolation(member);
        // Connections that the kernel has accepted but the process has not seen.
        for id in self.network.of_node(member) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            self.send(id, Direction::ToClient, Packet::Close(Fault::Reset));
        }
    }

    /// Restarts a dead member with its data. Tokens are not part of it.
    pub fn start_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} started"));
        if self.hosts[member].state == ProcessState::Down {
            self.set_host(member, ProcessState::Running);
            self.store.cluster.start(self.now, member);
            self.pump_cluster();
        }
    }

    /// Cuts a member off from the other members, not from the clients.
    pub fn isolate_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} cut off from the others"));
        self.note_fault();
        if !core::mem::replace(&mut self.store.members[member].cut_off, true) {
            self.annotate(Some(Lane::Node(member)), || "cut off from the other members".into());
        }
        self.update_isolation(member);
    }

    /// Ends [`isolate_member`](Self::isolate_member).
    pub fn rejoin_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} with the others again"));
        if core::mem::replace(&mut self.store.members[member].cut_off, false) {
            self.annotate(Some(Lane::Node(member)), || "rejoined the other members".into());
        }
        self.update_isolation(member);
    }

    /// Isolates a paused member from the other members, if there are any.
    fn update_isolation(&mut self, member: usize) {
        let stopped = self.hosts[member].state == ProcessState::Paused && self.hosts.len() > 1;
        if stopped || self.store.members[member].cut_off {
            self.store.cluster.isolate(self.now, member);
        } else {
            self.store.cluster.heal(self.now, member);
        }
        self.pump_cluster();
    }

    /// Disconnects all members from each other, so that none can lead.
    pub fn lose_quorum(&mut self) {
        self.quorum(true, "quorum lost", Cluster::lose_quorum);
    }

    /// Ends [`lose_quorum`](Self::lose_quorum).
    pub fn restore_quorum(&mut self) {
        self.quorum(false, "quorum restored", Cluster::restore_quorum);
    }

    fn quorum(&mut self, lost: bool, what: &str, change: impl FnOnce(&mut Cluster, Instant)) {
        self.journal.write(self.now, format_args!("{what}"));
        if core::mem::replace(&mut self.store.recorded_state.quorum_lost, lost) != lost {
            self.note_fault();
            self.annotate(None, || what.into());
        }
        change(&mut self.store.cluster, self.now);
        self.pump_cluster();
    }

    /// Moves the leadership to another member. Every lease restarts with its full TTL.
    pub fn change_leader(&mut self) {
        self.on_cluster("another leader", |cluster, now| {
            cluster.change_leader(now);
        });
    }

    /// Begins or ends a condition. Refusals count as a fault, defects of the servers do not.
    pub fn set_condition(&mut self, condition: Condition, on: bool) {
        match condition {
            Condition::TooManyRequests | Condition::NoSpace => self.note_fault(),
            Condition::StaleReads | Condition::RevokedKeepAlives => {}
        }
        self.annotate(None, || format!("{condition:?} {}", if on { "begins" } else { "is over" }));
        self.change_condition(condition, on);
    }

    /// Like [`set_condition`](Self::set_condition), but not shown in pictures.
    pub(super) fn change_condition(&mut self, condition: Condition, on: bool) {
        self.journal.write(self.now, format_args!("{condition:?} {on}"));
        self.store.cluster.set(self.now, condition, on);
        self.pump_cluster();
    }

    /// Compacts the history up to the current revision.
    pub fn compact(&mut self) {
        self.record_changes();
        self.on_cluster("compacted", |cluster, now| {
            // Fails if this revision is already compacted.
            let _ = cluster.compact(now, cluster.revision());
        });
    }

    /// Writes a key unrelated to locks, which advances the revision.
    pub fn touch(&mut self) {
        self.on_cluster("something else is written", |cluster, now| {
            // Without a lease, so it cannot fail.
            let _ = cluster.put(now, "something else", "", 0);
        });
    }

    /// Deletes the oldest or newest key of this lock. Returns whether there was one. Until its
    /// owner gets the watch event, two clients may believe to hold the lock.
    pub fn delete_key(&mut self, name: &str, oldest: bool) -> bool {
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        self.on_cluster("a key is deleted by hand", |cluster, now| cluster.delete(now, &key.key))
    }

    /// Deletes the oldest or newest key of this lock and recreates it at once, with its lease and
    /// another value. Returns whether there was one. To its owner it is a different key. It is
    /// deleted by the next call, or when the world calms down.
    pub fn replace_key(&mut self, name: &str, oldest: bool) -> bool {
        self.delete_replaced();
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        self.on_cluster("a key is replaced by hand", |cluster, now| {
            cluster.delete(now, &key.key);
            // Its lease may have just expired.
            cluster.put(now, &key.key, REPLACED, key.lease).is_ok()
        })
    }

    pub(super) fn delete_replaced(&mut self) {
        for key in self.store.cluster.keys().into_iter().filter(|kv| kv.value == REPLACED) {
            self.on_cluster("a key that was replaced by hand is deleted", |cluster, now| cluster.delete(now, &key.key));
        }
    }

    /// Revokes the lease of the oldest or newest key of this lock. Returns whether there was one.
    pub fn revoke_lease(&mut self, name: &str, oldest: bool) -> bool {
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        if let Some(expires) = self.store.cluster.lease_expires(key.lease) {
            self.store.revoked.insert(key.lease, expires);
        }
        self.on_cluster("a lease is revoked by hand", |cluster, now| cluster.revoke(now, key.lease))
    }

    fn queue_keys(&self, name: &str, oldest: bool) -> Option<lock_proto::etcd::message::KeyValue> {
        let queue = Queue::new(b"", name.as_bytes());
        let keys = self.store.cluster.keys().into_iter().filter(|kv| kv.key.starts_with(queue.prefix()));
        if oldest { keys.min_by_key(|kv| kv.create_revision) } else { keys.max_by_key(|kv| kv.create_revision) }
    }

    /// Invalidates every token.
    pub fn expire_tokens(&mut self) {
        self.on_cluster("tokens expire", |cluster, now| cluster.expire_tokens(now));
    }

    /// Cancels every watch, as a member does that runs out of resources.
    pub fn cancel_watches(&mut self) {
        self.on_cluster("watches cancelled", |cluster, now| cluster.cancel_watches(now));
    }

    /// Makes the watches of a member lose events silently, as with a bug in the server or a proxy.
    pub fn lose_events(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "loses watch events", |cluster, now| {
            cluster.set_loses_events(now, member, true);
        });
    }

    /// Ends [`lose_events`](Self::lose_events). Lost events are never delivered.
    pub fn keep_events(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "reports watch events again", |cluster, now| {
            cluster.set_loses_events(now, member, false);
        });
    }

    /// Ends every stream of a member with the status `Unavailable`.
    pub fn end_streams(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "streams end", |cluster, now| cluster.end_streams_of(now, member));
    }

    /// Applies any other change to the cluster.
    pub fn on_cluster<T>(&mut self, what: &str, change: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        self.on_lane(None, what, change)
    }

    fn on_lane<T>(&mut self, lane: Option<Lane>, what: &str, change: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        self.journal.write(self.now, format_args!("{what}"));
        self.note_fault();
        self.annotate(lane, || what.into());
        let done = change(&mut self.store.cluster, self.now);
        self.pump_cluster();
        done
    }
}

//! What goes wrong with etcd members.

use alloc::format;

use super::{Etcd, EtcdClient};
use crate::etcd::Queue;
use crate::fault::Fault;
use crate::sim::direction::Direction;
use crate::sim::etcd::{Cluster, Condition};
use crate::sim::network::Packet;
use crate::sim::trace::{Lane, State};
use crate::sim::world::World;
use crate::sim::world::process::Fact;
use crate::time::Instant;

/// The value of a key that took another's place.
const REPLACED: &str = "somebody else";

/// What goes wrong with members.
impl<C: EtcdClient> World<Etcd<C>> {
    // ---- members ----

    /// The member's process is stopped, as by `SIGSTOP`: its kernel still accepts connections and
    /// bytes. The others go on without it.
    pub fn pause_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} paused"));
        self.troubled();
        if self.hosts[member].state == State::Running {
            self.set_host(member, State::Paused);
            self.settle_member(member);
        }
    }

    /// The member's process goes on, with what has come meanwhile.
    pub fn resume_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} resumed"));
        if self.hosts[member].state != State::Paused {
            return;
        }
        self.set_host(member, State::Running);
        while let Some((link, packet)) = self.store.members[member].outbox.pop_front() {
            self.send(link, Direction::ToClient, packet);
        }
        self.settle_member(member);
        while let Some((link, packet)) = self.hosts[member].inbox.pop_front() {
            self.member_takes(link, member, packet);
        }
        self.steps += 1;
        self.store.cluster.handle_timeout(self.now);
        self.pump_cluster();
    }

    /// The member's process dies, as by `kill -9`. What it was asked to do last is done or not. Its
    /// data stays.
    pub fn kill_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} killed"));
        self.member_goes(member, |cluster, now| cluster.crash(now, member));
    }

    /// The member ends in an orderly way: what it has taken is done and answered first.
    pub fn stop_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} stopped"));
        if self.hosts[member].state != State::Down {
            self.word(Some(Lane::Node(member)), || "ends in order".into());
        }
        self.member_goes(member, |cluster, now| cluster.stop(now, member));
    }

    fn member_goes(&mut self, member: usize, how: impl FnOnce(&mut Cluster, Instant)) {
        if self.hosts[member].state == State::Down {
            return;
        }
        self.troubled();
        self.set_host(member, State::Down);
        self.hosts[member].drops_all();
        self.store.members[member].outbox.clear();
        how(&mut self.store.cluster, self.now);
        self.pump_cluster();
        self.settle_member(member);
        // Connections that the kernel had accepted and the process had not seen.
        for id in self.network.of_node(member) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            self.send(id, Direction::ToClient, Packet::Close(Fault::Reset));
        }
    }

    /// A member that is down starts again, with its data. Tokens are not among them.
    pub fn start_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} started"));
        if self.hosts[member].state == State::Down {
            self.set_host(member, State::Running);
            self.store.cluster.start(self.now, member);
            self.pump_cluster();
        }
    }

    /// Cuts a member off from the other members, not from the clients.
    pub fn isolate_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} cut off from the others"));
        self.troubled();
        if !core::mem::replace(&mut self.store.members[member].cut_off, true) {
            self.word(Some(Lane::Node(member)), || "cut off from the other members".into());
        }
        self.settle_member(member);
    }

    /// Ends [`isolate_member`](Self::isolate_member).
    pub fn rejoin_member(&mut self, member: usize) {
        self.journal.write(self.now, format_args!("m{member} with the others again"));
        if core::mem::replace(&mut self.store.members[member].cut_off, false) {
            self.word(Some(Lane::Node(member)), || "hears the other members again".into());
        }
        self.settle_member(member);
    }

    /// To the others a stopped member is as good as cut off. An only member has no others.
    fn settle_member(&mut self, member: usize) {
        let stopped = self.hosts[member].state == State::Paused && self.hosts.len() > 1;
        if stopped || self.store.members[member].cut_off {
            self.store.cluster.isolate(self.now, member);
        } else {
            self.store.cluster.heal(self.now, member);
        }
        self.pump_cluster();
    }

    /// No member hears another: nobody can lead.
    pub fn lose_quorum(&mut self) {
        self.quorum(true, "quorum lost", Cluster::lose_quorum);
    }

    /// Ends [`lose_quorum`](Self::lose_quorum).
    pub fn restore_quorum(&mut self) {
        self.quorum(false, "quorum restored", Cluster::restore_quorum);
    }

    fn quorum(&mut self, lost: bool, what: &str, change: impl FnOnce(&mut Cluster, Instant)) {
        self.journal.write(self.now, format_args!("{what}"));
        if core::mem::replace(&mut self.store.told_of.quorum_lost, lost) != lost {
            self.troubled();
            self.word(None, || what.into());
        }
        change(&mut self.store.cluster, self.now);
        self.pump_cluster();
    }

    /// The leader hands over to another member; every lease has its whole life again.
    pub fn change_leader(&mut self) {
        self.on_cluster("another leader", |cluster, now| {
            cluster.change_leader(now);
        });
    }

    /// A state in which requests are refused begins or ends.
    pub fn set_condition(&mut self, condition: Condition, on: bool) {
        self.troubled();
        self.word(None, || format!("{condition:?} {}", if on { "begins" } else { "is over" }));
        self.change_condition(condition, on);
    }

    /// The same, but nobody needs to see it in a picture.
    pub(super) fn change_condition(&mut self, condition: Condition, on: bool) {
        self.journal.write(self.now, format_args!("{condition:?} {on}"));
        self.store.cluster.set(self.now, condition, on);
        self.pump_cluster();
    }

    // ---- the store, by hand ----

    /// The history is compacted up to now.
    pub fn compact(&mut self) {
        self.record_changes();
        self.on_cluster("compacted", |cluster, now| {
            // It may have been, at this very revision.
            let _ = cluster.compact(now, cluster.revision());
        });
    }

    /// Somebody writes a key that has nothing to do with locks: the revision moves on, and so does
    /// every watch.
    pub fn touch(&mut self) {
        self.on_cluster("something else is written", |cluster, now| {
            // No lease, so it cannot be missing.
            let _ = cluster.put(now, "something else", "", 0);
        });
    }

    /// The oldest, or the newest, key of this lock is deleted by hand; whether there was one. Its
    /// owner learns of it by its watch, some time later: until then two may believe to hold the
    /// lock.
    pub fn delete_key(&mut self, name: &str, oldest: bool) -> bool {
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        self.on_cluster("a key is deleted by hand", |cluster, now| cluster.delete(now, &key.key))
    }

    /// The oldest, or the newest, key of this lock is deleted by hand and written anew at once,
    /// with its lease and another value; whether there was one. To its owner it is another key. It
    /// is deleted when this is done again, and when the world is calm.
    pub fn replace_key(&mut self, name: &str, oldest: bool) -> bool {
        self.delete_replaced();
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        self.on_cluster("a key is replaced by hand", |cluster, now| {
            cluster.delete(now, &key.key);
            // Its lease may be at its end.
            cluster.put(now, &key.key, REPLACED, key.lease).is_ok()
        })
    }

    pub(super) fn delete_replaced(&mut self) {
        for key in self.store.cluster.keys().into_iter().filter(|kv| kv.value == REPLACED) {
            self.on_cluster("a key that was replaced by hand is deleted", |cluster, now| cluster.delete(now, &key.key));
        }
    }

    /// The lease of the oldest, or the newest, key of this lock is revoked by hand; whether there
    /// was one.
    pub fn revoke_lease(&mut self, name: &str, oldest: bool) -> bool {
        let Some(key) = self.queue_keys(name, oldest) else { return false };
        self.on_cluster("a lease is revoked by hand", |cluster, now| cluster.revoke(now, key.lease))
    }

    fn queue_keys(&self, name: &str, oldest: bool) -> Option<crate::etcd::message::KeyValue> {
        let queue = Queue::new(b"", name.as_bytes());
        let keys = self.store.cluster.keys().into_iter().filter(|kv| kv.key.starts_with(queue.prefix()));
        if oldest { keys.min_by_key(|kv| kv.create_revision) } else { keys.max_by_key(|kv| kv.create_revision) }
    }

    /// Every token becomes invalid.
    pub fn expire_tokens(&mut self) {
        self.on_cluster("tokens expire", |cluster, now| cluster.expire_tokens(now));
    }

    /// Every watch is cancelled by its member, as one does that has no room for it any more.
    pub fn cancel_watches(&mut self) {
        self.on_cluster("watches cancelled", |cluster, now| cluster.cancel_watches(now));
    }

    /// From now on the watches of a member miss what happens, and nobody says so: a bug of the
    /// server, or of something between.
    pub fn lose_events(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "loses watch events", |cluster, now| {
            cluster.set_loses_events(now, member, true);
        });
    }

    /// Ends [`lose_events`](Self::lose_events). What was missed is never told.
    pub fn keep_events(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "reports watch events again", |cluster, now| {
            cluster.set_loses_events(now, member, false);
        });
    }

    /// Every stream of a member ends with the status `Unavailable`.
    pub fn end_streams(&mut self, member: usize) {
        self.on_lane(Some(Lane::Node(member)), "streams end", |cluster, now| cluster.end_streams_of(now, member));
    }

    /// Anything else that happens to the cluster.
    pub fn on_cluster<T>(&mut self, what: &str, change: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        self.on_lane(None, what, change)
    }

    fn on_lane<T>(&mut self, lane: Option<Lane>, what: &str, change: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        self.journal.write(self.now, format_args!("{what}"));
        self.troubled();
        self.word(lane, || what.into());
        let done = change(&mut self.store.cluster, self.now);
        self.pump_cluster();
        done
    }

    // ---- the network between clients and members ----

    /// Every packet passes again everywhere.
    pub fn heal_all(&mut self) {
        for client in 0..self.clients.len() {
            for member in 0..self.hosts.len() {
                self.heal(client, member);
            }
        }
    }

    /// Every open connection between this client and this member is reset, seen by both at once.
    /// What was under way is lost.
    pub fn drop_connections(&mut self, client: usize, member: usize) {
        self.journal.write(self.now, format_args!("reset c{client} m{member}"));
        self.troubled();
        let mut any = false;
        for id in self.network.of_client(client) {
            let Some(link) = self.network.links.get_mut(&id).filter(|link| link.node == member) else { continue };
            let (conn, known) = (link.conn, link.node_open);
            if !core::mem::replace(&mut any, true) {
                self.word(Some(Lane::Client(client)), || format!("its connections to member {member} are reset"));
            }
            self.break_off(id);
            if known {
                match self.hosts[member].state {
                    State::Running => {
                        self.hang_up(id);
                        self.pump_cluster();
                    }
                    State::Paused => {
                        self.hosts[member].inbox.push_back((id, Packet::Close(Fault::Reset)));
                    }
                    State::Down => {}
                }
            }
            self.tell_process(client, Fact::Disconnected(conn, Fault::Reset));
        }
    }
}

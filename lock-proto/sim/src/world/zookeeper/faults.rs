//! Faults of ZooKeeper servers.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::{Zookeeper, ZookeeperClient};
use crate::direction::Direction;
use crate::network::Packet;
use crate::trace::{Lane, ProcessState};
use crate::world::World;
use crate::zookeeper::{Condition, Ensemble};
use lock_proto::Fault;
use lock_proto::Instant;

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    /// Pauses the member's process, as by `SIGSTOP`. Its kernel still accepts connections and data.
    pub fn pause_member(&mut self, member: usize) {
        if self.hosts[member].state == ProcessState::Running {
            self.set_host(member, ProcessState::Paused);
            self.on_member(member, "paused", Ensemble::freeze);
        }
    }

    /// Resumes the member's process, which then handles the data that has arrived.
    pub fn resume_member(&mut self, member: usize) {
        if self.hosts[member].state != ProcessState::Paused {
            return;
        }
        self.set_host(member, ProcessState::Running);
        self.on_member(member, "resumed", Ensemble::thaw);
        while let Some((id, packet)) = self.hosts[member].inbox.pop_front() {
            self.receive_on_member(id, packet);
        }
    }

    /// Kills the member's process, as by `kill -9`. Its data survives.
    pub fn kill_member(&mut self, member: usize) {
        if self.hosts[member].state == ProcessState::Down {
            return;
        }
        self.set_host(member, ProcessState::Down);
        self.hosts[member].clear();
        self.on_member(member, "killed", Ensemble::crash);
        // Connections that the kernel has accepted but the process has not seen.
        for id in self.network.of_node(member) {
            if let Some(link) = self.network.links.get_mut(&id) {
                link.node_open = false;
            }
            self.send(id, Direction::ToClient, Packet::Close(Fault::Reset));
        }
    }

    /// Restarts a dead member with its data.
    pub fn start_member(&mut self, member: usize) {
        if self.hosts[member].state == ProcessState::Down {
            self.set_host(member, ProcessState::Running);
            self.on_member(member, "started", Ensemble::start);
        }
    }

    /// Cuts a member off from the other members, not from the clients.
    pub fn isolate_member(&mut self, member: usize) {
        self.on_member(member, "cut off from the others", Ensemble::isolate);
    }

    /// Ends [`isolate_member`](Self::isolate_member).
    pub fn rejoin_member(&mut self, member: usize) {
        self.on_member(member, "with the others again", Ensemble::heal);
    }

    /// Sets how much later a follower applies what the leader commits.
    pub fn delay_member(&mut self, member: usize, lag: Duration) {
        self.on_member(member, &format!("is {lag:?} behind"), |ensemble, now, member| {
            ensemble.set_lag(now, member, lag);
        });
    }

    /// Begins or ends a condition in which requests are refused.
    pub fn set_condition(&mut self, condition: Condition, on: bool) {
        let what = format!("{condition:?} {}", if on { "begins" } else { "is over" });
        self.on_ensemble(&what, |ensemble, now| ensemble.set(now, condition, on));
    }

    /// Moves the leadership to another member.
    pub fn change_leader(&mut self) {
        self.on_ensemble("another leader", Ensemble::change_leader);
    }

    fn on_member(&mut self, member: usize, what: &str, change: impl FnOnce(&mut Ensemble, Instant, usize)) {
        self.journal.write(self.now, format_args!("z{member} {what}"));
        self.note_fault();
        self.annotate(Some(Lane::Node(member)), || what.into());
        change(&mut self.store.ensemble, self.now, member);
        self.pump_ensemble();
    }

    /// Applies any other change to the servers.
    pub fn on_ensemble<T>(&mut self, what: &str, change: impl FnOnce(&mut Ensemble, Instant) -> T) -> T {
        self.journal.write(self.now, format_args!("{what}"));
        self.note_fault();
        self.annotate(None, || what.into());
        let done = change(&mut self.store.ensemble, self.now);
        self.pump_ensemble();
        done
    }

    /// Returns the oldest or newest contender's node and its session.
    fn contender(&self, name: &str, oldest: bool) -> Option<(String, i64)> {
        let queue = format!("/{name}/");
        let of_queue = |path: &String| path.strip_prefix(&queue).is_some_and(|name| !name.contains('/'));
        let nodes = self.store.ensemble.nodes().into_iter().filter(|(path, _)| of_queue(path));
        let nodes = nodes.filter(|(_, stat)| stat.ephemeral_owner != 0);
        let found = if oldest { nodes.min_by_key(|(_, stat)| stat.czxid) } else { nodes.max_by_key(|(_, s)| s.czxid) };
        found.map(|(path, stat)| (path, stat.ephemeral_owner))
    }

    /// Deletes the node of the holder or of the last contender of this lock by hand. Returns
    /// whether there was one.
    pub fn delete_node(&mut self, name: &str, oldest: bool) -> bool {
        let Some((path, _)) = self.contender(name, oldest) else { return false };
        self.on_ensemble("a node is deleted by hand", |ensemble, now| ensemble.delete(now, &path));
        true
    }

    /// Ends the session of the holder or of the last contender of this lock by hand. Returns
    /// whether there was one.
    pub fn end_session(&mut self, name: &str, oldest: bool) -> bool {
        let Some((_, session)) = self.contender(name, oldest) else { return false };
        if let Some(expires) = self.store.ensemble.session_expires(session).flatten() {
            self.store.ended.insert(session, expires);
        }
        self.on_ensemble("a session is ended by hand", |ensemble, now| ensemble.expire_session(now, session));
        true
    }
}

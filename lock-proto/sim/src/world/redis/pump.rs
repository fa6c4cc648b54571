//! The hosts of nodes and of a client's machine: bytes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::label::command;
use super::model::has_token;
use super::tap::{Response, TappedRequest, reply_len};
use super::{RedisClient, RedisServers};
use crate::check::{Rule, TAKE};
use crate::direction::Direction;
use crate::network::Packet;
use crate::trace::ProcessState;
use crate::world::World;
use crate::world::handover::CallCause;
use crate::world::process::Process;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::redis::Key;
use lock_proto::{ConnId, LockId};

impl<C: RedisClient> World<RedisServers<C>> {
    /// Returns a node's next deadline, or `None` while it does not run.
    pub(super) fn node_deadline(&self, node: usize) -> Option<Instant> {
        self.store.nodes[node].next.filter(|_| self.hosts[node].state == ProcessState::Running)
    }

    pub(super) fn due_node(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|node| self.node_deadline(*node).is_some_and(|at| at <= self.now))
    }

    pub(super) fn wake_node(&mut self, node: usize) {
        self.steps += 1;
        self.store.nodes[node].node.handle_timeout(self.now);
        self.pump_node(node);
    }

    pub(super) fn receive_on_node(&mut self, id: u64, node: usize, packet: Packet<Vec<u8>>) {
        self.steps += 1;
        let (now, server) = (self.now, &mut self.store.nodes[node].node);
        match packet {
            Packet::Open => server.handle_connected(now, id),
            Packet::Handshake(left) => {
                if self.answer_handshake(id, left) {
                    self.receive_on_node(id, node, Packet::Close(Fault::Closed));
                }
            }
            Packet::Data(bytes) => server.handle_received(now, id, &bytes),
            Packet::Close(_) => {
                server.handle_disconnected(now, id);
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.node_open = false;
                }
                self.network.sweep();
            }
        }
    }

    /// Delivers a packet to a running node. The node executes packets one by one, and replies to
    /// pipelined commands when all of them are done.
    pub(super) fn serve(&mut self, id: u64, node: usize, packet: Packet<Vec<u8>>) {
        if self.service.is_zero() && self.hosts[node].busy_until.is_none() {
            self.receive_on_node(id, node, packet);
            return self.pump_node(node);
        }
        self.hosts[node].queue.push_back((self.now, id, packet));
        if self.hosts[node].busy_until.is_none() {
            self.work(node);
        }
    }

    /// Executes queued packets until one of them takes time.
    fn work(&mut self, node: usize) {
        while let Some((since, id, packet)) = self.hosts[node].queue.pop_front() {
            let before = self.store.nodes[node].node.executed();
            self.receive_on_node(id, node, packet);
            let count = self.store.nodes[node].node.executed() - before;
            let until = self.now + self.service * u32::try_from(count).unwrap_or(u32::MAX);
            if until > self.now {
                self.hosts[node].busy_until = Some(until);
                self.served(until.since(since));
                break;
            }
        }
        self.pump_node(node);
    }

    pub(super) fn work_ends_at(&self, node: usize) -> Option<Instant> {
        self.hosts[node].busy_until.filter(|_| self.hosts[node].state == ProcessState::Running)
    }

    pub(super) fn free_node(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|node| self.work_ends_at(*node).is_some_and(|at| at <= self.now))
    }

    pub(super) fn finish_work(&mut self, node: usize) {
        self.hosts[node].busy_until = None;
        self.pump_node(node);
        self.work(node);
    }

    /// Sends a node's replies, closes connections and logs the commands it has executed.
    pub(super) fn pump_node(&mut self, node: usize) {
        while let Some(seen) = self.store.nodes[node].node.poll_executed() {
            let text = command(&seen.args);
            let from = self.network.links.get(&seen.conn).map(|link| (link.client, link.conn));
            match from {
                Some((client, conn)) => {
                    self.journal.write(self.now, format_args!("n{node} from c{client}/{conn}: {text}"))
                }
                None => self.journal.write(self.now, format_args!("n{node}: {text}")),
            }
        }
        while let Some(block) = self.store.nodes[node].node.poll_minted() {
            self.store.truth.minted(&block);
        }
        if self.hosts[node].busy_until.is_none() {
            self.answer(node);
        }
        self.store.nodes[node].update_deadline();
        self.check_keys(node);
    }

    fn answer(&mut self, node: usize) {
        let mut place = 0;
        while let Some((found, id)) = self.network.next_of_node(node, place) {
            place = found + 1;
            let server = &mut self.store.nodes[node].node;
            let bytes = server.outgoing(id);
            if !bytes.is_empty() {
                let bytes = bytes.to_vec();
                server.consume(id, bytes.len());
                self.log_errors(node, id, &bytes);
                self.send_bytes(id, Direction::ToClient, bytes);
            }
        }
        while let Some(id) = self.store.nodes[node].node.poll_closed() {
            self.store.nodes[node].node.handle_disconnected(self.now, id);
            if let Some(link) = self.network.links.get_mut(&id)
                && link.node_open
            {
                link.node_open = false;
                self.send(id, Direction::ToClient, Packet::Close(Fault::Closed));
            }
        }
    }

    /// Logs the error replies among these. A node sends whole replies.
    fn log_errors(&mut self, node: usize, id: u64, mut bytes: &[u8]) {
        let Some((client, conn)) = self.network.links.get(&id).map(|link| (link.client, link.conn)) else { return };
        if !self.journal.is_on() {
            return;
        }
        while let Some(len) = reply_len(bytes) {
            let (reply, rest) = bytes.split_at(len);
            if let [b'-', text @ .., b'\r', b'\n'] = reply {
                let text = String::from_utf8_lossy(text);
                self.journal.write(self.now, format_args!("n{node} to c{client}/{conn}: -{text}"));
            }
            bytes = rest;
        }
    }

    fn check_keys(&mut self, node: usize) {
        let server = &self.store.nodes[node].node;
        let (clock, mut ended) = (server.unix_micros(self.now) / 1_000, Vec::new());
        for key in &self.store.names {
            let content = server.string(self.now, key);
            let early = self.checker.ended_early(node, key, content, clock);
            ended.extend(early.map(|value| (key.clone(), value.to_vec())));
            if self.checker.note_stored(self.now, node, key, content)
                && let Some((value, expires)) = content
            {
                let until = expires.map_or(Instant::MAX, |at| server.when(at));
                self.store.truth.keeps(self.now, node, key, value, until);
            }
        }
        for key in &self.store.counters {
            let text = server.get(self.now, key).and_then(|text| core::str::from_utf8(text).ok());
            if let Some(counter) = text.and_then(|text| text.parse().ok()) {
                self.checker.counter_stored(self.now, node, counter, server.unix_micros(self.now));
            }
        }
        for (key, value) in ended {
            self.check_left_alone(node, &key, &value);
            self.store.truth.ended(node, &key, &value);
        }
        self.check_leftover_keys(node);
        self.check();
    }

    /// Checks that the key of a lost hold does not end before its expiry while its guard exists.
    fn check_left_alone(&mut self, node: usize, key: &[u8], value: &[u8]) {
        let is_own = |client: usize, lock: &LockId| {
            let records = &self.clients[client].records;
            records.get(lock).is_some_and(|record| *record.name == *key && has_token(record, value))
        };
        let lost = |client| self.checker.lost_guards(client).find(|lock| is_own(client, lock));
        if let Some((client, lock)) = (0..self.clients.len()).find_map(|client| Some((client, lost(client)?))) {
            let text = format!(
                "{} was deleted on node {node} while the guard of client {client} {lock} exists",
                key.escape_ascii()
            );
            self.checker.report(self.now, Rule::ShortenedKey, text);
        }
    }

    /// Checks that an idle client has left no key: it would not delete it any more.
    pub(super) fn check_leftover_keys(&mut self, node: usize) {
        for key in &self.store.names {
            let Some((value, _)) = self.store.nodes[node].node.string(self.now, key) else { continue };
            let owner = self.clients.iter().position(|process| is_idle_owner(process, value));
            if let Some(client) = owner.filter(|client| self.checker.live(*client).next().is_none()) {
                let text = format!("client {client} is idle, and {} on node {node} is its key", key.escape_ascii());
                self.checker.report(self.now, Rule::Ghost, text);
            }
        }
    }
}

fn is_idle_owner<C: RedisClient>(process: &Process<RedisServers<C>>, value: &[u8]) -> bool {
    let is_idle = process.state == ProcessState::Running && process.stopped.is_none() && !process.machine.has_work();
    is_idle && value.starts_with(&process.own.token_prefix)
}

impl<C: RedisClient> World<RedisServers<C>> {
    /// Also while the rules are waived: after the faults they hold again.
    fn watches_requests(&self) -> bool {
        self.expected.once || self.logins.is_on() || !C::EXCUSED.contains(&Rule::Validity)
    }

    pub(super) fn note_requests(&mut self, client: usize, id: u64, conn: ConnId, bytes: &[u8]) {
        if !self.watches_requests() {
            return;
        }
        let node = conn.node().index();
        let mut logins = Vec::new();
        let process = &mut self.clients[client];
        for (number, request) in process.own.taps.entry(id).or_default().sent(bytes) {
            match request {
                TappedRequest::Take { keys, waits } => {
                    for key in keys {
                        // An attempt has the same cause on every node. A waiter's first attempt is
                        // not a poll, even if it was delayed.
                        if node == 0 {
                            process.reasons.requested(&key, if waits { self.cause } else { CallCause::Application });
                        }
                        self.checker.request_sent(self.now, client, id, number, TAKE, key);
                    }
                }
                TappedRequest::Work(kind, words) | TappedRequest::Extend { kind, words, .. } => {
                    self.checker.request_sent(self.now, client, id, number, kind, words)
                }
                TappedRequest::Login(password) => logins.push(password),
                TappedRequest::Wait | TappedRequest::Other => {}
            }
        }
        for password in logins {
            self.login_sent(client, conn, &String::from_utf8_lossy(&password));
        }
    }

    pub(super) fn note_received(&mut self, client: usize, conn: ConnId, bytes: &[u8]) {
        if !self.watches_requests() {
            return;
        }
        let Some(id) = self.network.find(client, conn) else { return };
        let process = &mut self.clients[client];
        let Some(tap) = process.own.taps.get_mut(&id) else { return };
        let Some(node) = self.network.links.get(&id).map(|link| link.node) else { return };
        let (mut logins, mut gone) = (Vec::new(), Vec::new());
        for response in tap.received(bytes) {
            match response {
                Response::Login(password, accepted) => logins.push((password, accepted)),
                Response::Reply(number) => self.checker.reply_received(id, number),
                Response::Gone(key, token) => gone.push((key, token)),
                Response::Signal(list) => {
                    let name = self.store.names.iter().find(|name| Key::new(b"", name).signal() == list);
                    process.reasons.notified(name.map(|name| name.to_vec()).unwrap_or_default());
                }
            }
        }
        for (key, token) in gone {
            // A later write may have brought it back.
            if self.node(node).string(self.now, &key).is_none_or(|(value, _)| value != token) {
                self.store.truth.ended(node, &key, &token);
            }
        }
        for (password, accepted) in logins {
            self.login_answered(client, conn, &String::from_utf8_lossy(&password), accepted);
        }
    }
}

//! The event loop of the ensemble, and what is observed of a client's requests and replies.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::queue_log::queue_of;
use super::tap::{Received, path_of};
use super::{Zookeeper, ZookeeperClient, created, label};
use crate::check::Rule;
use crate::direction::Direction;
use crate::network::Packet;
use crate::record::HistoryRecord;
use crate::trace::ProcessState;
use crate::world::World;
use crate::world::handover::CallCause;
use crate::zookeeper::EnsembleOutput;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::zookeeper::codec::{CreateMode, EventType, MultiOp, Op, RequestFrame, WatcherEvent};
use lock_proto::{ConnId, LockId};

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    pub(super) fn ensemble_due(&self) -> Option<Instant> {
        [self.store.due, self.store.delayed.front().map(|(at, ..)| *at)].into_iter().flatten().min()
    }

    pub(super) fn wake_ensemble(&mut self) {
        self.steps += 1;
        self.store.ensemble.handle_timeout(self.now);
        self.pump_ensemble();
    }

    /// Delivers a packet to a running member. A member that needs time handles them one by one.
    pub(super) fn serve(&mut self, id: u64, member: usize, packet: Packet<Vec<u8>>) {
        let busy = self.hosts[member].busy_until.unwrap_or(self.now).max(self.now);
        let at = if matches!(packet, Packet::Data(_)) { busy + self.service } else { busy };
        if at == self.now {
            return self.receive_on_member(id, packet);
        }
        self.hosts[member].busy_until = Some(at);
        self.served(at.since(self.now));
        let place = self.store.delayed.iter().rposition(|(earlier, ..)| *earlier <= at).map_or(0, |before| before + 1);
        self.store.delayed.insert(place, (at, id, packet));
    }

    pub(super) fn handle_delayed(&mut self) -> bool {
        if self.store.delayed.front().is_none_or(|(at, ..)| *at > self.now) {
            return false;
        }
        if let Some((_, id, packet)) = self.store.delayed.pop_front() {
            let member = self.network.links.get(&id).map(|link| link.node);
            match member.map(|member| (member, self.hosts[member].state)) {
                Some((_, ProcessState::Running)) => self.receive_on_member(id, packet),
                Some((member, ProcessState::Paused)) => self.hosts[member].inbox.push_back((id, packet)),
                Some((_, ProcessState::Down)) | None => {}
            }
        }
        true
    }

    pub(super) fn receive_on_member(&mut self, id: u64, packet: Packet<Vec<u8>>) {
        self.steps += 1;
        let Some(link) = self.network.links.get_mut(&id) else { return };
        let (now, member) = (self.now, link.node);
        match packet {
            Packet::Open => self.store.ensemble.handle_connected(now, member, id),
            Packet::Handshake(left) => {
                if self.answer_handshake(id, left) {
                    return self.receive_on_member(id, Packet::Close(Fault::Closed));
                }
            }
            Packet::Data(bytes) => self.store.ensemble.handle_received(now, id, &bytes),
            Packet::Close(_) => {
                link.node_open = false;
                self.store.ensemble.handle_disconnected(now, id);
                self.network.sweep();
            }
        }
        self.pump_ensemble();
    }

    pub(super) fn pump_ensemble(&mut self) {
        while let Some((id, seen)) = self.store.ensemble.poll_seen() {
            if let Some(link) = self.network.links.get(&id) {
                let (member, client, conn) = (link.node, link.client, link.conn);
                let text = format_args!("z{member} from c{client}/{conn}: {}", label::seen(&seen));
                self.journal.write(self.now, text);
            }
        }
        while let Some(change) = self.store.ensemble.poll_change() {
            self.store.queue_log.record(self.now, &change);
        }
        while let Some(output) = self.store.ensemble.poll_output() {
            let id = output.conn();
            match output {
                EnsembleOutput::Send { bytes, .. } => self.send_bytes(id, Direction::ToClient, bytes),
                EnsembleOutput::Closed { .. } => {
                    let why = if self.rng.one_in(2) { Fault::Closed } else { Fault::Reset };
                    if let Some(link) = self.network.links.get_mut(&id).filter(|link| link.node_open) {
                        link.node_open = false;
                        self.send(id, Direction::ToClient, Packet::Close(why));
                    }
                }
            }
        }
        self.store.due = self.store.ensemble.next_deadline();
    }

    pub(super) fn note_requests(&mut self, client: usize, link: u64, bytes: &[u8]) {
        let process = &mut self.clients[client];
        let now = process.local(self.now);
        let tap = process.own.taps.entry(link).or_default();
        let requests = tap.sent(bytes);
        if let Some(Some(last)) = process.own.sessions.get_mut(&tap.session) {
            *last = now;
        }
        for (number, request) in requests {
            self.note_request(client, link, number, &request);
        }
    }

    /// Checks that neither the node of a lost hold nor its session is ended while its guard exists.
    /// A session may be closed a TTL after its last renewal: pings keep it alive on the servers.
    // H6
    fn check_left_alone(&mut self, client: usize, link: u64, op: &Op) {
        let process = &self.clients[client];
        let (path, session, lapsed) = match op {
            Op::Write(MultiOp::Delete { path, .. }) => (&**path, 0, Duration::ZERO),
            Op::CloseSession => ("", process.own.taps.get(&link).map_or(0, |tap| tap.session), process.own.tick * 2),
            Op::Write(_)
            | Op::Multi(_)
            | Op::Exists { .. }
            | Op::GetData { .. }
            | Op::GetChildren { .. }
            | Op::Sync { .. }
            | Op::RemoveWatches { .. }
            | Op::Ping
            | Op::Auth { .. } => return,
        };
        let now = process.local(self.now);
        let ended: Vec<i64> = self.store.queue_log.created(|own, owner| own == path || owner == session).collect();
        let is_ended = |record: &HistoryRecord| {
            record.grant.as_ref().and_then(created).is_some_and(|czxid| ended.contains(&czxid))
                && (lapsed.is_zero() || record.valid_until().is_some_and(|until| now < until + lapsed))
        };
        let is_ended = |lock: &LockId| process.records.get(lock).is_some_and(is_ended);
        let found = self.checker.lost_guards(client).find(is_ended);
        if let Some(lock) = found {
            let text = format!("client {client} sends {op:?} while the guard of {lock} exists");
            self.report(Rule::ShortenedKey, text);
        }
    }

    fn note_request(&mut self, client: usize, link: u64, number: u64, request: &RequestFrame) {
        self.check_left_alone(client, link, &request.op);
        if request.op == Op::CloseSession {
            // Nothing waits for the other replies: the client leaves at the end of the session.
            self.checker.closed(self.now, link, None, false);
        }
        let process = &mut self.clients[client];
        process.own.sent += 1;
        let queue = match &request.op {
            Op::GetChildren { path, .. } => Some(&**path),
            Op::GetData { .. } | Op::Exists { .. } => path_of(&request.op).map(queue_of),
            Op::Write(_)
            | Op::Multi(_)
            | Op::Sync { .. }
            | Op::RemoveWatches { .. }
            | Op::Ping
            | Op::Auth { .. }
            | Op::CloseSession => None,
        };
        if let Some(queue) = queue {
            process.own.asked.insert(queue.into());
            process.reasons.requested(queue.as_bytes(), self.cause);
        }
        // A client may send these again: they change nothing the second time.
        let idempotent = match &request.op {
            Op::Write(MultiOp::Create { mode, .. }) => {
                matches!(mode, CreateMode::Container | CreateMode::Persistent)
            }
            Op::Ping | Op::Multi(_) | Op::Auth { .. } | Op::CloseSession => true,
            Op::Write(_)
            | Op::Exists { .. }
            | Op::GetData { .. }
            | Op::GetChildren { .. }
            | Op::Sync { .. }
            | Op::RemoveWatches { .. } => false,
        };
        let watches = matches!(
            request.op,
            Op::Exists { watch: true, .. } | Op::GetData { watch: true, .. } | Op::GetChildren { watch: true, .. }
        );
        let tap = self.clients[client].own.taps.entry(link).or_default();
        if watches {
            tap.watch = number;
        }
        let last_watch = tap.watch;
        if !self.checker.checks_requests() || idempotent {
            return;
        }
        // Reads are never repeated work: each may see more than the one before.
        let what = match &request.op {
            Op::Write(_) | Op::Auth { .. } | Op::CloseSession | Op::RemoveWatches { .. } => {
                let mut bytes = Vec::new();
                RequestFrame { xid: 0, op: request.op.clone() }.encode(&mut bytes);
                if let Op::RemoveWatches { .. } = request.op {
                    // A removal after another watch was requested is new work.
                    bytes.extend(last_watch.to_be_bytes());
                }
                bytes
            }
            Op::Multi(_)
            | Op::Exists { .. }
            | Op::GetData { .. }
            | Op::GetChildren { .. }
            | Op::Sync { .. }
            | Op::Ping => number.to_be_bytes().to_vec(),
        };
        self.checker.request_sent(self.now, client, link, number, "request", what);
    }

    pub(super) fn receive_on_client(&mut self, client: usize, conn: ConnId, bytes: &[u8]) {
        let link = self.network.find(client, conn);
        let own = &mut self.clients[client].own;
        let tap = link.and_then(|link| own.taps.get_mut(&link));
        let requested = tap.as_ref().map_or(0, |tap| tap.session);
        let mut deleted = Vec::new();
        for received in tap.map(|tap| tap.received(bytes)).unwrap_or_default() {
            match received {
                Received::Started(response) => {
                    let process = &mut self.clients[client];
                    let now = process.local(self.now);
                    if response.session_id != 0 {
                        process.own.sessions.insert(response.session_id, Some(now));
                    } else if let Some(last) = process.own.sessions.get_mut(&requested) {
                        *last = None;
                    }
                }
                Received::Reply { number } => {
                    if let Some(link) = link {
                        self.checker.reply_received(link, number);
                    }
                }
                Received::Event(WatcherEvent { kind: EventType::Deleted, path, .. }) => deleted.push(path),
                Received::Event(_) => {}
            }
        }
        if deleted.is_empty() {
            return self.receive_bytes(client, conn, bytes);
        }
        // Run due timers first, so that the machine's next action is its reaction.
        self.wake_client(client);
        self.clients[client].own.told.extend(deleted.iter().cloned());
        self.clients[client].own.asked.clear();
        for path in &deleted {
            let queue = queue_of(path).as_bytes();
            // With or without another request.
            self.clients[client].reasons.requested(queue, CallCause::WakeUp);
            self.clients[client].reasons.notified(queue.to_vec());
        }
        let grants = self.checker.grants();
        self.receive_bytes(client, conn, bytes);
        self.pump_bytes(client);
        let granted = self.checker.grants() > grants;
        self.check_woken(client, &deleted, granted);
    }

    /// Checks that one release triggers one waiter: at most one client reads the queue or is
    /// granted the lock after the deletion of another's node.
    fn check_woken(&mut self, client: usize, deleted: &[Box<str>], granted: bool) {
        for path in deleted {
            // Every observer of an election reads who leads now.
            let observes = self.queries(client).next().is_some();
            let reacts = !observes && (granted || self.clients[client].own.asked.contains(queue_of(path)));
            let is_own = |session| self.clients[client].own.sessions.contains_key(&session);
            // A waiter whose node was deleted by hand learns that by reading the queue.
            let contends = granted || self.store.queue_log.contends(queue_of(path), is_own);
            if !reacts || !contends || self.store.queue_log.last_owner(path).is_none_or(is_own) {
                continue;
            }
            if let Some(woken) = self.store.woken.record(path.clone(), client) {
                let text = format!("clients {woken:?} react to the end of {path}");
                self.report(Rule::OneWoken, text);
            }
        }
    }
}

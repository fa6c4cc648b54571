//! A member serves its clients: connect requests, reads, and requests that wait for a commit.

use alloc::vec::Vec;

use bytes::Bytes;

use super::acl::{DigestUser, READ, check};
use super::connection::{LoginState, PeerSession, WaitingRequest, What};
use super::member::{MemberRole, RoleWish, Submit, Up, pop_front_if};
use super::session::LEADER;
use super::tree::Applied;
use super::watch::Triggered;
use super::{Condition, Ensemble, EnsembleOutput, Seen, ServerRelease};
use crate::rng::Rng;
use lock_proto::zookeeper::codec::{
    ConnectRequest, ConnectResponse, CreateMode, ErrorCode, KeeperState, MultiOp, MultiResult, Op, ReplyBody,
    ReplyFrame, ReplyHeader, RequestFrame, WatcherEvent, XID_EVENT,
};

/// The number of the request that creates a session.
const XID_CREATE_SESSION: i32 = 0;

fn password(session: i64) -> Bytes {
    let mut rng = Rng::new(session.unsigned_abs() ^ 0xb3a1_5f00);
    let words = [rng.next(), rng.next()];
    Bytes::copy_from_slice(&words.map(u64::to_be_bytes).concat())
}

impl Ensemble {
    pub(super) fn receive(&mut self, conn: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.received.extend_from_slice(bytes);
        connection.last_heard = self.now;
        self.read_frames(conn);
    }

    /// Handles the frames that have arrived, until one starts a session.
    fn read_frames(&mut self, conn: u64) {
        while let Some(connection) = self.connections.get_mut(&conn) {
            if matches!(connection.state, LoginState::Starting(_)) {
                return;
            }
            match connection.next_frame(self.config.max_frame) {
                Ok(Some(frame)) => self.handle_frame(conn, &frame),
                Ok(None) => return,
                Err(_) => return self.close(conn),
            }
        }
    }

    fn handle_frame(&mut self, conn: u64, frame: &[u8]) {
        let Some(connection) = self.connections.get(&conn) else { return };
        match connection.state {
            LoginState::New => match ConnectRequest::decode(frame) {
                Ok(request) => self.open_session(conn, &request),
                Err(_) => self.close(conn),
            },
            LoginState::Open(session) => match RequestFrame::decode(frame) {
                Ok(request) => self.handle_request(conn, session, request),
                // What locks do not use is not simulated.
                Err(_) => self.close(conn),
            },
            LoginState::Starting(_) => {}
        }
    }

    fn open_session(&mut self, conn: u64, request: &ConnectRequest) {
        self.note_seen(conn, || Seen::Connect(request.clone()));
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let member = connection.member;
        let server = &mut self.members[member];
        // The client must find another server that has seen as much.
        if server.is_looking() || request.last_zxid_seen > server.tree.zxid {
            return self.close(conn);
        }
        let timeout = self.config.granted(member, request.timeout_ms);
        if request.session_id == 0 {
            server.sessions += 1;
            let id = (member as i64 + 1) << 56 | i64::from(self.config.epoch) << 24 | i64::from(server.sessions);
            connection.state = LoginState::Starting(PeerSession { id, timeout });
            let waiting = WaitingRequest { conn, xid: XID_CREATE_SESSION, what: What::CreateSession };
            return self.submit(member, id, waiting, RoleWish::CreateSession { timeout }, Vec::new());
        }
        let id = request.session_id;
        connection.state = LoginState::Starting(PeerSession { id, timeout });
        let of_session = |connection: &super::ZooKeeperPeer| {
            connection.member == member && connection.session().is_some_and(|session| session.id == id)
        };
        let older = self.connections.iter().filter(|(other, connection)| **other != conn && of_session(connection));
        for other in older.map(|(other, _)| *other).collect::<Vec<_>>() {
            self.close(other);
        }
        if request.password != password(id) {
            return self.session_started(conn, false);
        }
        match &mut self.members[member].role {
            MemberRole::Leading(leading) => {
                let valid = leading.sessions.touch(self.now, id, timeout);
                leading.sessions.set_owner(id, LEADER);
                self.session_started(conn, valid);
            }
            MemberRole::Following { link, .. } => {
                let link = *link;
                self.send_up(link, Up::Validate { conn, session: id, timeout });
            }
            MemberRole::Looking { .. } => {}
        }
    }

    /// Answers the connect request.
    pub(super) fn session_started(&mut self, conn: u64, valid: bool) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let LoginState::Starting(session) = connection.state else { return };
        connection.state = LoginState::Open(session);
        let response = ConnectResponse {
            timeout_ms: if valid { session.timeout } else { 0 },
            session_id: if valid { session.id } else { 0 },
            password: if valid { password(session.id) } else { Bytes::from_static(&[0; 16]) },
            read_only: false,
        };
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        self.outputs.push_back(EnsembleOutput::Send { conn, bytes });
        if valid { self.read_frames(conn) } else { self.close(conn) }
    }

    fn handle_request(&mut self, conn: u64, session: PeerSession, request: RequestFrame) {
        self.note_seen(conn, || Seen::Request(request.clone()));
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let (member, identities) = (connection.member, connection.identities.iter().cloned().collect());
        let RequestFrame { xid, op } = request;
        // Logins are not queued behind other requests.
        if let Op::Auth { scheme, auth } = &op {
            let identity = DigestUser::digest(auth).filter(|_| **scheme == *"digest");
            let code = if identity.is_some() { ErrorCode::OK } else { ErrorCode::AUTH_FAILED };
            connection.identities.extend(identity);
            self.reply_with(conn, ReplyHeader { xid, zxid: 0, code }, ReplyBody::Empty);
            if code != ErrorCode::OK {
                self.close(conn);
            }
            return;
        }
        self.touch(member, session);
        let write = |what| WaitingRequest { conn, xid, what };
        if self.is_throttled(&op) {
            return self.answer_in_turn(member, session.id, write(What::Throttled));
        }
        match op {
            Op::Write(MultiOp::Create { mode: CreateMode::Container, .. }) if !self.config.containers => {
                self.reply(conn, xid, Err(ErrorCode::UNIMPLEMENTED));
                self.close(conn);
            }
            Op::Write(op) => self.submit(member, session.id, write(What::Write), RoleWish::Write(op), identities),
            Op::Multi(ops) => self.submit(member, session.id, write(What::Write), RoleWish::Multi(ops), identities),
            Op::CloseSession => {
                self.submit(member, session.id, write(What::CloseSession), RoleWish::CloseSession, identities);
            }
            // The leader answers it at once.
            Op::Sync { path } if self.members[member].leading().is_none() => {
                self.await_commit(member, session.id, write(What::Sync { path }));
                if let MemberRole::Following { link, .. } = self.members[member].role {
                    self.send_up(link, Up::Sync { session: session.id, xid });
                }
            }
            Op::Exists { .. }
            | Op::GetData { .. }
            | Op::GetChildren { .. }
            | Op::Sync { .. }
            | Op::RemoveWatches { .. }
            | Op::Auth { .. }
            | Op::Ping => self.answer_in_turn(member, session.id, write(What::Read(op))),
        }
    }

    /// A throttled server rejects some of the requests for which `Request.isThrottlable` holds.
    fn is_throttled(&mut self, op: &Op) -> bool {
        self.conditions.contains(&Condition::Throttled)
            && !matches!(op, Op::Ping | Op::CloseSession)
            && self.rng.one_in(2)
    }

    /// Answers a request that needs no commit, once all earlier ones of its session are answered.
    fn answer_in_turn(&mut self, member: usize, session: i64, waiting: WaitingRequest) {
        match self.members[member].waiting.get_mut(&session) {
            Some(queue) => queue.push_back(waiting),
            None => self.answer(waiting.conn, waiting.xid, waiting.what, &Applied::Done),
        }
    }

    fn touch(&mut self, member: usize, session: PeerSession) {
        match &mut self.members[member].role {
            MemberRole::Leading(leading) => {
                leading.sessions.touch(self.now, session.id, session.timeout);
            }
            MemberRole::Following { .. } => self.heard(member, session.id, session.timeout),
            MemberRole::Looking { .. } => {}
        }
    }

    /// A follower has heard of a session, and tells its leader when that asks next.
    pub(super) fn heard(&mut self, member: usize, session: i64, timeout: i32) {
        let MemberRole::Following { link, touched } = &mut self.members[member].role else { return };
        if touched.is_empty()
            && let Some(link) = self.links.get_mut(link)
        {
            link.asks_after = self.now;
        }
        touched.insert(session, timeout);
    }

    /// Gives a request to the leader.
    fn submit(
        &mut self,
        member: usize,
        session: i64,
        waiting: WaitingRequest,
        wish: RoleWish,
        identities: Vec<DigestUser>,
    ) {
        let xid = Some(waiting.xid);
        self.await_commit(member, session, waiting);
        match self.members[member].role {
            MemberRole::Leading(_) => self.propose(member, Submit { session, xid, wish, identities, owner: LEADER }),
            MemberRole::Following { link, .. } => {
                self.send_up(link, Up::Request(Submit { session, xid, wish, identities, owner: link }));
            }
            MemberRole::Looking { .. } => {}
        }
    }

    fn await_commit(&mut self, member: usize, session: i64, waiting: WaitingRequest) {
        let server = &mut self.members[member];
        server.writes.push_back((session, waiting.xid));
        server.waiting.entry(session).or_default().push_back(waiting);
    }

    /// A member has applied a transaction, or caught up with the leader. Answers the request, if it
    /// came from one of the member's clients, and what was queued behind it. Returns whether it
    /// did.
    ///
    /// The server knows its requests by the session and their number only, whatever connection they
    /// came from.
    pub(super) fn committed(&mut self, member: usize, session: i64, xid: i32, result: &Applied) -> bool {
        let server = &mut self.members[member];
        if server.writes.front() != Some(&(session, xid)) {
            return false;
        }
        server.writes.pop_front();
        let Some(queue) = server.waiting.get_mut(&session) else { return true };
        if let Some(WaitingRequest { conn, xid, what }) = queue.pop_front() {
            self.answer(conn, xid, what, result);
        }
        self.drain(member, session);
        true
    }

    fn answer(&mut self, conn: u64, xid: i32, what: What, result: &Applied) {
        match (what, result) {
            (What::CreateSession, _) => self.session_started(conn, true),
            (What::CloseSession, _) => {
                self.reply(conn, xid, Ok(ReplyBody::Empty));
                self.close(conn);
            }
            (What::Write, Applied::Failed(ErrorCode::SESSION_MOVED)) => self.close(conn),
            (What::Write, Applied::Multi(results)) if results.contains(&Applied::Failed(ErrorCode::SESSION_MOVED)) => {
                self.close(conn);
            }
            (What::Write, Applied::Failed(code)) => self.reply(conn, xid, Err(*code)),
            (What::Write, Applied::Created { path, stat, .. }) => {
                self.reply(conn, xid, Ok(ReplyBody::Created { path: path.as_str().into(), stat: *stat }));
            }
            (What::Write, Applied::Set(stat)) => self.reply(conn, xid, Ok(ReplyBody::Stat(*stat))),
            (What::Write, Applied::Deleted | Applied::Done) => self.reply(conn, xid, Ok(ReplyBody::Empty)),
            (What::Write, Applied::Multi(results)) => {
                let results = results.iter().map(|result| multi_result(result, self.config.release)).collect();
                self.reply(conn, xid, Ok(ReplyBody::Multi(results)));
            }
            (What::Sync { path }, _) => self.reply(conn, xid, Ok(ReplyBody::Synced { path })),
            (What::Read(op), _) => self.read(conn, xid, &op),
            (What::Throttled, _) => self.reply(conn, xid, Err(ErrorCode::THROTTLED_OP)),
        }
    }

    /// Answers the requests of a session up to the next one that needs a commit.
    fn drain(&mut self, member: usize, session: i64) {
        while let Some(queue) = self.members[member].waiting.get_mut(&session) {
            let needs_none = |next: &WaitingRequest| matches!(next.what, What::Read(_) | What::Throttled);
            let Some(WaitingRequest { conn, xid, what }) = pop_front_if(queue, needs_none) else { break };
            self.answer(conn, xid, what, &Applied::Done);
        }
        self.members[member].waiting.retain(|_, queue| !queue.is_empty());
    }

    /// Answers a request from what this member has applied.
    fn read(&mut self, conn: u64, xid: i32, op: &Op) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let (member, session) = (connection.member, connection.session());
        let (now_leading, identities): (bool, Vec<DigestUser>) =
            (self.members[member].leading().is_some(), connection.identities.iter().cloned().collect());
        // Only the leader knows whether the session has ended or moved.
        if let (true, Some(session)) = (now_leading, session)
            && let Some(leading) = self.members[member].leading_mut()
            && let Err(code) = leading.sessions.check(session.id, LEADER)
        {
            return if code == ErrorCode::SESSION_MOVED { self.close(conn) } else { self.reply(conn, xid, Err(code)) };
        }
        let body = self.read_body(conn, member, &identities, op);
        self.reply(conn, xid, body);
    }

    fn read_body(
        &mut self,
        conn: u64,
        member: usize,
        identities: &[DigestUser],
        op: &Op,
    ) -> Result<ReplyBody, ErrorCode> {
        let server = &mut self.members[member];
        match op {
            Op::Exists { path, watch } => {
                let node = server.tree.get(path);
                if let Some(node) = node
                    && self.config.release >= ServerRelease::V3_9
                {
                    check(&node.acl, READ, identities)?;
                }
                // The watch stays even if the node does not exist.
                if *watch {
                    server.watches.watch_data(path, conn);
                }
                node.map(|node| ReplyBody::Stat(node.stat())).ok_or(ErrorCode::NO_NODE)
            }
            Op::GetData { path, watch } => {
                let node = server.tree.get(path).ok_or(ErrorCode::NO_NODE)?;
                check(&node.acl, READ, identities)?;
                if *watch {
                    server.watches.watch_data(path, conn);
                }
                Ok(ReplyBody::Data { data: Bytes::copy_from_slice(&node.data), stat: node.stat() })
            }
            Op::GetChildren { path, watch } => {
                let node = server.tree.get(path).ok_or(ErrorCode::NO_NODE)?;
                check(&node.acl, READ, identities)?;
                if *watch {
                    server.watches.watch_children(path, conn);
                }
                // A Java set of strings has no order.
                let mut names: Vec<&str> = node.children.iter().map(AsRef::as_ref).collect();
                for place in (1..names.len()).rev() {
                    names.swap(place, usize::try_from(self.rng.below(place as u64 + 1)).unwrap_or(0));
                }
                Ok(ReplyBody::Children(names.into_iter().collect()))
            }
            Op::RemoveWatches { path, kind } => {
                if server.watches.remove(path, *kind, conn) {
                    Ok(ReplyBody::Empty)
                } else {
                    Err(ErrorCode::NO_WATCHER)
                }
            }
            Op::Sync { path } => Ok(ReplyBody::Synced { path: path.clone() }),
            Op::Ping | Op::Write(_) | Op::Multi(_) | Op::Auth { .. } | Op::CloseSession => Ok(ReplyBody::Empty),
        }
    }

    /// Notifies the clients of a member of what a transaction has changed.
    pub(super) fn notify(&mut self, member: usize, triggered: &Triggered) {
        let zxid = if self.config.release >= ServerRelease::V3_9 { self.members[member].tree.zxid } else { -1 };
        for (trigger, path, acl) in triggered.iter() {
            let (kind, conns) = self.members[member].watches.trigger(trigger, path);
            for conn in conns {
                // A client that may not read the node gets no event (CVE-2024-23944).
                let Some(connection) = self.connections.get(&conn) else { continue };
                let identities: Vec<DigestUser> = connection.identities.iter().cloned().collect();
                if check(acl, READ, &identities).is_err() {
                    continue;
                }
                let event = WatcherEvent { kind, state: KeeperState::SyncConnected, path: path.into() };
                let header = ReplyHeader { xid: XID_EVENT, zxid, code: ErrorCode::OK };
                self.reply_with(conn, header, ReplyBody::Event(event));
            }
        }
    }

    fn reply(&mut self, conn: u64, xid: i32, result: Result<ReplyBody, ErrorCode>) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let zxid = self.members[connection.member].tree.zxid;
        let (code, body) = match result {
            Ok(body) => (ErrorCode::OK, body),
            Err(code) => (code, ReplyBody::Empty),
        };
        self.reply_with(conn, ReplyHeader { xid, zxid, code }, body);
    }

    fn reply_with(&mut self, conn: u64, header: ReplyHeader, body: ReplyBody) {
        if self.connections.contains_key(&conn) {
            let mut bytes = Vec::new();
            ReplyFrame { header, body }.encode(&mut bytes);
            self.outputs.push_back(EnsembleOutput::Send { conn, bytes });
        }
    }

    /// Closes a connection of a client. Its session goes on.
    pub(super) fn close(&mut self, conn: u64) {
        if let Some(connection) = self.connections.remove(&conn) {
            self.members[connection.member].watches.forget(conn);
            self.outputs.push_back(EnsembleOutput::Closed { conn });
        }
    }

    /// Closes the connection of a session that has ended.
    pub(super) fn close_session(&mut self, member: usize, session: i64) {
        let of_session = |connection: &super::ZooKeeperPeer| {
            connection.member == member && connection.session().is_some_and(|found| found.id == session)
        };
        let conns = self.connections.iter().filter(|(_, connection)| of_session(connection));
        for conn in conns.map(|(conn, _)| *conn).collect::<Vec<_>>() {
            self.close(conn);
        }
    }
}

fn multi_result(result: &Applied, release: ServerRelease) -> MultiResult {
    match result {
        Applied::Created { path, stat, container } => {
            let with_stat = *container || release >= ServerRelease::V3_9;
            MultiResult::Created { path: path.as_str().into(), stat: Some(*stat).filter(|_| with_stat) }
        }
        Applied::Deleted => MultiResult::Deleted,
        Applied::Set(stat) => MultiResult::Set(*stat),
        Applied::Done => MultiResult::Checked,
        Applied::Failed(code) => MultiResult::Error(*code),
        // Transactions do not nest.
        Applied::Multi(_) => MultiResult::Error(ErrorCode::SYSTEM_ERROR),
    }
}

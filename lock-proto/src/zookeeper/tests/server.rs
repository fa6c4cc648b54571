//! A server of one node tree for the tests of the client, as small as they allow.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

use crate::id::ConnId;
use crate::zookeeper::codec::*;

type Data = (bytes::Bytes, Stat);

#[derive(Default)]
pub(super) struct TestEnsemble {
    pub(super) nodes: BTreeMap<String, Data>,
    pub(super) zxid: i64,
    last_session: i64,
    pub(super) sessions: BTreeSet<i64>,
    conns: BTreeMap<ConnId, TestConn>,
    /// The number that the next sequential node gets, instead of the count.
    pub(super) next_number: Option<i32>,
    /// The session timeout that is granted; 0 for the requested one.
    pub(super) granted_ms: i32,
    /// Nobody may create nodes directly below this one.
    pub(super) closed: Option<&'static str>,
    /// Nodes that only others may read.
    pub(super) unreadable: Option<&'static str>,
    /// Requests with these codes get no reply, and are executed or not.
    pub(super) mute: Option<(OpCode, bool)>,
    /// The last of these that was not executed, and its session.
    late: Option<(i64, Op)>,
    /// Requests with this code fail with this error.
    pub(super) refused: Option<(OpCode, ErrorCode)>,
    /// Transactions fail with this error of the session.
    pub(super) failed_multi: Option<ErrorCode>,
    /// Logins are rejected.
    pub(super) login_fails: bool,
    /// Requests to continue a session get no reply.
    pub(super) refuses_known: bool,
    pub(super) log: Vec<(i64, OpCode)>,
}

#[derive(Default)]
struct TestConn {
    session: i64,
    is_new: bool,
    frames: Frames,
    watches: BTreeSet<String>,
    out: Vec<u8>,
}

impl TestEnsemble {
    pub(super) fn new() -> Self {
        Self { granted_ms: 15_000, ..Self::default() }
    }

    pub(super) fn connect(&mut self, conn: ConnId) {
        self.conns.insert(conn, TestConn { is_new: true, ..TestConn::default() });
    }

    pub(super) fn disconnect(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
    }

    pub(super) fn outgoing(&mut self, conn: ConnId) -> Vec<u8> {
        self.conns.get_mut(&conn).map(|conn| core::mem::take(&mut conn.out)).unwrap_or_default()
    }

    pub(super) fn children(&self, parent: &str) -> Vec<String> {
        let start = format!("{parent}/");
        self.nodes.keys().filter_map(|path| Some(path.strip_prefix(&start)?.to_string())).collect()
    }

    pub(super) fn watches(&self) -> Vec<&String> {
        self.conns.values().flat_map(|conn| &conn.watches).collect()
    }

    pub(super) fn count(&self, code: OpCode) -> usize {
        self.log.iter().filter(|(_, own)| *own == code).count()
    }

    pub(super) fn expire(&mut self, session: i64) {
        self.sessions.remove(&session);
        let gone: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, (_, stat))| stat.ephemeral_owner == session)
            .map(|(p, _)| p.clone())
            .collect();
        gone.iter().for_each(|path| self.remove(path));
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.zxid += 1;
        self.nodes.remove(path);
        self.trigger(path, EventType::Deleted);
        self.parent_changed(path);
    }

    pub(super) fn put(&mut self, path: &str, session: i64) {
        self.zxid += 1;
        let stat = Stat { czxid: self.zxid, mzxid: self.zxid, ephemeral_owner: session, ..Stat::default() };
        self.nodes.insert(path.into(), (bytes::Bytes::new(), stat));
        self.trigger(path, EventType::Created);
        self.parent_changed(path);
    }

    /// Another client writes the node.
    pub(super) fn touch(&mut self, path: &str) {
        self.zxid += 1;
        self.nodes.get_mut(path).unwrap().1.version += 1;
        self.trigger(path, EventType::DataChanged);
    }

    fn parent_changed(&mut self, path: &str) {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_string();
        self.trigger(&format!("{parent}/"), EventType::ChildrenChanged);
    }

    /// Watches on children are kept with a slash at the end.
    fn trigger(&mut self, watch: &str, kind: EventType) {
        let event = WatcherEvent { kind, state: KeeperState::SyncConnected, path: watch.trim_end_matches('/').into() };
        for conn in self.conns.values_mut() {
            if conn.watches.remove(watch) {
                ReplyFrame::event(event.clone()).encode(&mut conn.out);
            }
        }
    }

    pub(super) fn receive(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let (mut rest, mut all) = (bytes, Vec::new());
        while let Ok(Some(frame)) = conn.frames.next(&mut rest, MAX_FRAME) {
            all.push(frame.to_vec());
        }
        self.conns.insert(id, conn);
        for frame in all {
            self.handle(id, &frame);
        }
    }

    fn handle(&mut self, id: ConnId, frame: &[u8]) {
        let conn = self.conns.get_mut(&id).unwrap();
        if core::mem::take(&mut conn.is_new) {
            let request = ConnectRequest::decode(frame).unwrap();
            if self.refuses_known && request.session_id != 0 {
                return;
            }
            let known = request.session_id == 0 || self.sessions.contains(&request.session_id);
            let session_id = match request.session_id {
                0 => {
                    self.last_session += 1;
                    self.last_session
                }
                session => session,
            };
            let granted = if self.granted_ms == 0 { request.timeout_ms } else { self.granted_ms };
            let (session_id, timeout_ms) = if known { (session_id, granted) } else { (0, 0) };
            if known {
                self.sessions.insert(session_id);
            }
            conn.session = session_id;
            ConnectResponse { timeout_ms, session_id, password: vec![1; 16].into(), read_only: false }
                .encode(&mut conn.out);
            return;
        }
        let session = conn.session;
        let RequestFrame { xid, op } = RequestFrame::decode(frame).unwrap();
        let code = op.code();
        self.log.push((session, code));
        if let Some((mute, executed)) = self.mute
            && mute == code
        {
            if executed {
                let _ = self.execute(id, session, op);
            } else {
                self.late = Some((session, op));
            }
            return;
        }
        let result = match self.refused {
            _ if !self.sessions.contains(&session) => Err(ErrorCode::SESSION_EXPIRED),
            Some((refused, error)) if refused == code => Err(error),
            Some(_) | None => self.execute(id, session, op),
        };
        let reply = match result {
            Ok(body) => ReplyFrame::ok(xid, self.zxid, body),
            Err(code) => ReplyFrame::error(xid, self.zxid, code),
        };
        reply.encode(&mut self.conns.get_mut(&id).unwrap().out);
    }

    /// Executes the create that got no reply.
    pub(super) fn execute_late(&mut self) {
        let Some((session, Op::Write(MultiOp::Create { path, data, mode, .. }))) = self.late.take() else { panic!() };
        self.create(session, &path, data, mode).unwrap();
    }

    fn execute(&mut self, id: ConnId, session: i64, op: Op) -> Result<ReplyBody, ErrorCode> {
        let watch = |server: &mut Self, path: &str, watch: bool| {
            if watch {
                server.conns.get_mut(&id).unwrap().watches.insert(path.to_string());
            }
        };
        Ok(match op {
            Op::Auth { .. } if self.login_fails => return Err(ErrorCode::AUTH_FAILED),
            Op::Ping | Op::Auth { .. } => ReplyBody::Empty,
            Op::RemoveWatches { path, kind } => {
                let watches = &mut self.conns.get_mut(&id).unwrap().watches;
                let data = kind != WatchKind::Children && watches.remove(&*path);
                let children = kind != WatchKind::Data && watches.remove(&format!("{path}/"));
                if !(data || children) {
                    return Err(ErrorCode::NO_WATCHER);
                }
                ReplyBody::Empty
            }
            Op::CloseSession => {
                self.expire(session);
                ReplyBody::Empty
            }
            Op::Sync { path } => ReplyBody::Synced { path },
            Op::Exists { path, watch: watches } => {
                watch(self, &path, watches);
                ReplyBody::Stat(self.nodes.get(&*path).ok_or(ErrorCode::NO_NODE)?.1)
            }
            Op::GetData { path, .. } if self.unreadable.is_some_and(|part| path.contains(part)) => {
                return Err(ErrorCode::NO_AUTH);
            }
            Op::GetData { path, watch: watches } => {
                let (data, stat) = self.nodes.get(&*path).ok_or(ErrorCode::NO_NODE)?.clone();
                watch(self, &path, watches);
                ReplyBody::Data { data, stat }
            }
            Op::GetChildren { path, watch: watches } => {
                self.nodes.get(&*path).ok_or(ErrorCode::NO_NODE)?;
                watch(self, &format!("{path}/"), watches);
                let own = self.children(&path).into_iter().filter(|name| !name.contains('/'));
                ReplyBody::Children(own.collect())
            }
            Op::Multi(ops) if self.failed_multi.is_some() => {
                let code = |place| if place == 0 { self.failed_multi } else { None };
                let error = |place| MultiResult::Error(code(place).unwrap_or(ErrorCode::RUNTIME_INCONSISTENCY));
                ReplyBody::Multi((0..ops.len()).map(error).collect())
            }
            Op::Multi(ops) => {
                self.zxid += 1;
                let missing = |op: &MultiOp| matches!(op, MultiOp::Check { path, .. } if **path != *"/" && !self.nodes.contains_key(&**path));
                let failed = ops.iter().position(missing);
                let result = |place: usize| match failed {
                    None => MultiResult::Checked,
                    Some(at) if place < at => MultiResult::Error(ErrorCode::OK),
                    Some(at) if place == at => MultiResult::Error(ErrorCode::NO_NODE),
                    Some(_) => MultiResult::Error(ErrorCode::RUNTIME_INCONSISTENCY),
                };
                ReplyBody::Multi((0..ops.len()).map(result).collect())
            }
            Op::Write(MultiOp::Create { path, data, mode, .. }) => self.create(session, &path, data, mode)?,
            Op::Write(MultiOp::Delete { path, .. }) => {
                self.nodes.get(&*path).ok_or(ErrorCode::NO_NODE)?;
                if !self.children(&path).is_empty() {
                    return Err(ErrorCode::NOT_EMPTY);
                }
                self.remove(&path);
                ReplyBody::Empty
            }
            Op::Write(MultiOp::SetData { path, data, version }) => {
                self.zxid += 1;
                let zxid = self.zxid;
                let (old, stat) = self.nodes.get_mut(&*path).ok_or(ErrorCode::NO_NODE)?;
                if version != ANY_VERSION && version != stat.version {
                    return Err(ErrorCode::BAD_VERSION);
                }
                (*old, stat.version, stat.mzxid) = (data, stat.version + 1, zxid);
                let stat = *stat;
                self.trigger(&path, EventType::DataChanged);
                ReplyBody::Stat(stat)
            }
            Op::Write(MultiOp::Check { .. }) => return Err(ErrorCode::UNIMPLEMENTED),
        })
    }

    fn create(
        &mut self,
        session: i64,
        path: &str,
        data: bytes::Bytes,
        mode: CreateMode,
    ) -> Result<ReplyBody, ErrorCode> {
        let parent = path.rsplit_once('/').unwrap().0.to_string();
        if !parent.is_empty() && !self.nodes.contains_key(&parent) {
            return Err(ErrorCode::NO_NODE);
        }
        if self.closed == Some(&*parent) {
            return Err(ErrorCode::NO_AUTH);
        }
        let ephemeral = matches!(mode, CreateMode::Ephemeral | CreateMode::EphemeralSequential);
        let mut path: Box<str> = path.into();
        if mode == CreateMode::EphemeralSequential {
            let (_, stat) = self.nodes.get_mut(&parent).unwrap();
            let number = self.next_number.take().unwrap_or(stat.cversion);
            stat.cversion = number.wrapping_add(1);
            path = format!("{path}{number:010}").into();
        }
        if self.nodes.contains_key(&*path) {
            return Err(ErrorCode::NODE_EXISTS);
        }
        self.put(&path, if ephemeral { session } else { 0 });
        let (own, stat) = self.nodes.get_mut(&*path).unwrap();
        *own = data;
        Ok(ReplyBody::Created { stat: *stat, path })
    }
}

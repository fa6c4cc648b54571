//! The model and a real server, side by side.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use lock_proto::Instant;
use lock_proto::etcd::message::{
    AuthenticateRequest, ClusterHeader, LeaseKeepAliveRequest, Op, OpResponse, PutRequest, RequestOp, ResponseHeader,
    TxnRequest, TxnResponse, WatchRequest, WatchRequestUnion, WatchResponse,
};
use lock_proto::etcd::{Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};
use lock_sim::etcd::{Cluster, ClusterConfig, ClusterOutput};
use lock_testkit::Etcd;
use tokio::runtime::Runtime;

use crate::generate::{Generator, Step};
use crate::real::{RealConnection, RealStream, runtime};

/// Number of connections. Stream `s` uses connection `s % CONNS` and user `s % users`.
pub(crate) const CONNS: usize = 2;
const STREAMS: usize = 4;
/// The keep-alive stream, on connection 0.
const KEEP_ALIVE: u64 = 100;

#[derive(Clone, PartialEq, prost::Message)]
struct CompactionRequest {
    #[prost(int64, tag = "1")]
    revision: i64,
    /// Wait for the physical compaction.
    #[prost(bool, tag = "2")]
    physical: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CompactionResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

pub(crate) struct Pair {
    pub(crate) runtime: Runtime,
    _server: Etcd,
    pub(crate) real: Vec<RealConnection>,
    streams: BTreeMap<u64, RealStream>,
    pub(crate) model: Cluster,
    pub(crate) now: Instant,
    /// Tokens of each user, at the real server and at the model.
    users: Vec<(Option<String>, Option<String>)>,
    serial: u64,
    history: Vec<String>,
    pub(crate) messages: usize,
}

impl Pair {
    pub(crate) fn new(config: ClusterConfig, server: Etcd) -> Self {
        let runtime = runtime();
        let now = Instant::from_millis(1);
        let mut model = Cluster::new(now, config);
        let real = (0..CONNS).map(|_| RealConnection::open(&runtime, &server)).collect();
        (0..CONNS).for_each(|conn| model.handle_connected(now, 0, conn as u64));
        Self {
            runtime,
            _server: server,
            real,
            streams: BTreeMap::new(),
            model,
            now,
            users: vec![(None, None)],
            serial: 1_000,
            history: Vec::new(),
            messages: 0,
        }
    }

    /// Adds a user with an invalid token.
    pub(crate) fn add_invalid_user(&mut self) {
        self.users.push((Some("nonsense".into()), Some("nonsense".into())));
    }

    pub(crate) fn log_in(&mut self, name: &str, password: &str) {
        let rpc = Rpc::Authenticate(AuthenticateRequest { name: name.into(), password: password.into() });
        let real = self.real[0].call(&self.runtime, None, &rpc);
        let model = self.call_model(0, None, &rpc);
        let token = |reply| match reply {
            Ok(RpcReply::Authenticate(reply)) => Some(reply.token),
            other => panic!("a token for {name}: {other:?}"),
        };
        self.users.push((token(real), token(model)));
    }

    pub(crate) fn open_streams(&mut self) {
        for stream in 0..STREAMS {
            self.open(stream as u64, StreamKind::Watch);
        }
        self.open(KEEP_ALIVE, StreamKind::KeepAlive);
    }

    fn open(&mut self, stream: u64, kind: StreamKind) {
        let (conn, user) = Self::indices(stream, self.users.len());
        let (real, model) = &self.users[user];
        self.streams.insert(stream, self.real[conn].stream(&self.runtime, kind, real.as_deref()));
        self.model.handle_open(self.now, conn as u64, stream, kind, model.as_deref());
    }

    fn indices(stream: u64, users: usize) -> (usize, usize) {
        let stream = usize::try_from(stream).unwrap();
        (stream % CONNS, stream % users)
    }

    pub(crate) fn run(&mut self, generator: &mut Generator, steps: usize) {
        for _ in 0..steps {
            let step = generator.step(&self.model);
            self.step(&step);
        }
    }

    pub(crate) fn generator(&self, seed: u64) -> Generator {
        Generator::new(seed, CONNS, self.users.len(), STREAMS)
    }

    pub(crate) fn step(&mut self, step: &Step) {
        self.history.push(format!("at revision {}: {step:?}", self.model.revision()));
        match step {
            Step::Call { conn, user, rpc } => self.call(*conn, *user, rpc),
            Step::KeepAlive { lease } => {
                let message = StreamSend::KeepAlive(LeaseKeepAliveRequest { id: *lease });
                self.send(KEEP_ALIVE, &message);
                self.compare_messages();
            }
            Step::Compact { revision } => self.compact(*revision),
            Step::Watch { stream, request } => self.watch(*stream as u64, request),
        }
    }

    fn call(&mut self, conn: usize, user: usize, rpc: &Rpc) {
        let (real, model) = self.users[user].clone();
        let found = self.real[conn].call(&self.runtime, real.as_deref(), rpc);
        let expected = self.call_model_only(conn, model.as_deref(), rpc);
        if normalize(expected.clone()) != normalize(found.clone()) {
            self.fail(&format!("the model says\n{expected:?}\netcd\n{found:?}"));
        }
        self.compare_messages();
    }

    /// Returns the model's reply. Watch messages stay in the model.
    fn call_model_only(&mut self, conn: usize, token: Option<&str>, rpc: &Rpc) -> Result<RpcReply, Status> {
        self.serial += 1;
        self.model.handle_call(self.now, conn as u64, self.serial, token, rpc);
        match self.model.poll_output() {
            Some(ClusterOutput::Reply { rpc, reply, .. }) if rpc == self.serial => reply,
            other => self.fail(&format!("the model answers {other:?}")),
        }
    }

    pub(crate) fn call_model(&mut self, conn: usize, token: Option<&str>, rpc: &Rpc) -> Result<RpcReply, Status> {
        let reply = self.call_model_only(conn, token, rpc);
        assert_eq!(self.model.poll_output(), None);
        reply
    }

    fn compact(&mut self, revision: i64) {
        let request = CompactionRequest { revision, physical: true };
        let path = "/etcdserverpb.KV/Compact";
        // With users only the administrator may do so: the last one that logged in.
        let token = self.users.last().and_then(|(real, _)| real.clone());
        let found = self.real[0].unary::<_, CompactionResponse>(&self.runtime, token.as_deref(), path, &request);
        let expected = self.model.compact(self.now, revision);
        if expected != found.clone().map(drop) {
            self.fail(&format!("the model says {expected:?}, etcd {found:?}"));
        }
    }

    fn send(&mut self, stream: u64, message: &StreamSend) {
        let (conn, _) = Self::indices(stream, self.users.len());
        self.streams[&stream].send(message);
        self.model.handle_send(self.now, conn as u64, stream, message);
    }

    fn watch(&mut self, stream: u64, request: &WatchRequestUnion) {
        let before = self.model.parked_count();
        self.send(stream, &StreamSend::Watch(WatchRequest { request: Some(request.clone()) }));
        if self.model.parked_count() == before {
            self.compare_messages();
            return;
        }
        let WatchRequestUnion::Create(create) = request else { self.fail("only a new watch can be parked") };
        // In the model, the watch catches up now.
        let messages_before = self.messages;
        self.now = self.now + Duration::from_millis(100);
        self.model.handle_timeout(self.now);
        self.compare_messages();
        if self.messages == messages_before + 1 {
            // There was only the confirmation of the watch, which does not show when etcd has
            // caught up. A write makes it report something.
            let put = PutRequest { key: at_least(&create.key), value: "wake".into(), ..PutRequest::default() };
            let put = RequestOp { request: Some(Op::Put(put)) };
            let user = self.users.len() - 1;
            self.call(0, user, &Rpc::Txn(TxnRequest { success: vec![put], ..TxnRequest::default() }));
            if self.messages == messages_before + 1 {
                self.fail("a watch does not report its own key");
            }
        }
    }

    /// Checks that both sides have sent the same messages on all streams. The order of several
    /// watches for one change is undefined.
    pub(crate) fn compare_messages(&mut self) {
        let mut expected: BTreeMap<u64, Vec<StreamReceived>> = BTreeMap::new();
        while let Some(output) = self.model.poll_output() {
            match output {
                ClusterOutput::Message { stream, message, .. } => expected.entry(stream).or_default().push(message),
                other @ (ClusterOutput::Reply { .. } | ClusterOutput::Ended { .. } | ClusterOutput::Dropped { .. }) => {
                    self.fail(&format!("the model sends {other:?}"))
                }
            }
        }
        for (stream, expected) in expected {
            let real = self.streams.get_mut(&stream).unwrap();
            let found: Result<Vec<_>, _> = expected.iter().map(|_| real.next(&self.runtime)).collect();
            let by_watch = |messages: &[StreamReceived]| {
                let mut messages: Vec<_> = messages.iter().cloned().map(normalize_message).collect();
                messages.sort_by_key(|message| match message {
                    StreamReceived::Watch(response) => response.watch_id,
                    StreamReceived::KeepAlive(_) => 0,
                });
                messages
            };
            match found {
                Ok(found) if by_watch(&found) == by_watch(&expected) => self.messages += found.len(),
                found => self.fail(&format!("stream {stream}: the model sends\n{expected:?}\netcd\n{found:?}")),
            }
        }
    }

    pub(crate) fn fail(&self, what: &str) -> ! {
        let tail = &self.history[self.history.len().saturating_sub(25)..];
        panic!("{what}\nafter\n{}", tail.join("\n"));
    }
}

/// Returns the first key that a watch of `key` can report.
fn at_least(key: &Bytes) -> Bytes {
    if key.is_empty() { Bytes::from_static(b"\0") } else { key.clone() }
}

fn normalize_header(header: &mut Option<ResponseHeader>) {
    if let Some(header) = header {
        header.member_id = u64::from(header.member_id != 0);
    }
}

/// Removes what differs between clusters: ids and tokens.
pub(crate) fn normalize(reply: Result<RpcReply, Status>) -> Result<RpcReply, Status> {
    reply.map(|mut reply| {
        match &mut reply {
            RpcReply::Range(range) => normalize_header(&mut range.header),
            RpcReply::Txn(txn) => normalize_txn(txn),
            RpcReply::Grant(grant) => normalize_header(&mut grant.header),
            RpcReply::Revoke(revoke) => normalize_header(&mut revoke.header),
            RpcReply::Authenticate(login) => {
                normalize_header(&mut login.header);
                login.token = String::new();
            }
            RpcReply::MemberList(list) => {
                list.header = list.header.map(|header| ClusterHeader { cluster_id: u64::from(header.cluster_id != 0) });
            }
        }
        reply
    })
}

fn normalize_txn(txn: &mut TxnResponse) {
    normalize_header(&mut txn.header);
    for response in &mut txn.responses {
        match response.response.as_mut().unwrap() {
            OpResponse::Range(range) => normalize_header(&mut range.header),
            OpResponse::Put(put) => normalize_header(&mut put.header),
            OpResponse::Delete(delete) => normalize_header(&mut delete.header),
            OpResponse::Txn(inner) => normalize_txn(inner),
        }
    }
}

pub(crate) fn normalize_message(message: StreamReceived) -> StreamReceived {
    match message {
        StreamReceived::KeepAlive(mut response) => {
            normalize_header(&mut response.header);
            StreamReceived::KeepAlive(response)
        }
        StreamReceived::Watch(response) => {
            let mut response: WatchResponse = response;
            normalize_header(&mut response.header);
            StreamReceived::Watch(response)
        }
    }
}

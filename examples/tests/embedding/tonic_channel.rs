//! `etcd::Client` with tonic's own channel as the gRPC client: remote procedure calls in, remote
//! procedure calls out.

use core::error::Error as _;
use core::future::poll_fn;
use core::time::Duration;
use lock_proto::Machine;
use std::collections::BTreeMap;

use http::uri::PathAndQuery;
use lock_proto::driver::BootClock;
use lock_proto::etcd::message::{LeaseKeepAliveRequest, WatchRequest};
use lock_proto::etcd::{
    Client, Code, Config, Output, Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend,
};
use lock_proto::redis::{Acquire, Event, Loss, Release, Target};
use lock_proto::{ClientId, ConnId, Fault, LockId, Secret};
use lock_testkit::{Etcd, TIMEOUT};
use prost::Message;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// The longest sleep: a timer may stand still while the machine is suspended.
// T4
const NAP: Duration = Duration::from_secs(1);
/// A silent connection is pinged after this long.
const PING: Duration = Duration::from_secs(10);

/// What a task found out.
enum Fact {
    Connected(ConnId, Result<Channel, tonic::transport::Error>),
    Reply(RpcId, Result<RpcReply, tonic::Status>),
    Message(StreamId, StreamReceived),
    Ended(StreamId, tonic::Status),
}

struct Embedded {
    machine: Client,
    clock: BootClock,
    channels: BTreeMap<ConnId, Channel>,
    streams: BTreeMap<StreamId, UnboundedSender<StreamSend>>,
    tell: UnboundedSender<Fact>,
    facts: UnboundedReceiver<Fact>,
    told: Vec<(LockId, Event)>,
}

impl Embedded {
    fn new(url: &str) -> Self {
        let clock = BootClock::new();
        let mut random = [0; 24];
        getrandom::fill(&mut random).unwrap();
        let (id, seed) = random.split_at(16);
        let id = ClientId::from_bits(u128::from_le_bytes(id.try_into().unwrap()));
        let seed = u64::from_le_bytes(seed.try_into().unwrap());
        let config = Config::parse(url).unwrap().session_ttl(Duration::from_secs(2));
        let machine = Client::new(clock.now(), config, id, seed).unwrap();
        let (tell, facts) = unbounded_channel();
        let (channels, streams) = (BTreeMap::new(), BTreeMap::new());
        Self { machine, clock, channels, streams, tell, facts, told: Vec::new() }
    }

    /// Does all there is to do now. What takes time goes into tasks, which tell what came of it.
    fn carry_out(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Connect { node, conn } => {
                    let Target::Tcp { host, port } = &self.machine.endpoint(node).unwrap().target else {
                        panic!("no TCP")
                    };
                    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).unwrap();
                    let endpoint = endpoint.http2_keep_alive_interval(PING);
                    let tell = self.tell.clone();
                    tokio::spawn(async move { tell.send(Fact::Connected(conn, endpoint.connect().await)) });
                }
                Output::Disconnect { conn } => self.forget(conn),
                Output::Call { rpc, request, token } => {
                    let Some(channel) = self.channels.get(&rpc.conn()).cloned() else { continue };
                    let tell = self.tell.clone();
                    tokio::spawn(
                        async move { tell.send(Fact::Reply(rpc, call(channel, request, token.as_ref()).await)) },
                    );
                }
                Output::Open { stream, token } => {
                    let Some(channel) = self.channels.get(&stream.conn()).cloned() else { continue };
                    let (send, messages) = unbounded_channel();
                    self.streams.insert(stream, send);
                    tokio::spawn(converse(channel, stream, token, messages, self.tell.clone()));
                }
                Output::Send { stream, message } => {
                    // A stream that has ended takes no more; its end is told anyway.
                    let _ = self.streams.get(&stream).map(|messages| messages.send(message));
                }
                // The task sees that nobody sends any more, and ends the stream.
                Output::Close { stream } => drop(self.streams.remove(&stream)),
                Output::Event { lock, event } => self.told.push((lock, event)),
                Output::Election { .. } | Output::Stopped { .. } => {}
            }
        }
    }

    fn forget(&mut self, conn: ConnId) {
        self.channels.remove(&conn);
        self.streams.retain(|stream, _| stream.conn() != conn);
    }

    fn handle(&mut self, fact: Fact) {
        let now = self.clock.now();
        match fact {
            Fact::Connected(conn, Ok(channel)) => {
                self.channels.insert(conn, channel);
                self.machine.handle_connected(now, conn);
            }
            Fact::Connected(conn, Err(_)) => self.machine.handle_disconnected(now, conn, Fault::Unreachable),
            Fact::Reply(rpc, reply) => {
                let broken = reply.as_ref().is_err_and(is_transport);
                self.machine.handle_reply(now, rpc, reply.map_err(|status| converted(&status)));
                self.after(rpc.conn(), broken);
            }
            Fact::Message(stream, message) => self.machine.handle_message(now, stream, message),
            Fact::Ended(stream, status) => {
                self.streams.remove(&stream);
                self.machine.handle_stream_ended(now, stream, converted(&status));
                self.after(stream.conn(), is_transport(&status));
            }
        }
    }

    /// Ends the connection after a transport error. A tonic channel would reconnect silently, but
    /// the machine must be notified.
    fn after(&mut self, conn: ConnId, broken: bool) {
        if broken && self.channels.contains_key(&conn) {
            self.forget(conn);
            self.machine.handle_disconnected(self.clock.now(), conn, Fault::Closed);
        }
    }

    /// Works until this lock is told something.
    async fn next(&mut self, lock: LockId) -> Event {
        let end = self.clock.now() + TIMEOUT;
        loop {
            self.carry_out();
            if let Some(place) = self.told.iter().position(|(own, _)| *own == lock) {
                return self.told.remove(place).1;
            }
            let now = self.clock.now();
            assert!(now < end, "nothing was told");
            let wait = self.machine.next_deadline().map_or(NAP, |at| at.since(now).min(NAP));
            match tokio::time::timeout(wait, self.facts.recv()).await {
                Ok(fact) => self.handle(fact.unwrap()),
                Err(_) => self.machine.handle_timeout(self.clock.now()),
            }
        }
    }

    async fn take(&mut self, want: &Acquire) -> LockId {
        let lock = self.machine.acquire(self.clock.now(), want).unwrap();
        loop {
            match self.next(lock).await {
                Event::Granted(_) => break,
                Event::Blocked(_) => {}
                other => panic!("{other:?}"),
            }
        }
        self.machine.claim(self.clock.now(), lock).unwrap();
        lock
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.machine.valid_until(lock).is_some_and(|until| self.clock.now() < until)
    }

    async fn give_back(&mut self, lock: LockId) -> Release {
        self.machine.release(self.clock.now(), lock).unwrap();
        loop {
            match self.next(lock).await {
                Event::Released(release) => return release,
                Event::Renewed { .. } | Event::AtRisk { .. } | Event::Lost(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn call(channel: Channel, rpc: Rpc, token: Option<&Secret>) -> Result<RpcReply, tonic::Status> {
    let path = rpc.path();
    match rpc {
        Rpc::Range(message) => unary(channel, path, message, token).await.map(RpcReply::Range),
        Rpc::Txn(message) => unary(channel, path, message, token).await.map(RpcReply::Txn),
        Rpc::Grant(message) => unary(channel, path, message, token).await.map(RpcReply::Grant),
        Rpc::Revoke(message) => unary(channel, path, message, token).await.map(RpcReply::Revoke),
        Rpc::Authenticate(message) => unary(channel, path, message, token).await.map(RpcReply::Authenticate),
    }
}

async fn unary<A, B>(
    channel: Channel,
    path: &'static str,
    message: A,
    token: Option<&Secret>,
) -> Result<B, tonic::Status>
where
    A: Message + 'static,
    B: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
    let codec = ProstCodec::<A, B>::default();
    let reply = grpc.unary(with_token(message, token), PathAndQuery::from_static(path), codec).await;
    reply.map(tonic::Response::into_inner)
}

/// A stream's task: sends what comes from the machine, tells what comes from the server.
async fn converse(
    channel: Channel,
    id: StreamId,
    token: Option<Secret>,
    messages: UnboundedReceiver<StreamSend>,
    tell: UnboundedSender<Fact>,
) {
    let token = token.as_ref();
    let ended = match id.kind() {
        StreamKind::KeepAlive => {
            let pick = |message| match message {
                StreamSend::KeepAlive(request) => request,
                StreamSend::Watch(_) => LeaseKeepAliveRequest::default(),
            };
            streaming(channel, id, token, messages, pick, StreamReceived::KeepAlive, &tell).await
        }
        StreamKind::Watch => {
            let pick = |message| match message {
                StreamSend::Watch(request) => request,
                StreamSend::KeepAlive(_) => WatchRequest::default(),
            };
            streaming(channel, id, token, messages, pick, StreamReceived::Watch, &tell).await
        }
    };
    let _ = tell.send(Fact::Ended(id, ended.err().unwrap_or_else(|| tonic::Status::ok("the server ended the stream"))));
}

async fn streaming<A, B>(
    channel: Channel,
    id: StreamId,
    token: Option<&Secret>,
    mut messages: UnboundedReceiver<StreamSend>,
    pick: impl Fn(StreamSend) -> A + Send + 'static,
    told: fn(B) -> StreamReceived,
    tell: &UnboundedSender<Fact>,
) -> Result<(), tonic::Status>
where
    A: Message + 'static,
    B: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
    let sending = futures_util::stream::poll_fn(move |cx| messages.poll_recv(cx).map(|message| message.map(&pick)));
    let mut request = with_token(sending, token);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let codec = ProstCodec::<A, B>::default();
    let mut stream = grpc.streaming(request, PathAndQuery::from_static(id.kind().path()), codec).await?.into_inner();
    while let Some(message) = stream.message().await? {
        let _ = tell.send(Fact::Message(id, told(message)));
    }
    Ok(())
}

fn with_token<T>(message: T, token: Option<&Secret>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.expose().parse().unwrap());
    }
    request
}

/// Whether the status is not the server's word.
fn is_transport(status: &tonic::Status) -> bool {
    status.source().is_some()
}

/// Converts an error. Only a reply of the server may keep its code: after any other error it is
/// unknown whether the request was executed.
// E9
fn converted(status: &tonic::Status) -> Status {
    let code = if is_transport(status) { Code::Unavailable } else { Code::from_number(status.code().into()) };
    Status::new(code, status.message())
}

#[tokio::test]
async fn locks_with_tonics_channel() {
    let mut etcd = Etcd::start();
    let (mut first, mut second) = (Embedded::new(&etcd.url()), Embedded::new(&etcd.url()));
    let held = first.take(&Acquire::new("a")).await;
    assert!(first.is_held(held));
    assert_eq!(etcd.keys_of("a/").len(), 1);

    // One waits behind the other, and follows; the session is kept alive meanwhile.
    let end = first.clock.now() + Duration::from_secs(3);
    let want = Acquire::new("a");
    let next = {
        let mut waiting = core::pin::pin!(second.take(&want));
        while first.clock.now() < end {
            let mut renewed = core::pin::pin!(first.next(held));
            let event = poll_fn(|cx| {
                assert!(waiting.as_mut().poll(cx).is_pending(), "it waits");
                renewed.as_mut().poll(cx)
            });
            assert!(matches!(event.await, Event::Renewed { .. }));
        }
        assert!(first.is_held(held));
        assert_eq!(first.give_back(held).await, Release::Released);
        waiting.await
    };
    assert!(second.is_held(next));
    assert_eq!(etcd.keys_of("a/").len(), 1);

    // The server dies.
    let lock = first.take(&Acquire::new("b")).await;
    etcd.kill();
    while first.next(lock).await != Event::Lost(Loss::Expired) {}
    assert!(!first.is_held(lock));
}

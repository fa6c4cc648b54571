//! A lock under tonic's channel, the machine `etcd::Client`: `tonic-channel URL NAME SECONDS`.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use http::uri::PathAndQuery;
use lock_driver::{BootClock, random_identity};
use lock_proto::etcd::message::{LeaseKeepAliveRequest, WatchRequest};
use lock_proto::etcd::{
    Client, Code, Config, Output, Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend,
};
use lock_proto::{Acquire, ConnId, Event, Fault, LockClient as _, LockId, Loss, Machine as _, Secret, Target};
use prost::Message;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// The longest sleep: timers may stop while the computer is suspended.
// T4
const MAX_SLEEP: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name), Some(seconds)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: tonic-channel URL NAME SECONDS".into());
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut client = Embedded::new(&url)?;

    // Acquire. The lock is held once the grant has been claimed.
    let lock = client.machine.acquire(client.clock.now(), &Acquire::new(&name))?;
    let grant = loop {
        match client.next().await {
            (_, Event::Granted(grant)) => break grant,
            (_, Event::Failed(failure)) => return Err(failure.into()),
            (_, Event::Blocked(why)) => eprintln!("waiting: {why}"),
            _ => {}
        }
    };
    client.machine.claim(client.clock.now(), lock)?;
    println!("held, fencing token {:?}", grant.fence);

    // Work, and cancel it if the lock is lost. `lost` renews the lock meanwhile.
    let work = tokio::time::sleep(seconds);
    let lost = tokio::select! {
        () = work => !client.is_held(lock),
        loss = client.lost() => {
            println!("lost: {loss}");
            true
        }
    };

    // Release in both cases: it deletes the key if it is still there.
    client.machine.release(client.clock.now(), lock)?;
    let released = loop {
        if let (_, Event::Released(released)) = client.next().await {
            break released;
        }
    };
    println!("released: {released:?}");
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Result of a task.
enum Completion {
    Connected(ConnId, Result<Channel, tonic::transport::Error>),
    Reply(RpcId, Result<RpcReply, tonic::Status>),
    Message(StreamId, StreamReceived),
    Ended(StreamId, tonic::Status),
}

struct Embedded {
    machine: Client,
    clock: BootClock,
    /// The connections that the machine has requested and not ended; `None` until connected.
    channels: BTreeMap<ConnId, Option<Channel>>,
    streams: BTreeMap<StreamId, UnboundedSender<StreamSend>>,
    completions_sender: UnboundedSender<Completion>,
    completions: UnboundedReceiver<Completion>,
    events: VecDeque<(LockId, Event)>,
}

impl Embedded {
    fn new(url: &str) -> Result<Self, Box<dyn Error>> {
        let clock = BootClock::new();
        let (id, seed) = random_identity()?;
        let config = Config::parse(url)?.session_ttl(Duration::from_secs(3));
        let machine = Client::new(clock.now(), config, id, seed)?;
        let (completions_sender, completions) = unbounded_channel();
        let (channels, streams) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { machine, clock, channels, streams, completions_sender, completions, events: VecDeque::new() })
    }

    /// Carries out all outputs. Tasks do the I/O and report completions.
    fn run_outputs(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                // Only for a URL with a password file.
                Output::Credentials { conn, .. } => {
                    self.machine.handle_credentials(self.clock.now(), conn, None);
                }
                Output::Connect { conn, endpoint, .. } => {
                    // For TLS and unix sockets, give the endpoint another connector.
                    let endpoint = match &endpoint.target {
                        Target::Tcp { host, port } => Endpoint::from_shared(format!("http://{host}:{port}")),
                        _ => Endpoint::from_shared("unsupported"),
                    };
                    self.channels.insert(conn, None);
                    let (interval, limit) = self.machine.config().pings();
                    let completions_sender = self.completions_sender.clone();
                    tokio::spawn(async move {
                        let connected = match endpoint {
                            Ok(endpoint) => {
                                endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(limit).connect().await
                            }
                            Err(error) => Err(error),
                        };
                        completions_sender.send(Completion::Connected(conn, connected))
                    });
                }
                Output::Disconnect { conn, .. } => self.forget(conn),
                Output::Call { rpc, request, token } => {
                    let Some(Some(channel)) = self.channels.get(&rpc.conn()).cloned() else { continue };
                    let completions_sender = self.completions_sender.clone();
                    tokio::spawn(async move {
                        completions_sender.send(Completion::Reply(rpc, call(channel, request, token.as_ref()).await))
                    });
                }
                Output::Open { stream, token } => {
                    let Some(Some(channel)) = self.channels.get(&stream.conn()).cloned() else { continue };
                    let (send, messages) = unbounded_channel();
                    self.streams.insert(stream, send);
                    tokio::spawn(run_stream(channel, stream, token, messages, self.completions_sender.clone()));
                }
                Output::Send { stream, message } => {
                    // Fails only if the stream has ended, which its task reports.
                    let _ = self.streams.get(&stream).map(|messages| messages.send(message));
                }
                // Dropping the sender makes the task end the stream.
                Output::Close { stream } => drop(self.streams.remove(&stream)),
                Output::Event { lock, event } => self.events.push_back((lock, event)),
                Output::Operation { .. } | Output::Stopped { .. } => {}
            }
        }
    }

    fn forget(&mut self, conn: ConnId) {
        self.channels.remove(&conn);
        self.streams.retain(|stream, _| stream.conn() != conn);
    }

    fn handle(&mut self, completion: Completion) {
        let now = self.clock.now();
        match completion {
            Completion::Connected(conn, Ok(channel)) => {
                // A connection that comes after its `Disconnect` is dropped.
                if let Some(slot) = self.channels.get_mut(&conn) {
                    *slot = Some(channel);
                    self.machine.handle_connected(now, conn);
                }
            }
            Completion::Connected(conn, Err(_)) => {
                self.channels.remove(&conn);
                self.machine.handle_disconnected(now, conn, Fault::Unreachable);
            }
            Completion::Reply(rpc, reply) => {
                let broken = reply.as_ref().is_err_and(is_transport);
                self.machine.handle_reply(now, rpc, reply.map_err(|status| converted(&status)));
                self.close_if_broken(rpc.conn(), broken);
            }
            Completion::Message(stream, message) => self.machine.handle_message(now, stream, message),
            Completion::Ended(stream, status) => {
                self.streams.remove(&stream);
                self.machine.handle_stream_ended(now, stream, converted(&status));
                self.close_if_broken(stream.conn(), is_transport(&status));
            }
        }
    }

    /// Ends the connection after a transport error. A tonic channel would reconnect silently, but
    /// the machine must be notified.
    fn close_if_broken(&mut self, conn: ConnId, broken: bool) {
        if broken && self.channels.contains_key(&conn) {
            self.forget(conn);
            self.machine.handle_disconnected(self.clock.now(), conn, Fault::Closed);
        }
    }

    /// Runs the machine until the next event. Cancel safe: nothing is lost if this is dropped.
    async fn next(&mut self) -> (LockId, Event) {
        loop {
            self.run_outputs();
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let now = self.clock.now();
            let wait = self.machine.next_deadline().map_or(MAX_SLEEP, |at| at.since(now).min(MAX_SLEEP));
            match tokio::time::timeout(wait, self.completions.recv()).await {
                // `None` never comes, because `self` keeps a sender.
                Ok(completion) => completion.into_iter().for_each(|completion| self.handle(completion)),
                Err(_) => self.machine.handle_timeout(self.clock.now()),
            }
        }
    }

    async fn lost(&mut self) -> Loss {
        loop {
            if let (_, Event::Lost(loss)) = self.next().await {
                return loss;
            }
        }
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.machine.valid_until(lock) > Some(self.clock.now())
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
        Rpc::MemberList(message) => unary(channel, path, message, token).await.map(RpcReply::MemberList),
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

/// A stream's task: forwards messages in both directions.
async fn run_stream(
    channel: Channel,
    id: StreamId,
    token: Option<Secret>,
    messages: UnboundedReceiver<StreamSend>,
    completions_sender: UnboundedSender<Completion>,
) {
    let token = token.as_ref();
    let ended = match id.kind() {
        StreamKind::KeepAlive => {
            let unwrap_request = |message| match message {
                StreamSend::KeepAlive(request) => request,
                StreamSend::Watch(_) => LeaseKeepAliveRequest::default(),
            };
            streaming(channel, id, token, messages, unwrap_request, StreamReceived::KeepAlive, &completions_sender)
                .await
        }
        StreamKind::Watch => {
            let unwrap_request = |message| match message {
                StreamSend::Watch(request) => request,
                StreamSend::KeepAlive(_) => WatchRequest::default(),
            };
            streaming(channel, id, token, messages, unwrap_request, StreamReceived::Watch, &completions_sender).await
        }
    };
    let _ = completions_sender
        .send(Completion::Ended(id, ended.err().unwrap_or_else(|| tonic::Status::ok("the server ended the stream"))));
}

async fn streaming<A, B>(
    channel: Channel,
    id: StreamId,
    token: Option<&Secret>,
    mut messages: UnboundedReceiver<StreamSend>,
    unwrap_request: impl Fn(StreamSend) -> A + Send + 'static,
    wrap_reply: fn(B) -> StreamReceived,
    completions_sender: &UnboundedSender<Completion>,
) -> Result<(), tonic::Status>
where
    A: Message + 'static,
    B: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
    let sending =
        futures_util::stream::poll_fn(move |cx| messages.poll_recv(cx).map(|message| message.map(&unwrap_request)));
    let mut request = with_token(sending, token);
    request.metadata_mut().insert("hasleader", "true".parse().expect("ASCII"));
    let codec = ProstCodec::<A, B>::default();
    let mut stream = grpc.streaming(request, PathAndQuery::from_static(id.kind().path()), codec).await?.into_inner();
    while let Some(message) = stream.message().await? {
        let _ = completions_sender.send(Completion::Message(id, wrap_reply(message)));
    }
    Ok(())
}

fn with_token<T>(message: T, token: Option<&Secret>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.expose().parse().expect("a token of etcd is ASCII"));
    }
    request
}

/// Returns true if the status comes from the transport and not from the server.
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

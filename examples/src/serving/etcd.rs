//! A simulated etcd cluster behind gRPC.

use core::convert::Infallible;
use core::net::{Ipv4Addr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lock_proto::Instant;
use lock_proto::etcd::message::{LeaseKeepAliveRequest, WatchRequest};
use lock_proto::etcd::{Code, RpcReply, Status, StreamKind, StreamReceived, StreamSend};
use lock_sim::etcd::{Cluster, ClusterConfig, ClusterOutput, UnaryCall};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant as Clock;

use super::line::accept;

type Frames = mpsc::UnboundedSender<Frame<Bytes>>;

/// The members of a simulated cluster, each on a port of its own.
#[derive(Clone, Debug)]
pub(super) struct ServedCluster(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    start: Clock,
    state: Mutex<State>,
    /// The next deadline may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    cluster: Cluster,
    last: u64,
    calls: BTreeMap<u64, oneshot::Sender<Result<RpcReply, Status>>>,
    streams: BTreeMap<u64, Frames>,
    /// Tells a connection that the member has closed it.
    connections: BTreeMap<u64, Arc<Notify>>,
}

impl ServedCluster {
    pub(super) async fn start(members: usize) -> io::Result<(Self, Vec<SocketAddr>)> {
        let state = State {
            cluster: Cluster::new(Instant::ZERO, ClusterConfig::new(members, 1)),
            last: 0,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        let shared = Shared { start: Clock::now(), state: Mutex::new(state), changed: Notify::new() };
        let cluster = Self(Arc::new(shared));
        let mut addresses = Vec::new();
        for member in 0..members {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            tokio::spawn(cluster.clone().accept(member, listener));
        }
        tokio::spawn(cluster.clone().run_timer());
        Ok((cluster, addresses))
    }

    /// Gives access to the cluster.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        let done = self.with_quietly(act);
        self.0.changed.notify_one();
        done
    }

    /// Like [`with`](Self::with), for the timer, which need not be told.
    fn with_quietly<T>(&self, act: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        let mut state = self.lock();
        let now = self.now();
        let done = act(&mut state.cluster, now);
        state.route();
        done
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another task leaves the cluster consistent, between two calls.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.0.start.elapsed()
    }

    async fn run_timer(self) {
        loop {
            self.with_quietly(|cluster, now| cluster.handle_timeout(now));
            // After the outputs have been passed on.
            let due = self.lock().cluster.next_deadline();
            let changed = self.0.changed.notified();
            match due {
                Some(at) => {
                    let at = self.0.start + at.since(Instant::ZERO);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    async fn accept(self, member: usize, listener: TcpListener) {
        loop {
            let stream = accept(&listener).await;
            tokio::spawn(self.clone().serve(member, stream));
        }
    }

    async fn serve(self, member: usize, stream: TcpStream) {
        let closed = Arc::new(Notify::new());
        let conn = {
            let mut state = self.lock();
            state.last += 1;
            let conn = state.last;
            state.connections.insert(conn, closed.clone());
            conn
        };
        self.with(|cluster, now| cluster.handle_connected(now, member, conn));
        let served = self.clone();
        let service = service_fn(move |request| {
            let response = served.clone().answer(member, conn, request);
            core::future::ready(Ok::<_, Infallible>(response))
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let connection = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = connection => {}
            () = closed.notified() => {}
        }
        self.lock().connections.remove(&conn);
        self.with(|cluster, now| cluster.handle_disconnected(now, conn));
    }

    fn answer(self, member: usize, conn: u64, request: Request<Incoming>) -> Response<FrameBody> {
        let path = request.uri().path().to_owned();
        let token = request.headers().get("token").and_then(|token| token.to_str().ok()).map(str::to_owned);
        let (frames, body) = FrameBody::new();
        let kinds = [StreamKind::Watch, StreamKind::KeepAlive];
        if let Some(kind) = kinds.into_iter().find(|kind| kind.path() == path) {
            tokio::spawn(self.stream(conn, kind, token, request.into_body(), frames));
        } else {
            tokio::spawn(self.unary(member, conn, path, token, request.into_body(), frames));
        }
        let mut response = Response::new(body);
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        response
    }

    async fn unary(
        self,
        member: usize,
        conn: u64,
        path: String,
        token: Option<String>,
        mut body: Incoming,
        frames: Frames,
    ) {
        let mut input = Messages::default();
        let Some(message) = input.next(&mut body).await else {
            return end(&frames, &Status::new(Code::Internal, "no message"));
        };
        let token = token.as_deref();
        let call = self.with(|cluster, now| cluster.decode_call(now, member, token, &path, &message));
        let reply = match call {
            Ok(UnaryCall::Answered(bytes)) => Ok(bytes),
            Ok(UnaryCall::Rpc(rpc, shape)) => {
                let (sender, reply) = oneshot::channel();
                let number = {
                    let mut state = self.lock();
                    state.last += 1;
                    let number = state.last;
                    state.calls.insert(number, sender);
                    number
                };
                self.with(|cluster, now| cluster.handle_call(now, conn, number, token, &rpc));
                let reply = tokio::select! {
                    Ok(reply) = reply => reply,
                    // The connection is gone.
                    () = frames.closed() => {
                        self.lock().calls.remove(&number);
                        return;
                    }
                };
                reply.map(|reply| shape.encode(reply))
            }
            Err(status) => Err(status),
        };
        match reply {
            Ok(bytes) => {
                let _ = frames.send(Frame::data(framed(&bytes)));
                end(&frames, &Status::new(Code::Ok, ""));
            }
            Err(status) => end(&frames, &status),
        }
    }

    async fn stream(self, conn: u64, kind: StreamKind, token: Option<String>, mut body: Incoming, frames: Frames) {
        let number = {
            let mut state = self.lock();
            state.last += 1;
            let number = state.last;
            state.streams.insert(number, frames.clone());
            number
        };
        self.with(|cluster, now| cluster.handle_open(now, conn, number, kind, token.as_deref()));
        let mut input = Messages::default();
        loop {
            let message = tokio::select! {
                message = input.next(&mut body) => message,
                () = frames.closed() => None,
            };
            let Some(message) = message else { break };
            let message = match kind {
                StreamKind::Watch => WatchRequest::decode(message).map(StreamSend::Watch),
                StreamKind::KeepAlive => LeaseKeepAliveRequest::decode(message).map(StreamSend::KeepAlive),
            };
            let Ok(message) = message else {
                end(&frames, &Status::new(Code::Internal, "malformed message"));
                break;
            };
            self.with(|cluster, now| cluster.handle_send(now, conn, number, &message));
        }
        // A client that has sent its last keep-alive still gets the replies.
        if !frames.is_closed() {
            end(&frames, &Status::new(Code::Ok, ""));
        }
        self.lock().streams.remove(&number);
        self.with(|cluster, now| cluster.handle_close(now, conn, number));
    }
}

impl State {
    /// Passes the cluster's outputs on.
    fn route(&mut self) {
        while let Some(output) = self.cluster.poll_output() {
            match output {
                ClusterOutput::Reply { rpc, reply, .. } => {
                    if let Some(call) = self.calls.remove(&rpc) {
                        let _ = call.send(reply);
                    }
                }
                ClusterOutput::Message { stream, message, .. } => {
                    let bytes = match &message {
                        StreamReceived::KeepAlive(message) => message.encode_to_vec(),
                        StreamReceived::Watch(message) => message.encode_to_vec(),
                    };
                    if let Some(frames) = self.streams.get(&stream) {
                        let _ = frames.send(Frame::data(framed(&bytes)));
                    }
                }
                ClusterOutput::Ended { stream, status, .. } => {
                    if let Some(frames) = self.streams.remove(&stream) {
                        end(&frames, &status);
                    }
                }
                ClusterOutput::Dropped { conn } => {
                    if let Some(closed) = self.connections.remove(&conn) {
                        closed.notify_one();
                    }
                }
            }
        }
    }
}

/// Ends a response with a status.
fn end(frames: &Frames, status: &Status) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status.code as i32));
    if let Ok(message) = HeaderValue::from_str(&status.message) {
        trailers.insert("grpc-message", message);
    }
    let _ = frames.send(Frame::trailers(trailers));
}

/// A message with the prefix of gRPC: not compressed, and its length.
fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Reads messages from a request's body.
#[derive(Debug, Default)]
struct Messages(BytesMut);

impl Messages {
    async fn next(&mut self, body: &mut Incoming) -> Option<Bytes> {
        loop {
            if let Some(prefix) = self.0.get(..5) {
                let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if self.0.len() >= 5 + length {
                    self.0.advance(5);
                    return Some(self.0.split_to(length).freeze());
                }
            }
            let frame = core::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.0.extend_from_slice(&data);
            }
        }
    }
}

/// The body of a response: frames from a channel, up to the trailers.
#[derive(Debug)]
struct FrameBody {
    frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
    ended: bool,
}

impl FrameBody {
    fn new() -> (Frames, Self) {
        let (sender, frames) = mpsc::unbounded_channel();
        (sender, Self { frames, ended: false })
    }
}

impl Body for FrameBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = self.frames.poll_recv(cx);
        if let Poll::Ready(frame) = &frame {
            self.ended = frame.as_ref().is_none_or(Frame::is_trailers);
        }
        frame.map(|frame| frame.map(Ok))
    }
}

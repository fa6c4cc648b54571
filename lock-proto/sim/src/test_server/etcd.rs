//! A simulated etcd cluster behind gRPC, on a thread with a runtime of its own.

use alloc::sync::Arc;
use core::convert::Infallible;
use core::net::{Ipv4Addr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::mpsc as channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

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
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle as Task;

use crate::etcd::{Cluster, ClusterConfig, ClusterOutput, UnaryCall};

type FrameStream = mpsc::UnboundedSender<Frame<Bytes>>;

/// A simulated etcd cluster on loopback ports, one for each member, with every setting of a
/// [`Cluster`]. Dropping it stops it. Tests of a service need [`TestServer`](super::TestServer) only.
#[derive(Debug)]
pub struct EtcdServer {
    served: ServedEtcd,
    addresses: Vec<SocketAddr>,
    orders: mpsc::UnboundedSender<ThreadOrder>,
    /// Resumes the paused thread when it is dropped.
    gate: Mutex<Option<channel::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told. It answers by dropping its sender.
enum ThreadOrder {
    /// Block until the sender of the last channel is gone.
    Pause(channel::Sender<()>, channel::Receiver<()>),
    /// Close the port of a member.
    Close(usize, channel::Sender<()>),
    /// Open the port of a member again.
    Open(usize, StdListener),
}

impl EtcdServer {
    /// Starts a cluster on free ports of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// Fails if a port cannot be opened or the thread cannot be started.
    pub fn start(members: usize, config: ClusterConfig) -> io::Result<Self> {
        let listeners: Vec<StdListener> = (0..members).map(|_| listen(0)).collect::<io::Result<_>>()?;
        let addresses: Vec<SocketAddr> = listeners.iter().map(StdListener::local_addr).collect::<io::Result<_>>()?;
        let mut cluster = Cluster::new(Instant::ZERO, config);
        cluster.set_client_urls(addresses.iter().map(|address| format!("http://{address}")).collect());
        let state = EtcdState {
            cluster,
            last: 0,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        let shared = EtcdShared { start: Clock::now(), state: Mutex::new(state), changed: Notify::new() };
        let served = ServedEtcd(Arc::new(shared));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, received) = mpsc::unbounded_channel();
        let serving = served.clone();
        let thread = thread::Builder::new()
            .name("etcd server".into())
            .spawn(move || runtime.block_on(serving.run(listeners, received)))?;
        Ok(Self { served, addresses, orders, gate: Mutex::default(), thread: Some(thread) })
    }

    /// Returns the addresses of the members.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the URL of the cluster.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Gives access to the cluster.
    pub fn with_cluster<T>(&self, act: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
        self.served.with(act)
    }

    /// Stops all members as `SIGSTOP` does: connections stay open, but no member replies.
    pub fn pause(&self) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if gate.is_none() {
            let (sender, receiver) = channel::channel();
            self.order(|done| ThreadOrder::Pause(done, receiver));
            *gate = Some(sender);
        }
    }

    /// Resumes the paused members.
    pub fn resume(&self) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Kills a member: its connections end, and new ones are refused. Its data stays for
    /// [`restart`](Self::restart). Resumes a paused cluster.
    ///
    /// # Panics
    ///
    /// If there is no such member.
    pub fn kill(&self, member: usize) {
        self.resume();
        self.order(|done| ThreadOrder::Close(member, done));
        self.with_cluster(|cluster, now| cluster.crash(now, member));
    }

    /// Starts a member again on the same port, with its data; kills it first if it is up.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened again.
    ///
    /// # Panics
    ///
    /// If there is no such member.
    pub fn restart(&self, member: usize) -> io::Result<()> {
        self.kill(member);
        let listener = listen(self.addresses[member].port())?;
        self.with_cluster(|cluster, now| cluster.start(now, member));
        let _ = self.orders.send(ThreadOrder::Open(member, listener));
        Ok(())
    }

    /// Returns when the order was carried out.
    fn order(&self, order: impl FnOnce(channel::Sender<()>) -> ThreadOrder) {
        let (done, wait) = channel::channel();
        let _ = self.orders.send(order(done));
        let _ = wait.recv();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.resume();
        // The thread ends when its orders do.
        self.orders = mpsc::unbounded_channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(port: u16) -> io::Result<StdListener> {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[derive(Clone, Debug)]
struct ServedEtcd(Arc<EtcdShared>);

#[derive(Debug)]
struct EtcdShared {
    start: Clock,
    state: Mutex<EtcdState>,
    /// The next deadline may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct EtcdState {
    cluster: Cluster,
    last: u64,
    calls: BTreeMap<u64, oneshot::Sender<Result<RpcReply, Status>>>,
    streams: BTreeMap<u64, FrameStream>,
    /// Tells a connection that the member has closed it.
    connections: BTreeMap<u64, Arc<Notify>>,
}

impl ServedEtcd {
    /// Serves until there can be no more orders.
    async fn run(self, listeners: Vec<StdListener>, mut orders: mpsc::UnboundedReceiver<ThreadOrder>) {
        let mut ports: BTreeMap<usize, Task<()>> =
            listeners.into_iter().enumerate().map(|(member, listener)| (member, self.open(member, listener))).collect();
        tokio::spawn(self.clone().run_timer());
        while let Some(order) = orders.recv().await {
            match order {
                ThreadOrder::Pause(done, gate) => {
                    drop(done);
                    // Nothing runs on this thread meanwhile.
                    let _ = gate.recv();
                }
                ThreadOrder::Close(member, done) => {
                    if let Some(port) = ports.remove(&member) {
                        port.abort();
                        // The task drops the listener.
                        let _ = port.await;
                    }
                    drop(done);
                }
                ThreadOrder::Open(member, listener) => {
                    ports.insert(member, self.open(member, listener));
                }
            }
        }
    }

    fn open(&self, member: usize, listener: StdListener) -> Task<()> {
        tokio::spawn(self.clone().accept(member, listener))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Cluster, Instant) -> T) -> T {
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

    fn lock(&self) -> MutexGuard<'_, EtcdState> {
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
                Some(at) => tokio::select! {
                    () = tokio::time::sleep(at.since(self.now())) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    async fn accept(self, member: usize, listener: StdListener) {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(self.clone().serve(member, stream))),
                // Possibly too many open files, which may pass.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
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
        frames: FrameStream,
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

    async fn stream(self, conn: u64, kind: StreamKind, token: Option<String>, mut body: Incoming, frames: FrameStream) {
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

impl EtcdState {
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
fn end(frames: &FrameStream, status: &Status) {
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
    fn new() -> (FrameStream, Self) {
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

//! A connection driven by hand, and a scripted server.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use lock_testkit::TIMEOUT;

use super::super::connection::{EtcdConnection, MachineInput};
use crate::address::Route;
use crate::{Address, BootClock, Clock, Host};
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::Secret;
use lock_proto::etcd::{
    Config, Endpoint, Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend,
};
use lock_proto::{ConnId, NodeId, Role};

/// Smol, with a clock that may run faster, or be set forward.
#[derive(Clone)]
pub(super) struct Smol {
    clock: BootClock,
    speed: u32,
    skipped_ms: Arc<AtomicU64>,
}

impl Smol {
    pub(super) fn new() -> Self {
        Self { clock: BootClock::new(), speed: 1, skipped_ms: Arc::default() }
    }

    pub(super) fn faster(speed: u32) -> Self {
        Self { speed, ..Self::new() }
    }

    pub(super) fn skip(&self, ms: u64) {
        self.skipped_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for Smol {
    fn now(&self) -> Instant {
        let skipped = Duration::from_millis(self.skipped_ms.load(Ordering::Relaxed));
        Instant::from_nanos(self.clock.now().as_nanos() * u64::from(self.speed)) + skipped
    }
}

type BoxedStream<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Host for Smol {
    type Clock = Self;
    type Stream = smol::net::TcpStream;
    type Resolve = BoxedStream<io::Result<Vec<SocketAddr>>>;
    type Connect = BoxedStream<io::Result<Self::Stream>>;
    type Sleep = BoxedStream<()>;

    fn clock(&self) -> Self {
        self.clone()
    }

    fn resolve(&self, host: &str, _: u16) -> Self::Resolve {
        panic!("{host} is no address")
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let Address::Tcp(address) = *address else { panic!("{address}") };
        Box::pin(async move { smol::net::TcpStream::connect(address).await })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        let timer = smol::Timer::after(time / self.speed);
        Box::pin(async move {
            timer.await;
        })
    }
}

/// One connection.
pub(super) struct Tried {
    host: Smol,
    route: Route<<Smol as Host>::Resolve>,
    connection: EtcdConnection<Smol>,
    inputs: VecDeque<MachineInput>,
    serial: u64,
}

const CONN: ConnId = ConnId::new(NodeId::new(0), Role::Commands, 1);

impl Tried {
    pub(super) fn to(address: SocketAddr) -> Self {
        Self::with(&Smol::new(), address)
    }

    pub(super) fn with(host: &Smol, address: SocketAddr) -> Self {
        let endpoint = Endpoint::parse(&alloc::format!("{address}")).unwrap();
        let mut route = Route::plain(endpoint.target.clone());
        let connection = EtcdConnection::open(host, &mut route, &endpoint, Config::parse("etcd://h").unwrap().pings());
        Self { host: host.clone(), route, connection, inputs: VecDeque::new(), serial: 0 }
    }

    pub(super) async fn up(address: SocketAddr) -> Self {
        let mut tried = Self::to(address);
        tried.connected().await;
        tried
    }

    pub(super) async fn connected(&mut self) {
        let input = self.next().await;
        assert!(matches!(input, MachineInput::Connected), "{input:?}");
    }

    /// Polls the connection once, and returns its inputs.
    pub(super) async fn poll_once(&mut self) -> Vec<MachineInput> {
        poll_fn(|cx| {
            let mut inputs = Vec::new();
            self.connection.poll(&self.host, &mut self.route, cx, &mut inputs);
            Poll::Ready(inputs)
        })
        .await
    }

    /// The next input, if there is one within `limit`.
    pub(super) async fn within(&mut self, limit: Duration) -> Option<MachineInput> {
        let mut timer = smol::Timer::after(limit);
        // The connection's own timers. The driver would sleep for them.
        let mut due: Option<(Instant, BoxedStream<()>)> = None;
        poll_fn(|cx| {
            loop {
                if let Some(input) = self.inputs.pop_front() {
                    return Poll::Ready(Some(input));
                }
                let mut inputs = Vec::new();
                let more = self.connection.poll(&self.host, &mut self.route, cx, &mut inputs);
                self.inputs.extend(inputs);
                if more || !self.inputs.is_empty() {
                    continue;
                }
                let Some(next) = self.connection.next_deadline() else { break };
                if due.as_ref().is_none_or(|(at, _)| *at != next) {
                    due = Some((next, self.host.sleep(next.since(self.host.now()))));
                }
                if due.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_pending()) {
                    break;
                }
                due = None;
            }
            Pin::new(&mut timer).poll(cx).map(|_| None)
        })
        .await
    }

    pub(super) async fn next(&mut self) -> MachineInput {
        self.within(TIMEOUT).await.expect("nothing happens")
    }

    fn id(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) async fn call(&mut self, rpc: Rpc) -> Result<RpcReply, Status> {
        self.call_with(rpc, None).await
    }

    pub(super) async fn call_with(&mut self, rpc: Rpc, token: Option<Secret>) -> Result<RpcReply, Status> {
        let id = RpcId::new(CONN, self.id());
        self.connection.call(id, rpc, token);
        match self.next().await {
            MachineInput::Reply(of, reply) if of == id => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn begin(&mut self, rpc: Rpc) -> RpcId {
        let id = RpcId::new(CONN, self.id());
        self.connection.call(id, rpc, None);
        id
    }

    pub(super) fn open(&mut self, kind: StreamKind) -> StreamId {
        let id = StreamId::new(CONN, kind, self.id());
        self.connection.open_stream(id, None);
        id
    }

    pub(super) fn send(&self, id: StreamId, message: StreamSend) {
        self.connection.send(id, message);
    }

    pub(super) fn close(&mut self, id: StreamId) {
        self.connection.close_stream(id);
    }

    pub(super) async fn message(&mut self) -> StreamReceived {
        match self.next().await {
            MachineInput::Message(_, message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn stream_ended(&mut self) -> Status {
        match self.next().await {
            MachineInput::StreamEnded(_, status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn ended(&mut self) -> Fault {
        match self.next().await {
            MachineInput::Ended(fault) => fault,
            other => panic!("{other:?}"),
        }
    }
}

/// A server that sends `greeting` on each connection, then answers each request.
pub(super) fn server(greeting: &'static [u8], answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    listen(move |stream| serve(stream, greeting, &answer))
}

/// A server that runs `serve` for each connection.
pub(super) fn listen(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || {
                // Fails when the connection ends.
                let _ = serve(stream);
            });
        }
    });
    address
}

fn serve(mut stream: TcpStream, greeting: &[u8], answer: &dyn Fn(u32) -> Vec<u8>) -> io::Result<()> {
    greet(&mut stream, greeting)?;
    loop {
        let Frame { kind, flags, stream: id, .. } = Frame::read(&mut stream)?;
        match kind {
            HEADERS => stream.write_all(&answer(id))?,
            SETTINGS if flags == 0 => stream.write_all(&frame(SETTINGS, 1, 0, &[]))?,
            _ => {}
        }
    }
}

pub(super) fn greet(stream: &mut TcpStream, greeting: &[u8]) -> io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface)?;
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    stream.write_all(greeting)
}

pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    pub(super) fn read(from: &mut TcpStream) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        from.read_exact(&mut payload)?;
        Ok(Self { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}

pub(in crate::etcd) const DATA: u8 = 0;
pub(in crate::etcd) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(in crate::etcd) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
pub(super) const HELLO: &[u8] = &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];

pub(in crate::etcd) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub(super) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS | flags, stream, &block)
}

/// The headers of a reply that continues.
pub(super) fn grpc(stream: u32) -> Vec<u8> {
    headers(stream, 0, &[(":status", "200"), ("content-type", "application/grpc")])
}

/// A message with an arbitrary length prefix.
pub(super) fn message(stream: u32, flags: u8, compressed: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    let mut payload = vec![compressed];
    payload.extend_from_slice(&length.to_be_bytes());
    payload.extend_from_slice(bytes);
    frame(DATA, flags, stream, &payload)
}

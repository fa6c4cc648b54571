//! One HTTP/2 connection to one endpoint, with its calls and streams. The driver polls it; it
//! spawns nothing.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::error::Error as _;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::Stream as _;
use futures_util::stream::FuturesUnordered;
use http::Uri;
use http::uri::{Authority, Scheme};
use hyper::client::conn::http2::{Builder, SendRequest};
use tonic::body::Body;

use super::super::address::Route;
use super::super::fault::{self, OpenError};
use super::super::host::Host;
use super::super::race::Race;
use super::super::stream::Stream;
use super::BoxFuture;
use super::alarm::Alarm;
use super::grpc::{Incomings, Peer};
use super::outbox::Outbox;
use super::wire::{ConnState, HttpStream, Inbox, Sleeps, TaskSet, Timers};
use crate::clock::Clock as _;
use lock_proto::Instant;
use lock_proto::etcd::{Endpoint, Rpc, RpcId, RpcReply, Status, StreamId, StreamReceived, StreamSend};
use lock_proto::{Breach, Fault};
use lock_proto::{Secret, Target};

/// Flow-control windows of one stream, and of the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Limits for one frame, and for a list of headers.
const MAX_FRAME: u32 = 16 << 10;
const MAX_HEADERS: u32 = 16 << 10;
/// Maximal number of inputs in one iteration, so that a fast server does not hold up timers and
/// other connections.
const MAX_INPUTS: usize = 256;

/// Maximal passes over the tasks in one iteration. The tasks of one pass wake those of the next,
/// and a call takes a few passes.
const MAX_PASSES: usize = 16;

/// Input for the machine.
#[derive(Debug)]
pub(super) enum MachineInput {
    Connected,
    Reply(RpcId, Result<RpcReply, Status>),
    Message(StreamId, StreamReceived),
    StreamEnded(StreamId, Status),
    /// The connection has ended. Always the last input.
    Ended(Fault),
}

/// Output of one of the connection's tasks.
enum Done {
    /// One of hyper's tasks ended.
    Work,
    Opened(Result<OpenedAttempt, Fault>),
    Reply(RpcId, Result<RpcReply, Status>),
    Over(Fault),
}

struct OpenedAttempt {
    send: SendRequest<Body>,
    dispatch: BoxFuture<Fault>,
}

pub(super) struct EtcdConnection<H: Host> {
    clock: H::Clock,
    state: ConnectionState<H>,
    /// Why it could not be opened, in more words than the fault has.
    pub(super) connect_error: Option<OpenError>,
    conn_state: Arc<ConnState>,
    inbox: Arc<Inbox>,
    outbox: Arc<Outbox>,
    sleeps: Arc<Sleeps>,
    new_tasks: TaskSet,
    alarm: Arc<Alarm>,
    waker: Waker,
    /// hyper's tasks, and the calls in flight. Only tasks that were woken are polled.
    tasks: FuturesUnordered<BoxFuture<Done>>,
    streams: Vec<GrpcStream>,
    origin: Option<Uri>,
    pings: (Duration, Duration),
    peer: Option<Peer>,
    /// Delay output for one iteration, to join it with the machine's reaction to the last inputs.
    flush_later: bool,
    /// The machine has been notified that the connection is open.
    up: bool,
    over: bool,
}

enum ConnectionState<H: Host> {
    Opening(Race<H>),
    Open(Stream<H::Stream>),
    Ended,
}

struct GrpcStream {
    id: StreamId,
    send: UnboundedSender<StreamSend>,
    incomings: Incomings,
}

impl<H: Host> EtcdConnection<H> {
    /// `pings` are the interval and the timeout of pings on a silent connection with open streams.
    pub(super) fn open(
        host: &H,
        route: &mut Route<H::Resolve>,
        endpoint: &Endpoint,
        pings: (Duration, Duration),
    ) -> Self {
        let alarm = Arc::<Alarm>::default();
        Self {
            clock: host.clock(),
            state: ConnectionState::Opening(Race::new(host, route)),
            connect_error: None,
            conn_state: Arc::default(),
            inbox: Arc::default(),
            outbox: Arc::default(),
            sleeps: Arc::default(),
            new_tasks: TaskSet::default(),
            waker: Arc::clone(&alarm).into(),
            alarm,
            tasks: FuturesUnordered::new(),
            streams: Vec::new(),
            origin: origin(endpoint),
            pings,
            peer: None,
            flush_later: false,
            up: false,
            over: false,
        }
    }

    fn begin(&self) {
        let timers = Timers::new(self.clock.clone(), Arc::clone(&self.sleeps));
        let (conn_state, outbox) = (Arc::clone(&self.conn_state), Arc::clone(&self.outbox));
        let wire = HttpStream {
            inbox: Arc::clone(&self.inbox),
            outbox: Arc::clone(&outbox),
            conn_state: Arc::clone(&conn_state),
        };
        let mut builder = Builder::new(self.new_tasks.clone());
        builder
            .timer(timers.clone())
            .keep_alive_interval(self.pings.0)
            .keep_alive_timeout(self.pings.1)
            // etcd also treats a ping without an open stream as an attack.
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(MAX_FRAME)
            .max_header_list_size(MAX_HEADERS);
        self.tasks.push(boxed(async move {
            let Ok((send, connection)) = builder.handshake(wire).await else {
                return Done::Opened(Err(conn_state.fault().unwrap_or(Fault::Transport)));
            };
            let dispatch = Box::pin(async move {
                match connection.await {
                    Ok(()) => Fault::Closed,
                    Err(error) if error.is_timeout() => Fault::TimedOut,
                    Err(error) => {
                        tracing::debug!(error = chain(&error), "HTTP/2 connection ended");
                        Fault::Protocol(Breach::Http2)
                    }
                }
            });
            Done::Opened(Ok(OpenedAttempt { send, dispatch }))
        }));
        self.tasks.push(boxed(async move {
            outbox.acknowledge(timers).await;
            Done::Work
        }));
    }

    /// When to poll even if nothing wakes the driver.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            ConnectionState::Opening(race) => race.next_deadline(),
            ConnectionState::Open(_) | ConnectionState::Ended => self.sleeps.next(),
        }
    }

    /// Returns true if the server has spoken HTTP/2 on this connection.
    pub(super) const fn was_up(&self) -> bool {
        self.up
    }

    /// It ends. An address whose server has not spoken HTTP/2 comes last in the next attempt.
    // P5
    pub(super) fn give_up(&mut self, route: &mut Route<H::Resolve>) {
        match &mut self.state {
            ConnectionState::Opening(race) => race.give_up(route),
            ConnectionState::Open(_) if !self.up => route.avoid_current(),
            ConnectionState::Open(_) | ConnectionState::Ended => {}
        }
    }

    pub(super) fn call(&self, rpc: RpcId, request: Rpc, token: Option<Secret>) {
        // The machine makes calls on open connections only.
        let Some(peer) = self.peer.clone() else { return };
        self.tasks.push(boxed(async move { Done::Reply(rpc, peer.call(request, token).await) }));
    }

    pub(super) fn open_stream(&mut self, id: StreamId, token: Option<Secret>) {
        // The machine opens streams on open connections only.
        let Some(peer) = self.peer.clone() else { return };
        let (send, messages) = unbounded();
        self.streams.push(GrpcStream { id, send, incomings: peer.open(id.kind(), token, messages) });
    }

    pub(super) fn send(&self, id: StreamId, message: StreamSend) {
        if let Some(stream) = self.streams.iter().find(|stream| stream.id == id) {
            // Fails if the stream has ended, which is reported anyway.
            let _ = stream.send.unbounded_send(message);
        }
    }

    pub(super) fn close_stream(&mut self, id: StreamId) {
        self.streams.retain(|stream| stream.id != id);
    }

    /// Makes progress on everything. True if there is more to do.
    pub(super) fn poll(
        &mut self,
        host: &H,
        route: &mut Route<H::Resolve>,
        cx: &Context<'_>,
        inputs: &mut Vec<MachineInput>,
    ) -> bool {
        if self.over {
            return false;
        }
        self.alarm.begin(cx);
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        let mut more = true;
        for _ in 0..MAX_PASSES {
            more = self.poll_tasks(cx, inputs) | self.poll_stream(host, route, cx);
            if !self.up && self.conn_state.is_up() {
                self.up = true;
                // Precedes any reply, because the machine sends nothing earlier.
                inputs.push(MachineInput::Connected);
            }
            more |= self.poll_streams(cx, inputs);
            more |= self.alarm.take();
            if !more && self.sleeps.next().is_some() {
                // Timers come last: after a pause, the reply to a ping may lie in the socket.
                // P6, E13
                self.sleeps.wake(self.clock.now());
                more = self.alarm.take();
            }
            if !more || self.over {
                break;
            }
        }
        self.flush_later = !inputs.is_empty() && !self.flush_later;
        if !self.flush_later {
            self.flush(cx);
        }
        more |= self.alarm.end();
        if self.over {
            let why = self.conn_state.fault().unwrap_or(Fault::Closed);
            inputs.push(MachineInput::Ended(why));
            self.give_up(route);
            self.peer = None;
            self.state = ConnectionState::Ended;
            self.streams.clear();
            self.tasks.clear();
        }
        more
    }

    /// Flushes pending output. If the stream does not take all of it now, it wakes the driver
    /// later.
    fn flush(&mut self, cx: &mut Context<'_>) {
        if let ConnectionState::Open(stream) = &mut self.state
            && let Poll::Ready(Err(error)) = self.outbox.poll_flush(stream, cx)
        {
            self.conn_state.broken(&error);
            self.over = true;
        }
    }

    /// Connects, or reads from the open stream. Returns true if there was progress.
    fn poll_stream(&mut self, host: &H, route: &mut Route<H::Resolve>, cx: &mut Context<'_>) -> bool {
        match &mut self.state {
            ConnectionState::Opening(race) => match race.poll(host, route, self.clock.now(), cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok((address, stream))) => {
                    tracing::debug!(server = %route.target, %address, "TCP connection open");
                    self.conn_state.open(stream.is_tls());
                    self.state = ConnectionState::Open(stream);
                    route.current = Some(address);
                    self.begin();
                }
                Poll::Ready(Err(error)) => {
                    self.end(fault::of_connecting(&error));
                    self.connect_error = Some(error);
                }
            },
            ConnectionState::Open(stream) => return self.inbox.fill(stream, cx),
            ConnectionState::Ended => return false,
        }
        true
    }

    /// A reason that the stream gave earlier takes precedence.
    fn end(&mut self, why: Fault) {
        self.conn_state.end(why);
        self.over = true;
    }

    fn poll_tasks(&mut self, cx: &mut Context<'_>, inputs: &mut Vec<MachineInput>) -> bool {
        for _ in 0..MAX_INPUTS {
            let Self { new_tasks, tasks, .. } = self;
            let any_new = new_tasks.take(|task| {
                tasks.push(boxed(async move {
                    task.await;
                    Done::Work
                }));
            });
            match Pin::new(&mut *tasks).poll_next(cx) {
                Poll::Ready(Some(Done::Work)) => {}
                Poll::Ready(Some(Done::Reply(rpc, reply))) => inputs.push(MachineInput::Reply(rpc, reply)),
                Poll::Ready(Some(Done::Opened(Ok(OpenedAttempt { send, dispatch })))) => {
                    // Always present: the machine has validated the authority.
                    let Some(origin) = self.origin.take() else {
                        self.end(Fault::Unreachable);
                        return false;
                    };
                    self.peer = Some(Peer { send, origin });
                    self.tasks.push(boxed(async move { Done::Over(dispatch.await) }));
                }
                Poll::Ready(Some(Done::Opened(Err(why)) | Done::Over(why))) => self.end(why),
                Poll::Ready(None) | Poll::Pending => {
                    if !any_new {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn poll_streams(&mut self, cx: &mut Context<'_>, inputs: &mut Vec<MachineInput>) -> bool {
        let mut more = false;
        self.streams.retain_mut(|stream| {
            let mut left = MAX_INPUTS;
            while left > 0 {
                match stream.incomings.poll_next(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Ok(message)) => {
                        left = left.saturating_sub(1 + events(&message));
                        inputs.push(MachineInput::Message(stream.id, message));
                    }
                    Poll::Ready(Err(end)) => {
                        inputs.push(MachineInput::StreamEnded(stream.id, end));
                        return false;
                    }
                }
            }
            more = true;
            true
        });
        more
    }
}

/// Number of events in a message. They count towards the limit of an iteration.
const fn events(message: &StreamReceived) -> usize {
    match message {
        StreamReceived::Watch(response) => response.events.len(),
        StreamReceived::KeepAlive(_) => 0,
    }
}

fn boxed(task: impl Future<Output = Done> + Send + 'static) -> BoxFuture<Done> {
    Box::pin(task)
}

/// An error with all its sources, because hyper's own text is short.
pub(super) fn chain(error: &hyper::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

fn origin(endpoint: &Endpoint) -> Option<Uri> {
    let authority = Authority::try_from(&*endpoint.authority).ok()?;
    let scheme = match endpoint.target {
        Target::Tls { .. } => Scheme::HTTPS,
        Target::Tcp { .. } | Target::Unix { .. } => Scheme::HTTP,
    };
    Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build().ok()
}

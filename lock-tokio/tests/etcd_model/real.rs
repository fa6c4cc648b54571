//! A connection to a real server: a tonic channel with the messages of `lock_proto::etcd`.

use core::future::Future;
use core::time::Duration;

use futures_util::stream::poll_fn;
use http::uri::PathAndQuery;
use lock_proto::etcd::message::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchRequest, WatchResponse};
use lock_proto::etcd::{Code, Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};
use lock_testkit::Etcd;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::codec::Prost;

/// Timeout for operations that take milliseconds on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Creates a runtime with one worker thread, which moves stream messages.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

pub(crate) struct RealConnection {
    grpc: Grpc<Channel>,
}

impl RealConnection {
    pub(crate) fn open(runtime: &Runtime, server: &Etcd) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).expect("a URL");
        let channel = runtime.block_on(endpoint.connect()).expect("a connection to etcd");
        Self { grpc: Grpc::new(channel).max_decoding_message_size(64 << 20) }
    }

    pub(crate) fn call(&self, runtime: &Runtime, token: Option<&str>, rpc: &Rpc) -> Result<RpcReply, Status> {
        let path = rpc.path();
        match rpc {
            Rpc::Range(request) => self.unary(runtime, token, path, request).map(RpcReply::Range),
            Rpc::Txn(request) => self.unary(runtime, token, path, request).map(RpcReply::Txn),
            Rpc::Grant(request) => self.unary(runtime, token, path, request).map(RpcReply::Grant),
            Rpc::Revoke(request) => self.unary(runtime, token, path, request).map(RpcReply::Revoke),
            Rpc::Authenticate(request) => self.unary(runtime, token, path, request).map(RpcReply::Authenticate),
            Rpc::MemberList(request) => self.unary(runtime, token, path, request).map(RpcReply::MemberList),
        }
    }

    pub(crate) fn unary<A, B>(
        &self,
        runtime: &Runtime,
        token: Option<&str>,
        path: &'static str,
        message: &A,
    ) -> Result<B, Status>
    where
        A: Message + Clone + 'static,
        B: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        let request = with_token(message.clone(), token);
        within(runtime, async move {
            grpc.ready().await.expect("a connection to etcd");
            let codec = Prost::<A, B>::default();
            match grpc.unary(request, PathAndQuery::from_static(path), codec).await {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => Err(converted(&status)),
            }
        })
    }

    pub(crate) fn stream(&self, runtime: &Runtime, kind: StreamKind, token: Option<&str>) -> RealStream {
        match kind {
            StreamKind::KeepAlive => {
                let (up, down) = self.bidi::<LeaseKeepAliveRequest, LeaseKeepAliveResponse>(runtime, kind, token);
                RealStream { up: Up::KeepAlive(up), down: Down::KeepAlive(down) }
            }
            StreamKind::Watch => {
                let (up, down) = self.bidi::<WatchRequest, WatchResponse>(runtime, kind, token);
                RealStream { up: Up::Watch(up), down: Down::Watch(down) }
            }
        }
    }

    fn bidi<A, B>(
        &self,
        runtime: &Runtime,
        kind: StreamKind,
        token: Option<&str>,
    ) -> (UnboundedSender<A>, UnboundedReceiver<Result<B, Status>>)
    where
        A: Message + 'static,
        B: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        let (up, mut requests) = unbounded_channel::<A>();
        let (replies, down) = unbounded_channel();
        let mut request = with_token(poll_fn(move |cx| requests.poll_recv(cx)), token);
        request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        runtime.spawn(async move {
            grpc.ready().await.expect("a connection to etcd");
            let codec = Prost::<A, B>::default();
            let status = match grpc.streaming(request, PathAndQuery::from_static(kind.path()), codec).await {
                Ok(reply) => {
                    let mut stream = reply.into_inner();
                    loop {
                        match stream.message().await {
                            Ok(Some(message)) => drop(replies.send(Ok(message))),
                            Ok(None) => break Status::new(Code::Ok, ""),
                            Err(status) => break converted(&status),
                        }
                    }
                }
                Err(status) => converted(&status),
            };
            let _ = replies.send(Err(status));
        });
        (up, down)
    }
}

enum Up {
    KeepAlive(UnboundedSender<LeaseKeepAliveRequest>),
    Watch(UnboundedSender<WatchRequest>),
}

enum Down {
    KeepAlive(UnboundedReceiver<Result<LeaseKeepAliveResponse, Status>>),
    Watch(UnboundedReceiver<Result<WatchResponse, Status>>),
}

/// A stream of the real server. Closed on drop.
pub(crate) struct RealStream {
    up: Up,
    down: Down,
}

impl RealStream {
    pub(crate) fn send(&self, message: &StreamSend) {
        // The next read detects a closed stream.
        match (&self.up, message) {
            (Up::KeepAlive(up), StreamSend::KeepAlive(request)) => drop(up.send(*request)),
            (Up::Watch(up), StreamSend::Watch(request)) => drop(up.send(request.clone())),
            _ => panic!("a message of the other kind of stream"),
        }
    }

    pub(crate) fn next(&mut self, runtime: &Runtime) -> Result<StreamReceived, Status> {
        let next = match &mut self.down {
            Down::KeepAlive(down) => within(runtime, down.recv()).map(|m| m.map(StreamReceived::KeepAlive)),
            Down::Watch(down) => within(runtime, down.recv()).map(|m| m.map(StreamReceived::Watch)),
        };
        next.expect("a stream that has ended is not read again")
    }
}

fn within<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime
        .block_on(async { tokio::time::timeout(TIMEOUT, future).await })
        .unwrap_or_else(|_| panic!("etcd does not answer within {TIMEOUT:?}"))
}

fn with_token<T>(message: T, token: Option<&str>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.parse().expect("a token of printable characters"));
    }
    request
}

fn converted(status: &tonic::Status) -> Status {
    Status::new(Code::from_number(status.code() as i32), status.message())
}

//! gRPC to etcd without this library, on the same HTTP/2 (hyper) and codec (tonic, prost).

use futures_channel::mpsc::{UnboundedSender, unbounded};
use http::uri::{PathAndQuery, Scheme, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lock_proto::etcd::message::{
    DELETED, LeaseGrantRequest, LeaseGrantResponse, WatchCancelRequest, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use lock_testkit::Etcd;
use prost::Message;
use rustls::ClientConfig;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic_prost::ProstCodec;
use tower_service::Service;

pub const PUT: &str = "/etcdserverpb.KV/Put";
pub const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// One connection. Cheap to clone.
#[derive(Clone)]
pub struct RawEtcd(Grpc<Carrier>);

impl RawEtcd {
    pub async fn connect(etcd: &Etcd) -> Self {
        Self::over(open(etcd.address()).await, Scheme::HTTP, etcd.address()).await
    }

    /// Over TLS, with a configuration that negotiates HTTP/2.
    pub async fn connect_tls(address: SocketAddr, config: ClientConfig) -> Self {
        let stream = open(address).await;
        let stream = TlsConnector::from(Arc::new(config)).connect(address.ip().into(), stream).await.expect("TLS");
        Self::over(stream, Scheme::HTTPS, address).await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        scheme: Scheme,
        address: SocketAddr,
    ) -> Self {
        let (send, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        // Ends with the connection, when the last clone of `send` is dropped.
        drop(tokio::spawn(connection));
        let origin = Uri::builder().scheme(scheme).authority(address.to_string()).path_and_query("/").build();
        Self(Grpc::with_origin(Carrier(send), origin.expect("a URI")))
    }

    pub async fn call<M, R>(&self, path: &'static str, message: M) -> R
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let codec = ProstCodec::<M, R>::default();
        let path = PathAndQuery::from_static(path);
        let answer = self.0.clone().unary(tonic::Request::new(message), path, codec).await;
        answer.expect("etcd answers").into_inner()
    }

    /// Grants a lease that outlives the measurement.
    pub async fn grant(&self) -> i64 {
        let answer: LeaseGrantResponse = self.call(GRANT, LeaseGrantRequest { ttl: 600, id: 0 }).await;
        answer.id
    }

    pub fn watches(&self) -> Watches {
        let (send, messages) = unbounded();
        Watches { peer: self.clone(), send, messages: Some(messages), incoming: None }
    }
}

async fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream
}

pub struct Watches {
    peer: RawEtcd,
    send: UnboundedSender<WatchRequest>,
    messages: Option<futures_channel::mpsc::UnboundedReceiver<WatchRequest>>,
    incoming: Option<Streaming<WatchResponse>>,
}

impl Watches {
    /// Watches `key` from a revision on, until the key is deleted.
    pub async fn until_deleted(&mut self, key: Vec<u8>, start_revision: i64) {
        let watch_id = self.open(key, start_revision).await;
        self.deleted(watch_id).await;
        self.request(WatchRequestUnion::Cancel(WatchCancelRequest { watch_id }));
    }

    /// Opens a watch on `key` from a revision on. Revision 0 means from now on.
    pub async fn open(&mut self, key: Vec<u8>, start_revision: i64) -> i64 {
        let create = WatchCreateRequest { key: key.into(), start_revision, ..WatchCreateRequest::default() };
        self.request(WatchRequestUnion::Create(create));
        loop {
            let message = self.next().await;
            if message.created {
                assert!(!message.canceled, "a watch is refused: {}", message.cancel_reason);
                return message.watch_id;
            }
        }
    }

    pub async fn deleted(&mut self, watch_id: i64) {
        loop {
            let message = self.next().await;
            if message.watch_id == watch_id && message.events.iter().any(|event| event.kind == DELETED) {
                return;
            }
        }
    }

    fn request(&self, request: WatchRequestUnion) {
        self.send.unbounded_send(WatchRequest { request: Some(request) }).expect("the stream is open");
    }

    async fn next(&mut self) -> WatchResponse {
        // etcd answers a new stream only after its first message.
        if let Some(messages) = self.messages.take() {
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let path = PathAndQuery::from_static(WATCH);
            let answer = self.peer.0.streaming(tonic::Request::new(messages), path, codec).await;
            self.incoming = Some(answer.expect("etcd answers").into_inner());
        }
        let incoming = self.incoming.as_mut().expect("it was opened");
        incoming.message().await.expect("the stream lives").expect("the stream lives")
    }
}

/// Adapts hyper's connection to tonic's client.
#[derive(Clone)]
struct Carrier(SendRequest<Body>);

impl Service<http::Request<Body>> for Carrier {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

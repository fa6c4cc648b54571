//! gRPC calls and streams over an open HTTP/2 connection, in the types of the state machine. A
//! status code counts as the server's only if the server sent it. After any other failure the
//! request may have been executed, and the status must not claim otherwise.
// E9

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use futures_util::Stream;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::uri::{PathAndQuery, Uri};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use prost::{DecodeError, Message};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::metadata::MetadataValue;
use tower_service::Service;

use super::BoxFuture;
use super::bound::Bound;
use super::connection::chain;
use lock_proto::Secret;
use lock_proto::etcd::message::{
    AuthenticateResponse, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRevokeResponse, MemberListResponse,
    RangeResponse, TxnResponse, WatchResponse,
};
use lock_proto::etcd::{Code, Rpc, RpcReply, Status, StreamKind, StreamReceived, StreamSend};

/// Initial size of a message buffer.
const INITIAL_BUFFER: usize = 512;
/// Pending messages are coalesced into one write up to this size.
const COALESCE_LIMIT: usize = 32 << 10;
const AGENT: &str = concat!("lock-proto/", env!("CARGO_PKG_VERSION"));

#[derive(Clone)]
pub(super) struct Peer {
    pub(super) send: SendRequest<Body>,
    pub(super) origin: Uri,
}

impl Peer {
    fn client(&self, status_sent: &Arc<AtomicBool>, bound: Bound) -> Grpc<Carrier> {
        let carrier = Carrier { send: self.send.clone(), status_sent: Arc::clone(status_sent) };
        Grpc::with_origin(carrier, self.origin.clone()).max_decoding_message_size(bound.bytes())
    }

    pub(super) async fn call(self, rpc: Rpc, token: Option<Secret>) -> Result<RpcReply, Status> {
        let status_sent = Arc::default();
        let path = PathAndQuery::from_static(rpc.path());
        let bound = Bound::of_answer(&rpc);
        let codec = Typed { encode: encode_call, decode: reply_to(&rpc), bound };
        let request = request(rpc, token.as_ref())?;
        let answer = self.client(&status_sent, bound).unary(request, path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status_of(&status, &status_sent))
    }

    /// Opens a stream and sends the messages of `send` on it. The stream ends with a status.
    pub(super) fn open(
        self,
        kind: StreamKind,
        token: Option<Secret>,
        send: impl Stream<Item = StreamSend> + Send + 'static,
    ) -> Incomings {
        let status_sent = Arc::default();
        let bound = Bound::of_message(kind);
        let mut client = self.client(&status_sent, bound);
        let opening = async move {
            let mut request =
                request(send, token.as_ref()).map_err(|status| tonic::Status::internal(status.message))?;
            // Makes a member that has lost its leader end the stream instead of staying silent.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            let codec = Typed { encode: encode_send, decode: message_of(kind), bound };
            let answer = client.streaming(request, PathAndQuery::from_static(kind.path()), codec).await;
            answer.map(tonic::Response::into_inner)
        };
        Incomings { status_sent, state: Some(Receiving::Opening(Box::pin(opening))) }
    }
}

/// The incoming half of a stream.
pub(super) struct Incomings {
    status_sent: Arc<AtomicBool>,
    /// `None` after the end.
    state: Option<Receiving>,
}

enum Receiving {
    /// etcd sends its headers with the first message.
    Opening(BoxFuture<Result<Streaming<StreamReceived>, tonic::Status>>),
    Open(Box<Streaming<StreamReceived>>),
}

impl Incomings {
    /// Resolves to the next message, or to the end. Pending forever after the end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<StreamReceived, Status>> {
        loop {
            let ended = match &mut self.state {
                None => return Poll::Pending,
                Some(Receiving::Opening(opening)) => match core::task::ready!(opening.as_mut().poll(cx)) {
                    Ok(open) => {
                        self.state = Some(Receiving::Open(Box::new(open)));
                        continue;
                    }
                    Err(status) => status_of(&status, &self.status_sent),
                },
                Some(Receiving::Open(open)) => match core::task::ready!(Pin::new(open).poll_next(cx)) {
                    Some(Ok(message)) => return Poll::Ready(Ok(message)),
                    Some(Err(status)) => status_of(&status, &self.status_sent),
                    None => Status::new(Code::Ok, "the server ended the stream"),
                },
            };
            self.state = None;
            return Poll::Ready(Err(ended));
        }
    }
}

fn request<M>(message: M, token: Option<&Secret>) -> Result<tonic::Request<M>, Status> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token {
        let mut value = MetadataValue::try_from(token.expose())
            .map_err(|_| Status::new(Code::Internal, "the server's token has characters that no header may have"))?;
        value.set_sensitive(true);
        request.metadata_mut().insert("token", value);
    }
    Ok(request)
}

fn status_of(status: &tonic::Status, status_sent: &AtomicBool) -> Status {
    let code = if status_sent.load(Ordering::Relaxed) {
        Code::from_number(status.code().into())
    } else {
        // Not sent by the server: the reply is malformed or missing.
        match status.code() {
            tonic::Code::Internal | tonic::Code::OutOfRange | tonic::Code::Unimplemented => Code::Internal,
            tonic::Code::Ok
            | tonic::Code::Cancelled
            | tonic::Code::Unknown
            | tonic::Code::InvalidArgument
            | tonic::Code::DeadlineExceeded
            | tonic::Code::NotFound
            | tonic::Code::AlreadyExists
            | tonic::Code::PermissionDenied
            | tonic::Code::ResourceExhausted
            | tonic::Code::FailedPrecondition
            | tonic::Code::Aborted
            | tonic::Code::Unavailable
            | tonic::Code::DataLoss
            | tonic::Code::Unauthenticated => Code::Unavailable,
        }
    };
    Status::new(code, status.message())
}

/// Passes requests to hyper, and inspects replies before tonic does.
struct Carrier {
    send: SendRequest<Body>,
    /// Set once the server has sent a status.
    status_sent: Arc<AtomicBool>,
}

impl Service<http::Request<Body>> for Carrier {
    type Response = http::Response<ResponseFuture>;
    type Error = tonic::Status;
    type Future = BoxFuture<Result<Self::Response, tonic::Status>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        self.send.poll_ready(cx).map_err(|error| undelivered(&error))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let status_sent = Arc::clone(&self.status_sent);
        let answer = self.send.send_request(request);
        Box::pin(async move {
            let (mut head, body) = answer.await.map_err(|error| undelivered(&error))?.into_parts();
            let (kind, status) = (head.headers.get(CONTENT_TYPE), head.status);
            let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if !is_grpc || (!status.is_success() && !head.headers.contains_key("grpc-status")) {
                let kind = kind.map_or_else(|| String::from("none"), |kind| kind.as_bytes().escape_ascii().to_string());
                // Not a reply of etcd, whatever the status: another endpoint may be up.
                return Err(tonic::Status::unavailable(format!(
                    "the server does not speak gRPC here: HTTP status {status}, content type {kind}"
                )));
            }
            note_status(&mut head.headers, &status_sent);
            Ok(http::Response::from_parts(head, ResponseFuture { body, status_sent }))
        })
    }
}

/// Records that a status arrived. Removes its details: they are unused, and tonic panics if they
/// are malformed.
fn note_status(headers: &mut HeaderMap, status_sent: &AtomicBool) {
    headers.remove("grpc-status-details-bin");
    if headers.contains_key("grpc-status") {
        status_sent.store(true, Ordering::Relaxed);
    }
}

fn undelivered(error: &hyper::Error) -> tonic::Status {
    tonic::Status::unavailable(chain(error))
}

struct ResponseFuture {
    body: Incoming,
    status_sent: Arc<AtomicBool>,
}

impl http_body::Body for ResponseFuture {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let Self { body, status_sent } = &mut *self;
        Pin::new(body).poll_frame(cx).map(|frame| {
            Some(match frame? {
                Ok(mut frame) => {
                    if let Some(trailers) = frame.trailers_mut() {
                        note_status(trailers, status_sent);
                    }
                    Ok(frame)
                }
                Err(error) => Err(undelivered(&error)),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

type Encode<T> = fn(T, &mut EncodeBuf<'_>) -> Result<(), prost::EncodeError>;
type Decode<U> = fn(&mut DecodeBuf<'_>) -> Result<U, DecodeError>;

/// Codec between the machine's enums and the messages of one method.
struct Typed<T, U> {
    encode: Encode<T>,
    decode: Decode<U>,
    bound: Bound,
}

// Not derived, because a derive would require `T: Clone` and `U: Clone`.
impl<T, U> Clone for Typed<T, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, U> Copy for Typed<T, U> {}

impl<T: Send + 'static, U: Send + 'static> Codec for Typed<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl<T, U> Encoder for Typed<T, U> {
    type Item = T;
    type Error = tonic::Status;

    fn encode(&mut self, item: T, into: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        (self.encode)(item, into).map_err(|error| tonic::Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(INITIAL_BUFFER, COALESCE_LIMIT)
    }
}

impl<T, U> Decoder for Typed<T, U> {
    type Item = U;
    type Error = tonic::Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, tonic::Status> {
        let malformed = |error| tonic::Status::internal(format!("the server's message is malformed: {error}"));
        // The buffer holds the whole message in one piece.
        if !self.bound.admits(from.chunk()).map_err(malformed)? {
            return Err(tonic::Status::internal("the server's message has more elements than requested"));
        }
        (self.decode)(from).map(Some).map_err(malformed)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(INITIAL_BUFFER, COALESCE_LIMIT)
    }
}

fn encode_call(rpc: Rpc, into: &mut EncodeBuf<'_>) -> Result<(), prost::EncodeError> {
    match rpc {
        Rpc::Range(message) => message.encode(into),
        Rpc::Txn(message) => message.encode(into),
        Rpc::Grant(message) => message.encode(into),
        Rpc::Revoke(message) => message.encode(into),
        Rpc::Authenticate(message) => message.encode(into),
        Rpc::MemberList(message) => message.encode(into),
    }
}

fn reply_to(rpc: &Rpc) -> Decode<RpcReply> {
    match rpc {
        Rpc::Range(_) => |from| RangeResponse::decode(from).map(RpcReply::Range),
        Rpc::Txn(_) => |from| TxnResponse::decode(from).map(RpcReply::Txn),
        Rpc::Grant(_) => |from| LeaseGrantResponse::decode(from).map(RpcReply::Grant),
        Rpc::Revoke(_) => |from| LeaseRevokeResponse::decode(from).map(RpcReply::Revoke),
        Rpc::Authenticate(_) => |from| AuthenticateResponse::decode(from).map(RpcReply::Authenticate),
        Rpc::MemberList(_) => |from| MemberListResponse::decode(from).map(RpcReply::MemberList),
    }
}

fn encode_send(message: StreamSend, into: &mut EncodeBuf<'_>) -> Result<(), prost::EncodeError> {
    match message {
        StreamSend::KeepAlive(message) => message.encode(into),
        StreamSend::Watch(message) => message.encode(into),
    }
}

fn message_of(kind: StreamKind) -> Decode<StreamReceived> {
    match kind {
        StreamKind::KeepAlive => |from| LeaseKeepAliveResponse::decode(from).map(StreamReceived::KeepAlive),
        StreamKind::Watch => |from| WatchResponse::decode(from).map(StreamReceived::Watch),
    }
}

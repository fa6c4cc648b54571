//! ZooKeeper without this library's machines, over one connection, with the same codec.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use lock_proto::zookeeper::codec::{
    Acl, ConnectRequest, ConnectResponse, CreateMode, ErrorCode, Frames, MAX_FRAME, MultiOp, Op, OpCode, ReplyBody,
    ReplyHeader, RequestFrame,
};
use lock_testkit::ZooKeeper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

const SESSION: Duration = Duration::from_secs(10);

/// One session. Cheap to clone. It sends no pings: a benchmark is never silent.
#[derive(Clone, Debug)]
pub struct RawZooKeeper {
    calls: mpsc::UnboundedSender<Call>,
}

#[derive(Debug)]
struct Call {
    op: Op,
    reply: oneshot::Sender<ReplyBody>,
}

impl RawZooKeeper {
    /// Begins a session.
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    pub async fn connect(server: &ZooKeeper) -> Self {
        let mut stream = TcpStream::connect(server.address()).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket");
        let request = ConnectRequest {
            last_zxid_seen: 0,
            timeout_ms: SESSION.as_millis() as i32,
            session_id: 0,
            password: Bytes::from_static(&[0; 16]),
            read_only: false,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        stream.write_all(&bytes).await.expect("written");
        let length = stream.read_i32().await.expect("a reply");
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await.expect("a reply");
        let response = ConnectResponse::decode(&frame).expect("a session");
        assert_ne!(response.session_id, 0, "no session");
        let (calls, requests) = mpsc::unbounded_channel();
        tokio::spawn(run(stream, requests));
        Self { calls }
    }

    /// Carries out an operation.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub async fn call(&self, op: Op) -> ReplyBody {
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { op, reply }).expect("the connection lives");
        answer.await.expect("the server carries it out")
    }

    /// Creates a node that everybody may use.
    pub async fn create(&self, path: &str, mode: CreateMode) {
        let create = MultiOp::Create { path: path.into(), data: Bytes::new(), acl: Acl::open(), mode };
        self.call(Op::Write(create)).await;
    }

    /// Deletes a node.
    pub async fn delete(&self, path: &str) {
        self.call(Op::Write(MultiOp::Delete { path: path.into(), version: -1 })).await;
    }
}

/// Writes what is there at once, and reads replies, until the last handle is gone.
async fn run(mut stream: TcpStream, mut requests: mpsc::UnboundedReceiver<Call>) {
    let (mut waiting, mut frames): (VecDeque<(OpCode, _)>, _) = (VecDeque::new(), Frames::default());
    let (mut out, mut buffer, mut xid) = (Vec::new(), vec![0; 64 * 1024], 0);
    loop {
        tokio::select! {
            biased;
            call = requests.recv() => {
                let Some(call) = call else { return };
                let mut next = Some(call);
                while let Some(Call { op, reply }) = next {
                    xid += 1;
                    waiting.push_back((op.code(), reply));
                    RequestFrame { xid, op }.encode(&mut out);
                    next = requests.try_recv().ok();
                }
                stream.write_all(&out).await.expect("written");
                out.clear();
            }
            count = stream.read(&mut buffer) => {
                let count = count.expect("read");
                assert_ne!(count, 0, "the server closes the connection");
                let mut bytes = &buffer[..count];
                while let Some(frame) = frames.next(&mut bytes, MAX_FRAME).expect("a frame") {
                    let (header, body) = ReplyHeader::decode(frame).expect("a header");
                    let (code, reply) = waiting.pop_front().expect("a request");
                    assert_eq!(header.code, ErrorCode::OK, "{code:?}");
                    let _ = reply.send(ReplyBody::decode(code, body).expect("a reply"));
                }
            }
        }
    }
}

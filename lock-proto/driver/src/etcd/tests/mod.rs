//! The transport against a real etcd, and against servers that are not etcd.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod hostile;
pub(super) mod kit;

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::thread;

use bytes::Bytes;
use lock_testkit::{Etcd, TIMEOUT};

use super::connection::MachineInput;
use kit::{Frame, Smol, Tried};
use lock_proto::Fault;
use lock_proto::Secret;
use lock_proto::etcd::message::{
    AuthenticateRequest, DELETED, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, Op, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};
use lock_proto::etcd::{Code, Rpc, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend};

fn put(key: &'static str, value: impl Into<Bytes>, lease: i64) -> Rpc {
    let put = PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() };
    Rpc::Txn(TxnRequest { success: vec![RequestOp { request: Some(Op::Put(put)) }], ..TxnRequest::default() })
}

fn range(key: &'static str, end: &'static str) -> Rpc {
    Rpc::Range(RangeRequest { key: key.into(), range_end: end.into(), ..RangeRequest::default() })
}

fn watch(tried: &Tried, stream: StreamId, key: &'static str) {
    let create = WatchCreateRequest { key: key.into(), watch_id: 7, ..WatchCreateRequest::default() };
    tried.send(stream, StreamSend::Watch(WatchRequest { request: Some(WatchRequestUnion::Create(create)) }));
}

async fn watch_response(tried: &mut Tried) -> WatchResponse {
    match tried.message().await {
        StreamReceived::Watch(message) => message,
        StreamReceived::KeepAlive(message) => panic!("{message:?}"),
    }
}

#[test]
fn unary_calls_get_replies() {
    let etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        let RpcReply::Grant(grant) = tried.call(Rpc::Grant(LeaseGrantRequest { ttl: 60, id: 0x77 })).await.unwrap()
        else {
            panic!("another answer")
        };
        assert_eq!((grant.id, grant.ttl), (0x77, 60));
        let RpcReply::Txn(written) = tried.call(put("a", "1", 0x77)).await.unwrap() else { panic!("another answer") };
        let revision = written.header.unwrap().revision;
        assert!(written.succeeded && revision > 1);
        let RpcReply::Range(read) = tried.call(range("a", "")).await.unwrap() else { panic!("another answer") };
        let kv = read.kvs.first().unwrap();
        assert_eq!((&*kv.value, kv.create_revision, kv.lease), (&b"1"[..], revision, 0x77));
        let revoke = || Rpc::Revoke(LeaseRevokeRequest { id: 0x77 });
        assert!(matches!(tried.call(revoke()).await, Ok(RpcReply::Revoke(_))));
        let Err(status) = tried.call(revoke()).await else { panic!("revoked twice") };
        assert_eq!(status.code, Code::NotFound, "{status:?}");
        assert!(status.message.contains("requested lease not found"), "{status:?}");
    });
    assert_eq!(etcd.keys(), Vec::<String>::new());
}

#[test]
fn concurrent_calls_all_get_replies() {
    let etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        let mut pending: Vec<_> = (0..500).map(|_| tried.begin(range("a", ""))).collect();
        while !pending.is_empty() {
            let MachineInput::Reply(rpc, Ok(RpcReply::Range(_))) = tried.next().await else { panic!("something else") };
            let place = pending.iter().position(|id| *id == rpc).unwrap();
            pending.swap_remove(place);
        }
    });
}

#[test]
fn pings_are_acknowledged_on_idle_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        kit::greet(&mut stream, kit::HELLO).unwrap();
        for pings in [&b"a"[..], b"bcd", b"e"] {
            let frames: Vec<_> = pings.iter().map(|ping| kit::frame(kit::PING, 0, 0, &[*ping; 8])).collect();
            stream.write_all(&frames.concat()).unwrap();
            for ping in pings {
                let answer = loop {
                    let frame = Frame::read(&mut stream).expect("each ping is answered");
                    if frame.kind == kit::PING {
                        break frame;
                    }
                };
                assert_eq!((answer.flags, answer.stream, &*answer.payload), (1, 0, &[*ping; 8][..]));
            }
        }
    });
    smol::block_on(async {
        let mut tried = Tried::up(address).await;
        let end = tried.next().await;
        assert!(matches!(end, MachineInput::Ended(Fault::Closed)), "{end:?}");
    });
    server.join().unwrap();
}

/// The process was stopped after a ping, and its reply lies in the socket.
#[test]
fn reply_to_ping_in_socket_after_pause_keeps_connection() {
    // P6, E13
    let (replied, replies) = std::sync::mpsc::channel();
    let address = kit::listen(move |mut stream| {
        kit::greet(&mut stream, kit::HELLO)?;
        loop {
            let frame = Frame::read(&mut stream)?;
            if frame.kind == kit::PING && frame.flags == 0 {
                stream.write_all(&kit::frame(kit::PING, 1, 0, &frame.payload))?;
                replied.send(()).map_err(io::Error::other)?;
            }
        }
    });
    smol::block_on(async {
        let host = Smol::new();
        let mut tried = Tried::with(&host, address);
        tried.connected().await;
        tried.open(StreamKind::Watch);
        while replies.recv_timeout(Duration::from_millis(5)).is_err() {
            assert_eq!(tried.poll_once().await.len(), 0);
            host.skip(100);
        }
        host.skip(60_000);
        let inputs = tried.poll_once().await;
        assert!(inputs.is_empty(), "{inputs:?}");
    });
}

#[test]
fn keep_alive_stream_renews_lease() {
    let etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        tried.call(Rpc::Grant(LeaseGrantRequest { ttl: 30, id: 5 })).await.unwrap();
        let stream = tried.open(StreamKind::KeepAlive);
        for (id, ttl) in [(5, 30), (6, 0), (5, 30)] {
            tried.send(stream, StreamSend::KeepAlive(LeaseKeepAliveRequest { id }));
            let StreamReceived::KeepAlive(answer) = tried.message().await else { panic!("of another stream") };
            assert_eq!((answer.id, answer.ttl), (id, ttl));
        }
        // The connection survives.
        tried.close(stream);
        assert!(tried.call(range("a", "")).await.is_ok());
    });
}

#[test]
fn watch_reports_puts_and_deletes() {
    let etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        let stream = tried.open(StreamKind::Watch);
        watch(&tried, stream, "a");
        let opened = watch_response(&mut tried).await;
        assert!(opened.created && opened.watch_id == 7 && opened.header.unwrap().revision > 0);
        // Longer than a window.
        let long = vec![b'x'; 1_000_000];
        etcd.put("a", "1");
        let written = watch_response(&mut tried).await;
        assert_eq!(written.events.len(), 1);
        assert_eq!(&*written.events[0].kv.as_ref().unwrap().value, b"1");
        let id = tried.begin(put("a", long.clone(), 0));
        let mut seen = (false, false);
        while seen != (true, true) {
            match tried.next().await {
                MachineInput::Reply(rpc, Ok(_)) if rpc == id => seen.0 = true,
                MachineInput::Message(_, StreamReceived::Watch(message)) => {
                    assert_eq!(message.events[0].kv.as_ref().unwrap().value.len(), long.len());
                    seen.1 = true;
                }
                other => panic!("{other:?}"),
            }
        }
        etcd.delete("a");
        assert_eq!(watch_response(&mut tried).await.events[0].kind, DELETED);
    });
}

#[test]
fn message_over_limit_is_rejected() {
    let etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        for key in ["a", "b", "c"] {
            tried.call(put(key, vec![b'x'; 1_500_000], 0)).await.unwrap();
        }
        let Err(status) = tried.call(range("a", "z")).await else { panic!("4.5 MB were read") };
        // The request may have been executed, so this must not look like a refusal by the server.
        assert_eq!(status.code, Code::Internal, "{status:?}");
        assert!(tried.call(range("a", "")).await.is_ok());
    });
}

#[test]
fn call_is_authorized_by_token() {
    let etcd = Etcd::builder().user("worker", "secret", Some("jobs/")).start();
    let login =
        |password: &str| Rpc::Authenticate(AuthenticateRequest { name: "worker".into(), password: password.into() });
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        let Err(status) = tried.call(login("wrong")).await else { panic!("let in") };
        assert_eq!(status.code, Code::InvalidArgument, "{status:?}");
        assert!(status.message.contains("authentication failed"), "{status:?}");
        let Err(status) = tried.call(put("jobs/1", "", 0)).await else { panic!("not asked") };
        assert_eq!(status.code, Code::InvalidArgument, "{status:?}");
        let RpcReply::Authenticate(answer) = tried.call(login("secret")).await.unwrap() else {
            panic!("another answer")
        };
        let token = Secret::new(&answer.token);
        assert!(tried.call_with(put("jobs/1", "", 0), Some(token.clone())).await.is_ok());
        let refused = tried.call_with(put("other", "", 0), Some(token)).await;
        assert_eq!(refused.unwrap_err().code, Code::PermissionDenied);
        let invalid = tried.call_with(put("jobs/1", "", 0), Some(Secret::new("no.such"))).await;
        assert_eq!(invalid.unwrap_err().code, Code::Unauthenticated);
        let unsendable = tried.call_with(put("jobs/1", "", 0), Some(Secret::new("a\nb"))).await;
        assert_eq!(unsendable.unwrap_err().code, Code::Internal);
    });
}

#[test]
fn nothing_is_reported_after_killed_server_ends_connection() {
    let mut etcd = Etcd::start();
    smol::block_on(async {
        let mut tried = Tried::up(etcd.address()).await;
        let stream = tried.open(StreamKind::Watch);
        watch(&tried, stream, "a");
        watch_response(&mut tried).await;
        etcd.pause();
        let call = tried.begin(range("a", ""));
        assert!(tried.within(Duration::from_millis(100)).await.is_none(), "a stopped server answers");
        etcd.kill();
        // Replies to calls and stream ends come before the end of the connection or not at all. The
        // machine answers the rest itself.
        let fault = loop {
            match tried.next().await {
                MachineInput::Reply(id, Err(Status { code: Code::Unavailable, .. })) if id == call => {}
                MachineInput::StreamEnded(id, Status { code: Code::Unavailable, .. }) if id == stream => {}
                MachineInput::Ended(fault) => break fault,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(fault, Fault::Closed | Fault::Reset), "{fault:?}");
        assert!(tried.within(Duration::from_millis(20)).await.is_none(), "something after the end");
        assert_eq!(Tried::to(etcd.address()).ended().await, Fault::Refused);
    });
}

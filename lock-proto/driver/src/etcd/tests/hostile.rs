//! Servers that do not speak gRPC, or speak it badly, cause a clear error and never a hang or a
//! panic.

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Waker};
use core::time::Duration;

use super::kit::*;
use super::*;
use crate::backend::with_identity;
use crate::{Settings, StoreSettings};
use lock_proto::Breach;
use lock_proto::ClientId;
use lock_proto::etcd::Config;

/// The status of a call that the server answers with `answer`.
fn outcome(answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Status {
    let address = server(HELLO, answer);
    smol::block_on(async {
        let mut tried = Tried::up(address).await;
        let first = tried.call(range("a", "")).await.unwrap_err();
        // The connection survives, and so do later calls.
        assert_eq!(tried.call(range("a", "")).await.unwrap_err().code, first.code);
        first
    })
}

fn fault(address: SocketAddr) -> Fault {
    smol::block_on(async { Tried::to(address).ended().await })
}

#[test]
fn peer_without_http2_is_protocol_fault() {
    let none = |_| Vec::new();
    for (greeting, breach) in [
        (&b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], Breach::Http1),
        (&[0x15, 3, 1, 0, 2, 2, 70], Breach::Tls),
        (b"-ERR unknown command 'PRI'\r\n", Breach::Resp),
        (&[0xff; 100], Breach::Malformed),
    ] {
        assert_eq!(fault(server(greeting, none)), Fault::Protocol(breach));
    }
    // A valid beginning. Whether the machine learns of the connection depends on how the bytes
    // arrive.
    static GARBAGE: [u8; 40] = {
        let mut bytes = [0xff; 40];
        let (mut at, hello) = (0, HELLO);
        while at < hello.len() {
            bytes[at] = hello[at];
            at += 1;
        }
        bytes
    };
    smol::block_on(async {
        let mut tried = Tried::to(server(&GARBAGE, none));
        let mut input = tried.next().await;
        if matches!(input, MachineInput::Connected) {
            input = tried.next().await;
        }
        assert!(matches!(input, MachineInput::Ended(Fault::Protocol(Breach::Http2))), "{input:?}");
    });
}

#[test]
fn silent_server_yields_no_fact() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    smol::block_on(async {
        let mut tried = Tried::to(listener.local_addr().unwrap());
        let input = tried.within(Duration::from_millis(200)).await;
        // The machine's `connect_timeout` ends it.
        assert!(input.is_none(), "{input:?}");
    });
}

#[test]
fn silent_server_times_out_only_while_stream_is_open() {
    let address = server(HELLO, |_| Vec::new());
    smol::block_on(async {
        // A minute passes in half a second.
        let mut tried = Tried::with(&Smol::faster(120), address);
        tried.connected().await;
        let idle = tried.within(Duration::from_millis(300)).await;
        assert!(idle.is_none(), "etcd takes pings without a stream for an attack: {idle:?}");
        tried.open(StreamKind::Watch);
        let fault = loop {
            match tried.next().await {
                MachineInput::StreamEnded(_, status) => assert_eq!(status.code, Code::Unavailable, "{status:?}"),
                MachineInput::Ended(fault) => break fault,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(fault, Fault::TimedOut);
    });
}

#[test]
fn reset_stream_is_unavailable() {
    // NO_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY: none of them proves
    // that etcd did not execute the request.
    for reason in [0, 7, 8, 11, 12] {
        let status = outcome(move |id| frame(RST_STREAM, 0, id, &[0, 0, 0, reason]));
        assert_eq!(status.code, Code::Unavailable, "{reason}: {status:?}");
    }
    let address = server(HELLO, |id| frame(RST_STREAM, 0, id, &[0, 0, 0, 8]));
    smol::block_on(async {
        let mut tried = Tried::up(address).await;
        tried.open(StreamKind::Watch);
        assert_eq!(tried.stream_ended().await.code, Code::Unavailable);
    });
}

#[test]
fn goaway_reports_call_status_then_closes() {
    let address = server(HELLO, |id| {
        let last = id.to_be_bytes();
        let mut bytes = frame(GOAWAY, 0, 0, &[last[0], last[1], last[2], last[3], 0, 0, 0, 0]);
        bytes.extend(grpc(id));
        bytes.extend(headers(id, END_STREAM, &[("grpc-status", "14"), ("grpc-message", "shutting down")]));
        bytes
    });
    smol::block_on(async {
        let mut tried = Tried::up(address).await;
        let status = tried.call(range("a", "")).await.unwrap_err();
        assert_eq!(status, Status::new(Code::Unavailable, "shutting down"));
        assert_eq!(tried.ended().await, Fault::Closed);
    });
}

#[test]
fn reply_of_another_server_is_unavailable() {
    // E9. Another endpoint may be etcd.
    for http in ["200", "307", "400", "401", "403", "404", "429", "500", "502", "503", "504"] {
        for kind in ["application/grpc", "text/html"] {
            if (http, kind) == ("200", "application/grpc") {
                continue;
            }
            let status = outcome(move |id| headers(id, END_STREAM, &[(":status", http), ("content-type", kind)]));
            assert_eq!(status.code, Code::Unavailable, "{http} {kind}: {status:?}");
            assert!(status.message.contains(http) && status.message.contains(kind), "{status:?}");
        }
    }
}

#[test]
fn status_is_read_from_headers_and_trailers() {
    let fields = [
        ("grpc-status", "7"),
        ("grpc-message", "etcdserver: permission%20denied %e2%80%94 no"),
        // Not base64.
        ("grpc-status-details-bin", "!!!"),
    ];
    let expected = Status::new(Code::PermissionDenied, "etcdserver: permission denied — no");
    let alone = outcome(move |id| {
        let start = [(":status", "200"), ("content-type", "application/grpc")];
        headers(id, END_STREAM, &[&start[..], &fields[..]].concat())
    });
    assert_eq!(alone, expected);
    let trailing = outcome(move |id| [grpc(id), headers(id, END_STREAM, &fields)].concat());
    assert_eq!(trailing, expected);
    // Invalid codes.
    for number in ["99", "-1", "x", ""] {
        let status = outcome(move |id| [grpc(id), headers(id, END_STREAM, &[("grpc-status", number)])].concat());
        assert_eq!(status.code, Code::Unknown, "{number}: {status:?}");
    }
}

#[test]
fn invalid_unary_message_fails_call() {
    let ok = |id| headers(id, END_STREAM, &[("grpc-status", "0")]);
    // No message.
    assert_eq!(outcome(move |id| [grpc(id), ok(id)].concat()).code, Code::Internal);
    // Compressed without being requested; a length of 4 GB; not protobuf.
    for (compressed, length, bytes) in
        [(1, 2, &[8, 1][..]), (9, 2, &[8, 1]), (0, u32::MAX, &[0]), (0, 2, &[0xff, 0xff])]
    {
        let status = outcome(move |id| [grpc(id), message(id, 0, compressed, length, bytes), ok(id)].concat());
        assert_eq!(status.code, Code::Internal, "{compressed} {length} {bytes:?}: {status:?}");
    }
    // Ends in the middle, or without a status.
    let status = outcome(move |id| [grpc(id), message(id, END_STREAM, 0, 100, &[0; 10])].concat());
    assert!(matches!(status.code, Code::Internal | Code::Unavailable), "{status:?}");
    let status = outcome(move |id| [grpc(id), message(id, END_STREAM, 0, 0, &[])].concat());
    assert_eq!(status.code, Code::Unavailable, "{status:?}");
}

#[test]
fn invalid_stream_message_ends_stream() {
    let address = server(HELLO, |id| [grpc(id), message(id, 0, 0, 2, &[0xff, 0xff])].concat());
    smol::block_on(async {
        let mut tried = Tried::up(address).await;
        for kind in [StreamKind::Watch, StreamKind::KeepAlive] {
            tried.open(kind);
            assert_eq!(tried.stream_ended().await.code, Code::Internal);
        }
        // An empty message is one with every field at its default.
        let address = server(HELLO, |id| [grpc(id), message(id, 0, 0, 0, &[])].concat());
        let mut tried = Tried::up(address).await;
        tried.open(StreamKind::Watch);
        assert_eq!(watch_response(&mut tried).await, WatchResponse::default());
    });
}

#[test]
fn oversized_headers_fail_call() {
    let status = outcome(|id| {
        let field = ("x-long", core::str::from_utf8(&[b'x'; 126]).unwrap());
        headers(id, END_STREAM, &alloc::vec![field; 120])
    });
    assert!(matches!(status.code, Code::Unavailable | Code::Internal), "{status:?}");
}

/// A message of many empty elements takes fifty times its size when decoded: 4 MiB became some 200
/// MB. It is rejected before decoding.
#[test]
fn message_with_too_many_elements_is_rejected_before_decoding() {
    // E12
    // As much as fits into the window before anything is read.
    const BYTES: u32 = 200_000;
    let answers = |element: [u8; 2]| {
        server(HELLO, move |id| {
            let elements = element.repeat(BYTES as usize / 2);
            let message = [&[0][..], &BYTES.to_be_bytes(), &elements].concat();
            let frames = message.chunks(16 << 10).flat_map(|part| frame(DATA, 0, id, part));
            let end = headers(id, END_STREAM, &[("grpc-status", "0")]);
            grpc(id).into_iter().chain(frames).chain(end).collect()
        })
    };
    let txn = Rpc::Txn(TxnRequest { success: vec![RequestOp::default(); 4], ..TxnRequest::default() });
    for (request, element) in [(Some(range("a", "")), [0x12, 0]), (Some(txn), [0x1a, 0]), (None, [0x5a, 0])] {
        let address = answers(element);
        let used = allocation_counter::measure(|| {
            smol::block_on(async {
                let mut tried = Tried::up(address).await;
                let status = match request {
                    Some(call) => tried.call(call).await.err(),
                    None => {
                        tried.open(StreamKind::Watch);
                        match tried.next().await {
                            MachineInput::StreamEnded(_, status) => Some(status),
                            _ => None,
                        }
                    }
                };
                let status = status.expect("it is not decoded");
                assert_eq!(status.code, Code::Internal, "{status:?}");
                assert!(status.message.contains("more elements than requested"), "{status:?}");
            });
        });
        assert!(used.bytes_max < 5 * u64::from(BYTES), "{} bytes for a message of {BYTES}", used.bytes_max);
    }
}

/// A request for credentials of a connection that has ended was kept for ever.
#[test]
fn requests_for_credentials_end_with_their_connections() {
    let (served, connections) = std::sync::mpsc::channel();
    let address = listen(move |mut stream| {
        greet(&mut stream, HELLO)?;
        drop(stream);
        served.send(()).map_err(io::Error::other)
    });
    let open = Arc::new(());
    let source = Arc::clone(&open);
    let url = alloc::format!("etcd://{address}?user=app");
    let store = StoreSettings::Etcd(Config::parse(&url).unwrap());
    let settings = Settings::from(store).credentials(move |_| {
        let open = Arc::clone(&source);
        async move {
            core::future::pending::<()>().await;
            drop(open);
            Err("never".into())
        }
    });
    let (client, driver) = with_identity(Smol::faster(120), settings, ClientId::from_bits(1), 7).unwrap();
    let driver = thread::spawn(|| smol::block_on(driver));
    let mut waiting = client.lock("a").acquire();
    let _ = Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
    for _ in 0..20 {
        connections.recv_timeout(TIMEOUT).unwrap();
        // This one, the source's, and one for the connection.
        assert!(Arc::strong_count(&open) <= 3);
    }
    drop((waiting, client));
    driver.join().unwrap();
}

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;

use super::*;
use crate::fault::Breach;
use crate::jitter::mix;

const GOLDEN: &str = include_str!("tests/golden.txt");
const NODE: &str = "/locks/_c_u-lock-0000000000";
const SESSION: i64 = 0x0100_000a_329e_0000;
const PASSWORD: &[u8] = b"\0\x65\x8f\x19\x8d\x32\x61\x9f\xde\xff\xc9\xb7\x1e\xae\x2d\xb7";

fn hex(digits: &str) -> Vec<u8> {
    let byte = |place: usize| u8::from_str_radix(&digits[place..place + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The request and the reply of this name, as a real server exchanged them.
fn golden(name: &str) -> (Vec<u8>, Vec<u8>) {
    let mut fields = GOLDEN.lines().find(|line| line.split(' ').next() == Some(name)).unwrap().split(' ').skip(1);
    (hex(fields.next().unwrap()), hex(fields.next().unwrap()))
}

fn content(frame: &[u8]) -> &[u8] {
    let mut rest = frame;
    let mut frames = Frames::default();
    let content = frames.next(&mut rest, MAX_FRAME).unwrap().unwrap().len();
    assert!(rest.is_empty());
    &frame[frame.len() - content..]
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn decode(code: OpCode, frame: &[u8]) -> Result<ReplyFrame, Breach> {
    let (header, rest) = ReplyHeader::decode(content(frame))?;
    let body = match header {
        ReplyHeader { xid: XID_EVENT, .. } => ReplyBody::Event(ReplyBody::decode_event(rest)?),
        ReplyHeader { code: ErrorCode::OK, .. } => ReplyBody::decode(code, rest)?,
        ReplyHeader { .. } => ReplyBody::Empty,
    };
    Ok(ReplyFrame { header, body })
}

/// Both directions of an exchange must be byte for byte those of the real server.
fn exchange(name: &str, xid: i32, op: Op) -> ReplyFrame {
    let (request, reply) = golden(name);
    let own = RequestFrame { xid: op.fixed_xid().unwrap_or(xid), op };
    assert_eq!(encoded(|out| own.encode(out)), request, "{name}");
    assert_eq!(RequestFrame::decode(content(&request)), Ok(own.clone()), "{name}");
    let decoded = decode(own.op.code(), &reply).unwrap();
    assert_eq!(encoded(|out| decoded.encode(out)), reply, "{name}");
    decoded
}

fn body(name: &str, xid: i32, op: Op) -> ReplyBody {
    let reply = exchange(name, xid, op);
    assert_eq!(reply.header.code, ErrorCode::OK, "{name}");
    reply.body
}

fn create(path: &str, data: &'static [u8], acl: Vec<Acl>, mode: CreateMode) -> MultiOp {
    MultiOp::Create { path: path.into(), data: Bytes::from_static(data), acl, mode }
}

fn check(path: &str, version: i32) -> MultiOp {
    MultiOp::Check { path: path.into(), version }
}

#[test]
fn sessions_are_those_of_real_server() {
    let new = ConnectRequest {
        last_zxid_seen: 0,
        timeout_ms: 6_000,
        session_id: 0,
        password: vec![0; 16].into(),
        read_only: false,
    };
    let granted = ConnectResponse {
        timeout_ms: 6_000,
        session_id: SESSION,
        password: Bytes::from_static(PASSWORD),
        read_only: false,
    };
    let again = ConnectRequest { session_id: SESSION, password: Bytes::from_static(PASSWORD), ..new };
    let expired = ConnectResponse { timeout_ms: 0, session_id: 0, password: vec![0; 16].into(), ..granted };
    for (name, request, response) in
        [("connect", &new, &granted), ("reconnect", &again, &granted), ("expired", &again, &expired)]
    {
        let frames = golden(name);
        assert_eq!(encoded(|out| request.encode(out)), frames.0, "{name}");
        assert_eq!(ConnectRequest::decode(content(&frames.0)).as_ref(), Ok(request), "{name}");
        let read = ConnectResponse::decode(content(&frames.1)).unwrap();
        assert_eq!(read, *response, "{name}");
        assert_eq!(encoded(|out| read.encode(out)), frames.1, "{name}");
    }
    // Clients and servers before 3.4 do not send whether they only read.
    let (request, response) = golden("connect");
    let old = |frame: &[u8]| frame[4..frame.len() - 1].to_vec();
    assert_eq!(ConnectRequest::decode(&old(&request)), Ok(new));
    assert_eq!(ConnectResponse::decode(&old(&response)), Ok(granted));
}

#[test]
fn operations_are_those_of_real_server() {
    let path: Box<str> = NODE.into();
    let container = Op::Write(create("/locks", b"", Acl::open(), CreateMode::Container));
    let ReplyBody::Created { path: created, stat } = body("container", 1, container) else { panic!() };
    assert_eq!((&*created, stat.czxid, stat.ephemeral_owner), ("/locks", 2, 0));
    let own = Op::Write(create("/locks/_c_u-lock-", b"me", Acl::open(), CreateMode::EphemeralSequential));
    let ReplyBody::Created { path: created, stat } = body("create", 2, own) else { panic!() };
    assert_eq!((&*created, stat.czxid, stat.ephemeral_owner), (NODE, 3, SESSION));
    let orphan = Op::Write(create("/none/x", b"", Acl::open(), CreateMode::EphemeralSequential));
    let refused = exchange("no-parent", 3, orphan);
    assert_eq!(refused, ReplyFrame::error(3, 4, ErrorCode::NO_NODE));
    let children = body("children", 4, Op::GetChildren { path: "/locks".into(), watch: false });
    assert_eq!(children, ReplyBody::Children(["_c_u-lock-0000000000"].into_iter().collect()));
    let data = body("data", 5, Op::GetData { path: path.clone(), watch: true });
    assert!(matches!(&data, ReplyBody::Data { data, stat } if *data == "me" && stat.czxid == 3));
    let state = body("exists", 7, Op::Exists { path: "/locks".into(), watch: false });
    assert!(matches!(state, ReplyBody::Stat(Stat { num_children: 1, pzxid: 3, .. })));
    let synced = body("sync", 8, Op::Sync { path: "/locks".into() });
    assert_eq!(synced, ReplyBody::Synced { path: "/locks".into() });
    assert_eq!(body("ping", 0, Op::Ping), ReplyBody::Empty);
    let data = Bytes::from_static(b"x");
    let set = body("set", 9, Op::Write(MultiOp::SetData { path: path.clone(), data, version: 0 }));
    assert!(matches!(set, ReplyBody::Stat(Stat { version: 1, .. })));
    assert_eq!(
        body("remove-watches", 14, Op::RemoveWatches { path: path.clone(), kind: WatchKind::Data }),
        ReplyBody::Empty
    );
    let delete = Op::Write(MultiOp::Delete { path, version: ANY_VERSION });
    assert_eq!(exchange("delete", 16, delete), ReplyFrame::ok(16, 10, ReplyBody::Empty));
    let auth = Bytes::from_static(b"app:sesame");
    assert_eq!(body("auth", 0, Op::Auth { scheme: "digest".into(), auth }), ReplyBody::Empty);
    let protected = Op::Write(create("/mine", b"", Acl::creator(), CreateMode::Persistent));
    assert!(matches!(body("create-acl", 17, protected), ReplyBody::Created { .. }));
    assert_eq!(body("close", 22, Op::CloseSession), ReplyBody::Empty);
}

#[test]
fn transactions_are_those_of_real_server() {
    let one = body("check", 10, Op::Multi(vec![check(NODE, ANY_VERSION)]));
    assert_eq!(one, ReplyBody::Multi(vec![MultiResult::Checked]));
    let ops = vec![
        check("/locks", 0),
        create("/a", b"", Acl::open(), CreateMode::Ephemeral),
        MultiOp::SetData { path: "/a".into(), data: Bytes::from_static(b"q"), version: ANY_VERSION },
        MultiOp::Delete { path: "/a".into(), version: ANY_VERSION },
        create("/c", b"", Acl::open(), CreateMode::Container),
    ];
    let ReplyBody::Multi(results) = body("transaction", 11, Op::Multi(ops)) else { panic!() };
    assert!(matches!(
        &results[..],
        [
            MultiResult::Checked,
            MultiResult::Created { stat: None, .. },
            MultiResult::Set(Stat { version: 1, .. }),
            MultiResult::Deleted,
            MultiResult::Created { stat: Some(_), .. },
        ]
    ));
    let delete = MultiOp::Delete { path: "/locks".into(), version: ANY_VERSION };
    let ops = vec![check("/locks", ANY_VERSION), check("/nope", ANY_VERSION), delete];
    let errors = [ErrorCode::OK, ErrorCode::NO_NODE, ErrorCode::RUNTIME_INCONSISTENCY].map(MultiResult::Error);
    assert_eq!(body("failed-transaction", 12, Op::Multi(ops)), ReplyBody::Multi(errors.to_vec()));
}

#[test]
fn events_are_those_of_real_server() {
    for (name, kind) in [("changed-event", EventType::DataChanged), ("deleted-event", EventType::Deleted)] {
        let frame = golden(name).1;
        let event = WatcherEvent { kind, state: KeeperState::SyncConnected, path: NODE.into() };
        let reply = ReplyFrame::event(event);
        assert_eq!(decode(OpCode::Ping, &frame), Ok(reply.clone()));
        assert_eq!(encoded(|out| reply.encode(out)), frame);
    }
}

#[test]
fn frames_are_whole_however_bytes_arrive() {
    let all: Vec<u8> = GOLDEN.lines().skip(1).flat_map(|line| hex(line.split(' ').next_back().unwrap())).collect();
    let whole: Vec<Vec<u8>> = GOLDEN.lines().skip(1).map(|line| hex(line.split(' ').next_back().unwrap())).collect();
    for seed in 0..50 {
        let (mut frames, mut rest, mut found) = (Frames::default(), &all[..], Vec::new());
        while !rest.is_empty() {
            let length = 1 + mix(seed, rest.len() as u64) as usize % [1, 7, 200, all.len()][seed as usize % 4];
            let (mut portion, later) = rest.split_at(length.min(rest.len()));
            rest = later;
            while let Some(frame) = frames.next(&mut portion, MAX_FRAME).unwrap() {
                found.push(frame.to_vec());
            }
        }
        assert!(found.iter().eq(whole.iter().map(|frame| &frame[4..])), "seed {seed}");
    }
}

#[test]
fn long_negative_and_foreign_frames_are_refused() {
    let next = |bytes: &[u8]| Frames::default().next(&mut &*bytes, 100).map(|frame| frame.map(<[u8]>::len));
    assert_eq!(next(&[0, 0, 0, 100]), Ok(None));
    assert_eq!(next(&[0, 0, 0, 101]), Err(Breach::TooLong));
    assert_eq!(next(&[0xff, 0xff, 0xff, 0xff]), Err(Breach::Malformed));
    assert_eq!(next(b"HTTP/1.1 400"), Err(Breach::Http1));
    assert_eq!(next(b"-ERR unknown"), Err(Breach::Resp));
    assert_eq!(next(&[0x15, 0x03, 0x03, 0, 2]), Err(Breach::Tls));
    assert_eq!(next(&[0, 0, 0, 0]), Ok(Some(0)));
}

#[test]
fn announced_lengths_allocate_nothing() {
    // P3, ZK9
    let huge = [i32::MAX.to_be_bytes(), [0; 4]].concat();
    assert_eq!(ReplyBody::decode(OpCode::GetChildren, &huge), Err(Breach::Malformed));
    assert_eq!(ReplyBody::decode(OpCode::GetData, &huge), Err(Breach::Malformed));
    let two = [2_i32.to_be_bytes(), (-1_i32).to_be_bytes()].concat();
    assert_eq!(ReplyBody::decode(OpCode::GetChildren, &two), Err(Breach::Malformed));
    let null = (-1_i32).to_be_bytes();
    assert_eq!(ReplyBody::decode(OpCode::GetChildren, &null), Ok(ReplyBody::Children(Names::default())));
}

#[test]
fn damaged_frames_are_refused_or_read_but_never_panic() {
    for (number, line) in GOLDEN.lines().skip(1).enumerate() {
        for frame in line.split(' ').skip(1).map(hex) {
            for place in 4..frame.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = frame[4..].to_vec();
                    damaged[place - 4] = value;
                    damaged.truncate(frame.len() - 4 - number % 3);
                    let _ = (ConnectRequest::decode(&damaged), ConnectResponse::decode(&damaged));
                    if let Ok(request) = RequestFrame::decode(&damaged) {
                        let again = encoded(|out| request.encode(out));
                        assert_eq!(RequestFrame::decode(content(&again)), Ok(request));
                    }
                    let Ok((header, rest)) = ReplyHeader::decode(&damaged) else { continue };
                    for code in [OpCode::Create, OpCode::GetData, OpCode::GetChildren, OpCode::Multi, OpCode::Sync] {
                        let Ok(body) = ReplyBody::decode(code, rest) else { continue };
                        let reply = ReplyFrame { header, body };
                        let again = encoded(|out| reply.encode(out));
                        let body = ReplyBody::decode(code, ReplyHeader::decode(content(&again)).unwrap().1);
                        assert_eq!(body, Ok(reply.body));
                    }
                }
            }
        }
    }
}

#[test]
fn codes_are_shown_with_name_and_number() {
    assert_eq!(ErrorCode::NO_AUTH.to_string(), "permission denied by the node's ACL (NO_AUTH, -102)");
    assert_eq!(format!("{}", ErrorCode(-999)), "an unknown error (-999)");
    assert_eq!(ErrorCode(-118).name(), Some("SESSION_MOVED"));
}

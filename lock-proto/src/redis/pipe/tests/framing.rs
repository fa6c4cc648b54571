//! Framing of bytes in any portions, and its cost in memory and time.

use super::*;
use crate::redis::pipe::frame::{Decoded, Scan, Scanner};

fn scan(bytes: &[u8], protocol: Protocol, step: usize) -> Result<Scan, Breach> {
    let mut scanner = Scanner::default();
    let limits = Limits::default();
    let mut end = 0;
    while end < bytes.len() {
        end = bytes.len().min(end + step);
        match scanner.scan(&bytes[..end], protocol, &limits)? {
            complete @ Scan::Complete(_) => return Ok(complete),
            Scan::Missing(missing) => assert!(missing > 0),
        }
    }
    Ok(Scan::Missing(1))
}

const COMPLETE: &[(&[u8], bool)] = &[
    (b"+OK\r\n", false),
    (b"+\r\n", false),
    (b"+a\rb\r\n", false),
    (b"-ERR x\r\n", false),
    (b":0\r\n", false),
    (b":-9223372036854775808\r\n", false),
    (b":+5\r\n", false),
    (b"$0\r\n\r\n", false),
    (b"$5\r\na\r\nb\n\r\n", false),
    (b"*0\r\n", false),
    (b"*2\r\n:1\r\n$1\r\nx\r\n", false),
    (b"*2\r\n*1\r\n:1\r\n*0\r\n", false),
    (b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", false),
    (b"_\r\n", true),
    (b"#t\r\n", true),
    (b",1.5\r\n", true),
    (b",inf\r\n", true),
    (b"(123456789012345678901234567890\r\n", true),
    (b"!5\r\nERR x\r\n", true),
    (b"=5\r\ntxt:x\r\n", true),
    (b"%1\r\n+a\r\n*1\r\n:1\r\n", true),
    (b"~2\r\n+a\r\n+b\r\n", true),
    (b">2\r\n+invalidate\r\n*1\r\n+k\r\n", true),
    (b"|1\r\n+ttl\r\n:1\r\n:5\r\n", true),
    (b"*1\r\n|1\r\n+ttl\r\n:1\r\n:5\r\n", true),
];

#[test]
fn frame_end_is_found_however_input_is_split() {
    for (bytes, only_resp3) in COMPLETE {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            for step in [1, 2, 3, 1000] {
                let mut longer = bytes.to_vec();
                if step == 1000 {
                    longer.extend(b"+next\r\n");
                }
                let expected = if *only_resp3 && protocol == Protocol::Resp2 {
                    Err(Breach::Malformed)
                } else {
                    Ok(Scan::Complete(bytes.len()))
                };
                let shown = bytes.escape_ascii();
                assert_eq!(scan(&longer, protocol, step), expected, "{shown} {protocol:?} in portions of {step}");
                if expected.is_ok() {
                    assert!(Decoded::decode(bytes, protocol).is_ok(), "{shown} {protocol:?} is decoded");
                }
            }
        }
    }
}

#[test]
fn resp2_nulls_are_malformed_in_resp3() {
    for bytes in [&b"$-1\r\n"[..], b"*-1\r\n", b"*1\r\n$-1\r\n"] {
        assert_eq!(scan(bytes, Protocol::Resp2, 1), Ok(Scan::Complete(bytes.len())));
        assert_eq!(scan(bytes, Protocol::Resp3, 1), Err(Breach::Malformed));
    }
}

#[test]
fn invalid_frame_is_refused_as_early_as_possible() {
    // P3
    use Breach::{Malformed, TooDeep, TooLong};
    let long_line = [b"+".to_vec(), vec![b'x'; 70_000]].concat();
    let many = [b"*2000\r\n".to_vec(), b"*2000\r\n".repeat(2), b"*97\r\n".to_vec()].concat();
    let cases: &[(&[u8], Breach)] = &[
        (b"x", Malformed),
        (b"\r", Malformed),
        (b"HELLO", Malformed),
        (b"+a\n", Malformed),
        (b":\r\n", Malformed),
        (b":1x\r\n", Malformed),
        (b":9223372036854775808\r\n", Malformed),
        (b":00000000000000000000000000000000000", Malformed),
        (b"$\r\n", Malformed),
        (b"$+1\r\n", Malformed),
        (b"$-2\r\n", Malformed),
        (b"$1\r\nxyz", Malformed),
        (b"$?\r\n", Malformed),
        (b"$65530\r\n", TooLong),
        (b"$4611686018427387904\r\n", TooLong),
        (b"$9223372036854775807\r\n", TooLong),
        (b"$18446744073709551616\r\n", Malformed),
        (b"*4097\r\n", TooLong),
        (b"*9223372036854775807\r\n", TooLong),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", TooDeep),
        (&long_line, TooLong),
        (&many, TooLong),
    ];
    for (bytes, breach) in cases {
        let shown = bytes[..bytes.len().min(40)].escape_ascii();
        assert_eq!(scan(bytes, Protocol::Resp2, 1000), Err(*breach), "{shown}");
        assert_eq!(scan(bytes, Protocol::Resp2, 1), Err(*breach), "{shown} byte by byte");
        assert_eq!(scan(bytes, Protocol::Resp3, 1000), Err(*breach), "{shown} RESP3");
    }
    for (bytes, breach) in [
        (&b"_x\r\n"[..], Malformed),
        (b"=3\r\ntxt\r\n", Malformed),
        (b"%9223372036854775807\r\n", TooLong),
        (b"|4611686018427387904\r\n", TooLong),
        (b"*1\r\n>1\r\n:1\r\n", Malformed),
        (b"*?\r\n", Malformed),
        (b";4\r\n", Malformed),
        (b".\r\n", Malformed),
    ] {
        assert_eq!(scan(bytes, Protocol::Resp3, 1), Err(breach), "{}", bytes.escape_ascii());
    }
}

/// A number may have about thirty digits with leading zeros, within the frame limit.
#[test]
fn overlong_number_is_malformed_or_exceeds_frame_limit() {
    // P3
    let limits = Limits { frame: 60, ..Limits::default() };
    for before in 20..60 {
        // `before` bytes of a frame, and digits without an end.
        let text = "x".repeat(before - 9);
        let frame = format!("*2\r\n+{text}\r\n:{}", "1".repeat(60));
        let left = 60 - (before - 2);
        let refused = (1..frame.len()).find_map(|end| {
            let scan = Scanner::default().scan(&frame.as_bytes()[..end], Protocol::Resp2, &limits);
            scan.err().map(|breach| (end, breach))
        });
        let expected = if left > 32 { (before - 2 + 32, Breach::Malformed) } else { (60, Breach::TooLong) };
        assert_eq!(refused, Some(expected), "{before}");
    }
}

#[test]
fn replies_are_parsed_however_input_is_split() {
    let text = b":1\r\n-OOM command not allowed\r\n+OK\r\n$-1\r\n*2\r\n:0\r\n:250\r\n$2\r\nOK\r\n";
    let mut whole: Option<Vec<PipeOutput>> = None;
    for step in [text.len(), 1, 2, 3, 7, 13] {
        let (mut rig, conn) = PipeRig::up();
        for request in [extend("a"), extend("b"), take("c"), take("d")] {
            rig.send(request);
        }
        let retired = Retired::default();
        let (key, ttl_ms) = (key("e"), 1000);
        rig.send(Request::Take { key, number: 1, retired, ttl_ms, fence_block: 0, clean: false, waiting_ms: 0 });
        rig.send(take("f"));
        rig.written(conn);
        for part in text.chunks(step) {
            rig.receive(conn, part);
        }
        let outputs = rig.outputs();
        assert_eq!(outputs.len(), 6, "{outputs:?}");
        assert_eq!(whole.get_or_insert_with(|| outputs.clone()), &outputs, "in portions of {step}");
    }
}

#[test]
fn frame_received_byte_by_byte_is_scanned_in_linear_time() {
    // Rescanning from the start each time would take 2 * 10^9 steps for a reply of 60 000 bytes.
    assert_linear(60_000, |length| {
        let mut rig = PipeRig::with("redis://h", Role::Commands, true);
        let conn = rig.opened();
        rig.written(conn);
        let line = [b"-ERR ".to_vec(), vec![b'x'; length], b"\r\n".to_vec()].concat();
        for byte in line.chunks(1) {
            rig.receive(conn, byte);
        }
        assert!(rig.pipe.is_up());
    });
}

#[test]
fn request_larger_than_buffer_is_sent_whole() {
    let mut rig = PipeRig::with("redis://h", Role::Wake, false);
    let conn = rig.opened();
    rig.written(conn);
    rig.receive(conn, b":1\r\n");
    let keys: Vec<Key> = (0..20_000).map(|n| key(&format!("lock {n}"))).collect();
    rig.pipe.block(rig.now, keys, MS);
    rig.send(take("next"));
    let first = rig.pipe.outgoing(conn).len();
    assert!(first > 10 * Limits::default().outgoing);
    let written = commands(&rig.written(conn));
    assert_eq!((written.len(), written[0].len(), &*written[1][0]), (2, 20_002, "SET"));
}

#[test]
fn outcome_is_unknown_once_host_has_seen_request() {
    // M8
    let whole = {
        let (mut rig, conn) = PipeRig::up();
        rig.send(extend("a"));
        rig.written(conn).len()
    };
    for consumed in 0..=whole {
        let (mut rig, conn) = PipeRig::up();
        let a = rig.send(extend("a"));
        // The host may have sent it all, and have reported a part of it so far.
        assert_eq!(rig.pipe.outgoing(conn).len(), whole);
        rig.pipe.consume(conn, consumed);
        let b = rig.send(extend("b"));
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Reset);
        let why = || fault(Fault::Reset);
        let expected = [PipeOutput::Down(why()), reply(a, Reply::Unknown(why())), reply(b, Reply::NotSent(why()))];
        assert_eq!(rig.outputs(), expected, "{consumed} of {whole} bytes");
    }
}

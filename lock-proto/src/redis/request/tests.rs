#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::redis::key::{FENCE_NAME, RESERVED, SIGNAL_SUFFIX, WAITING_SUFFIX};
use alloc::string::String;
use alloc::vec::Vec;

const CLIENT: &str = "000000000000000000000000000000ab:";

fn identity() -> Identity {
    Identity::new(ClientId::from_bits(0xab), KeyLayout::default(), b"app:")
}

fn key() -> Key {
    Key::new(b"app:", b"job")
}

fn args(request: &Request, form: Form) -> Vec<String> {
    request
        .with_args(&identity(), form, |args| args.iter().map(|arg| String::from_utf8(arg.to_vec()).unwrap()).collect())
}

fn take(clean: bool, fence_block: u32) -> Request {
    Request::Take {
        key: key(),
        number: 7,
        retired: Retired { upto: 4, after: 5, last: 6 },
        ttl_ms: 10_000,
        fence_block,
        clean,
        waiting_ms: 0,
    }
}

/// The same by one that waits.
fn waiting_take(fence_block: u32) -> Request {
    let Request::Take { key, number, retired, ttl_ms, .. } = take(false, 0) else { panic!("a take") };
    Request::Take { key, number, retired, ttl_ms, fence_block, clean: false, waiting_ms: 2_000 }
}

fn extend() -> Request {
    Request::Extend { key: key(), number: 7, ttl_ms: 10_000, fence_block: 0 }
}

/// The same by a local hand-over that has no fencing tokens left.
fn minting_extend(fence_block: u32) -> Request {
    Request::Extend { key: key(), number: 7, ttl_ms: 10_000, fence_block }
}

fn release(announce: bool) -> Request {
    Request::Release { key: key(), number: 9, retired: Some(Retired { upto: 7, after: 8, last: 9 }), announce }
}

/// Where no other token of this client can be.
fn exact_release(announce: bool) -> Request {
    Request::Release { key: key(), number: 9, retired: None, announce }
}

fn announce() -> Request {
    Request::Announce { key: key() }
}

fn transient(text: &str) -> Option<Reply> {
    Some(Reply::Rejected(ServerError { class: ErrorClass::Transient, text: text.into() }))
}

#[test]
fn clean_take_without_fence_is_plain_set_nx_px() {
    let token = alloc::format!("{CLIENT}7");
    assert_eq!(args(&take(true, 0), Form::Sha1), ["SET", "app:job", &token, "NX", "PX", "10000"]);
    assert!(take(true, 0).script().is_none());
    assert!(take(true, 1).script().is_some(), "a fence needs the script");
    assert!(take(false, 0).script().is_some(), "a leftover needs the script");
}

#[test]
fn each_script_gets_expected_keys_and_arguments() {
    let sha = |script: Script| script.sha1;
    let token = alloc::format!("{CLIENT}7");
    assert_eq!(
        args(&take(false, 0), Form::Sha1),
        ["EVALSHA", sha(script::TAKE), "1", "app:job", &token, "4 5 6", "10000"]
    );
    assert_eq!(
        args(&take(true, 64), Form::Sha1),
        ["EVALSHA", sha(script::TAKE_FREE), "2", "app:job", "app:lock-proto:fence", &token, "10000", "64"]
    );
    assert_eq!(
        args(&take(false, 64), Form::Sha1),
        ["EVALSHA", sha(script::TAKE), "2", "app:job", "app:lock-proto:fence", &token, "4 5 6", "10000", "64"]
    );
    let (fence, marker) = ("app:lock-proto:fence", "app:job:lock-proto:waiting");
    assert_eq!(
        args(&waiting_take(64), Form::Sha1),
        ["EVALSHA", sha(script::TAKE), "3", "app:job", fence, marker, &token, "4 5 6", "10000", "64", "2000"]
    );
    assert_eq!(
        args(&waiting_take(0), Form::Sha1),
        ["EVALSHA", sha(script::TAKE), "2", "app:job", marker, &token, "4 5 6", "10000", "0", "2000"]
    );
    assert_eq!(args(&extend(), Form::Sha1), ["EVALSHA", sha(script::EXTEND), "1", "app:job", &token, "10000"]);
    assert_eq!(
        args(&minting_extend(64), Form::Sha1),
        ["EVALSHA", sha(script::EXTEND), "2", "app:job", "app:lock-proto:fence", &token, "10000", "64"]
    );
    let token = alloc::format!("{CLIENT}9");
    let list = "app:job:lock-proto:waiting:signal";
    let (announced, quiet) = (["3", "app:job", marker, list, &token], ["1", "app:job", &token]);
    for (announce, given) in [(true, &announced[..]), (false, &quiet[..])] {
        let exact = [&["EVALSHA", sha(script::RELEASE)], given].concat();
        assert_eq!(args(&exact_release(announce), Form::Sha1), exact);
        assert_eq!(args(&release(announce), Form::Sha1), [&exact[..], &["7 8 9"]].concat());
    }
    assert_eq!(args(&announce(), Form::Sha1), ["EVALSHA", sha(script::ANNOUNCE), "1", list]);
}

#[test]
fn source_form_is_eval_with_same_arguments() {
    for request in
        [take(false, 0), take(true, 9), waiting_take(0), extend(), release(false), exact_release(true), announce()]
    {
        let (source, hash) = (args(&request, Form::Source), args(&request, Form::Sha1));
        let script = request.script().unwrap();
        assert_eq!((&*source[0], &*source[1]), ("EVAL", script.source));
        assert_eq!(source[2..], hash[2..], "the rest is the same");
    }
}

#[test]
fn numbers_are_written_in_full() {
    let request = Request::Extend { key: key(), number: (1 << 53) - 1, ttl_ms: u64::MAX, fence_block: 0 };
    let args = args(&request, Form::Sha1);
    assert_eq!(args[4], alloc::format!("{CLIENT}9007199254740991"));
    assert_eq!(args[5], "18446744073709551615");
    let zero = Request::Extend { key: key(), number: 0, ttl_ms: 0, fence_block: 0 };
    assert!(self::args(&zero, Form::Sha1).ends_with(&["0".into()]));
}

#[test]
fn keys_contain_name_byte_for_byte() {
    let key = Key::new(b"p\0", b"\xff\r\n");
    assert_eq!(key.lock(), b"p\0\xff\r\n");
    assert_eq!(key.signal(), b"p\0\xff\r\n:lock-proto:waiting:signal");
    assert_eq!(key.waiting(), b"p\0\xff\r\n:lock-proto:waiting");
    assert!([WAITING_SUFFIX, SIGNAL_SUFFIX, FENCE_NAME].iter().all(|name| name.contains(RESERVED)));
    assert_eq!(alloc::format!("{key:?}"), r"Key(p\x00\xff\r\n)");
    assert_eq!(identity().token(7), Token { client: ClientId::from_bits(0xab), number: 7 });
}

#[test]
fn valid_replies_are_decoded() {
    let granted = |fence| Some(Reply::Granted { fence });
    let busy = |expires| Some(Reply::Busy { expires });
    assert_eq!(take(true, 0).read(Value::Text(b"OK")), granted(None));
    assert_eq!(take(true, 0).read(Value::Nil), busy(Expiry::Unknown));
    for request in [take(false, 0), waiting_take(0)] {
        assert_eq!(request.read(Value::Ints(&[1, 0])), granted(None));
    }
    for request in [take(false, 0), take(true, 9), waiting_take(0)] {
        assert_eq!(request.read(Value::Ints(&[0, 250])), busy(Expiry::In(Duration::from_millis(250))));
        assert_eq!(request.read(Value::Ints(&[0, 0])), busy(Expiry::In(Duration::ZERO)));
        assert_eq!(request.read(Value::Ints(&[0, -1])), busy(Expiry::Never));
        assert_eq!(request.read(Value::Ints(&[0, -2])), busy(Expiry::Unknown));
    }
    for request in [take(false, 9), take(true, 9), waiting_take(9), minting_extend(9)] {
        let (first, values) = (1_795_254_045_432_492, [1, 1_795_254_045_432_492, 9, 0]);
        assert_eq!(request.read(Value::Ints(&values)), granted(Some(FenceBlock { first, count: 9, ahead_ms: 0 })));
        for (ahead, ahead_ms) in [(999, 0), (1_000, 1), (i64::MAX, u32::MAX)] {
            let block = FenceBlock { first: 5, count: 1, ahead_ms };
            assert_eq!(request.read(Value::Ints(&[1, 5, 1, ahead])), granted(Some(block)));
        }
    }
    assert_eq!(extend().read(Value::Int(1)), Some(Reply::Extended));
    assert_eq!(extend().read(Value::Int(0)), Some(Reply::Absent));
    assert_eq!(extend().read(Value::Int(-1)), Some(Reply::Taken));
    assert_eq!(release(true).read(Value::Int(7)), Some(Reply::Deleted { number: 7, awaited: false }));
    assert_eq!(exact_release(true).read(Value::Int(-3)), Some(Reply::Deleted { number: 9, awaited: true }));
    assert_eq!(exact_release(true).read(Value::Int(-2)), Some(Reply::Deleted { number: 9, awaited: false }));
    assert_eq!(release(false).read(Value::Int(0)), Some(Reply::Absent));
    assert_eq!(release(false).read(Value::Int(-1)), Some(Reply::Taken));
    assert_eq!(announce().read(Value::Int(1)), Some(Reply::Announced));
}

#[test]
fn invalid_replies_decode_to_none() {
    for (request, value) in [
        (take(true, 0), Value::Text(b"QUEUED")),
        (take(true, 0), Value::Int(1)),
        (take(true, 0), Value::Ints(&[1])),
        (take(false, 0), Value::Text(b"OK")),
        (take(false, 0), Value::Nil),
        (take(false, 0), Value::Ints(&[1])),
        (take(false, 0), Value::Ints(&[2, 0])),
        (take(false, 0), Value::Ints(&[1, -5])),
        (take(false, 0), Value::Ints(&[1, 1, 1])),
        // A take that asked for fencing tokens, and got none, or more than it asked for.
        (take(false, 9), Value::Ints(&[1, 0])),
        (take(true, 9), Value::Ints(&[1, 5])),
        (waiting_take(9), Value::Ints(&[1, 0])),
        (take(false, 9), Value::Ints(&[1, 0, 1, 0])),
        (take(false, 9), Value::Ints(&[1, 5, 0, 0])),
        (take(false, 9), Value::Ints(&[1, 5, 10, 0])),
        (take(false, 9), Value::Ints(&[1, 5, 1, -1])),
        (take(false, 9), Value::Ints(&[1, 5, 1])),
        (take(false, 0), Value::Ints(&[1, 5, 1, 0])),
        (minting_extend(9), Value::Int(1)),
        (minting_extend(9), Value::Ints(&[1, 0])),
        (extend(), Value::Ints(&[1, 5, 1, 0])),
        (extend(), Value::Int(2)),
        (extend(), Value::Nil),
        (extend(), Value::Text(b"1")),
        (release(false), Value::Int(-3)),
        (release(true), Value::Int(-4)),
        (release(false), Value::Ints(&[1, 0])),
        (announce(), Value::Int(0)),
        (announce(), Value::Other),
    ] {
        assert_eq!(request.read(value), None, "{request:?} {value:?}");
    }
}

#[test]
fn error_is_unknown_unless_class_proves_nothing_was_written() {
    for request in [take(true, 0), take(false, 1), extend(), release(true), announce()] {
        assert_eq!(request.read(Value::Error("OOM no")), transient("OOM no"));
        assert!(matches!(request.read(Value::Error("ERR odd")), Some(Reply::Unknown(Cause::Server(_)))), "{request:?}");
        assert!(matches!(
            request.read(Value::Error("READONLY no")),
            Some(Reply::Rejected(ServerError { class: ErrorClass::Reconnect, .. }))
        ));
    }
}

#[test]
fn wrongtype_is_key_in_use_for_take_and_taken_otherwise() {
    let wrong = Value::Error("WRONGTYPE Operation against a key holding the wrong kind of value");
    for request in [take(true, 0), take(false, 1)] {
        assert!(matches!(request.read(wrong), Some(Reply::Rejected(ServerError { class: ErrorClass::KeyInUse, .. }))));
    }
    assert_eq!(extend().read(wrong), Some(Reply::Taken));
    assert_eq!(release(false).read(wrong), Some(Reply::Taken));
}

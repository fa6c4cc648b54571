//! Batches: requests that share one command, and their replies.
// P4

use super::*;
use crate::redis::Form;
use crate::redis::batch::MAX_LOCKS;
use crate::redis::request::FenceBlock;
use crate::redis::script::{RELEASE, RELEASE_MANY};

fn plain(name: &str) -> Request {
    Request::Release { key: key(name), number: 1, retired: None, announce: true }
}

fn deleted(call: CallId) -> PipeOutput {
    reply(call, Reply::Deleted { number: 1, awaited: false })
}

/// The arguments that follow the script in a command.
fn arguments(script: script::Script, command: &[String]) -> &[String] {
    let code = if command[0] == "EVAL" { script.source } else { script.sha1 };
    assert_eq!(command[1], code, "{}", script.name);
    &command[2..]
}

impl PipeRig {
    /// Releases these locks by one command, which is written.
    fn released(&mut self, conn: ConnId, names: &[&str]) -> Vec<CallId> {
        let calls = names.iter().map(|name| self.send(plain(name))).collect();
        assert_eq!(commands(&self.written(conn)).len(), 1);
        calls
    }

    /// Returns the next written commands: the name of each script or command, and its locks.
    fn next(&mut self, conn: ConnId) -> Vec<String> {
        let name = |command: &Vec<String>| match command[..] {
            [ref verb, ref code, ref keys, ref rest @ ..] if verb.starts_with("EVAL") => {
                let script = script::ALL.iter().find(|script| *code == script.sha1 || *code == script.source).unwrap();
                let keys: usize = keys.parse().unwrap();
                let locks: Vec<&str> = rest[..keys].iter().filter(|key| !key.contains(':')).map(|key| &**key).collect();
                format!("{} {}", script.name, locks.join(" "))
            }
            _ => format!("{} {}", command[0], command[1]),
        };
        commands(&self.written(conn)).iter().map(name).collect()
    }
}

#[test]
fn queued_releases_are_batched_into_one_command() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let [a, b] = ["a", "b"].map(|name| rig.send(plain(name)));
    let written = commands(&rig.written(conn));
    assert_eq!((written.len(), &*written[0][0]), (1, "EVAL"));
    let token = "00000000000000000000000000000001:1";
    let [k, l] = ["a", "b"].map(key);
    let name = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let names = [k.lock(), l.lock(), k.waiting(), l.waiting(), k.signal(), l.signal()].map(name);
    let expected = [&["6".into()], &names[..], &[token.into(), token.into()]].concat();
    assert_eq!(arguments(RELEASE_MANY, &written[0]), expected);
    assert_eq!(rig.pipe.in_flight(), 2);
    rig.receive(conn, b":-2\r\n");
    assert_eq!(rig.outputs(), [deleted(a), deleted(b)]);
    assert_eq!((rig.pipe.in_flight(), rig.pipe.next_deadline()), (0, None));
    // Releases without a wake-up pass the locks only.
    for name in ["a", "b", "c"] {
        rig.send(Request::Release { key: key(name), number: 1, retired: None, announce: false });
    }
    let written = commands(&rig.written(conn));
    assert_eq!((written.len(), &*written[0][0]), (1, "EVALSHA"), "the server has the script");
    assert_eq!(arguments(RELEASE_MANY, &written[0]), ["3", "a", "b", "c", token, token, token]);
}

#[test]
fn each_batched_release_gets_separate_reply() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let calls = rig.released(conn, &["a", "b", "c", "d", "e"]);
    rig.receive(conn, b"$13\r\n-2 -3 0 -1 -2\r\n");
    let replies = [
        Reply::Deleted { number: 1, awaited: false },
        Reply::Deleted { number: 1, awaited: true },
        Reply::Absent,
        Reply::Taken,
        Reply::Deleted { number: 1, awaited: false },
    ];
    let expected: Vec<_> = calls.into_iter().zip(replies).map(|(call, answer)| reply(call, answer)).collect();
    assert_eq!(rig.outputs(), expected);
}

#[test]
fn batching_preserves_order_per_lock() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    for request in [plain("a"), take("b"), plain("b"), plain("c"), take("c"), take("d"), plain("e"), plain("a")] {
        rig.send(request);
    }
    // Lock c is released before it is taken, and earlier releases join that batch.
    let expected = ["SET b", "release-many a b c", "take-free c d", "release-many e a"];
    assert_eq!(rig.next(conn), expected);
    for request in [plain("a"), plain("a"), plain("b")] {
        rig.send(request);
    }
    assert_eq!(rig.next(conn), ["release a", "release-many a b"]);
}

#[test]
fn release_with_retired_numbers_is_sent_alone() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let quiet = Request::Release { key: key("d"), number: 1, retired: None, announce: false };
    for request in [plain("a"), release("b"), plain("c"), quiet, plain("e")] {
        rig.send(request);
    }
    assert_eq!(rig.next(conn), ["release b", "release-many a c", "release d", "release e"]);
}

#[test]
fn batch_has_a_limit_of_locks() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let names: Vec<String> = (0..2 * MAX_LOCKS + 1).map(|n| format!("{n}")).collect();
    let calls: Vec<_> = names.iter().map(|name| rig.send(plain(name))).collect();
    let counts: Vec<_> = rig.next(conn).iter().map(|command| command.matches(' ').count()).collect();
    assert_eq!(counts, [MAX_LOCKS, MAX_LOCKS, 1], "one word is the name of the script");
    rig.receive(conn, &b":-2\r\n".repeat(3));
    assert_eq!(rig.outputs(), calls.into_iter().map(deleted).collect::<Vec<_>>());
}

#[test]
fn requests_are_encoded_only_when_output_is_read() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    assert!(!rig.pipe.has_outgoing(conn));
    for name in ["a", "b"] {
        rig.send(plain(name));
        assert!(rig.pipe.has_outgoing(conn));
    }
    assert_eq!(rig.next(conn), ["release-many a b"]);
    assert!(!rig.pipe.has_outgoing(conn));
    rig.send(plain("c"));
    rig.pipe.outgoing(conn);
    assert!(rig.pipe.has_outgoing(conn), "encoded, and not taken");
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
    assert!(!rig.pipe.has_outgoing(conn));
}

#[test]
fn missing_batch_script_falls_back_to_single_releases() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    rig.released(conn, &["x", "y"]);
    rig.receive(conn, b":-2\r\n");
    rig.outputs();
    let calls = rig.released(conn, &["a", "b", "c"]);
    let later = rig.send(take("b"));
    assert_eq!(rig.next(conn), ["SET b"]);
    let noscript = "NOSCRIPT No matching script. Please use EVAL.";
    rig.receive(conn, format!("-{noscript}\r\n").as_bytes());
    // Resending the command of b would reorder it.
    let Value::Error(alone) = batch::NOT_DONE else { panic!() };
    assert_eq!(rig.outputs(), [reply(calls[1], Reply::Rejected(ServerError::classify(alone)))]);
    rig.receive(conn, b"$-1\r\n");
    assert_eq!(rig.outputs(), [reply(later, Reply::Busy { expires: Expiry::Unknown })]);
    assert!(rig.pipe.has_outgoing(conn));
    let again = commands(&rig.written(conn));
    assert!(again.iter().zip(["a", "c"]).all(|(command, name)| arguments(RELEASE, command)[1] == name), "{again:?}");
    rig.receive(conn, b":-2\r\n:-2\r\n");
    assert_eq!(rig.outputs(), [deleted(calls[0]), deleted(calls[2])]);
    rig.send(plain("d"));
    rig.send(plain("e"));
    assert_eq!(commands(&rig.written(conn))[0][0], "EVAL", "the source of the other one is gone too");
}

#[test]
fn refused_batch_falls_back_to_single_releases() {
    // P4
    for (refusal, for_good) in [
        ("CROSSSLOT Keys in request don't hash to the same slot", true),
        ("NOPERM this user has no permissions to run the 'mget' command", true),
        ("ERR The user executing the script can't run this command or subcommand script: x", true),
        // The next command has other keys.
        ("NOPERM no permissions to access a key", false),
        ("OOM command not allowed", false),
    ] {
        let (mut rig, conn) = PipeRig::together();
        let calls = rig.released(conn, &["a", "b"]);
        let waiting = ["c", "d"].map(|name| rig.send(plain(name)));
        rig.receive(conn, format!("-{refusal}\r\n").as_bytes());
        assert_eq!(rig.outputs(), [], "no output");
        let (apart, together) =
            (["release a", "release b", "release c", "release d"], ["release a", "release b", "release-many c d"]);
        assert_eq!(rig.next(conn), if for_good { &apart[..] } else { &together }, "{refusal}");
        rig.receive(conn, format!("-{refusal}\r\n").as_bytes());
        rig.receive(conn, &b":-2\r\n".repeat(if for_good { 3 } else { 2 }));
        let refused = Reply::Rejected(ServerError::classify(refusal));
        let expected = [reply(calls[0], refused), deleted(calls[1]), deleted(waiting[0]), deleted(waiting[1])];
        assert_eq!(rig.outputs(), expected);
        // A new connection may reach another server.
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
        rig.outputs();
        let conn = rig.reopened();
        rig.pipe.handle_connected(rig.now, conn);
        rig.send(plain("a"));
        rig.send(plain("b"));
        assert_eq!(rig.next(conn), ["release-many a b"]);
    }
}

#[test]
fn reconnect_or_unclear_error_answers_each_request_of_batch() {
    // P4
    // A server that requires a login refuses a long command before reading it, and hangs up.
    let unauthenticated = "ERR Protocol error: unauthenticated multibulk length";
    for (error, down) in [("READONLY You can't write", true), ("WHAT now", false), (unauthenticated, false)] {
        let (mut rig, conn) = PipeRig::together();
        let calls = rig.released(conn, &["a", "b"]);
        rig.receive(conn, format!("-{error}\r\n").as_bytes());
        let cause = ServerError::classify(error);
        let unclear = cause.class == ErrorClass::Unclear;
        let answer = if unclear { Reply::Unknown(cause.into()) } else { Reply::Rejected(cause) };
        let outputs = rig.outputs();
        assert_eq!(outputs[..2], [reply(calls[0], answer.clone()), reply(calls[1], answer)], "{error}");
        assert_eq!(outputs.len() > 2, down, "{error}: {outputs:?}");
    }
}

/// Each lock gets its own fencing tokens.
#[test]
fn batched_takes_get_disjoint_fencing_tokens() {
    // P4
    let fenced = |name: &str| {
        let retired = Retired::default();
        Request::Take { key: key(name), number: 1, retired, ttl_ms: 1_000, fence_block: 8, clean: true, waiting_ms: 0 }
    };
    let granted = |first, count| Reply::Granted { fence: Some(FenceBlock { first, count, ahead_ms: 2 }) };
    let (mut rig, conn) = PipeRig::together();
    let calls = ["a", "b", "c"].map(|name| rig.send(fenced(name)));
    let written = commands(&rig.written(conn));
    let [_, _, rest @ ..] = &written[0][..] else { panic!("{written:?}") };
    let token = "00000000000000000000000000000001:1";
    assert_eq!(rest, ["4", "a", "b", "c", "lock-proto:fence", token, token, token, "1000", "8"]);
    rig.receive(conn, b"*4\r\n:1\r\n:100\r\n:5\r\n:2000\r\n");
    assert_eq!(rig.outputs(), [0, 1, 2].map(|n| reply(calls[n], granted(100 + 5 * n as u64, 5))));
    // One lock is held, and the key of another holds a different type.
    let calls = ["a", "b", "c"].map(|name| rig.send(fenced(name)));
    rig.written(conn);
    rig.receive(conn, b"$17\r\n200 5 2000 70 x g\r\n".as_slice());
    let busy = Reply::Busy { expires: Expiry::In(70 * MS) };
    assert_eq!(rig.outputs(), [reply(calls[0], busy), reply(calls[2], granted(210, 5))]);
    assert_eq!(rig.next(conn), ["take-free b"]);
    rig.receive(conn, b"-WRONGTYPE no\r\n");
    assert_eq!(rig.outputs(), [reply(calls[1], Reply::Rejected(ServerError::classify("WRONGTYPE no")))]);
    // Other terms need another command.
    let short = Request::Take {
        key: key("d"),
        number: 1,
        retired: Retired::default(),
        ttl_ms: 70,
        fence_block: 8,
        clean: true,
        waiting_ms: 0,
    };
    for request in [fenced("a"), fenced("b"), short] {
        rig.send(request);
    }
    assert_eq!(rig.next(conn), ["take-free a b", "take-free d"]);
}

#[test]
fn renewals_are_batched_with_separate_replies() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let calls = ["a", "b", "c", "d"].map(|name| rig.send(extend(name)));
    assert_eq!(rig.next(conn), ["extend-many a b c d"]);
    rig.receive(conn, b"$8\r\n1 -1 0 x\r\n");
    let [a, b, c, d] = calls;
    assert_eq!(rig.outputs(), [reply(a, Reply::Extended), reply(b, Reply::Taken), reply(c, Reply::Absent)]);
    assert_eq!(rig.next(conn), ["extend d"]);
    rig.receive(conn, b":1\r\n");
    assert_eq!(rig.outputs(), [reply(d, Reply::Extended)]);
    // A request that mints tokens is sent alone, and so is a resent one.
    let minting = Request::Extend { key: key("a"), number: 1, ttl_ms: 1_000, fence_block: 8 };
    for request in [extend("b"), minting, extend("c")] {
        rig.send(request);
    }
    assert_eq!(rig.next(conn), ["extend a", "extend-many b c"]);
}

/// The key of the first lock, or of another one, holds data.
#[test]
fn failure_of_one_lock_in_batch_does_not_affect_others() {
    // P4
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let all = format!("-{wrong}\r\n");
    for (answer, undone) in [(all.as_str(), &["a", "b", "c"][..]), ("$6\r\n-2 x 0\r\n", &["b"])] {
        let (mut rig, conn) = PipeRig::together();
        let calls = rig.released(conn, &["a", "b", "c"]);
        rig.receive(conn, answer.as_bytes());
        assert_eq!(rig.outputs().len(), 3 - undone.len());
        // Even if other requests could join: that batch would be refused again and again.
        rig.send(plain("later"));
        let again: Vec<_> = undone.iter().chain(&["later"]).map(|name| format!("release {name}")).collect();
        assert_eq!(rig.next(conn), again);
        rig.receive(conn, all.as_bytes());
        let first = if undone.len() == 1 { calls[1] } else { calls[0] };
        assert_eq!(rig.outputs(), [reply(first, Reply::Taken)]);
        rig.receive(conn, &b":-2\r\n".repeat(undone.len()));
        rig.outputs();
        rig.send(plain("d"));
        rig.send(plain("e"));
        assert_eq!(rig.next(conn), ["release-many d e"], "the others may well be together");
    }
}

/// A call that cannot be resent, because a later command for its lock was sent, may be retried.
#[test]
fn batched_release_that_cannot_be_resent_fails_transiently() {
    // P4
    for answer in ["$4\r\n-2 x\r\n", "-WRONGTYPE of a\r\n", "-NOPERM for a\r\n"] {
        let (mut rig, conn) = PipeRig::together();
        let calls = rig.released(conn, &["a", "b"]);
        rig.send(take("b"));
        rig.written(conn);
        rig.receive(conn, answer.as_bytes());
        let outputs = rig.outputs();
        let [.., PipeOutput::Reply { call, reply: Reply::Rejected(error) }] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert_eq!((*call, error.class), (calls[1], ErrorClass::Transient), "{answer}");
    }
}

/// Otherwise a server could make the client resend a release forever.
#[test]
fn single_request_is_not_resent() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let Value::Error(text) = batch::NOT_DONE else { panic!() };
    for request in [plain("a"), take("a")] {
        let call = rig.send(request);
        rig.written(conn);
        rig.receive(conn, format!("-{text}\r\n").as_bytes());
        assert_eq!(rig.outputs(), [reply(call, Reply::Rejected(ServerError::classify(text)))]);
        assert!(!rig.pipe.has_outgoing(conn));
    }
}

#[test]
fn invalid_batch_reply_leaves_outcome_unknown_and_disconnects() {
    // P4
    let answers = [
        ":0\r\n",
        ":-3\r\n",
        "$-1\r\n",
        "+OK\r\n",
        "$2\r\n-2\r\n",
        "$8\r\n-2 -2 -2\r\n",
        "$5\r\n-2  2\r\n",
        "$4\r\n-2 y\r\n",
        "$0\r\n\r\n",
        "*2\r\n:-2\r\n:-2\r\n",
    ];
    for answer in answers {
        let (mut rig, conn) = PipeRig::together();
        let calls = rig.released(conn, &["a", "b"]);
        let behind = rig.send(take("c"));
        rig.written(conn);
        rig.receive(conn, answer.as_bytes());
        let outputs = rig.outputs();
        let [first, PipeOutput::Reply { call, reply: Reply::Unknown(cause) }, rest @ ..] = &outputs[..] else {
            panic!("{answer:?}: {outputs:?}")
        };
        let wrong = breach(Breach::WrongReply);
        assert_eq!((*call, cause), (calls[1], &wrong), "{answer:?}");
        assert!(matches!(first, PipeOutput::Reply { call, .. } if *call == calls[0]), "{answer:?}: {first:?}");
        let expected = [
            PipeOutput::Disconnect(conn, Some(wrong.clone())),
            PipeOutput::Down(wrong.clone()),
            reply(behind, Reply::Unknown(wrong)),
        ];
        assert_eq!(rest, expected, "{answer:?}");
    }
}

#[test]
fn connection_loss_leaves_whole_batch_unknown_or_not_sent() {
    // P4
    for seen in [false, true] {
        let (mut rig, conn) = PipeRig::together();
        let calls = ["a", "b"].map(|name| rig.send(plain(name)));
        if seen {
            rig.pipe.outgoing(conn);
        }
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
        let cause = fault(Fault::Closed);
        let answer = if seen { Reply::Unknown(cause.clone()) } else { Reply::NotSent(cause.clone()) };
        let expected = [PipeOutput::Down(cause), reply(calls[0], answer.clone()), reply(calls[1], answer)];
        assert_eq!(rig.outputs(), expected, "seen: {seen}");
    }
}

#[test]
fn invalid_entry_in_batch_reply_drops_connection() {
    // P4
    let (mut rig, conn) = PipeRig::together();
    let calls = rig.released(conn, &["a", "b"]);
    rig.receive(conn, b"$4\r\ny -2\r\n");
    let wrong = breach(Breach::WrongReply);
    let expected = [
        reply(calls[0], Reply::Unknown(wrong.clone())),
        deleted(calls[1]),
        PipeOutput::Disconnect(conn, Some(wrong.clone())),
        PipeOutput::Down(wrong),
    ];
    assert_eq!(rig.outputs(), expected);
}

#[test]
fn single_release_uses_script_for_one_lock() {
    // P4
    let identity = Identity::new(ClientId::from_bits(1), KeyLayout::default(), b"");
    plain("a").with_args(&identity, Form::Sha1, |args| assert_eq!(args[1], RELEASE.sha1.as_bytes()));
}

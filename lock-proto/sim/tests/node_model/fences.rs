//! Fencing tokens minted by the scripts, on a real and on the simulated server.

use lock_proto::Instant;
use lock_proto::redis::script;
use lock_sim::redis::{Node, NodeConfig};

use crate::reply::{Reply, parse};
use crate::server::{RealConnection, RealServer, encode};

const TOKEN: &str = "0123456789abcdef0123456789abcdef:";

type RoundTrip<'a> = &'a mut dyn FnMut(&[&str]) -> Reply;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Minted {
    first: i64,
    count: i64,
    ahead: i64,
}

impl Minted {
    const fn last(self) -> i64 {
        self.first + self.count - 1
    }
}

fn minted(reply: &Reply) -> Minted {
    let Reply::List('*', items) = reply else { panic!("{reply:?}") };
    let [Reply::Int(1), Reply::Int(first), Reply::Int(count), Reply::Int(ahead)] = items[..] else {
        panic!("{reply:?}");
    };
    Minted { first, count, ahead }
}

fn take(round_trip: RoundTrip<'_>, key: &str, block: &str) -> Minted {
    let token = format!("{TOKEN}7");
    minted(&round_trip(&["EVAL", script::TAKE.source, "2", key, "fence", &token, "0 0 0", "10000", block]))
}

fn extend(round_trip: RoundTrip<'_>, key: &str, block: &str) -> Reply {
    let token = format!("{TOKEN}7");
    round_trip(&["EVAL", script::EXTEND.source, "2", key, "fence", &token, "10000", block])
}

fn number(reply: &Reply) -> i64 {
    let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
    core::str::from_utf8(text).unwrap().parse().unwrap()
}

fn clock(round_trip: RoundTrip<'_>) -> i64 {
    let Reply::List('*', parts) = round_trip(&["TIME"]) else { panic!("no time") };
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

/// Runs a check on a real and on the simulated server, whose clock advances with commands.
fn on_both(check: fn(RoundTrip<'_>)) {
    let server = RealServer::start();
    let mut real = RealConnection::open(server.port);
    check(&mut |args| real.round_trip(args));
    let mut node = Node::new(Instant::ZERO, NodeConfig::new(1));
    node.handle_connected(Instant::ZERO, 1);
    check(&mut |args| {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        node.handle_received(Instant::ZERO, 1, &encode(&args));
        let (reply, used) = parse(node.outgoing(1)).unwrap();
        node.consume(1, used);
        reply
    });
}

#[test]
fn counter_trails_clock_and_tokens_grow_after_its_deletion() {
    // A9
    on_both(|round_trip| {
        let mut last = 0;
        for round in 0..200 {
            let minted = take(round_trip, &format!("lock:{round}"), "1000");
            assert!(minted.first > last, "{minted:?} after {last}");
            assert!((1..=1_000).contains(&minted.count) && minted.ahead == 0, "{minted:?}");
            last = minted.last();
            assert_eq!(number(&round_trip(&["GET", "fence"])), last);
            assert!(last <= clock(round_trip));
            if round % 10 == 0 {
                round_trip(&["DEL", "fence"]);
                let minted = take(round_trip, &format!("other:{round}"), "1000");
                assert_eq!(minted.count, 1, "how many were minted in the last µs is not known");
                assert!(minted.first > last, "{minted:?} after {last}");
                last = minted.last();
            }
        }
    });
}

#[test]
fn script_mints_requested_count_if_clock_has_advanced() {
    // A9
    on_both(|round_trip| {
        round_trip(&["SET", "fence", "5"]);
        let before = clock(round_trip);
        let minted = take(round_trip, "a", "1000");
        assert_eq!((minted.count, minted.ahead), (1_000, 0));
        assert!(minted.last() > before && minted.last() <= clock(round_trip), "the last one is the time");
    });
}

#[test]
fn clock_set_back_is_reported() {
    // A9
    on_both(|round_trip| {
        let ahead = clock(round_trip) + 60_000_000;
        round_trip(&["SET", "fence", &ahead.to_string()]);
        for step in 1..=2 {
            let minted = take(round_trip, &format!("lock:{step}"), "1000");
            assert_eq!((minted.first, minted.count), (ahead + step, 1), "one by one");
            assert!((1_000_000..=60_000_001).contains(&minted.ahead), "{minted:?}");
        }
    });
}

/// A proxy repeats a command that was executed.
#[test]
fn repeated_take_mints_again() {
    // A9
    on_both(|round_trip| {
        let first = take(round_trip, "a", "64");
        let again = take(round_trip, "a", "64");
        assert!(again.first > first.last(), "{again:?} after {first:?}");
        assert_eq!(number(&round_trip(&["GET", "fence"])), again.last());
    });
}

/// Locks in one script read the clock once and update the counter once. They share the gap, and
/// their tokens do not overlap.
#[test]
fn locks_taken_together_share_token_gap() {
    // A9
    on_both(|round_trip| {
        let take = |round_trip: RoundTrip<'_>, keys: [&str; 3], block: &str| {
            let tokens = [7, 8, 9].map(|number| format!("{TOKEN}{number}"));
            let [k, l, m] = keys;
            let [a, b, c] = tokens.each_ref().map(String::as_str);
            round_trip(&["EVAL", script::TAKE_FREE.source, "4", k, l, m, "fence", a, b, c, "10000", block])
        };
        let first = minted(&take(round_trip, ["a", "b", "c"], "1000"));
        assert_eq!((first.count, first.ahead), (1, 0), "how many were minted in the last µs is not known");
        assert_eq!(number(&round_trip(&["GET", "fence"])), first.first + 2);
        round_trip(&["SET", "fence", "5"]);
        let more = minted(&take(round_trip, ["d", "e", "f"], "1000"));
        assert_eq!((more.count, more.ahead), (333, 0), "the three share the maximum");
        assert_eq!(number(&round_trip(&["GET", "fence"])), more.first + 998);
        let ahead = clock(round_trip) + 60_000_000;
        round_trip(&["SET", "fence", &ahead.to_string()]);
        let last = minted(&take(round_trip, ["g", "h", "i"], "1000"));
        assert_eq!((last.first, last.count), (ahead + 1, 1), "one for each");
        round_trip(&["RPUSH", "k", "data"]);
        let Reply::Bulk(text) = take(round_trip, ["j", "k", "a"], "1000") else { panic!("not all are free") };
        let words: Vec<_> = core::str::from_utf8(&text).unwrap().split(' ').collect();
        let [first, "1", _, "g", "x", left] = words[..] else { panic!("{words:?}") };
        assert_eq!(first.parse::<i64>().unwrap(), ahead + 4);
        assert!((9_000..=10_000).contains(&left.parse::<i64>().unwrap()), "{left}");
        // A TTL that Lua would print with an exponent.
        round_trip(&["SET", "far", "another", "PX", "200000000000000"]);
        let Reply::Bulk(text) = take(round_trip, ["n", "o", "far"], "1000") else { panic!("not all are free") };
        let left = core::str::from_utf8(&text).unwrap().rsplit(' ').next().unwrap();
        assert!((199_999_999_000_000..=200_000_000_000_000).contains(&left.parse::<i64>().unwrap()), "{left}");
        // An error for the first lock is an error for all, and nothing is written.
        assert!(
            matches!(take(round_trip, ["k", "l", "m"], "1000"), Reply::Line('-', text) if text.starts_with("WRONGTYPE"))
        );
        assert_eq!(round_trip(&["EXISTS", "l", "m"]), Reply::Int(0));
    });
}

/// Takes locks together, and returns what was minted for the first of them.
fn take_together(round_trip: RoundTrip<'_>, keys: &[String], block: i64) -> Minted {
    let (count, block) = ((keys.len() + 1).to_string(), block.to_string());
    let tokens: Vec<_> = (1..=keys.len()).map(|number| format!("{TOKEN}{number}")).collect();
    let (keys, tokens) = (keys.iter().map(String::as_str), tokens.iter().map(String::as_str));
    let head = ["EVAL", script::TAKE_FREE.source, &count].into_iter();
    let args: Vec<_> = head.chain(keys).chain(["fence"]).chain(tokens).chain(["10000", &block]).collect();
    minted(&round_trip(&args))
}

/// The counter lost its last updates. However many locks a script takes, its tokens are not older
/// than `block` µs.
#[test]
fn tokens_of_locks_taken_together_are_as_recent_as_those_of_one() {
    // A9
    on_both(|round_trip| {
        for (block, locks) in [1, 7, 16, 62, 1_000].into_iter().flat_map(|block| (1..=16).map(move |n| (block, n))) {
            round_trip(&["FLUSHALL"]);
            round_trip(&["SET", "fence", "5"]);
            let keys: Vec<_> = (0..locks).map(|n| format!("lock:{n}")).collect();
            let before = clock(round_trip);
            let minted = take_together(round_trip, &keys, block);
            assert!(minted.first > before - block, "{locks} locks, {block}: {minted:?} at {before}");
            assert_eq!(minted.count, (block / locks).max(1), "{locks} locks, {block}");
            assert!(minted.ahead <= locks, "{locks} locks, {block}: {minted:?}");
            let last = minted.first + minted.count * locks - 1;
            assert_eq!(number(&round_trip(&["GET", "fence"])), last);
        }
    });
}

/// The promoted replica lacks the last grant. A batch that takes this lock first has greater tokens
/// as soon as the clock is a block past that grant.
#[test]
fn lock_taken_with_others_gets_greater_token_after_counter_was_set_back() {
    // A9
    on_both(|round_trip| {
        for round in 0..5 {
            round_trip(&["FLUSHALL"]);
            round_trip(&["SET", "fence", "5"]);
            let granted = take(round_trip, "lock:0", "1000");
            let at = clock(round_trip);
            round_trip(&["SET", "fence", "5"]);
            round_trip(&["DEL", "lock:0"]);
            while clock(round_trip) < at + 1_000 {}
            let keys: Vec<_> = (0..16).map(|n| format!("lock:{n}")).collect();
            let next = take_together(round_trip, &keys, 1_000);
            assert!(next.first > granted.last(), "round {round}: {next:?} after {granted:?}");
        }
    });
}

#[test]
fn batched_renewals_and_releases_get_separate_replies() {
    // P4
    on_both(|round_trip| {
        let token = format!("{TOKEN}7");
        let text = |reply: Reply| {
            let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
            String::from_utf8(text).unwrap()
        };
        round_trip(&["SET", "b", "another"]);
        round_trip(&["SET", "waits", "1"]);
        round_trip(&["RPUSH", "c", "data"]);
        for key in ["a", "e"] {
            round_trip(&["SET", key, &token, "PX", "5000"]);
        }
        let t = token.as_str();
        let keys = ["a", "b", "c", "d", "e"];
        let extend = |round_trip: RoundTrip<'_>, keys: &[&str]| {
            let count = keys.len().to_string();
            let head = ["EVAL", script::EXTEND_MANY.source, &count];
            round_trip(&[&head[..], keys, &vec![t; keys.len()][..], &["60000"]].concat())
        };
        assert_eq!(text(extend(round_trip, &keys)), "1 -1 x 0 1");
        for key in ["a", "e"] {
            assert!(matches!(round_trip(&["PTTL", key]), Reply::Int(50_000..=60_000)));
        }
        assert_eq!(extend(round_trip, &["a", "e"]), Reply::Int(1));
        let release = |round_trip: RoundTrip<'_>, keys: &[&str], markers: &[&str], signals: &[&str]| {
            let count = (keys.len() + markers.len() + signals.len()).to_string();
            let head = ["EVAL", script::RELEASE_MANY.source, &count];
            round_trip(&[&head[..], keys, markers, signals, &vec![t; keys.len()][..]].concat())
        };
        let (markers, signals) = (["none", "none", "none", "none", "waits"], ["s1", "s2", "s3", "s4", "s5"]);
        assert_eq!(text(release(round_trip, &keys, &markers, &signals)), "-2 -1 x 0 -3");
        assert_eq!(round_trip(&["EXISTS", "a", "e", "waits", "s1"]), Reply::Int(0));
        assert_eq!((round_trip(&["EXISTS", "b", "c"]), round_trip(&["LLEN", "s5"])), (Reply::Int(2), Reply::Int(1)));
        round_trip(&["SET", "a", t, "PX", "5000"]);
        round_trip(&["SET", "e", t, "PX", "5000"]);
        assert_eq!(release(round_trip, &["a", "e"], &[], &[]), Reply::Int(-2));
        assert_eq!(round_trip(&["EXISTS", "a", "e"]), Reply::Int(0));
    });
}

#[test]
fn extend_mints_only_for_owner() {
    // A9
    on_both(|round_trip| {
        assert_eq!(extend(round_trip, "a", "64"), Reply::Int(0));
        round_trip(&["SET", "a", "another", "PX", "10000"]);
        assert_eq!(extend(round_trip, "a", "64"), Reply::Int(-1));
        assert_eq!(round_trip(&["EXISTS", "fence"]), Reply::Int(0));
        let first = take(round_trip, "b", "64");
        round_trip(&["PEXPIRE", "b", "5000"]);
        let more = minted(&extend(round_trip, "b", "64"));
        assert!(more.first > first.last(), "{more:?} after {first:?}");
        let Reply::Int(left) = round_trip(&["PTTL", "b"]) else { panic!("no PTTL") };
        assert!(left > 5_000, "it was extended: {left}");
        // Rejected before the key is touched.
        // A1
        round_trip(&["SET", "fence", "nonsense"]);
        round_trip(&["PEXPIRE", "b", "5000"]);
        assert!(matches!(extend(round_trip, "b", "64"), Reply::Line('-', text) if text.starts_with("LOCKFENCE")));
        let Reply::Int(left) = round_trip(&["PTTL", "b"]) else { panic!("no PTTL") };
        assert!(left <= 5_000, "{left}");
    });
}

/// In a quorum, the node that wakes waiters may have another client's token, or none.
#[test]
fn release_wakes_waiter_regardless_of_key_value() {
    // A7
    on_both(|round_trip| {
        let token = format!("{TOKEN}7");
        let other = "fedcba9876543210fedcba9876543210:1";
        for (value, alone, among) in [(None, 0, "0 0"), (Some(other), -1, "-1 0"), (Some(&*token), -3, "-3 0")] {
            let prepare = |round_trip: RoundTrip<'_>| {
                round_trip(&["FLUSHALL"]);
                round_trip(&["SET", "marker", "1"]);
                if let Some(value) = value {
                    round_trip(&["SET", "a", value]);
                }
            };
            let woken = |round_trip: RoundTrip<'_>| {
                assert_eq!(round_trip(&["EXISTS", "marker"]), Reply::Int(0), "{value:?}");
                assert_eq!(round_trip(&["LLEN", "signal"]), Reply::Int(1), "{value:?}");
                assert_eq!(round_trip(&["EXISTS", "a"]), Reply::Int(i64::from(value == Some(other))));
            };
            prepare(round_trip);
            let reply = round_trip(&["EVAL", script::RELEASE.source, "3", "a", "marker", "signal", &token, "0 0 0"]);
            assert_eq!(reply, Reply::Int(alone));
            woken(round_trip);
            prepare(round_trip);
            let keys = ["a", "b", "marker", "other-marker", "signal", "other-signal"];
            let reply =
                round_trip(&[&["EVAL", script::RELEASE_MANY.source, "6"], &keys[..], &[&token, other]].concat());
            assert_eq!(reply, Reply::Bulk(among.into()));
            woken(round_trip);
        }
    });
}

/// A replica answers `READONLY` even where a script has nothing to write: what it knows of other
/// clients' keys may be the past.
#[test]
fn replica_refuses_scripts_that_write_nothing() {
    // P2
    let server = RealServer::start();
    let mut real = RealConnection::open(server.port);
    let token = format!("{TOKEN}7");
    let run = |real: &mut RealConnection, script: script::Script, keys: &[&str], args: &[&str]| {
        let count = keys.len().to_string();
        real.round_trip(&[&["EVAL", script.source, &count], keys, args].concat())
    };
    let all = |real: &mut RealConnection| {
        [
            run(real, script::TAKE, &["taken"], &[&token, "0 0 0", "10000"]),
            run(real, script::RELEASE, &["none"], &[&token]),
            run(real, script::RELEASE_MANY, &["none", "nothing"], &[&token, &token]),
        ]
    };
    real.round_trip(&["SET", "taken", "another"]);
    let list = |numbers: [i64; 2]| Reply::List('*', numbers.map(Reply::Int).to_vec());
    assert_eq!(all(&mut real), [list([0, -1]), Reply::Int(0), Reply::Bulk("0 0".into())]);
    assert_eq!(real.round_trip(&["GET", "taken"]), Reply::Bulk("another".into()));
    assert_eq!(real.round_trip(&["PTTL", "taken"]), Reply::Int(-1));
    // A primary that cannot be reached.
    real.round_trip(&["REPLICAOF", "127.0.0.1", "1"]);
    for reply in all(&mut real) {
        assert!(matches!(&reply, Reply::Line('-', text) if text.contains("READONLY")), "{reply:?}");
    }
}

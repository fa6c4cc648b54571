//! Fencing tokens minted by the scripts, on a real and on the simulated server.

use lock_proto::Instant;
use lock_proto::redis::script;
use lock_proto::sim::redis::{Node, NodeConfig};

use crate::reply::{Reply, parse};
use crate::server::{RealConnection, RealServer, encode};

const TOKEN: &str = "0123456789abcdef0123456789abcdef:";

type Ask<'a> = &'a mut dyn FnMut(&[&str]) -> Reply;

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

fn take(ask: Ask<'_>, key: &str, wanted: &str) -> Minted {
    let token = format!("{TOKEN}7");
    minted(&ask(&["EVAL", script::TAKE.source, "2", key, "fence", &token, "0 0 0", "10000", wanted]))
}

fn extend(ask: Ask<'_>, key: &str, wanted: &str) -> Reply {
    let token = format!("{TOKEN}7");
    ask(&["EVAL", script::EXTEND.source, "2", key, "fence", &token, "10000", wanted])
}

fn number(reply: &Reply) -> i64 {
    let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
    core::str::from_utf8(text).unwrap().parse().unwrap()
}

fn clock(ask: Ask<'_>) -> i64 {
    let Reply::List('*', parts) = ask(&["TIME"]) else { panic!("no time") };
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

/// Runs a check on a real and on the simulated server, whose clock advances with commands.
fn on_both(check: fn(Ask<'_>)) {
    let server = RealServer::start();
    let mut real = RealConnection::open(server.port);
    check(&mut |args| real.ask(args));
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
fn a9_the_counter_stays_behind_the_clock_and_tokens_grow_without_it() {
    on_both(|ask| {
        let mut last = 0;
        for round in 0..200 {
            let minted = take(ask, &format!("lock:{round}"), "1000");
            assert!(minted.first > last, "{minted:?} after {last}");
            assert!((1..=1_000).contains(&minted.count) && minted.ahead == 0, "{minted:?}");
            last = minted.last();
            assert_eq!(number(&ask(&["GET", "fence"])), last);
            assert!(last <= clock(ask));
            if round % 10 == 0 {
                ask(&["DEL", "fence"]);
                let minted = take(ask, &format!("other:{round}"), "1000");
                assert_eq!(minted.count, 1, "how many were minted in the last µs is not known");
                assert!(minted.first > last, "{minted:?} after {last}");
                last = minted.last();
            }
        }
    });
}

#[test]
fn a9_a_script_mints_as_many_as_are_wanted_if_the_clock_has_moved_on() {
    on_both(|ask| {
        ask(&["SET", "fence", "5"]);
        let before = clock(ask);
        let minted = take(ask, "a", "1000");
        assert_eq!((minted.count, minted.ahead), (1_000, 0));
        assert!(minted.last() > before && minted.last() <= clock(ask), "the last one is the time");
    });
}

#[test]
fn a9_a_clock_that_was_set_back_is_seen() {
    on_both(|ask| {
        let ahead = clock(ask) + 60_000_000;
        ask(&["SET", "fence", &ahead.to_string()]);
        for step in 1..=2 {
            let minted = take(ask, &format!("lock:{step}"), "1000");
            assert_eq!((minted.first, minted.count), (ahead + step, 1), "one by one");
            assert!((1_000_000..=60_000_001).contains(&minted.ahead), "{minted:?}");
        }
    });
}

/// A proxy repeats a command that was executed.
#[test]
fn a9_a_take_that_finds_its_own_token_mints_again() {
    on_both(|ask| {
        let first = take(ask, "a", "64");
        let again = take(ask, "a", "64");
        assert!(again.first > first.last(), "{again:?} after {first:?}");
        assert_eq!(number(&ask(&["GET", "fence"])), again.last());
    });
}

/// Locks in one script read the clock once and update the counter once. They share the gap, and
/// their tokens do not overlap.
#[test]
fn a9_locks_that_are_taken_together_share_the_gap() {
    on_both(|ask| {
        let take = |ask: Ask<'_>, keys: [&str; 3], wanted: &str| {
            let tokens = [7, 8, 9].map(|number| format!("{TOKEN}{number}"));
            let [k, l, m] = keys;
            let [a, b, c] = tokens.each_ref().map(String::as_str);
            ask(&["EVAL", script::TAKE_FREE.source, "4", k, l, m, "fence", a, b, c, "10000", wanted])
        };
        let first = minted(&take(ask, ["a", "b", "c"], "1000"));
        assert_eq!((first.count, first.ahead), (1, 0), "how many were minted in the last µs is not known");
        assert_eq!(number(&ask(&["GET", "fence"])), first.first + 2);
        ask(&["SET", "fence", "5"]);
        let more = minted(&take(ask, ["d", "e", "f"], "1000"));
        assert_eq!((more.count, more.ahead), (1_000, 0));
        assert_eq!(number(&ask(&["GET", "fence"])), more.first + 2_999);
        let ahead = clock(ask) + 60_000_000;
        ask(&["SET", "fence", &ahead.to_string()]);
        let last = minted(&take(ask, ["g", "h", "i"], "1000"));
        assert_eq!((last.first, last.count), (ahead + 1, 1), "one for each");
        // Each has a separate reply with its own tokens.
        ask(&["RPUSH", "k", "data"]);
        let Reply::Bulk(text) = take(ask, ["j", "k", "a"], "1000") else { panic!("not all are free") };
        let words: Vec<_> = core::str::from_utf8(&text).unwrap().split(' ').collect();
        let [first, "1", _, "g", "x", left] = words[..] else { panic!("{words:?}") };
        assert_eq!(first.parse::<i64>().unwrap(), ahead + 4);
        assert!((9_000..=10_000).contains(&left.parse::<i64>().unwrap()), "{left}");
        // An error for the first lock is an error for all, and nothing is written.
        assert!(matches!(take(ask, ["k", "l", "m"], "1000"), Reply::Line('-', text) if text.starts_with("WRONGTYPE")));
        assert_eq!(ask(&["EXISTS", "l", "m"]), Reply::Int(0));
    });
}

/// The result of each lock does not depend on its neighbours.
#[test]
fn p4_renewals_and_releases_of_several_locks_have_answers_of_their_own() {
    on_both(|ask| {
        let token = format!("{TOKEN}7");
        let text = |reply: Reply| {
            let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
            String::from_utf8(text).unwrap()
        };
        ask(&["SET", "b", "another"]);
        ask(&["SET", "waits", "1"]);
        ask(&["RPUSH", "c", "data"]);
        for key in ["a", "e"] {
            ask(&["SET", key, &token, "PX", "5000"]);
        }
        let t = token.as_str();
        let keys = ["a", "b", "c", "d", "e"];
        let extend = |ask: Ask<'_>, keys: &[&str]| {
            let count = keys.len().to_string();
            let head = ["EVAL", script::EXTEND_MANY.source, &count];
            ask(&[&head[..], keys, &vec![t; keys.len()][..], &["60000"]].concat())
        };
        assert_eq!(text(extend(ask, &keys)), "1 -1 x 0 1");
        for key in ["a", "e"] {
            assert!(matches!(ask(&["PTTL", key]), Reply::Int(50_000..=60_000)));
        }
        assert_eq!(extend(ask, &["a", "e"]), Reply::Int(1));
        let release = |ask: Ask<'_>, keys: &[&str], markers: &[&str], signals: &[&str]| {
            let count = (keys.len() + markers.len() + signals.len()).to_string();
            let head = ["EVAL", script::RELEASE_MANY.source, &count];
            ask(&[&head[..], keys, markers, signals, &vec![t; keys.len()][..]].concat())
        };
        let (markers, signals) = (["none", "none", "none", "none", "waits"], ["s1", "s2", "s3", "s4", "s5"]);
        assert_eq!(text(release(ask, &keys, &markers, &signals)), "-2 -1 x 0 -3");
        assert_eq!(ask(&["EXISTS", "a", "e", "waits", "s1"]), Reply::Int(0));
        assert_eq!((ask(&["EXISTS", "b", "c"]), ask(&["LLEN", "s5"])), (Reply::Int(2), Reply::Int(1)));
        ask(&["SET", "a", t, "PX", "5000"]);
        ask(&["SET", "e", t, "PX", "5000"]);
        assert_eq!(release(ask, &["a", "e"], &[], &[]), Reply::Int(-2));
        assert_eq!(ask(&["EXISTS", "a", "e"]), Reply::Int(0));
    });
}

#[test]
fn a9_an_extend_mints_for_the_owner_only() {
    on_both(|ask| {
        assert_eq!(extend(ask, "a", "64"), Reply::Int(0));
        ask(&["SET", "a", "another", "PX", "10000"]);
        assert_eq!(extend(ask, "a", "64"), Reply::Int(-1));
        assert_eq!(ask(&["EXISTS", "fence"]), Reply::Int(0));
        let first = take(ask, "b", "64");
        ask(&["PEXPIRE", "b", "5000"]);
        let more = minted(&extend(ask, "b", "64"));
        assert!(more.first > first.last(), "{more:?} after {first:?}");
        let Reply::Int(left) = ask(&["PTTL", "b"]) else { panic!("no PTTL") };
        assert!(left > 5_000, "it was extended: {left}");
        // Rejected before the key is touched.
        // A1
        ask(&["SET", "fence", "nonsense"]);
        ask(&["PEXPIRE", "b", "5000"]);
        assert!(matches!(extend(ask, "b", "64"), Reply::Line('-', text) if text.starts_with("LOCKFENCE")));
        let Reply::Int(left) = ask(&["PTTL", "b"]) else { panic!("no PTTL") };
        assert!(left <= 5_000, "{left}");
    });
}

/// In a quorum, the node that wakes waiters may have another client's token, or none.
#[test]
fn a7_a_release_wakes_a_waiter_whatever_the_key_holds() {
    on_both(|ask| {
        let token = format!("{TOKEN}7");
        let other = "fedcba9876543210fedcba9876543210:1";
        for (value, alone, among) in [(None, 0, "0 0"), (Some(other), -1, "-1 0"), (Some(&*token), -3, "-3 0")] {
            let prepare = |ask: Ask<'_>| {
                ask(&["FLUSHALL"]);
                ask(&["SET", "marker", "1"]);
                if let Some(value) = value {
                    ask(&["SET", "a", value]);
                }
            };
            let woken = |ask: Ask<'_>| {
                assert_eq!(ask(&["EXISTS", "marker"]), Reply::Int(0), "{value:?}");
                assert_eq!(ask(&["LLEN", "signal"]), Reply::Int(1), "{value:?}");
                assert_eq!(ask(&["EXISTS", "a"]), Reply::Int(i64::from(value == Some(other))));
            };
            prepare(ask);
            let reply = ask(&["EVAL", script::RELEASE.source, "3", "a", "marker", "signal", &token, "0 0 0"]);
            assert_eq!(reply, Reply::Int(alone));
            woken(ask);
            prepare(ask);
            let keys = ["a", "b", "marker", "other-marker", "signal", "other-signal"];
            let reply = ask(&[&["EVAL", script::RELEASE_MANY.source, "6"], &keys[..], &[&token, other]].concat());
            assert_eq!(reply, Reply::Bulk(among.into()));
            woken(ask);
        }
    });
}

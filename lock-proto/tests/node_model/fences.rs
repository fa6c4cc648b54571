//! What the scripts mint, on a real server and on the simulated one.

use lock_proto::Instant;
use lock_proto::redis::script;
use lock_proto::sim::redis::{Node, NodeConfig};

use crate::reply::{Reply, parse};
use crate::server::{RealConnection, RealServer, encode};

const TOKEN: &str = "0123456789abcdef0123456789abcdef:";

/// Asks a server.
type Ask<'a> = &'a mut dyn FnMut(&[&str]) -> Reply;

/// What a script has minted.
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

/// The server's clock in µs.
fn clock(ask: Ask<'_>) -> i64 {
    let Reply::List('*', parts) = ask(&["TIME"]) else { panic!("no time") };
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

/// Runs a check against a real server and the simulated one, whose clock moves by its commands only.
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

/// Somebody on the way repeats a command that was executed.
#[test]
fn a9_a_take_that_finds_its_own_token_mints_again() {
    on_both(|ask| {
        let first = take(ask, "a", "64");
        let again = take(ask, "a", "64");
        assert!(again.first > first.last(), "{again:?} after {first:?}");
        assert_eq!(number(&ask(&["GET", "fence"])), again.last());
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
        // Refused before the key is touched (requirement A1).
        ask(&["SET", "fence", "nonsense"]);
        ask(&["PEXPIRE", "b", "5000"]);
        assert!(matches!(extend(ask, "b", "64"), Reply::Line('-', text) if text.starts_with("LOCKFENCE")));
        let Reply::Int(left) = ask(&["PTTL", "b"]) else { panic!("no PTTL") };
        assert!(left <= 5_000, "{left}");
    });
}

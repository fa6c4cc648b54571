//! The contract of every machine (docs/spec/machines.md).

#![allow(clippy::unwrap_used, reason = "tests")]

use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;
use lock_proto::{
    Acquire, ByteClient, ClientId, ConnId, Event, Fault, Instant, LockClient, LockId, Loss, Machine, Misuse, NodeId,
    Wait,
};

use lock_proto::redis::{
    Client, Config, Endpoint, FenceBlock, Form, Identity, Key, KeyLayout, Locks, LocksOutput, Output, Pipe, Reply,
    Request, Retired, Wake,
};

fn ms(n: u64) -> Instant {
    Instant::from_millis(1_000_000 + n)
}

fn config() -> Config {
    Config::new([Endpoint::parse("redis://127.0.0.1:1").unwrap()]).wake(Wake::Poll).fencing(false)
}

fn hub() -> Locks {
    Locks::new(ms(0), config(), ClientId::from_bits(1), 2).unwrap()
}

fn client() -> Client {
    Client::new(ms(0), config(), ClientId::from_bits(1), 2).unwrap()
}

fn drain(locks: &mut Locks) -> Vec<LocksOutput> {
    core::iter::from_fn(|| locks.poll_output()).collect()
}

/// Acquires a lock that `locks` holds from `at` on.
fn hold(locks: &mut Locks, at: Instant, name: &str) -> LockId {
    let id = locks.acquire(at, &Acquire::new(name).ttl(Duration::from_secs(9))).unwrap();
    for output in drain(locks) {
        if let LocksOutput::Send { call, .. } = output {
            locks.handle_reply(at, call, &Reply::Granted { fence: None });
        }
    }
    locks.claim(at, id).unwrap();
    drain(locks);
    id
}

fn connected(client: &mut Client) -> (LockId, ConnId) {
    let id = client.acquire(ms(0), &Acquire::new("a").ttl(Duration::from_secs(9))).unwrap();
    let Some(Output::Connect { conn, .. }) = client.poll_output() else { panic!("a connection is wanted") };
    client.handle_connected(ms(0), conn);
    let n = client.outgoing(conn).len();
    client.consume(conn, n);
    (id, conn)
}

#[test]
fn machines_are_values() {
    // D2
    fn value<T: Clone + Debug + Eq + Hash + Send + Sync + 'static>() {}
    value::<Client>();
    value::<Locks>();
    value::<Pipe>();
    value::<Output>();
    let (mut one, mut two) = (client(), client());
    connected(&mut one);
    assert_ne!(one, two);
    connected(&mut two);
    assert_eq!(one, two, "equal histories, equal machines");
}

#[test]
fn hub_is_usable_without_connection() {
    // D5
    let mut locks = hub();
    let id = hold(&mut locks, ms(0), "a");
    assert!(locks.valid_until(id).is_some());
}

#[test]
fn backward_time_is_clamped_and_input_still_counts() {
    // M1
    let mut locks = hub();
    let id = hold(&mut locks, ms(5_000), "a");
    let end = locks.valid_until(id).unwrap();
    locks.handle_timeout(ms(0));
    locks.release(ms(1), id).unwrap();
    assert!(drain(&mut locks).iter().any(|output| matches!(output, LocksOutput::Send { .. })));
    assert!(end > ms(5_000));
}

#[test]
fn loss_is_queued_before_requests_of_same_call() {
    // M2
    let mut locks = hub();
    hold(&mut locks, ms(0), "a");
    locks.acquire(ms(1), &Acquire::new("a")).unwrap();
    drain(&mut locks);
    // Any call expires the hold first, whatever it is about.
    locks.handle_node_up(ms(60_000), NodeId::new(0), None);
    let outputs = drain(&mut locks);
    assert!(matches!(outputs[0], LocksOutput::Event { event: Event::Lost(Loss::Expired), .. }), "{outputs:?}");
    assert!(matches!(outputs[1], LocksOutput::Send { .. }), "the waiter contends after it");
}

#[test]
fn loss_after_pause_precedes_broken_connection() {
    // T2
    let mut client = client();
    let (id, conn) = connected(&mut client);
    client.handle_received(ms(0), conn, b"*2\r\n:1\r\n:0\r\n");
    client.claim(ms(0), id).unwrap();
    while client.poll_output().is_some() {}
    client.handle_disconnected(ms(60_000), conn, Fault::Reset);
    let first = client.poll_output();
    assert!(matches!(first, Some(Output::Event { event: Event::Lost(_), .. })), "{first:?}");
}

#[test]
fn polling_drained_output_changes_nothing() {
    // M3
    let mut locks = hub();
    hold(&mut locks, ms(0), "a");
    locks.handle_timeout(ms(3_100));
    assert_eq!(locks.next_deadline(), Some(ms(3_100)), "output is queued");
    let sent = drain(&mut locks);
    assert_eq!(sent.len(), 1);
    let quiet = locks.clone();
    assert_eq!(locks.poll_output(), None);
    assert_eq!(locks, quiet);
}

/// Whether there are bytes to write is known per connection, before anything is encoded.
#[test]
fn has_outgoing_consumes_nothing() {
    // P4
    let mut client = client();
    let (_, conn) = connected(&mut client);
    assert!(!client.has_outgoing(conn));
    client.acquire(ms(1), &Acquire::new("b")).unwrap();
    assert!(client.has_outgoing(conn));
    let n = client.outgoing(conn).len();
    assert!(n > 0 && client.has_outgoing(conn), "it has not left");
    client.consume(conn, n);
    assert!(!client.has_outgoing(conn));
    client.acquire(ms(2), &Acquire::new("c")).unwrap();
    client.handle_disconnected(ms(3), conn, Fault::Closed);
    assert!(!client.has_outgoing(conn), "it is no more");
}

#[test]
fn failed_verb_changes_nothing_and_unknown_input_is_ignored() {
    // M5
    let mut locks = hub();
    let id = hold(&mut locks, ms(0), "a");
    let before = locks.clone();
    assert_eq!(locks.claim(ms(0), id), Err(Misuse::NotOffered(id)));
    assert!(matches!(locks.acquire(ms(0), &Acquire::new("")), Err(Misuse::Invalid(_))));
    assert!(matches!(locks.acquire(ms(0), &Acquire::new("lock-proto:fence")), Err(Misuse::Invalid(_))));
    assert!(matches!(locks.acquire(ms(0), &Acquire::new([b'x'; 513])), Err(Misuse::Invalid(_))));
    assert!(matches!(locks.acquire(ms(0), &Acquire::new("b").ttl(Duration::ZERO)), Err(Misuse::Invalid(_))));
    assert_eq!(locks, before);
    assert!(hub().acquire(ms(0), &Acquire::new([b'x'; 512])).is_ok(), "the longest name");
    // Input for unknown nodes, keys and calls.
    let mut other = hub();
    other.acquire(ms(0), &Acquire::new("z")).unwrap();
    let Some(LocksOutput::Send { call, .. }) = other.poll_output() else { panic!("a request") };
    for reply in [
        Reply::Granted { fence: Some(FenceBlock { first: 1, count: 1, ahead_ms: 0 }) },
        Reply::Absent,
        Reply::Extended,
        Reply::Announced,
    ] {
        locks.handle_reply(ms(0), call, &reply);
    }
    locks.handle_node_up(ms(0), NodeId::new(99), None);
    locks.handle_subscribed(ms(0), NodeId::new(99), &Key::new(b"", b"nobody"));
    locks.handle_unsubscribed(ms(0), NodeId::new(0), &Key::new(b"", b"a"));
    assert_eq!(drain(&mut locks), []);
    assert!(locks.valid_until(id).is_some());
}

#[test]
fn ended_id_stays_stale_after_slot_reuse() {
    // M6
    let mut locks = hub();
    let first = hold(&mut locks, ms(0), "a");
    locks.abandon(ms(1), first);
    let second = hold(&mut locks, ms(2), "b");
    assert_ne!(first, second);
    assert_eq!(locks.release(ms(3), first), Err(Misuse::Stale(first)));
    locks.abandon(ms(3), first);
    assert!(locks.valid_until(second).is_some());
}

#[test]
fn only_due_locks_are_touched() {
    // M7
    let mut locks = hub();
    for n in 0..2_000 {
        hold(&mut locks, ms(n), &format!("lock {n}"));
    }
    // Jitter moves a renewal by up to 300 ms, and about nine fall on one beat. So only a part is
    // due at any time, and each renewal is sent once.
    let mut renewals = 0;
    let mut at = locks.next_deadline().unwrap();
    while at < ms(5_100) {
        locks.handle_timeout(at);
        let due = drain(&mut locks);
        assert!(!due.is_empty() && due.len() < 40, "{} at {at}", due.len());
        for output in due {
            let LocksOutput::Send { call, request: Request::Extend { .. }, .. } = output else { panic!("{output:?}") };
            locks.handle_reply(at, call, &Reply::Extended);
            renewals += 1;
        }
        drain(&mut locks);
        at = locks.next_deadline().unwrap();
    }
    assert_eq!(renewals, 2_000);
}

#[test]
fn machines_with_same_id_send_same_token() {
    // M9
    let take = |client: u128| {
        let request = Request::Take {
            key: Key::new(b"", b"a"),
            number: 1,
            retired: Retired::all_to(0),
            ttl_ms: 1_000,
            fence_block: 0,
            clean: true,
            waiting_ms: 0,
        };
        let identity = Identity::new(ClientId::from_bits(client), KeyLayout::default(), b"");
        request.with_args(&identity, Form::Source, |args| args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>())
    };
    assert_eq!(take(1), take(1), "the same token: both would hold");
    assert_ne!(take(1), take(2));
}

#[test]
fn zero_wait_makes_one_attempt() {
    // A5
    let mut locks = hub();
    locks.acquire(ms(0), &Acquire::new("a").wait(Wait::For(Duration::ZERO))).unwrap();
    locks.handle_timeout(ms(0));
    let outputs = drain(&mut locks);
    let [LocksOutput::Send { call, .. }] = outputs[..] else { panic!("{outputs:?}") };
    locks.handle_reply(ms(1), call, &Reply::Granted { fence: None });
    assert!(matches!(drain(&mut locks)[..], [LocksOutput::Event { event: Event::Granted(_), .. }]));
}

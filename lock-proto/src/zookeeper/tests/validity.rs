//! What proves that a session lives, and for how long.

use super::sessions::{VALID_MS, ms_until, told};
use super::*;
use crate::id::CallId;
use crate::zookeeper::codec::{MultiOp, MultiResult, Op, ReplyBody, Stat};
use crate::zookeeper::{Locks, LocksOutput, Reply, Request, SessionId, SessionOutput, SessionReport};

#[test]
fn answered_pings_prove_nothing() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    // As by a server that is cut off from its leader.
    w.server.mute = Some((OpCode::Multi, false));
    let pings = w.server.count(OpCode::Ping);
    w.pass(VALID_MS - 1);
    assert_eq!(w.lost(0, lock), None);
    w.pass(1);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
    assert!(w.server.count(OpCode::Ping) > pings);
}

#[test]
fn only_holder_and_next_waiter_are_renewed() {
    // ZK1
    let mut w = ZooKeeperClients::new(4);
    let (mut held, _) = w.hold(0);
    let waiting: Vec<LockId> = (1..4).map(|client| w.acquire(client)).collect();
    w.pass(60_000);
    let renewals =
        |w: &ZooKeeperClients, session| w.server.log.iter().filter(|entry| **entry == (session, OpCode::Multi)).count();
    assert!((1..=2).all(|session| renewals(&w, session) >= 60_000 / (VALID_MS as usize / 3)));
    assert!((3..=4).all(|session| renewals(&w, session) == 0), "pings keep them");
    for (client, next) in waiting.into_iter().enumerate() {
        w.release(client, held);
        w.granted(client + 1, next).unwrap();
        assert!(w.clients[client + 1].valid_until(next).unwrap().since(w.now).as_millis() as u64 > VALID_MS / 3);
        held = next;
    }
    assert!((3..=4).all(|session| renewals(&w, session) == 1), "each is proven before its turn");
}

#[test]
fn creates_of_nodes_renew_the_session_of_one_who_only_waits() {
    // ZK1
    let mut w = ZooKeeperClients::new(3);
    let mut turns: Vec<LockId> = (0..3).map(|client| w.acquire(client)).collect();
    for turn in 0..30 {
        let client = turn % 3;
        w.granted(client, turns[client]).unwrap();
        // A session renews after a third of its validity, which is longer than three turns.
        w.pass(800);
        w.release(client, turns[client]);
        turns[client] = w.acquire(client);
    }
    assert_eq!(w.server.count(OpCode::Multi), 0);
}

/// Each renewal is a new connection and a write on it, whatever the contacts are.
#[test]
fn revalidated_session_is_proven_by_connections_alone() {
    // ZK1
    let mut w = ZooKeeperClients::with(2, |config| config.revalidate(true));
    let (lock, _) = w.hold(0);
    let waiting = w.acquire(1);
    let before = w.connects;
    w.pass(60_000);
    let renewals = w.server.count(OpCode::Multi);
    assert!(renewals >= 2 * 60_000 / (VALID_MS as usize / 3), "{renewals}");
    assert_eq!((w.connects - before, w.lost(0, lock), w.server.sessions.len()), (renewals, None, 2));
    w.release(0, lock);
    w.granted(1, waiting).unwrap();
    // While nothing has to be proven, the connection stays.
    w.release(1, waiting);
    let before = w.connects;
    w.pass(60_000);
    assert_eq!(w.connects, before);
    let (lock, _) = w.hold(0);
    assert_eq!((w.connects - before, ms_until(&w, w.now, lock)), (1, VALID_MS));
}

/// A new leader gives a session the timeout of its creation, and a server that it has left reports
/// it with its own.
#[test]
fn server_that_grants_longer_session_does_not_extend_validity() {
    // ZK1
    let mut w = ZooKeeperClients::with(1, |config| config.session_ttl(Duration::from_secs(60)));
    let (lock, _) = w.hold(0);
    assert_eq!(ms_until(&w, w.now, lock), VALID_MS);
    w.server.granted_ms = 60_000;
    w.pass(1_000);
    w.cut(0);
    w.pass(10_000);
    assert_eq!(w.lost(0, lock), None);
    let valid = ms_until(&w, w.now, lock);
    assert!(valid > VALID_MS / 2 && valid <= VALID_MS, "{valid}");
}

#[test]
fn server_that_grants_shorter_session_moves_end_of_validity_back() {
    // T3, ZK6
    let mut w = ZooKeeperClients::with(1, |config| config.session_ttl(Duration::from_secs(30)));
    w.server.granted_ms = 30_000;
    let (lock, _) = w.hold(0);
    w.server.granted_ms = 15_000;
    w.server.mute = Some((OpCode::Multi, false));
    w.cut(0);
    w.pass(1_000);
    let valid = ms_until(&w, w.now, lock);
    assert!(valid > VALID_MS - 1_000 && valid <= VALID_MS, "{valid}");
    assert_eq!(told(&w, lock), w.clients[0].valid_until(lock));
    w.pass(valid - 1);
    assert_eq!(w.lost(0, lock), None);
    w.pass(2);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
}

/// The leader may have been stopped, and may end the session before it hears of the pings.
#[test]
fn session_kept_by_pings_is_proven_by_the_next_create_or_by_a_new_connection() {
    // ZK1
    for (idle_ms, connections) in [(8_000, 0), (60_000, 1)] {
        let mut w = ZooKeeperClients::new(1);
        let (lock, _) = w.hold(0);
        w.release(0, lock);
        w.pass(idle_ms);
        let (now, from, before) = (w.now, w.server.log.len(), w.connects);
        let (lock, _) = w.hold(0);
        assert_eq!((w.lost(0, lock), ms_until(&w, now, lock)), (None, VALID_MS), "{idle_ms}");
        assert_eq!((w.connects - before, w.server.sessions.len()), (connections, 1), "{idle_ms}");
        let codes: Vec<OpCode> = w.server.log[from..].iter().map(|(_, code)| *code).collect();
        let expected = [OpCode::Multi, OpCode::Create, OpCode::GetChildren];
        assert_eq!(codes, expected[1 - connections..], "{idle_ms}");
    }
}

/// The process is stopped, and the server that it is connected to has not told its leader of the
/// session since. The write that follows is executed all the same.
#[test]
fn write_after_pause_proves_no_more_than_the_leader_has_heard() {
    // ZK1
    const TTL_MS: u64 = 60_000;
    let mut w = ZooKeeperClients::with(1, |config| config.session_ttl(Duration::from_millis(TTL_MS)));
    w.server.granted_ms = TTL_MS as i32;
    let (lock, _) = w.hold(0);
    w.pass(10_000);
    let stopped = w.now;
    w.now = w.now + Duration::from_millis(40_000);
    let writes = w.server.count(OpCode::Multi);
    w.pass(0);
    assert_eq!(w.server.count(OpCode::Multi), writes + 1);
    assert!(ms_until(&w, stopped, lock) < TTL_MS, "{}", ms_until(&w, stopped, lock));
    // Once the server has told its leader, a write proves as much as ever.
    w.pass(2_500);
    assert_eq!(w.server.count(OpCode::Multi), writes + 2);
    assert!(ms_until(&w, w.now, lock) > TTL_MS - 10_000, "{}", ms_until(&w, w.now, lock));
    assert_eq!(w.lost(0, lock), None);
    w.pass(120_000);
    assert_eq!(w.lost(0, lock), None);
}

/// A hub with a hold, and its first renewal, which waits for its reply.
struct FirstRenewal {
    locks: Locks,
    session: SessionId,
    lock: LockId,
    call: CallId,
    now: Instant,
}

impl FirstRenewal {
    /// The session was opened at 1 s.
    fn of_session(ttl: Duration) -> Self {
        let mut now = Instant::from_millis(1_000);
        let config = Config::parse("zk://h").unwrap().session_ttl(ttl);
        let mut locks = Locks::new(now, config, ClientId::from_bits(1), 7).unwrap();
        let lock = locks.acquire(now, &Acquire::new("l")).unwrap();
        let Some(LocksOutput::Store(SessionOutput::Open { session, timeout })) = locks.poll_output() else { panic!() };
        locks.handle_session(now, session, &SessionReport::Up { emitted: now, timeout, owner: 1 });
        let mut calls = Vec::new();
        while let Some(output) = locks.poll_output() {
            if let LocksOutput::Send { call, request, .. } = output {
                calls.push((call, request.op));
            }
        }
        let [(create, Op::Write(MultiOp::Create { path, .. })), (list, Op::GetChildren { .. })] = &calls[..] else {
            panic!("{calls:?}")
        };
        let path: alloc::boxed::Box<str> = alloc::format!("{path}0000000000").into();
        let stat = Stat { czxid: 9, ephemeral_owner: 1, ..Stat::default() };
        let names = core::iter::once(path.rsplit_once('/').unwrap().1).collect();
        locks.handle_reply(now, *create, &Reply::Done(ReplyBody::Created { path, stat }));
        locks.handle_reply(now, *list, &Reply::Done(ReplyBody::Children(names)));
        locks.claim(now, lock).unwrap();
        let mut contact = now;
        loop {
            match locks.poll_output() {
                Some(LocksOutput::Send { call, request: Request { op: Op::Multi(_), .. }, .. }) => {
                    return Self { locks, session, lock, call, now };
                }
                Some(_) => {}
                None => {
                    now = locks.next_deadline().unwrap();
                    while contact + Duration::from_secs(2) <= now {
                        contact = contact + Duration::from_secs(2);
                        locks.handle_session(contact, session, &SessionReport::Contact(contact));
                    }
                    locks.handle_timeout(now);
                }
            }
        }
    }

    /// The reply comes after this time. Returns when the validity ends.
    fn answered_after(mut self, time: Duration) -> Instant {
        let committed = Reply::Done(ReplyBody::Multi([MultiResult::Checked].into()));
        self.locks.handle_reply(self.now + time, self.call, &committed);
        self.locks.valid_until(self.lock).unwrap()
    }
}

/// The leader may have been stopped while a write took long, and be stopped again before it hears
/// of the contacts.
#[test]
fn slow_write_proves_no_more_than_was_known_before_the_last_one() {
    // ZK1
    let ttl = Duration::from_secs(60);
    let validity = Duration::from_millis(60_000 - 6_000 - 602);
    for (ms, slow) in [(0, false), (750, false), (751, true), (5_000, true)] {
        let renewal = FirstRenewal::of_session(ttl);
        let proven = if slow { Instant::from_millis(1_000 + 5_250) } else { renewal.now };
        assert_eq!(renewal.answered_after(Duration::from_millis(ms)), proven + validity, "{ms}");
    }
}

/// Regression: a lock's write and a renewal waited at a stopped leader together. The first of them
/// counted as proof, for the second one, that the leader had run in between.
#[test]
fn writes_that_wait_together_prove_nothing_for_each_other() {
    // ZK1
    let ttl = Duration::from_secs(60);
    let stopped = Duration::from_secs(5);
    let mut renewal = FirstRenewal::of_session(ttl);
    renewal.locks.acquire(renewal.now, &Acquire::new("m")).unwrap();
    let create = loop {
        if let LocksOutput::Send { call, request, .. } = renewal.locks.poll_output().unwrap()
            && let Op::Write(MultiOp::Create { path, .. }) = request.op
        {
            let path = alloc::format!("{path}0000000000").into();
            let stat = Stat { czxid: 10, ephemeral_owner: 1, ..Stat::default() };
            break (call, Reply::Done(ReplyBody::Created { path, stat }));
        }
    };
    renewal.locks.handle_reply(renewal.now + stopped, create.0, &create.1);
    let validity = Duration::from_millis(60_000 - 6_000 - 602);
    assert_eq!(renewal.answered_after(stopped), Instant::from_millis(1_000 + 5_250) + validity);
}

/// Regression: the contacts that it counts from were forgotten, and no write proved anything.
#[test]
fn write_that_takes_two_ticks_proves_the_session() {
    // ZK1
    let eighth = Duration::from_millis(3_000 / 8);
    let mut renewal = FirstRenewal::of_session(Duration::from_secs(15));
    let before = renewal.locks.valid_until(renewal.lock).unwrap();
    for n in 1..=14 {
        let now = renewal.now + eighth * n;
        renewal.locks.handle_session(now, renewal.session, &SessionReport::Contact(now));
    }
    assert!(renewal.answered_after(eighth * 14) > before, "{before:?}");
}

//! Whole clients (`etcd::Client`) with a simulated cluster and network (`sim::etcd::World`): the
//! cases of the failure catalogue that involve connections, and tests of the world itself.
//!
//! Tests named `catalogue_…` contain the id of a case in `docs/failures.md`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;

use lock_proto::OperationEvent;
use lock_proto::{Acquire, Event, LockId, Release};
use lock_sim::Direction;
use lock_sim::etcd::World;
use lock_sim::trace::{Delivery, Lane, Point, ProcessState, Trace, TraceEvent};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn held(w: &mut World, client: usize, name: &str) -> LockId {
    let lock = w.acquire(client, Acquire::new(name));
    w.expect(secs(2), "the lock is held", |w| w.is_held(client, lock));
    lock
}

fn release_and_wait(w: &mut World, client: usize, lock: LockId) {
    w.release(client, lock);
    w.expect(secs(3), "the release is answered", |w| w.is_over(client, lock));
}

#[track_caller]
fn end(w: &mut World, clients: usize) {
    for client in (0..clients).filter(|client| !w.is_dead(*client)).collect::<Vec<_>>() {
        w.shutdown(client, secs(20));
    }
    w.run_for(secs(25));
    w.on_cluster("cleared", |cluster, now| cluster.delete(now, "something else"));
    let cluster = w.cluster_now();
    assert!(cluster.keys().is_empty() && cluster.leases().is_empty(), "{:?} {:?}", w.keys(), cluster.leases());
    assert_eq!(cluster.connection_count(), 0);
}

#[test]
fn catalogue_m2_compaction_during_wait_is_no_error() {
    for crash in [false, true] {
        let mut w = World::cluster(3).clients(2).seed(1).build();
        let first = held(&mut w, 0, "a");
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(100));
        (0..100).for_each(|_| w.touch());
        if crash {
            w.kill_member(0);
            w.kill_member(1);
            w.start_member(1);
        }
        w.compact();
        w.run_for(secs(3));
        assert!(w.is_held(0, first) && !w.is_held(1, second));
        w.release(0, first);
        w.expect(secs(1), "the waiter is served", |w| w.is_held(1, second));
        end(&mut w, 2);
    }
}

#[test]
fn catalogue_s3_new_leader_prolongs_lease_of_dead_holder() {
    let mut w = World::cluster(3).clients(2).seed(1).build();
    held(&mut w, 0, "a");
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(1));
    w.kill_client(0);
    w.run_for(secs(8));
    w.change_leader();
    w.run_for(secs(8));
    assert!(!w.is_held(1, second));
    w.expect(secs(5), "the lease ends at last", |w| w.is_held(1, second));
    end(&mut w, 2);
}

#[test]
fn catalogue_s8_lock_survives_member_failures() {
    let mut w = World::cluster(3).clients(2).seed(1).build();
    let lock = held(&mut w, 0, "a");
    let waiter = w.acquire(1, Acquire::new("a"));
    for round in 0..9 {
        let member = round % 3;
        w.kill_member(member);
        w.run_for(secs(4));
        w.start_member(member);
        w.run_for(secs(2));
        assert!(w.is_held(0, lock), "round {round} {:?}", w.events(0, lock));
    }
    w.release(0, lock);
    w.expect(secs(1), "the waiter is served", |w| w.is_held(1, waiter));
    end(&mut w, 2);
}

/// A member that is isolated or paused does not answer. Its clients move to another one in time.
// E9
#[test]
fn client_leaves_isolated_or_paused_member() {
    // E9
    for member in 0..3 {
        for stop in [false, true] {
            let mut w = World::cluster(3).clients(2).seed(1).build();
            let lock = held(&mut w, 0, "a");
            let waiter = w.acquire(1, Acquire::new("a"));
            w.run_for(secs(4));
            if stop {
                w.pause_member(member)
            } else {
                w.isolate_member(member)
            }
            w.run_for(secs(30));
            assert!(w.is_held(0, lock), "{:?}", w.events(0, lock));
            w.release(0, lock);
            w.expect(secs(5), "the waiter is served", |w| w.is_held(1, waiter));
            if stop {
                w.resume_member(member)
            } else {
                w.rejoin_member(member)
            }
            end(&mut w, 2);
        }
    }
}

/// Watches start at the current revision, also when they are reopened during writes. etcd handles
/// watches that start earlier only every 100 ms. The world checks each watch.
#[test]
fn watches_never_start_in_past() {
    // E5
    let mut w = World::cluster(3).clients(6).seed(1).build();
    let mut locks: Vec<(usize, LockId)> = (0..6).map(|client| (client, w.acquire(client, Acquire::new("a")))).collect();
    for round in 0..60 {
        w.touch();
        if round % 10 == 3 {
            w.kill_member(round / 10 % 3);
            w.run_for(secs(3));
            w.start_member(round / 10 % 3);
        }
        w.expect(secs(5), "somebody holds it", |w| locks.iter().any(|(client, lock)| w.is_held(*client, *lock)));
        let place = locks.iter().position(|(client, lock)| w.is_held(*client, *lock)).unwrap();
        let (client, lock) = locks.remove(place);
        w.release(client, lock);
        locks.push((client, w.acquire(client, Acquire::new("a"))));
        w.run_for(ms(10));
    }
    assert!(w.grants() > 60);
    end(&mut w, 6);
}

#[test]
fn uncontended_lock_takes_two_calls() {
    // E3
    let mut w = World::cluster(1).seed(1).build();
    let lock = held(&mut w, 0, "a");
    release_and_wait(&mut w, 0, lock);
    let before: u64 = w.cluster_now().calls().values().sum();
    for _ in 0..50 {
        let lock = held(&mut w, 0, "a");
        release_and_wait(&mut w, 0, lock);
    }
    let cluster = w.cluster_now();
    assert_eq!(cluster.calls().values().sum::<u64>() - before, 100, "{:?}", cluster.calls());
    end(&mut w, 1);
}

/// A partitioned holder loses its lock by its own clock before the cluster ends its lease.
#[test]
fn partitioned_holder_is_notified_before_next_grant() {
    // T2
    for direction in [None, Some(Direction::ToNode), Some(Direction::ToClient)] {
        let mut w = World::cluster(3).clients(2).seed(3).build();
        let first = held(&mut w, 0, "a");
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(secs(3));
        for member in 0..3 {
            match direction {
                None => w.partition(0, member),
                Some(direction) => w.cut(0, member, direction),
            }
        }
        w.expect(secs(30), "the second holds", |w| w.is_held(1, second));
        let lost = w.events(0, first).iter().position(|event| matches!(event, Event::Lost(_))).unwrap();
        assert!(w.event_times(0, first)[lost] < *w.event_times(1, second).last().unwrap());
        w.heal_all();
        release_and_wait(&mut w, 0, first);
        assert!(matches!(w.events(0, first).last(), Some(Event::Released(Release::Expired | Release::Taken))));
        end(&mut w, 2);
    }
}

#[test]
fn late_write_of_old_holder_is_rejected() {
    // E8
    let mut late = 0;
    for seed in 0..40 {
        let mut w = World::cluster(1).clients(2).seed(seed).build();
        let first = held(&mut w, 0, "a");
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(50));
        w.write(0, first);
        w.release(0, first);
        w.expect(secs(2), "the second holds", |w| w.is_held(1, second));
        w.write(1, second);
        w.run_for(secs(16));
        let (accepted, refused) = w.writes();
        assert_eq!(accepted + refused, 2);
        late += refused;
        end(&mut w, 2);
    }
    assert!(late > 3, "some writes come late: {late}");
}

/// A process that resumes after its lease first learns of the loss, unless its clock stopped.
#[test]
fn clock_stopped_during_suspend_breaks_mutual_exclusion() {
    // T4
    for clock_stops in [false, true] {
        let mut w = World::cluster(1).clients(2).seed(5).build();
        w.expect_violation();
        let first = held(&mut w, 0, "a");
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(secs(1));
        if clock_stops {
            w.suspend_client(0)
        } else {
            w.pause_client(0)
        }
        w.expect(secs(20), "the second holds", |w| w.is_held(1, second));
        w.resume_client(0);
        assert_eq!(w.overlaps() > 0, clock_stops, "{:?}", w.violations());
        w.expect(secs(4), "the store ends the hold, if not the clock", |w| !w.is_held(0, first));
    }
}

/// Whatever watches and streams end, waiters are served and observers see every leader.
#[test]
fn waiter_survives_loss_of_its_watches() {
    // E4
    let mut w = World::cluster(3).clients(3).seed(2).build();
    for round in 0..6 {
        let first = w.campaign(0, Acquire::new("e"), format!("one {round}"));
        w.expect(secs(2), "the first leads", |w| w.is_held(0, first));
        let second = w.campaign(1, Acquire::new("e"), format!("two {round}"));
        let query = w.observe(2, "e");
        w.run_for(ms(200));
        match round {
            0 => w.cancel_watches(),
            1 => (0..3).for_each(|member| w.end_streams(member)),
            2 => (0..3).for_each(|member| w.drop_connections(1, member)),
            3 => w.compact(),
            4 => w.expire_tokens(),
            _ => w.change_leader(),
        }
        w.release(0, first);
        w.expect(secs(3), "the second leads", |w| w.is_held(1, second));
        let value = format!("two {round}");
        w.expect(
            secs(3),
            "the observer receives it",
            |w| matches!(w.observed(2, query).last(), Some(OperationEvent::Leader(leader)) if leader.value == value),
        );
        w.close_query(2, query);
        release_and_wait(&mut w, 1, second);
    }
    end(&mut w, 3);
}

/// The only member is paused. It executes the accepted requests on resume; leases have expired.
#[test]
fn single_member_serves_again_after_pause() {
    // S2
    let mut w = World::cluster(1).clients(2).seed(9).build();
    let first = held(&mut w, 0, "a");
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(1));
    w.pause_member(0);
    w.run_for(secs(20));
    assert!(!w.is_held(0, first) && !w.is_held(1, second));
    w.resume_member(0);
    w.expect(secs(20), "the second holds", |w| w.is_held(1, second));
    release_and_wait(&mut w, 0, first);
    end(&mut w, 2);
}

#[test]
fn same_seed_gives_same_log() {
    // S5
    let run = |seed| {
        let mut w = World::cluster(3).clients(3).seed(seed).build();
        for round in 0..20 {
            w.acquire_for(round % 3, Acquire::new("a"), ms(100));
            w.drop_connections((round + 1) % 3, round % 2);
            w.run_for(ms(70));
        }
        end(&mut w, 3);
        w.log()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

fn points(trace: &Trace, whose: usize, which: LockId) -> Vec<&Point> {
    let mut points = Vec::new();
    for entry in &trace.entries {
        if let TraceEvent::Lock { client, lock, point, .. } = &entry.what
            && (*client, *lock) == (whose, which)
        {
            points.push(point);
        }
    }
    points
}

fn words(trace: &Trace, whose: Option<Lane>) -> Vec<&str> {
    let mut words = Vec::new();
    for entry in &trace.entries {
        if let TraceEvent::Note { lane, text } = &entry.what
            && *lane == whose
        {
            words.push(&text[..]);
        }
    }
    words
}

#[test]
fn run_is_recorded_in_trace() {
    let mut w = World::cluster(3).clients(2).seed(3).traced(true).build();
    let leader = w.cluster_now().leader().unwrap();
    let first = held(&mut w, 0, "a");
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(5));
    w.write(0, first);
    w.run_for(secs(20));
    w.release(0, first);
    w.expect(secs(1), "the second holds", |w| w.is_held(1, second));

    let third = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(500));
    w.abandon(0, third);
    w.partition(0, 0);
    w.compact();
    w.isolate_member(leader);
    w.run_for(secs(3));
    w.heal(0, 0);
    w.rejoin_member(leader);
    w.kill_member(2);
    w.run_for(secs(1));
    w.start_member(2);
    w.suspend_client(1);
    w.run_for(secs(2));
    w.resume_client(1);
    w.run_for(secs(1));
    w.kill_client(1);
    w.run_for(secs(20));
    let ended = w.now();
    let trace = w.take_trace();

    assert_eq!((trace.clients, trace.nodes, trace.end, trace.calm), (2, 3, ended, None));
    let points_seen = points(&trace, 0, first);
    let renewed = points_seen.iter().filter(|point| matches!(point, Point::Renewed { .. })).count();
    let rest: Vec<_> = points_seen.into_iter().filter(|point| !matches!(point, Point::Renewed { .. })).collect();
    assert!(renewed > 2);
    assert!(
        matches!(
            rest[..],
            [Point::Requested, Point::Granted { fence: Some(_), .. }, Point::Claimed, Point::Released, Point::Ended(_)]
        ),
        "{rest:?}"
    );
    assert!(matches!(points(&trace, 1, second)[..], [Point::Requested, Point::Granted { .. }, Point::Claimed, ..]));
    assert_eq!(points(&trace, 0, third), [&Point::Requested, &Point::Released]);

    let at = |what: &TraceEvent| trace.entries.iter().find(|entry| entry.what == *what).map(|entry| entry.at);
    for (lane, states) in [
        (Lane::Node(2), &[ProcessState::Down, ProcessState::Running][..]),
        (Lane::Client(1), &[ProcessState::Paused, ProcessState::Running, ProcessState::Down]),
    ] {
        let mut seen = Vec::new();
        for entry in &trace.entries {
            if let TraceEvent::State { lane: whose, state } = entry.what
                && whose == lane
            {
                seen.push(state);
            }
        }
        assert_eq!(seen, states, "{lane}");
    }
    for direction in Direction::BOTH {
        let (cut, healed) =
            (TraceEvent::Cut { client: 0, node: 0, direction }, TraceEvent::Healed { client: 0, node: 0, direction });
        assert_eq!(at(&healed).unwrap().since(at(&cut).unwrap()), secs(3));
    }
    assert!(at(&TraceEvent::Clock { lane: Lane::Client(1), by: -2_000_000_000 }).is_some());
    assert!(
        trace.entries.iter().any(|entry| matches!(entry.what, TraceEvent::Write { client: 0, accepted: true, .. }))
    );

    // The cluster and its leases: the dead client's lease expires, the other one is kept alive.
    assert!(words(&trace, Some(Lane::Node(leader))).starts_with(&["leads", "cut off from the other members"]));
    assert!(words(&trace, None).contains(&"compacted") && words(&trace, None).contains(&"the cluster has no leader"));
    let leases = |client| {
        let words = words(&trace, Some(Lane::Client(client)));
        words.iter().filter(|word| word.starts_with("lease ")).filter_map(|word| word.rsplit(' ').next()).count()
    };
    assert_eq!((leases(0), leases(1)), (1, 2), "{:?}", trace.entries);

    let sent = |from, to, label: &str| {
        let mut all = trace.messages.iter();
        all.any(|message| (message.from, message.to) == (from, to) && message.label.starts_with(label))
    };
    let to_any = |client, label| (0..3).any(|member| sent(Lane::Client(client), Lane::Node(member), label));
    for label in ["connect", "put a/", "keep alive ", "watch a/", "delete a/"] {
        assert!(to_any(0, label) || to_any(1, label), "{label}");
    }
    assert!((0..3).any(|member| sent(Lane::Node(member), Lane::Client(0), "yes, at ")));
    assert!(sent(Lane::Client(0), Lane::Resource, "write, fence "));
    assert!(trace.messages.iter().all(|message| match message.delivery {
        Delivery::Arrived(at) | Delivery::Lost(at) => at >= message.sent,
        Delivery::InFlight => true,
    }));
}

#[test]
fn election_is_recorded_in_trace() {
    let mut w = World::cluster(1).clients(2).seed(5).traced(true).build();
    let _watcher = w.observe(1, "e");
    let candidate = w.campaign(0, Acquire::new("e"), "one");
    w.expect(secs(2), "elected", |w| w.is_held(0, candidate));
    w.run_for(secs(1));
    w.proclaim(0, candidate, "two");
    w.run_for(secs(1));
    release_and_wait(&mut w, 0, candidate);
    w.run_for(secs(1));
    w.shutdown(1, secs(5));
    w.run_for(secs(10));
    let trace = w.take_trace();
    let is_lease = |word: &&str| word.starts_with("lease ");
    let mut notes: Vec<_> = words(&trace, Some(Lane::Client(0)));
    notes.retain(|word| !is_lease(word));
    assert_eq!(notes, ["campaigns as one", "proclaims two", "has proclaimed"]);
    let mut notes: Vec<_> = words(&trace, Some(Lane::Client(1)));
    notes.retain(|word| !is_lease(word));
    assert!(notes.starts_with(&["observes e"]) && notes.ends_with(&["has stopped"]), "{notes:?}");
    for word in ["observes: e is led by one", "observes: e is led by two", "observes: nobody leads e", "is shut down"] {
        assert!(notes.contains(&word), "{word}: {notes:?}");
    }
}

//! Elections on stores of one's own.
// RG8

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use lock_driver::register::{Record, Register as _};
use lock_driver::{ElectionEvent, Observation, ProclaimError};
use lock_proto::{Leader, Loss, Release, Renew};
use lock_testkit::TIMEOUT;

use super::{TestStore, client, record, register};

const NAME: &str = "board";

/// Returns the next leader. There may be none in between.
fn next_leader(observation: &mut Observation) -> Leader {
    loop {
        match observation.next_blocking() {
            Some(ElectionEvent::Leader(leader)) => return leader,
            Some(ElectionEvent::NoLeader | ElectionEvent::Disconnected) => {}
            event => panic!("{event:?}"),
        }
    }
}

pub fn observer_sees_leaders_and_proclamations<S: TestStore>(store: &S) {
    let (first, second, third) = (client(store), client(store), client(store));
    let election = third.election(NAME);
    assert_eq!(election.leader_blocking().unwrap(), None);
    let mut observation = election.observe().unwrap();
    assert_eq!(observation.next_blocking(), Some(ElectionEvent::NoLeader));

    let mut leadership = first.election(NAME).ttl(S::TTL).campaign_blocking("one").unwrap();
    let leader = next_leader(&mut observation);
    assert_eq!((&*leader.value, &*leader.key), (&b"one"[..], NAME.as_bytes()));
    let fence = leadership.fence().unwrap();
    let busy = second.election(NAME).wait(Duration::ZERO).campaign_blocking("two").unwrap_err();
    assert!(busy.is_busy(), "{busy}");

    let revision = leadership.proclaim_blocking("uno").unwrap();
    assert!(revision > leader.mod_revision, "{revision} {leader:?}");
    let now = next_leader(&mut observation);
    assert_eq!((&*now.value, now.create_revision), (&b"uno"[..], leader.create_revision));
    assert!(now.mod_revision >= revision, "{now:?} {revision}");
    assert_eq!(election.leader_blocking().unwrap().unwrap().value, now.value);

    thread::scope(|scope| {
        let next = scope.spawn(|| second.election(NAME).ttl(S::TTL).campaign_blocking("two").unwrap());
        // A candidate that waits changes nothing.
        thread::sleep(Duration::from_millis(200));
        assert_eq!(election.leader_blocking().unwrap().unwrap().value, now.value);
        assert_eq!(leadership.resign_blocking(), Release::Released);
        let leadership = next.join().unwrap();
        assert!(leadership.fence().unwrap() > fence);
        let leader = next_leader(&mut observation);
        assert!(*leader.value == *b"two" && leader.create_revision > now.create_revision, "{leader:?}");
        assert_eq!(leadership.resign_blocking(), Release::Released);
    });
    assert_eq!(observation.next_blocking(), Some(ElectionEvent::NoLeader));
    assert_eq!(election.leader_blocking().unwrap(), None);
}

pub fn one_candidate_leads_at_a_time<S: TestStore>(store: &S) {
    let leaders = AtomicU32::new(0);
    let clients = [client(store), client(store), client(store)];
    thread::scope(|scope| {
        for (number, client) in clients.iter().chain(&clients).enumerate() {
            let leaders = &leaders;
            scope.spawn(move || {
                for round in 0..3 {
                    let value = format!("{number} {round}");
                    let mut leadership = client.election(NAME).ttl(S::TTL).campaign_blocking(value).unwrap();
                    assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                    let value = Bytes::from(format!("{number} {round} leads"));
                    leadership.proclaim_blocking(value.clone()).unwrap();
                    let seen = client.election(NAME).leader_blocking().unwrap();
                    assert_eq!(seen.map(|leader| leader.value), Some(value));
                    leaders.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(leadership.resign_blocking(), Release::Released);
                }
            });
        }
    });
}

/// A leader that was killed is seen to lead until its TTL has passed, and then another one does.
pub fn dead_leader_is_replaced<S: TestStore>(store: &S) {
    let dead = Record { held: true, value: "dead".into(), ..record::<S>(7, 1, None) };
    S::block_on(async { register(store).write(NAME.as_bytes(), &dead, None).await.unwrap() });
    let since = Instant::now();
    let (observer, candidate) = (client(store), client(store));
    let mut observation = observer.election(NAME).observe().unwrap();
    let leadership = candidate.election(NAME).ttl(S::TTL).wait(TIMEOUT).campaign_blocking("next").unwrap();
    assert!(since.elapsed() < S::TTL * 2 + TIMEOUT / 2, "{:?}", since.elapsed());
    let leader = loop {
        let leader = next_leader(&mut observation);
        if *leader.value != *b"dead" {
            break leader;
        }
    };
    assert_eq!(&*leader.value, b"next");
    assert!(u64::try_from(leader.create_revision).unwrap() > dead.fence, "{leader:?}");
    assert_eq!(leadership.resign_blocking(), Release::Released);
}

/// A leader that stalls knows that it leads no more before another one does.
pub fn leader_that_renews_no_more_is_replaced<S: TestStore>(store: &S) {
    let (first, second, third) = (client(store), client(store), client(store));
    let mut observation = third.election(NAME).observe().unwrap();
    let election = first.election(NAME).ttl(S::TTL).renew(Renew::Manual);
    let mut stalled = election.campaign_blocking("stalled").unwrap();
    assert_eq!(&*next_leader(&mut observation).value, b"stalled");
    let leadership = second.election(NAME).ttl(S::TTL).wait(TIMEOUT).campaign_blocking("next").unwrap();
    assert!(!stalled.is_held(), "two leaders");
    assert_eq!(stalled.proclaim_blocking("late"), Err(ProclaimError::Lost(Loss::Expired)));
    assert!(leadership.fence().unwrap() > stalled.fence().unwrap());
    assert_eq!(&*next_leader(&mut observation).value, b"next");
    let end = stalled.resign_blocking();
    assert!(matches!(end, Release::Expired | Release::Taken), "{end:?}");
    // The end of the former leader is none of the present one.
    thread::sleep(Duration::from_millis(200));
    let seen = third.election(NAME).leader_blocking().unwrap();
    assert_eq!(seen.map(|leader| leader.value), Some("next".into()));
    assert_eq!(leadership.resign_blocking(), Release::Released);
}

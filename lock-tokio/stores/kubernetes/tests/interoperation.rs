//! This library and client-go, by a model of its rules, exclude each other on one Lease.

#![allow(clippy::unwrap_used, reason = "tests")]

mod api;
mod client_go;

use core::pin::pin;
use core::time::Duration;

use api::ApiServer;
use client_go::LeaderElector;
use lock_driver::register::{Config, Register, RegisterError};
use lock_kubernetes::LeaseRegister;
use lock_proto::register::{Entry, Record};
use lock_proto::{Backoff, Loss, Release};
use lock_tokio::connect_register_with;
use store_testkit::{read, record, write};

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn server() -> (ApiServer, LeaseRegister) {
    let server = ApiServer::default();
    let register = LeaseRegister::new(server.client(), "default");
    (server, register)
}

#[tokio::test]
async fn client_go_respects_a_holder_and_its_renewals() {
    let (server, register) = server();
    let mut go = LeaderElector::new(server.client(), "job", "go-1", 15);
    write(&register, b"job", &record(1, 1), None).await;
    assert!(!go.try_acquire_or_renew(at(0)).await);
    assert!(!go.try_acquire_or_renew(at(9)).await, "ten seconds from when it first saw the record");
    // All of these renewals are of one second of the real clock.
    for number in 2..6 {
        let entry = read(&register, b"job").await;
        write(&register, b"job", &record(1, number), Some(&entry)).await;
        let now = at(9 * number);
        assert!(!go.try_acquire_or_renew(now).await, "renewal {number} counts");
    }
    let entry = read(&register, b"job").await;
    assert!(go.try_acquire_or_renew(at(55)).await, "the holder has died");
    // It was alive after all: its renewal fails, and it sees why.
    assert_eq!(register.write(b"job", &record(1, 6), Some(&entry)).await, Err(RegisterError::Conflict));
    let taken = read(&register, b"job").await;
    assert!(taken.record.held && taken.record.writer.client != entry.record.writer.client);
    assert!(taken.record.version > entry.record.version, "so that unanswered writes are settled");
}

#[tokio::test]
async fn client_go_takes_a_free_lease_and_leaves_the_annotation() {
    let (server, register) = server();
    let mut go = LeaderElector::new(server.client(), "job", "go-1", 15);
    write(&register, b"job", &record(1, 1), None).await;
    let entry = read(&register, b"job").await;
    write(&register, b"job", &Record { held: false, ..record(1, 2) }, Some(&entry)).await;
    assert!(go.try_acquire_or_renew(at(0)).await);
    let lease = server.get("job").unwrap();
    assert!(lease["metadata"]["annotations"]["lock-proto/record"].is_string(), "it is left in place");
    let found = read(&register, b"job").await.record;
    assert!(found.held, "but does not count");
    assert_eq!((&*found.label, found.ttl), ("go-1", at(15)));
    assert_eq!(found.fence, record(1, 2).fence, "fences go on from the last one");
}

#[tokio::test]
async fn this_library_sees_the_renewals_and_the_release_of_client_go() {
    let (server, register) = server();
    let mut go = LeaderElector::new(server.client(), "job", "go-1", 15);
    assert!(go.try_acquire_or_renew(at(0)).await);
    let first = read(&register, b"job").await;
    assert!(first.record.held);
    assert_eq!(read(&register, b"job").await, first, "the same record");
    assert!(go.try_acquire_or_renew(at(2)).await);
    let second = read(&register, b"job").await;
    assert_ne!(second.record, first.record, "RG1: a renewal is another record");
    assert!(second.record.version > first.record.version);
    assert_eq!(second.record.writer.client, first.record.writer.client);
    assert!(go.release(at(3)).await);
    let free = read(&register, b"job").await;
    assert!(!free.record.held && free.record.version > second.record.version);
    // Taken and released once more, with the annotation of a free record of this library.
    let ours = Record { version: free.record.version + 1, ..record(1, 1) };
    write(&register, b"job", &ours, Some(&free)).await;
    assert!(!go.try_acquire_or_renew(at(4)).await);
    let held = read(&register, b"job").await;
    let released = Record { held: false, version: held.record.version + 1, ..record(1, 2) };
    write(&register, b"job", &released, Some(&held)).await;
    assert!(go.try_acquire_or_renew(at(5)).await && go.release(at(6)).await);
    let free = read(&register, b"job").await;
    assert!(free.record.version > released.version && free.record.writer != released.writer, "not the old free record");
}

#[tokio::test]
async fn client_go_notices_a_takeover() {
    let (server, register) = server();
    let mut go = LeaderElector::new(server.client(), "job", "go-1", 15);
    assert!(go.try_acquire_or_renew(at(0)).await);
    let entry = read(&register, b"job").await;
    write(&register, b"job", &record(1, 1), Some(&entry)).await;
    assert!(!go.try_acquire_or_renew(at(16)).await, "it lost");
    assert!(!go.release(at(17)).await, "and has nothing to release");
    assert_eq!(read(&register, b"job").await.record, record(1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_client_go_exclude_each_other() {
    const SHORT: Duration = Duration::from_millis(50);
    let (server, _) = server();
    let start = std::time::Instant::now();
    let mut go = LeaderElector::new(server.client(), "job", "go-1", 3);
    let config = Config::new().poll(Backoff::fixed(SHORT)).label("host-1");
    let kube = server.client();
    let client =
        connect_register_with(config, move || Ok::<_, RegisterError>(LeaseRegister::new(kube, "default"))).unwrap();
    let lock = client.lock("job").ttl(at(3));
    let guard = lock.clone().acquire().await.unwrap();
    // It holds and renews for longer than its TTL.
    while start.elapsed() < at(5) {
        assert!(!go.try_acquire_or_renew(start.elapsed()).await);
        tokio::time::sleep(SHORT).await;
    }
    assert_eq!(guard.release().await, Release::Released);
    assert!(go.try_acquire_or_renew(start.elapsed()).await, "it is free");
    // client-go renews, and then dies.
    let renewed = start.elapsed();
    let died = renewed + at(3);
    let mut waiting = pin!(lock.clone().wait(at(60)).acquire());
    while start.elapsed() < died {
        assert!(tokio::time::timeout(SHORT, &mut waiting).await.is_err(), "client-go holds it");
        assert!(go.try_acquire_or_renew(start.elapsed()).await, "and goes on");
    }
    let last = start.elapsed();
    let guard = waiting.await.unwrap();
    assert!(start.elapsed() > last + at(2), "not before its lease ended");
    assert!(!go.try_acquire_or_renew(start.elapsed()).await, "it lost");
    // Taken away, as by client-go with a lease that it thinks has expired.
    let mut lease = server.get("job").unwrap();
    lease["spec"]["holderIdentity"] = "go-2".into();
    server.plant("job", Some(lease));
    assert_eq!(guard.observer().lost().await, Some(Loss::Taken));
}

/// The rules of this library, without its machine.
struct Ours {
    register: LeaseRegister,
    client: u128,
    writes: u64,
    /// What is held, and since when it was seen.
    seen: Option<(Entry, Duration)>,
    held: Option<Entry>,
    valid_until: Duration,
}

const TTL: Duration = Duration::from_secs(5);
/// client-go gives up its leadership before its lease ends.
const RENEW_DEADLINE: Duration = Duration::from_secs(3);

impl Ours {
    fn next(&mut self, expected: Option<&Entry>, held: bool) -> Record {
        self.writes += 1;
        let version = expected.map_or(1_790_000_000_000, |entry| entry.record.version + 1);
        Record { version, held, ttl: TTL, ..record(self.client, self.writes) }
    }

    async fn step(&mut self, now: Duration, release: bool) {
        if let Some(held) = self.held.take() {
            let next = self.next(Some(&held), !release);
            self.valid_until = Duration::ZERO;
            if let Ok(revision) = self.register.write(b"job", &next, Some(&held)).await
                && !release
            {
                self.held = Some(Entry::new(next, revision));
                self.valid_until = now + TTL;
            }
            return;
        }
        let found = self.register.read(b"job").await.unwrap();
        if let Some(entry) = found.as_ref().filter(|entry| entry.record.held) {
            let since =
                self.seen.as_ref().filter(|(seen, _)| seen.record == entry.record).map_or(now, |(_, since)| *since);
            self.seen = Some((entry.clone(), since));
            if now < since + entry.record.ttl {
                return;
            }
        }
        let next = self.next(found.as_ref(), true);
        if let Ok(revision) = self.register.write(b"job", &next, found.as_ref()).await {
            self.held = Some(Entry::new(next, revision));
            self.valid_until = now + TTL;
        }
    }
}

#[tokio::test]
async fn one_at_most_holds_under_pauses() {
    let mut takeovers = [0; 2];
    for seed in 0..60u64 {
        let (server, register) = server();
        let mut ours = Ours { register, client: 7, writes: 0, seen: None, held: None, valid_until: Duration::ZERO };
        let mut go = LeaderElector::new(server.client(), "job", "go-1", 5);
        let (mut go_valid_until, mut now) = (Duration::ZERO, Duration::ZERO);
        let mut paused = [Duration::ZERO; 2];
        let mut last = None;
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for _ in 0..300 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            now += Duration::from_millis(random % 900);
            let who = usize::from(random & 1024 != 0);
            if now < paused[who] {
                continue;
            }
            let (release, pause) = ((random >> 20) % 16 == 0, (random >> 30) % 12 == 0);
            if who == 0 {
                ours.step(now, release).await;
            } else if release && go_valid_until > now {
                go.release(now).await;
                go_valid_until = Duration::ZERO;
            } else {
                let leads = go.try_acquire_or_renew(now).await;
                go_valid_until = if leads { now + RENEW_DEADLINE } else { Duration::ZERO };
            }
            if pause {
                paused[who] = now + Duration::from_secs(9);
            }
            assert!(ours.valid_until <= now || go_valid_until <= now, "seed {seed}: two holders at {now:?}");
            let holder = if ours.valid_until > now { Some(0) } else { (go_valid_until > now).then_some(1) };
            if let Some(holder) = holder {
                takeovers[holder] += usize::from(last.is_some_and(|last| last != holder));
                last = Some(holder);
            }
        }
    }
    assert!(takeovers.iter().all(|count| *count > 60), "both take over from each other: {takeovers:?}");
}

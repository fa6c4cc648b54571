//! Scenarios for stores of one's own: anything with compare-and-set. They need no server but the
//! store's.
// RG4

mod elections;

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::mpsc;
use std::thread;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use lock_driver::register::{Config, Entry, Record, Register, RegisterError, Revision, Writer};
use lock_driver::{Client, ConnectError, Guard};
use lock_proto::{ClientId, Loss, Release};
use lock_testkit::TIMEOUT;

pub use elections::{
    dead_leader_is_replaced, leader_that_renews_no_more_is_replaced, observer_sees_leaders_and_proclamations,
    one_candidate_leads_at_a_time,
};

/// A store under test, and how clients are made on it.
pub trait TestStore: Sync + Sized + 'static {
    /// The store's register.
    type Register: Register;

    /// The TTL of the locks. A store that takes none so short names its shortest.
    const TTL: Duration = Duration::from_secs(2);

    /// Starts or finds a store without any records.
    fn new() -> Self;

    /// Returns what makes a register of the store. All of them are of the same store.
    fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static;

    /// Returns a client, as users of the store do, with these settings.
    ///
    /// # Errors
    ///
    /// Those of the adapter.
    fn connect(&self, config: Config) -> Result<Client, ConnectError>;

    /// Makes all records look as if they were written in an hour, as they do when the store's clock
    /// was set back. The default is for stores that tell no age, or whose clock cannot be set.
    fn set_clock_back(&self) {}

    /// Runs a future, with what the registers need of a runtime.
    fn block_on<F: Future>(future: F) -> F::Output;
}

const KEY: &[u8] = b"a";

/// Creates a test of every scenario for the given store. An attribute before it, such as `#[ignore]`,
/// is that of each test.
#[macro_export]
macro_rules! store_suite {
    ($(#[$attribute:meta])? $store:ty) => {
        $crate::store_suite!(@each ($(#[$attribute])?) $store:
            write_needs_the_expected_record keys_are_any_bytes records_survive
            one_of_many_writers_wins_each_version clients_exclude_each_other
            tasks_of_clients_take_turns_and_fences_grow lock_is_renewed_past_ttl
            dead_holder_is_succeeded_after_ttl attempts_of_new_clients_succeed_a_dead_holder
            record_of_a_time_to_come_is_replaced_after_ttl waiter_acquires_after_release
            cancelled_acquisitions_leave_nothing shutdown_releases_locks
            observer_sees_leaders_and_proclamations one_candidate_leads_at_a_time dead_leader_is_replaced
            leader_that_renews_no_more_is_replaced);
    };
    (@each $attribute:tt $store:ty: $($name:ident)+) => {
        $($crate::store_suite!(@test $attribute $store: $name);)+
    };
    (@test ($(#[$attribute:meta])?) $store:ty: $name:ident) => {
        #[test]
        $(#[$attribute])?
        fn $name() {
            $crate::limited(|| $crate::stores::$name::<$store>(&<$store as $crate::stores::TestStore>::new()));
        }
    };
}

fn register<S: TestStore>(store: &S) -> impl Register {
    store.make()().unwrap()
}

fn client<S: TestStore>(store: &S) -> Client {
    let poll = lock_proto::Backoff::exponential(Duration::from_millis(20), Duration::from_millis(100));
    store.connect(Config::new().poll(poll)).unwrap()
}

/// A record of a client, the successor of another one.
fn record<S: TestStore>(client: u128, number: u64, expected: Option<&Entry>) -> Record {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Record {
        version: expected.map_or_else(|| u64::try_from(now.as_millis()).unwrap(), |entry| entry.record.version + 1),
        writer: Writer { client: ClientId::from_bits(client), number },
        held: false,
        fence: 7,
        ttl: S::TTL,
        label: "a test".into(),
        value: Bytes::new(),
    }
}

async fn read(store: &impl Register, key: &[u8]) -> Option<Entry> {
    store.read(key).await.unwrap()
}

/// Only what a store may answer when another record is there.
fn refused<T: fmt::Debug>(result: Result<T, RegisterError>) {
    assert!(matches!(result, Err(RegisterError::Conflict)), "{result:?}");
}

pub fn write_needs_the_expected_record<S: TestStore>(store: &S) {
    S::block_on(async {
        let (one, other) = (register(store), register(store));
        assert_eq!(read(&one, KEY).await, None);
        let first = record::<S>(1, 1, None);
        let revision = one.write(KEY, &first, None).await.unwrap();
        let seen = read(&other, KEY).await.unwrap();
        assert_eq!((&seen.record, &seen.revision), (&first, &revision));
        refused(other.write(KEY, &record::<S>(2, 1, None), None).await);
        let second = record::<S>(2, 2, Some(&seen));
        let next = other.write(KEY, &second, Some(&seen)).await.unwrap();
        assert_ne!(next, revision);
        // The record of the first one is not there any more.
        refused(one.write(KEY, &record::<S>(1, 2, Some(&seen)), Some(&seen)).await);
        let seen = read(&one, KEY).await.unwrap();
        assert_eq!((seen.record, seen.revision), (second, next));
        // Nor is one that never was.
        let never = Entry::new(record::<S>(3, 1, None), Revision::new("7"));
        refused(one.write(b"b", &record::<S>(1, 3, Some(&never)), Some(&never)).await);
        assert_eq!(read(&one, b"b").await, None);
    });
}

pub fn keys_are_any_bytes<S: TestStore>(store: &S) {
    let long = [b'x'; 1024];
    let zeros = [0; 1024];
    let keys: [&[u8]; 12] =
        [b"a", b"A", b"a/b", b"a//b", b"..", b"/", b"a\0b", b"\xff\n", b"'; --", b"%2f", &long, &zeros];
    S::block_on(async {
        let store = register(store);
        for (number, key) in (1..).zip(keys) {
            assert_eq!(read(&store, key).await, None, "{number}");
            store.write(key, &record::<S>(1, number, None), None).await.unwrap();
        }
        for (number, key) in (1..).zip(keys) {
            assert_eq!(read(&store, key).await.unwrap().record.writer.number, number);
        }
    });
}

pub fn records_survive<S: TestStore>(store: &S) {
    S::block_on(async {
        let store = register(store);
        let mut seen = None;
        let value: Vec<u8> = (0..=255).cycle().take(4096).collect();
        for (number, held, value) in [(1, true, &b"\0\n\xff'"[..]), (2, false, b""), (3, true, &value)] {
            let value = Bytes::copy_from_slice(value);
            let record = Record { held, value, fence: u64::MAX >> 11, ..record::<S>(u128::MAX, number, seen.as_ref()) };
            store.write(KEY, &record, seen.as_ref()).await.unwrap();
            let entry = read(&store, KEY).await.unwrap();
            assert_eq!(entry.record, record);
            assert!(entry.age.is_none_or(|age| age < TIMEOUT), "{:?}", entry.age);
            seen = Some(entry);
        }
    });
}

pub fn one_of_many_writers_wins_each_version<S: TestStore>(store: &S) {
    const WRITES: u64 = 25;
    let write = |client: u128| {
        S::block_on(async {
            let (store, mut won) = (register(store), Vec::new());
            let mut number = 0;
            while won.len() < WRITES as usize {
                let seen = match store.read(KEY).await {
                    Ok(seen) => seen,
                    // The store is busy with the others.
                    Err(RegisterError::NotSent(_) | RegisterError::Unknown(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
                number += 1;
                let record = record::<S>(client, number, seen.as_ref());
                match store.write(KEY, &record, seen.as_ref()).await {
                    Ok(_) => won.push((seen.map(|seen| seen.record.version), record.version)),
                    // An unknown outcome is not a success, and not a failure.
                    Err(RegisterError::Conflict | RegisterError::NotSent(_) | RegisterError::Unknown(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            won
        })
    };
    let won: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> = (1..=4).map(|client| scope.spawn(move || write(client))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let replaced: BTreeSet<_> = won.iter().map(|(replaced, _)| replaced).collect();
    assert_eq!(replaced.len(), won.len(), "a record was replaced twice");
}

fn take<S: TestStore>(client: &Client) -> Guard {
    client.lock("a").ttl(S::TTL).wait(TIMEOUT).acquire_blocking().unwrap()
}

pub fn clients_exclude_each_other<S: TestStore>(store: &S) {
    let (first, second) = (client(store), client(store));
    first.ping_blocking().unwrap();
    let guard = take::<S>(&first);
    let error = second.lock("a").try_acquire_blocking().unwrap_err();
    assert!(error.is_busy(), "{error}");
    let fence = guard.fence().unwrap();
    assert_eq!(guard.release_blocking(), Release::Released);
    let guard = second.lock("a").try_acquire_blocking().unwrap();
    assert!(guard.fence().unwrap() > fence);
    assert_eq!(guard.release_blocking(), Release::Released);
}

pub fn tasks_of_clients_take_turns_and_fences_grow<S: TestStore>(store: &S) {
    let inside = AtomicU32::new(0);
    let fences = std::sync::Mutex::new(Vec::new());
    let clients = [client(store), client(store), client(store)];
    let work = |client: &Client| {
        for _ in 0..5 {
            let guard = take::<S>(client);
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            fences.lock().unwrap().push(guard.fence().unwrap());
            thread::sleep(Duration::from_millis(1));
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(guard.release_blocking(), Release::Released);
        }
    };
    thread::scope(|scope| {
        for client in clients.iter().chain(&clients) {
            scope.spawn(|| work(client));
        }
    });
    assert!(fences.into_inner().unwrap().is_sorted_by(|a, b| a < b), "fences grow");
}

pub fn lock_is_renewed_past_ttl<S: TestStore>(store: &S) {
    let (first, second) = (client(store), client(store));
    let guard = take::<S>(&first);
    let error = second.lock("a").wait(S::TTL * 2).acquire_blocking().unwrap_err();
    assert!(error.is_busy() && guard.is_held(), "{error}");
}

/// A holder that vanishes renews no more.
pub fn dead_holder_is_succeeded_after_ttl<S: TestStore>(store: &S) {
    let record = Record { held: true, ..record::<S>(7, 1, None) };
    S::block_on(async { register(store).write(b"a", &record, None).await.unwrap() });
    let since = Instant::now();
    let client = client(store);
    let guard = take::<S>(&client);
    // The age that the store tells may count as well, and the record was written before.
    assert!(since.elapsed() < S::TTL * 2 + TIMEOUT / 2, "{:?}", since.elapsed());
    assert!(guard.fence().is_some());
}

/// As a program that cron starts again and again: none of its clients sees the record for the TTL, but
/// the store tells how old it is.
// RG1
pub fn attempts_of_new_clients_succeed_a_dead_holder<S: TestStore>(store: &S) {
    const MARGIN: Duration = Duration::from_secs(1);
    let record = Record { held: true, ..record::<S>(7, 1, None) };
    let since = Instant::now();
    let tells_age = S::block_on(async {
        let register = register(store);
        register.write(KEY, &record, None).await.unwrap();
        read(&register, KEY).await.unwrap().age.is_some()
    });
    // Without an age, a client has to be there for the TTL. New ones say what may be the case.
    let old = (!tells_age).then(|| client(store));
    let attempt = |client: &Client| client.lock("a").ttl(S::TTL).try_acquire_blocking();
    let guard = loop {
        let mut result = attempt(&client(store));
        if let Some(old) = &old {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("its holder has died"), "{error}");
            result = attempt(old);
        }
        match result {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_busy(), "{error}"),
        }
        assert!(since.elapsed() < S::TTL + MARGIN + TIMEOUT / 2, "never acquired");
        thread::sleep(Duration::from_secs(1));
    };
    assert!(since.elapsed() >= S::TTL, "{:?}", since.elapsed());
    assert!(guard.fence().is_some());
}

/// A record that is younger than none has no age: the TTL counts from when it was seen.
// RG1
pub fn record_of_a_time_to_come_is_replaced_after_ttl<S: TestStore>(store: &S) {
    let record = Record { held: true, ..record::<S>(7, 1, None) };
    S::block_on(async { register(store).write(KEY, &record, None).await.unwrap() });
    store.set_clock_back();
    let since = Instant::now();
    let guard = take::<S>(&client(store));
    assert!(since.elapsed() >= S::TTL, "{:?}", since.elapsed());
    assert!(since.elapsed() < S::TTL * 2 + TIMEOUT / 2, "{:?}", since.elapsed());
    assert_eq!(guard.release_blocking(), Release::Released);
}

pub fn waiter_acquires_after_release<S: TestStore>(store: &S) {
    let (first, second) = (client(store), client(store));
    let guard = take::<S>(&first);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || sender.send(take::<S>(&second).release_blocking()).unwrap());
        assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err(), "it waits");
        assert_eq!(guard.release_blocking(), Release::Released);
        assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(Release::Released));
    });
}

pub fn cancelled_acquisitions_leave_nothing<S: TestStore>(store: &S) {
    let (first, second) = (client(store), client(store));
    for _ in 0..10 {
        let mut acquiring = first.lock("a").ttl(S::TTL).acquire();
        let mut cx = core::task::Context::from_waker(core::task::Waker::noop());
        let polled = core::pin::Pin::new(&mut acquiring).poll(&mut cx);
        drop((polled, acquiring));
    }
    let guard = take::<S>(&second);
    assert_eq!(guard.release_blocking(), Release::Released);
}

pub fn shutdown_releases_locks<S: TestStore>(store: &S) {
    let (first, second) = (client(store), client(store));
    let guard = take::<S>(&first);
    assert_eq!(first.shutdown_blocking(TIMEOUT).unreleased, 0);
    assert_eq!(guard.observer().lost_blocking(), Some(Loss::ShutDown));
    let guard = second.lock("a").try_acquire_blocking().unwrap();
    drop(guard);
    assert_eq!(second.shutdown_blocking(TIMEOUT).unreleased, 0);
}

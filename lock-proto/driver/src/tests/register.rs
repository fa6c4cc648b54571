//! The transport for registers, on a store in memory.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString as _;
use core::future::poll_fn;

use lock_proto::Backoff;

use super::world::Task;
use super::*;
use crate::register::{Config, Entry, Record, Register, RegisterError, Revision, connect};

/// What a store in memory does beside its work.
#[derive(Default)]
struct Faults {
    /// Reads, writes and watches do not end.
    hang: [bool; 3],
    error: Option<RegisterError>,
    panic: bool,
    long_revision: bool,
    /// Begun, ended and dropped.
    reads: [usize; 3],
    writes: [usize; 3],
    watches: [usize; 3],
    hung: Vec<Waker>,
}

type Records = BTreeMap<Vec<u8>, (Record, u64)>;

#[derive(Clone, Default)]
struct MemoryStore {
    records: Arc<Mutex<Records>>,
    faults: Arc<Mutex<Faults>>,
    changed: Arc<event_listener::Event>,
}

type Counts = fn(&mut Faults) -> &mut [usize; 3];

/// Counts the end of a future.
struct CountedCalls(Arc<Mutex<Faults>>, Counts, bool);

impl Drop for CountedCalls {
    fn drop(&mut self) {
        self.1(&mut self.0.lock().unwrap())[if self.2 { 1 } else { 2 }] += 1;
    }
}

impl MemoryStore {
    fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        change(&mut self.faults.lock().unwrap())
    }

    fn hang(&self, hang: [bool; 3]) {
        for waker in self.faults(|faults| {
            faults.hang = hang;
            core::mem::take(&mut faults.hung)
        }) {
            waker.wake();
        }
    }

    async fn work(&self, kind: usize, counts: Counts) -> Result<CountedCalls, RegisterError> {
        self.faults(|faults| counts(faults)[0] += 1);
        let mut counted = CountedCalls(Arc::clone(&self.faults), counts, false);
        poll_fn(|cx| {
            self.faults(|faults| {
                if !faults.hang[kind] {
                    return Poll::Ready(());
                }
                faults.hung.push(cx.waker().clone());
                Poll::Pending
            })
        })
        .await;
        counted.2 = true;
        assert!(!self.faults(|faults| faults.panic), "planted");
        self.faults(|faults| faults.error.clone()).map_or(Ok(counted), Err)
    }

    fn revision(&self, number: u64) -> Revision {
        if self.faults(|faults| faults.long_revision) { Revision::new([b'x'; 1000]) } else { number.into() }
    }
}

impl Register for MemoryStore {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let _counted = self.work(0, |faults| &mut faults.reads).await?;
        let records = self.records.lock().unwrap();
        Ok(records.get(key).map(|(record, number)| Entry::new(record.clone(), self.revision(*number))))
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let _counted = self.work(1, |faults| &mut faults.writes).await?;
        let mut records = self.records.lock().unwrap();
        let number = records.get(key).map(|(_, number)| *number);
        if number != expected.and_then(|entry| entry.revision.as_u64()) {
            return Err(RegisterError::Conflict);
        }
        let number = number.unwrap_or(0) + 1;
        records.insert(key.to_vec(), (record.clone(), number));
        self.changed.notify(usize::MAX);
        Ok(self.revision(number))
    }

    async fn changed(&self, key: &[u8], seen: Option<&Revision>) {
        let Ok(_counted) = self.work(2, |faults| &mut faults.watches).await else { return };
        loop {
            let listener = self.changed.listen();
            let number = self.records.lock().unwrap().get(key).map(|(_, number)| *number);
            if number != seen.and_then(Revision::as_u64) {
                return;
            }
            listener.await;
        }
    }
}

fn client_of(world: &DriverWorld, memory: &MemoryStore, config: Config) -> (Client, Task<impl Future<Output = ()>>) {
    let (client, driver) = connect(world.clone(), config, memory.clone()).unwrap();
    (client, Task::new(driver))
}

/// A store that hangs: no hint and no poll would be in time.
fn slow_polls() -> Config {
    Config::new().poll(Backoff::fixed(Duration::from_secs(3600)))
}

#[test]
fn lock_on_register_excludes_and_hint_wakes_waiter() {
    // RF7
    let (world, memory) = (DriverWorld::new(), MemoryStore::default());
    let (first, mut driver) = client_of(&world, &memory, slow_polls());
    let (second, mut other) = client_of(&world, &memory, slow_polls());
    world.wait(&mut driver, first.ping()).unwrap();
    let guard = world.wait(&mut driver, first.lock("a").ttl(TTL).acquire()).unwrap();
    assert!(guard.is_held());
    let error = world.wait(&mut other, second.lock("a").try_acquire()).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("Memory"), "{error}");
    let mut waiting = second.lock("a").ttl(TTL).acquire();
    assert!(poll(&mut waiting).is_pending());
    world.run(&mut other, Duration::from_secs(1));
    let fence = guard.fence().unwrap();
    assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
    let guard = world.wait(&mut other, waiting).unwrap();
    assert!(guard.fence().unwrap() > fence);
    drop(guard);
    world.wait(&mut other, second.shutdown(TTL));
    world.wait(&mut driver, first.shutdown(TTL));
    assert!(driver.is_done() && other.is_done());
    assert_eq!(memory.faults(|faults| faults.watches[0]), 1);
}

#[test]
fn write_goes_on_after_its_deadline_and_no_other_one_joins_it() {
    // RF7
    let (world, memory) = (DriverWorld::new(), MemoryStore::default());
    let (client, mut driver) = client_of(&world, &memory, Config::new());
    memory.hang([false, true, false]);
    let error = world.wait(&mut driver, client.lock("a").wait(Duration::from_secs(5)).acquire()).unwrap_err();
    assert!(error.to_string().contains("Memory"), "{error}");
    world.run(&mut driver, Duration::from_secs(60));
    assert_eq!(memory.faults(|faults| faults.writes), [1, 0, 0], "one write, which goes on");
    memory.hang([false; 3]);
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    assert!(guard.is_held());
    assert_eq!(memory.faults(|faults| faults.writes[2]), 0, "none was dropped");
}

#[test]
fn read_that_hangs_is_cancelled() {
    // RF7
    let (world, memory) = (DriverWorld::new(), MemoryStore::default());
    let (client, mut driver) = client_of(&world, &memory, Config::new());
    memory.hang([true, false, false]);
    let error = world.wait(&mut driver, client.lock("a").wait(Duration::from_secs(10)).acquire()).unwrap_err();
    assert!(error.is_unreachable() || error.is_busy(), "{error}");
    let [begun, ended, dropped] = memory.faults(|faults| faults.reads);
    assert!(begun > 2 && ended == 0 && dropped >= begun - 1, "{begun} {ended} {dropped}");
}

#[test]
fn errors_of_store_reach_the_caller() {
    // RF8
    let (world, memory) = (DriverWorld::new(), MemoryStore::default());
    let (client, mut driver) = client_of(&world, &memory, Config::new());
    let attempt = |driver: &mut _| {
        let error = world.wait(driver, client.lock("a").wait(Duration::from_secs(3)).acquire()).unwrap_err();
        (error.is_refused(), error.to_string())
    };
    for (error, refused) in [
        (RegisterError::refused("create the table"), true),
        (RegisterError::not_sent("create the table"), false),
        (RegisterError::unknown("create the table"), false),
    ] {
        memory.faults(|faults| faults.error = Some(error));
        let (is_refused, text) = attempt(&mut driver);
        assert_eq!(is_refused, refused, "{text}");
        assert!(text.contains("Memory") && text.contains("create the table"), "{text}");
    }
    memory.faults(|faults| (faults.error, faults.panic) = (Some(RegisterError::Conflict), false));
    let (_, text) = attempt(&mut driver);
    assert!(text.contains("conflict"), "{text}");
    memory.faults(|faults| (faults.error, faults.panic) = (None, true));
    let (_, text) = attempt(&mut driver);
    assert!(text.contains("the store panicked"), "{text}");
    memory.faults(|faults| (faults.panic, faults.long_revision) = (false, true));
    let (_, text) = attempt(&mut driver);
    assert!(text.contains("1000 bytes"), "{text}");
}

#[test]
fn forked_child_drops_nothing_of_the_store() {
    // RF8
    let (world, memory) = (DriverWorld::new(), MemoryStore::default());
    let (client, mut driver) = client_of(&world, &memory, Config::new());
    memory.hang([true, false, false]);
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    world.run(&mut driver, Duration::from_millis(10));
    client.owner.shared.forked.store(true, Ordering::Relaxed);
    memory.hang([false; 3]);
    assert!(driver.poll() && driver.is_done());
    assert_eq!(memory.faults(|faults| faults.reads), [1, 0, 0], "it is the parent's");
}

#[test]
fn one_url_names_a_folder() {
    let settings = Settings::parse(["file:///var/lib/app"]).unwrap();
    assert!(matches!(settings.store, StoreSettings::File(config) if config.folder.ends_with("var/lib/app")));
    for urls in [&["file:///a", "file:///b"][..], &["redis://a", "file:///b"], &["file://a"]] {
        let error = Settings::parse(urls).unwrap_err().to_string();
        assert!(error.contains("a folder"), "{error}");
    }
    let settings = Settings::parse(["file:///proc/locks"]).unwrap().default_password("secret").prefix("app:");
    let error = crate::connect(DriverWorld::new(), settings).unwrap_err().to_string();
    assert!(error.contains("/proc/locks"), "{}", format!("{error}"));
}

//! What the driver logs, and at which level.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt::Debug;
use std::sync::OnceLock;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use super::world::{ConnectResult, Task, Wakes, address};
use super::*;
use lock_proto::Credentials;
use lock_sim::redis::{Node, NodeConfig};

/// Log lines with their levels.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &match field.name() {
            "message" => format!("{value:?} "),
            name => format!("{name}={value:?} "),
        };
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::new());
        event.record(&mut line);
        locked(&self.0).push((*event.metadata().level(), line.0));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    /// Runs the driver for a while. Returns the lines.
    fn of(world: &DriverWorld, driver: &mut Task<Driver<DriverWorld>>, time: Duration) -> Vec<(Level, String)> {
        // Of a single subscriber, `tracing` asks only the thread that reaches a line first. That
        // may be another test, which has none: the line would then be off for all.
        static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
        OTHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(Self::default())));
        let log = Self::default();
        with_default(log.clone(), || world.run(driver, time));
        core::mem::take(&mut locked(&log.0))
    }
}

/// The lines of one level with this text.
fn count(lines: &[(Level, String)], level: Level, text: &str) -> usize {
    lines.iter().filter(|(own, line)| *own == level && line.contains(text)).count()
}

/// Waits for a lock of a server that is never usable. Returns the lines of ten seconds, except
/// those about the wait.
fn waiting(world: &DriverWorld, settings: impl Into<Settings>) -> Vec<(Level, String)> {
    let (client, driver) = with_identity(world.clone(), settings.into(), ClientId::from_bits(1), 7).unwrap();
    let mut driver = Task::new(driver);
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    let mut lines = Log::of(world, &mut driver, Duration::from_secs(10));
    lines.retain(|(_, line)| !line.contains("waiting"));
    let attempts = world.with(|inner| inner.tried.len());
    assert!(attempts > 3, "{attempts}");
    lines
}

fn leads_to(world: &DriverWorld, answers: ConnectResult) {
    world.with(|inner| inner.addresses = [(address(1), answers)].into());
}

/// Regression: each attempt was logged as `connected`, and the reason never or each time.
#[test]
fn server_that_does_not_work_is_one_warning_with_reason() {
    for (answers, reason) in [
        (ConnectResult::SpeaksHttp, "it speaks HTTP/1"),
        (ConnectResult::Silence, "did not answer in time"),
        (ConnectResult::HangsUp, "does it expect TLS"),
        (ConnectResult::Nothing, "did not answer in time"),
        (ConnectResult::Refuses, "refused the connection"),
        (ConnectResult::IsFull, "max number of clients reached"),
    ] {
        let world = DriverWorld::new();
        leads_to(&world, answers);
        let lines = waiting(&world, DriverWorld::config());
        assert_eq!(count(&lines, Level::INFO, ""), 0, "{lines:#?}");
        let warnings = ["cannot connect, retrying", "connection lost"].map(|text| count(&lines, Level::WARN, text));
        assert_eq!(warnings, [1, 0], "{lines:#?}");
        assert_eq!(count(&lines, Level::WARN, reason), 1, "{lines:#?}");
        assert!(count(&lines, Level::DEBUG, reason) > 2, "{lines:#?}");
    }
}

#[test]
fn missing_credentials_are_one_warning_with_reason() {
    // N19
    let file = std::env::temp_dir().join("lock-proto-no-such-password");
    let url = format!("redis://app@node?password_file={}", file.display());
    let fails = Settings::from(DriverWorld::config()).credentials(|_| async { Err("the vault is sealed".into()) });
    for (settings, reason) in [
        (redis::Config::parse(&url).unwrap().into(), file.display().to_string()),
        (fails, "the vault is sealed".to_string()),
    ] {
        let lines = waiting(&DriverWorld::new(), settings);
        assert_eq!(count(&lines, Level::INFO, ""), 0, "{lines:#?}");
        let warnings = ["no credentials conn", "cannot connect, retrying"].map(|text| count(&lines, Level::WARN, text));
        assert_eq!(warnings, [1, 1], "{lines:#?}");
        assert_eq!(count(&lines, Level::WARN, &reason), 1, "{lines:#?}");
        assert!(count(&lines, Level::DEBUG, &reason) > 2, "{lines:#?}");
    }
}

#[test]
fn rejected_credentials_are_one_warning_with_reason() {
    // N19
    let world = DriverWorld::new();
    world.with(|inner| inner.node = Node::new(Instant::ZERO, NodeConfig::new(1).password("secret")));
    let settings = Settings::from(DriverWorld::config()).credentials(|_| async { Ok(Credentials::new("wrong")) });
    let (client, driver) = with_identity(world.clone(), settings, ClientId::from_bits(1), 7).unwrap();
    let mut driver = Task::new(driver);
    let mut lines = Vec::new();
    // Each is refused, and the client would rest.
    for _ in 0..6 {
        let mut waiting = client.lock("a").acquire();
        assert!(poll(&mut waiting).is_pending());
        lines.extend(Log::of(&world, &mut driver, Duration::from_secs(2)));
    }
    assert!(count(&lines, Level::DEBUG, "TCP connection open") > 4, "{lines:#?}");
    assert_eq!(count(&lines, Level::INFO, ""), 0, "{lines:#?}");
    let warnings = ["credentials rejected", "cannot connect, retrying"].map(|text| count(&lines, Level::WARN, text));
    assert_eq!(warnings, [1, 1], "{lines:#?}");
}

#[test]
fn failure_after_success_is_warning_again() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut waiting = client.lock("a").acquire();
    for round in 0..2 {
        world.with(|inner| inner.down = true);
        assert!(poll(&mut waiting).is_pending());
        let lines = Log::of(&world, &mut driver, Duration::from_secs(10));
        assert_eq!(count(&lines, Level::WARN, "cannot connect, retrying"), 1, "{lines:#?}");
        world.with(|inner| inner.down = false);
        let lines = Log::of(&world, &mut driver, Duration::from_secs(10));
        assert_eq!(count(&lines, Level::INFO, "connected"), 1, "{lines:#?}");
        let now = world.time();
        world.with(|inner| inner.node.restart(now, true));
        let lines = Log::of(&world, &mut driver, Duration::ZERO);
        assert_eq!(count(&lines, Level::WARN, "connection lost"), 1, "round {round}: {lines:#?}");
    }
}

/// A process that is stopped: its kernel still accepts connections.
#[test]
fn server_that_stops_is_lost_once() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let _guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    world.with(|inner| inner.silent = true);
    let mut waiting = client.lock("b").acquire();
    assert!(poll(&mut waiting).is_pending());
    let lines = Log::of(&world, &mut driver, Duration::from_secs(20));
    assert_eq!(count(&lines, Level::INFO, ""), 0, "{lines:#?}");
    let warnings = ["connection lost", "cannot connect, retrying"].map(|text| count(&lines, Level::WARN, text));
    assert_eq!(warnings, [1, 1], "{lines:#?}");
    // The end of validity is a time since boot: nobody could read it.
    assert_eq!(count(&lines, Level::WARN, "its validity ends soon lock=\"a\" remaining=1.5s"), 1, "{lines:#?}");
}

/// Regression: all lines were written in one turn, in which no reply was read, and those who watched
/// a lock were notified after its line.
#[test]
fn many_log_lines_hold_up_neither_driver_nor_watchers() {
    // D6
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let names = (0..300).map(|n| n.to_string());
    let guards: Vec<_> =
        names.map(|name| world.wait(&mut driver, client.lock(name).ttl(TTL).acquire()).unwrap()).collect();
    world.settle(&mut driver);
    let woken = Arc::<Wakes>::default();
    let mut lost: Vec<_> = guards.iter().map(|guard| Box::pin(guard.lost())).collect();
    for lost in &mut lost {
        assert!(lost.as_mut().poll(&mut Context::from_waker(&Arc::clone(&woken).into())).is_pending());
    }
    let before = woken.count();
    world.pause(TTL);
    let log = Log::default();
    let lines = || count(&locked(&log.0), Level::WARN, "lock lost");
    let mut written = 0;
    while with_default(log.clone(), || driver.poll()) {
        assert_eq!(woken.count() - before, guards.len());
        assert!(lines() - written <= 64, "{} lines in a turn", lines() - written);
        written = lines();
    }
    assert_eq!(written, guards.len());
}

/// A task that acquires a lock that it holds waits for itself, and nothing at INFO said so.
#[test]
fn wait_for_own_client_is_one_warning() {
    // D9
    const WARNING: &str = "waiting for this client itself";
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let mut nested = [client.lock("a").acquire(), client.lock("a").acquire()];
    for waiting in &mut nested {
        assert!(poll(waiting).is_pending());
    }
    let lines = Log::of(&world, &mut driver, Duration::from_millis(900));
    assert_eq!(count(&lines, Level::WARN, WARNING), 0, "{lines:#?}");
    let lines = Log::of(&world, &mut driver, Duration::from_secs(20));
    assert_eq!(count(&lines, Level::WARN, WARNING), 1, "{lines:#?}");
    assert_eq!(count(&lines, Level::WARN, "lock=\"a\""), 1, "{lines:#?}");

    // A queue behind another client's lock is an everyday matter.
    drop(guard);
    let _first = world.wait(&mut driver, &mut nested[0]).unwrap();
    drop(nested);
    let now = world.time();
    world.with(|inner| inner.node.insert(now, "b", "another client", None));
    let mut others = [client.lock("b").acquire(), client.lock("b").acquire()];
    for waiting in &mut others {
        assert!(poll(waiting).is_pending());
    }
    let lines = Log::of(&world, &mut driver, Duration::from_secs(20));
    assert_eq!(count(&lines, Level::WARN, WARNING), 0, "{lines:#?}");
}

#[test]
fn client_is_named_in_log_errors_and_values() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    let lines = Log::of(&world, &mut driver, Duration::from_secs(1));
    let id = client.id().to_string();
    assert_eq!(count(&lines, Level::INFO, &format!("connected client={id} ")), 1, "{lines:#?}");
    let guard = world.wait(&mut driver, waiting).unwrap();
    assert!(guard.token().to_string().starts_with(&id));
    let busy = world.wait(&mut driver, client.lock("a").try_acquire()).unwrap_err();
    assert!(busy.to_string().contains(&format!("in this client, {id} ")), "{busy}");
}

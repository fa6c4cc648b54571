//! Files that are read again for each connection, and the source of credentials.

use alloc::string::ToString as _;
use core::sync::atomic::AtomicUsize;

use super::*;
use lock_proto::Credentials;
use lock_sim::redis::{Node, NodeConfig};

const HANG: Duration = Duration::from_secs(30);

/// Locks until long after the file system hangs. Returns how many reads began while it hung, and
/// how many in all.
fn reads(world: &DriverWorld, config: redis::Config) -> (usize, usize) {
    world.with(|inner| inner.files_hang_until = Instant::ZERO + HANG);
    let (client, mut driver) = world.client_with(1, config);
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    world.run(&mut driver, HANG - Duration::from_millis(1));
    let attempts = world.with(|inner| inner.tried.len());
    assert!(attempts > 3, "{attempts}");
    let while_hanging = world.with(|inner| inner.files_read.len());
    world.run(&mut driver, HANG);
    (while_hanging, world.with(|inner| inner.files_read.len()))
}

#[test]
fn password_file_that_hangs_is_read_once() {
    // P5
    let file = std::env::temp_dir().join("lock-proto-no-such-password");
    let url = alloc::format!("redis://app@node?password_file={}", file.display());
    let (while_hanging, all) = reads(&DriverWorld::new(), redis::Config::parse(&url).unwrap());
    assert_eq!(while_hanging, 1);
    assert!(all > 3, "{all}");
}

/// The error said only that there are no credentials. A device was read without end.
#[test]
fn error_names_password_file_and_reason() {
    // N19
    let folder = lock_testkit::temporary();
    let file = |name| folder.path().join(name).display().to_string();
    std::fs::write(file("empty"), "\n").unwrap();
    std::fs::write(file("large"), alloc::vec![b'x'; 2 << 20]).unwrap();
    for (file, why) in [
        (file("none"), ""),
        (file(""), "not a regular file"),
        ("/dev/zero".into(), "not a regular file"),
        (file("empty"), "no password in it"),
        (file("large"), "larger than 1 MiB"),
    ] {
        error_names(&file, why);
    }
}

fn error_names(file: &str, why: &str) {
    let url = alloc::format!("redis://app@node?password_file={file}");
    let world = DriverWorld::new();
    let (client, mut driver) = world.client_with(1, redis::Config::parse(&url).unwrap());
    let mut waiting = client.lock("a").wait(Duration::from_secs(1)).acquire();
    let mut ping = Box::pin(client.ping());
    assert!(poll(&mut waiting).is_pending() && poll(&mut ping).is_pending());
    world.run(&mut driver, Duration::from_secs(3));
    let (Poll::Ready(Err(of_lock)), Poll::Ready(Err(of_ping))) = (poll(&mut waiting), poll(&mut ping)) else {
        panic!()
    };
    for error in [of_lock.to_string(), of_ping.to_string()] {
        let expected = alloc::format!("password file {file}: {why}");
        assert!(error.contains("no credentials") && error.contains(&expected), "{error}");
    }
}

#[cfg(feature = "tls-ring")]
#[test]
fn certificate_file_that_hangs_is_read_once() {
    // P5
    let world = DriverWorld::new();
    world.with(|inner| inner.silent = true);
    let authority = lock_testkit::Authority::new();
    let (while_hanging, all) = reads(&world, DriverWorld::tls_config(&authority));
    assert_eq!(while_hanging, 1);
    assert!(all > 3, "{all}");
}

#[test]
fn source_of_credentials_is_asked_if_store_is_set_later() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let mut settings = Settings::from(DriverWorld::config()).credentials(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok(Credentials::new("secret")) }
    });
    settings.store = StoreSettings::Redis(DriverWorld::config());
    let world = DriverWorld::new();
    let (client, driver) = with_identity(world.clone(), settings, ClientId::from_bits(1), 7).unwrap();
    let mut driver = world::Task::new(driver);
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    world.settle(&mut driver);
    assert!(asked.load(Ordering::Relaxed) > 0);
}

/// A wrong password showed nothing of the blank at the end of its file.
#[test]
fn error_names_invisible_parts_of_rejected_password() {
    // N19
    let folder = lock_testkit::temporary();
    let file = folder.path().join("password").display().to_string();
    let url = alloc::format!("redis://node?password_file={file}");
    for (content, hint) in [
        ("secret \n", "begins or ends with white space"),
        ("secret\n\n", "ends with a line break"),
        ("\u{feff}secret", "byte order mark"),
        ("wrong\n", ""),
    ] {
        std::fs::write(&file, content).unwrap();
        let world = DriverWorld::new();
        world.with(|inner| inner.node = Node::new(Instant::ZERO, NodeConfig::new(1).password("secret")));
        let (client, mut driver) = world.client_with(1, redis::Config::parse(&url).unwrap());
        let error = world.wait(&mut driver, client.lock("a").wait(Duration::from_secs(1)).acquire()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("WRONGPASS"), "{error}");
        let expected = alloc::format!("password file {file}: the password in it");
        assert_eq!(error.contains(&expected), !hint.is_empty(), "{error}");
        assert!(error.contains(hint) && !error.contains("secret"), "{error}");
    }
}

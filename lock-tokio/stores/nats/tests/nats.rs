//! The register on a real server. Not in `make test`, which does without NATS.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use core::time::Duration;

use kit::bucket;
use lock_driver::register::{Register, RegisterError};
use lock_nats::NatsRegister;
use store_testkit::{NatsServer, Traits, check_register, record};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "make test-stores"]
async fn it_does_what_every_store_does() {
    let server = NatsServer::start();
    let (store, one) = bucket(&server, "locks", Duration::ZERO).await;
    let other = NatsRegister::new(async_nats::connect(server.url()).await.unwrap(), "locks");
    let plant = async |key: &[u8], bytes: Option<&[u8]>| {
        let key = str::from_utf8(key).unwrap();
        match bytes {
            Some(bytes) => drop(store.put(key, bytes.to_vec().into()).await.unwrap()),
            None => store.delete(key).await.unwrap(),
        }
    };
    check_register(&one, &other, Traits { age: false, changed: true }, plant).await;
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn a_deleted_key_is_absent() {
    let server = NatsServer::start();
    let (store, register) = bucket(&server, "locks", Duration::ZERO).await;
    register.write(b"job", &record(1, 1), None).await.unwrap();
    let found = register.read(b"job").await.unwrap().unwrap();
    store.delete("job").await.unwrap();
    assert_eq!(register.read(b"job").await, Ok(None));
    assert_eq!(register.write(b"job", &record(1, 2), Some(&found)).await, Err(RegisterError::Conflict));
    register.write(b"job", &record(1, 2), None).await.unwrap();
    assert_eq!(register.write(b"job", &record(1, 3), None).await, Err(RegisterError::Conflict));
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn buckets_that_lose_keys_are_refused() {
    // RG3
    let server = NatsServer::start();
    let (_, register) = bucket(&server, "old", LONG).await;
    let refused = register.read(b"job").await.unwrap_err();
    assert!(matches!(&refused, RegisterError::Refused(text) if text.contains("maximal age")), "{refused}");
    let missing = NatsRegister::from_url(&format!("{}/none", server.url())).unwrap().read(b"job").await.unwrap_err();
    assert!(matches!(&missing, RegisterError::Refused(text) if text.contains("nats kv add none")), "{missing}");
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn waiters_hear_of_changes() {
    let server = NatsServer::start();
    let (store, register) = bucket(&server, "locks", Duration::ZERO).await;
    // Absent, then written.
    let (_, first) =
        tokio::join!(async { tokio::time::timeout(LONG, register.changed(b"job", None)).await.unwrap() }, async {
            register.write(b"job", &record(1, 1), None).await.unwrap()
        },);
    // Written before the watch began.
    let found = register.read(b"job").await.unwrap().unwrap();
    let second = register.write(b"job", &record(1, 2), Some(&found)).await.unwrap();
    tokio::time::timeout(LONG, register.changed(b"job", Some(&first))).await.unwrap();
    // Deleted. No hint comes for what was seen: the first poll of the timeout is long past by then.
    let mut unchanged = Box::pin(register.changed(b"job", Some(&second)));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut unchanged).await.is_err(), "nothing changed");
    store.delete("job").await.unwrap();
    tokio::time::timeout(LONG, unchanged).await.unwrap();
    // A mark of a deleted key is no news for those who saw the key absent.
    let mut absent = Box::pin(register.changed(b"job", None));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut absent).await.is_err(), "nothing changed");
    register.write(b"job", &record(1, 3), None).await.unwrap();
    tokio::time::timeout(LONG, absent).await.unwrap();
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn errors_tell_what_was_sent() {
    // RG4
    let mut server = NatsServer::start();
    let (_, register) = bucket(&server, "locks", Duration::ZERO).await;
    register.write(b"job", &record(1, 1), None).await.unwrap();
    let found = register.read(b"job").await.unwrap().unwrap();
    server.pause();
    let unknown = register.write(b"job", &record(1, 2), Some(&found)).await;
    assert!(matches!(unknown, Err(RegisterError::Unknown(_))), "{unknown:?}");
    server.resume();
    // The write was in the socket. The same expectation settles it.
    let settled = register.write(b"job", &record(1, 3), Some(&found)).await;
    assert_eq!(settled, Err(RegisterError::Conflict));
    assert_eq!(register.read(b"job").await.unwrap().unwrap().record, record(1, 2));
    server.kill();
    let end = std::time::Instant::now() + LONG;
    loop {
        let gone = register.write(b"job", &record(1, 4), Some(&found)).await;
        if matches!(gone, Err(RegisterError::NotSent(_))) {
            break;
        }
        assert!(std::time::Instant::now() < end, "{gone:?}");
    }
    server.restart();
    loop {
        if register.read(b"job").await.is_ok_and(|found| found.is_some_and(|entry| entry.record == record(1, 2))) {
            break;
        }
        assert!(std::time::Instant::now() < end, "it does not connect again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn urls_are_checked() {
    for (url, part) in [
        ("nats://host", "names no bucket"),
        ("http://host/locks", "unsupported scheme"),
        ("nats://host/locks?colour=red", "colour"),
        ("nats://host/locks?credentials=/nowhere", "/nowhere"),
    ] {
        let error = NatsRegister::from_url(url).unwrap_err();
        assert!(matches!(&error, RegisterError::Refused(text) if text.contains(part)), "{url}: {error}");
    }
}

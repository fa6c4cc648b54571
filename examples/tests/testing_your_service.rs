//! The code of docs/testing-your-service.md, which shows it as it is here.
// S15
#![allow(clippy::unwrap_used, reason = "tests")]

use core::future::pending;
use core::time::Duration;

use lock_sim::TestServer;
use lock_tokio::{AcquireError, Client, Loss};

/// The service under test: it pays an invoice while it holds the invoice's lock.
async fn pay(client: &Client, invoice: &str) -> Result<&'static str, Box<dyn core::error::Error>> {
    let lock = client.lock(invoice).ttl(Duration::from_secs(2)).wait(Duration::from_secs(1));
    let guard = lock.acquire().await?;
    Ok(guard.protect(call_the_bank()).await.output?)
}

/// A bank that does not answer.
async fn call_the_bank() -> &'static str {
    pending().await
}

#[tokio::test]
async fn lost_lock_on_redis() {
    let server = TestServer::redis();
    let client = lock_tokio::connect(server.url()).unwrap();
    let guard = client.lock("invoice:42").ttl(Duration::from_secs(1)).acquire().await.unwrap();

    server.lose("invoice:42");

    // The work never ends, but the holder learns of the loss at the next renewal.
    let done = guard.protect(pending::<()>()).await;
    assert_eq!(done.output, Err(Loss::Gone));
}

#[tokio::test]
async fn lost_lock_on_etcd() {
    let server = TestServer::etcd();
    let client = lock_tokio::connect(server.url()).unwrap();
    let guard = client.lock("invoice:42").acquire().await.unwrap();

    server.lose("invoice:42");

    let done = guard.protect(pending::<()>()).await;
    assert_eq!(done.output, Err(Loss::Gone));
}

#[tokio::test]
async fn lost_lock_on_zookeeper() {
    let server = TestServer::zookeeper();
    let client = lock_tokio::connect(server.url()).unwrap();
    let guard = client.lock("invoice:42").acquire().await.unwrap();

    server.lose("invoice:42");

    let done = guard.protect(pending::<()>()).await;
    assert_eq!(done.output, Err(Loss::Gone));
}

#[tokio::test]
async fn stopped_server() {
    let server = TestServer::redis();
    let client = lock_tokio::connect(server.url()).unwrap();
    let paying = tokio::spawn({
        let client = client.clone();
        async move { pay(&client, "invoice:42").await.map_err(|error| error.to_string()) }
    });
    while !server.is_held("invoice:42") {
        tokio::task::yield_now().await;
    }

    server.pause();
    assert_eq!(paying.await.unwrap(), Err("no renewal was confirmed in time".into()));

    let lock = client.lock("invoice:43").wait(Duration::from_millis(300));
    let error: AcquireError = lock.acquire().await.unwrap_err();
    assert!(error.is_unreachable());

    server.resume();
    assert!(client.lock("invoice:43").acquire().await.is_ok());
}

#[tokio::test]
async fn quorum() {
    let servers = [TestServer::redis(), TestServer::redis(), TestServer::redis()];
    let client = lock_tokio::connect_quorum(servers.iter().map(TestServer::url)).unwrap();

    servers[0].kill();
    let guard = client.lock("invoice:42").ttl(Duration::from_secs(2)).acquire().await.unwrap();

    servers[1].kill();
    let lost = guard.protect(pending::<()>()).await;
    assert_eq!(lost.output, Err(Loss::Expired));
}

#[test]
fn without_async() {
    let server = TestServer::redis();
    let client = lock_smol::connect(server.url()).unwrap();
    let guard = client.lock("invoice:42").ttl(Duration::from_secs(1)).acquire_blocking().unwrap();
    server.lose("invoice:42");
    assert_eq!(guard.lost_within(Duration::from_secs(10)), Some(Loss::Gone));
}

#[test]
fn every_server_stops_and_starts() {
    for server in [TestServer::redis(), TestServer::etcd(), TestServer::zookeeper()] {
        let client = lock_smol::connect(server.url()).unwrap();
        let lock = client.lock("jobs/a");
        let guard = lock.acquire_blocking().unwrap();
        assert!(server.is_held("jobs/a") && !server.is_held("jobs"), "{server:?}");
        let _ = guard.release_blocking();
        assert!(!server.is_held("jobs/a"), "{server:?}");

        server.pause();
        assert!(lock.clone().wait(Duration::from_millis(100)).acquire_blocking().is_err(), "{server:?}");
        server.resume();
        let guard = lock.acquire_blocking().unwrap();

        server.kill();
        assert!(std::net::TcpStream::connect(server.url().split("//").nth(1).unwrap()).is_err(), "{server:?}");
        server.restart();
        assert!(server.is_held("jobs/a"), "{server:?}");
        assert!(guard.is_held(), "{server:?}");
        let _ = guard.release_blocking();
        drop(lock.acquire_blocking().unwrap());
        client.shutdown_blocking(Duration::from_secs(5));
        assert!(!server.is_held("jobs/a"), "{server:?}");
    }
}

#[test]
#[should_panic(expected = "nobody holds `b`; the server has these keys: [")]
fn lock_that_nobody_holds_cannot_be_lost() {
    TestServer::redis().lose("b");
}

/// A server that is dropped while it is paused does not block the test.
#[test]
fn every_server_stops_when_dropped() {
    for server in [TestServer::redis(), TestServer::etcd(), TestServer::zookeeper()] {
        let address = server.url().split("//").nth(1).unwrap().to_owned();
        let client = lock_smol::connect(server.url()).unwrap();
        client.ping_blocking().unwrap();
        server.pause();
        drop(server);
        assert!(std::net::TcpStream::connect(address).is_err());
    }
}

#[test]
fn guide_shows_this_code() {
    let guide = include_str!("../../docs/testing-your-service.md");
    let shown: Vec<&str> = guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(shown.len() >= 5, "{} blocks", shown.len());
    for block in shown {
        assert!(include_str!("testing_your_service.rs").contains(block), "not in this file:\n{block}");
    }
}

//! A name with several addresses.
// P5

use super::world::{ConnectResult, address};
use super::*;

/// Where the attempts went to, and how long after the first one.
fn tried(world: &DriverWorld) -> Vec<(Duration, Address)> {
    let tried = world.with(|inner| core::mem::take(&mut inner.tried));
    let begun = tried.first().map_or(Instant::ZERO, |(at, _)| *at);
    tried.into_iter().map(|(at, address)| (at.since(begun), address)).collect()
}

fn leads_to(world: &DriverWorld, answers: &[ConnectResult]) {
    let addresses = (1..).map(address).zip(answers.iter().copied()).collect();
    world.with(|inner| inner.addresses = addresses);
}

const fn tcp(n: u8) -> Address {
    Address::Tcp(address(n))
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn unresponsive_address_delays_next_by_250_ms() {
    let world = DriverWorld::new();
    leads_to(&world, &[ConnectResult::Nothing, ConnectResult::Accepts]);
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").wait(ms(1_000)).acquire()).unwrap();
    assert_eq!(tried(&world), [(ms(0), tcp(1)), (ms(250), tcp(2))]);
    assert_eq!(world.with(|inner| inner.opening), 0, "the other attempt was dropped");
    // The next connection begins with the address that works.
    let now = world.time();
    world.with(|inner| inner.node.restart(now, true));
    world.run(&mut driver, ms(1_000));
    assert_eq!(tried(&world), [(ms(0), tcp(2))]);
    assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
}

#[test]
fn refused_address_is_followed_by_next_at_once() {
    let world = DriverWorld::new();
    leads_to(&world, &[ConnectResult::Refuses, ConnectResult::Refuses, ConnectResult::Accepts]);
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("a").acquire()).unwrap());
    assert_eq!(tried(&world), [1, 2, 3].map(|n| (ms(0), tcp(n))));
}

#[test]
fn first_address_to_connect_wins() {
    let world = DriverWorld::new();
    leads_to(
        &world,
        &[ConnectResult::AcceptsAfter(ms(400)), ConnectResult::AcceptsAfter(ms(300)), ConnectResult::Nothing],
    );
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("a").acquire()).unwrap());
    assert_eq!(tried(&world), [(ms(0), tcp(1)), (ms(250), tcp(2))]);
    // Late, but not dead: after 250 ms the next attempt starts beside it, and connects first.
    assert_eq!(world.with(|inner| inner.opening), 0);
    world.run(&mut driver, ms(1_000));
    assert_eq!(tried(&world), [], "one connection");
}

/// More dead addresses than fit into one timeout: the next attempt continues after them.
#[test]
fn next_attempt_resumes_at_first_untried_address() {
    let world = DriverWorld::new();
    let answers: Vec<_> = core::iter::repeat_n(ConnectResult::Nothing, 12).chain([ConnectResult::Accepts]).collect();
    leads_to(&world, &answers);
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("a").wait(ms(5_000)).acquire()).unwrap());
    let tried = tried(&world);
    let order: Vec<_> = tried.iter().map(|(_, address)| address.clone()).collect();
    assert_eq!(order, (1..=13).map(tcp).collect::<Vec<_>>());
}

#[test]
fn failure_of_every_address_is_reported() {
    let world = DriverWorld::new();
    for (answers, fault) in [
        (&[ConnectResult::Refuses, ConnectResult::Refuses][..], lock_proto::Fault::Refused),
        (&[ConnectResult::Nothing, ConnectResult::Refuses], lock_proto::Fault::TimedOut),
        (&[], lock_proto::Fault::Unresolved),
    ] {
        leads_to(&world, answers);
        let (client, mut driver) = world.client();
        let error = world.wait(&mut driver, client.lock("a").wait(ms(2_500)).acquire()).unwrap_err();
        let AcquireErrorKind::TimedOut(report) = error.kind() else { panic!("{error:?}") };
        assert_eq!(&*report.nodes, [Answer::Unreachable(Cause::Fault(fault))]);
    }
}

/// The first of the system's name servers is dead.
#[test]
fn resolver_slower_than_connect_timeout_is_waited_for() {
    let world = DriverWorld::new();
    world.with(|inner| inner.resolver_takes = ms(5_000));
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("a").wait(ms(10_000)).acquire()).unwrap());
    assert_eq!(world.with(|inner| inner.resolutions), 1);
}

#[test]
fn resolution_begins_anew_after_30_seconds() {
    let world = DriverWorld::new();
    world.with(|inner| inner.resolver_takes = ms(60_000));
    let (client, mut driver) = world.client();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    for (seconds, resolutions) in [(25, 1), (10, 2)] {
        world.run(&mut driver, ms(seconds * 1_000));
        assert_eq!(world.with(|inner| inner.resolutions), resolutions);
    }
}

/// Regression: it was tried first at each attempt, for ever.
#[test]
fn address_that_accepts_and_does_not_reply_comes_last() {
    for answers in [ConnectResult::Silence, ConnectResult::HangsUp] {
        let world = DriverWorld::new();
        leads_to(&world, &[answers, ConnectResult::Accepts]);
        let (client, mut driver) = world.client();
        drop(world.wait(&mut driver, client.lock("a").wait(ms(5_000)).acquire()).unwrap());
        let order: Vec<_> = tried(&world).into_iter().map(|(_, address)| address).collect();
        assert_eq!(order, [1, 2].map(tcp));
    }
}

/// It answers `READONLY`, so it is not the one: the others come first at the next attempt.
#[test]
fn replica_address_comes_last() {
    let world = DriverWorld::new();
    leads_to(&world, &[ConnectResult::Accepts, ConnectResult::Accepts, ConnectResult::Accepts]);
    world.with(|inner| inner.node.demote(Instant::ZERO));
    let (client, mut driver) = world.client();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    while world.with(|inner| inner.tried.len()) < 4 {
        world.run(&mut driver, ms(20));
    }
    let order: Vec<_> = tried(&world).into_iter().map(|(_, address)| address).collect();
    assert_eq!(order[..4], [1, 2, 3, 1].map(tcp));
    let now = world.time();
    world.with(|inner| inner.node.promote(now));
    drop(world.wait(&mut driver, waiting).unwrap());
}

/// The wake connection uses the command connection's address, even if the name has another now.
#[test]
fn wake_connection_uses_command_address() {
    let world = DriverWorld::new();
    leads_to(&world, &[ConnectResult::Nothing, ConnectResult::Accepts]);
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("warm-up").acquire()).unwrap());
    tried(&world);
    leads_to(&world, &[ConnectResult::Accepts, ConnectResult::Accepts]);
    let now = world.time();
    world.with(|inner| inner.node.insert(now, "a", "somebody", Some(TTL)));
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    world.run(&mut driver, ms(500));
    assert_eq!(tried(&world), [(ms(0), tcp(2))]);
}

#[test]
fn ip_address_is_not_resolved() {
    let world = DriverWorld::new();
    let mut node = DriverWorld::config().nodes()[0].clone();
    node.target = lock_proto::Target::Tcp { host: "10.0.0.1".into(), port: 6379 };
    // The world knows no such name.
    let (client, mut driver) = world.client_with(1, redis::Config::new([node]));
    drop(world.wait(&mut driver, client.lock("a").acquire()).unwrap());
    assert_eq!(tried(&world), [(ms(0), tcp(1))]);
}

/// The first address accepts, and the TLS handshake outlasts the delay before the next attempt.
#[cfg(feature = "tls-ring")]
#[test]
fn driver_sleeps_while_handshake_lasts() {
    let world = DriverWorld::new();
    leads_to(&world, &[ConnectResult::Accepts, ConnectResult::Accepts]);
    world.with(|inner| inner.silent = true);
    let authority = lock_testkit::Authority::new();
    let (client, mut driver) = world.client_with(1, DriverWorld::tls_config(&authority));
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    // `settle` fails if the driver never rests.
    world.run(&mut driver, ms(1_900));
    assert_eq!(tried(&world), [(ms(0), tcp(1))]);
}

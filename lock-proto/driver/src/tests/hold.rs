//! Notifications of a holder, and their timing.

use core::cell::Cell;

use super::world::{DriverWorld, Task};
use super::*;
use crate::shared::Batch;
use crate::ticket::{HoldState, Ticket};
use lock_proto::LockId;
use lock_proto::{Event, Renew};

fn held(world: &DriverWorld, renew: Renew) -> (Client, Task<Driver<DriverWorld>>, Guard) {
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).renew(renew).acquire()).unwrap();
    world.settle(&mut driver);
    (client, driver, guard)
}

#[test]
fn held_lock_is_renewed() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    world.run(&mut driver, 5 * TTL);
    assert!(guard.is_held() && world.has_key("a"));
    let slept = world.with(|inner| inner.slept.clone());
    assert!(slept.iter().all(|time| *time <= Duration::from_secs(1)), "requirement T4: {slept:?}");
}

#[test]
fn validity_expires_by_clock_without_driver() {
    let world = DriverWorld::new();
    let (_client, _driver, guard) = held(&world, Renew::Auto);
    let observer = guard.observer();
    let mut lost = Box::pin(guard.lost());
    assert!(poll(&mut lost).is_pending());
    let left = guard.remaining();
    world.pause(left - Duration::from_nanos(1));
    assert!(guard.is_held() && observer.is_held());
    world.pause(Duration::from_nanos(1));
    assert!(!guard.is_held() && !observer.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(poll(&mut lost), Poll::Ready(Loss::Expired));
    assert_eq!(poll(&mut Box::pin(observer.lost())), Poll::Ready(Some(Loss::Expired)));
}

/// Regression: the observer saw a release, and nothing was logged.
#[test]
fn guard_dropped_after_end_by_clock_was_lost() {
    // T2
    for releases in [false, true] {
        let world = DriverWorld::new();
        let (_client, _driver, guard) = held(&world, Renew::Auto);
        let observer = guard.observer();
        world.pause(guard.remaining());
        if releases {
            drop(guard.release());
        } else {
            drop(guard);
        }
        assert_eq!(poll(&mut Box::pin(observer.lost())), Poll::Ready(Some(Loss::Expired)));
    }
}

/// Regression: a leader that was asked to stop was remembered for a TTL after its release.
#[test]
fn released_holds_leave_no_alarms() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    for n in 0..4 {
        let guard = world.wait(&mut driver, client.lock("a").ttl(60 * TTL).acquire()).unwrap();
        let observer = guard.observer();
        observer.wake_watchers(world.time());
        assert_eq!(client.owner.shared.verb(|core, _, _| core.alarms.len()), Some(1));
        if n % 2 == 0 {
            drop(guard);
        } else {
            assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
        }
        observer.wake_watchers(world.time());
        assert_eq!(client.owner.shared.verb(|core, _, _| core.alarms.len()), Some(0));
    }
}

/// The driver reads the clock before the end and handles the renewal after it. The machine goes on,
/// so only the ticket can report the end.
#[test]
fn renewal_after_end_by_clock_reports_loss() {
    // T2, T3
    let ms = Instant::from_millis;
    let ticket = Ticket::new(LockId::new(0, 0), b"a"[..].into());
    ticket.hold(ms(10));
    let mut lost = ticket.changed.listen();
    assert!(!ticket.is_held(ms(10)));
    let mut batch = Batch::default();
    assert!(!ticket.apply(Event::Renewed { valid_until: ms(20) }, &mut batch));
    batch.run();
    assert!(poll(&mut lost).is_ready(), "woken");
    assert!(matches!(ticket.hold_state(ms(11), false), HoldState::Lost(Loss::Expired)));
}

/// The renewal leaves, and its answer lies in the socket.
fn answer_renewal(world: &DriverWorld, driver: &mut Task<Driver<DriverWorld>>) {
    world.pause(TTL / 3);
    let calls = || world.with(|inner| inner.node.calls().values().sum::<u64>());
    let before = calls();
    while calls() == before {
        assert!(world.step(driver), "no renewal was sent");
    }
    assert!(world.carry(false));
}

/// A timer that was set before a suspend fires late. It must not delay what is due earlier.
#[test]
fn lock_is_renewed_after_suspend_before_acquisition() {
    // T4
    for suspended in [59, 60, 3_600].map(Duration::from_secs) {
        let world = DriverWorld::new();
        let (client, mut driver, guard) = held(&world, Renew::Auto);
        let _ = world.wait(&mut driver, guard.release());
        // No timer is left of the time with a lock.
        world.run(&mut driver, Duration::from_millis(1_500));
        world.suspend(suspended);
        let guard = world.wait(&mut driver, client.lock("b").ttl(TTL).acquire()).unwrap();
        world.run(&mut driver, 2 * TTL);
        assert!(guard.is_held(), "suspended for {suspended:?}");
    }
}

#[test]
fn wait_limit_holds_after_suspend() {
    let world = DriverWorld::new();
    let (client, mut driver, _guard) = held(&world, Renew::Auto);
    world.suspend(Duration::from_millis(1_100));
    let mut waiting = Box::pin(client.lock("a").wait(Duration::from_millis(100)).acquire());
    assert!(poll(&mut waiting).is_pending());
    world.run(&mut driver, Duration::from_millis(150));
    assert!(poll(&mut waiting).is_ready());
}

/// Cases L1 and K5: after a pause the loss is reported first, whatever the sockets hold.
#[test]
fn pause_past_ttl_reports_loss_before_queued_reply() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    answer_renewal(&world, &mut driver);
    world.pause(2 * TTL);
    let polled = Cell::new(false);
    let mut protected = Box::pin(guard.protect(async { polled.set(true) }));
    assert!(poll(&mut protected).is_pending(), "the release is under way");
    assert!(!polled.get(), "the work must not run on");
    let done = world.wait(&mut driver, protected);
    assert_eq!(done.output, Err(Loss::Expired));
    assert!(matches!(done.release, Release::Expired | Release::Released), "{done:?}");
}

/// Regression: after a pause the driver took the connection for silent, and dropped it with the
/// reply unread.
#[test]
fn reply_in_socket_after_pause_renews_lock_on_same_connection() {
    // P6
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    answer_renewal(&world, &mut driver);
    let tried = world.with(|inner| inner.tried.len());
    world.pause(TTL * 3 / 5);
    world.settle(&mut driver);
    assert!(guard.remaining() > TTL / 4, "the reply counts: {:?}", guard.remaining());
    assert_eq!(world.with(|inner| inner.tried.len()), tried, "no other connection is opened");
}

#[test]
fn expired_lock_is_never_held_again() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    world.pause(2 * TTL);
    assert!(!guard.is_held());
    for _ in 0..50 {
        world.step(&mut driver);
        assert!(!guard.is_held());
    }
    world.run(&mut driver, TTL);
    assert!(!guard.is_held());
}

#[test]
fn protect_drops_work_if_key_is_gone() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    let observer = guard.observer();
    let dropped = Cell::new(false);
    struct Noticed<'a>(&'a Cell<bool>);
    impl Drop for Noticed<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let work = async {
        let _noticed = Noticed(&dropped);
        core::future::pending::<()>().await;
    };
    let mut protected = Box::pin(guard.protect(work));
    assert!(poll(&mut protected).is_pending());
    let now = world.time();
    assert!(world.with(|inner| inner.node.remove(now, "a")));
    world.run(&mut driver, TTL / 2);
    let done = world.wait(&mut driver, protected);
    assert!(dropped.get());
    assert_eq!(done, Protected { output: Err(Loss::Gone), release: Release::Expired });
    assert_eq!(poll(&mut Box::pin(observer.lost())), Poll::Ready(Some(Loss::Gone)));
}

#[test]
fn unreachable_server_puts_lock_at_risk_before_loss() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    let observer = guard.observer();
    let (mut risk, mut lost) = (Box::pin(observer.at_risk()), Box::pin(guard.lost()));
    assert!(poll(&mut risk).is_pending() && poll(&mut lost).is_pending());
    let now = world.time();
    world.with(|inner| {
        inner.down = true;
        inner.node.restart(now, true);
    });
    let mut warned = None;
    for _ in 0..1000 {
        world.run(&mut driver, Duration::from_millis(10));
        if warned.is_none() && poll(&mut risk).is_ready() {
            warned = Some(guard.remaining());
        }
        if poll(&mut lost).is_ready() {
            break;
        }
    }
    let warned = warned.unwrap();
    assert!(warned > Duration::ZERO && warned <= TTL / 4, "{warned:?}");
    assert!(!guard.is_held());
}

#[test]
fn observer_completes_without_loss_after_guard_drop() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    let observer = guard.observer();
    let (mut lost, mut risk) = (Box::pin(observer.lost()), Box::pin(observer.at_risk()));
    assert!(poll(&mut lost).is_pending() && poll(&mut risk).is_pending());
    drop(guard);
    assert_eq!(poll(&mut lost), Poll::Ready(None));
    assert_eq!(poll(&mut risk), Poll::Ready(()));
    assert!(!observer.is_held());
    world.settle(&mut driver);
    assert!(!world.has_key("a"));
}

#[test]
fn manual_lock_expires_unless_extended() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Manual);
    world.run(&mut driver, TTL / 2);
    world.wait(&mut driver, guard.extend()).unwrap();
    assert!(guard.remaining() > TTL * 9 / 10);
    world.run(&mut driver, TTL * 9 / 10);
    assert!(guard.is_held());
    world.run(&mut driver, TTL);
    assert_eq!(poll(&mut Box::pin(guard.lost())), Poll::Ready(Loss::Expired));
    assert_eq!(world.wait(&mut driver, guard.extend()), Err(ExtendError::Lost(Loss::Expired)));
}

/// Concurrent extensions are answered separately, and not by an earlier renewal.
#[test]
fn extend_is_not_answered_by_request_in_flight() {
    // H3
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Auto);
    let number = guard.token().number;
    let mut earlier = Box::pin(guard.extend());
    assert!(poll(&mut earlier).is_pending());
    // The request reaches the server, and its answer is under way.
    let written = (0..10).any(|_| {
        driver.poll();
        world.carry(true)
    });
    assert!(written);
    let (mut first, mut second) = (Box::pin(guard.extend()), Box::pin(guard.extend()));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert!(world.carry(false));
    driver.poll();
    assert_eq!(poll(&mut earlier), Poll::Ready(Ok(())));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending(), "answered by a request that had left");
    let now = world.time();
    world.with(|inner| {
        inner.down = true;
        inner.node.restart(now, true);
    });
    for extension in [first, second] {
        let answer = world.wait(&mut driver, extension);
        assert!(matches!(answer, Err(ExtendError::Failed(_))), "{answer:?}");
    }
    assert!(guard.is_held() && guard.token().number == number);
}

#[test]
fn unconfirmed_extend_fails_or_reports_loss() {
    let world = DriverWorld::new();
    let (_client, mut driver, guard) = held(&world, Renew::Manual);
    let now = world.time();
    world.with(|inner| {
        inner.down = true;
        inner.node.restart(now, true);
    });
    let extended = world.wait(&mut driver, guard.extend());
    assert!(matches!(extended, Err(ExtendError::Failed(_) | ExtendError::Lost(_))), "{extended:?}");
}

/// Requirement H5: an unclaimed offer is withdrawn. The future waits again when polled.
#[test]
fn unclaimed_grant_is_withdrawn() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut parked = client.lock("a").ttl(TTL).acquire();
    let mut once = client.lock("b").ttl(TTL).try_acquire();
    assert!(poll(&mut parked).is_pending() && poll(&mut once).is_pending());
    world.settle(&mut driver);
    assert!(world.has_key("a") && world.has_key("b"));
    world.run(&mut driver, TTL / 2);
    assert!(!world.has_key("a") && !world.has_key("b"), "given back at a third of the TTL");
    assert!(matches!(poll(&mut once), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::Withdrawn)));
    assert!(poll(&mut parked).is_pending());
    assert!(world.wait(&mut driver, parked).unwrap().is_held());
}

#[test]
fn completed_acquisition_acquires_nothing_more() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut acquiring = client.lock("a").ttl(TTL).acquire();
    drop(world.wait(&mut driver, &mut acquiring).unwrap());
    let mut refused = client.lock("").try_acquire();
    assert!(matches!(poll(&mut refused), Poll::Ready(Err(_))));
    assert!(poll(&mut acquiring).is_pending() && poll(&mut refused).is_pending());
    world.settle(&mut driver);
    assert!(!world.has_key("a") && poll(&mut acquiring).is_pending());
}

#[test]
fn wait_limit_holds_after_withdrawn_grant() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut parked = client.lock("a").ttl(TTL).wait(TTL).acquire();
    assert!(poll(&mut parked).is_pending());
    world.run(&mut driver, TTL / 2);
    let now = world.time();
    world.with(|inner| inner.node.insert(now, "a", "somebody", Some(10 * TTL)));
    let error = world.wait(&mut driver, parked).unwrap_err();
    assert!(matches!(error.kind(), AcquireErrorKind::TimedOut(_)), "{error:?}");
    let waited = world.time().since(Instant::ZERO);
    assert!(waited >= TTL && waited < TTL + Duration::from_millis(100), "{waited:?}");
    assert_eq!(error.report().map(|report| report.waited), Some(waited), "all of it, also before the withdrawal");
}

/// The process is stopped for longer than the limit and the TTL, and the driver has not run since.
#[test]
fn wait_with_limit_compares_clock_after_pause() {
    // T2
    let world = DriverWorld::new();
    let (_client, _driver, guard) = held(&world, Renew::Auto);
    let lost = std::thread::scope(|scope| {
        scope.spawn(|| world.pause(2 * TTL));
        guard.lost_within(TTL)
    });
    assert_eq!(lost, Some(Loss::Expired));
}

//! Dropping a future or a guard at every step leaves nothing behind.

use super::world::{DriverWorld, Task};
use super::*;

/// Takes `count` steps, and polls the future after each.
fn steps<F: Future + Unpin>(
    world: &DriverWorld,
    driver: &mut Task<Driver<DriverWorld>>,
    future: &mut F,
    count: usize,
) -> Poll<F::Output> {
    let mut progress = poll(future);
    for _ in 0..count {
        if progress.is_ready() {
            break;
        }
        world.step(driver);
        progress = poll(future);
    }
    progress
}

/// Nothing is left: the key is gone without waiting for its TTL, and the lock can be taken at once.
fn assert_clean(world: &DriverWorld, client: &Client, driver: &mut Task<Driver<DriverWorld>>, what: &str) {
    world.settle(driver);
    assert!(!world.has_key("a"), "{what}: the key is still there");
    let before = world.time();
    let guard = world.wait(driver, client.lock("a").try_acquire());
    assert!(guard.is_ok_and(|guard| guard.is_held()), "{what}: not free");
    assert!(world.time().since(before) < Duration::from_millis(100), "{what}: free too late");
    world.run(driver, 3 * TTL);
    assert!(!world.has_key("a"), "{what}: the key came back");
}

/// The most steps that any of these takes.
const ENOUGH: usize = 40;

#[test]
fn acquisition_dropped_at_any_step_leaves_nothing() {
    let mut granted = 0;
    for count in 0..ENOUGH {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let mut acquiring = client.lock("a").ttl(TTL).acquire();
        let progress = steps(&world, &mut driver, &mut acquiring, count);
        granted += u32::from(progress.is_ready());
        drop(acquiring);
        drop(progress);
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
    assert!(granted > 0 && granted < 40, "some were dropped before the grant, some after: {granted}");
}

#[test]
fn acquisition_on_open_connection_dropped_at_any_step_leaves_nothing() {
    for count in 0..12 {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        drop(world.wait(&mut driver, client.lock("warm-up").acquire()).unwrap());
        world.settle(&mut driver);
        let mut acquiring = client.lock("a").ttl(TTL).acquire();
        let progress = steps(&world, &mut driver, &mut acquiring, count);
        drop((acquiring, progress));
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn unclaimed_grant_is_released_with_dropped_future() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut acquiring = client.lock("a").ttl(TTL).acquire();
    assert!(poll(&mut acquiring).is_pending());
    world.settle(&mut driver);
    assert!(world.has_key("a"), "granted, and not yet claimed");
    drop(acquiring);
    assert_clean(&world, &client, &mut driver, "unclaimed");
}

#[test]
fn waiting_acquisition_dropped_at_any_step_leaves_nothing() {
    for count in 0..ENOUGH {
        let world = DriverWorld::new();
        let (holder, mut first) = world.client_with(2, DriverWorld::config());
        let held = world.wait(&mut first, holder.lock("a").ttl(TTL).acquire()).unwrap();
        let (client, mut driver) = world.client();
        let mut acquiring = client.lock("a").ttl(TTL).acquire();
        let progress = steps(&world, &mut driver, &mut acquiring, count);
        assert!(progress.is_pending());
        drop(acquiring);
        drop(held);
        world.settle(&mut first);
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn guard_dropped_during_renewal_leaves_nothing() {
    for count in 0..8 {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
        world.settle(&mut driver);
        // The renewal is due, and goes some of its way.
        world.pause(TTL / 3);
        for _ in 0..count {
            world.step(&mut driver);
        }
        drop(guard);
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn release_dropped_at_any_step_completes() {
    for count in 0..8 {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
        let mut releasing = guard.release();
        let progress = steps(&world, &mut driver, &mut releasing, count);
        drop((releasing, progress));
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn extend_dropped_at_any_step_keeps_lock_and_leaves_nothing() {
    for count in 0..8 {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let lock = client.lock("a").ttl(TTL).renew(lock_proto::Renew::Manual);
        let guard = world.wait(&mut driver, lock.acquire()).unwrap();
        {
            let mut extending = Box::pin(guard.extend());
            let _ = steps(&world, &mut driver, &mut extending, count);
        }
        assert!(guard.is_held());
        drop(guard);
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn protected_work_dropped_at_any_step_leaves_nothing() {
    for count in 0..ENOUGH {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let lock = client.lock("a").ttl(TTL);
        let mut protected = Box::pin(async {
            let guard = lock.acquire().await.unwrap();
            let mut turns = 0;
            guard
                .protect(core::future::poll_fn(|cx| {
                    turns += 1;
                    cx.waker().wake_by_ref();
                    if turns > 3 { Poll::Ready(()) } else { Poll::Pending }
                }))
                .await
        });
        let progress = steps(&world, &mut driver, &mut protected, count);
        drop(protected);
        assert!(matches!(
            progress,
            Poll::Pending | Poll::Ready(Protected { output: Ok(()), release: Release::Released })
        ));
        assert_clean(&world, &client, &mut driver, &alloc::format!("after {count} steps"));
    }
}

#[test]
fn shutdown_completes_after_its_future_is_dropped() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    {
        let mut shutdown = Box::pin(client.shutdown(Duration::from_secs(1)));
        assert!(poll(&mut shutdown).is_pending());
    }
    world.run(&mut driver, Duration::from_secs(1));
    assert!(driver.is_done() && !guard.is_held() && !world.has_key("a"));
}

//! The cases of the failure catalogue (`docs/failures.md`) that concern the handles.

use core::marker::PhantomData;
use std::thread;

use super::world::DriverWorld;
use super::*;

/// Whether a type has a trait, answered while the program runs, so that a test can say "no".
struct Probe<T>(PhantomData<T>);

/// What holds for every type, unless the inherent constant below takes precedence.
trait Otherwise {
    const IS_CLONE: bool = false;
}

impl<T> Otherwise for Probe<T> {}

impl<T: Clone> Probe<T> {
    const IS_CLONE: bool = true;
}

// H4
#[test]
fn catalogue_c7_guard_drop_works_on_any_thread_and_without_driver() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let lock = client.lock("a");
    let guard = world.wait(&mut driver, lock.acquire()).unwrap();
    world.settle(&mut driver);
    // No runtime on this thread, and the driver does not run: a drop that waited would hang.
    thread::spawn(move || drop(guard)).join().unwrap();
    assert!(world.has_key("a"), "nothing has been sent yet");
    world.settle(&mut driver);
    assert!(!world.has_key("a"));

    // While the thread unwinds.
    let guard = world.wait(&mut driver, lock.acquire()).unwrap();
    let unwound = thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work failed"));
    });
    assert!(unwound.join().is_err());
    world.settle(&mut driver);
    assert!(!world.has_key("a"));

    // The runtime has gone before the guard.
    let guard = world.wait(&mut driver, lock.acquire()).unwrap();
    driver.kill();
    thread::spawn(move || drop(guard)).join().unwrap();
}

// U1, U2
#[test]
fn catalogue_c7_shutdown_releases_dropped_guards() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guards: Vec<_> =
        ["a", "b", "c"].map(|name| world.wait(&mut driver, client.lock(name).acquire()).unwrap()).into();
    let guard = world.wait(&mut driver, client.lock("d").acquire()).unwrap();
    assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
    drop(guards);
    assert!(world.has_key("a") && world.has_key("b") && world.has_key("c"));
    let done = world.wait(&mut driver, client.shutdown(Duration::from_secs(1)));
    assert_eq!(done, Shutdown { unreleased: 0 });
    assert!(["a", "b", "c", "d"].iter().all(|name| !world.has_key(name)));
}

// T3
#[test]
fn catalogue_l2_is_held_compares_clock_at_each_call() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let left = guard.remaining();
    world.pause(left - Duration::from_nanos(1));
    assert!(guard.is_held());
    world.pause(Duration::from_nanos(1));
    assert!(!guard.is_held(), "and the driver has not run");
    for _ in 0..100 {
        world.step(&mut driver);
        assert!(!guard.is_held());
    }
    assert_eq!(world.wait(&mut driver, guard.lost()), Loss::Expired);
    assert!(!guard.is_held());
}

// H4
#[test]
fn catalogue_u6_output_and_release_are_returned_separately() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let ended = world.clone();
    let work = async move {
        // The lock ends while the work takes its last step, which nobody can interrupt.
        let now = ended.time();
        ended.with(|inner| inner.node.remove(now, "a"));
        ended.pause(2 * TTL);
        42
    };
    let done = world.wait(&mut driver, guard.protect(work));
    assert_eq!(done, Protected { output: Ok(42), release: Release::Expired });
}

#[test]
fn catalogue_x1_guard_moves_between_threads() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut acquiring = client.lock("a").acquire();
    assert!(poll(&mut acquiring).is_pending());
    world.settle(&mut driver);
    let claimed = thread::spawn(move || match poll(&mut acquiring) {
        Poll::Ready(Ok(guard)) => guard,
        other @ (Poll::Ready(Err(_)) | Poll::Pending) => panic!("{other:?}"),
    });
    let guard = claimed.join().unwrap();
    let mut releasing = thread::spawn(move || guard.release()).join().unwrap();
    assert!(poll(&mut releasing).is_pending());
    assert_eq!(world.wait(&mut driver, releasing), Release::Released);
}

// H4
#[test]
fn catalogue_x8_guard_is_not_clone() {
    let (guard, observer) = (Probe::<Guard>::IS_CLONE, Probe::<Observer>::IS_CLONE);
    assert!(!guard && observer, "the probe can tell: {guard}, {observer}");
    const fn sends<T: Send + Sync>() {}
    sends::<Guard>();

    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let (one, other) = (guard.observer(), guard.observer());
    drop(one.clone());
    drop(one);
    world.settle(&mut driver);
    assert!(guard.is_held() && other.is_held() && world.has_key("a"), "an observer's end ends nothing");
    let releasing = guard.release();
    assert!(!other.is_held(), "from the moment on at which the release is asked for");
    assert_eq!(world.wait(&mut driver, releasing), Release::Released);
    assert_eq!(poll(&mut Box::pin(other.lost())), Poll::Ready(None));
}

//! The driver on a thread of its own, and what depends on the threads of its users.

use alloc::string::ToString as _;
use core::error::Error as _;
use std::thread::Builder;

use super::world::Wakes;
use super::*;

#[test]
fn missing_thread_is_an_error_with_its_cause() {
    // D6
    let builder = Builder::new().stack_size(usize::MAX / 4);
    let error = thread::spawn(builder, DriverWorld::new(), DriverWorld::config().into(), drop).unwrap_err();
    assert!(matches!(error, ConnectError::Thread(_)), "{error:?}");
    let cause = error.source().unwrap().to_string();
    assert!(error.to_string().starts_with("no thread") && error.to_string().ends_with(&cause), "{error}");
}

#[test]
fn call_without_thread_fails_at_once() {
    // D8
    let builder = Builder::new().stack_size(usize::MAX / 4);
    let mut call = thread::call_on(builder, || Ok(()));
    let Poll::Ready(Err(error)) = poll(&mut call) else { panic!("it waits, or was called") };
    assert!(error.to_string().starts_with("no thread for it: "), "{error}");
}

#[test]
fn call_on_thread_gives_value_error_or_panic() {
    // D8
    type Call = fn() -> io::Result<u8>;
    let calls: [(Call, _); 3] = [
        (|| Ok(7), Ok(7)),
        (|| Err(io::Error::other("no such name")), Err("no such name")),
        (|| panic!("expected by the test"), Err("the call panicked")),
    ];
    for (call, expected) in calls {
        let mut calling = call_on_thread(call);
        let mut result = None;
        let done = || {
            if let Poll::Ready(value) = poll(&mut calling) {
                result = Some(value.map_err(|error| error.to_string()));
            }
            result.is_some()
        };
        assert!(lock_testkit::wait_until(lock_testkit::TIMEOUT, done));
        assert_eq!(result.unwrap().as_ref().map_err(|text| &**text), expected.as_ref().map_err(|text| *text));
    }
}

#[test]
fn panic_of_runtime_at_its_start_is_an_error() {
    // D8
    let failed = start_or_error(|| panic!("expected by the {}", "test"));
    assert_eq!(failed.map_err(|error| error.to_string()), Err::<(), _>("expected by the test".into()));
    let failed = start_or_error(|| panic!("expected"));
    assert_eq!(failed.map_err(|error| error.to_string()), Err::<(), _>("expected".into()));
    assert_eq!(start_or_error(|| 7).unwrap(), 7);
}

#[test]
fn thread_ends_with_last_handle() {
    // D6
    let ended = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&ended);
    let client = connect_on_thread(DriverWorld::new(), DriverWorld::config(), move |driver| {
        let mut driver = world::Task::new(driver);
        while !driver.is_done() {
            driver.poll();
            std::thread::yield_now();
        }
        at_end.store(true, Ordering::SeqCst);
    });
    drop(client.unwrap());
    assert!(lock_testkit::wait_until(lock_testkit::TIMEOUT, || ended.load(Ordering::SeqCst)));
}

/// Regression: the waiter was woken by the thread that dropped the guard, on which its task then
/// waited until that thread had computed.
#[test]
fn drop_leaves_wake_up_of_next_waiter_to_driver() {
    // D6
    let world = DriverWorld::new();
    // Without fencing, a lock is handed over without the server.
    let (client, mut driver) = world.client_with(1, DriverWorld::config().fencing(false));
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    world.settle(&mut driver);
    let woken = Arc::<Wakes>::default();
    let mut waiting = client.lock("a").ttl(TTL).acquire();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    world.settle(&mut driver);
    let before = (woken.count(), driver.wakes.count());
    drop(guard);
    assert_eq!((woken.count(), driver.wakes.count()), (before.0, before.1 + 1));
    // It first lets other tasks add their requests.
    while driver.poll() {}
    assert_eq!(woken.count(), before.0 + 1);
    assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(_))));
}

/// A driver that ends has nobody left to do it.
#[test]
fn end_of_driver_wakes_waiters_of_dropped_guard() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let woken = Arc::<Wakes>::default();
    let mut waiting = client.lock("a").ttl(TTL).acquire();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    let before = woken.count();
    drop(guard);
    driver.kill();
    assert!(woken.count() > before);
    assert!(matches!(poll(&mut waiting), Poll::Ready(Err(_))));
}

/// Regression: nobody had shut the client down.
#[test]
fn error_after_end_of_runtime_names_it() {
    let world = DriverWorld::new();
    for ends in [true, false] {
        let (client, mut driver) = world.client();
        let mut waiting = client.lock("a").acquire();
        assert!(poll(&mut waiting).is_pending());
        if ends {
            driver.kill();
        } else {
            world.wait(&mut driver, client.shutdown(TTL));
        }
        let text = if ends { "the runtime of this client's driver has ended" } else { "the client was shut down" };
        for mut waiting in [waiting, client.lock("b").acquire()] {
            let Poll::Ready(Err(error)) = poll(&mut waiting) else { panic!("it waits") };
            assert_eq!(*error.kind(), AcquireErrorKind::ShutDown);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

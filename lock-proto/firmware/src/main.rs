//! A program that contains the machines of `lock-proto` and nothing else: no network, no clock, no
//! standard library. `make sizes` builds and measures it; it is never run.
//!
//! The optimizer must not see what comes from outside, or it would leave out what never happens. So
//! all inputs and outputs go through `black_box`.
// D1
#![no_std]
#![no_main]

extern crate alloc;

#[cfg(any(feature = "redis", feature = "zookeeper"))]
mod bytes;
#[cfg(feature = "etcd")]
mod etcd;

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;
use core::panic::PanicInfo;
use core::ptr;
use core::time::Duration;

use lock_proto::{Instant, LockClient, LockId, Machine};

/// Hands out nothing: this program is measured, never run. The optimizer does not know.
struct Nothing;

// SAFETY: a null pointer says that there is no memory, which is always allowed.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        black_box(layout);
        black_box(ptr::null_mut())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        black_box((memory, layout));
    }
}

#[global_allocator]
static MEMORY: Nothing = Nothing;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

fn now() -> Instant {
    Instant::from_nanos(black_box(1))
}

/// Calls everything that a program calls on the machine of any store.
fn call(client: &mut impl Machine, lock: LockId) -> Option<()> {
    match black_box(0) {
        0 => client.handle_timeout(now()),
        1 => client.claim(now(), lock).ok()?,
        2 => client.extend(now(), lock).ok()?,
        3 => client.release(now(), lock).ok()?,
        4 => client.abandon(now(), lock),
        _ => client.shutdown(now(), Duration::from_secs(black_box(1))),
    }
    black_box((client.next_deadline(), client.valid_until(lock)));
    Some(())
}

/// Where the program starts.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    loop {
        #[cfg(feature = "redis")]
        black_box(bytes::redis());
        #[cfg(feature = "zookeeper")]
        black_box(bytes::zookeeper());
        #[cfg(feature = "etcd")]
        black_box(etcd::drive());
    }
}

//! Proof that the machines of `lock-proto` need no std.
//!
//! A program has one panic handler and one global allocator, and std provides both. This crate
//! defines its own, so it does not compile if a dependency links std. `make no-std` builds it on
//! the host.
// D1
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr;

use lock_proto::redis::{Client, Config, Endpoint};
use lock_proto::{Acquire, ByteClient, ClientId, Instant, LockClient, register, zookeeper};

/// Hands out nothing: this library is linked, never run.
struct Nothing;

// SAFETY: a null pointer says that there is no memory, which is always allowed.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static MEMORY: Nothing = Nothing;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Uses the machines from their beginning to their end, so that all of them is linked.
#[unsafe(no_mangle)]
pub extern "C" fn drive(nanos: u64) -> bool {
    let now = Instant::from_nanos(nanos);
    let Ok(node) = Endpoint::parse("redis://127.0.0.1") else { return false };
    let Ok(mut redis) = Client::new(now, Config::new([node]), ClientId::from_bits(1), 1) else { return false };
    let Ok(config) = zookeeper::Config::parse("zk://127.0.0.1") else { return false };
    let Ok(mut zookeeper) = zookeeper::Client::new(now, config, ClientId::from_bits(1), 1) else { return false };
    let config = register::Config::new();
    let Ok(mut register) = register::Client::new(now, config, ClientId::from_bits(1), 1) else { return false };
    let has_output = register.acquire(now, &Acquire::new("proof")).is_ok() && register.poll_output().is_some();
    has_output && lock(&mut redis, now) && lock(&mut zookeeper, now)
}

fn lock(client: &mut impl ByteClient, now: Instant) -> bool {
    let Ok(lock) = client.acquire(now, &Acquire::new("proof")) else { return false };
    client.handle_timeout(now);
    let has_output = client.poll_output().is_some();
    has_output && client.release(now, lock).is_ok() && client.next_deadline().is_some()
}

//! What a host takes from the operating system: the time, and an identity.

use std::io;

use lock_proto::ClientId;
use lock_proto::Instant;

/// A new client's id, and a seed for its jitter, from the system's entropy.
///
/// # Errors
///
/// The system has no entropy.
pub fn random_identity() -> io::Result<(ClientId, u64)> {
    let mut random = [0; 24];
    getrandom::fill(&mut random)?;
    let (id, seed) = random.split_at(16);
    let id = ClientId::from_bits(id.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)));
    Ok((id, seed.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))))
}

/// The clock that measures validity. It is monotonic, and counts through suspend where the system
/// can. Use [`BootClock`].
///
/// Handles read it on any thread, so it is `Send` and `Sync` even if the rest of a
/// `Host` is not. Its clones show the same time.
// T4
pub trait Clock: Clone + Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Instant;
}

/// A monotonic clock that counts while the computer is suspended, where the system has one.
///
/// - Linux and Android: `CLOCK_BOOTTIME`.
/// - Elsewhere: [`std::time::Instant`]. On Windows it counts through suspend. On macOS, iOS and the
///   BSDs it may stand still: a lock that ended while the computer slept then looks valid after
///   wake-up, until a renewal is answered. Use fencing there.
///
/// In a *virtual machine* no clock counts while the host pauses or migrates it, or restores it from
/// a snapshot. `CLOCK_BOOTTIME` is no exception. Afterwards a lock that has ended looks valid until
/// a renewal is answered. Use fencing there too.
///
/// Clones share the origin, so their instants can be compared.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    origin: std::time::Instant,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl BootClock {
    /// The system's clock.
    #[must_use]
    pub const fn new() -> Self {
        Self {}
    }

    /// The time since the system was started.
    #[must_use]
    pub fn now(&self) -> Instant {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (secs, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
        Instant::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl BootClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time since this clock was created.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }
}

impl Clock for BootClock {
    fn now(&self) -> Instant {
        self.now()
    }
}

impl Default for BootClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn clock_advances_in_real_time() {
        let clock = BootClock::new();
        let (before, reference) = (clock.now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let passed = clock.now().since(before);
        assert!(passed >= Duration::from_millis(20), "{passed:?}");
        assert!(passed <= reference.elapsed() + Duration::from_millis(20), "{passed:?}");
    }
}

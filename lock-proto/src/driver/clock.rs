//! The clock of a client, and the one that both adapters use.

use crate::time::Instant;

/// The clock that validity is measured with: monotonic, and counting through suspend where the system can (requirement T4). [`BootClock`]
/// will do.
///
/// Handles read it on any thread, so it is `Send` and `Sync` also where the rest of a [`Host`](super::Host) is not. Its clones show the
/// same time.
pub trait Clock: Clone + Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Instant;
}

/// A monotonic clock that goes on counting while the machine is suspended, where the system has one (requirement T4).
///
/// - Linux and Android: `CLOCK_BOOTTIME`.
/// - Elsewhere: [`std::time::Instant`]. On Windows it counts through suspend as well; on macOS and the BSDs it may stand still, and
///   then a lock that ended while the machine slept looks valid after it wakes up, until a renewal is answered. Use fencing there.
///
/// No clock of a guest counts while the host has paused the *virtual machine*, migrates it or restores it from a snapshot, `CLOCK_BOOTTIME`
/// included. After that a lock that has ended looks valid until a renewal is answered. Use fencing there too.
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

    /// The time since this clock was made.
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
    fn it_goes_forward_at_the_speed_of_time() {
        let clock = BootClock::new();
        let (before, reference) = (clock.now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let passed = clock.now().since(before);
        assert!(passed >= Duration::from_millis(20), "{passed:?}");
        assert!(passed <= reference.elapsed() + Duration::from_millis(20), "{passed:?}");
    }
}

//! How long a connection may be silent while a reply is expected.
// E13

use core::time::Duration;

/// How often the allowed silence may double. etcd itself abandons a request after seven seconds.
const MAX_DOUBLINGS: u32 = 3;

/// The allowed silence is at least this multiple of the slowest recent reply.
const SLOW_FACTOR: u32 = 4;

/// What recent silences tell about the speed of the servers. Slow ones get more time, because
/// resending requests on a new connection would add to their load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Patience {
    /// How many connections in a row ended because of silence.
    connections: u32,
    /// The longest recent wait for anything to arrive. Decays with each arrival.
    slowest: Duration,
}

impl Patience {
    pub(crate) const fn connection_was_silent(&mut self) {
        self.connections = self.connections.saturating_add(1);
    }

    /// Something arrived after this silence, during which a reply was expected. `is_typical` is
    /// false if it says nothing about other replies.
    pub(crate) fn arrived(&mut self, silence: Duration, timeout: Duration, is_typical: bool) {
        if silence < timeout {
            self.connections = 0;
        }
        if is_typical {
            self.slowest = silence.max(self.slowest - self.slowest / 8);
        }
    }

    /// Returns how long a connection to one of `servers` may be silent, by default `timeout`.
    pub(crate) fn longest_silence(self, timeout: Duration, servers: u32) -> Duration {
        let rounds = self.connections / servers.max(1);
        let doubled = timeout * (1 << rounds.min(MAX_DOUBLINGS));
        doubled.max(SLOW_FACTOR * self.slowest).min(timeout * (1 << MAX_DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_doubles_with_each_round_and_fits_slow_replies() {
        // E13
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        let mut patience = Patience::default();
        let limits: [u64; 10] = core::array::from_fn(|_| {
            let limit = patience.longest_silence(second, 2).as_secs();
            patience.connection_was_silent();
            limit
        });
        assert_eq!(limits, [1, 1, 2, 2, 4, 4, 8, 8, 8, 8]);
        // A late reply does not show that the usual time suffices.
        patience.arrived(ms(1_500), second, true);
        assert_eq!(patience.longest_silence(second, 2), ms(8_000));
        patience.arrived(ms(10), second, true);
        assert_eq!(patience.longest_silence(second, 2), ms(4 * (1_500 - 187)) - ms(2));
        patience.arrived(ms(900), second, false);
        assert!(patience.longest_silence(second, 2) > ms(5_000));
        (0..50).for_each(|_| patience.arrived(ms(10), second, true));
        assert_eq!(patience.longest_silence(second, 2), second);
    }
}

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

    /// Something arrived after this silence, during which a reply was expected. More than the
    /// greatest limit does not count: the process may have been stopped.
    pub(crate) fn arrived(&mut self, silence: Duration, timeout: Duration) {
        let most = timeout * (1 << MAX_DOUBLINGS) / SLOW_FACTOR;
        self.slowest = silence.min(most).max(self.slowest - self.slowest / 8);
    }

    /// Something arrived on a connection of this age. On one that is younger than the limit, an
    /// arrival proves nothing: a server may answer reads at once while its writes take long.
    pub(crate) fn lasts(&mut self, age: Duration, timeout: Duration, servers: u32) {
        if age >= self.longest_silence(timeout, servers) {
            self.connections = 0;
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
        patience.arrived(ms(1_500), second);
        patience.lasts(ms(7_999), second, 2);
        assert_eq!(patience.longest_silence(second, 2), ms(8_000));
        patience.lasts(ms(8_000), second, 2);
        assert_eq!(patience.longest_silence(second, 2), ms(6_000), "four times the last reply");
        patience.arrived(ms(10), second);
        assert_eq!(patience.longest_silence(second, 2), ms(5_250));
        patience.arrived(ms(3_600_000), second);
        for _ in 0..20 {
            patience.arrived(ms(10), second);
        }
        assert_eq!(patience.longest_silence(second, 2), second, "an hour's pause is forgotten soon");
    }
}

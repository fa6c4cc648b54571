//! Builder of a world.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

use super::super::agenda::Agenda;
use super::super::check::Checker;
use super::super::clock::Clock;
use super::super::journal::{Journal, Keep};
use super::super::network::Network;
use super::super::rng::Rng;
use super::super::trace::Recorder;
use super::World;
use super::check::Expected;
use super::credentials::Logins;
use super::handover::{CallCause, Handovers};
use super::handshake::Handshake;
use super::process::{Process, ProcessHost};
use super::store::{ServerKind, SimServers, SimStore};
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::time::nanos;

type Change<C> = Box<dyn Fn(C) -> C>;
/// Creates a client from its local time, settings, id and seed.
type Make<S> =
    Box<dyn Fn(Instant, <S as SimStore>::Config, ClientId, u64) -> Result<<S as SimStore>::Client, ConfigError>>;

/// Builds a [`World`]. Defaults: one client, latencies from 100 to 500 µs, synchronized clocks.
#[must_use = "a Builder does nothing until `build`"]
pub struct Builder<S: ServerKind> {
    seed: u64,
    clients: usize,
    latency: Range<Duration>,
    make: Make<S>,
    config: Change<S::Config>,
    overrides: Vec<(usize, Change<S::Config>)>,
    clocks: Vec<(usize, u64, i32)>,
    keep: Keep,
    traced: bool,
    service: Duration,
    stale: bool,
    tls: Option<u8>,
    pub(super) setup: S::Setup,
}

impl<S: SimServers> Builder<S> {
    pub(super) fn new(
        setup: S::Setup,
        make: impl Fn(Instant, S::Config, ClientId, u64) -> Result<S::Client, ConfigError> + 'static,
    ) -> Self {
        Self {
            seed: 0,
            clients: 1,
            latency: Duration::from_micros(100)..Duration::from_micros(500),
            make: Box::new(make),
            config: Box::new(|config| config),
            overrides: Vec::new(),
            clocks: Vec::new(),
            keep: Keep::Lines(100_000),
            traced: false,
            service: Duration::ZERO,
            stale: false,
            tls: None,
            setup,
        }
    }

    /// Sets the number of client processes.
    pub const fn clients(mut self, count: usize) -> Self {
        self.clients = count;
        self
    }

    /// Sets the seed of all random choices.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the latency of a packet, per direction.
    pub const fn latency(mut self, latency: Range<Duration>) -> Self {
        self.latency = latency;
        self
    }

    /// Changes the settings of every client.
    pub fn config(mut self, change: impl Fn(S::Config) -> S::Config + 'static) -> Self {
        self.config = Box::new(change);
        self
    }

    /// Changes the settings of client `i`, after those of all.
    pub fn config_of(mut self, i: usize, change: impl Fn(S::Config) -> S::Config + 'static) -> Self {
        self.overrides.push((i, Box::new(change)));
        self
    }

    /// Sets the clock of client `i`: it reads `offset` at the start and gains `drift_ppm` µs a
    /// second. By default each clock starts at a random time and does not drift.
    pub fn clock(mut self, i: usize, offset: Duration, drift_ppm: i32) -> Self {
        self.clocks.push((i, nanos(offset), drift_ppm));
        self
    }

    /// Sets how much of the log is kept. This changes nothing else; keeping nothing is fastest.
    /// Default: the last 100 000 lines.
    pub const fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how many lines of the log are kept. The digest covers all lines.
    pub const fn log_limit(self, lines: usize) -> Self {
        self.keep(Keep::Lines(lines))
    }

    /// Sets whether a [`Trace`](crate::Trace) is recorded for pictures, see
    /// [`World::take_trace`]. Default: no.
    pub const fn traced(mut self, on: bool) -> Self {
        self.traced = on;
        self
    }

    /// Sets the time a server takes for one command. Commands are executed one by one, so load
    /// delays replies. Default: zero.
    pub const fn service(mut self, time: Duration) -> Self {
        self.service = time;
        self
    }

    /// Sets whether a client still gets data from connections that it closed or knows to have
    /// ended, under the old connection id. Default: no.
    pub const fn stale(mut self, on: bool) -> Self {
        self.stale = on;
        self
    }

    /// Sets that clients connect by TLS, with a handshake of this many round trips. See
    /// [`World::set_handshake`] for failures. Default: `None`, without TLS.
    pub const fn tls(mut self, trips: Option<u8>) -> Self {
        self.tls = trips;
        self
    }

    pub(super) fn with<T: SimServers<Setup = S::Setup, Config = S::Config>>(
        self,
        make: impl Fn(Instant, T::Config, ClientId, u64) -> Result<T::Client, ConfigError> + 'static,
    ) -> Builder<T> {
        Builder {
            seed: self.seed,
            clients: self.clients,
            latency: self.latency,
            make: Box::new(make),
            config: self.config,
            overrides: self.overrides,
            clocks: self.clocks,
            keep: self.keep,
            traced: self.traced,
            service: self.service,
            stale: self.stale,
            tls: self.tls,
            setup: self.setup,
        }
    }

    /// Builds the world, at time zero.
    ///
    /// # Panics
    ///
    /// If a client rejects its settings.
    #[must_use]
    pub fn build(mut self) -> World<S> {
        let mut rng = Rng::new(self.seed);
        let network = Network::new(self.latency.clone(), Rng::new(rng.next()));
        let (nodes, plain) = S::plain(&mut self.setup, &mut rng, self.tls.is_some());
        let clients: Vec<_> = (0..self.clients).map(|client| self.process(client, plain.clone(), &mut rng)).collect();
        let mut world = World {
            seed: self.seed,
            now: Instant::ZERO,
            rng,
            network,
            handshakes: handshakes(self.clients, nodes, self.tls),
            hosts: (0..nodes).map(|_| ProcessHost::new()).collect(),
            store: S::servers(self.setup, self.keep, &clients),
            clients,
            checker: Checker::new(),
            journal: Journal::new(self.keep),
            auto_claim: true,
            expect_violation: false,
            violations: Vec::new(),
            recorder: if self.traced { Recorder::on(self.clients, nodes) } else { Recorder::default() },
            agenda: Agenda::default(),
            steps_at_instant: 0,
            steps: 0,
            halted: false,
            service: self.service,
            slowest: Duration::ZERO,
            expected: Expected::default(),
            stale: self.stale,
            cause: CallCause::Application,
            handovers: Handovers::default(),
            logins: Logins::default(),
        };
        S::begin(&mut world);
        world
    }

    fn process(&self, i: usize, plain: S::Config, rng: &mut Rng) -> Process<S> {
        let mut config = (self.config)(plain);
        for (_, change) in self.overrides.iter().filter(|(which, _)| *which == i) {
            config = change(config);
        }
        let set = self.clocks.iter().rev().find(|(which, _, _)| *which == i);
        // Always drawn, so that setting one clock does not shift other random values.
        let anywhere = rng.below(1 << 40);
        let (offset, drift) = set.map_or((anywhere, 0), |(_, offset, drift)| (*offset, *drift));
        let id = ClientId::from_bits(u128::from(rng.next()) << 64 | u128::from(rng.next()));
        let own = S::own(id, &config);
        match (self.make)(Instant::from_nanos(offset), config, id, rng.next()) {
            Ok(machine) => Process::new(machine, Clock::new(Instant::ZERO, offset, drift), own),
            Err(error) => panic!("client {i} cannot be configured like this: {error}"),
        }
    }
}

fn handshakes(clients: usize, nodes: usize, trips: Option<u8>) -> BTreeMap<(usize, usize), Handshake> {
    let Some(trips) = trips else { return BTreeMap::new() };
    let pairs = (0..clients).flat_map(|client| (0..nodes).map(move |node| (client, node)));
    pairs.map(|pair| (pair, Handshake::Trips(trips))).collect()
}

impl<S: ServerKind> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("seed", &self.seed).field("clients", &self.clients).finish_non_exhaustive()
    }
}

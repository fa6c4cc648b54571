//! How a world is made.

use alloc::boxed::Box;
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
use super::check::Prompt;
use super::handover::{Cause, Handovers};
use super::process::{Host, Process};
use super::store::{Servers, Store};
use crate::error::ConfigError;
use crate::id::ClientId;
use crate::time::{Instant, nanos};

/// A change of the settings of one client, or of all.
type Change<C> = Box<dyn Fn(C) -> C>;
/// Makes a client: its own time, its settings, id and seed.
type Make<S> = Box<dyn Fn(Instant, <S as Store>::Config, ClientId, u64) -> Result<<S as Store>::Client, ConfigError>>;

/// A [`World`] to be. What is not said has a default: one client, latencies from 100 to 500 µs,
/// clocks that agree.
#[must_use = "a Builder does nothing until `build`"]
pub struct Builder<S: Servers> {
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
    pub(super) setup: S::Setup,
}

impl<S: Servers> Builder<S> {
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
            setup,
        }
    }

    /// How many client processes there are.
    pub const fn clients(mut self, count: usize) -> Self {
        self.clients = count;
        self
    }

    /// Where all chance comes from.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long a packet travels, in each direction.
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

    /// The clock of client `i` reads `offset` at the start and gains `drift_ppm` µs a second.
    /// Without this it reads another time in each process, and keeps true pace.
    pub fn clock(mut self, i: usize, offset: Duration, drift_ppm: i32) -> Self {
        self.clocks.push((i, nanos(offset), drift_ppm));
        self
    }

    /// How much of a log is made. It changes nothing else, and nothing at all is fastest. Default:
    /// the last 100 000 lines.
    pub const fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// How many lines of the log are kept; its digest counts all.
    pub const fn log_limit(self, lines: usize) -> Self {
        self.keep(Keep::Lines(lines))
    }

    /// Whether a [`Trace`](crate::sim::Trace) is made for pictures: see [`World::take_trace`].
    /// Default: no.
    pub const fn traced(mut self, on: bool) -> Self {
        self.traced = on;
        self
    }

    /// How long a server takes for one command. It works off one after the other, so that answers
    /// are the later the more it is asked. Default: zero.
    pub const fn service(mut self, time: Duration) -> Self {
        self.service = time;
        self
    }

    /// Whether a client is told what comes over connections that it has closed, or whose end it was
    /// told of, as by a host that reads on: with the id of the old connection. Default: no.
    pub const fn stale(mut self, on: bool) -> Self {
        self.stale = on;
        self
    }

    /// The same with other clients.
    pub(super) fn with<T: Servers<Setup = S::Setup, Config = S::Config>>(
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
            setup: self.setup,
        }
    }

    /// Makes the world, at time zero.
    ///
    /// # Panics
    ///
    /// If the clients' settings are refused.
    #[must_use]
    pub fn build(mut self) -> World<S> {
        let mut rng = Rng::new(self.seed);
        let network = Network::new(self.latency.clone(), Rng::new(rng.next()));
        let (nodes, plain) = S::plain(&mut self.setup, &mut rng);
        let clients: Vec<_> = (0..self.clients).map(|client| self.process(client, plain.clone(), &mut rng)).collect();
        let mut world = World {
            seed: self.seed,
            now: Instant::ZERO,
            rng,
            network,
            hosts: (0..nodes).map(|_| Host::new()).collect(),
            store: S::servers(self.setup, self.keep, &clients),
            clients,
            checker: Checker::new(),
            journal: Journal::new(self.keep),
            auto_claim: true,
            expect_violation: false,
            violations: Vec::new(),
            recorder: if self.traced { Recorder::on(self.clients, nodes) } else { Recorder::default() },
            agenda: Agenda::default(),
            spins: 0,
            steps: 0,
            halted: false,
            service: self.service,
            slowest: Duration::ZERO,
            prompt: Prompt::default(),
            stale: self.stale,
            cause: Cause::Asked,
            handovers: Handovers::default(),
        };
        S::begin(&mut world);
        world
    }

    /// A client process: these settings, changed as it was asked for.
    fn process(&self, i: usize, plain: S::Config, rng: &mut Rng) -> Process<S> {
        let mut config = (self.config)(plain);
        for (_, change) in self.overrides.iter().filter(|(which, _)| *which == i) {
            config = change(config);
        }
        let set = self.clocks.iter().rev().find(|(which, _, _)| *which == i);
        // Drawn in any case, so that setting one clock changes nothing else.
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

impl<S: Servers> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("seed", &self.seed).field("clients", &self.clients).finish_non_exhaustive()
    }
}

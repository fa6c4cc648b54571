//! What is to be measured.

use core::num::NonZeroUsize;
use core::time::Duration;

use clap::ValueEnum;
use lock_proto::driver::Settings;
use lock_proto::redis::{Backoff, DEFAULT_TTL, MAX_TTL, Wake};

use super::Failed;
use crate::cli::runtime::Runtime;
use crate::cli::whole_seconds;

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Workload {
    /// Each task takes a lock of its own, again and again.
    Uncontended,
    /// All tasks want one lock.
    Contended,
    /// As [`Uncontended`](Self::Uncontended), on several servers.
    Quorum,
    /// Many locks are held and renewed.
    Held,
}

impl Workload {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Quorum => "quorum",
            Self::Held => "held",
        }
    }
}

/// How it runs what is measured.
impl Runtime {
    /// Runs this future to its end.
    ///
    /// # Errors
    ///
    /// The runtime cannot be started.
    pub fn block_on<F: Future>(self, future: F) -> Result<F::Output, Failed> {
        Ok(match self {
            Self::Tokio => tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| Failed::unreachable(format_args!("no tokio runtime: {error}")))?
                .block_on(future),
            Self::Smol => smol::block_on(future),
            Self::AsyncStd => async_std::task::block_on(future),
        })
    }

    /// Runs this future beside others. To be called inside [`block_on`](Self::block_on).
    pub(super) fn spawn(self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Tokio => drop(tokio::spawn(future)),
            Self::Smol => smol::spawn(future).detach(),
            Self::AsyncStd => drop(async_std::task::spawn(future)),
        }
    }

    /// Sleeps by the runtime's own timer.
    pub(super) async fn sleep(self, time: Duration) {
        match self {
            Self::Tokio => tokio::time::sleep(time).await,
            Self::Smol => drop(smol::Timer::after(time).await),
            Self::AsyncStd => async_std::task::sleep(time).await,
        }
    }
}

/// One workload, on these servers, with these settings.
#[derive(Clone, Debug)]
pub struct Job {
    /// The servers.
    pub backends: Vec<String>,
    /// What the tasks do.
    pub workload: Workload,
    /// How many tasks.
    pub clients: NonZeroUsize,
    /// For how long.
    pub span: Duration,
    /// How long a lock is held each time.
    pub hold: Duration,
    /// How many locks are held.
    pub locks: NonZeroUsize,
    /// How long a lock outlives the last sign of life.
    pub ttl: Duration,
    /// How often a waiter tries.
    pub poll: Duration,
    /// How waiters are woken.
    pub wake: Wake,
    /// How many tasks share a client, and so its connection or session. `None`: all of them.
    pub per_connection: Option<NonZeroUsize>,
    /// Whether a lock is passed on among the tasks of a client.
    pub turns: bool,
    /// Whether a lock comes with a fencing token.
    pub fence: bool,
    /// What runs the tasks.
    pub runtime: Runtime,
    /// Whose locks: ours, or those of this peer.
    pub peer: Option<String>,
}

impl Job {
    /// A run on these servers, with the defaults of the command line.
    #[must_use]
    pub fn new(workload: Workload, backends: Vec<String>) -> Self {
        Self {
            backends,
            workload,
            clients: const { NonZeroUsize::new(16).unwrap() },
            span: Duration::from_secs(5),
            hold: Duration::ZERO,
            locks: const { NonZeroUsize::new(10_000).unwrap() },
            ttl: DEFAULT_TTL,
            poll: Duration::from_millis(50),
            wake: Wake::Notify,
            per_connection: None,
            turns: true,
            fence: true,
            runtime: Runtime::Tokio,
            peer: None,
        }
    }

    /// How many clients there are for the tasks.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.clients.get().div_ceil(self.per_connection.unwrap_or(self.clients).get())
    }

    /// Which client a task uses.
    #[must_use]
    pub fn connection_of(&self, task: usize) -> usize {
        task / self.per_connection.unwrap_or(self.clients).get()
    }

    /// The settings of each client.
    pub(super) fn settings(&self) -> Result<Settings, Failed> {
        let bad = |error: &dyn core::fmt::Display| Failed::usage(format_args!("--backend: {error}"));
        let settings = match Settings::parse(&self.backends).map_err(|error| bad(&error))? {
            Settings::Redis(config) => {
                // The pause is the default.
                let config = if self.turns { config } else { config.turn(Duration::ZERO) };
                let config = config
                    .poll(Backoff::fixed(self.poll))
                    .wake(self.wake)
                    // A quorum has no fencing tokens.
                    .fencing(self.fence)
                    .quarantine(self.ttl.clamp(DEFAULT_TTL, MAX_TTL));
                config.check().map_err(Failed::usage)?;
                Settings::Redis(config)
            }
            Settings::Etcd(config) => {
                let config = config.session_ttl(whole_seconds(self.ttl));
                let config = if self.turns { config } else { config.turn(Duration::ZERO) };
                config.check().map_err(Failed::usage)?;
                Settings::Etcd(config)
            }
            _ => return Err(Failed::usage("--backend: neither redis:// nor etcd://")),
        };
        Ok(settings)
    }
}

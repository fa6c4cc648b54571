//! Settings of a measurement.

use core::num::NonZeroUsize;
use core::time::Duration;

use clap::ValueEnum;
use lock_driver::StoreSettings;
use lock_proto::redis::Wake;
use lock_proto::{Backoff, DEFAULT_TTL, MAX_TTL};

use super::Failed;
use crate::cli::args::{invalid_option, parse_backends, with_ttl};
use crate::cli::runtime::{Runtime, block_on};

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Workload {
    /// Each task takes its own lock repeatedly.
    Uncontended,
    /// All tasks take one lock.
    Contended,
    /// Like [`Uncontended`](Self::Uncontended), on several servers.
    Quorum,
    /// Many locks are held and renewed.
    Held,
}

impl Workload {
    /// Returns the name of the workload.
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

/// Runs the measured code.
impl Runtime {
    /// Runs this future to completion.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot be started.
    pub fn block_on<F: Future>(self, future: F) -> Result<F::Output, Failed> {
        Ok(match self {
            Self::Tokio => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| Failed::unreachable(format_args!("no tokio runtime: {error}")))?;
                block_on(runtime, future)
            }
            Self::Smol => smol::block_on(future),
            Self::AsyncStd => async_std::task::block_on(future),
        })
    }

    /// Spawns this future. Call it inside [`block_on`](Self::block_on).
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

/// One workload with its servers and settings.
#[derive(Clone, Debug)]
pub struct Job {
    /// URLs of the servers.
    pub backends: Vec<String>,
    /// What the tasks do.
    pub workload: Workload,
    /// Number of tasks.
    pub clients: NonZeroUsize,
    /// How long to measure.
    pub span: Duration,
    /// How long each lock is held.
    pub hold: Duration,
    /// Number of locks for [`Workload::Held`].
    pub locks: NonZeroUsize,
    /// TTL of a lock.
    pub ttl: Duration,
    /// Polling interval of waiters.
    pub poll: Duration,
    /// How waiters are woken.
    pub wake: Wake,
    /// Number of tasks that share a client, and so its connection or session. `None` means all.
    pub per_connection: Option<NonZeroUsize>,
    /// Whether tasks of a client hand the lock over locally.
    pub turns: bool,
    /// Whether to issue fencing tokens.
    pub fence: bool,
    /// The runtime of the tasks.
    pub runtime: Runtime,
    /// The peer to measure; `None` for this library.
    pub peer: Option<String>,
}

impl Job {
    /// Creates a job on these servers with the defaults of the command line.
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

    /// Returns the number of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.clients.get().div_ceil(self.per_connection.unwrap_or(self.clients).get())
    }

    /// Returns the index of the client that a task uses.
    #[must_use]
    pub fn connection_of(&self, task: usize) -> usize {
        task / self.per_connection.unwrap_or(self.clients).get()
    }

    /// For how long a quorum excludes a server that was just started.
    fn quarantine(&self) -> Duration {
        self.ttl.clamp(DEFAULT_TTL, MAX_TTL)
    }

    /// Limit for the first lock of a task.
    pub(super) fn ready_within(&self) -> Duration {
        self.quarantine() + Duration::from_secs(10)
    }

    /// Returns the settings of each client, and the TTL of the locks.
    pub(super) fn settings(&self) -> Result<(StoreSettings, Duration), Failed> {
        let settings = parse_backends(&self.backends).map_err(Failed::usage)?;
        let (settings, ttl) = with_ttl(settings, self.ttl).map_err(Failed::usage)?;
        let settings = match settings {
            StoreSettings::Redis(config) => {
                let config = config
                    .poll(Backoff::fixed(self.poll))
                    .wake(self.wake)
                    // Ignored by a quorum, which has no fencing tokens.
                    .fencing(self.fence)
                    .quarantine(self.quarantine());
                config.check().map_err(invalid_option).map_err(Failed::usage)?;
                StoreSettings::Redis(config)
            }
            other @ (StoreSettings::Etcd(_) | StoreSettings::ZooKeeper(_) | StoreSettings::File(_) | _) => other,
        };
        Ok((if self.turns { settings } else { without_turns(settings) }, ttl))
    }
}

/// The same settings without hand-overs among the tasks of a client.
fn without_turns(settings: StoreSettings) -> StoreSettings {
    match settings {
        StoreSettings::Redis(config) => StoreSettings::Redis(config.handover_window(Duration::ZERO)),
        StoreSettings::Etcd(config) => StoreSettings::Etcd(config.handover_window(Duration::ZERO)),
        StoreSettings::ZooKeeper(config) => StoreSettings::ZooKeeper(config.handover_window(Duration::ZERO)),
        other @ (StoreSettings::File(_) | _) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lock_may_wait_for_quarantine() {
        for ttl in [1, 30, 600].map(Duration::from_secs) {
            let job = Job { ttl, ..Job::new(Workload::Quorum, Vec::new()) };
            assert!(job.ready_within() > ttl.max(DEFAULT_TTL), "{ttl:?}");
        }
    }
}

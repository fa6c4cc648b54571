//! The async runtimes that a tool can use.

use clap::ValueEnum;
use lock_driver::{ConnectError, Settings, start_or_error};

use super::failed::Failed;

/// A runtime of tokio for one thread.
///
/// # Errors
///
/// The system has too few threads or file descriptors. tokio reports some of that by a panic.
pub(crate) fn tokio_runtime() -> Result<tokio::runtime::Runtime, Failed> {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let built = start_or_error(build).and_then(|built| built);
    built.map_err(|error| Failed::system(format_args!("no tokio runtime: {error}")))
}

/// Runs this future to completion. Dropping the runtime would wait for blocked name lookups and
/// file reads.
pub(crate) fn block_on<F: Future>(runtime: tokio::runtime::Runtime, future: F) -> F::Output {
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    output
}

/// An async runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Runtime {
    /// tokio, through `lock-tokio`.
    Tokio,
    /// smol and its global executor, through `lock-smol`.
    Smol,
    /// async-std, also through `lock-smol`.
    AsyncStd,
}

impl Runtime {
    /// Creates a client whose driver runs on this runtime. The tools' tasks do not compute, and they
    /// have up to thousands of clients.
    pub(crate) fn client(self, settings: Settings) -> Result<lock_driver::Client, ConnectError> {
        Ok(match self {
            Self::Tokio => lock_tokio::connect_on_runtime(settings)?,
            Self::Smol => lock_smol::connect_on_runtime(settings)?,
            Self::AsyncStd => lock_smol::async_std::connect_on_runtime(settings)?,
        })
    }
}

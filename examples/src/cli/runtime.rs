//! The runtimes that a program can be told to use.

use lock_proto::driver::{self, ConnectError, Settings};

/// An async runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Runtime {
    /// tokio, by `lock-tokio`.
    Tokio,
    /// smol and its global executor, by `lock-smol`.
    Smol,
    /// async-std, by `lock-smol` too.
    AsyncStd,
}

impl Runtime {
    /// Their names.
    pub(crate) const ALL: [(&str, Self); 3] =
        [("tokio", Self::Tokio), ("smol", Self::Smol), ("async-std", Self::AsyncStd)];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }

    /// A client whose driver this runtime runs.
    pub(crate) fn client(self, settings: Settings) -> Result<driver::Client, ConnectError> {
        Ok(match self {
            Self::Tokio => lock_tokio::connect_with(settings)?,
            Self::Smol => lock_smol::connect_with(settings)?,
            Self::AsyncStd => lock_smol::async_std::connect_with(settings)?,
        })
    }
}

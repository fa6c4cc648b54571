//! Builder of a world of a store with compare-and-set.

use core::time::Duration;

use super::{RegisterClient, Registers};
use crate::register::RegisterConfig;
use crate::world::Builder;
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::register::Config;

/// Settings of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterSetup {
    pub(super) config: RegisterConfig,
    pub(super) seed: u64,
    pub(super) late: Duration,
}

impl RegisterSetup {
    pub(super) fn new() -> Self {
        Self { config: RegisterConfig::default(), seed: 0, late: Duration::from_millis(2) }
    }
}

impl<C: RegisterClient> Builder<Registers<C>> {
    /// Sets how the store behaves.
    pub const fn store(mut self, config: RegisterConfig) -> Self {
        self.setup.config = config;
        self
    }

    /// Sets the longest extra delay of a request. One in four is executed late, even if its client
    /// has given it up.
    pub const fn late(mut self, late: Duration) -> Self {
        self.setup.late = late;
        self
    }

    /// Runs other clients. `make` creates one from its local start time, settings, id and seed, and
    /// may interpret the settings as it likes.
    pub fn machine<D: RegisterClient>(
        self,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<D, ConfigError> + 'static,
    ) -> Builder<Registers<D>> {
        self.with(make)
    }
}

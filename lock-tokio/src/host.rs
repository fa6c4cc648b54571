//! What the driver needs of tokio.

use core::time::Duration;
use std::io;

use lock_proto::Instant;
use lock_proto::driver::{BootClock, Host};
use lock_proto::redis::Target;

use crate::stream::Stream;

/// Tokio as a [`Host`], to run a [`Driver`](lock_proto::driver::Driver) in a task of your own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio {
    clock: BootClock,
}

impl Tokio {
    /// Tokio, and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Host for Tokio {
    type Stream = Stream;

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn connect(&self, target: &Target) -> impl Future<Output = io::Result<Stream>> + Send + use<> {
        Stream::connect(target.clone())
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        // Made when polled: that is inside the runtime.
        async move { tokio::time::sleep(time).await }
    }
}

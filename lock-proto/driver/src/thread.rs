//! A driver on a thread of its own.

use std::thread::Builder;

use super::backend::{Driver, connect};
use super::client::Client;
use super::connect::ConnectError;
use super::host::Host;
use super::settings::Settings;

/// Creates a client, and a thread that runs its driver with `block_on`. The thread ends with the
/// driver, soon after the last handle is dropped.
///
/// A thread that computes or blocks, in an executor or elsewhere, then stops no renewal, and delays
/// no loss and no timeout. Each client has its own thread: nothing is left in the process when the
/// client has ended, and a client that waits for its log writer or its source of credentials stops
/// no other one.
///
/// `block_on` polls the driver until it has ended, and provides what its [`Host`] needs.
///
/// # Errors
///
/// As [`connect`]; also if the system has no thread.
// D6
pub fn connect_on_thread<H: Host>(
    host: H,
    settings: impl Into<Settings>,
    block_on: impl FnOnce(Driver<H>) + Send + 'static,
) -> Result<Client, ConnectError>
where
    Driver<H>: Send,
{
    spawn(Builder::new(), host, settings.into(), block_on)
}

pub(super) fn spawn<H: Host>(
    thread: Builder,
    host: H,
    settings: Settings,
    block_on: impl FnOnce(Driver<H>) + Send + 'static,
) -> Result<Client, ConnectError>
where
    Driver<H>: Send,
{
    let (client, driver) = connect(host, settings)?;
    thread.name("lock-driver".into()).spawn(move || block_on(driver)).map_err(ConnectError::Thread)?;
    Ok(client)
}

//! A driver on a thread of its own, and calls that block on theirs.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::future::{poll_fn, ready};
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use std::io;
use std::panic::catch_unwind;
use std::thread::Builder;

use super::backend::{Driver, connect};
use super::client::Client;
use super::connect::ConnectError;
use super::fault::NoThread;
use super::foreign::foreign_value;
use super::host::Host;
use super::settings::Settings;
use super::shared::Batch;
use super::slot::Slot;

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

/// Starts a part of a runtime. Some report a lack of threads or descriptors only by a panic, which
/// would otherwise end the driver later, and all locks with it.
///
/// # Errors
///
/// `start` panicked. The panic hook has run, and with `panic = "abort"` the process ends.
// D8
pub fn start_or_error<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(start)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
        io::Error::other(text.unwrap_or("the runtime panicked at its start"))
    })
}

/// The future of [`call_on_thread`].
type Calling<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// Runs a call that blocks on a thread of its own: a name lookup or a read of a file, for
/// [`Host::resolve`] and [`Host::read_file`]. The call begins at once. If the future is dropped, it
/// continues, and its result is forgotten.
///
/// The thread pools of runtimes are no substitute. If the system has no thread left, tokio's
/// panics, which would end the driver and all locks of the client, and smol's waits for ever.
///
/// # Errors
///
/// Those of the call; the system has no thread; or the call panicked.
// D8
pub fn call_on_thread<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> Calling<T> {
    call_on(Builder::new(), call)
}

pub(super) fn call_on<T: Send + 'static>(
    thread: Builder,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Calling<T> {
    let result = Arc::new(Slot::default());
    let slot = Arc::clone(&result);
    let spawned = thread.name("lock-driver-io".into()).spawn(move || {
        let value = foreign_value(call).unwrap_or_else(|| Err(io::Error::other("the call panicked")));
        let mut batch = Batch::default();
        slot.notify(value, true, false, &mut batch);
        batch.run();
    });
    if let Err(error) = spawned {
        return Box::pin(ready(Err(NoThread::wrap(error))));
    }
    Box::pin(async move {
        let value = poll_fn(|cx| result.poll(cx)).await;
        // The only value is the last one.
        value.unwrap_or_else(|| Err(io::Error::other("the call has ended")))
    })
}

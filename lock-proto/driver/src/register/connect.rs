//! Clients on a register of one's own.

use alloc::boxed::Box;
use alloc::format;
use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use std::sync::mpsc::channel;
use std::thread::Builder;

use lock_proto::register::Config;

use super::calls::start;
use super::own::own;
use super::store::Register;
use crate::client::Client;
use crate::clock::random_identity;
use crate::connect::ConnectError;
use crate::foreign::foreign_value;
use crate::host::Host;

/// Creates a client on a register, and its driver, which must be polled until it ends: see
/// [`Driver`](crate::Driver).
///
/// The driver can move between threads if the host and the register can.
///
/// # Errors
///
/// A setting is out of range, or the system has no random numbers.
pub fn connect<H: Host, R: Register>(
    host: H,
    config: Config,
    register: R,
) -> Result<(Client, impl Future<Output = ()>), ConnectError> {
    let (id, seed) = random_identity().map_err(ConnectError::Entropy)?;
    let name = register.name().into();
    let (client, mut event_loop) = start(host, config, own(register), name, id, seed)?;
    Ok((client, poll_fn(move |cx| event_loop.poll(cx))))
}

/// Creates a client on a register that `make` creates, and a thread that runs its driver with
/// `block_on`. Waits until the register is made.
///
/// `make` is called on that thread, within `block_on`: what the register needs of a runtime, such
/// as tasks and sockets, is then of one that nothing else uses, and the register need not be `Send`.
/// The thread ends soon after the last handle is dropped.
///
/// # Errors
///
/// As [`connect`]; also if `make` fails, or the system has no thread.
// D6
pub fn connect_on_thread<H: Host + Send, R: Register, E: fmt::Display>(
    host: H,
    config: Config,
    make: impl FnOnce() -> Result<R, E> + Send + 'static,
    block_on: impl FnOnce(Pin<Box<dyn Future<Output = ()>>>) + Send + 'static,
) -> Result<Client, ConnectError> {
    let (sender, receiver) = channel();
    let run = move || {
        // Made here: only what `make` and the host capture moves to the thread.
        block_on(Box::pin(async move {
            let made = match foreign_value(make) {
                Some(made) => made.map_err(|error| format!("{error:#}").into()),
                None => Err("it panicked when it was made".into()),
            };
            match made.map_err(ConnectError::Store).and_then(|register| connect(host, config, register)) {
                Ok((client, driver)) => {
                    let _ = sender.send(Ok(client));
                    driver.await;
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        }));
    };
    Builder::new().name("lock-driver".into()).spawn(run).map_err(ConnectError::Thread)?;
    receiver.recv().unwrap_or_else(|_| Err(ConnectError::Store("the driver's thread has ended".into())))
}

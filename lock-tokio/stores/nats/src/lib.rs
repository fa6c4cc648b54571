//! Distributed locks and leader elections in a key-value bucket of NATS JetStream.
//!
//! [`NatsRegister`] is the store; each lock is one key.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lock_nats::connect("nats://localhost:4222/locks")?;
//! let guard = client.lock("invoice:42").acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The bucket
//!
//! Create it before: `nats kv add locks --storage file --replicas 3`. It is refused if it has a
//! maximal age, or discards old messages when it is full: either would remove the record of a lock
//! that is held.
//!
//! Waiters watch their key, with a consumer on the stream of the bucket. A client needs permission to
//! publish to `$KV.BUCKET.>` and to the JetStream API of the stream. NATS tells the client of a missing
//! permission only asynchronously: requests then time out, and the log of `async-nats` has the reason.

mod key;
mod store;

pub use store::NatsRegister;

/// Returns a client on the store of a URL: see [`NatsRegister::from_url`].
///
/// Nothing is sent before the first request; [`Client::ping`](lock_tokio::Client::ping) sends one.
///
/// # Errors
///
/// The URL is invalid; or the system has no random numbers, or no thread or sockets for the driver.
pub fn connect(url: &str) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    connect_with(lock_tokio::register::Config::new(), url)
}

/// As [`connect`], with settings.
///
/// # Errors
///
/// As [`connect`]; also if a setting is out of range.
pub fn connect_with(
    config: lock_tokio::register::Config,
    url: &str,
) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    let register = NatsRegister::from_url(url);
    lock_tokio::connect_register_with(config, || register)
}

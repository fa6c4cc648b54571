//! Distributed locks and leader elections in an object store: S3, Google Cloud Storage, Azure Blob
//! Storage, and what speaks the protocol of one of them and has conditional writes.
//!
//! [`ObjectRegister`] is the store; each lock is one small object.
//!
//! ```no_run
//! # #[cfg(feature = "s3")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lock_object_store::connect("s3://my-bucket/locks?region=eu-central-1")?;
//! let guard = client.lock("invoice:42").acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Conditional writes
//!
//! A lock needs a store that compares before it writes (`If-Match`, `If-None-Match`; generations on
//! Google Cloud Storage). Some that speak the protocol of S3 ignore the condition, and would give the
//! lock to everybody. So the first use of a register probes the store with wrong expectations, and
//! refuses it if it accepts one. The probe leaves an object `~probe` behind.
//!
//! # Permissions
//!
//! Clients read and write objects below the prefix, and delete none. On S3: `s3:GetObject`,
//! `s3:PutObject`, and `s3:ListBucket`, without which S3 answers 403 for an object that is absent. A
//! lifecycle rule must not delete the objects of locks in use.

#[cfg(feature = "cloud")]
mod cloud;
mod error;
mod key;
mod store;

#[cfg(feature = "cloud")]
pub use cloud::no_retries;
pub use store::ObjectRegister;

/// Returns the settings for a client on an object store: five seconds by which clocks of its servers
/// may differ, and three for a request. A waiter reads once a second, and each read costs.
pub fn config() -> lock_tokio::register::Config {
    let seconds = core::time::Duration::from_secs;
    lock_tokio::register::Config::new().clock_margin(seconds(5)).request_timeout(seconds(3))
}

/// Returns a client on the store of a URL: see [`ObjectRegister::from_url`].
///
/// Nothing is sent before the first request; [`Client::ping`](lock_tokio::Client::ping) sends one.
///
/// # Errors
///
/// The URL is invalid; or the system has no random numbers, or no thread or sockets for the driver.
#[cfg(feature = "cloud")]
pub fn connect(url: &str) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    connect_with(config(), url)
}

/// As [`connect`], with settings, such as those of [`config`].
///
/// # Errors
///
/// As [`connect`]; also if a setting is out of range.
#[cfg(feature = "cloud")]
pub fn connect_with(
    config: lock_tokio::register::Config,
    url: &str,
) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    let register = ObjectRegister::from_url(url);
    lock_tokio::connect_register_with(config, || register)
}

//! Distributed locks and leader elections in Leases of Kubernetes (`coordination.k8s.io/v1`), beside
//! the leader elections of client-go.
//!
//! [`LeaseRegister`] is the store; each lock is one Lease.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lock_kubernetes::connect("kube://my-namespace")?;
//! let guard = client.lock("my-app.leader").acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Leases
//!
//! A client of this library and one of client-go exclude each other on one Lease. client-go compares
//! the `spec` alone, with times in seconds. So the TTL is at least three seconds, a Lease is held for
//! whole seconds, and each renewal moves `renewTime` on by at least one. A free Lease has an empty
//! holder and a duration of one second.
//!
//! The rest of a record is in the annotation `lock-proto/record`: fence, label, value. It names the
//! holder and the term that it belongs to, and counts only beside them: client-go leaves it in place
//! when it takes a Lease over. A Lease that client-go holds has no value, and the last fence that this
//! library gave.
//!
//! Versions of client-go before 1.27 wait for their own `LeaseDuration` in place of the holder's: give
//! those no shorter one than the TTL.
//!
//! # Names
//!
//! A lock whose name is a DNS subdomain (`my-app.leader`) has a Lease of that name. Others are named by
//! their letters and digits and a hash of the name.
//!
//! # Permissions
//!
//! `get`, `create`, `patch` and `watch` on `leases`. Without `watch`, waiters poll.
//!
//! # Limits
//!
//! The annotations of a Lease have at most 256 KiB, and the value of a leader fewer. It was tested with
//! a model of the API server and of client-go, not with a real cluster.

mod error;
mod lease;
mod name;
mod store;

pub use lease::MIN_TTL;
pub use store::LeaseRegister;

/// Returns a client on the store of a URL: see [`LeaseRegister::from_url`].
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
    let register = LeaseRegister::from_url(url);
    lock_tokio::connect_register_with(config, || register)
}

//! The errors of connecting.

use alloc::boxed::Box;
use std::io;

use lock_proto::ConfigError;
use lock_proto::UrlError;

/// Error of making a client. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting or a URL is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gave no random bytes for the client's id.
    #[error("no entropy for the client's id")]
    Entropy(#[source] io::Error),
    /// An etcd cluster, a ZooKeeper ensemble and a folder have one URL.
    #[error(
        "an etcd cluster, a ZooKeeper ensemble or a folder needs exactly one URL, with all servers of a cluster, such as etcd://a,b,c or zk://a,b,c"
    )]
    SeveralUrls,
    /// The URL needs a store that was not compiled in.
    #[error(
        "the URL needs the feature `{feature}`, which is not turned on{}",
        if *feature == "etcd" { " (http:// and https:// are URLs of etcd; a URL of Redis starts with redis://)" } else { "" }
    )]
    MissingFeature {
        /// The feature of the adapter. In `lock-driver` itself that for TLS is `tls-ring` or
        /// `tls-aws-lc-rs`.
        feature: &'static str,
    },
    /// The certificates of a URL with TLS cannot be used.
    #[error("TLS: {0}")]
    Tls(Box<str>),
    /// The store could not be made: the folder of the locks, or a register of one's own.
    #[error("the store: {0}")]
    Store(Box<str>),
    /// There is no runtime to spawn the driver on. A driver with a thread of its own needs none.
    #[error("no runtime to spawn the driver on: call this inside one")]
    NoRuntime,
    /// The system gave no thread, or no sockets and timers, for the driver.
    #[error("no thread, sockets or timers for the driver: {0}")]
    Thread(#[source] io::Error),
    /// The runtime lacks sockets or timers.
    #[error("the runtime has no I/O or no timers: build it with `enable_all`")]
    IncompleteRuntime,
}

impl From<UrlError> for ConnectError {
    fn from(error: UrlError) -> Self {
        Self::Config(error.into())
    }
}

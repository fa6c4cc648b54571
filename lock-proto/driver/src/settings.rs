//! What a client is made from: the settings of its store, and what only a driver can use.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::error::Error;
use core::fmt;
use core::pin::Pin;

use super::backend::StoreSettings;
use super::connect::ConnectError;
use lock_proto::{Credentials, CredentialsRequest};

/// The future of a source of credentials.
pub(super) type Supplying = Pin<Box<dyn Future<Output = Result<Credentials, SupplyError>> + Send>>;
pub(super) type SupplyError = Box<dyn Error + Send + Sync>;
type CredentialsSource = Arc<dyn Fn(CredentialsRequest) -> Supplying + Send + Sync>;

/// All settings of a client: those of its store, and those of the driver.
///
/// ```
/// # #[cfg(feature = "redis")]
/// # {
/// use std::time::Duration;
///
/// use lock_tokio::{Credentials, Settings};
///
/// # async fn request_token() -> Result<String, std::io::Error> { Ok("secret".into()) }
/// let settings = Settings::parse(["redis://cache.example?user=app"])?.credentials(|_| async {
///     let token = request_token().await?;
///     Ok(Credentials::new(&token).valid_for(Duration::from_secs(15 * 60)))
/// });
/// let client = lock_tokio::connect_with(settings)?;
/// # drop(client);
/// # }
/// # Ok::<(), lock_tokio::ConnectError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
#[must_use = "settings do nothing until they are given to `connect`"]
pub struct Settings {
    /// The settings of the store.
    pub store: StoreSettings,
    pub(super) host: HostSettings,
}

/// The settings that do not concern the machines.
#[derive(Clone, Default)]
pub(super) struct HostSettings {
    pub(super) credentials: Option<CredentialsSource>,
    #[cfg(feature = "tls")]
    pub(super) tls: super::tls::TlsSettings,
}

impl Settings {
    /// The default settings for the servers that the URLs name:
    ///
    /// * one Redis or Valkey server, or a quorum by an odd number of URLs:
    ///   `redis://user:password@host:port/database`, the same with `valkey://`, or
    ///   `redis+unix:///path/to/socket`;
    /// * an etcd cluster: `etcd://user:password@host:port,host:port`, or `http://`;
    /// * a ZooKeeper ensemble: `zk://user:password@host:port,host:port/chroot`;
    /// * a folder, for the processes of one machine: `file:///path`.
    ///
    /// With TLS `rediss://`, `valkeys://`, `etcds://`, `https://` and `zks://`, see
    /// [`Tls`](lock_proto::Tls) for their parameters.
    ///
    /// # Errors
    ///
    /// A URL is invalid, the URLs cannot be combined, or the store was not compiled in.
    pub fn parse<I>(urls: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        StoreSettings::parse(urls).map(Self::from)
    }

    /// The prefix of every key, at most 512 bytes. Empty by default.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        Self { store: self.store.prefix(prefix.as_ref()), ..self }
    }

    /// Sets the password for URLs that name none, such as one from the environment. On etcd and
    /// ZooKeeper it does nothing without a user.
    pub fn default_password(self, password: &str) -> Self {
        Self { store: self.store.default_password(password), ..self }
    }

    /// Logs in with credentials from this source, such as tokens that expire, in place of the
    /// password of the settings.
    ///
    /// The driver asks it for each connection, and again after four fifths of the time that the
    /// credentials are valid. It then logs in on the open connection. If the server rejects
    /// credentials, the next [request](CredentialsRequest) says so: do not answer that one from a
    /// cache. An error is logged, so it must not contain a secret. The driver asks again after a
    /// pause; an open connection stays. A panic counts as an error.
    ///
    /// The driver polls the future, on its own thread unless it was spawned elsewhere, and drops it
    /// when the connection ends. The future must not block: no lock is renewed meanwhile.
    pub fn credentials<F, R>(mut self, source: F) -> Self
    where
        F: Fn(CredentialsRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.host.credentials = Some(Arc::new(move |request| Box::pin(source(request))));
        self
    }

    /// Uses this rustls configuration for all TLS connections, in place of the files that URLs name.
    /// Its cryptography and its verifier are used as they are. For etcd, `h2` is added to its
    /// protocols.
    ///
    /// At least one URL must then be one with TLS, and none may have `ca`, `cert`, `key` or
    /// `#insecure`.
    // N2
    #[cfg(feature = "tls")]
    pub fn tls_config(mut self, config: Arc<rustls::ClientConfig>) -> Self {
        self.host.tls.config = Some(config);
        self
    }

    /// Allows [`Tls::insecure`](lock_proto::Tls::insecure), `#insecure` in a URL: any certificate of the
    /// server is then accepted. Without this, such a URL is an error. For tests.
    #[cfg(feature = "tls")]
    pub const fn allow_insecure(mut self) -> Self {
        self.host.tls.allow_insecure = true;
        self
    }
}

impl From<StoreSettings> for Settings {
    fn from(store: StoreSettings) -> Self {
        Self { store, host: HostSettings::default() }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("store", &self.store).finish_non_exhaustive()
    }
}

//! Stores of crates of their own, by URL. They need tokio.

use core::fmt;
use core::pin::Pin;
use core::time::Duration;
use std::io;

use lock_driver::register::{Register, RegisterError, connect};
use lock_driver::{Client, ConnectError};
use lock_proto::Backoff;
use lock_proto::register::Config;
use lock_tokio::Tokio;

use super::failed::Failed;

/// The polling interval of a store on which a read costs little.
pub(crate) const POLL: Backoff = Backoff::fixed(Duration::from_millis(50));

/// A store of a crate of its own, and its URLs.
#[derive(Debug)]
pub struct StoreUrl {
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// Creates a client: [`spawn`] with [`client_of`].
    pub connect: fn(Config, &str) -> Result<Client, ConnectError>,
    /// The settings, for example with the polling interval.
    pub config: fn() -> Config,
    /// The shortest TTL, and why there is one.
    pub min_ttl: Option<(Duration, &'static str)>,
    /// For `--create-table`: creates the table of a URL, if it is missing.
    pub create_table: Option<fn(&str) -> CreatingTable<'_>>,
    /// For `LOCK_PASSWORD`: adds this password to a URL that has none.
    pub default_password: Option<fn(&str, &str) -> String>,
}

impl StoreUrl {
    /// A store without a shortest TTL, a table, or a password from the environment.
    #[must_use]
    pub const fn new(
        schemes: &'static [&'static str],
        config: fn() -> Config,
        connect: fn(Config, &str) -> Result<Client, ConnectError>,
    ) -> Self {
        Self { schemes, connect, config, min_ttl: None, create_table: None, default_password: None }
    }
}

/// What creates a table.
pub type CreatingTable<'a> = Pin<Box<dyn Future<Output = Result<(), RegisterError>> + 'a>>;

/// The stores of this package.
static STORES: &[StoreUrl] = &[
    #[cfg(feature = "sqlite")]
    StoreUrl::new(
        &["sqlite"],
        || Config::new().poll(POLL),
        |config, url| spawn(client_of(config, lock_sqlite::SqliteRegister::from_url(url))),
    ),
    #[cfg(feature = "postgres")]
    StoreUrl {
        create_table: Some(super::postgres::create_table),
        default_password: Some(super::postgres::default_password),
        ..StoreUrl::new(
            &["postgres", "postgresql"],
            || Config::new().poll(POLL),
            |config, url| spawn(client_of(config, lock_postgres::PostgresRegister::from_url(url))),
        )
    },
];

/// What has the stores that a build lacks.
const BUILDS: &[(&[&str], &str)] = &[
    (&["sqlite"], "lock-examples with the feature `sqlite`"),
    (&["postgres", "postgresql"], "lock-examples with the feature `postgres`"),
    (&["s3", "gs", "az"], "lock-tokio/stores/tools with the feature `object-store`"),
    (&["kube"], "lock-tokio/stores/tools with the feature `kubernetes`"),
    (&["nats", "tls"], "lock-tokio/stores/tools with the feature `nats`"),
];

/// Creates a client on a register, and its driver.
///
/// # Errors
///
/// The URL of the register is invalid, a setting is out of range, or the system has no random
/// numbers or no thread.
pub fn client_of<R: Register>(
    config: Config,
    register: Result<R, RegisterError>,
) -> Result<(Client, impl Future<Output = ()> + use<R>), ConnectError> {
    let register = register.map_err(|error| match error {
        // A register that is only made sends nothing: the system lacks what it needs.
        RegisterError::NotSent(text) => ConnectError::Thread(io::Error::other(text.into_string())),
        error @ (RegisterError::Conflict | RegisterError::Refused(_) | RegisterError::Unknown(_)) => {
            ConnectError::Store(error.to_string().into())
        }
    })?;
    connect(Tokio::new(), config, register)
}

/// Makes the driver a task of the current runtime of tokio. The tools' tasks do not compute.
///
/// # Errors
///
/// That of `made`.
///
/// # Panics
///
/// Outside of a runtime of tokio.
pub fn spawn(
    made: Result<(Client, impl Future<Output = ()> + Send + 'static), ConnectError>,
) -> Result<Client, ConnectError> {
    let (client, driver) = made?;
    drop(tokio::spawn(driver));
    Ok(client)
}

/// A store by one of its URLs.
#[derive(Clone)]
pub struct RegisterBackend {
    store: &'static StoreUrl,
    url: String,
    config: Config,
    creates_table: bool,
}

impl RegisterBackend {
    /// The store of these URLs, if it is one of this package or of `more`.
    ///
    /// # Errors
    ///
    /// There are several URLs, or this build lacks the store.
    pub(crate) fn parse(urls: &[String], more: &'static [StoreUrl]) -> Result<Option<Self>, String> {
        for url in urls {
            let Some((scheme, _)) = url.split_once("://") else { continue };
            let Some(store) = STORES.iter().chain(more).find(|store| store.schemes.contains(&scheme)) else {
                if let Some((_, build)) = BUILDS.iter().find(|(schemes, _)| schemes.contains(&scheme)) {
                    return Err(format!("{scheme}:// is not in this build; it is in that of {build}"));
                }
                continue;
            };
            if urls.len() > 1 {
                return Err(format!("{scheme}:// is given once, without other URLs"));
            }
            return Ok(Some(Self { store, url: url.clone(), config: (store.config)(), creates_table: false }));
        }
        Ok(None)
    }

    /// Sets the password of a URL that has none.
    ///
    /// # Errors
    ///
    /// That of reading the password.
    pub(crate) fn default_password<E>(
        mut self,
        password: impl FnOnce() -> Result<Option<String>, E>,
    ) -> Result<Self, E> {
        if let Some(add) = self.store.default_password
            && let Some(password) = password()?
        {
            self.url = add(&self.url, &password);
        }
        Ok(self)
    }

    /// Creates the table at the start, if the store has one.
    pub(crate) fn create_table(self) -> Option<Self> {
        self.store.create_table.map(|_| Self { creates_table: true, ..self })
    }

    /// Sets the polling interval.
    pub(crate) fn poll(mut self, poll: Backoff) -> Self {
        self.config = self.config.poll(poll);
        self
    }

    pub(crate) const fn settings(&self) -> &Config {
        &self.config
    }

    /// The shortest TTL, and why there is one.
    pub(crate) const fn min_ttl(&self) -> Option<(Duration, &'static str)> {
        self.store.min_ttl
    }

    /// Creates the table, if that was requested.
    pub(crate) async fn prepare(&self) -> Result<(), Failed> {
        let Some(create) = self.store.create_table.filter(|_| self.creates_table) else { return Ok(()) };
        create(&self.url).await.map_err(|error| {
            let why = format!("--create-table: {error}");
            if matches!(error, RegisterError::Refused(_)) { Failed::refused(why) } else { Failed::unreachable(why) }
        })
    }

    /// Creates a client on the current runtime of tokio.
    pub(crate) fn connect(&self) -> Result<Client, ConnectError> {
        (self.store.connect)(self.config.clone(), &self.url)
    }

    pub(crate) fn scheme(&self) -> &str {
        self.url.split("://").next().unwrap_or_default()
    }
}

impl PartialEq for RegisterBackend {
    /// The URL tells the store.
    fn eq(&self, other: &Self) -> bool {
        (&self.url, &self.config, self.creates_table) == (&other.url, &other.config, other.creates_table)
    }
}

impl Eq for RegisterBackend {}

/// Without the login and the parameters.
impl fmt::Display for RegisterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.url.split('?').next().unwrap_or_default().split_once("://").map_or("", |(_, place)| place);
        write!(f, "{}://{}", self.scheme(), place.rsplit('@').next().unwrap_or_default())
    }
}

impl fmt::Debug for RegisterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisterBackend({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::cli::exit;

    fn parse(urls: &[&str], more: &'static [StoreUrl]) -> Result<Option<RegisterBackend>, String> {
        RegisterBackend::parse(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>(), more)
    }

    static MORE: &[StoreUrl] = &[StoreUrl {
        schemes: &["nats", "own"],
        connect: |_, _| Err(ConnectError::NoRuntime),
        config: Config::new,
        min_ttl: Some((Duration::from_secs(3), "of a test")),
        create_table: None,
        default_password: None,
    }];

    #[test]
    fn missing_store_is_named_with_the_build_that_has_it() {
        for (url, part) in [
            ("s3://a/b", "s3:// is not in this build"),
            ("gs://a", "tools with the feature `object-store`"),
            ("kube://a", "tools with the feature `kubernetes`"),
            ("tls://a/b", "tools with the feature `nats`"),
            ("nats://a/b", "tools with the feature `nats`"),
        ] {
            let error = parse(&[url], &[]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(parse(&["redis://a"], &[]), Ok(None));
        assert_eq!(parse(&["nats"], &[]), Ok(None));
    }

    #[test]
    fn lack_of_threads_is_no_usage_error() {
        use lock_driver::register::FileRegister;

        let code = |error| {
            let made = client_of(Config::new(), Err::<FileRegister, _>(error)).map(drop);
            Failed::connecting(&made.unwrap_err()).code
        };
        assert_eq!(code(RegisterError::not_sent("no thread")), exit::NOT_EXECUTABLE);
        assert_eq!(code(RegisterError::refused("no such URL")), exit::USAGE);
    }

    #[test]
    fn store_of_another_package_is_found() {
        for url in ["nats://user:hunter2@a/b?x=y", "own://user:hunter2@a/b?x=y"] {
            let found = parse(&[url], MORE).unwrap().unwrap();
            assert!(matches!(found.connect(), Err(ConnectError::NoRuntime)));
            assert_eq!(found.min_ttl().unwrap().0, Duration::from_secs(3));
            assert!(found.to_string().ends_with("://a/b"), "{found}");
            assert!(found.clone().create_table().is_none());
        }
        assert!(parse(&["redis://a", "own://b"], MORE).unwrap_err().contains("once"));
    }
}

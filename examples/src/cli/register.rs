//! Stores of crates of their own, by URL: a file of SQLite, a table of Postgres.

use core::fmt::{self, Write as _};
use std::ffi::OsString;

use lock_driver::Client;
use lock_proto::register::Config;

use super::failed::Failed;
use super::{Usage, usage};

const OPTION: &str = "--create-table";

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgres,
}

/// A store that needs tokio.
#[derive(Clone, PartialEq, Eq)]
pub struct RegisterBackend {
    kind: Kind,
    url: String,
    config: Config,
    create_table: bool,
}

impl RegisterBackend {
    /// The store of these URLs, if it is one of these.
    ///
    /// # Errors
    ///
    /// There are several URLs, or this build lacks the store.
    pub(crate) fn parse(urls: &[String]) -> Result<Option<Self>, Usage> {
        let Some((kind, url)) = urls.iter().find_map(|url| Some((kind_of(url)?, url))) else { return Ok(None) };
        let (feature, is_built) = match kind {
            Kind::Sqlite => ("sqlite", cfg!(feature = "sqlite")),
            Kind::Postgres => ("postgres", cfg!(feature = "postgres")),
        };
        if !is_built {
            return usage(format!("--backend: {feature}:// needs the feature `{feature}`, which is not turned on"));
        }
        if urls.len() > 1 {
            return usage(format!("--backend: {feature}:// is given once, without other URLs"));
        }
        Ok(Some(Self { kind, url: url.clone(), config: Config::new(), create_table: false }))
    }

    /// Sets the password of a URL that has none.
    ///
    /// # Errors
    ///
    /// It is not UTF-8.
    pub(crate) fn default_password(mut self, password: Option<OsString>) -> Result<Self, Usage> {
        let Some(password) = password.filter(|_| self.kind == Kind::Postgres) else { return Ok(self) };
        let Some(password) = password.to_str() else { return usage("LOCK_PASSWORD is not UTF-8") };
        let (rest, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let login = rest.rsplit_once('@').and_then(|(login, _)| login.split_once("://"));
        let is_given = login.is_some_and(|(_, login)| login.contains(':'))
            || query.split('&').any(|parameter| parameter.starts_with("password="));
        if !is_given {
            self.url.push_str(if self.url.contains('?') { "&password=" } else { "?password=" });
            for byte in password.bytes() {
                let _ = write!(self.url, "%{byte:02X}");
            }
        }
        Ok(self)
    }

    /// Creates the table at the start.
    ///
    /// # Errors
    ///
    /// The store needs none.
    pub(crate) fn create_table(mut self, create: bool) -> Result<Self, Usage> {
        if create && self.kind != Kind::Postgres {
            return no_table();
        }
        self.create_table = create;
        Ok(self)
    }

    /// Applies settings.
    pub(crate) fn config(mut self, change: impl FnOnce(Config) -> Config) -> Self {
        self.config = change(self.config);
        self
    }

    pub(crate) const fn settings(&self) -> &Config {
        &self.config
    }

    /// Creates a client. Call it on a runtime of tokio.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or the table could not be created.
    #[allow(clippy::unused_async, reason = "without the feature `postgres`")]
    pub(crate) async fn connect(&self) -> Result<Client, Failed> {
        match self.kind {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => lock_sqlite::connect_with(self.config.clone(), &self.url),
            #[cfg(feature = "postgres")]
            Kind::Postgres => {
                if self.create_table {
                    create_table(&self.url).await?;
                }
                lock_postgres::connect_with(self.config.clone(), &self.url)
            }
            #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
            _ => Err(lock_driver::ConnectError::MissingFeature { feature: "sqlite or postgres" }),
        }
        .map_err(|error| Failed::connecting(&error))
    }
}

/// Names the option that creates the table that is missing.
pub(crate) fn name_option(failed: &mut Failed) {
    if failed.why.contains("create the table with") {
        failed.why.push_str("; or once by --create-table");
    }
}

fn kind_of(url: &str) -> Option<Kind> {
    match url.split_once("://")?.0 {
        "sqlite" => Some(Kind::Sqlite),
        "postgres" | "postgresql" => Some(Kind::Postgres),
        _ => None,
    }
}

/// The error about `--create-table` with another store.
pub(crate) fn no_table<T>() -> Result<T, Usage> {
    usage(format!("{OPTION} is for postgres:// alone: other stores need no table"))
}

#[cfg(feature = "postgres")]
async fn create_table(url: &str) -> Result<(), Failed> {
    use lock_driver::register::RegisterError;

    use super::exit;

    let register = lock_postgres::PostgresRegister::from_url(url).map_err(Failed::usage)?;
    register.create_table().await.map_err(|error| {
        let is_refused = matches!(error, RegisterError::Refused(_));
        let code = if is_refused { exit::REFUSED } else { exit::UNREACHABLE };
        Failed { code, why: format!("{OPTION}: {error}") }
    })
}

/// Without the URL, which may have a password.
impl fmt::Debug for RegisterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterBackend").field("kind", &self.kind).finish_non_exhaustive()
    }
}

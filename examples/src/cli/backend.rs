//! Where the locks and elections of a tool are.

use core::fmt;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use lock_driver::register::FileConfig;
use lock_driver::{Client, StoreSettings};

use super::args::{backends, check_urls, parse_backends, password, raised_ttl, why_raised, with_ttl};
use super::failed::Failed;
use super::register::{RegisterBackend, StoreUrl};
use super::runtime::Runtime;
use super::{Usage, usage};

/// Where the locks and elections of a tool are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A store of the library.
    Store(StoreSettings),
    /// A store of a crate of its own.
    Register(RegisterBackend),
}

impl Backend {
    /// The store of the URLs that were given, else of those of `LOCK_BACKEND`, else the folder of
    /// the user: the text tells the user where `things` are then. `more` are stores beside those of
    /// this package.
    ///
    /// # Errors
    ///
    /// A URL or the environment is invalid, or the folder is another user's. The error shows no
    /// password.
    pub(crate) fn choose(
        given: Vec<String>,
        environment: Option<&OsStr>,
        more: &'static [StoreUrl],
        things: &str,
    ) -> Result<(Self, Option<String>), Usage> {
        let check = |urls: &[String]| match RegisterBackend::parse(urls, more)? {
            Some(_) => Ok(()),
            None => check_urls(urls),
        };
        let Some(urls) = backends(given, environment, check)? else {
            let folder = folder_of_user()?;
            let place = folder.display();
            let notice = format!("no --backend is given: the {things} are in {place}, for this machine and user alone");
            return Ok((Self::Store(StoreSettings::File(FileConfig::new(folder))), Some(notice)));
        };
        let register = RegisterBackend::parse(&urls, more).map_err(|error| Usage(format!("--backend: {error}")))?;
        let backend = match register {
            Some(register) => Self::Register(register.default_password(password)?),
            None => Self::Store(parse_backends(&urls)?),
        };
        Ok((backend, None))
    }

    /// Obeys `--create-table`.
    ///
    /// # Errors
    ///
    /// The store has no table.
    pub(crate) fn create_table(self, create: bool) -> Result<Self, Usage> {
        match self {
            backend if !create => Some(backend),
            Self::Register(register) => register.create_table().map(Self::Register),
            Self::Store(_) => None,
        }
        .ok_or_else(|| Usage("--create-table is for postgres:// alone: other stores need no table".into()))
    }

    /// Returns the TTL of the locks as well, `requested` or the default as the store can have it,
    /// and what to tell the user if that is longer than requested.
    ///
    /// # Errors
    ///
    /// The store has no such TTL.
    pub(crate) fn with_ttl(
        self,
        requested: Option<Duration>,
        default: Duration,
    ) -> Result<(Self, Duration, Option<String>), Usage> {
        let ttl = requested.unwrap_or(default);
        Ok(match self {
            Self::Store(settings) => {
                let (settings, ttl) = with_ttl(settings, ttl)?;
                let notice = raised_ttl(requested, ttl, || why_raised(&settings));
                (Self::Store(settings), ttl, notice)
            }
            Self::Register(register) => {
                let (min, why) = register.min_ttl().unwrap_or_default();
                // Zero is an error.
                let ttl = if ttl.is_zero() { ttl } else { ttl.max(min) };
                (Self::Register(register), ttl, raised_ttl(requested, ttl, || why.to_owned()))
            }
        })
    }

    /// The settings of a store that works on every runtime.
    ///
    /// # Errors
    ///
    /// The store needs tokio.
    pub(crate) fn on_any_runtime(&self) -> Result<&StoreSettings, Failed> {
        match self {
            Self::Store(settings) => Ok(settings),
            Self::Register(register) => {
                Err(Failed::usage(format_args!("--runtime: {}:// needs tokio", register.scheme())))
            }
        }
    }

    /// Does what is done once, before the first client: creates the table.
    ///
    /// # Errors
    ///
    /// That of the store.
    pub(crate) async fn prepare(&self) -> Result<(), Failed> {
        match self {
            Self::Store(_) => Ok(()),
            Self::Register(register) => register.prepare().await,
        }
    }

    /// Creates a client whose driver is a task of the current runtime of tokio.
    ///
    /// # Errors
    ///
    /// That of connecting.
    pub(crate) fn connect(&self) -> Result<Client, Failed> {
        let made = match self {
            Self::Store(settings) => Runtime::Tokio.client(settings.clone().into()),
            Self::Register(register) => register.connect(),
        };
        made.map_err(|error| Failed::connecting(&error))
    }
}

/// The servers, or the folder.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = match self {
            Self::Store(StoreSettings::Redis(config)) => config.nodes().iter().map(ToString::to_string).collect(),
            Self::Store(StoreSettings::Etcd(config)) => config.endpoints().iter().map(ToString::to_string).collect(),
            Self::Store(StoreSettings::ZooKeeper(config)) => config.servers().iter().map(ToString::to_string).collect(),
            Self::Store(StoreSettings::File(config)) => vec![config.folder.display().to_string()],
            Self::Store(_) => Vec::new(),
            Self::Register(register) => vec![register.to_string()],
        };
        f.write_str(&members.join(", "))
    }
}

/// The folder for the locks of this user on this machine. Not the one of the session, which a job
/// of cron does not have, and which is deleted with the session.
///
/// # Errors
///
/// The environment names no home, or the folder is another user's.
fn folder_of_user() -> Result<PathBuf, Usage> {
    let folder = folder_in(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
        .ok_or_else(|| Usage("neither HOME nor XDG_STATE_HOME is set: give --backend".into()))?;
    // Root's files in the folder of a user would be in the user's way.
    let owner = std::fs::metadata(&folder).map(|metadata| metadata.uid());
    if owner.is_ok_and(|owner| owner != rustix::process::geteuid().as_raw()) {
        return usage(format!("{} belongs to another user: give --backend", folder.display()));
    }
    Ok(folder)
}

fn folder_in(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".local/state")))?;
    Some(state.join("lock-proto"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_that_of_state() {
        let folder = |state: &str, home: &str| {
            let of = |text: &str| Some(OsString::from(text)).filter(|text| !text.is_empty());
            folder_in(of(state), of(home)).map(|path| path.display().to_string())
        };
        assert_eq!(folder("/state", "/home/a").as_deref(), Some("/state/lock-proto"));
        assert_eq!(folder("", "/home/a").as_deref(), Some("/home/a/.local/state/lock-proto"));
        // A relative path counts as unset, as the specification of these variables says.
        assert_eq!(folder("state", "/home/a").as_deref(), Some("/home/a/.local/state/lock-proto"));
        assert_eq!(folder("", "home"), None);
    }
}

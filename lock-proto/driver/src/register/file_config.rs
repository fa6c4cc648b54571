//! Locks in a folder, by a URL.

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::pin::Pin;
use core::time::Duration;
use std::env;
use std::path::{Path, PathBuf};
use std::process;

use bytes::Bytes;
use lock_proto::register::{Config, Reply, Request, Revision, parse_folder};
use lock_proto::{Backoff, ClientId};

use super::calls::{self, StoreCalls};
use super::file::FileRegister;
use super::own::{OwnStore, call, change};
use crate::client::Client;
use crate::connect::ConnectError;
use crate::event_loop::EventLoop;
use crate::host::Host;
use crate::settings::HostSettings;

/// Settings of a client whose locks are in a folder, for the processes of one machine.
///
/// ```
/// use lock_driver::Settings;
/// use lock_driver::register::FileConfig;
///
/// let settings = Settings::from(FileConfig::new("/var/lib/app/locks")).prefix("app:");
/// # drop(settings);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "settings do nothing until they are given to `connect`"]
pub struct FileConfig {
    /// The folder: see [`FileRegister`].
    pub folder: PathBuf,
    /// The settings of the machine.
    pub config: Config,
    pub(crate) request_credentials: bool,
}

impl FileConfig {
    /// The settings for a folder: a waiter looks at its lock ten times a second, and the record of a
    /// lock names this program and process.
    pub fn new(folder: impl AsRef<Path>) -> Self {
        let config = Config::new()
            .poll(Backoff::exponential(Duration::from_millis(10), Duration::from_millis(100)))
            .request_timeout(Duration::from_secs(2))
            .label(&label());
        Self { folder: folder.as_ref().to_owned(), config, request_credentials: false }
    }

    /// The prefix of every key, at most 512 bytes. Empty by default.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        Self { config: self.config.prefix(prefix), ..self }
    }

    /// A folder has no password.
    pub(crate) const fn default_password(self, _: &str) -> Self {
        self
    }
}

/// The program and the process.
fn label() -> String {
    let program = env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    format!("{} {}", name.to_string_lossy(), process::id())
}

type BoxedCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A driver with a name, which is `Send` if its host is.
pub(crate) type Driver<H> = EventLoop<H, StoreCalls<H, OwnStore<FileRegister, BoxedCall<Reply>, BoxedCall<()>>>>;

/// A folder has one URL.
pub(crate) fn parse(urls: &[&str]) -> Result<FileConfig, ConnectError> {
    let [url] = urls else { return Err(ConnectError::SeveralUrls) };
    Ok(FileConfig::new(&*parse_folder(url)?))
}

pub(crate) fn start<H: Host>(
    host: H,
    config: FileConfig,
    _: HostSettings,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let register =
        FileRegister::open(&config.folder).map_err(|error| ConnectError::Store(format!("{error}").into()))?;
    let store = OwnStore {
        store: Arc::new(register),
        call: |store: Arc<FileRegister>, request: Request| -> BoxedCall<Reply> { Box::pin(call(store, request)) },
        change: |store: Arc<FileRegister>, key: Bytes, seen: Option<Revision>| -> BoxedCall<()> {
            Box::pin(change(store, key, seen))
        },
    };
    calls::start(host, config.config, store, format!("file://{}", config.folder.display()).into(), id, seed)
}

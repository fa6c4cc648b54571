//! The register: one object a key.

use core::time::Duration;
use std::sync::Arc;

use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Entry, Record, Revision};
use object_store::path::Path;
use object_store::{Error, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult, UpdateVersion};
use tokio::sync::OnceCell;

use crate::error::{classify, text};
use crate::key;

/// More than the longest record.
const MAX_SIZE: u64 = 1 << 20;

/// A register in an object store: one object a key, below a prefix.
///
/// The first read or write probes the store; see the [crate](crate).
#[derive(Clone, Debug)]
pub struct ObjectRegister {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Set when the store has proved that it compares.
    probed: Arc<OnceCell<()>>,
}

impl ObjectRegister {
    /// Creates a register below a prefix, which may be empty.
    ///
    /// The store's own retries must be off (`no_retries`): it would take the success of a
    /// first try for a conflict of the second.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
        Self { store, prefix: prefix.into(), probed: Arc::default() }
    }

    /// Checks that the store refuses a write whose condition does not hold. The first read or write
    /// does the same.
    ///
    /// # Errors
    ///
    /// [`Refused`](RegisterError::Refused) if the store accepts such a write, and thus cannot be used;
    /// others if it cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; the probe goes on.
    pub async fn probe(&self) -> Result<(), RegisterError> {
        if self.probed.initialized() {
            return Ok(());
        }
        // A task of its own: it may take longer than a caller waits.
        let register = self.clone();
        let probe = async move { register.probed.get_or_try_init(|| register.try_probe()).await.copied() };
        tokio::spawn(probe).await.unwrap_or_else(|error| Err(RegisterError::not_sent(error)))
    }

    async fn try_probe(&self) -> Result<(), RegisterError> {
        let path = key::own(&self.prefix, "~probe");
        // The first one creates it, unless a probe has before.
        for _ in 0..2 {
            match self.put(&path, PROBE, PutMode::Create).await {
                Ok(_) => {}
                Err(Error::AlreadyExists { .. }) => return self.probe_update(&path).await,
                Err(error) => return Err(classify(&error)),
            }
        }
        Err(ignores("If-None-Match"))
    }

    async fn probe_update(&self, path: &Path) -> Result<(), RegisterError> {
        let found = self.store.get(path).await.map_err(|error| classify(&error))?.meta;
        let wrong = UpdateVersion { e_tag: found.e_tag.map(other), version: found.version.map(other) };
        match self.put(path, PROBE, PutMode::Update(wrong)).await {
            Ok(_) => Err(ignores("If-Match")),
            // The second is the answer to a probe that meets another one.
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(classify(&error)),
        }
    }

    async fn put(&self, path: &Path, content: impl Into<PutPayload>, mode: PutMode) -> Result<PutResult, Error> {
        self.store.put_opts(path, content.into(), mode.into()).await
    }

    /// Reads without a probe.
    async fn get(&self, path: &Path) -> Result<Option<Entry>, RegisterError> {
        let found = match self.store.get(path).await {
            Ok(found) => found,
            Err(error @ Error::NotFound { .. }) => {
                return match classify(&error) {
                    refused @ RegisterError::Refused(_) => Err(refused),
                    RegisterError::Conflict | RegisterError::NotSent(_) | RegisterError::Unknown(_) => Ok(None),
                };
            }
            Err(error) => return Err(classify(&error)),
        };
        if found.meta.size > MAX_SIZE {
            return Err(not_a_record(path, "it is too large"));
        }
        let revision = revision(found.meta.e_tag.as_deref(), found.meta.version.as_deref())?;
        let age = age(&found);
        let bytes = found.bytes().await.map_err(|error| classify(&error))?;
        let record = Record::decode(&bytes).map_err(|error| not_a_record(path, error))?;
        Ok(Some(Entry { record, revision, age }))
    }

    /// Finds out what a failed condition means.
    ///
    /// "Already exists" is also the answer to a write that met another one under way, so it is a
    /// conflict only if a read shows another record than the expected one.
    // RG4
    async fn failed(&self, path: &Path, expected: Option<&Entry>, error: &Error) -> RegisterError {
        let what = classify(error);
        if matches!(what, RegisterError::Refused(_)) {
            return what;
        }
        if expected.is_some() && matches!(error, Error::Precondition { .. }) {
            return RegisterError::Conflict;
        }
        match self.get(path).await {
            Ok(found) if found.as_ref().map(|e| &e.revision) != expected.map(|e| &e.revision) => {
                RegisterError::Conflict
            }
            Ok(_) => RegisterError::not_sent(text(error)),
            Err(refused @ RegisterError::Refused(_)) => refused,
            Err(_) => RegisterError::unknown(text(error)),
        }
    }
}

impl Register for ObjectRegister {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        self.probe().await?;
        self.get(&key::path(&self.prefix, key)).await
    }

    fn name(&self) -> String {
        self.store.to_string()
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        // What fails before the write has not sent it.
        self.probe().await.map_err(|error| match error {
            RegisterError::Unknown(text) => RegisterError::NotSent(text),
            other @ (RegisterError::Conflict | RegisterError::Refused(_) | RegisterError::NotSent(_)) => other,
        })?;
        let path = key::path(&self.prefix, key);
        let mode = expected.map_or(PutMode::Create, |entry| PutMode::Update(version(&entry.revision)));
        match self.put(&path, record.encode(), mode).await {
            Ok(written) => {
                revision(written.e_tag.as_deref(), written.version.as_deref()).map_err(RegisterError::unknown)
            }
            Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. })) => {
                Err(self.failed(&path, expected, &error).await)
            }
            Err(error) => Err(classify(&error)),
        }
    }
}

/// The content of the object that the probe writes: no record.
const PROBE: &str = "This object shows that the store has conditional writes. It holds no lock.\n";

fn ignores(condition: &str) -> RegisterError {
    RegisterError::refused(format!(
        "the store ignores {condition}, and would give a lock to everybody; use one with conditional writes"
    ))
}

fn not_a_record(path: &Path, why: impl core::fmt::Display) -> RegisterError {
    RegisterError::refused(format!("object \"{path}\" is not a lock ({why}); use another prefix, or remove it"))
}

/// Returns an entity tag or version of the same form that stands for nothing.
fn other(tag: String) -> String {
    let end = tag.rfind(|c: char| c.is_ascii_hexdigit());
    let Some(end) = end else { return format!("{tag}0") };
    let digit = if &tag[end..=end] == "1" { "2" } else { "1" };
    format!("{}{digit}{}", &tag[..end], &tag[end + 1..])
}

/// Google Cloud Storage compares the version, the others the entity tag: a revision is both.
fn revision(e_tag: Option<&str>, version: Option<&str>) -> Result<Revision, RegisterError> {
    match (e_tag, version) {
        (None, None) => {
            Err(RegisterError::refused("the store returns neither entity tag nor version; use another one"))
        }
        (e_tag, version) => {
            Ok(Revision::new(format!("{}\n{}", e_tag.unwrap_or_default(), version.unwrap_or_default())))
        }
    }
}

fn version(revision: &Revision) -> UpdateVersion {
    let text = revision.as_str().unwrap_or_default();
    let (e_tag, version) = text.split_once('\n').unwrap_or((text, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    UpdateVersion { e_tag: some(e_tag), version: some(version) }
}

/// Returns how long ago the object was written, by the store's clock alone: its `Date` and
/// `Last-Modified` of the same reply. Both are whole seconds.
// RG1
fn age(found: &GetResult) -> Option<Duration> {
    #[cfg(feature = "cloud")]
    {
        let written = std::time::SystemTime::from(found.meta.last_modified);
        let now = found.extensions.get::<crate::cloud::ServerDate>()?.0;
        // The client reports a missing `Last-Modified` as the epoch.
        if written > std::time::UNIX_EPOCH {
            return now.duration_since(written).ok().map(|age| age.saturating_sub(Duration::from_secs(1)));
        }
    }
    let _ = found;
    None
}

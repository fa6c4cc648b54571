//! The register: one Lease a key.

use core::pin::pin;
use core::time::Duration;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Config, Error};
use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Entry, Record, Revision};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::error::classify;
use crate::lease::{self, Seen};
use crate::name::name;

/// How long a write may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a watch that ended waits before the next one.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// A register in the Leases of a namespace: one Lease a lock.
#[derive(Clone)]
pub struct LeaseRegister {
    leases: Arc<OnceCell<(Api<Lease>, Box<str>)>>,
    /// How to get them.
    source: Arc<Source>,
}

enum Source {
    Config(Box<Config>, Option<Box<str>>),
    Infer(Option<Box<str>>),
}

impl core::fmt::Debug for LeaseRegister {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LeaseRegister").finish_non_exhaustive()
    }
}

impl LeaseRegister {
    /// Creates a register in a namespace.
    ///
    /// The client's own retries must be off (`Config::default_retry`): it would take the success of a
    /// first try for a conflict of the second.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        let register = Self::of(Source::Infer(Some(namespace.into())));
        let leases = Api::namespaced(client, namespace);
        Self { leases: Arc::new(OnceCell::new_with(Some((leases, namespace.into())))), ..register }
    }

    /// Creates a register from a configuration, whose retries are switched off, in its default
    /// namespace or another one. Nothing is sent before the first read or write.
    #[must_use]
    pub fn from_config(config: Config, namespace: Option<&str>) -> Self {
        Self::of(Source::Config(config.into(), namespace.map(Into::into)))
    }

    /// Creates a register from a URL: `kube://NAMESPACE`, or `kube://` for the default namespace.
    ///
    /// The first read or write looks for the configuration: a kubeconfig (`KUBECONFIG`,
    /// `~/.kube/config`), else the service account of the pod.
    ///
    /// # Errors
    ///
    /// [`Refused`](RegisterError::Refused) if the URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, RegisterError> {
        let Some(namespace) = url.strip_prefix("kube://") else {
            return Err(RegisterError::refused(format!("unsupported URL {url:?}; expected kube://NAMESPACE")));
        };
        let namespace = namespace.strip_suffix('/').unwrap_or(namespace);
        if !namespace.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
            return Err(RegisterError::refused(format!("{namespace:?} is no namespace; expected kube://NAMESPACE")));
        }
        Ok(Self::of(Source::Infer((!namespace.is_empty()).then(|| namespace.into()))))
    }

    fn of(source: Source) -> Self {
        Self { leases: Arc::default(), source: Arc::new(source) }
    }

    /// Returns the Leases, and the name of their namespace.
    async fn leases(&self) -> Result<&(Api<Lease>, Box<str>), RegisterError> {
        if let Some(leases) = self.leases.get() {
            return Ok(leases);
        }
        // A task of its own: it may take longer than a caller waits.
        let (leases, source) = (self.leases.clone(), self.source.clone());
        let open = async move { leases.get_or_try_init(|| open(&source)).await.map(|_| ()) };
        tokio::spawn(open).await.map_err(RegisterError::not_sent)??;
        self.leases.get().ok_or_else(|| RegisterError::not_sent("no client"))
    }

    /// Returns when the Lease has another revision than `seen`, or with the watch.
    async fn watch(&self, name: &str, seen: Option<&str>) -> Option<()> {
        let (leases, _) = self.leases().await.ok()?;
        let wanted =
            WatchParams { bookmarks: false, ..WatchParams::default().fields(&format!("metadata.name={name}")) };
        // From "0", it begins with what is there now.
        let mut events = pin!(leases.watch(&wanted, seen.unwrap_or("0")).await.ok()?);
        loop {
            match events.next().await?.ok()? {
                WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                    if lease.metadata.resource_version.as_deref() != seen {
                        return Some(());
                    }
                }
                WatchEvent::Deleted(_) if seen.is_some() => return Some(()),
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                // The server has forgotten what came after so old a version.
                WatchEvent::Error(_) => return seen.map(|_| ()),
            }
        }
    }
}

/// Creates the client.
async fn open(source: &Source) -> Result<(Api<Lease>, Box<str>), RegisterError> {
    let (mut config, namespace) = match source {
        Source::Config(config, namespace) => ((**config).clone(), namespace),
        Source::Infer(namespace) => {
            let config = Config::infer().await.map_err(|error| classify(&Error::InferConfig(error), ""))?;
            (config, namespace)
        }
    };
    // RG4
    config.default_retry = false;
    // The client would panic if the program has two providers of cryptography, and chose none.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let namespace = namespace.clone().unwrap_or_else(|| config.default_namespace.as_str().into());
    let client = Client::try_from(config).map_err(|error| RegisterError::refused(crate::error::text(&error)))?;
    Ok((Api::namespaced(client, &namespace), namespace))
}

impl Register for LeaseRegister {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let (leases, namespace) = self.leases().await?;
        let found = leases.get_opt(&name(key)).await.map_err(|error| classify(&error, namespace))?;
        found.as_ref().map(lease::entry).transpose()
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let (leases, namespace) = self.leases().await?;
        let name = name(key);
        let patch = lease::patch(record, expected, Timestamp::now())?;
        let write = async {
            if expected.is_some() {
                leases.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await
            } else {
                let mut lease: Lease = serde_json::from_value(patch).map_err(Error::SerdeError)?;
                lease.metadata.name = Some(name.clone());
                leases.create(&PostParams::default(), &lease).await
            }
        };
        let Ok(written) = timeout(TIMEOUT, write).await else {
            return Err(RegisterError::unknown("the API server does not reply"));
        };
        match (written, expected) {
            (Ok(lease), _) => Ok(lease::revision(&lease)),
            (Err(Error::Api(status)), Some(_)) if matches!(status.code, 404 | 409) => Err(RegisterError::Conflict),
            // A conflict only if it is there.
            (Err(Error::Api(status)), None) if status.code == 409 => {
                match timeout(TIMEOUT, leases.get_opt(&name)).await {
                    Ok(Ok(Some(_))) => Err(RegisterError::Conflict),
                    Ok(Ok(None)) => Err(RegisterError::not_sent(status)),
                    Ok(Err(_)) | Err(_) => Err(RegisterError::unknown(status)),
                }
            }
            (Err(error), _) => Err(classify(&error, namespace)),
        }
    }

    fn name(&self) -> String {
        "Kubernetes".into()
    }

    async fn changed(&self, key: &[u8], seen: Option<&Revision>) {
        let name = name(key);
        let seen = seen.map(|seen| Seen::of(seen).resource_version);
        while self.watch(&name, seen).await.is_none() {
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }
}

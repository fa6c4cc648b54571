//! The register: one key of the bucket a lock.

use core::error::Error as _;
use core::time::Duration;
use std::sync::Arc;

use async_nats::connection::State;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::kv::{Operation, Store, UpdateError, UpdateErrorKind};
use async_nats::jetstream::stream::DiscardPolicy;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt;
use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Entry, Record, Revision};
use tokio::sync::OnceCell;
use url::Url;

use crate::key::key;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a watch that ended waits before the next one.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// A register in a key-value bucket of NATS JetStream: one key a lock.
///
/// The first read or write connects, if the register was made from a URL. Later the client of NATS
/// keeps the connection.
#[derive(Clone, Debug)]
pub struct NatsRegister {
    bucket: Arc<OnceCell<Bucket>>,
    /// How to get the bucket.
    source: Arc<Source>,
}

#[derive(Clone, Debug)]
struct Bucket {
    client: Client,
    store: Store,
}

#[derive(Debug)]
enum Source {
    /// A client of the user's.
    Client(Client, Box<str>),
    Url(Box<str>, Box<ConnectOptions>, Box<str>),
}

/// What a key has.
enum Found {
    Record(Entry),
    /// Nothing, or a mark that it was deleted with this revision.
    Absent(u64),
}

impl NatsRegister {
    /// Creates a register in a bucket, over a connection.
    ///
    /// The first read or write checks the bucket; see the [crate](crate).
    #[must_use]
    pub fn new(client: Client, bucket: &str) -> Self {
        Self::of(Source::Client(client, bucket.into()))
    }

    /// Creates a register from a URL: `nats://[USER:PASSWORD@]HOST[:PORT]/BUCKET`, with `tls://` over
    /// TLS. Nothing is sent before the first read or write.
    ///
    /// `?credentials=FILE` names a file of credentials, `?ca=FILE` the certificate authorities.
    ///
    /// # Errors
    ///
    /// [`Refused`](RegisterError::Refused) if the URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, RegisterError> {
        let mut url = Url::parse(url).map_err(RegisterError::refused)?;
        if !matches!(url.scheme(), "nats" | "tls") {
            return Err(RegisterError::refused(format!(
                "unsupported scheme {:?}; expected nats:// or tls://",
                url.scheme()
            )));
        }
        let bucket: Box<str> = url.path().trim_matches('/').into();
        if bucket.is_empty() || url.host_str().is_none() {
            return Err(RegisterError::refused("the URL names no bucket; expected nats://HOST/BUCKET"));
        }
        let mut options = ConnectOptions::new().connection_timeout(TIMEOUT).request_timeout(Some(TIMEOUT));
        for (name, value) in url.query_pairs() {
            options = match &*name {
                "credentials" => std::fs::read_to_string(&*value)
                    .and_then(|text| options.credentials(&text))
                    .map_err(|error| RegisterError::refused(format!("cannot read the credentials {value}: {error}")))?,
                "ca" => options.add_root_certificates(value.as_ref().into()),
                _ => {
                    return Err(RegisterError::refused(format!(
                        "unknown setting {name:?}; expected `credentials` or `ca`"
                    )));
                }
            };
        }
        url.set_query(None);
        url.set_path("");
        Ok(Self::of(Source::Url(url.as_str().into(), options.into(), bucket)))
    }

    fn of(source: Source) -> Self {
        Self { bucket: Arc::default(), source: Arc::new(source) }
    }

    /// Connects, unless it has, and returns the bucket.
    async fn bucket(&self) -> Result<&Bucket, RegisterError> {
        let bucket = match self.bucket.get() {
            Some(bucket) => bucket,
            None => {
                // A task of its own: it may take longer than a caller waits.
                let register = self.clone();
                let open = async move { register.bucket.get_or_try_init(|| register.open()).await.map(|_| ()) };
                tokio::spawn(open).await.map_err(RegisterError::not_sent)??;
                self.bucket.get().ok_or_else(|| RegisterError::not_sent("not connected to NATS"))?
            }
        };
        // Else the client would keep the request, and send it after it has connected again.
        match bucket.client.connection_state() {
            State::Connected => Ok(bucket),
            State::Disconnected | State::Pending => Err(RegisterError::not_sent("not connected to NATS")),
        }
    }

    async fn open(&self) -> Result<Bucket, RegisterError> {
        let (client, name) = match &*self.source {
            Source::Client(client, bucket) => (client.clone(), bucket),
            Source::Url(url, options, bucket) => {
                // The client would panic if the program has two providers of cryptography, and chose none.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = ConnectOptions::clone(options)
                    .connect(&**url)
                    .await
                    .map_err(|error| RegisterError::not_sent(text(&error)))?;
                (client, bucket)
            }
        };
        let context = jetstream::context::ContextBuilder::new().timeout(TIMEOUT).build(client.clone());
        let store = context.get_key_value(&**name).await.map_err(|error| {
            let text = text(&error);
            if text.contains("10059") || text.contains("stream not found") {
                RegisterError::refused(format!(
                    "there is no bucket {name:?}; create it with `nats kv add {name}`: {text}"
                ))
            } else if text.contains("10039") || text.contains("10076") {
                RegisterError::refused(format!(
                    "JetStream is not enabled; enable it for the server and the account: {text}"
                ))
            } else {
                RegisterError::not_sent(text)
            }
        })?;
        let config = &store.stream.cached_info().config;
        // RG3
        if !config.max_age.is_zero() {
            return Err(RegisterError::refused(format!(
                "bucket {name:?} removes keys after {:?}, also those of locks in use; use one without a maximal age",
                config.max_age,
            )));
        }
        if config.discard != DiscardPolicy::New && (config.max_bytes > 0 || config.max_messages > 0) {
            return Err(RegisterError::refused(format!(
                "bucket {name:?} removes old keys when it is full, also those of locks in use; use one that discards new ones"
            )));
        }
        Ok(Bucket { client, store })
    }
}

impl Bucket {
    async fn get(&self, key: &str) -> Result<Found, RegisterError> {
        let found = self.store.entry(key).await.map_err(|error| RegisterError::unknown(text(&error)))?;
        let Some(entry) = found else { return Ok(Found::Absent(0)) };
        if entry.operation != Operation::Put {
            return Ok(Found::Absent(entry.revision));
        }
        let record = Record::decode(&entry.value).map_err(|error| {
            let bucket = &self.store.name;
            RegisterError::refused(format!(
                "key {key:?} of bucket {bucket:?} is not a lock ({error}); use another bucket"
            ))
        })?;
        Ok(Found::Record(Entry::new(record, entry.revision.into())))
    }

    /// One request. The `create` of the client makes a second write after a first one without an
    /// answer.
    // RG4
    async fn put(&self, key: &str, record: &Record, expected: u64) -> Result<Revision, RegisterError> {
        let put = self.store.update(key, record.encode().into(), expected).await;
        put.map(Revision::from).map_err(|error| classify(&error))
    }

    /// Returns when the key has another revision than `seen`, or with the watch.
    async fn watch(&self, key: &str, seen: Option<u64>) -> Option<()> {
        // It begins with the last revision, so that none is missed.
        let mut watch = self.store.watch_with_history(key).await.ok()?;
        loop {
            let entry = watch.next().await?.ok()?;
            let is_other = match seen {
                Some(seen) => entry.revision > seen,
                None => entry.operation == Operation::Put,
            };
            if is_other {
                return Some(());
            }
        }
    }
}

impl Register for NatsRegister {
    async fn read(&self, key_bytes: &[u8]) -> Result<Option<Entry>, RegisterError> {
        match self.bucket().await?.get(&key(key_bytes)).await? {
            Found::Record(entry) => Ok(Some(entry)),
            Found::Absent(_) => Ok(None),
        }
    }

    async fn write(
        &self,
        key_bytes: &[u8],
        record: &Record,
        expected: Option<&Entry>,
    ) -> Result<Revision, RegisterError> {
        let bucket = self.bucket().await?;
        let key = key(key_bytes);
        let Some(expected) = expected else {
            return match bucket.put(&key, record, 0).await {
                // The key may have been deleted, which leaves a mark.
                Err(RegisterError::Conflict) => match bucket.get(&key).await {
                    Ok(Found::Absent(mark)) if mark > 0 => bucket.put(&key, record, mark).await,
                    Ok(_) => Err(RegisterError::Conflict),
                    Err(refused @ RegisterError::Refused(_)) => Err(refused),
                    Err(error) => Err(RegisterError::not_sent(error)),
                },
                other => other,
            };
        };
        let Some(revision) = expected.revision.as_u64() else {
            return Err(RegisterError::refused("the expected revision is of another store"));
        };
        bucket.put(&key, record, revision).await
    }

    fn name(&self) -> String {
        "NATS".into()
    }

    async fn changed(&self, key_bytes: &[u8], seen: Option<&Revision>) {
        let key = key(key_bytes);
        let seen = seen.and_then(Revision::as_u64);
        loop {
            if let Ok(bucket) = self.bucket().await
                && bucket.watch(&key, seen).await.is_some()
            {
                return;
            }
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }
}

/// Returns what a failed write means.
// RG4
fn classify(error: &UpdateError) -> RegisterError {
    let text = text(error);
    match error.kind() {
        UpdateErrorKind::WrongLastRevision => return RegisterError::Conflict,
        UpdateErrorKind::InvalidKey => return RegisterError::refused(text),
        UpdateErrorKind::TimedOut | UpdateErrorKind::Other => {}
    }
    let Some(publish) = error.source().and_then(|source| source.downcast_ref::<PublishError>()) else {
        return RegisterError::unknown(text);
    };
    if publish.kind() == PublishErrorKind::MaxPayloadExceeded {
        return RegisterError::refused(format!("the record is too long for the server; shorten the value: {text}"));
    }
    let is_rejected = match publish.source().and_then(|source| source.downcast_ref::<jetstream::Error>()) {
        // It met another write under way, which may fail.
        Some(error) => error.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
        // Nobody heard it: the stream has no leader now, or was deleted.
        None => publish.kind() == PublishErrorKind::StreamNotFound,
    };
    if is_rejected { RegisterError::not_sent(text) } else { RegisterError::unknown(text) }
}

/// Returns an error with its causes, as one line.
fn text(error: &dyn core::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

//! Locks on a store of your own: a template to copy.
//!
//! A map in memory stands in for the store's client library. Replace [`Service`] by it, and the
//! bodies of `read`, `write` and `changed` by its calls.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use lock_tokio::register::{Entry, Record, Register, RegisterError, Revision};
use lock_tokio::{Client, ConnectError};

/// The store's client: here a map in memory, from keys to values and their revisions.
#[derive(Clone, Debug, Default)]
pub struct Service(Arc<Mutex<Map>>);

type Map = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

impl Service {
    fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Sets a value if the key has this revision. Returns the new one, or `None` if it has another.
    fn compare_and_set(&self, key: &[u8], value: Vec<u8>, expected: Option<u64>) -> Option<u64> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = map.get(key).map(|(_, revision)| *revision);
        if revision != expected {
            return None;
        }
        let revision = revision.unwrap_or(0) + 1;
        map.insert(key.to_vec(), (value, revision));
        Some(revision)
    }
}

/// The store.
#[derive(Debug)]
pub struct MyStore(Service);

impl MyStore {
    /// Connects to the service.
    ///
    /// # Errors
    ///
    /// None: a map in memory is always there.
    pub fn new(service: Service) -> Result<Self, RegisterError> {
        Ok(Self(service))
    }
}

impl Register for MyStore {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let Some((value, revision)) = self.0.get(key) else { return Ok(None) };
        let record = Record::decode(&value).map_err(RegisterError::refused)?;
        Ok(Some(Entry::new(record, Revision::from(revision))))
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let expected = expected.and_then(|entry| entry.revision.as_u64());
        let revision = self.0.compare_and_set(key, record.encode(), expected);
        revision.map(Revision::from).ok_or(RegisterError::Conflict)
    }
}

/// Returns a client on the service.
///
/// # Errors
///
/// The service cannot be reached, or the system has no thread for the driver.
pub fn connect(service: Service) -> Result<Client, ConnectError> {
    lock_tokio::connect_register(|| MyStore::new(service))
}

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-store.md")]
struct Guide;

//! A record as a Lease.

use core::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use lock_driver::register::RegisterError;
use lock_proto::register::{Entry, Record, Revision, Writer};
use lock_proto::{ClientId, MAX_TTL};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The annotation.
const ANNOTATION: &str = "lock-proto/record";

/// The shortest TTL of a lock: client-go sees only whole seconds.
pub const MIN_TTL: Duration = Duration::from_secs(3);

/// The content of the annotation.
#[derive(Deserialize, Serialize)]
struct Note {
    /// The holder and the term of the Lease that it belongs to.
    holder: String,
    term: i32,
    /// The record, without its value.
    record: String,
    value: ByteString,
}

/// What a revision consists of: the resource version, which is compared, and what the next write needs
/// to know of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen<'a> {
    pub(crate) resource_version: &'a str,
    renewed: i64,
    acquired: i64,
    term: i32,
}

impl<'a> Seen<'a> {
    pub(crate) fn of(revision: &'a Revision) -> Self {
        let mut parts = revision.as_str().unwrap_or_default().split(' ');
        Self {
            resource_version: parts.next().unwrap_or_default(),
            renewed: parts.next().and_then(|part| part.parse().ok()).unwrap_or(0),
            acquired: parts.next().and_then(|part| part.parse().ok()).unwrap_or(0),
            term: parts.next().and_then(|part| part.parse().ok()).unwrap_or(0),
        }
    }
}

/// Returns the revision of a Lease.
pub(crate) fn revision(lease: &Lease) -> Revision {
    let default = LeaseSpec::default();
    let spec = lease.spec.as_ref().unwrap_or(&default);
    let version = lease.metadata.resource_version.as_deref().unwrap_or_default();
    let (renewed, acquired) = (micros(spec.renew_time.as_ref()), micros(spec.acquire_time.as_ref()));
    Revision::new(format!("{version} {renewed} {acquired} {}", spec.lease_transitions.unwrap_or(0)))
}

/// Reads a Lease, of this library or of another client.
pub(crate) fn entry(lease: &Lease) -> Result<Entry, RegisterError> {
    let default = LeaseSpec::default();
    let spec = lease.spec.as_ref().unwrap_or(&default);
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let note = lease.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    let note = note.and_then(|text| serde_json::from_str::<Note>(text).ok());
    let is_ours = note.as_ref().is_some_and(|n| n.holder == holder && Some(n.term) == spec.lease_transitions);
    let decoded = note.map(|note| (Record::decode(note.record.as_bytes()), note.value));
    let record = match decoded {
        Some((Ok(record), value)) if is_ours => Record { value: value.0.into(), ..record },
        Some((Err(error), _)) if is_ours => {
            let name = lease.metadata.name.as_deref().unwrap_or_default();
            return Err(RegisterError::refused(format!(
                "Lease {name:?} has an unknown annotation {ANNOTATION:?} ({error})"
            )));
        }
        Some((Ok(last), _)) => foreign(spec, holder, Some(&last))?,
        Some((Err(_), _)) | None => foreign(spec, holder, None)?,
    };
    Ok(Entry::new(record, revision(lease)))
}

/// Returns the record that stands for a Lease of another client. It is another one after each renewal.
///
/// `last` is the last one that this library wrote; versions and fences continue from it.
fn foreign(spec: &LeaseSpec, holder: &str, last: Option<&Record>) -> Result<Record, RegisterError> {
    let held = !holder.is_empty();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let ttl = Duration::from_secs(match seconds {
        Some(seconds) => seconds,
        None if held => return Err(RegisterError::refused(format!("the Lease of {holder:?} has no duration"))),
        None => 0,
    });
    if ttl > MAX_TTL {
        return Err(RegisterError::refused(format!("the Lease of {holder:?} lasts {ttl:?}, more than {MAX_TTL:?}")));
    }
    let renewed = u64::try_from(micros(spec.renew_time.as_ref())).unwrap_or(0);
    let version = last.map_or(0, |last| last.version.saturating_add(1));
    let mut client = [0; 16];
    client.copy_from_slice(&Sha256::digest(holder)[..16]);
    Ok(Record {
        version: version.max(renewed / 1000),
        writer: Writer { client: ClientId::from_bits(u128::from_be_bytes(client)), number: renewed },
        held,
        fence: last.map_or(0, |last| last.fence),
        ttl,
        label: Record::label_of(holder),
        value: Default::default(),
    })
}

/// Returns what a write changes of the Lease: a merge patch, which keeps the labels and annotations of
/// others. With the resource version, the API server refuses it if the Lease has another one.
pub(crate) fn patch(record: &Record, expected: Option<&Entry>, now: Timestamp) -> Result<Value, RegisterError> {
    if record.held && record.ttl < MIN_TTL {
        return Err(RegisterError::refused(format!("the TTL is {:?}; a Lease needs at least {MIN_TTL:?}", record.ttl)));
    }
    let seen = expected.map(|entry| Seen::of(&entry.revision));
    // Whole seconds, so that each renewal is another one to client-go.
    let renewed = seen.map_or(0, |seen| seen.renewed.div_euclid(SECOND).saturating_add(1).saturating_mul(SECOND));
    let renewed = renewed.max(now.as_microsecond());
    let is_same_term =
        expected.is_some_and(|entry| entry.record.held && entry.record.writer.client == record.writer.client);
    let (mut acquired, mut term) = seen.map_or((renewed, 0), |seen| (seen.acquired, seen.term));
    if record.held && !is_same_term {
        acquired = renewed;
        term = if seen.is_some() { term.checked_add(1).unwrap_or(0) } else { term };
    }
    let holder = match (record.held, &*record.label) {
        (false, _) => String::new(),
        (true, "") => record.writer.client.to_string(),
        (true, label) => format!("{label}_{}", record.writer.client),
    };
    let bare = Record { value: Default::default(), ..record.clone() };
    let note = Note {
        holder: holder.clone(),
        term,
        record: String::from_utf8_lossy(&bare.encode()).into_owned(),
        value: ByteString(record.value.to_vec()),
    };
    let seconds = if record.held { record.ttl.as_millis().div_ceil(1000) } else { 1 };
    let spec = LeaseSpec {
        holder_identity: Some(holder),
        lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquire_time: time(acquired),
        renew_time: time(renewed),
        lease_transitions: Some(term),
        ..LeaseSpec::default()
    };
    let note = serde_json::to_string(&note).map_err(RegisterError::refused)?;
    let mut metadata = json!({ "annotations": { ANNOTATION: note } });
    if let Some(seen) = seen {
        metadata["resourceVersion"] = seen.resource_version.into();
    }
    Ok(json!({ "metadata": metadata, "spec": spec }))
}

/// A second in microseconds.
const SECOND: i64 = 1_000_000;

fn micros(time: Option<&MicroTime>) -> i64 {
    time.map_or(0, |time| time.0.as_microsecond())
}

fn time(micros: i64) -> Option<MicroTime> {
    Timestamp::from_microsecond(micros).ok().map(MicroTime)
}

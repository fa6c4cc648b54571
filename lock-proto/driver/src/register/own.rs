//! A register as the transport sees it: requests and replies.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use bytes::Bytes;
use lock_proto::register::{Entry, MAX_REVISION, Reply, Request, Revision};
use lock_proto::{ErrorClass, ServerError};

use super::store::{Register, RegisterError};

/// A register, and how to call it. The types of the futures have no names, but `Send` is inferred
/// through them: the driver can move between threads if the register can.
pub(crate) struct OwnStore<R, F, G> {
    pub(super) store: Arc<R>,
    pub(super) call: fn(Arc<R>, Request) -> F,
    pub(super) change: fn(Arc<R>, Bytes, Option<Revision>) -> G,
}

pub(super) fn own<R: Register>(store: R) -> OwnStore<R, impl Future<Output = Reply>, impl Future<Output = ()>> {
    OwnStore { store: Arc::new(store), call: call::<R>, change: change::<R> }
}

/// Makes a request.
pub(super) async fn call<R: Register>(store: Arc<R>, request: Request) -> Reply {
    match request {
        Request::Read { key } => match store.read(&key).await {
            Ok(Some(entry)) => found(entry),
            Ok(None) => Reply::Absent,
            // Only a write finds another record than it expects.
            Err(RegisterError::Conflict) => unknown("the store answers a read with a conflict"),
            Err(error) => failed(&error),
        },
        Request::Write { key, record, expected } => match store.write(&key, &record, expected.as_deref()).await {
            Ok(revision) if revision.as_bytes().len() <= MAX_REVISION => Reply::Written(revision),
            Ok(revision) => unknown(&too_long(&revision)),
            Err(error) => failed(&error),
        },
    }
}

pub(super) async fn change<R: Register>(store: Arc<R>, key: Bytes, seen: Option<Revision>) {
    store.changed(&key, seen.as_ref()).await;
}

fn found(entry: Entry) -> Reply {
    if entry.revision.as_bytes().len() > MAX_REVISION {
        return Reply::Rejected(ServerError::new(ErrorClass::Refused, &too_long(&entry.revision)));
    }
    Reply::Record(entry)
}

fn too_long(revision: &Revision) -> String {
    format!("the store's revision has {} bytes; at most {MAX_REVISION} are allowed", revision.as_bytes().len())
}

/// The reply for a call whose outcome is unknown.
pub(super) fn unknown(text: &str) -> Reply {
    Reply::Unknown(ServerError::new(ErrorClass::Unclear, text).into())
}

/// The reply for a call that was not made.
pub(super) fn not_sent(text: &str) -> Reply {
    Reply::NotSent(ServerError::new(ErrorClass::Transient, text).into())
}

// RF8
fn failed(error: &RegisterError) -> Reply {
    match error {
        RegisterError::Conflict => Reply::Conflict,
        RegisterError::Refused(text) => Reply::Rejected(ServerError::new(ErrorClass::Refused, text)),
        RegisterError::NotSent(text) => not_sent(text),
        RegisterError::Unknown(text) => unknown(text),
    }
}

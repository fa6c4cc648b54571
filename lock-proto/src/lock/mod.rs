//! What a lock is, whatever the store: requests, events, grants, and the parts of its lifecycle.

mod answer;
mod event;
mod grant;
mod registry;
mod request;
mod tuning;
mod waits;

#[cfg(test)]
pub(crate) use answer::MAX_TEXT;
pub(crate) use answer::printable;
pub use answer::{Answer, Cause, ErrorClass, Expiry, ServerError};
pub use event::{Blocked, Event, Failure, Report};
pub use grant::{Fence, Grant, Loss, Release, Token};
pub(crate) use registry::{Machine, Registry};
pub use request::{Acquire, Renew, Wait};
pub use tuning::{DEFAULT_TTL, Drift, MAX_NAME, MAX_TTL, MIN_TTL, Poll};
pub(crate) use waits::Waits;

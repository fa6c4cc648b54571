//! What a lock is, whatever the store: requests, events, grants, and the lifecycle.

mod answer;
mod event;
mod grant;
mod hub;
mod lifecycle;
mod registry;
mod request;
mod retry;
mod store;
mod tenure;
mod tuning;
mod waiters;

#[cfg(test)]
pub(crate) use answer::MAX_TEXT;
pub(crate) use answer::printable;
pub use answer::{Answer, Cause, ErrorClass, Expiry, ServerError};
pub use event::{Blocked, Event, Failure, Report};
pub use grant::{Fence, Grant, Loss, Release, Token};
pub(crate) use hub::{Hub, Locks};
pub(crate) use lifecycle::{Ended, Lock};
pub use request::{Acquire, Renew, Wait};
pub(crate) use retry::Retry;
pub(crate) use store::{Store, Surroundings};
pub(crate) use tenure::{Phase, Tenure, Terms};
pub use tuning::{DEFAULT_TTL, Drift, MAX_NAME, MAX_TTL, MIN_TTL, Poll};
pub(crate) use waiters::Waiter;

//! Locks independent of the store: requests, events, grants, and the lifecycle.
//!
//! The root of the crate re-exports the names that applications need. [`Locks`] is the hub behind
//! `redis::Locks`, `etcd::Locks` and `zookeeper::Locks`; [`Lock`] is the state machine of one name.

mod answer;
mod backoff;
mod bytes;
mod client;
mod config;
mod context;
mod credentials;
mod election;
mod event;
mod grant;
mod hub;
mod lifecycle;
mod machine;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod patience;
mod ping;
mod queries;
mod queue;
mod queue_config;
mod queue_hold;
mod queue_output;
mod queued;
mod registry;
mod reply;
mod request;
mod retry;
mod sessions;
mod store;
mod tenure;
mod tuning;
mod users;
mod waiters;

#[cfg(test)]
pub(crate) use answer::MAX_TEXT;
pub use answer::{Answer, Cause, ErrorClass, Expiry, ServerError};
pub(crate) use answer::{printable, refusals_are_undecided};
pub use backoff::Backoff;
pub(crate) use backoff::Failures;
pub use bytes::{ByteClient, Output};
pub use client::Client;
#[doc(hidden)]
pub use client::Transport;
pub use config::Config;
pub(crate) use config::{DAY, check_targets};
pub use context::Context;
#[doc(hidden)]
pub use credentials::Renewal;
pub use credentials::{Credentials, CredentialsRequest};
pub use election::{ElectionEvent, Elections, Leader, QueryId};
pub use event::{Blocked, Event, Failure, Report};
pub use grant::{Fence, Grant, Loss, Release, Token};
pub use hub::Locks;
pub(crate) use lifecycle::Ended;
pub use lifecycle::Lock;
pub use machine::Machine;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) use patience::Patience;
#[doc(hidden)]
pub use queries::{Queries, Query, QueryStore};
#[doc(hidden)]
pub use queue::{Cleanup, Keep, Progress, QueueStore};
#[doc(hidden)]
pub use queue_config::QueueSettings;
#[doc(hidden)]
pub use queue_hold::Hold;
pub(crate) use queue_hold::{Write, Written};
pub use queue_output::QueueOutput;
#[doc(hidden)]
pub use queued::{Bid, Contention, QueueConfig, QueueContext, QueueLock, Queued, Remains, Shared};
#[doc(hidden)]
pub use reply::Rejection;
pub use reply::Reply;
pub use request::{Acquire, Renew, Wait};
pub(crate) use retry::Retry;
#[doc(hidden)]
pub use sessions::{End, Session, SessionCall, SessionEvent, SessionId, SessionStore, Sessions};
pub(crate) use sessions::{State, refusal, renew_at};
#[doc(hidden)]
pub use store::Store;
pub(crate) use tenure::{Tenure, Terms};
pub(crate) use tuning::check_name;
pub use tuning::{DEFAULT_TTL, Drift, MAX_NAME, MAX_TTL, MAX_VALUE, MIN_TTL};
#[doc(hidden)]
pub use users::Need;
pub use waiters::Waiter;

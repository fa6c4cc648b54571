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
mod exchange;
mod grant;
mod hub;
mod lifecycle;
mod line;
mod machine;
mod note;
mod operation;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod queue;
mod registry;
mod request;
mod store;
mod tenure;
#[cfg(test)]
mod tests;
mod tuning;
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
pub use context::{Context, Env};
#[doc(hidden)]
pub use credentials::Renewal;
pub use credentials::{Credentials, CredentialsRequest};
pub use election::{Elections, Leader};
pub use event::{Blocked, Event, Failure, Report};
#[doc(hidden)]
pub use exchange::{Fact, Holding, Hopeless, Order, Terms};
pub use grant::{Fence, Grant, Loss, Release, Token};
pub use hub::Locks;
pub use lifecycle::Lock;
pub use machine::{ClientInfo, LockClient, Machine};
pub use note::Note;
#[doc(hidden)]
pub use operation::{LeaderQuery, NoElections, OpenOperation};
pub use operation::{Operation, OperationEvent, OperationId};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub use queue::*;
pub use request::{Acquire, Renew, Wait};
#[doc(hidden)]
pub use store::{SharedState, Store};
pub use tuning::{DEFAULT_TTL, Drift, MAX_NAME, MAX_TTL, MAX_VALUE, MIN_TTL};
pub(crate) use tuning::{check_name, check_value};
pub use waiters::Waiter;

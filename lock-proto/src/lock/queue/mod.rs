//! What the stores of the queue family share: etcd and ZooKeeper. A contender has a node in a queue
//! of the store, which lives as long as its session.

mod calls;
mod config;
mod hold;
mod output;
mod patience;
mod queries;
mod queued;
mod reply;
mod retry;
mod sessions;
mod store;
mod users;

pub(crate) use calls::Calls;
pub use config::QueueSettings;
pub use hold::Hold;
pub(crate) use hold::{Write, Written};
pub use output::QueueOutput;
pub(crate) use patience::Patience;
pub use queries::{Queries, Query, QueryStore};
pub use queued::{Bid, Contention, QueueConfig, QueueEnv, Queued, Remains, Shared};
pub use reply::{Rejection, Reply};
pub(crate) use retry::Retry;
pub use sessions::{End, Session, SessionCall, SessionEvent, SessionId, SessionPurpose, SessionStore, Sessions};
pub(crate) use sessions::{State, refusal, renew_at};
pub use store::{Cleanup, Keep, Progress, QueueStore};
pub use users::Need;

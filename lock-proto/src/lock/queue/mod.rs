//! What the stores of the queue family share: etcd and ZooKeeper. A contender has a node in a queue
//! of the store, which lives as long as its session.

mod calls;
mod config;
mod elections;
mod hold;
mod output;
mod patience;
mod queued;
mod reply;
mod retry;
mod sessions;
mod store;
mod users;

pub(crate) use calls::CallTable;
pub use config::QueueSettings;
pub use hold::QueueHold;
pub(crate) use hold::{HoldWrite, Written};
pub use output::QueueOutput;
pub(crate) use patience::Patience;
pub use queued::{Bid, QueueConfig, QueueEnv, QueueRemains, QueueShared, Queued};
pub use reply::Reply;
pub(crate) use retry::Retry;
pub use sessions::{QueueSession, SessionCall, SessionEnd, SessionEvent, SessionId, SessionPurpose, Sessions};
pub(crate) use sessions::{SessionState, refusal, renew_at};
pub use store::{Contending, ContentionStage, PendingCleanup, QueueClient, QueueProtocol, QueueStore};
pub use users::Need;

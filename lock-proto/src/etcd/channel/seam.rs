//! What a channel is told, and what it tells.

use alloc::boxed::Box;
use core::time::Duration;

use crate::etcd::message::KeyValue;
use crate::etcd::output::Output;
use crate::etcd::request::Reply;
use crate::etcd::seam::WatchId;
use crate::id::CallId;
use crate::lock::{Backoff, ServerError};
use crate::url::Secret;

/// What a [`Channel`](super::Channel) connects to, and how. [`Config::channel`](crate::etcd::Config::channel) makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelConfig {
    /// How many endpoints there are; at least one.
    pub endpoints: u16,
    /// Who logs in, and with what password.
    pub user: Option<(Box<str>, Secret)>,
    /// How long opening and login may take together, and a later login.
    pub connect_timeout: Duration,
    /// How long nothing at all may arrive while answers are expected before the connection is given up. It becomes longer, up to eight times
    /// as long, where answers have been slow, and doubles each time when all endpoints were silent.
    pub request_timeout: Duration,
    /// How long the watch stream may be silent before a sign of life is asked for on it. It is opened anew if nothing comes for as
    /// long again.
    pub watch_quiet: Duration,
    /// The pause before a connection is opened again once all endpoints have failed, and before a stream is; a quarter is jitter. What
    /// had lasted for `max` starts anew with `every`.
    pub reconnect: Backoff,
    /// How many requests may be unanswered, and how many watches wanted, at a time. Beyond that a request is [`Reply::NotSent`], and a
    /// watch refused as [`ErrorClass::Transient`](crate::lock::ErrorClass::Transient).
    pub limit: usize,
}

/// What a [`Channel`](super::Channel) wants done, and what it has to tell. One ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the connection"]
pub enum ChannelOutput {
    /// For the host: `Connect`, `Disconnect`, `Call`, `Open`, `Send` or `Close`.
    Do(Output),
    /// The answer to a `send`. Each gets exactly one.
    Reply {
        /// Which one.
        call: CallId,
        /// The answer.
        reply: Reply,
    },
    /// The watch is open: every change after `revision` will be told. Told again after each re-opening.
    Watching {
        /// Which one.
        watch: WatchId,
        /// The store's revision when it was opened.
        revision: i64,
    },
    /// A key in the watched range was written or deleted.
    Changed {
        /// Which watch.
        watch: WatchId,
        /// The revision of the change.
        revision: i64,
        /// Whether it was deleted.
        deleted: bool,
        /// The key as it is now; of a deleted one only its name and the revision.
        kv: KeyValue,
    },
    /// The watch cannot be heard at present: changes may be missed from now on until the next `Watching`. It is opened again by itself.
    Unsubscribed {
        /// Which one.
        watch: WatchId,
    },
    /// The watch is not allowed, and has ended.
    WatchRefused {
        /// Which one.
        watch: WatchId,
        /// Why.
        error: ServerError,
    },
}

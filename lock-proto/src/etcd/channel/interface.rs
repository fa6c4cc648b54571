//! Configuration and output of a channel.

use alloc::vec::Vec;
use core::time::Duration;

use crate::etcd::locks_output::WatchId;
use crate::etcd::message::KeyValue;
use crate::etcd::output::Output;
use crate::etcd::request::Reply;
use crate::etcd::url::Endpoint;
use crate::id::CallId;
use crate::lock::{Backoff, ServerError};
use crate::url::Login;

/// Settings of a [`Channel`](super::Channel). Created by
/// [`Config::channel`](crate::etcd::Config::channel).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelConfig {
    /// The endpoints; at least one.
    pub endpoints: Vec<Endpoint>,
    /// Interval of requests for the cluster's members. `None` for never.
    pub sync_members: Option<Duration>,
    /// User name and password.
    pub login: Login,
    /// Whether the host supplies the login.
    pub request_credentials: bool,
    /// Timeout for opening a connection and logging in, and for a later login.
    pub connect_timeout: Duration,
    /// How long a connection that nothing needs stays open. `None` for ever.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may stay silent while replies are outstanding. The limit grows to at
    /// most eight times this value if replies are slow, and doubles after all endpoints were
    /// silent.
    pub request_timeout: Duration,
    /// Silence on the watch stream after which it is probed. It is reopened after as long again
    /// without any message, counted from the reply to a later call, and not before the connection
    /// would be given up.
    pub watch_quiet: Duration,
    /// Backoff before reconnecting once all endpoints have failed, and before reopening a stream. A
    /// quarter of the pause is jitter. A connection or stream that lasted for `max` restarts at
    /// `every`.
    pub reconnect: Backoff,
    /// Maximal number of unanswered requests, and of watches. Beyond it a request gets
    /// [`Reply::NotSent`], and a watch is refused as
    /// [`ErrorClass::Transient`](crate::lock::ErrorClass::Transient).
    pub limit: usize,
}

/// Output of a [`Channel`](super::Channel), in one ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the connection"]
pub enum ChannelOutput {
    /// For the host: `Connect`, `Disconnect`, `Call`, `Open`, `Send` or `Close`.
    Do(Output),
    /// The reply to a `send`. Each request gets exactly one.
    Reply {
        /// The request.
        call: CallId,
        /// Its reply.
        reply: Reply,
    },
    /// The watch is open and reports every change after `revision`. Repeated after each reopening.
    Watching {
        /// The watch.
        watch: WatchId,
        /// The store's revision when the watch was opened.
        revision: i64,
    },
    /// A key in the watched range was written or deleted.
    Changed {
        /// The watch.
        watch: WatchId,
        /// The revision of the change.
        revision: i64,
        /// True if the key was deleted.
        deleted: bool,
        /// The key after the change. A deleted key has only its name and revision.
        kv: KeyValue,
    },
    /// The watch was interrupted, and changes may be missed until the next `Watching`. The channel
    /// reopens it.
    Unsubscribed {
        /// The watch.
        watch: WatchId,
    },
    /// The server denied the watch, which has ended.
    WatchRefused {
        /// The watch.
        watch: WatchId,
        /// The reason.
        error: ServerError,
    },
}

//! What a lock of your own implements.

use alloc::string::String;
use core::fmt::Debug;

use super::context::Context;
use crate::redis::{RespReply, ScriptFn};
use lock_proto::Instant;

/// One acquisition of a lock of your own on Redis, from the request to its end.
///
/// The world clones the value that it was given for each acquisition, so fields hold settings and
/// the state of one acquisition. Connections, RESP, logins, waits and events are done for you. See
/// [`own`](super) for an example.
///
/// Every method gets a [`Context`]: the request, the time, and what the lock can do.
pub trait OwnLock: Clone + Debug {
    /// The lock needs a quorum of nodes. [`find`](super::find) then draws worlds of several nodes,
    /// otherwise of one.
    const QUORUM: bool = false;

    /// The application wants the lock: make an attempt. Called again after [`Context::retry`].
    fn acquire(&mut self, cx: &mut Context<'_>);

    /// The application returns the lock, held or lost. Report the end by [`Context::released`].
    ///
    /// Also called if the lock is granted after the application gave up.
    fn release(&mut self, cx: &mut Context<'_>);

    /// A command was answered, or its connection is [`Lost`].
    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>);

    /// A timer of [`Context::after`] is due.
    fn handle_timeout(&mut self, _cx: &mut Context<'_>, _timer: u64) {}

    /// A message arrived on the own connection to a node, after `SUBSCRIBE` by
    /// [`Context::send_alone`].
    fn handle_message(&mut self, _cx: &mut Context<'_>, _node: usize, _message: RespReply) {}

    /// The application gave up: its wait ended, it dropped the acquisition or guard, or the client
    /// shuts down. By default releases a lock that was granted, and does nothing else. Replies and
    /// timers still arrive.
    fn abandon(&mut self, cx: &mut Context<'_>) {
        if cx.is_granted() {
            self.release(cx);
        }
    }

    /// The application wants a full TTL from now, less at most a tenth for drift. By default this
    /// fails.
    ///
    /// Each call must end within a TTL by [`Context::extended`] or [`Context::extend_failed`],
    /// unless the hold ends before or a reply is missing.
    fn extend(&mut self, cx: &mut Context<'_>) {
        cx.extend_failed();
    }

    /// Returns the key of the lock of this name. Override it if the key is not the name itself. The
    /// rules look for this key, and strangers write under it.
    fn key(&self, name: &str) -> String {
        name.into()
    }

    /// Returns the scripts that the lock sends by `EVAL`, each with a Rust function that does the
    /// same: the simulated servers run no Lua.
    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[]
    }

    /// Returns true for a key that stays when nothing is held, such as a counter of fencing tokens.
    /// Any other key without a TTL that is left behind violates
    /// [`Rule::Leftover`](crate::Rule::Leftover).
    fn keeps(&self, _key: &[u8]) -> bool {
        false
    }
}

/// A command that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The node that it was sent to.
    pub node: usize,
    /// The number that the lock gave to it.
    pub tag: u64,
    /// When it was sent, by the client's clock. The TTL of a key counts from here at the earliest.
    pub sent: Instant,
}

/// The connection ended before the reply. The command was executed, or will be, or will not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lost;

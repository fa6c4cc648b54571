//! The two sides of a client of own locks: what carries its requests, and the lock that it runs.

use alloc::vec::Vec;
use core::fmt::Debug;

use super::context::Context;
use lock_proto::Event;
use lock_proto::Instant;
use lock_proto::{ConnId, LockId};

/// What carries the requests of a client to its servers, and its outputs to the world.
pub(crate) trait Transport: Clone + Debug {
    /// Something that ended with its connection.
    type Gone;

    /// Reports an event of an acquisition.
    fn emit(&mut self, lock: LockId, event: Event);
    /// Closes what only this acquisition uses.
    fn close(&mut self, lock: LockId);
    /// Closes everything, and reports the end of the shutdown.
    fn stop(&mut self, unreleased: u32);

    fn handle_connected(&mut self, now: Instant, conn: ConnId);
    /// Forgets a connection. Returns what ended with it, by acquisition.
    fn handle_disconnected(&mut self, conn: ConnId) -> Vec<(LockId, Self::Gone)>;
    /// Gives up a connection that has not been opened in time, and returns it.
    fn give_up(&mut self, now: Instant) -> Option<ConnId>;
    fn next_deadline(&self) -> Option<Instant>;
}

/// The calls of a lock that do not depend on what its servers answer.
pub(crate) trait Verbs<T: Transport>: Clone + Debug {
    fn acquire(&mut self, cx: &mut Context<'_, T>);
    fn release(&mut self, cx: &mut Context<'_, T>);
    fn handle_timeout(&mut self, cx: &mut Context<'_, T>, timer: u64);
    fn abandon(&mut self, cx: &mut Context<'_, T>);
    fn extend(&mut self, cx: &mut Context<'_, T>);
    fn handle_gone(&mut self, cx: &mut Context<'_, T>, conn: ConnId, gone: T::Gone);
}

/// Implements [`Verbs`] by the methods of the lock that have the same names.
macro_rules! verbs {
    ($lock:ident, $transport:ty) => {
        fn acquire(&mut self, cx: &mut $crate::own::Context<'_, $transport>) {
            $lock::acquire(self, cx);
        }

        fn release(&mut self, cx: &mut $crate::own::Context<'_, $transport>) {
            $lock::release(self, cx);
        }

        fn handle_timeout(&mut self, cx: &mut $crate::own::Context<'_, $transport>, timer: u64) {
            $lock::handle_timeout(self, cx, timer);
        }

        fn abandon(&mut self, cx: &mut $crate::own::Context<'_, $transport>) {
            $lock::abandon(self, cx);
        }

        fn extend(&mut self, cx: &mut $crate::own::Context<'_, $transport>) {
            $lock::extend(self, cx);
        }
    };
}
pub(super) use verbs;

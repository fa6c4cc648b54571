//! The watches of the last wait, for the next one (requirement E5).
//!
//! Clients that want a lock again and again stand in line in the same order each time, so whoever was waited for is waited for again. A watch that
//! is open already costs neither requests nor another reading of the queue, which are most of what a turn costs a server.

use alloc::boxed::Box;

use bytes::Bytes;
use core::ops::RangeInclusive;
use core::time::Duration;

use super::hold::Hold;
use super::sessions::SessionId;
use super::{Context, Lock, Watched};
use crate::etcd::seam::WatchId;
use crate::time::Instant;

/// How long they are kept after a grant, and after its end.
const KEPT_FOR: Duration = Duration::from_millis(100);
/// Bounds of the pause before the client queues again. Timers have a resolution of about a millisecond.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(5);

/// See the module. Nobody waits: what they tell is noted, since it may be younger than what the next wait begins with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    session: SessionId,
    /// That on the own key, unless the holder has it.
    own: Option<Watched>,
    older: Bytes,
    older_watch: Watched,
    /// That on a key before the older one.
    earlier: Option<Box<Earlier>>,
    /// The queue was a long one.
    long: bool,
    /// The revision at which the own key was changed, or the other one deleted, as far as was told.
    news: i64,
    /// How long the last hold lasted.
    held: Duration,
    /// The earliest time to queue again.
    enter_at: Option<Instant>,
    pub(super) until: Instant,
}

impl Kept {
    /// `older_watch` does not tell late.
    pub(super) fn new(
        now: Instant,
        session: SessionId,
        older: Bytes,
        older_watch: Watched,
        earlier: Option<Box<Earlier>>,
        long: bool,
    ) -> Self {
        let until = now + KEPT_FOR;
        Self {
            session,
            own: None,
            older,
            older_watch,
            earlier,
            long,
            news: 0,
            held: Duration::ZERO,
            enter_at: None,
            until,
        }
    }

    /// The key that is expected to precede the client's own key again, and whether the queue was a long one.
    pub(super) fn expects(&self, session: SessionId) -> Option<(Bytes, bool)> {
        (self.session == session && self.own.is_some()).then(|| (self.older.clone(), self.long))
    }

    /// Records that the key was deleted, by a request that took `took`. The next holder reads the queue at this moment,
    /// and a write would delay that reading. The client therefore pauses before it queues again, but no longer than
    /// its own hold lasted.
    pub(super) fn released(&mut self, now: Instant, took: Duration) {
        if self.held >= *PAUSE.start() {
            self.enter_at = Some(now + took.clamp(*PAUSE.start(), *PAUSE.end()).min(self.held));
        }
    }

    /// Returns the end of the pause before the client queues again, while it lasts.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        self.enter_at.filter(|at| now < *at)
    }

    pub(super) fn is(&self, watch: WatchId) -> bool {
        self.older_watch.id == watch
            || self.own.is_some_and(|own| own.id == watch)
            || self.earlier.as_ref().is_some_and(|earlier| earlier.watch.id == watch)
    }

    pub(super) fn told(&mut self, watch: WatchId, revision: i64, gone: bool) {
        match &mut self.earlier {
            Some(earlier) if earlier.watch.id == watch => {}
            Some(_) | None if gone || watch != self.older_watch.id => self.news = self.news.max(revision),
            Some(_) | None => {}
        }
    }

    fn close(&self, ctx: &mut Context) {
        if let Some(own) = self.own {
            ctx.close_watch(own.id);
        }
        ctx.close_watch(self.older_watch.id);
        if let Some(earlier) = &self.earlier {
            ctx.close_watch(earlier.watch.id);
        }
    }
}

/// A key before the one that is waited for: when it goes, the queue is read, so that it is known who is left when the turn has come
/// (requirement E4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Earlier {
    pub(super) key: Bytes,
    pub(super) watch: Watched,
    /// When to read the queue, once the key has been deleted.
    pub(super) read_at: Option<Instant>,
}

/// What a wait begins with.
pub(super) struct Watching {
    pub(super) own: Watched,
    pub(super) older: Watched,
    /// What they have told already.
    pub(super) news: i64,
    /// That on the older key does not tell late.
    pub(super) prompt: bool,
    pub(super) earlier: Option<Box<Earlier>>,
}

impl Lock {
    pub(super) fn close_kept(&mut self, ctx: &mut Context) {
        if let Some(kept) = self.store.kept.take() {
            kept.close(ctx);
        }
    }

    pub(super) fn close_kept_due(&mut self, ctx: &mut Context) {
        if self.store.kept.as_ref().is_some_and(|kept| kept.until <= ctx.now) {
            self.close_kept(ctx);
        }
    }

    /// The holder does not need the watch on its key any more.
    pub(super) fn keep_own(&mut self, ctx: &mut Context, hold: &Hold) {
        let Some(own) = hold.own else { return };
        match &mut self.store.kept {
            Some(kept) if kept.own.is_none() && own.open.is_some() => {
                kept.own = Some(own);
                kept.held = ctx.now.since(hold.tenure.since());
                kept.until = ctx.now + KEPT_FOR;
            }
            Some(_) | None => ctx.close_watch(own.id),
        }
    }

    /// Watches the key of `older`, and the own one.
    pub(super) fn watch_queue(&mut self, ctx: &mut Context, session: SessionId, own: Bytes, older: &Bytes) -> Watching {
        match self.store.kept.take().map(|kept| *kept) {
            Some(Kept { session: of, own: Some(own), older: key, older_watch, earlier, news, .. })
                if of == session && key == *older =>
            {
                Watching { own, older: older_watch, news, prompt: true, earlier }
            }
            kept => {
                if let Some(kept) = kept {
                    kept.close(ctx);
                }
                // In this order, see [`Contender::opened`](super::wait_deletes::Contender::opened).
                let older = Watched::until_deleted(ctx, older.clone());
                let own = Watched::new(ctx, own);
                Watching { own, older, news: 0, prompt: false, earlier: None }
            }
        }
    }
}

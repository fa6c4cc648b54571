//! Waiting in the queue: the newest older key is watched until it is deleted, again and again until there is none
//! (requirements E4, E5). The Go concurrency package calls this `waitDeletes`.

use alloc::boxed::Box;

use bytes::Bytes;
use core::iter;
use core::mem;
use core::time::Duration;

use super::hold::Hold;
use super::session::answer;
use super::sessions::SessionId;
use super::watch_cache::{Earlier, Kept};
use super::{Contention, Context, Lock, Watched};
use crate::etcd::message::KeyValue;
use crate::etcd::reading::Reading;
use crate::etcd::request::{Ahead, Found, Older, Refusal, Reply, Request, Seen};
use crate::etcd::seam::WatchId;
use crate::lock::{Answer, Blocked, ErrorClass, Expiry, Failure, Tenure, Wait};
use crate::time::Instant;

/// How often the queue is read while a watch cannot be opened.
const POLL: Duration = Duration::from_secs(1);

/// For how long after its opening a watch may tell late, see [`Contender::opened`].
const LATE: Duration = Duration::from_millis(100);
/// When the queue is read again meanwhile, for the first time.
const DOUBT: Duration = Duration::from_millis(2);

/// Which of the others before the next one tells that our turn is near: the one next before it is 0.
const EARLIER: usize = 3;
/// Delay before that reading. An immediate one would slow down the waiter whose turn has come.
const READ_AFTER: Duration = Duration::from_millis(2);

/// In the queue, behind somebody else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    pub(super) session: SessionId,
    own: Seen,
    value: Bytes,
    /// What is known of the queue, and when it is read again, after a failure or while a watch is not open.
    reading: Reading,
    own_watch: Watched,
    /// Who is before us, and the watch on the key next before us.
    ahead: Ahead,
    older_watch: Option<Watched>,
    /// A key further ahead, where not all of them are known.
    earlier: Option<Box<Earlier>>,
    /// That watch has told something, now or in a wait before: it does not tell late.
    prompt: bool,
    /// When that watch was opened, if it may tell late.
    doubted: Option<Instant>,
    /// When to read it although nothing was heard: the server may have lost an event.
    recheck: Instant,
}

impl Contender {
    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.reading.awaits(serial)
    }

    /// The last change of the own key.
    pub(super) const fn modified(&self) -> i64 {
        self.own.modified
    }

    pub(super) fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        self.watches().find(|watched| watched.id == watch)
    }

    pub(super) fn watches(&mut self) -> impl Iterator<Item = &mut Watched> {
        iter::once(&mut self.own_watch).chain(&mut self.older_watch)
    }

    /// The latest revision that something was heard of.
    pub(super) fn heard_of(&mut self) -> i64 {
        let news = self.reading.news;
        self.watches().filter_map(|watched| watched.open).fold(news, i64::max)
    }

    /// A linearizable reading is never behind what was heard before it was asked for; a server that says so is not asked in a circle.
    pub(super) fn contradicted(&mut self, now: Instant, revision: i64) {
        self.reading.news = self.reading.news.min(revision);
        for watched in self.watches() {
            watched.open = watched.open.map(|open| open.min(revision));
        }
        self.reading.retry.failed(now + POLL);
    }

    pub(super) fn is_earlier(&self, watch: WatchId) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| earlier.watch.id == watch)
    }

    pub(super) fn close_earlier(&mut self, ctx: &mut Context) {
        if let Some(earlier) = self.earlier.take() {
            ctx.close_watch(earlier.watch.id);
        }
    }

    /// Whether the queue is to be read again.
    pub(super) fn changed(&mut self, now: Instant, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) -> bool {
        let own = watch == self.own_watch.id && (gone || kv.mod_revision > self.own.modified);
        let older = gone && self.older_watch.is_some_and(|older| older.id == watch);
        if older {
            self.prompt = true;
            self.doubted = None;
        }
        if own || older {
            self.reading.hear(revision);
        }
        if let Some(earlier) = self.earlier.as_mut().filter(|earlier| gone && earlier.watch.id == watch) {
            earlier.read_at = Some(now + READ_AFTER).filter(|_| self.ahead.rest.is_none());
        }
        own || older
    }

    /// A watch is not open: read the queue now and then, should it stay so.
    pub(super) fn poll_later(&mut self, now: Instant) {
        self.reading.poll_at(now + POLL);
    }

    /// A watch is open. That on the older key may tell late.
    ///
    /// etcd asked to watch from now on reads the store's revision, and then opens the watch after it (`recvLoop` in
    /// `server/etcdserver/api/v3rpc/watch.go`, at least up to 3.5). If a write comes between the two, the watch begins in the past, and is put on the
    /// list that is worked off every 100 ms (requirement E5). The watch on the own key, which is asked for next on the same stream, is the
    /// witness: opened at the same revision, it proves that no write came between. Otherwise the queue is read a few times meanwhile.
    ///
    /// A watch on another older key, when that one has given up, has no witness: the two together are too rare.
    pub(super) fn opened(&mut self, now: Instant, watch: WatchId) {
        let older = self.older_watch.and_then(|older| older.open);
        if watch == self.own_watch.id && older.is_some() && older != self.own_watch.open {
            self.doubted = Some(now);
            self.doubt(now, None);
        }
    }

    /// Has the queue read again if the watch on the older key is doubted. That the store had not moved when it was read proves it as well.
    pub(super) fn doubt(&mut self, now: Instant, read: Option<i64>) {
        let Some(since) = self.doubted else { return };
        let at = now + (2 * now.since(since)).max(DOUBT);
        let proven = read.is_some() && self.older_watch.is_some_and(|older| older.open == read);
        if proven || at > since + LATE {
            self.doubted = None;
        } else if self.reading.retry.tries() == 0 {
            self.reading.read_by(at);
        }
    }

    pub(super) fn close_older(&mut self, ctx: &mut Context) {
        self.doubted = None;
        self.prompt = false;
        if let Some(older) = self.older_watch.take() {
            ctx.close_watch(older.id);
        }
    }

    /// The wait is over: a watch that does not tell late is kept for the next one.
    pub(super) fn keep_older(&mut self, ctx: &mut Context, long: bool) -> Option<Box<Kept>> {
        let watch = self.older_watch.filter(|older| self.prompt && older.open.is_some());
        let Some(watch) = watch else {
            self.close_older(ctx);
            self.close_earlier(ctx);
            return None;
        };
        let older = mem::take(&mut self.ahead.next.key);
        let earlier = self.earlier.take().map(|earlier| Box::new(Earlier { read_at: None, ..*earlier }));
        let long = long || earlier.is_some();
        Some(Box::new(Kept::new(ctx.now, self.session, older, watch, earlier, long)))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let Reading { retry, .. } = &self.reading;
        if retry.is_in_flight() {
            return None;
        }
        let near = self.earlier.as_ref().and_then(|earlier| earlier.read_at);
        let next = near.map_or(self.recheck, |at| at.min(self.recheck));
        // A failure has its own pause.
        Some(retry.due().map_or(next, |at| if retry.tries() > 0 { at } else { at.min(next) }))
    }

    pub(super) fn close(&mut self, ctx: &mut Context) {
        ctx.close_watch(self.own_watch.id);
        self.close_older(ctx);
        self.close_earlier(ctx);
    }
}

impl Lock {
    /// In the queue, behind those of `ahead`: watch the key of the next one, and the own one (requirement E4).
    pub(super) fn join(
        &mut self,
        ctx: &mut Context,
        session: SessionId,
        own: Seen,
        revision: i64,
        value: Bytes,
        ahead: Ahead,
    ) {
        let Some(lease) = ctx.lease(session) else { return };
        self.store.answer = Answer::Taken(Expiry::Unknown);
        if self.waiters.head().is_some_and(|head| head.wait == Wait::Try) {
            self.schedule_key(ctx, session, own.modified);
            self.contention = Contention::Idle;
            self.end_try(ctx);
            return;
        }
        let watching = self.watch_queue(ctx, session, self.key.key(lease), &ahead.next.key);
        self.contention = Contention::Waiting(Contender {
            session,
            own,
            value,
            reading: Reading::new(revision, watching.news),
            own_watch: watching.own,
            ahead,
            older_watch: Some(watching.older),
            earlier: watching.earlier,
            prompt: watching.prompt,
            doubted: None,
            recheck: ctx.recheck_at(),
        });
        self.notify_blocked(ctx, Blocked::Held);
        self.look(ctx);
    }

    /// In a long queue where too many are before us to be listed, watches one that is further ahead: when it goes, there is time to read who is left, and
    /// the turn then takes two or three readings of one key, however long the queue behind is.
    pub(super) fn watch_earlier(&mut self, ctx: &mut Context, rest: &[Older]) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let Some(older) = rest.get(EARLIER).filter(|_| contender.ahead.rest.is_none()) else { return };
        if contender.earlier.as_ref().is_none_or(|earlier| earlier.key != older.key) {
            contender.close_earlier(ctx);
            let watch = Watched::until_deleted(ctx, older.key.clone());
            contender.earlier = Some(Box::new(Earlier { key: older.key.clone(), watch, read_at: None }));
        }
    }

    /// Behind the one that was expected, in a long queue: lists the newest, to watch one further ahead.
    pub(super) fn list_once(&mut self, ctx: &mut Context) {
        if let Contention::Waiting(contender) = &self.contention
            && contender.ahead.rest.is_none()
            && contender.earlier.is_none()
            && !contender.reading.retry.is_in_flight()
        {
            self.read_queue(ctx, None);
        }
    }

    /// Reads the queue again, if what is known of it may be out of date.
    pub(super) fn look(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let due = contender.deadline().is_some_and(|at| at <= ctx.now);
        let Reading { known, retry, .. } = contender.reading;
        let paused = retry.due().is_some() && retry.tries() > 0;
        let missed = contender.reading.is_behind() || contender.watches().any(|watched| watched.is_ahead_of(known));
        if retry.is_in_flight() || !(due || (missed && !paused)) {
            return;
        }
        let near = contender.earlier.as_mut().and_then(|earlier| earlier.read_at.take_if(|at| *at <= ctx.now));
        // Who is left is read, even if the next one is there.
        let search = near.is_some() && contender.ahead.rest.is_none();
        let ahead = (!search).then(|| contender.ahead.clone());
        self.read_queue(ctx, ahead);
    }

    /// Reads the keys of `ahead`, or lists the newest keys before the client's own.
    fn read_queue(&mut self, ctx: &mut Context, ahead: Option<Ahead>) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let Some(lease) = ctx.lease(contender.session) else { return };
        contender.recheck = ctx.recheck_at();
        let heard = contender.heard_of();
        let request = Request::Look { queue: self.key.clone(), lease, before: Some(contender.own.created), ahead };
        contender.reading.sent(ctx.send(contender.session, request), heard);
    }

    pub(super) fn look_answered(&mut self, ctx: &mut Context, reply: &Reply) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        contender.reading.retry.forget_call();
        let session = contender.session;
        match reply {
            Reply::Done(Found::Queue { revision, own: Some(own), older, rest, all, long, .. })
                if *own == contender.own =>
            {
                contender.reading.known = *revision;
                match older {
                    // Nothing older, and the own key is there: this very reading proves it (requirements E4, E8).
                    None => {
                        let value = mem::take(&mut contender.value);
                        let (own, own_watch) = (*own, contender.own_watch);
                        // None has been kept since the wait began.
                        self.store.kept = contender.keep_older(ctx, *long);
                        return self.win(ctx, session, own, *revision, value, Some(own_watch));
                    }
                    Some(older) if self.key.is_foreign(&older.key) => {
                        contender.close(ctx);
                        let modified = own.modified;
                        self.schedule_key(ctx, session, modified);
                        self.contention = Contention::Idle;
                        return self.fail_foreign(ctx, &older.key);
                    }
                    Some(older) => {
                        let next = Older { key: older.key.clone(), created: older.create_revision };
                        if next.key != contender.ahead.next.key || contender.older_watch.is_none() {
                            contender.close_older(ctx);
                            contender.older_watch = Some(Watched::until_deleted(ctx, older.key.clone()));
                        }
                        contender.ahead = Ahead { next, rest: all.then(|| rest.clone()) };
                    }
                }
                if *long {
                    self.watch_earlier(ctx, rest);
                }
                let Contention::Waiting(contender) = &mut self.contention else { return };
                contender.reading.retry.succeeded();
                if contender.reading.asked > *revision {
                    contender.contradicted(ctx.now, *revision);
                }
                contender.doubt(ctx.now, Some(*revision));
                if contender.watches().any(|watched| watched.open.is_none()) {
                    contender.poll_later(ctx.now);
                }
                self.look(ctx);
            }
            // Somebody else has written the key: it may even hang on no lease any more.
            Reply::Done(Found::Queue { own: Some(own), .. }) => {
                contender.close(ctx);
                let own = *own;
                self.adopt(ctx, session, own);
            }
            // The key is gone, and with it the place in the queue. If the lease is gone as well, the next request tells.
            Reply::Done(Found::Queue { own: None, .. }) => {
                contender.close(ctx);
                self.enter(ctx, session);
            }
            Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                contender.close(ctx);
                let modified = contender.own.modified;
                self.store.answer = answer(reply);
                self.schedule_key(ctx, session, modified);
                self.contention = Contention::Idle;
                self.fail_all(ctx, Failure::Refused);
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                let retry = &mut contender.reading.retry;
                retry.failed(ctx.now + ctx.pause(retry.tries()));
            }
        }
    }

    /// First in the queue, proven at `revision`.
    pub(super) fn win(
        &mut self,
        ctx: &mut Context,
        session: SessionId,
        own: Seen,
        revision: i64,
        value: Bytes,
        watch: Option<Watched>,
    ) {
        self.contention = Contention::Idle;
        let Some(waiter) = self.waiters.pop() else {
            // Nobody waits any more.
            if let Some(watch) = watch {
                ctx.close_watch(watch.id);
            }
            self.close_kept(ctx);
            return self.schedule_key(ctx, session, own.modified);
        };
        self.blocked = None;
        self.tries = 0;
        let tenure = Tenure::new(ctx.now, waiter);
        self.hold = Some(Hold::new(ctx, session, own, revision, value, tenure, watch));
        self.take_over(ctx);
    }
}

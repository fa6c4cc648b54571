//! State shared by the driver and all handles: the machine, and one ticket per acquisition.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};

use tracing::Level;
use tracing::level_filters::LevelFilter;

use super::acquire_error::{AcquireError, AcquireErrorKind, Servers};
use super::credentials::UnreadFile;
use super::engine::{Engine, Notification};
use super::foreign::{foreign, foreign_for_each};
use super::host::Host;
use super::log::LogLine;
use super::name::Name;
use super::operation::Operations;
use super::outcome::Shutdown;
use super::own_wait::OwnWaits;
use super::slot::Slot;
use super::ticket::{Extension, HoldState, Ticket, locked, locked_if_possible};
use crate::clock::Clock as _;
use lock_proto::Instant;
use lock_proto::Misuse;
use lock_proto::{Blocked, Event, Loss};
use lock_proto::{ClientId, LockId};

/// Shared by the driver and every handle. The handles have a `Shared<dyn Engine>`, so their types
/// do not depend on the runtime or the store.
pub(super) struct Shared<E: ?Sized = dyn Engine> {
    pub(super) id: ClientId,
    /// Detects the copy in a forked child, which must not act. Reads a counter, because `getpid` on
    /// each call is slower.
    fork: forkguard::Guard,
    /// Pretends a fork.
    #[cfg(test)]
    pub(super) forked: AtomicBool,
    pub(super) servers: Servers,
    pub(super) unread_file: UnreadFile,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    /// [`Host::assert_may_block`](super::host::Host::assert_may_block).
    may_block: fn(),
    /// The driver has ended.
    pub(super) stopped: event_listener::Event,
    /// It was dropped, and nobody had shut the client down.
    abandoned: AtomicBool,
    pub(super) core: Mutex<Core<E>>,
}

/// State under the mutex. No user code runs while it is locked: no waker is cloned, woken or dropped, no
/// log subscriber called. A user's lock that is held around a call of a handle cannot deadlock with
/// the driver.
pub(super) struct Core<E: ?Sized = dyn Engine> {
    tickets: Vec<Option<Arc<Ticket>>>,
    pub(super) operations: Operations,
    /// When to wake the watchers of a ticket.
    pub(super) alarms: Vec<(Instant, Arc<Ticket>)>,
    /// When the driver's timer fires. The end of time if there is none, or if it was set for so
    /// long that a suspend may delay it.
    pub(super) armed: Instant,
    /// Shared, so that a copy of it is no clone of the waker.
    pub(super) waker: Option<Arc<Waker>>,
    /// Tasks that a dropped guard or future left to the driver to wake.
    left: Vec<Waker>,
    /// A handle has woken the driver, which has not run since.
    pub(super) driver_woken: bool,
    stopping: bool,
    outcome: Option<Shutdown>,
    /// At the last grant the fence counter was ahead of the server's clock.
    fence_ahead: bool,
    own_waits: OwnWaits,
    /// A grant had another TTL than was requested.
    ttl_differed: bool,
    /// The machine makes notes.
    keeps_notes: bool,
    servers: Servers,
    pub(super) engine: E,
}

/// Wake-ups and log lines, collected under the mutex and run after it.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) wakers: Vec<Waker>,
    pub(super) changed: Vec<Arc<Ticket>>,
    pub(super) extended: Vec<Arc<Ticket>>,
    lines: VecDeque<(Arc<Ticket>, LogLine)>,
    /// Tickets that have ended. Dropped outside the mutex, as they may own the last waker of a
    /// task.
    ended: Vec<Arc<Ticket>>,
}

impl Batch {
    pub(super) fn lost(&mut self, ticket: &Arc<Ticket>, loss: Loss) {
        self.extended.push(Arc::clone(ticket));
        self.changed.push(Arc::clone(ticket));
        self.log(ticket, LogLine::Lost(loss));
    }

    /// Logs this, after those who watch the ticket were notified: a line may take long to write.
    fn log(&mut self, ticket: &Arc<Ticket>, line: LogLine) {
        self.lines.push_back((Arc::clone(ticket), line));
    }

    /// Runs everything. Must be called without any mutex held.
    pub(super) fn run(&mut self) {
        self.run_some(usize::MAX);
    }

    pub(super) fn wakers(&self) -> usize {
        self.wakers.len()
    }

    /// Notifies all who watch a ticket, but wakes at most `most` waiting tasks and logs as many
    /// lines. Returns true if some are left.
    pub(super) fn run_some(&mut self, most: usize) -> bool {
        if self.is_quiet() {
            return self.wake_some(most);
        }
        foreign_for_each(self.changed.drain(..), |ticket| {
            ticket.changed.notify(usize::MAX);
        });
        foreign_for_each(self.extended.drain(..), |ticket| {
            ticket.extended.notify(usize::MAX);
        });
        foreign_for_each(self.ended.drain(..), drop);
        let tasks_left = self.wake_some(most);
        foreign_for_each(self.lines.drain(..most.min(self.lines.len())), |(ticket, line)| {
            line.write(&Name(&ticket.name))
        });
        tasks_left || !self.lines.is_empty()
    }

    /// Only tasks that wait for a lock or a release: nearly always true.
    fn is_quiet(&self) -> bool {
        self.lines.is_empty() && self.changed.is_empty() && self.extended.is_empty() && self.ended.is_empty()
    }

    fn wake_some(&mut self, most: usize) -> bool {
        foreign_for_each(self.wakers.drain(..most.min(self.wakers.len())), Waker::wake);
        !self.wakers.is_empty()
    }
}

impl<E: Engine> Shared<E> {
    pub(super) fn new<H: Host>(id: ClientId, servers: Servers, host: &H, engine: E) -> Arc<Self> {
        let clock = host.clock();
        let core = Core {
            tickets: Vec::new(),
            operations: Operations::default(),
            alarms: Vec::new(),
            armed: Instant::MAX,
            waker: None,
            left: Vec::new(),
            driver_woken: false,
            stopping: false,
            outcome: None,
            fence_ahead: false,
            own_waits: OwnWaits::default(),
            ttl_differed: false,
            keeps_notes: false,
            servers: Arc::clone(&servers),
            engine,
        };
        Arc::new(Self {
            id,
            // Panics only if the C library has no memory for the handler.
            fork: forkguard::new(),
            #[cfg(test)]
            forked: false.into(),
            servers,
            unread_file: UnreadFile::default(),
            clock: Box::new(move || clock.now()),
            may_block: H::assert_may_block,
            stopped: event_listener::Event::new(),
            abandoned: AtomicBool::new(false),
            core: Mutex::new(core),
        })
    }
}

impl<E: Engine + ?Sized> Shared<E> {
    pub(super) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Panics if this thread runs async tasks and the host can tell.
    pub(super) fn assert_may_block(&self) {
        (self.may_block)();
    }

    pub(super) fn error(&self, kind: AcquireErrorKind, what: &'static str, name: &Arc<[u8]>) -> AcquireError {
        let unread_file = if kind.lacks_credentials() {
            self.unread_file.get(self.is_forked())
        } else if kind.is_rejected() {
            self.unread_file.odd(self.is_forked())
        } else {
            None
        };
        let abandoned = self.abandoned.load(Ordering::Acquire);
        AcquireError::new(kind, what, name, self.id, &self.servers, unread_file, abandoned)
    }

    /// Returns whether the lock of this acquisition is held now.
    pub(super) fn hold_state(&self, ticket: &Ticket) -> HoldState {
        ticket.hold_state(self.now(), self.is_forked())
    }

    /// Returns true in a forked process. Takes no mutex: a thread that the child lacks may hold it.
    pub(super) fn is_forked(&self) -> bool {
        #[cfg(test)]
        if self.forked.load(Ordering::Relaxed) {
            return true;
        }
        // A copy, as a guard reports a fork only once.
        self.fork.clone().detected_fork()
    }

    /// Waits for the next value. `None` after the last one, and in a forked child, which has no
    /// driver.
    pub(super) async fn next<T>(&self, slot: &Slot<T>) -> Option<T> {
        poll_fn(|cx| if self.is_forked() { Poll::Ready(None) } else { slot.poll(cx) }).await
    }

    /// Runs `work` for a handle, delivers its events, and wakes the driver if it has work. Does
    /// nothing in a forked child, and returns `None`: the locks belong to the parent, and a thread
    /// that the child lacks may hold the mutex.
    pub(super) fn verb<R>(&self, work: impl FnOnce(&mut Core<E>, Instant, &mut Batch) -> R) -> Option<R> {
        self.call(false, work)
    }

    /// As [`verb`](Self::verb), for the drop of a handle. The driver wakes the waiting tasks: a task
    /// that is woken by this thread may have to wait until it is free, and what drops a handle may
    /// compute for long after it.
    pub(super) fn verb_of_drop<R>(&self, work: impl FnOnce(&mut Core<E>, Instant, &mut Batch) -> R) -> Option<R> {
        self.call(true, work)
    }

    /// Locks the state for a step of the machine, whose notes are those that a log wants now.
    fn enter(&self) -> (MutexGuard<'_, Core<E>>, Instant) {
        let mut core = locked(&self.core);
        // Read under the mutex, so that the machine sees time in order.
        let now = self.now();
        core.keep_notes();
        (core, now)
    }

    fn call<R>(&self, of_drop: bool, work: impl FnOnce(&mut Core<E>, Instant, &mut Batch) -> R) -> Option<R> {
        if self.is_forked() {
            return None;
        }
        let mut batch = Batch::default();
        let (mut core, now) = self.enter();
        let result = work(&mut core, now, &mut batch);
        core.drain(now, &mut batch);
        if of_drop && !core.is_closed() {
            core.left.append(&mut batch.wakers);
        }
        let driver = core.take_driver_waker(now);
        drop(core);
        batch.run();
        if let Some(driver) = driver
            && !foreign(move || driver.wake_by_ref())
        {
            // The next call tries again.
            locked(&self.core).driver_woken = false;
        }
        Some(result)
    }

    /// Runs `work` for the driver, which runs the batch itself.
    pub(super) fn drive<R>(&self, batch: &mut Batch, work: impl FnOnce(&mut Core<E>, Instant) -> R) -> R {
        let (mut core, now) = self.enter();
        let result = work(&mut core, now);
        core.drain(now, batch);
        batch.wakers.append(&mut core.left);
        result
    }

    /// Handles expired timers of the locks for the driver. Returns true if a timer is due, perhaps
    /// that of a connection.
    pub(super) fn drive_expiry(&self, batch: &mut Batch) -> bool {
        let (mut core, now) = self.enter();
        let due = core.expire_due(now, batch);
        core.drain(now, batch);
        due
    }

    /// The driver has ended. `unreleased` is the machine's count, if it stopped in order.
    pub(super) fn close(&self, unreleased: Option<u32>) {
        let forked = self.is_forked();
        let mut batch = Batch::default();
        let Some(mut core) = locked_if_possible(&self.core, forked) else { return };
        let (tickets, alarms) = (core::mem::take(&mut core.tickets), core::mem::take(&mut core.alarms));
        let mut left = 0;
        for ticket in tickets.iter().flatten() {
            left += u32::from(ticket.close(forked, &mut batch));
        }
        self.abandoned.fetch_or(!core.stopping, Ordering::Release);
        core.stopping = true;
        core.operations.close(forked, &mut batch);
        batch.wakers.append(&mut core.left);
        let waker = core.waker.take();
        core.outcome.get_or_insert_with(|| Shutdown { unreleased: unreleased.unwrap_or(left) });
        drop(core);
        foreign(|| drop((tickets, alarms, waker)));
        batch.run();
        self.stopped.notify(usize::MAX);
    }

    /// The result of the shutdown, once the driver has ended. In a forked child nothing is shut
    /// down.
    pub(super) fn outcome(&self) -> Option<Shutdown> {
        if self.is_forked() { Some(Shutdown { unreleased: 0 }) } else { locked(&self.core).outcome }
    }
}

impl<E: Engine + ?Sized> Core<E> {
    pub(super) fn is_closed(&self) -> bool {
        self.outcome.is_some()
    }

    /// Logs the machine's notes, and delivers its events to their tickets.
    pub(super) fn drain(&mut self, now: Instant, batch: &mut Batch) {
        // First: an event may be the last one of its ticket.
        while let Some(note) = self.engine.machine_mut().poll_note() {
            if let Some((lock, line)) = LogLine::of(now, note, &self.servers)
                && let Some(ticket) = self.ticket(lock)
            {
                batch.log(ticket, line);
            }
        }
        while let Some(notification) = self.engine.poll_notification() {
            match notification {
                Notification::Lock(lock, event) => self.notify(now, lock, event, batch),
                Notification::Operation(id, event) => self.operations.notify(id, event, batch),
            }
        }
    }

    /// Has the machine make notes if their lines are written.
    fn keep_notes(&mut self) {
        let keeps = Level::WARN <= LevelFilter::current();
        if keeps != self.keeps_notes {
            self.keeps_notes = keeps;
            // They are drained after each call.
            self.engine.machine_mut().keep_notes(if keeps { usize::MAX } else { 0 });
        }
    }

    fn ticket(&self, lock: LockId) -> Option<&Arc<Ticket>> {
        self.tickets.get(lock.slot() as usize)?.as_ref().filter(|ticket| ticket.lock == lock)
    }

    fn notify(&mut self, now: Instant, lock: LockId, event: Event, batch: &mut Batch) {
        let Some(slot) = self.tickets.get_mut(lock.slot() as usize) else { return };
        let Some(ticket) = slot.as_ref().filter(|ticket| ticket.lock == lock) else { return };
        if event == Event::Blocked(Blocked::Local) {
            self.own_waits.began(now);
        }
        if let Event::Granted(grant) = &event
            && (grant.fence_ahead_ms > 0) != self.fence_ahead
        {
            // Logged once, and not with every grant until the clock has caught up.
            self.fence_ahead = grant.fence_ahead_ms > 0;
            if self.fence_ahead {
                batch.log(ticket, LogLine::FenceAhead { ms: grant.fence_ahead_ms });
            }
        }
        if ticket.apply(event, batch) {
            batch.ended.extend(slot.take());
        }
    }

    /// The driver's waker, if it has work and was not woken yet.
    fn take_driver_waker(&mut self, now: Instant) -> Option<Arc<Waker>> {
        if self.driver_woken || !self.needs_driver(now) {
            return None;
        }
        self.driver_woken = true;
        self.waker.clone()
    }

    fn needs_driver(&mut self, now: Instant) -> bool {
        let late = self.armed <= now;
        late || !self.left.is_empty()
            || self.engine.needs_driver()
            || self.next_deadline().is_some_and(|deadline| deadline < self.armed)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let alarms = self.alarms.iter().map(|(at, _)| *at);
        alarms.chain(self.own_waits.next_check()).chain(self.engine.machine().next_deadline()).min()
    }

    fn expire_due(&mut self, now: Instant, batch: &mut Batch) -> bool {
        let due = self.engine.machine().next_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.engine.machine_mut().expire(now);
        }
        if self.own_waits.next_check().is_some_and(|at| at <= now) {
            for ticket in self.own_waits.check(now, &self.tickets) {
                batch.log(&ticket, LogLine::OwnWait);
            }
        }
        batch.changed.extend(self.alarms.extract_if(.., |(at, _)| *at <= now).map(|(_, ticket)| ticket));
        due
    }

    /// Handles expired timers of the locks and delivers their events, before a call that depends on
    /// them.
    pub(super) fn expire_timers(&mut self, now: Instant, batch: &mut Batch) {
        self.engine.machine_mut().expire(now);
        self.drain(now, batch);
    }

    /// Begins an acquisition or a candidacy.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        name: &Arc<[u8]>,
        batch: &mut Batch,
        start: impl FnOnce(&mut Self) -> Result<LockId, AcquireErrorKind>,
    ) -> Result<Arc<Ticket>, AcquireErrorKind> {
        if self.is_closed() {
            return Err(AcquireErrorKind::ShutDown);
        }
        // One may end another acquisition, whose slot this one may get.
        self.expire_timers(now, batch);
        let lock = start(self)?;
        let ticket = Ticket::new(lock, Arc::clone(name));
        let slot = lock.slot() as usize;
        if slot >= self.tickets.len() {
            self.tickets.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.tickets.get_mut(slot) {
            batch.ended.extend(place.replace(Arc::clone(&ticket)));
        }
        Ok(ticket)
    }

    /// Claims the offer. False if it was withdrawn.
    pub(super) fn claim(&mut self, now: Instant, ticket: &Ticket) -> bool {
        let Some(valid_until) = ticket.offer() else { return false };
        if self.is_closed() || now >= valid_until || self.engine.machine_mut().claim(now, ticket.lock).is_err() {
            return false;
        }
        ticket.hold(valid_until);
        true
    }

    /// Returns the requested TTL, or the default one, for the first grant whose TTL differs from it
    /// by a millisecond or more. etcd counts whole seconds, and its server has a minimum. ZooKeeper
    /// has a maximum, too.
    pub(super) fn first_other_ttl(&mut self, ticket: &Ticket, requested: Option<Duration>) -> Option<Duration> {
        let requested = requested.unwrap_or_else(|| self.engine.machine().info().default_ttl);
        let differs = ticket.terms().ttl.abs_diff(requested).as_millis() > 0;
        (differs && !core::mem::replace(&mut self.ttl_differed, true)).then_some(requested)
    }

    pub(super) fn extend(&mut self, now: Instant, ticket: &Ticket) -> Result<Extension, Misuse> {
        if self.is_closed() {
            // The loss of the lock answers it.
            return Ok(Extension::default());
        }
        self.engine.machine_mut().extend(now, ticket.lock)?;
        Ok(ticket.extension())
    }

    pub(super) fn release(&mut self, now: Instant, ticket: &Arc<Ticket>, batch: &mut Batch) {
        self.return_guard(now, ticket, batch);
        let released = !self.is_closed() && self.engine.machine_mut().release(now, ticket.lock).is_ok();
        // A shutdown has released it already, and its result follows.
        if !released && self.own_slot(ticket).is_none() {
            ticket.release_failed();
        }
    }

    pub(super) fn abandon(&mut self, now: Instant, ticket: &Arc<Ticket>, batch: &mut Batch) {
        self.return_guard(now, ticket, batch);
        self.forget(ticket, batch);
        if !self.is_closed() {
            self.engine.machine_mut().abandon(now, ticket.lock);
        }
    }

    fn return_guard(&mut self, now: Instant, ticket: &Arc<Ticket>, batch: &mut Batch) {
        ticket.return_guard(now, batch);
        self.alarms.retain(|(_, own)| own.lock != ticket.lock);
    }

    fn forget(&mut self, ticket: &Ticket, batch: &mut Batch) {
        if let Some(slot) = self.own_slot(ticket) {
            batch.ended.extend(slot.take());
        }
    }

    /// The place of this ticket, until it has ended.
    fn own_slot(&mut self, ticket: &Ticket) -> Option<&mut Option<Arc<Ticket>>> {
        let slot = self.tickets.get_mut(ticket.lock.slot() as usize);
        slot.filter(|slot| slot.as_ref().is_some_and(|own| own.lock == ticket.lock))
    }

    pub(super) fn shutdown(&mut self, now: Instant, within: Duration) {
        if !self.is_closed() {
            self.stopping = true;
            self.engine.machine_mut().shutdown(now, within);
        }
    }

    /// The last handle was dropped.
    fn orphaned(&mut self, now: Instant) {
        if !self.stopping {
            let within = self.engine.machine().info().release_within;
            self.shutdown(now, within);
        }
    }
}

/// Held by every handle that keeps the client running. The last one to be dropped shuts it down.
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.verb_of_drop(|core, now, _| core.orphaned(now));
    }
}

//! State of one acquisition, shared by the driver and its handles.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use event_listener::EventListener;

use super::foreign::catching;
use super::shared::Batch;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::{Blocked, Event, Failure, Fence, Grant, Loss, Release, Report};

/// One acquisition. It outlives the machine's record, so that observers can query it afterwards.
pub(super) struct Ticket {
    pub(super) lock: LockId,
    pub(super) name: Arc<[u8]>,
    /// End of validity in nanoseconds, 0 once it is over. Read without the mutex. A reader that
    /// finds it in the past sets it to 0, and nothing raises it again.
    until: AtomicU64,
    /// The terms of the grant, once granted. Read without the mutex, in a forked child too.
    terms: OnceLock<Terms>,
    state: Mutex<State>,
    /// Notified of loss, risk and end.
    pub(super) changed: event_listener::Event,
    /// Notified of answers to extensions and proclamations.
    pub(super) extended: event_listener::Event,
}

struct State {
    stage: Stage,
    /// Why it was lost. Kept after the release.
    loss: Option<Loss>,
    blocked: Option<Blocked>,
    at_risk: bool,
    /// The guard was released or dropped. Later losses are not reported.
    returned: bool,
    /// Unanswered extensions, in the order of the calls.
    extensions: Vec<Extension>,
    /// Proclamations of a leader, if there were any.
    proclaimed: Option<Box<Proclaimed>>,
    /// The future that waits for the acquisition or for the release.
    waker: Option<Waker>,
}

/// The answer to one extension; `None` while it is pending.
pub(super) type Extension = Arc<Mutex<Option<Result<(), Report>>>>;

/// The answers to proclamations. Each one also answers the proclamations before it.
#[derive(Default)]
struct Proclaimed {
    answered: u32,
    /// The last answer: the revision, or why it was not confirmed.
    last: Option<Result<i64, Report>>,
}

enum Stage {
    Waiting,
    Offered { valid_until: Instant },
    Withdrawn,
    Failed(Box<Failure>),
    Held,
    Released(Release),
}

/// The part of a [`Grant`] that differs between grants of one client. Kept small.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// The number of the token.
    pub(super) number: u64,
    /// The fencing token; 0 for none.
    fence: u64,
    pub(super) ttl: Duration,
    fence_ahead_ms: u32,
}

impl Terms {
    fn of(grant: &Grant) -> Self {
        let Grant { token, fence, fence_ahead_ms, ttl, .. } = *grant;
        Self { number: token.number, fence: fence.map_or(0, Fence::get), ttl, fence_ahead_ms }
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        (self.fence != 0).then_some(Fence::new(self.fence))
    }

    pub(super) fn fence_ahead(&self) -> Option<Duration> {
        (self.fence_ahead_ms > 0).then(|| Duration::from_millis(self.fence_ahead_ms.into()))
    }
}

/// Progress of an acquisition, for the future that waits for it.
pub(super) enum Progress {
    Waiting,
    Offered,
    Withdrawn,
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldState {
    Held,
    Lost(Loss),
    Returned,
}

impl Ticket {
    pub(super) fn new(lock: LockId, name: Arc<[u8]>) -> Arc<Self> {
        Arc::new(Self {
            lock,
            name,
            until: AtomicU64::new(0),
            terms: OnceLock::new(),
            state: Mutex::new(State {
                stage: Stage::Waiting,
                loss: None,
                blocked: None,
                at_risk: false,
                returned: false,
                extensions: Vec::new(),
                proclaimed: None,
                waker: None,
            }),
            changed: event_listener::Event::new(),
            extended: event_listener::Event::new(),
        })
    }

    /// Applies an event of the machine. True for the last event of the acquisition.
    pub(super) fn apply(self: &Arc<Self>, event: Event, batch: &mut Batch) -> bool {
        let mut state = locked(&self.state);
        match event {
            Event::Blocked(why) => {
                state.blocked = Some(why);
                batch.wakers.extend(state.waker.take());
                false
            }
            Event::Granted(grant) => {
                state.stage = Stage::Offered { valid_until: grant.valid_until };
                self.terms.get_or_init(|| Terms::of(&grant));
                batch.wakers.extend(state.waker.take());
                false
            }
            Event::Withdrawn => {
                state.stage = Stage::Withdrawn;
                batch.wakers.extend(state.waker.take());
                true
            }
            Event::Failed(failure) => {
                state.stage = Stage::Failed(Box::new(failure));
                batch.wakers.extend(state.waker.take());
                true
            }
            Event::Renewed { valid_until } => {
                let moved = self.move_end(valid_until);
                state.at_risk = false;
                if let Stage::Offered { valid_until: until } = &mut state.stage {
                    *until = valid_until;
                }
                // It has ended by the clock, and `is_held` has said so: the driver was late.
                if !moved && state.is_unreported() {
                    state.loss = Some(Loss::Expired);
                    batch.lost(self, Loss::Expired);
                }
                false
            }
            Event::Extended => {
                state.answer_extension(Ok(()));
                self.notify_answered(batch);
                false
            }
            Event::ExtendFailed(report) => {
                state.answer_extension(Err(report));
                self.notify_answered(batch);
                false
            }
            Event::Proclaimed { revision } => {
                state.answer_proclamation(Ok(revision));
                self.notify_answered(batch);
                false
            }
            Event::ProclaimFailed(report) => {
                state.answer_proclamation(Err(report));
                self.notify_answered(batch);
                false
            }
            Event::AtRisk { .. } => {
                state.at_risk = true;
                batch.changed.push(Arc::clone(self));
                false
            }
            Event::Lost(loss) => {
                self.until.store(0, Ordering::Release);
                // The loss is the answer to pending extensions.
                state.extensions = Vec::new();
                state.loss = Some(loss);
                if !state.returned {
                    batch.lost(self, loss);
                }
                false
            }
            Event::Released(release) => {
                self.until.store(0, Ordering::Release);
                state.stage = Stage::Released(release);
                batch.wakers.extend(state.waker.take());
                true
            }
        }
    }

    /// Notifies the futures that wait for answers. They look for them under the mutex, which the
    /// caller holds.
    fn notify_answered(self: &Arc<Self>, batch: &mut Batch) {
        batch.extended.extend((self.extended.total_listeners() > 0).then(|| Arc::clone(self)));
    }

    /// The driver has ended. Returns true if the store may still have a key of this acquisition.
    pub(super) fn close(self: &Arc<Self>, forked: bool, batch: &mut Batch) -> bool {
        let Some(mut state) = locked_if_possible(&self.state, forked) else { return false };
        self.until.store(0, Ordering::Release);
        let left = match state.stage {
            Stage::Waiting => {
                state.stage = Stage::Failed(Box::new(Failure::ShuttingDown));
                false
            }
            Stage::Offered { .. } => {
                state.stage = Stage::Failed(Box::new(Failure::ShuttingDown));
                true
            }
            Stage::Held => {
                let reported = state.returned || state.loss.is_some();
                if !reported {
                    state.loss = Some(Loss::ShutDown);
                    batch.lost(self, Loss::ShutDown);
                }
                state.stage = Stage::Released(Release::Unknown);
                true
            }
            Stage::Withdrawn | Stage::Failed(_) | Stage::Released(_) => false,
        };
        batch.wakers.extend(state.waker.take());
        left
    }

    /// Moves the end of validity, in either direction, unless it is over. Then returns false.
    fn move_end(&self, valid_until: Instant) -> bool {
        let new = valid_until.as_nanos();
        self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| (old != 0).then_some(new)).is_ok()
    }

    /// The end of validity of the offer, if there is one.
    pub(super) fn offer(&self) -> Option<Instant> {
        match locked(&self.state).stage {
            Stage::Offered { valid_until } => Some(valid_until),
            Stage::Waiting | Stage::Withdrawn | Stage::Failed(_) | Stage::Held | Stage::Released(_) => None,
        }
    }

    /// The offer was claimed.
    pub(super) fn hold(&self, valid_until: Instant) {
        locked(&self.state).stage = Stage::Held;
        self.until.store(valid_until.as_nanos(), Ordering::Release);
    }

    /// The guard was released or dropped.
    pub(super) fn return_guard(self: &Arc<Self>, now: Instant, batch: &mut Batch) {
        let mut state = locked(&self.state);
        if !self.is_held(now) && state.is_unreported() {
            state.loss = Some(Loss::Expired);
            batch.lost(self, Loss::Expired);
        }
        state.returned = true;
        drop(state);
        self.until.store(0, Ordering::Release);
        // Observers register first and read `until` then, without the mutex. One of the two sides
        // must see the other.
        fence(Ordering::SeqCst);
        batch.changed.extend((self.changed.total_listeners() > 0).then(|| Arc::clone(self)));
    }

    /// The machine does not know the lock, so no answer follows.
    pub(super) fn release_failed(&self) {
        let mut state = locked(&self.state);
        if !matches!(state.stage, Stage::Released(_)) {
            state.stage = Stage::Released(Release::Unknown);
        }
    }

    /// Returns the progress of the acquisition. Registers the waker if it is still waiting.
    pub(super) fn poll_progress(&self, cx: &Context<'_>) -> Progress {
        // Cloning or dropping a waker is foreign code: not under the mutex.
        let waker = cx.waker().clone();
        let mut state = locked(&self.state);
        match &state.stage {
            Stage::Waiting => {
                let old = state.waker.replace(waker);
                drop(state);
                drop(old);
                Progress::Waiting
            }
            Stage::Offered { .. } => Progress::Offered,
            Stage::Failed(failure) => Progress::Failed(Failure::clone(failure)),
            Stage::Withdrawn | Stage::Released(_) | Stage::Held => Progress::Withdrawn,
        }
    }

    pub(super) fn poll_released(&self, cx: &Context<'_>) -> Poll<Release> {
        let waker = cx.waker().clone();
        let mut state = locked(&self.state);
        if let Stage::Released(release) = state.stage {
            return Poll::Ready(release);
        }
        let old = state.waker.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// The terms of the grant. Zeros before it.
    pub(super) fn terms(&self) -> Terms {
        self.terms.get().copied().unwrap_or_default()
    }

    pub(super) fn blocked(&self, forked: bool) -> Option<Blocked> {
        locked_if_possible(&self.state, forked)?.blocked
    }

    /// Returns true if it waits for another acquisition of its client.
    pub(super) fn waits_in_client(&self) -> bool {
        let state = locked(&self.state);
        matches!(state.stage, Stage::Waiting) && state.blocked == Some(Blocked::Local)
    }

    /// Returns true if it was granted, and its guard is out.
    pub(super) fn has_guard(&self) -> bool {
        let state = locked(&self.state);
        matches!(state.stage, Stage::Held) && !state.returned
    }

    pub(super) fn valid_until(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.valid_until().since(now)
    }

    /// Returns true if the lock is held at `now`. Once false, it stays false.
    // T2, T3
    pub(super) fn is_held(&self, now: Instant) -> bool {
        let mut until = self.until.load(Ordering::Acquire);
        loop {
            if now.as_nanos() < until {
                return true;
            }
            if until == 0 {
                return false;
            }
            match self.until.compare_exchange_weak(until, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(current) => until = current,
            }
        }
    }

    pub(super) fn hold_state(&self, now: Instant, forked: bool) -> HoldState {
        if self.is_held(now) {
            return HoldState::Held;
        }
        let Some(state) = locked_if_possible(&self.state, forked) else { return HoldState::Lost(Loss::ShutDown) };
        match state.loss {
            Some(loss) => HoldState::Lost(loss),
            None if state.is_unreported() => HoldState::Lost(Loss::Expired),
            None => HoldState::Returned,
        }
    }

    pub(super) fn is_at_risk(&self, forked: bool) -> bool {
        locked_if_possible(&self.state, forked).is_some_and(|state| state.at_risk)
    }

    /// Adds an extension that was requested from the machine.
    pub(super) fn extension(&self) -> Extension {
        let extension = Extension::default();
        locked(&self.state).extensions.push(Arc::clone(&extension));
        extension
    }
}

impl Ticket {
    pub(super) fn proclamations(&self) -> u32 {
        locked(&self.state).proclaimed.as_ref().map_or(0, |proclaimed| proclaimed.answered)
    }

    /// The answer to a proclamation that was made when `before` had been answered.
    pub(super) fn proclamation(&self, before: u32) -> Option<Result<i64, Report>> {
        let state = locked(&self.state);
        let proclaimed = state.proclaimed.as_deref()?;
        (proclaimed.answered != before).then(|| proclaimed.last.clone()).flatten()
    }
}

impl State {
    /// Returns true if the machine has not reported the end of this hold. Once its validity is
    /// over, it is lost by the clock.
    const fn is_unreported(&self) -> bool {
        matches!(self.stage, Stage::Held) && !self.returned && self.loss.is_none()
    }

    /// The machine answers in the order of the calls.
    fn answer_extension(&mut self, answer: Result<(), Report>) {
        if !self.extensions.is_empty() {
            *locked(&self.extensions.remove(0)) = Some(answer);
        }
    }

    fn answer_proclamation(&mut self, answer: Result<i64, Report>) {
        let proclaimed = self.proclaimed.get_or_insert_default();
        proclaimed.answered = proclaimed.answered.wrapping_add(1);
        proclaimed.last = Some(answer);
    }
}

/// Locks a mutex. No panic can leave the state under it inconsistent.
pub(super) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`locked`]. `None` in a forked child if a thread that the child lacks holds the mutex.
pub(super) fn locked_if_possible<T: ?Sized>(mutex: &Mutex<T>, forked: bool) -> Option<MutexGuard<'_, T>> {
    if !forked {
        return Some(locked(mutex));
    }
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// What one task listens with. While the event is locked it drops its clone of a waker. That must
/// not be the last clone, as the task may own a guard: the listener is dropped before the waker.
struct Listening {
    listener: EventListener,
    /// The task's waker.
    waker: Waker,
    /// The waker that the listener has.
    catching: Waker,
}

/// Waits until `check` returns a value. Calls it at every poll, because it may read a clock.
pub(super) async fn wait_for<T>(event: &event_listener::Event, mut check: impl FnMut() -> Option<T>) -> T {
    let mut listening: Option<Listening> = None;
    poll_fn(move |cx| {
        // A listener that gets another waker would drop the last clone of the old one.
        if listening.as_ref().is_some_and(|own| !own.waker.will_wake(cx.waker())) {
            listening = None;
        }
        loop {
            if let Some(found) = check() {
                return Poll::Ready(found);
            }
            match &mut listening {
                // Then check again, so that no notification is missed.
                None => {
                    let waker = cx.waker();
                    listening =
                        Some(Listening { listener: event.listen(), waker: waker.clone(), catching: catching(waker) });
                    // The counterpart of the fence in `return_guard`; `listen` has none.
                    fence(Ordering::SeqCst);
                }
                Some(own) => match Pin::new(&mut own.listener).poll(&mut Context::from_waker(&own.catching)) {
                    Poll::Ready(()) => listening = None,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Arc<Ticket> {
        let ticket = Ticket::new(LockId::new(0, 0), b"a"[..].into());
        let terms = Terms { number: 1, fence: 2, ..Terms::default() };
        assert!(ticket.terms.set(terms).is_ok());
        ticket.hold(Instant::from_millis(1));
        ticket
    }

    #[test]
    fn forked_child_does_not_wait_for_mutex_of_ticket() {
        let ticket = granted();
        let _of_parent = locked(&ticket.state);
        assert!(!ticket.close(true, &mut Batch::default()));
        assert_eq!(ticket.terms().fence(), Some(Fence::new(2)));
        assert_eq!(ticket.blocked(true), None);
        assert!(!ticket.is_at_risk(true));
        assert_eq!(ticket.hold_state(Instant::from_millis(1), true), HoldState::Lost(Loss::ShutDown));
    }

    /// The parent's thread panicked under the mutex before the fork.
    #[test]
    fn forked_child_closes_poisoned_ticket() {
        let ticket = granted();
        let poisoned = std::panic::catch_unwind(|| {
            let _held = locked(&ticket.state);
            panic!("under the mutex");
        });
        assert!(poisoned.is_err() && ticket.state.is_poisoned());
        assert!(ticket.close(true, &mut Batch::default()), "the key may be there");
        assert_eq!(ticket.hold_state(Instant::ZERO, false), HoldState::Lost(Loss::ShutDown));
    }
}

//! The event loop of every driver, independent of the store and its transport.

use alloc::sync::Arc;
use core::fmt;
use core::ops::RangeInclusive;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use super::engine::Engine;
use super::foreign::foreign;
use super::host::Host;
use super::shared::{Batch, Shared};
use lock_proto::Instant;
use lock_proto::time::soonest;

/// Longest sleep while a lock is held. A timer may stand still during a suspend, so a longer one
/// that was set before may be late, and is not reused.
// T4
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Iterations in one poll, before the driver yields to other tasks.
const ITERATIONS: usize = 16;
/// Requests in flight for each task that is woken at once. The requests of these tasks leave in one
/// write. Waking fewer tasks costs more system calls. Waking more makes client and server work in
/// turns, so that each idles while the other works.
const IN_FLIGHT_PER_WOKEN: usize = 8;
/// Limits of the number of tasks that are woken at once.
const WOKEN_AT_ONCE: RangeInclusive<usize> = 8..=64;

/// A transport: the connections of one client.
pub(super) trait Links<H: Host>: fmt::Debug {
    type Engine: Engine;
    /// Whether the request of a task that was woken alone leaves at once. That gains a tenth on
    /// etcd and ZooKeeper. On Redis it costs a third, because an iteration takes as long as the
    /// server.
    fn alone_at_once(&self) -> bool;

    /// Carries out what the machine has queued for the driver. True if the machine has stopped.
    fn do_queued(&mut self, host: &H, shared: &Shared<Self::Engine>, batch: &mut Batch) -> bool;

    /// Makes progress on the connections. True if there is more to do.
    fn poll(&mut self, host: &H, shared: &Shared<Self::Engine>, batch: &mut Batch, cx: &mut Context<'_>) -> bool;

    /// When to poll the connections even if nothing wakes the driver.
    fn next_deadline(&self) -> Option<Instant>;

    fn clear(&mut self);

    /// Forgets all connections without closing them: in a forked process they are the parent's.
    fn leak(&mut self);
}

/// The loop. Ends when the machine has stopped.
pub(super) struct EventLoop<H: Host, L: Links<H>> {
    host: H,
    shared: Arc<Shared<L::Engine>>,
    links: L,
    timer: Option<LoopTimer<H::Sleep>>,
    batch: Batch,
    /// The waker that the handles have, or had.
    waker: Option<Arc<Waker>>,
    /// A handle has called, and other tasks were let through first to add their requests.
    gathered: bool,
    /// Requests in flight at the end of the last iteration.
    in_flight: usize,
    /// Tasks woken since the driver was woken.
    woken: usize,
}

struct LoopTimer<S> {
    until: Instant,
    /// Set for longer than [`LONGEST_SLEEP`].
    is_long: bool,
    sleep: S,
}

enum LoopStep {
    Busy,
    /// Nothing to do before the timer or the next wake-up.
    Idle(Option<Instant>),
    Stopped,
}

impl<H: Host, L: Links<H>> EventLoop<H, L> {
    pub(super) fn new(host: H, shared: Arc<Shared<L::Engine>>, links: L) -> Self {
        Self {
            host,
            shared,
            links,
            timer: None,
            batch: Batch::default(),
            waker: None,
            gathered: false,
            in_flight: 0,
            woken: 0,
        }
    }

    /// Accepts a handle's call. Returns true to yield first, so that other woken tasks add
    /// requests.
    fn gather(&mut self, cx: &Context<'_>) -> bool {
        // Tasks that were woken before have run already.
        let gathered = self.gathered || self.batch.wakers() > 0 || (self.woken == 1 && self.links.alone_at_once());
        // Cloned and dropped without the mutex: a waker is foreign code.
        let same = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        let waker = (!same).then(|| Arc::new(cx.waker().clone()));
        let (called, old) = self.shared.drive(&mut self.batch, |core, _| {
            let old = waker.as_ref().and_then(|waker| core.waker.replace(Arc::clone(waker)));
            let called = core.driver_woken && !gathered;
            core.driver_woken &= called;
            (called, old)
        });
        self.waker = waker.or_else(|| self.waker.take());
        drop(old);
        self.gathered = called;
        if !called {
            self.woken = 0;
        }
        called
    }

    fn step(&mut self, cx: &mut Context<'_>) -> LoopStep {
        let Self { host, shared, batch, links, .. } = self;
        // Time first: input in the sockets must not revive what expired during a pause.
        // T2
        let due = shared.drive_expiry(batch);
        if links.do_queued(host, shared, batch) {
            return LoopStep::Stopped;
        }
        let busy = links.poll(host, shared, batch, cx);
        let of_links = links.next_deadline();
        let timer = self.timer.as_ref().filter(|timer| !timer.is_long).map(|timer| timer.until);
        let in_flight = &mut self.in_flight;
        self.shared.drive(&mut self.batch, |core, now| {
            *in_flight = core.engine.machine().in_flight();
            // A connection is silent only if nothing has arrived.
            // P6, E13
            if due {
                core.engine.machine_mut().handle_timeout(now);
                return LoopStep::Busy;
            }
            // A connection polled later may have created work for an earlier one.
            if busy || core.engine.needs_driver() {
                return LoopStep::Busy;
            }
            let mut deadline = soonest([core.next_deadline(), of_links]);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return LoopStep::Busy;
            }
            if core.engine.machine().holds_any() {
                let latest = now + LONGEST_SLEEP;
                deadline = Some(deadline.map_or(latest, |deadline| deadline.min(latest)));
            }
            // A timer that fires early costs one look at the clock, less than a new timer.
            let until = soonest([timer.filter(|until| *until > now), deadline]);
            core.armed = until.filter(|until| until.since(now) <= LONGEST_SLEEP).unwrap_or(Instant::MAX);
            LoopStep::Idle(until)
        })
    }

    /// Sleeps until then. True if it is time already.
    fn rest(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(until) = until else { return false };
        let timer = match &mut self.timer {
            Some(timer) if timer.until == until && !timer.is_long => timer,
            place @ (Some(_) | None) => {
                let time = until.since(self.shared.now());
                place.insert(LoopTimer { until, is_long: time > LONGEST_SLEEP, sleep: self.host.sleep(time) })
            }
        };
        let over = Pin::new(&mut timer.sleep).poll(cx).is_ready();
        if over {
            self.timer = None;
        }
        over
    }

    /// As [`Future::poll`].
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.is_forked() {
            self.links.leak();
            tracing::error!("the process was forked: the client in the child ends");
            self.shared.close(None);
            return Poll::Ready(());
        }
        if self.gather(cx) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        for _ in 0..ITERATIONS {
            let step = self.step(cx);
            let most = (self.in_flight / IN_FLIGHT_PER_WOKEN).clamp(*WOKEN_AT_ONCE.start(), *WOKEN_AT_ONCE.end());
            self.woken += self.batch.wakers().min(most);
            if self.batch.run_some(most) {
                // The rest after these have run, and after what the sockets have.
                cx.waker().wake_by_ref();
                return match step {
                    LoopStep::Busy | LoopStep::Idle(_) => Poll::Pending,
                    LoopStep::Stopped => {
                        self.batch.run();
                        Poll::Ready(())
                    }
                };
            }
            match step {
                LoopStep::Busy => {}
                LoopStep::Idle(until) if self.rest(until, cx) => {}
                LoopStep::Idle(_) => return Poll::Pending,
                LoopStep::Stopped => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<H: Host, L: Links<H>> fmt::Debug for EventLoop<H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.links.fmt(f)
    }
}

impl<H: Host, L: Links<H>> Drop for EventLoop<H, L> {
    fn drop(&mut self) {
        let forked = self.shared.is_forked();
        if forked {
            self.links.leak();
        }
        // There is no later iteration: wake everybody now.
        self.batch.run();
        self.shared.close(None);
        // Sockets and the source of credentials are foreign code.
        if !forked {
            foreign(|| self.links.clear());
        }
    }
}

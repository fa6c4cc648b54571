//! The one loop between a machine and the world, whatever the machine.

use alloc::sync::Arc;
use core::ops::RangeInclusive;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use super::engine::Engine;
use super::host::Host;
use super::shared::{Batch, Shared};
use crate::time::{Instant, soonest};

/// The longest sleep while a lock is held (requirement T4): a timer that stood still with the machine is this late at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Turns of the loop in one poll, before other tasks get their turn.
const TURNS: usize = 16;
/// How many tasks are woken at once: as many as the servers still have requests, within these limits. What they ask for then leaves in
/// one write, and while the servers work on that, the next ones are woken: fewer would mean more system calls, more would leave the
/// servers idle meanwhile.
const WOKEN_AT_ONCE: RangeInclusive<usize> = 8..=64;

/// A driver's connections: what it does for a certain machine.
pub(super) trait Links<H: Host> {
    type Engine: Engine;
    /// The request of a task that was woken alone leaves at once, without a look whether others have some too. That saves a turn of the loop.
    /// (Worth a tenth of one task's locks on etcd. On Redis it costs a third of them: a turn here is as long as one of the server, and
    /// keeps a second thread of the runtime awake meanwhile.)
    const ALONE_AT_ONCE: bool;

    /// Does what only the driver can do. True if the machine has stopped.
    fn do_duties(&mut self, host: &H, shared: &Shared<Self::Engine>, batch: &mut Batch) -> bool;

    /// Moves the connections on as far as they go. True if they could go on.
    fn poll(&mut self, host: &H, shared: &Shared<Self::Engine>, batch: &mut Batch, cx: &mut Context<'_>) -> bool;

    /// When they are to be polled though nothing has woken the driver.
    fn next_deadline(&self) -> Option<Instant>;

    /// Closes them all.
    fn clear(&mut self);

    /// Forgets them all without closing them: in a forked process they are the parent's, and so is what the runtime waits with.
    fn leak(&mut self);
}

/// The loop. Ends when the machine has stopped.
pub(super) struct Turns<H: Host, L: Links<H>> {
    host: H,
    shared: Arc<Shared<L::Engine>>,
    pub(super) links: L,
    /// The timer, and when it goes off.
    sleep: Option<(Instant, H::Sleep)>,
    batch: Batch,
    /// A handle's call was seen, and other tasks were let through first to add theirs.
    gathered: bool,
    /// Requests that the servers had at the end of the last turn.
    in_flight: usize,
    /// Tasks that were woken since the driver was.
    woken: usize,
}

/// What a turn of the loop found.
enum Turn {
    /// There is more to do.
    Busy,
    /// Nothing to do before the timer or the next wake-up.
    Idle(Option<Instant>),
    Stopped,
}

impl<H: Host, L: Links<H>> Turns<H, L> {
    pub(super) fn new(host: H, shared: Arc<Shared<L::Engine>>, links: L) -> Self {
        Self { host, shared, links, sleep: None, batch: Batch::default(), gathered: false, in_flight: 0, woken: 0 }
    }

    /// Answers the call of a handle. True if the driver should first let other tasks run: woken together, they have requests of their
    /// own, and all can leave in one write.
    fn gather(&mut self, cx: &Context<'_>) -> bool {
        // Whoever was woken before had its turn already.
        let gathered = self.gathered || self.batch.wakers() > 0 || (L::ALONE_AT_ONCE && self.woken == 1);
        let (called, old) = self.shared.drive(&mut self.batch, |core, _| {
            let called = core.called;
            if called && !gathered {
                return (true, None);
            }
            core.called = false;
            let same = core.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            (false, if same { None } else { core.waker.replace(cx.waker().clone()) })
        });
        drop(old);
        self.gathered = called;
        if !called {
            self.woken = 0;
        }
        called
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Turn {
        let Self { host, shared, batch, links, .. } = self;
        // Time first: after a pause, what has ended has ended, whatever the sockets still hold (requirement T2).
        shared.drive_timeout(batch);
        if links.do_duties(host, shared, batch) {
            return Turn::Stopped;
        }
        let busy = links.poll(host, shared, batch, cx);
        let of_links = links.next_deadline();
        let sleep = self.sleep.as_ref().map(|(until, _)| *until);
        let in_flight = &mut self.in_flight;
        self.shared.drive(&mut self.batch, |core, now| {
            *in_flight = core.engine.machine().in_flight();
            // A connection that was looked at may have been given something by one that was looked at after it.
            if busy || core.called || core.engine.needs_driver() {
                return Turn::Busy;
            }
            let mut wanted = soonest([core.next_deadline(), of_links]);
            if wanted.is_some_and(|deadline| deadline <= now) {
                return Turn::Busy;
            }
            if core.engine.machine().holds_any() {
                let latest = now + LONGEST_SLEEP;
                wanted = Some(wanted.map_or(latest, |deadline| deadline.min(latest)));
            }
            // A timer that goes off too early only costs a look at the clock; it is cheaper than a new one.
            core.armed = match (sleep, wanted) {
                (Some(armed), Some(wanted)) => armed.min(wanted),
                (Some(armed), None) => armed,
                (None, wanted) => wanted.unwrap_or(Instant::MAX),
            };
            Turn::Idle((core.armed < Instant::MAX).then_some(core.armed))
        })
    }

    /// Waits for `until`. True if it is time already.
    fn rest(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(until) = until else { return false };
        let (_, timer) = match &mut self.sleep {
            Some(sleep) if sleep.0 <= until => sleep,
            place @ (Some(_) | None) => {
                let timer = self.host.sleep(until.since(self.shared.now()));
                place.insert((until, timer))
            }
        };
        let over = Pin::new(timer).poll(cx).is_ready();
        if over {
            self.sleep = None;
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
        for _ in 0..TURNS {
            let turn = self.turn(cx);
            let most = self.in_flight.clamp(*WOKEN_AT_ONCE.start(), *WOKEN_AT_ONCE.end());
            self.woken += self.batch.wakers().min(most);
            if self.batch.run_some(most) {
                // The others after these have had their turn.
                cx.waker().wake_by_ref();
                return match turn {
                    Turn::Busy | Turn::Idle(_) => Poll::Pending,
                    Turn::Stopped => {
                        self.batch.run();
                        Poll::Ready(())
                    }
                };
            }
            match turn {
                Turn::Busy => {}
                Turn::Idle(until) if self.rest(until, cx) => {}
                Turn::Idle(_) => return Poll::Pending,
                Turn::Stopped => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<H: Host, L: Links<H>> Drop for Turns<H, L> {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            self.links.leak();
        } else {
            self.links.clear();
        }
        // Whoever was to be woken in a later turn is woken now: there is none.
        self.batch.run();
        self.shared.close(None);
    }
}

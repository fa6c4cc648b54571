//! The transport for a register: calls, polled by the driver.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use lock_proto::register::{self, Config, Output, Reply, Request};
use lock_proto::time::soonest;
use lock_proto::{CallId, ClientId, Instant, Machine};

use super::own::{OwnStore, not_sent, unknown};
use super::woken::{OneWaker, Woken};
use crate::client::Client;
use crate::clock::Clock as _;
use crate::connect::ConnectError;
use crate::engine::{Engine, Notification};
use crate::event_loop::{EventLoop, Links};
use crate::foreign::{foreign, foreign_value};
use crate::host::Host;
use crate::shared::{Batch, Shared};

/// How often the machine learns of the time of day. Between two reports it adds its own time.
const TIME_OF_DAY: Duration = Duration::from_secs(10);

/// A client on a store, and its loop.
type Started<H, S> = (Client, EventLoop<H, StoreCalls<H, S>>);

pub(super) fn start<H: Host, R, F, G>(
    host: H,
    config: Config,
    store: OwnStore<R, F, G>,
    name: Box<str>,
    id: ClientId,
    seed: u64,
) -> Result<Started<H, OwnStore<R, F, G>>, ConnectError>
where
    StoreCalls<H, OwnStore<R, F, G>>: Links<H, Engine = RegisterEngine>,
    OwnStore<R, F, G>: CallStore,
{
    let now = host.clock().now();
    let mut client = register::Client::new(now, config, id, seed)?;
    client.set_time_of_day(now, time_of_day());
    let shared = Shared::new(id, [name].into(), &host, RegisterEngine { client, commands: Vec::new() });
    let calls = StoreCalls {
        store: Some(store),
        tasks: BTreeMap::new(),
        numbers: 0,
        writing: BTreeSet::new(),
        watches: BTreeMap::new(),
        woken: Arc::default(),
        expiry: None,
        time_of_day_at: now,
        refused: Vec::new(),
        commands: Vec::new(),
        host: PhantomData,
    };
    Ok((Client::new(shared.clone()), EventLoop::new(host, shared, calls)))
}

fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The state machine, and the work that it has queued for the driver.
pub(crate) struct RegisterEngine {
    client: register::Client,
    /// Work for the driver. Never an event.
    commands: Vec<Output>,
}

impl Engine for RegisterEngine {
    fn machine(&self) -> &dyn Machine {
        &self.client
    }

    fn machine_mut(&mut self) -> &mut dyn Machine {
        &mut self.client
    }

    fn poll_notification(&mut self) -> Option<Notification> {
        loop {
            match self.client.poll_output()? {
                Output::Event { lock, event } => return Some(Notification::Lock(lock, event)),
                Output::Operation { id, event } => return Some(Notification::Operation(id, event)),
                output @ (Output::Send { .. }
                | Output::Watch { .. }
                | Output::Unwatch { .. }
                | Output::Stopped { .. }) => self.commands.push(output),
            }
        }
    }

    fn needs_driver(&mut self) -> bool {
        !self.commands.is_empty()
    }
}

/// A store that makes the requests.
pub(crate) trait CallStore {
    type Call: Future<Output = Reply>;
    type Change: Future<Output = ()>;

    fn call(&self, request: Request) -> Self::Call;

    fn change(&self, key: Bytes, seen: Option<register::Revision>) -> Self::Change;
}

impl<R, F: Future<Output = Reply>, G: Future<Output = ()>> CallStore for OwnStore<R, F, G> {
    type Call = F;
    type Change = G;

    fn call(&self, request: Request) -> F {
        (self.call)(Arc::clone(&self.store), request)
    }

    fn change(&self, key: Bytes, seen: Option<register::Revision>) -> G {
        (self.change)(Arc::clone(&self.store), key, seen)
    }
}

/// The calls in flight.
pub(crate) struct StoreCalls<H, S: CallStore> {
    /// `None` once the client has stopped.
    store: Option<S>,
    tasks: BTreeMap<u64, StoreTask<S>>,
    numbers: u64,
    /// The keys with a write in flight, perhaps one that the machine has given up.
    writing: BTreeSet<Bytes>,
    watches: BTreeMap<Bytes, u64>,
    woken: Arc<Woken>,
    /// When the first read is cancelled, or earlier.
    expiry: Option<Instant>,
    time_of_day_at: Instant,
    /// Calls that were not made, and their replies.
    refused: Vec<(CallId, Reply)>,
    commands: Vec<Output>,
    host: PhantomData<fn() -> H>,
}

struct StoreTask<S: CallStore> {
    purpose: TaskPurpose,
    work: Work<S>,
    one: Arc<OneWaker>,
    waker: Waker,
}

enum TaskPurpose {
    Read { call: CallId, until: Instant },
    // A write has no end but its own: dropped half-way, it could be made later, behind a newer one.
    // RF7
    Write { call: CallId, key: Bytes },
    Watch { key: Bytes },
}

enum Work<S: CallStore> {
    Call(Pin<Box<S::Call>>),
    Change(Pin<Box<S::Change>>),
}

/// The end of a task.
enum TaskEnd {
    Reply(Reply),
    Changed,
}

impl<S: CallStore> StoreTask<S> {
    /// Polls it. The code is foreign: a panic is its end.
    fn poll(&mut self) -> Poll<TaskEnd> {
        self.one.begin();
        let mut cx = Context::from_waker(&self.waker);
        match &mut self.work {
            Work::Call(call) => foreign_value(|| call.as_mut().poll(&mut cx))
                .unwrap_or_else(|| Poll::Ready(unknown("the store panicked")))
                .map(TaskEnd::Reply),
            Work::Change(change) => match foreign_value(|| change.as_mut().poll(&mut cx)) {
                Some(changed) => changed.map(|()| TaskEnd::Changed),
                // Polls have to do.
                None => Poll::Pending,
            },
        }
    }
}

impl<H, S: CallStore> StoreCalls<H, S> {
    fn spawn(&mut self, purpose: TaskPurpose, work: Work<S>) -> u64 {
        self.numbers += 1;
        let one = OneWaker::new(self.numbers, &self.woken);
        let waker = Waker::from(Arc::clone(&one));
        self.tasks.insert(self.numbers, StoreTask { purpose, work, one, waker });
        self.numbers
    }

    fn send(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        let Some(store) = &self.store else { return };
        let purpose = match &request {
            Request::Read { .. } => {
                let until = now + timeout;
                self.expiry = soonest([self.expiry, Some(until)]);
                TaskPurpose::Read { call, until }
            }
            Request::Write { key, .. } => {
                if !self.writing.insert(key.clone()) {
                    // Otherwise a store that hangs would collect writes without end.
                    // RF7
                    self.refused.push((call, not_sent("an earlier write has not ended")));
                    return;
                }
                TaskPurpose::Write { call, key: key.clone() }
            }
        };
        let work = Work::Call(Box::pin(store.call(request)));
        self.spawn(purpose, work);
    }

    fn watch(&mut self, key: Bytes, seen: Option<register::Revision>) {
        self.unwatch(&key);
        if let Some(store) = &self.store {
            let work = Work::Change(Box::pin(store.change(key.clone(), seen)));
            let number = self.spawn(TaskPurpose::Watch { key: key.clone() }, work);
            self.watches.insert(key, number);
        }
    }

    fn unwatch(&mut self, key: &Bytes) {
        if let Some(number) = self.watches.remove(key) {
            self.end(number);
        }
    }

    /// Drops a task, which is foreign code.
    fn end(&mut self, number: u64) -> Option<TaskPurpose> {
        let StoreTask { purpose, work, .. } = self.tasks.remove(&number)?;
        foreign(|| drop(work));
        match &purpose {
            TaskPurpose::Write { key, .. } => drop(self.writing.remove(key)),
            TaskPurpose::Watch { key } => drop(self.watches.remove(key)),
            TaskPurpose::Read { .. } => {}
        }
        Some(purpose)
    }

    /// Cancels the reads that the machine has given up.
    fn expire(&mut self, now: Instant) {
        if self.expiry.is_none_or(|expiry| now < expiry) {
            return;
        }
        let until = |task: &StoreTask<S>| match task.purpose {
            TaskPurpose::Read { until, .. } => Some(until),
            TaskPurpose::Write { .. } | TaskPurpose::Watch { .. } => None,
        };
        let expired = self.tasks.iter().filter(|(_, task)| until(task).is_some_and(|until| until <= now));
        for number in expired.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end(number);
        }
        self.expiry = self.tasks.values().filter_map(until).min();
    }
}

impl<H: Host, S: CallStore> Links<H> for StoreCalls<H, S> {
    type Engine = RegisterEngine;

    fn alone_at_once(&self) -> bool {
        true
    }

    fn do_queued(&mut self, _: &H, shared: &Shared<RegisterEngine>, batch: &mut Batch) -> bool {
        let mut commands = core::mem::take(&mut self.commands);
        let reported = &mut self.time_of_day_at;
        let now = shared.drive(batch, |core, now| {
            if now.since(*reported) >= TIME_OF_DAY {
                *reported = now;
                core.engine.client.set_time_of_day(now, time_of_day());
            }
            core::mem::swap(&mut core.engine.commands, &mut commands);
            now
        });
        let mut stopped = false;
        for command in commands.drain(..) {
            match command {
                Output::Send { call, request, timeout } => self.send(now, call, request, timeout),
                Output::Watch { key, seen } => self.watch(key, seen),
                Output::Unwatch { key } => self.unwatch(&key),
                Output::Stopped { unreleased } => {
                    stopped = true;
                    tracing::debug!(unreleased, "client stopped");
                    // A process that ends after the shutdown leaves nothing of the store half-way.
                    foreign(|| self.clear_all());
                    shared.close(Some(unreleased));
                }
                // Already delivered by `poll_notification`.
                Output::Event { .. } | Output::Operation { .. } => {}
            }
        }
        self.commands = commands;
        stopped
    }

    fn poll(&mut self, _: &H, shared: &Shared<RegisterEngine>, batch: &mut Batch, cx: &mut Context<'_>) -> bool {
        self.woken.set_driver(cx.waker());
        let mut replies = core::mem::take(&mut self.refused);
        let mut changes = Vec::new();
        for number in self.woken.take() {
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            let Poll::Ready(done) = task.poll() else { continue };
            match (self.end(number), done) {
                (Some(TaskPurpose::Read { call, .. } | TaskPurpose::Write { call, .. }), TaskEnd::Reply(reply)) => {
                    replies.push((call, reply));
                }
                (Some(TaskPurpose::Watch { key }), _) => changes.push(key),
                (Some(TaskPurpose::Read { .. } | TaskPurpose::Write { .. }) | None, _) => {}
            }
        }
        self.expire(shared.now());
        if replies.is_empty() && changes.is_empty() {
            return false;
        }
        shared.drive(batch, |core, now| {
            for (call, reply) in &replies {
                core.engine.client.handle_reply(now, *call, reply);
            }
            for key in &changes {
                core.engine.client.handle_changed(now, key);
            }
        });
        true
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.expiry
    }

    fn clear(&mut self) {
        self.clear_all();
    }

    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.tasks));
        core::mem::forget(self.store.take());
    }
}

impl<H, S: CallStore> StoreCalls<H, S> {
    fn clear_all(&mut self) {
        self.tasks.clear();
        self.writing.clear();
        self.watches.clear();
        self.expiry = None;
        self.store = None;
    }
}

impl<H, S: CallStore> fmt::Debug for StoreCalls<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCalls").field("in_flight", &self.tasks.len()).finish_non_exhaustive()
    }
}

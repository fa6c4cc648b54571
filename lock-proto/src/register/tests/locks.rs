//! One client by hand: what it sends, and what it makes of the replies.

use core::time::Duration;

use crate::lock::{Answer, Blocked, Expiry, Note};
use crate::register::{Client, Config, Entry, Output, Record, Reply, Request, Revision, Writer};
use crate::{
    Acquire, Backoff, CallId, ClientId, ErrorClass, Event, Failure, Fault, Grant, Instant, LockClient as _, LockId,
    Loss, Machine as _, Operation, OperationEvent, Release, Renew, ServerError, Wait,
};

pub(super) const TTL: Duration = Duration::from_secs(10);
/// The host's time of day at the start, in ms.
pub(super) const DAY: u64 = 1_764_288_000_000;

/// A client, and a register that holds what it was last told.
pub(super) struct RegisterDesk {
    pub(super) client: Client,
    pub(super) now: Instant,
    pub(super) register: Option<Entry>,
    revision: u64,
    /// Requests so far: reads and writes.
    made: (u32, u32),
}

impl RegisterDesk {
    pub(super) fn new() -> Self {
        Self::with(Config::new().poll(Backoff::fixed(Duration::from_secs(1))))
    }

    fn with(config: Config) -> Self {
        let now = Instant::from_millis(1_000_000);
        let mut client = Client::new(now, config, ClientId::from_bits(1), 7).unwrap();
        client.set_time_of_day(now, Duration::from_millis(DAY));
        Self { client, now, register: None, revision: 0, made: (0, 0) }
    }

    fn acquire(&mut self, wait: Wait) -> LockId {
        self.client.acquire(self.now, &Acquire::new("x").ttl(TTL).wait(wait)).unwrap()
    }

    /// Somebody else writes this record.
    pub(super) fn write(&mut self, record: Record) {
        self.revision += 1;
        self.register = Some(Entry::new(record, Revision::from(self.revision)));
    }

    pub(super) fn later(&mut self, by: Duration) {
        self.now = self.now + by;
        self.client.handle_timeout(self.now);
    }

    pub(super) fn next_request(&mut self) -> Option<(CallId, Request)> {
        match self.client.poll_output()? {
            Output::Send { call, request, .. } => Some((call, request)),
            Output::Watch { .. } | Output::Unwatch { .. } => self.next_request(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn reply(&mut self, call: CallId, reply: &Reply) {
        self.client.handle_reply(self.now, call, reply);
    }

    pub(super) fn execute(&mut self, request: Request) -> Reply {
        match request {
            Request::Read { .. } => {
                self.made.0 += 1;
                self.register.clone().map_or(Reply::Absent, Reply::Record)
            }
            Request::Write { record, expected, .. } => {
                self.made.1 += 1;
                let revision = |entry: &Entry| entry.revision.clone();
                if self.register.as_ref().map(revision) != expected.as_deref().map(revision) {
                    return Reply::Conflict;
                }
                self.write(record);
                Reply::Written(Revision::from(self.revision))
            }
        }
    }

    /// Executes requests until there is an event.
    pub(super) fn event(&mut self) -> Option<Event> {
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Send { call, request, .. } => {
                    let reply = self.execute(request);
                    self.reply(call, &reply);
                }
                Output::Event { event, .. } => return Some(event),
                _ => {}
            }
        }
        None
    }

    pub(super) fn granted(&mut self, lock: LockId) -> Grant {
        loop {
            match self.event() {
                Some(Event::Granted(grant)) => {
                    self.client.claim(self.now, lock).unwrap();
                    return grant;
                }
                Some(Event::Blocked(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn released(&mut self, lock: LockId) -> Option<Event> {
        self.client.release(self.now, lock).unwrap();
        self.event()
    }

    pub(super) fn record(&self) -> &Record {
        &self.register.as_ref().unwrap().record
    }
}

pub(super) fn others(held: bool) -> Record {
    Record {
        version: 7,
        writer: Writer { client: ClientId::from_bits(9), number: 3 },
        held,
        fence: DAY,
        ttl: TTL,
        label: "other".into(),
        value: bytes::Bytes::new(),
    }
}

pub(super) fn unknown() -> Reply {
    Reply::Unknown(Fault::TimedOut.into())
}

#[test]
fn release_is_answered_once_the_next_waiter_has_replaced_the_record() {
    // RG8, U1, H6
    let mut desk = RegisterDesk::new();
    let first = desk.acquire(Wait::Forever);
    desk.granted(first);
    let second = desk.acquire(Wait::Forever);
    // The process stood still, and the application releases before the timers have run.
    desk.now = desk.now + TTL * 3;
    desk.client.release(desk.now, first).unwrap();
    let mut told = (0, 0);
    while let Some(event) = desk.event() {
        match event {
            Event::Released(Release::Expired) => told.0 += 1,
            Event::Granted(_) => told.1 += 1,
            _ => {}
        }
    }
    assert_eq!(told, (1, 1));
    // The release does not go on to free the record of the second one, lost and not returned.
    desk.client.claim(desk.now, second).unwrap();
    desk.later(TTL * 2);
    while desk.event().is_some() {}
    assert!(desk.record().held);
}

#[test]
fn record_of_a_lost_hold_is_freed_without_a_read_that_may_be_stale() {
    // RG4, RG6
    let mut desk = RegisterDesk::new();
    let request = Acquire::new("x").ttl(TTL).renew(Renew::AtMost(TTL / 10));
    let lock = desk.client.acquire(desk.now, &request).unwrap();
    desk.granted(lock);
    desk.later(TTL / 10);
    assert_eq!(desk.event(), Some(Event::Lost(Loss::MaxHold)));
    // Another attempt has found it held.
    desk.acquire(Wait::Try);
    while desk.event().is_some() {}
    desk.client.release(desk.now, lock).unwrap();
    let (call, request) = desk.next_request().unwrap();
    assert!(matches!(&request, Request::Write { record, .. } if !record.held), "{request:?}");
    let reply = desk.execute(request);
    desk.reply(call, &reply);
    assert_eq!(desk.event(), Some(Event::Released(Release::Released)));
}

#[test]
fn waiter_that_was_too_slow_twice_tries_again_soon() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.write(others(false));
    desk.acquire(Wait::Forever);
    let mut waited = Duration::ZERO;
    for _ in 0..8 {
        let Some((call, request)) = desk.next_request() else {
            let at = desk.client.next_deadline().unwrap();
            waited += at.since(desk.now);
            desk.later(at.since(desk.now));
            continue;
        };
        let reply = if let Request::Write { .. } = request { Reply::Conflict } else { desk.execute(request) };
        desk.reply(call, &reply);
    }
    assert!(waited < Duration::from_millis(100), "{waited:?}");
}

/// Regression: the error said that the store had granted the lock.
#[test]
fn acquisition_that_always_comes_second_ends_as_busy() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.write(others(false));
    desk.acquire(Wait::For(Duration::from_secs(1)));
    let failed = loop {
        match desk.client.poll_output() {
            Some(Output::Event { event: failed @ Event::Failed(_), .. }) => break failed,
            Some(Output::Send { call, request: Request::Write { .. }, .. }) => desk.reply(call, &Reply::Conflict),
            Some(Output::Send { call, request, .. }) => {
                let reply = desk.execute(request);
                desk.reply(call, &reply);
            }
            Some(_) => {}
            None => {
                let at = desk.client.next_deadline().unwrap();
                desk.later(at.since(desk.now));
            }
        }
    };
    assert!(matches!(&failed, Event::Failed(Failure::TimedOut(report)) if report.is_busy()), "{failed:?}");
}

#[test]
fn records_grow_and_stay_when_free() {
    // RG0, RG5
    let mut desk = RegisterDesk::with(Config::new().label("host 1"));
    let lock = desk.acquire(Wait::Forever);
    let grant = desk.granted(lock);
    let first = desk.record().clone();
    assert_eq!((first.version, first.fence, first.ttl, &*first.label), (DAY, DAY, TTL, "host 1"));
    assert_eq!((grant.fence.unwrap().get(), grant.fence_ahead_ms), (DAY << 10, 0));
    assert_eq!(desk.released(lock), Some(Event::Released(Release::Released)));
    let free = desk.record().clone();
    assert_eq!((free.held, free.version, free.fence), (false, DAY + 1, DAY));
    assert!(free.writer.number > first.writer.number);
}

#[test]
fn own_key_costs_two_writes_a_cycle() {
    // RG3
    let mut desk = RegisterDesk::new();
    let mut fence = 0;
    for cycle in 0..3 {
        let lock = desk.acquire(Wait::Forever);
        let grant = desk.granted(lock);
        assert!(grant.fence.unwrap().get() > fence, "{cycle}");
        fence = grant.fence.unwrap().get();
        assert_eq!(desk.released(lock), Some(Event::Released(Release::Released)));
        assert!(desk.client.is_idle());
    }
    assert_eq!(desk.made, (1, 6), "only the first cycle reads");
}

#[test]
fn busy_poll_is_one_read() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.write(others(true));
    desk.acquire(Wait::Forever);
    for polls in 1..=5 {
        while desk.event().is_some() {}
        assert_eq!(desk.made, (polls, 0));
        desk.later(Duration::from_secs(1));
    }
}

#[test]
fn watch_spares_no_poll_and_adds_no_loop() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.write(others(true));
    let lock = desk.acquire(Wait::Forever);
    let mut watches = 0;
    for _ in 0..5 {
        while let Some(output) = desk.client.poll_output() {
            match output {
                Output::Send { call, request, .. } => {
                    let reply = desk.execute(request);
                    desk.reply(call, &reply);
                }
                Output::Watch { key, seen } => {
                    assert_eq!((&key[..], seen), (&b"x"[..], Some(Revision::from(1))));
                    watches += 1;
                    // A store that reports at once, though nothing has changed.
                    desk.client.handle_changed(desk.now, b"x");
                }
                _ => {}
            }
        }
    }
    assert_eq!((watches, desk.made), (1, (2, 0)));
    // The record is released: a report gets the lock at once.
    desk.later(Duration::from_secs(1));
    while desk.event().is_some() {}
    desk.write(Record { version: 8, ..others(false) });
    desk.client.handle_changed(desk.now, b"x");
    desk.granted(lock);
}

#[test]
fn record_of_dead_holder_is_taken_after_its_ttl() {
    // RG1
    let mut desk = RegisterDesk::new();
    desk.write(others(true));
    desk.client.keep_notes(2);
    let lock = desk.acquire(Wait::Forever);
    while desk.event().is_some() {}
    let free_in = Duration::from_millis(10_000 + 102);
    let answers = [Answer::Taken(Expiry::UnlessRenewed(free_in))].into();
    assert_eq!(desk.client.poll_note(), Some(Note::Waiting { lock, why: Blocked::Held, answers }));
    for _ in 0..10 {
        desk.later(Duration::from_secs(1));
        assert!(desk.event().is_none());
    }
    // An edit of the store changes the revision, and not the record.
    let record = desk.record().clone();
    desk.write(record);
    desk.later(Duration::from_millis(102 + 10));
    let grant = desk.granted(lock);
    assert!(grant.fence.unwrap().get() > DAY << 10);
}

#[test]
fn age_counts_less_a_margin_unless_it_is_switched_off() {
    // RG1
    for (config, age, taken) in [
        (Config::new(), 11_200, true),
        (Config::new(), 11_000, false),
        (Config::new().clock_margin(Duration::ZERO), 10_200, true),
        (Config::new().store_clock(false), 99_000, false),
    ] {
        let mut desk = RegisterDesk::with(config);
        let entry = Entry::new(others(true), Revision::from(1)).age(Duration::from_millis(age));
        (desk.register, desk.revision) = (Some(entry), 1);
        desk.acquire(Wait::Try);
        let got = matches!(desk.event(), Some(Event::Granted(_)));
        assert_eq!(got, taken, "{age}");
    }
}

/// A machine that starts after a crash: its clock counts from then, and the record is of before.
#[test]
fn age_counts_before_the_origin_of_the_clock() {
    // RG1
    for age in [Duration::from_secs(12), Duration::MAX] {
        let mut desk = RegisterDesk::new();
        desk.now = Instant::ZERO + Duration::from_secs(5);
        let entry = Entry::new(others(true), Revision::from(1)).age(age);
        (desk.register, desk.revision) = (Some(entry), 1);
        desk.acquire(Wait::Try);
        assert!(matches!(desk.event(), Some(Event::Granted(_))), "{age:?}");
    }
}

#[test]
fn observation_outlives_acquisition() {
    // RG1
    let mut desk = RegisterDesk::new();
    desk.write(others(true));
    desk.acquire(Wait::Try);
    assert!(matches!(desk.event(), Some(Event::Failed(Failure::TimedOut(report))) if report.is_busy()));
    desk.later(Duration::from_secs(11));
    desk.acquire(Wait::Try);
    assert!(matches!(desk.event(), Some(Event::Granted(_))));
}

#[test]
fn unknown_take_is_freed_with_the_same_expectation() {
    // RG4
    let mut desk = RegisterDesk::new();
    desk.write(others(false));
    let lock = desk.acquire(Wait::Forever);
    let (call, request) = desk.next_request().unwrap();
    let reply = desk.execute(request);
    desk.reply(call, &reply);
    let (call, take) = desk.next_request().unwrap();
    desk.reply(call, &unknown());
    desk.client.abandon(desk.now, lock);
    let outputs = core::iter::from_fn(|| desk.client.poll_output());
    let sent = outputs.filter_map(|output| match output {
        Output::Send { call, request, .. } => Some((call, request)),
        _ => None,
    });
    let (call, free) = sent.last().unwrap();
    let (Request::Write { expected: before, .. }, Request::Write { record, expected, .. }) = (&take, &free) else {
        panic!("{take:?}, {free:?}")
    };
    assert!(!record.held && expected == before);
    // The first one was applied after all.
    desk.execute(take);
    let reply = desk.execute(free);
    assert_eq!(reply, Reply::Conflict);
    desk.reply(call, &reply);
    assert_eq!(desk.event(), None);
    assert!(!desk.record().held && desk.client.is_idle());
}

#[test]
fn applied_renewal_counts_from_its_departure() {
    // RG4
    let mut desk = RegisterDesk::new();
    let lock = desk.acquire(Wait::Forever);
    desk.granted(lock);
    desk.later(Duration::from_millis(3_400));
    let departed = desk.now;
    let (call, renewal) = desk.next_request().unwrap();
    desk.execute(renewal);
    desk.reply(call, &unknown());
    assert_eq!(desk.client.valid_until(lock), Some(Instant::from_millis(1_000_000 + 9_898)));
    desk.later(Duration::from_millis(900));
    // The next one conflicts, and the read shows the first.
    assert!(matches!(desk.event(), Some(Event::Renewed { valid_until })
        if valid_until == departed + Duration::from_millis(9_898)));
    assert!(matches!(desk.event(), Some(Event::Renewed { valid_until })
        if valid_until == desk.now + Duration::from_millis(9_898)));
}

#[test]
fn other_record_is_loss_and_absent_one_is_gone() {
    // RG4, H6
    for (record, loss) in [(Some(Record { version: DAY + 5, ..others(true) }), Loss::Taken), (None, Loss::Gone)] {
        let mut desk = RegisterDesk::new();
        let lock = desk.acquire(Wait::Forever);
        desk.granted(lock);
        let before = record.is_some();
        match record {
            Some(record) => desk.write(record),
            None => desk.register = None,
        }
        desk.later(Duration::from_millis(3_400));
        assert_eq!(desk.event(), Some(Event::Lost(loss)));
        let release = if before { Release::Taken } else { Release::Expired };
        assert_eq!(desk.released(lock), Some(Event::Released(release)));
        assert!(desk.client.is_idle());
    }
}

#[test]
fn lost_hold_keeps_its_record_until_its_guard_returns() {
    // RG8, H6
    let mut desk = RegisterDesk::new();
    let request = Acquire::new("x").ttl(TTL).renew(Renew::AtMost(Duration::from_secs(1)));
    let lock = desk.client.acquire(desk.now, &request).unwrap();
    desk.granted(lock);
    let next = desk.acquire(Wait::Forever);
    desk.later(Duration::from_secs(1));
    let mut lost = false;
    while let Some(event) = desk.event() {
        lost |= event == Event::Lost(Loss::MaxHold);
    }
    assert!(lost && desk.record().held, "the record stays");
    assert_eq!(desk.client.valid_until(next), None);
    desk.client.release(desk.now, lock).unwrap();
    assert_eq!(desk.event(), Some(Event::Released(Release::Released)));
    desk.later(Duration::from_secs(1));
    desk.granted(next);
}

#[test]
fn fence_ahead_of_clock_is_reported() {
    // RG5
    for (ahead, reported) in [(59_999, 0), (90_000, 90_001)] {
        let mut desk = RegisterDesk::new();
        desk.write(Record { fence: DAY + ahead, ..others(false) });
        let lock = desk.acquire(Wait::Forever);
        let grant = desk.granted(lock);
        assert_eq!(grant.fence.unwrap().get(), (DAY + ahead + 1) << 10);
        assert_eq!(grant.fence_ahead_ms, reported);
    }
}

#[test]
fn hand_over_counts_in_fence_and_costs_no_request() {
    // RG5, RG8
    let mut desk = RegisterDesk::new();
    let lock = desk.acquire(Wait::Forever);
    let first = desk.granted(lock);
    let next = desk.acquire(Wait::Forever);
    assert!(matches!(desk.event(), Some(Event::Blocked(_))));
    let made = desk.made;
    assert_eq!(desk.released(lock), Some(Event::Released(Release::Released)));
    let second = desk.granted(next);
    assert_eq!(second.fence.unwrap().get(), first.fence.unwrap().get() + 1);
    assert_eq!(desk.made, made);
}

#[test]
fn refusal_fails_at_once_and_foreign_content_is_not_overwritten() {
    // RG0
    for (class, refused) in [(ErrorClass::Refused, true), (ErrorClass::KeyInUse, false)] {
        let mut desk = RegisterDesk::new();
        desk.acquire(Wait::Forever);
        let (call, _) = desk.next_request().unwrap();
        desk.reply(call, &Reply::Rejected(ServerError { class, text: "no".into() }));
        match desk.event() {
            Some(Event::Failed(Failure::Refused(_))) => assert!(refused),
            Some(Event::Failed(Failure::KeyInUse(_))) => assert!(!refused),
            other => panic!("{other:?}"),
        }
        assert!(desk.client.is_idle());
    }
}

#[test]
fn silent_store_stops_no_shutdown_and_leaves_no_machine() {
    // RG4
    let mut desk = RegisterDesk::new();
    let lock = desk.acquire(Wait::Forever);
    desk.granted(lock);
    desk.client.release(desk.now, lock).unwrap();
    for _ in 0..30 {
        desk.later(Duration::from_millis(500));
    }
    let released = core::iter::from_fn(|| desk.client.poll_output())
        .any(|output| matches!(output, Output::Event { event: Event::Released(Release::Unknown), .. }));
    assert!(released && desk.client.is_idle(), "others may take it by now");
}

#[test]
fn refused_release_is_unknown_at_once() {
    // U1, N23
    let mut desk = RegisterDesk::new();
    desk.client.keep_notes(2);
    let lock = desk.acquire(Wait::Forever);
    desk.granted(lock);
    desk.client.release(desk.now, lock).unwrap();
    let (call, _) = desk.next_request().unwrap();
    desk.reply(call, &Reply::Rejected(ServerError { class: ErrorClass::Refused, text: "read-only".into() }));
    assert_eq!(desk.event(), Some(Event::Released(Release::Unknown)));
    let note = desk.client.poll_note();
    assert!(matches!(&note, Some(Note::NotReleased { answers, .. }) if answers[0].is_failure()), "{note:?}");
    assert!(desk.client.is_idle());
}

/// What a store returns is not trusted.
#[test]
fn records_of_any_numbers_are_harmless() {
    // RG0
    let record = |held| Record { version: u64::MAX, fence: u64::MAX, ttl: Duration::MAX, ..others(held) };
    let mut desk = RegisterDesk::new();
    desk.write(record(true));
    let lock = desk.acquire(Wait::Forever);
    while desk.event().is_some() {}
    desk.later(Duration::from_secs(1_000_000));
    while desk.event().is_some() {}
    desk.write(record(false));
    desk.later(Duration::from_secs(1));
    desk.granted(lock);
    assert_eq!(desk.released(lock), Some(Event::Released(Release::Released)));
}

#[test]
fn memory_is_bounded() {
    // RG1
    let mut desk = RegisterDesk::new();
    for n in 0..1_100 {
        desk.register = None;
        let lock = desk.client.acquire(desk.now, &Acquire::new(std::format!("{n}"))).unwrap();
        desk.granted(lock);
        desk.released(lock);
    }
    let before = desk.made.0;
    for n in [1_099, 0] {
        let lock = desk.client.acquire(desk.now, &Acquire::new(std::format!("{n}"))).unwrap();
        desk.granted(lock);
        desk.released(lock);
    }
    assert_eq!(desk.made.0 - before, 1, "the oldest was forgotten");
}

#[test]
fn ping_reads_one_key() {
    let mut desk = RegisterDesk::new();
    let id = desk.client.start(desk.now, Operation::Ping).unwrap();
    let (call, request) = desk.next_request().unwrap();
    assert!(matches!(request, Request::Read { key } if &key[..] == b"lock-proto:ping"));
    desk.reply(call, &Reply::Absent);
    assert_eq!(desk.client.poll_output(), Some(Output::Operation { id, event: OperationEvent::Done }));
}

#[test]
fn many_conflicts_do_not_spin() {
    // RG6
    let mut desk = RegisterDesk::new();
    desk.acquire(Wait::Forever);
    let mut requests = 0;
    while let Some((call, request)) = desk.next_request() {
        requests += 1;
        assert!(requests < 20, "it pauses");
        let reply = if matches!(request, Request::Read { .. }) { Reply::Absent } else { Reply::Conflict };
        desk.reply(call, &reply);
    }
}

//! Elections: the value, its changes, and who observes it.

use core::time::Duration;

use bytes::Bytes;

use super::locks::{DAY, RegisterDesk, TTL, others, unknown};
use crate::lock::Elections as _;
use crate::register::{Output, Record, Reply, Request};
use crate::{Acquire, Event, Failure, LockClient as _, Operation, OperationEvent, Release};

fn request() -> Acquire {
    Acquire::new("x").ttl(TTL)
}

impl RegisterDesk {
    /// Executes requests until there is an event of a query.
    fn observed(&mut self) -> Option<OperationEvent> {
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Send { call, request, .. } => {
                    let reply = self.execute(request);
                    self.reply(call, &reply);
                }
                Output::Operation { event, .. } => return Some(event),
                _ => {}
            }
        }
        None
    }

    fn value(&mut self) -> Option<Bytes> {
        match self.observed() {
            Some(OperationEvent::Leader(leader)) => Some(leader.value),
            Some(OperationEvent::NoLeader) => None,
            other => panic!("{other:?}"),
        }
    }
}

fn value(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn watch_goes_on_for_the_waiter_when_an_observer_leaves_and_ends_with_the_last() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.write(others(true));
    let lock = desk.client.acquire(desk.now, &request()).unwrap();
    while desk.event().is_some() {}
    let observer = desk.client.start(desk.now, Operation::Observe("x".into())).unwrap();
    let query = desk.client.start(desk.now, Operation::Leader("x".into())).unwrap();
    while desk.observed().is_some() {}
    let ends = |desk: &mut RegisterDesk| {
        core::iter::from_fn(|| desk.client.poll_output()).any(|o| matches!(o, Output::Unwatch { .. }))
    };
    desk.client.cancel(desk.now, observer);
    assert!(!ends(&mut desk));
    let observer = desk.client.start(desk.now, Operation::Observe("x".into())).unwrap();
    while desk.observed().is_some() {}
    desk.client.abandon(desk.now, lock);
    assert!(!ends(&mut desk));
    // A query is no observer.
    let other = desk.client.start(desk.now, Operation::Leader("x".into())).unwrap();
    desk.client.cancel(desk.now, observer);
    assert!(ends(&mut desk));
    desk.client.cancel(desk.now, other);
    desk.client.cancel(desk.now, query);
}

#[test]
fn value_is_in_record_and_version_is_revision() {
    // RG8
    let mut desk = RegisterDesk::new();
    let lock = desk.client.campaign(desk.now, &request(), value("a")).unwrap();
    desk.granted(lock);
    assert_eq!(desk.record().value, value("a"));
    desk.client.proclaim(desk.now, lock, value("b")).unwrap();
    let revision = DAY as i64 + 1;
    assert!(matches!(desk.event(), Some(Event::Proclaimed { revision: at }) if at == revision));
    assert_eq!(desk.record().value, value("b"));
    assert_eq!(desk.released(lock), Some(Event::Released(Release::Released)));
    assert_eq!(desk.record().value, value(""));
}

#[test]
fn candidate_of_same_client_is_elected_with_its_own_value() {
    // RG8
    let mut desk = RegisterDesk::new();
    let first = desk.client.campaign(desk.now, &request(), value("a")).unwrap();
    desk.granted(first);
    let second = desk.client.campaign(desk.now, &request(), value("b")).unwrap();
    assert!(matches!(desk.event(), Some(Event::Blocked(_))));
    assert_eq!(desk.released(first), Some(Event::Released(Release::Released)));
    desk.granted(second);
    assert_eq!(desk.record().value, value("b"));
}

#[test]
fn proclamation_fails_in_time_and_value_is_still_tried() {
    // RG8
    let mut desk = RegisterDesk::new();
    let lock = desk.client.campaign(desk.now, &request(), value("a")).unwrap();
    desk.granted(lock);
    desk.client.proclaim(desk.now, lock, value("b")).unwrap();
    let mut failed = 0;
    for _ in 0..30 {
        while let Some(output) = desk.client.poll_output() {
            match output {
                Output::Send { call, .. } => desk.reply(call, &unknown()),
                Output::Event { event: Event::ProclaimFailed(_), .. } => failed += 1,
                _ => {}
            }
        }
        desk.later(Duration::from_millis(100));
    }
    assert_eq!(failed, 1);
    desk.later(Duration::from_secs(3));
    while desk.event().is_some() {}
    assert_eq!(desk.record().value, value("b"));
}

#[test]
fn leader_is_read_once() {
    // RG8
    let mut desk = RegisterDesk::new();
    desk.client.start(desk.now, Operation::Leader("x".into())).unwrap();
    assert_eq!(desk.value(), None);
    desk.write(Record { value: value("v"), ..others(true) });
    desk.client.start(desk.now, Operation::Leader("x".into())).unwrap();
    assert_eq!(desk.value(), Some(value("v")));
    assert!(desk.client.poll_output().is_none());
    desk.client.start(desk.now, Operation::Leader("x".into())).unwrap();
    desk.next_request().unwrap();
    desk.later(Duration::from_secs(2));
    let failed = core::iter::from_fn(|| desk.client.poll_output())
        .any(|output| matches!(output, Output::Operation { event: OperationEvent::Failed(Failure::TimedOut(_)), .. }));
    assert!(failed);
}

#[test]
fn observer_sees_changes_but_no_renewals_and_end_of_dead_leader() {
    // RG7, RG8
    let mut desk = RegisterDesk::new();
    let query = desk.client.start(desk.now, Operation::Observe("x".into())).unwrap();
    assert_eq!(desk.value(), None);
    desk.write(Record { value: value("v"), ..others(true) });
    desk.client.handle_changed(desk.now, b"x");
    assert_eq!(desk.value(), Some(value("v")));
    desk.write(Record { version: 8, value: value("v"), ..others(true) });
    desk.client.handle_changed(desk.now, b"x");
    assert_eq!(desk.observed(), None, "a renewal");
    desk.write(Record { version: 9, value: value("w"), ..others(true) });
    desk.later(Duration::from_secs(1));
    assert_eq!(desk.value(), Some(value("w")));
    // Nobody renews it.
    for _ in 0..10 {
        desk.later(Duration::from_secs(1));
        assert_eq!(desk.observed(), None);
    }
    desk.later(Duration::from_millis(110));
    assert_eq!(desk.value(), None);
    // The store fails, and works again.
    desk.later(Duration::from_secs(1));
    let (call, read) = desk.next_request().unwrap();
    assert!(matches!(read, Request::Read { .. }));
    desk.reply(call, &unknown());
    assert_eq!(desk.observed(), Some(OperationEvent::Disconnected));
    desk.later(Duration::from_secs(1));
    assert_eq!(desk.value(), None);
    desk.client.cancel(desk.now, query);
    desk.later(Duration::from_secs(5));
    assert!(desk.next_request().is_none());
}

#[test]
fn store_that_reports_at_once_causes_no_loop() {
    // RG7
    let mut desk = RegisterDesk::new();
    desk.client.start(desk.now, Operation::Observe("x".into())).unwrap();
    let mut reads = 0;
    while let Some(output) = desk.client.poll_output() {
        match output {
            Output::Send { call, .. } => {
                reads += 1;
                assert!(reads < 9);
                desk.reply(call, &Reply::Absent);
            }
            Output::Watch { .. } => desk.client.handle_changed(desk.now, b"x"),
            _ => {}
        }
    }
    assert_eq!(reads, 2);
}

#[test]
fn shutdown_ends_queries() {
    let mut desk = RegisterDesk::new();
    desk.client.start(desk.now, Operation::Observe("x".into())).unwrap();
    desk.client.shutdown(desk.now, Duration::from_secs(1));
    let ended = core::iter::from_fn(|| desk.client.poll_output())
        .any(|output| matches!(output, Output::Operation { event: OperationEvent::Failed(Failure::ShuttingDown), .. }));
    assert!(ended);
}

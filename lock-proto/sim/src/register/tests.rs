#![allow(clippy::unwrap_used, reason = "tests")]

use alloc::boxed::Box;

use lock_proto::ClientId;
use lock_proto::register::Writer;

use super::*;

const KEY: Bytes = Bytes::from_static(b"a");

fn record(version: u64, held: bool) -> Record {
    let writer = Writer { client: ClientId::from_bits(1), number: version };
    let ttl = Duration::from_secs(1);
    Record { version, writer, held, fence: version, ttl, label: "".into(), value: Bytes::new() }
}

fn read(register: &mut SimRegister, at: u64) -> Option<Entry> {
    match register.execute(Instant::from_millis(at), &Request::Read { key: KEY }) {
        (Reply::Record(entry), false) => Some(entry),
        (reply, _) => {
            assert_eq!(reply, Reply::Absent);
            None
        }
    }
}

fn write(register: &mut SimRegister, at: u64, record: Record, expected: Option<Entry>) -> Reply {
    let request = Request::Write { key: KEY, record, expected: expected.map(Box::new) };
    let (reply, wrote) = register.execute(Instant::from_millis(at), &request);
    assert_eq!(wrote, matches!(reply, Reply::Written(_)));
    reply
}

#[test]
fn write_succeeds_only_on_the_expected_revision() {
    // S1, S16
    for revisions in [Revisions::Counted, Revisions::Content, Revisions::VersionAndWriter] {
        let config = RegisterConfig { revisions, ..RegisterConfig::default() };
        let mut register = SimRegister::new(config, 1);
        assert_eq!(read(&mut register, 0), None);
        assert!(matches!(write(&mut register, 1, record(1, true), None), Reply::Written(_)));
        assert_eq!(write(&mut register, 2, record(2, true), None), Reply::Conflict);
        let first = read(&mut register, 3).unwrap();
        assert_eq!((&first.record, first.age), (&record(1, true), Some(Duration::from_millis(2))));
        assert!(matches!(write(&mut register, 4, record(2, false), Some(first.clone())), Reply::Written(_)));
        assert_eq!(write(&mut register, 5, record(3, true), Some(first)), Reply::Conflict);
        register.sweep(Instant::from_millis(6), Duration::from_millis(3));
        assert!(read(&mut register, 7).is_some());
        register.sweep(Instant::from_millis(7), Duration::from_millis(3));
        assert_eq!(read(&mut register, 8), None);
    }
}

#[test]
fn reads_are_behind_and_revisions_repeat_after_a_restore() {
    // S1, S16
    let mut register = SimRegister::new(RegisterConfig::default(), 1);
    write(&mut register, 1, record(1, true), None);
    let first = read(&mut register, 1).unwrap();
    register.back_up();
    write(&mut register, 1_000, record(2, true), Some(first.clone()));
    let second = read(&mut register, 1_000).unwrap();
    register.set_lag(Duration::from_secs(1));
    let shown: Vec<u64> = (0..50).map(|_| read(&mut register, 1_500).unwrap().record.version).collect();
    assert!(shown.contains(&1) && shown.contains(&2), "{shown:?}");
    register.set_lag(Duration::ZERO);
    register.restore();
    assert_eq!(read(&mut register, 2_000).unwrap().record, first.record);
    write(&mut register, 2_000, record(3, true), Some(first));
    assert_eq!(read(&mut register, 2_000).unwrap().revision, second.revision);
    // Set back, the clock shows no age.
    register.set_clock(-5_000);
    assert_eq!(read(&mut register, 3_000).unwrap().age, Some(Duration::ZERO));
    register.set_clock(500);
    assert_eq!(read(&mut register, 3_000).unwrap().age, Some(Duration::from_millis(1_500)));
}

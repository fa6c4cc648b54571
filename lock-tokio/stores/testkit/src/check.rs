//! What every store with compare-and-set does.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lock_driver::register::{Register, RegisterError};
use lock_proto::ClientId;
use lock_proto::register::{Entry, Record, Revision, Writer};

/// How long a store may take for anything here.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a store may lose when it rounds an age.
const ROUNDING: Duration = Duration::from_millis(1);
/// The longest value of a record.
const MAX_VALUE: usize = 1_000_000;
/// How far a check reads to see that an age grows.
const SOME_AGE: Duration = Duration::from_millis(50);

/// What a store has beyond compare-and-set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits {
    /// It tells how old a record is.
    pub age: bool,
    /// It tells waiters when a record changes.
    pub changed: bool,
}

/// Checks a store through two of its clients, on an empty store.
///
/// `plant` does what no [`Register`] does: it puts bytes under a key, or removes the key.
///
/// # Panics
///
/// If the store breaks a rule.
pub async fn check_register<R: Register>(
    one: &R,
    other: &R,
    traits: Traits,
    plant: impl AsyncFn(&[u8], Option<&[u8]>),
) {
    record_is_created_once_and_updated_as_expected(one, other).await;
    any_key_and_value_survives(one, other).await;
    record_that_was_deleted_and_made_again_is_another(one, other, &plant).await;
    unknown_format_is_refused_and_kept(one, &plant).await;
    one_of_two_writers_wins(one, other).await;
    age_is_never_too_long(one, other, traits.age).await;
    if traits.changed {
        release_is_told(one, other).await;
    }
}

/// A record of the client with this number.
pub fn record(client: u128, number: u64) -> Record {
    Record {
        version: 1_764_288_000_000 + number,
        writer: Writer { client: ClientId::from_bits(client), number },
        held: true,
        fence: 1_764_288_000_000,
        ttl: Duration::from_secs(10),
        label: "host-1 4711".into(),
        value: Bytes::new(),
    }
}

/// Reads a record that is there.
///
/// # Panics
///
/// If it is not.
pub async fn read<R: Register>(register: &R, key: &[u8]) -> Entry {
    let entry = register.read(key).await.unwrap_or_else(|e| panic!("{}: {e}", key.escape_ascii()));
    entry.unwrap_or_else(|| panic!("{}: it is absent", key.escape_ascii()))
}

/// Writes a record.
///
/// # Panics
///
/// If the store does not.
pub async fn write<R: Register>(register: &R, key: &[u8], record: &Record, expected: Option<&Entry>) -> Revision {
    register.write(key, record, expected).await.unwrap_or_else(|e| panic!("{}: {e}", key.escape_ascii()))
}

/// Runs both at once.
pub async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    poll_fn(|cx| {
        if done_a.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(cx)
        {
            done_a = Some(done);
        }
        if done_b.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(cx)
        {
            done_b = Some(done);
        }
        match (done_a.take(), done_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (done_a, done_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

async fn conflicts<R: Register>(register: &R, key: &[u8], record: &Record, expected: Option<&Entry>) {
    let result = in_time("a write", register.write(key, record, expected)).await;
    assert_eq!(result, Err(RegisterError::Conflict), "{}: expected {expected:?}", key.escape_ascii());
}

async fn record_is_created_once_and_updated_as_expected<R: Register>(one: &R, other: &R) {
    let key = b"check/life";
    assert_eq!(in_time("a read", one.read(key)).await, Ok(None), "nothing is there");
    let stranger = Entry::new(record(1, 1), Revision::new("1"));
    conflicts(one, key, &record(1, 2), Some(&stranger)).await;
    assert_eq!(one.read(key).await, Ok(None), "a write that expects a record makes none");

    let first = record(1, 1);
    let revision = write(one, key, &first, None).await;
    let entry = read(other, key).await;
    assert_eq!((&entry.record, &entry.revision), (&first, &revision));
    conflicts(other, key, &record(2, 1), None).await;
    conflicts(one, key, &record(1, 2), None).await;
    assert_eq!(read(one, key).await.record, first, "a conflict changes nothing");

    let second = Record { held: false, ..record(2, 2) };
    let revision = write(other, key, &second, Some(&entry)).await;
    assert_ne!(revision, entry.revision, "each write has its own revision");
    conflicts(one, key, &record(1, 3), Some(&entry)).await;
    let entry = read(one, key).await;
    assert_eq!((&entry.record, &entry.revision), (&second, &revision));

    // Whoever knows the revision of its own write does not read first.
    let third = record(2, 3);
    let own = Entry::new(second, revision);
    let revision = write(other, key, &third, Some(&own)).await;
    let own = Entry::new(third, revision);
    write(other, key, &record(2, 4), Some(&own)).await;
    assert_eq!(read(one, key).await.record, record(2, 4));
}

async fn any_key_and_value_survives<R: Register>(one: &R, other: &R) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let keys: [&[u8]; 14] = [
        b"k",
        b"K",
        b"k\0",
        b"\0",
        b"\xff\xfe",
        b"a'b\"c`d",
        b"%_\\",
        b"../up",
        b"/",
        b"a//b/",
        b"line\nend",
        "schlüssel ☂".as_bytes(),
        &every_byte,
        &[b'x'; 1024],
    ];
    for (number, key) in (1..).zip(keys) {
        write(one, key, &record(1, number), None).await;
    }
    for (number, key) in (1..).zip(keys) {
        assert_eq!(read(other, key).await.record, record(1, number), "{}", key.escape_ascii());
    }
    let long = Bytes::from([every_byte.as_slice(); MAX_VALUE / 256 + 1].concat()).slice(..MAX_VALUE);
    let values = [Bytes::new(), Bytes::from_static(b"a\n\n\0'\\\xff"), long, Bytes::new()];
    let key = b"check/value";
    let mut expected = None;
    for (number, value) in (1..).zip(values) {
        let written = Record { value, ..record(1, number) };
        write(one, key, &written, expected.as_ref()).await;
        let entry = read(other, key).await;
        assert!(entry.record == written, "a value of {} bytes comes back as it was", written.value.len());
        expected = Some(entry);
    }
    let writer = Writer { client: ClientId::from_bits(u128::MAX), number: u64::MAX };
    let huge = Record { version: i64::MAX as u64, writer, fence: u64::MAX >> 11, ..record(1, 1) };
    write(one, b"check/huge", &huge, None).await;
    assert_eq!(read(other, b"check/huge").await.record, huge);
}

/// A store whose revisions may repeat compares the writer, too.
async fn record_that_was_deleted_and_made_again_is_another<R: Register>(
    one: &R,
    other: &R,
    plant: &impl AsyncFn(&[u8], Option<&[u8]>),
) {
    let key = b"check/again";
    write(one, key, &record(1, 1), None).await;
    let entry = read(one, key).await;
    plant(key, None).await;
    assert_eq!(other.read(key).await, Ok(None));
    conflicts(one, key, &record(1, 2), Some(&entry)).await;
    write(other, key, &record(2, 1), None).await;
    let again = read(one, key).await;
    assert_eq!(again.record, record(2, 1), "with the same version");
    assert_ne!(again.revision, entry.revision);
    conflicts(one, key, &record(1, 2), Some(&entry)).await;
    assert_eq!(read(other, key).await.record, record(2, 1));
}

async fn unknown_format_is_refused_and_kept<R: Register>(one: &R, plant: &impl AsyncFn(&[u8], Option<&[u8]>)) {
    let key = b"check/format";
    write(one, key, &record(1, 1), None).await;
    let entry = read(one, key).await;
    for planted in [&b"lock-record 2\nversion 1\n"[..], b"", b"something else"] {
        plant(key, None).await;
        plant(key, Some(planted)).await;
        for _ in 0..2 {
            let refused = one.read(key).await;
            assert!(matches!(refused, Err(RegisterError::Refused(_))), "{}: {refused:?}", planted.escape_ascii());
            for expected in [None, Some(&entry)] {
                let result = one.write(key, &record(1, 2), expected).await;
                let is_kept = matches!(result, Err(RegisterError::Conflict | RegisterError::Refused(_)));
                assert!(is_kept, "{}: {result:?}", planted.escape_ascii());
            }
        }
    }
    plant(key, None).await;
}

async fn one_of_two_writers_wins<R: Register>(one: &R, other: &R) {
    let key = b"check/race";
    let mut expected: Option<Entry> = None;
    for number in 1..=50 {
        let (ours, theirs) = (record(1, number), record(2, number));
        let writes = both(one.write(key, &ours, expected.as_ref()), other.write(key, &theirs, expected.as_ref()));
        let (a, b) = in_time("two writes", writes).await;
        let entry = read(one, key).await;
        let (winner, lost) = match (&a, &b) {
            (Ok(_), lost) => (ours, lost),
            (lost, Ok(_)) => (theirs, lost),
            _ => panic!("one of two writers wins: {a:?} and {b:?}"),
        };
        let is_loss = matches!(lost, Err(RegisterError::Conflict | RegisterError::NotSent(_)));
        assert!(is_loss, "and the other does not: {a:?} and {b:?}");
        assert_eq!(entry.record, winner);
        expected = Some(entry);
    }
}

async fn age_is_never_too_long<R: Register>(one: &R, other: &R, tells: bool) {
    let key = b"check/age";
    let mut expected = None;
    for number in 1..=3 {
        let departure = Instant::now();
        write(one, key, &record(1, number), expected.as_ref()).await;
        loop {
            let entry = read(other, key).await;
            let elapsed = departure.elapsed();
            assert!(entry.age.is_none_or(|age| age <= elapsed + ROUNDING), "{:?} after {elapsed:?}", entry.age);
            assert_eq!(entry.age.is_some(), tells, "whether the store tells the age");
            let is_enough = entry.age.is_none_or(|age| age >= SOME_AGE);
            expected = Some(entry);
            if is_enough {
                break;
            }
            assert!(elapsed < PATIENCE, "the age of a record grows");
        }
    }
}

async fn release_is_told<R: Register>(one: &R, other: &R) {
    let key = b"check/changed";
    write(one, key, &record(1, 1), None).await;
    let mut held = read(other, key).await;
    for number in 1..=3 {
        let stale = held;
        write(one, key, &record(1, 2 * number), Some(&stale)).await;
        in_time("a change that was missed", other.changed(key, Some(&stale.revision))).await;
        held = read(other, key).await;
        // Both at once: the release may come before the waiter is known to the store, or after it.
        let free = Record { held: false, ..record(1, 2 * number + 1) };
        let release = async {
            let started = Instant::now();
            // Time in which the store may learn of the waiter. None is needed.
            while number > 1 && started.elapsed() < SOME_AGE * 4 {
                tokio::task::yield_now().await;
            }
            write(one, key, &free, Some(&held)).await;
        };
        in_time("a release", both(other.changed(key, Some(&held.revision)), release)).await;
        held = read(other, key).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;

    use super::*;

    type Rows = Rc<RefCell<HashMap<Vec<u8>, (Vec<u8>, u64)>>>;

    /// A store in memory, whose flaw is as named.
    struct Memory(Rows, &'static str);

    impl Memory {
        fn revision(&self, record: &Record, number: u64) -> Revision {
            if self.1 == "revisions repeat" {
                return Revision::from(number);
            }
            Revision::new(format!("{number} {}", record.writer))
        }
    }

    impl Register for Memory {
        async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
            let rows = self.0.borrow();
            let Some((bytes, number)) = rows.get(key) else { return Ok(None) };
            match Record::decode(bytes) {
                Ok(record) => Ok(Some(Entry::new(record.clone(), self.revision(&record, *number)))),
                Err(error) if self.1 == "overwrites" => Err(RegisterError::unknown(error)),
                Err(error) => Err(RegisterError::refused(error)),
            }
        }

        async fn write(
            &self,
            key: &[u8],
            record: &Record,
            expected: Option<&Entry>,
        ) -> Result<Revision, RegisterError> {
            let found = self.0.borrow().get(key).cloned();
            let number = found.as_ref().map_or(0, |(_, number)| *number) + 1;
            let is_as_expected = match (expected, found) {
                (None, None) => true,
                (None, Some(_)) => self.1 == "creates twice",
                (Some(_), None) => false,
                (Some(expected), Some((bytes, number))) => {
                    self.1 == "ignores the condition"
                        || Record::decode(&bytes).is_ok_and(|found| self.revision(&found, number) == expected.revision)
                }
            };
            if !is_as_expected {
                return Err(RegisterError::Conflict);
            }
            self.0.borrow_mut().insert(key.to_vec(), (record.encode(), number));
            Ok(self.revision(record, number))
        }
    }

    async fn check(flaw: &'static str) {
        let rows = Rows::default();
        let plant = async |key: &[u8], bytes: Option<&[u8]>| match bytes {
            Some(bytes) => drop(rows.borrow_mut().insert(key.to_vec(), (bytes.to_vec(), 77))),
            None => drop(rows.borrow_mut().remove(key)),
        };
        check_register(&Memory(rows.clone(), flaw), &Memory(rows.clone(), flaw), Traits::default(), plant).await;
    }

    #[tokio::test]
    async fn sound_store_passes() {
        check("").await;
    }

    #[tokio::test]
    #[should_panic(expected = "expected None")]
    async fn store_that_creates_twice_fails() {
        check("creates twice").await;
    }

    #[tokio::test]
    #[should_panic(expected = "expected Some")]
    async fn store_that_ignores_the_condition_fails() {
        check("ignores the condition").await;
    }

    #[tokio::test]
    #[should_panic(expected = "assertion `left != right`")]
    async fn store_whose_revisions_repeat_fails() {
        check("revisions repeat").await;
    }

    #[tokio::test]
    #[should_panic(expected = "lock-record 2")]
    async fn store_that_does_not_refuse_other_formats_fails() {
        check("overwrites").await;
    }
}

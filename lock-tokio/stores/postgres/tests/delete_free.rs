//! The statement that deletes free records.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lock_driver::Client;
use lock_driver::register::{Config, Register as _};
use lock_postgres::{CREATE_TABLE, DELETE_FREE, PostgresRegister};
use lock_proto::register::Record;
use lock_proto::{Backoff, Release};
use store_testkit::{Postgres, read, record, write};

fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql(CREATE_TABLE);
    postgres
}

#[tokio::test]
async fn only_old_free_records_are_deleted() {
    let postgres = server();
    let store = PostgresRegister::from_url(&postgres.url()).expect("a URL");
    let text = "x\nversion 1\nwriter 1\nheld no\n";
    let held = Record { value: text.into(), label: "held no".into(), ..record(1, 1) };
    for (key, held) in [(b"held", true), (b"free", false), (b"last", false)] {
        write(&store, key, &Record { held, value: "\\\0\n\u{e9}".into(), ..record(1, 1) }, None).await;
    }
    write(&store, b"text", &held, None).await;
    postgres.sql(DELETE_FREE);
    assert_eq!(postgres.sql("SELECT count(*) FROM lock_register"), "4", "none is old");
    postgres.sql("UPDATE lock_register SET written = written - interval '25 h' WHERE name <> 'last'");
    postgres.sql(DELETE_FREE);
    assert_eq!(store.read(b"free").await, Ok(None));
    for key in [b"held", b"last", b"text"] {
        read(&store, key).await;
    }
}

/// Clients come back at about the time at which the record is deleted. No write may be under way
/// for so long: the token is of the time at which it left.
// RG5
#[test]
fn locks_are_exclusive_while_free_records_are_deleted() {
    const AGE: Duration = Duration::from_millis(500);
    let postgres = server();
    let delete = DELETE_FREE.replace("1 day", &format!("{} ms", AGE.as_millis()));
    let sql = format!("WITH gone AS ({delete} RETURNING 1) SELECT count(*) FROM gone");
    let poll = || Config::new().poll(Backoff::fixed(Duration::from_millis(10)));
    let clients: Vec<Client> =
        (0..3).map(|_| lock_postgres::connect_with(poll(), &postgres.url()).expect("a client")).collect();
    let (inside, fence, done) = (AtomicU32::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let cycle = |client: &Client| {
        for round in 0..10 {
            let guard = client.lock("a").acquire_blocking().expect("a turn");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            let token = guard.fence().expect("it has one").get();
            assert!(fence.swap(token, Ordering::SeqCst) < token, "fences grow");
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(guard.release_blocking(), Release::Released);
            thread::sleep(AGE + Duration::from_millis(40) * round);
        }
    };
    let deleted = thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            let mut deleted = 0;
            while !done.load(Ordering::SeqCst) {
                deleted += postgres.sql(&sql).parse::<u32>().expect("a number");
            }
            deleted
        });
        let cycles: Vec<_> = clients.iter().map(|client| scope.spawn(|| cycle(client))).collect();
        let ended: Vec<_> = cycles.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok), "a client failed");
        deleting.join().expect("it ends")
    });
    assert!(deleted > 0, "nothing was deleted");
}

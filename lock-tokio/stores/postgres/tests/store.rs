//! The store on a real server.

use std::time::{Duration, Instant};

use lock_driver::register::{Register as _, RegisterError};
use lock_postgres::{CREATE_TABLE, PostgresRegister};
use lock_proto::register::Record;
use store_testkit::{Postgres, Traits, both, check_register, read, record, write};
use tokio::time::timeout;
use tokio_postgres::NoTls;

const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql(CREATE_TABLE);
    postgres
}

fn store(url: &str) -> PostgresRegister {
    PostgresRegister::from_url(url).expect("a URL")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts bytes under a key, or removes it.
fn plant(postgres: &Postgres, key: &[u8], bytes: Option<&[u8]>) {
    let key = hex(key);
    postgres.sql(&match bytes {
        Some(bytes) => {
            format!("INSERT INTO lock_register VALUES ('\\x{key}', 1, 'x', '\\x{}', clock_timestamp())", hex(bytes))
        }
        None => format!("DELETE FROM lock_register WHERE name = '\\x{key}'"),
    });
}

async fn check(postgres: &Postgres, url: &str, traits: Traits) {
    let (one, other) = (store(url), store(url));
    check_register(&one, &other, traits, async |key, bytes| plant(postgres, key, bytes)).await;
}

fn is_refused(error: &RegisterError, says: &str) -> bool {
    matches!(error, RegisterError::Refused(text) if text.contains(says))
}

/// Waits until the store answers with what is expected.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn is_a_register() {
    let postgres = server();
    check(&postgres, &postgres.url(), Traits { age: true, changed: true }).await;
}

#[tokio::test]
async fn is_a_register_with_strict_transactions() {
    let postgres = Postgres::builder().arg("default_transaction_isolation", "serializable").start();
    postgres.sql(CREATE_TABLE);
    check(&postgres, &postgres.url(), Traits { age: true, changed: true }).await;
}

/// What changes the row in between undoes a statement of a strict transaction.
#[tokio::test]
async fn strict_transactions_do_not_undo_writes() {
    let postgres = Postgres::builder().arg("default_transaction_isolation", "serializable").start();
    postgres.sql(CREATE_TABLE);
    let (one, other) = (store(&postgres.url()), store(&postgres.url()));
    write(&one, b"k", &record(1, 1), None).await;
    for number in 2..5 {
        let entry = read(&one, b"k").await;
        let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
        let connection = tokio::spawn(connection);
        let lock = "BEGIN; UPDATE lock_register SET awaited = now() + interval '1 h' WHERE name = 'k'";
        client.batch_execute(lock).await.expect("a row");
        let next = record(1, number);
        let commit = async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            until("it waits", async || (postgres.sql(waits) == "1").then_some(())).await;
            client.batch_execute("COMMIT").await.expect("a change");
        };
        // On the connection that is kept for rows that are locked.
        let (written, ()) = both(other.write(b"k", &next, Some(&entry)), commit).await;
        written.expect("it is run again");
        drop(client);
        connection.await.expect("a task").expect("it ends");
    }
}

#[tokio::test]
async fn missing_table_is_refused_with_the_remedy() {
    let postgres = Postgres::start();
    let (one, other) = (store(&postgres.url()), store(&postgres.url()));
    let error = one.read(b"k").await.expect_err("there is none");
    assert!(is_refused(&error, "42P01") && is_refused(&error, CREATE_TABLE), "{error}");
    let error = one.write(b"k", &record(1, 1), None).await.expect_err("there is none");
    assert!(is_refused(&error, CREATE_TABLE), "{error}");
    let created = both(one.create_table(), other.create_table()).await;
    assert_eq!(created, (Ok(()), Ok(())), "two at once");
    write(&one, b"k", &record(1, 1), None).await;
    assert_eq!(other.create_table().await, Ok(()));
    assert_eq!(read(&other, b"k").await.record, record(1, 1));
}

#[tokio::test]
async fn missing_permission_is_refused_with_the_remedy() {
    let postgres = server();
    postgres.sql("CREATE ROLE reader LOGIN; GRANT SELECT ON lock_register TO reader");
    let reader = store(&postgres.url_as("reader"));
    assert_eq!(reader.read(b"k").await, Ok(None));
    let error = reader.write(b"k", &record(1, 1), None).await.expect_err("it may not");
    assert!(is_refused(&error, "GRANT SELECT, INSERT, UPDATE"), "{error}");
    postgres.sql("GRANT INSERT, UPDATE ON lock_register TO reader");
    write(&reader, b"k", &record(1, 1), None).await;

    let stranger = store(&postgres.url_as("stranger"));
    let error = stranger.read(b"k").await.expect_err("there is no such user");
    assert!(is_refused(&error, "stranger"), "{error}");
    assert!(stranger.name().starts_with("postgres://127.0.0.1:") && !stranger.name().contains('@'));
}

#[tokio::test]
async fn server_that_is_killed_is_found_again() {
    let mut postgres = server();
    let store = store(&postgres.url());
    write(&store, b"k", &record(1, 1), None).await;
    let entry = read(&store, b"k").await;
    postgres.kill();
    until("it is gone", async || store.read(b"k").await.err()).await;
    let error = until("it is gone", async || store.write(b"k", &record(1, 2), Some(&entry)).await.err()).await;
    assert!(matches!(error, RegisterError::NotSent(_) | RegisterError::Unknown(_)), "{error}");
    postgres.restart();
    let again = until("it is back", async || store.read(b"k").await.ok()).await;
    assert_eq!(again.expect("it was written").record, record(1, 1));
    write(&store, b"k", &record(1, 2), Some(&entry)).await;
}

#[tokio::test]
async fn connections_that_are_terminated_are_replaced() {
    let postgres = server();
    let store = store(&postgres.url());
    let mut expected = None;
    for number in 1..=10 {
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lock-postgres'");
        let record = record(1, number);
        // A write is never repeated blindly: a conflict may be its own success.
        until("a write", async || match store.write(b"k", &record, expected.as_ref()).await {
            Ok(_) => Some(()),
            Err(RegisterError::Conflict) => (read(&store, b"k").await.record == record).then_some(()),
            Err(RegisterError::NotSent(_) | RegisterError::Unknown(_)) => None,
            Err(error) => panic!("{error}"),
        })
        .await;
        expected = Some(until("a read", async || store.read(b"k").await.ok().flatten()).await);
    }
}

#[tokio::test]
async fn server_that_stops_answering_is_heard_again() {
    let postgres = server();
    let store = store(&postgres.url());
    write(&store, b"k", &record(1, 1), None).await;
    let entry = read(&store, b"k").await;
    postgres.pause();
    let next = record(1, 2);
    let mut stuck = Box::pin(store.write(b"k", &next, Some(&entry)));
    assert!(timeout(Duration::from_millis(100), &mut stuck).await.is_err(), "it is stopped");
    let error = timeout(PATIENCE, &mut stuck).await.expect("in time").expect_err("it is stopped");
    assert!(matches!(&error, RegisterError::Unknown(text) if text.contains("no answer within")), "{error}");
    // The next connection is not answered either.
    let error = until("another error", async || match store.read(b"k").await {
        Err(RegisterError::NotSent(error)) => Some(error),
        _ => None,
    })
    .await;
    assert!(error.contains("no answer within"), "{error}");
    postgres.resume();
    // What was sent is applied late.
    until("it is applied", async || (store.read(b"k").await.ok()??.record == next).then_some(())).await;
}

#[tokio::test]
async fn locked_row_stalls_no_other() {
    let postgres = server();
    let store = store(&postgres.url());
    for key in [b"a", b"b", b"c"] {
        write(&store, key, &record(1, 1), None).await;
    }
    let entry = read(&store, b"a").await;
    let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
    let connection = tokio::spawn(connection);
    client
        .batch_execute("BEGIN; SELECT 1 FROM lock_register WHERE name IN ('a', 'b') FOR UPDATE")
        .await
        .expect("a row");

    let (next, last) = (record(1, 2), record(1, 3));
    let locked = both(store.write(b"a", &next, Some(&entry)), store.write(b"b", &next, Some(&entry)));
    let mut locked = Box::pin(locked);
    let others = async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("a write waits", async || (postgres.sql(waits) == "1").then_some(())).await;
        write(&store, b"c", &next, Some(&entry)).await;
    };
    // Those that wait are sent first.
    tokio::select! {
        biased;
        (a, b) = &mut locked => panic!("they wait longer: {a:?} {b:?}"),
        () = others => {}
    }
    let (a, b) = locked.await;
    for error in [a.expect_err("it is locked"), b.expect_err("it is locked")] {
        assert!(matches!(&error, RegisterError::NotSent(text) if text.contains("55P03")), "{error}");
    }
    drop(client);
    connection.await.expect("a task").expect("it ends");
    for key in [b"a", b"b"] {
        write(&store, key, &last, Some(&entry)).await;
    }
}

#[tokio::test]
async fn insertion_of_another_transaction_stalls_no_other() {
    let postgres = server();
    let store = store(&postgres.url());
    write(&store, b"c", &record(1, 1), None).await;
    let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
    let connection = tokio::spawn(connection);
    let insert = "BEGIN; INSERT INTO lock_register VALUES ('a', 1, 'x', '', now())";
    client.batch_execute(insert).await.expect("a row");
    let error = store.write(b"a", &record(1, 1), None).await.expect_err("it may or may not be there");
    assert!(matches!(&error, RegisterError::NotSent(text) if text.contains("55P03")), "{error}");
    drop(client);
    connection.await.expect("a task").expect("it ends");
    write(&store, b"a", &record(1, 1), None).await;
}

#[tokio::test]
async fn locked_table_collects_neither_connections_nor_statements() {
    let postgres = server();
    let store = PostgresRegister::from_url(&postgres.url()).expect("a URL").timeout(Duration::from_millis(50));
    write(&store, b"a", &record(1, 1), None).await;
    let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
    let connection = tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE lock_register").await.expect("a table");
    for _ in 0..600 {
        // A reader that gives up.
        let _ = timeout(Duration::from_millis(1), store.read(b"a")).await;
    }
    let error = until("an error", async || store.read(b"a").await.err()).await;
    assert!(matches!(&error, RegisterError::NotSent(text) if text.contains("256 statements")), "{error}");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lock-postgres'";
    assert_eq!(postgres.sql(ours), "2");
    drop(client);
    connection.await.expect("a task").expect("it ends");
    assert_eq!(until("it answers", async || store.read(b"a").await.ok().flatten()).await.record, record(1, 1));
    until("the first one ends", async || (postgres.sql(ours) == "1").then_some(())).await;
}

#[tokio::test]
async fn server_that_takes_no_writes_any_more_is_left() {
    let (old, new) = (server(), server());
    let url = format!("postgres://postgres@{},{}/postgres", old.address(), new.address());
    let store = store(&url);
    write(&store, b"a", &record(1, 1), None).await;
    assert_eq!(old.sql("SELECT count(*) FROM lock_register"), "1", "the first that takes writes");
    // Its connections stay, as those to a primary that became a standby.
    let next = record(1, 2);
    old.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    old.sql("SELECT pg_reload_conf()");
    until("a write to the other", async || match store.write(b"a", &next, None).await {
        Ok(_) => Some(()),
        Err(RegisterError::Conflict) => {
            assert_eq!(new.sql("SELECT count(*) FROM lock_register"), "0", "the old one still takes writes");
            None
        }
        Err(RegisterError::NotSent(text)) => {
            assert!(text.contains("25006") || text.contains("connect"), "{text}");
            None
        }
        Err(error) => panic!("{error}"),
    })
    .await;
    assert_eq!(new.sql("SELECT count(*) FROM lock_register"), "1");
}

#[tokio::test]
async fn stopped_server_keeps_nobody_from_the_next() {
    let (stopped, other) = (server(), server());
    stopped.pause();
    let url = format!("postgres://postgres@{},{}/postgres", stopped.address(), other.address());
    let store = PostgresRegister::from_url(&url).expect("a URL").timeout(Duration::from_millis(300));
    write(&store, b"a", &record(1, 1), None).await;
    assert_eq!(other.sql("SELECT count(*) FROM lock_register"), "1");
}

#[tokio::test]
async fn only_awaited_releases_notify() {
    let postgres = server();
    let (holder, waiter) = (store(&postgres.url()), store(&postgres.url()));
    let (client, mut connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let listener = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN lock_register").await.expect("it listens");

    let held = write(&holder, b"a", &record(1, 1), None).await;
    let entry = read(&holder, b"a").await;
    write(&holder, b"a", &Record { held: false, ..record(1, 2) }, Some(&entry)).await;
    let entry = read(&holder, b"a").await;
    write(&holder, b"a", &record(1, 3), Some(&entry)).await;
    timeout(PATIENCE, waiter.changed(b"a", Some(&held))).await.expect("it was changed meanwhile");
    let probe = heard.recv().await.expect("the waiter tries whether it hears");
    assert_eq!(probe.len(), 32, "before it, nobody waited: {probe}");

    let entry = read(&waiter, b"a").await;
    let awaited = "SELECT count(*) FROM lock_register WHERE awaited > now()";
    let (mut waits, marked) = (Box::pin(waiter.changed(b"a", Some(&entry.revision))), async {
        until("a mark", async || (postgres.sql(awaited) == "1").then_some(())).await;
    });
    tokio::select! {
        () = &mut waits => panic!("nothing was changed"),
        () = marked => {}
    }
    write(&holder, b"a", &record(1, 4), Some(&entry)).await;
    let entry = read(&holder, b"a").await;
    postgres.sql("NOTIFY lock_register, 'renewed'");
    assert_eq!(heard.recv().await.as_deref(), Some("renewed"), "a renewal is no news");
    write(&holder, b"a", &Record { held: false, ..record(1, 5) }, Some(&entry)).await;
    assert_eq!(heard.recv().await.as_deref(), Some("61"));
    timeout(PATIENCE, waits).await.expect("it heard, too");
    drop(client);
    listener.await.expect("it ends");
}

//! The recipe on a real server.

#![cfg(feature = "mariadb")]

use std::time::Duration;

use lock_driver::register::{Register as _, RegisterError};
use own_sql::{CREATE_TABLE, MariaDbRegister};
use sqlx::Executor as _;
use sqlx::mysql::MySqlPoolOptions;
use store_testkit::{MariaDb, Traits, check_register, read, record, write};

async fn connect(server: &MariaDb) -> MariaDbRegister {
    let pool = MySqlPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(3));
    // The wait for a row that another transaction has locked is 50 s otherwise.
    let pool = pool.after_connect(|connection, _| {
        Box::pin(async move { connection.execute("SET innodb_lock_wait_timeout = 1").await.map(drop) })
    });
    MariaDbRegister(pool.connect(&server.url()).await.expect("a connection"))
}

async fn start() -> (MariaDb, MariaDbRegister) {
    let server = MariaDb::start();
    let store = connect(&server).await;
    store.0.execute(CREATE_TABLE).await.expect("a table");
    (server, store)
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn recipe_is_a_register() {
    let (server, one) = start().await;
    let other = connect(&server).await;
    check_register(&one, &other, Traits { age: true, changed: false }, async |key, bytes| {
        let planted = match bytes {
            Some(bytes) => {
                let sql = "INSERT INTO lock_register VALUES (?, 1, 'x', ?, UTC_TIMESTAMP(6))";
                sqlx::query(sql).bind(key).bind(bytes).execute(&one.0).await
            }
            None => sqlx::query("DELETE FROM lock_register WHERE name = ?").bind(key).execute(&one.0).await,
        };
        planted.expect("a row");
    })
    .await;
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn locked_row_is_no_conflict_and_stalls_no_other() {
    let (_server, store) = start().await;
    write(&store, b"a", &record(1, 1), None).await;
    let entry = read(&store, b"a").await;
    let mut blocker = store.0.begin().await.expect("a transaction");
    blocker.execute("SELECT 1 FROM lock_register WHERE name = 'a' FOR UPDATE").await.expect("a row");
    let (next, other) = (record(1, 2), record(1, 1));
    let mut locked = Box::pin(store.write(b"a", &next, Some(&entry)));
    tokio::select! {
        biased;
        result = &mut locked => panic!("it waits: {result:?}"),
        _ = write(&store, b"b", &other, None) => {}
    }
    let error = locked.await.expect_err("it is locked");
    assert!(matches!(error, RegisterError::NotSent(_)), "{error}");
    blocker.rollback().await.expect("a transaction");
    write(&store, b"a", &next, Some(&entry)).await;
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn missing_table_is_refused() {
    let server = MariaDb::start();
    let store = connect(&server).await;
    for error in [store.read(b"k").await.err(), store.write(b"k", &record(1, 1), None).await.err()] {
        assert!(matches!(error, Some(RegisterError::Refused(_))), "{error:?}");
    }
}

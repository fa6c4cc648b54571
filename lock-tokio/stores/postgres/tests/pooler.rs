//! The store behind PgBouncer in transaction mode: no statement depends on the session that runs it.

use std::time::Duration;

use lock_driver::register::Register as _;
use lock_postgres::{CREATE_TABLE, PostgresRegister};
use store_testkit::{PgBouncer, Postgres, Traits, both, check_register, read, record, write};
use tokio::time::{sleep, timeout};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn is_a_register_behind_a_pooler() {
    let postgres = Postgres::start();
    postgres.sql(CREATE_TABLE);
    for connections in [1, 3] {
        let pooler = PgBouncer::start(&postgres, connections);
        let store = || PostgresRegister::from_url(&pooler.url()).expect("a URL");
        let traits = Traits { age: true, changed: false };
        check_register(&store(), &store(), traits, async |key, bytes| {
            let key = hex(key);
            postgres.sql(&match bytes {
                Some(bytes) => {
                    format!("INSERT INTO lock_register VALUES ('\\x{key}', 1, 'x', '\\x{}', now())", hex(bytes))
                }
                None => format!("DELETE FROM lock_register WHERE name = '\\x{key}'"),
            });
        })
        .await;
        let settings = postgres.sql("TRUNCATE lock_register; SHOW lock_timeout");
        assert_eq!(settings, "0");
    }
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn pooler_that_swallows_notifications_is_noticed() {
    let postgres = Postgres::start();
    postgres.sql(CREATE_TABLE);
    for connections in [1, 3] {
        let pooler = PgBouncer::start(&postgres, connections);
        let store = || PostgresRegister::from_url(&pooler.url()).expect("a URL");
        let (holder, waiter) = (store(), store());
        postgres.sql("TRUNCATE lock_register");
        write(&holder, b"a", &record(1, 1), None).await;
        let entry = read(&waiter, b"a").await;
        let waits = timeout(Duration::from_secs(5), waiter.changed(b"a", Some(&entry.revision)));
        // It goes on reading and writing meanwhile.
        let others = async {
            for number in 1..20 {
                read(&waiter, b"a").await;
                write(&waiter, b"b", &record(1, number), None).await;
                let b = read(&waiter, b"b").await;
                write(&holder, b"b", &record(2, number), Some(&b)).await;
                postgres.sql("DELETE FROM lock_register WHERE name = 'b'");
                sleep(Duration::from_millis(100)).await;
            }
        };
        let (waited, ()) = both(waits, others).await;
        assert!(waited.is_err(), "it hears nothing");
        assert_eq!(postgres.sql("SELECT count(*) FROM lock_register WHERE awaited IS NOT NULL"), "0");
        // The pooler's session listens. It does no harm.
        postgres.sql("NOTIFY lock_register, 'x'");
        read(&waiter, b"a").await;
    }
}

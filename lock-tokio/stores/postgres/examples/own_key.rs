//! What a lock costs beside two bare updates of a row: `cargo run --release --example own_key`.
//!
//! A cycle is the grant and the release of a lock that nobody else wants. The store writes twice,
//! and reads nothing.

use std::time::{Duration, Instant};

use lock_driver::register::Register as _;
use lock_postgres::{CREATE_TABLE, PostgresRegister};
use lock_proto::register::{Entry, Record};
use store_testkit::{Postgres, record, write};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

const CYCLES: u64 = 2000;
const ROUNDS: usize = 7;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for fsync in ["off", "on"] {
        // In memory, `fsync` costs only its system call.
        let postgres = Postgres::builder().arg("fsync", fsync).start();
        postgres.sql(CREATE_TABLE);
        postgres.sql(
            "CREATE TABLE bare (name bytea PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 50); \
             INSERT INTO bare VALUES ('k', '')",
        );
        let store = PostgresRegister::from_url(&postgres.url()).expect("a URL");
        let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.expect("a connection");
        tokio::spawn(connection);
        let mut entry = None;
        // Alternating, and the median: other programs disturb both alike.
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(bare(&client).await);
            ours.push(cycles(&store, &mut entry).await);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!("fsync {fsync}: lock {ours:?}, two bare updates {theirs:?}: {:.2}", ours.div_duration_f64(theirs));
        assert!(store.read(b"k").await.is_ok());
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn cycles(store: &PostgresRegister, entry: &mut Option<Entry>) -> Duration {
    let started = Instant::now();
    for _ in 0..CYCLES {
        for held in [true, false] {
            let number = entry.as_ref().map_or(1, |entry| entry.record.writer.number + 1);
            let next = Record { held, ..record(1, number) };
            let revision = write(store, b"k", &next, entry.as_ref()).await;
            *entry = Some(Entry::new(next, revision));
        }
    }
    started.elapsed() / CYCLES as u32
}

/// As a client does that expects a pooler, and with as many bytes.
async fn bare(client: &Client) -> Duration {
    let value = record(1, 1).encode();
    let started = Instant::now();
    for _ in 0..2 * CYCLES {
        let sql = "UPDATE bare SET value = $1 WHERE name = $2";
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&value, Type::BYTEA), (&&b"k"[..], Type::BYTEA)];
        client.query_typed(sql, &parameters).await.expect("a row");
    }
    started.elapsed() / CYCLES as u32
}

//! What the server is asked, by its own log.

use std::time::{Duration, Instant};

use lock_driver::register::Config;
use lock_postgres::CREATE_TABLE;
use lock_proto::Backoff;
use store_testkit::Postgres;
use tokio::time::sleep;

const WAITERS: usize = 100;
const POLL: Duration = Duration::from_millis(800);
const WINDOW: Duration = Duration::from_secs(4);

/// The statements in a log.
fn statements(log: &str) -> Vec<&str> {
    let after = |line: &str, mark: &str| line.find(mark).map(|at| at + mark.len());
    let start = |line| after(line, "LOG:  execute <unnamed>: ").or_else(|| after(line, "LOG:  statement: "));
    log.lines().filter_map(|line| Some(&line[start(line)?..])).collect()
}

/// A busy poll is one `SELECT`. A waiter marks the row that it waits for, once for all of them.
// RG7
#[tokio::test(flavor = "multi_thread")]
async fn busy_poll_is_one_select() {
    let server = Postgres::builder().arg("log_statement", "all").arg("max_connections", "300").start();
    server.sql(CREATE_TABLE);
    // Nothing is renewed meanwhile.
    let ttl = Duration::from_secs(600);
    let config = || Config::new().poll(Backoff::fixed(POLL)).request_timeout(Duration::from_secs(20));
    let connect = || lock_postgres::connect_with(config(), &server.url()).expect("a client");
    let holder = connect();
    let guard = holder.lock("a").ttl(ttl).acquire().await.expect("it is free");
    let waiters: Vec<_> = (0..WAITERS).map(|_| connect()).collect();
    let waiting: Vec<_> = waiters.iter().map(|waiter| tokio::spawn(waiter.lock("a").acquire())).collect();

    let marks = || {
        let log = server.log_text();
        statements(&log).iter().filter(|statement| statement.contains("SET awaited")).count()
    };
    let end = Instant::now() + Duration::from_secs(60);
    while marks() < WAITERS {
        assert!(Instant::now() < end, "{} waiters listen", marks());
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let row = || server.sql("SELECT xmin, awaited IS NOT NULL FROM lock_register");
    let row_before = row();
    assert!(row_before.ends_with("|t"), "{row_before}");
    let (before, since) = (server.log_text().len(), Instant::now());
    sleep(WINDOW).await;
    let log = server.log_text();
    let elapsed = since.elapsed();
    let asked = statements(&log[before..]);
    for statement in &asked {
        assert!(statement.starts_with("SELECT record, "), "{statement}");
    }
    // The interval has up to a quarter of jitter, downwards. The machine may be slow.
    let polls = |interval: Duration| elapsed.as_secs_f64() / interval.as_secs_f64();
    let most = WAITERS as f64 * (polls(POLL * 3 / 4) + 1.0);
    let least = WAITERS as f64 * (polls(POLL) - 1.0) / 2.0;
    assert!((least..=most).contains(&(asked.len() as f64)), "{} is not {least}..{most}", asked.len());
    assert_eq!(row(), row_before, "a poll wrote");

    for waiting in waiting {
        waiting.abort();
    }
    drop(guard);
}

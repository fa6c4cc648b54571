//! A standby is promoted that lacks what the primary has confirmed.

use std::time::{Duration, Instant};

use lock_driver::ExtendError;
use lock_postgres::CREATE_TABLE;
use lock_proto::{Loss, Release, Renew};
use lock_testkit::{TIMEOUT, wait_until};
use store_testkit::Postgres;
use tokio::time::sleep;

/// Until the first holder knows, there are two. The newer one has the greater token.
// RG5
#[tokio::test]
async fn hold_that_was_lost_with_the_primary_is_granted_again_with_a_greater_token() {
    const TTL: Duration = Duration::from_secs(10);
    let mut primary = Postgres::start();
    primary.sql(CREATE_TABLE);
    let mut standby = primary.standby();
    let url = format!("postgres://postgres@{},{}/postgres", primary.address(), standby.address());
    let client = || lock_postgres::connect(&url).expect("a client");
    let (first, second) = (client(), client());
    let acquire = async |name, ttl| {
        first.lock(name).ttl(ttl).renew(Renew::Manual).acquire().await.expect("the primary grants it")
    };

    // The standby knows one lock as free, another one as held, and the third one not at all.
    assert_eq!(acquire("free", TTL).await.release().await, Release::Released);
    let renewed = acquire("renewed", TTL).await;
    let reached = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", primary.sql("SELECT pg_current_wal_lsn()"));
    assert!(wait_until(TIMEOUT, || standby.sql(&reached) == "t"), "the standby does not follow");
    standby.kill();
    let mut holds = vec![acquire("free", TIMEOUT * 2).await, acquire("new", TIMEOUT * 2).await];
    assert!(wait_until(TIMEOUT, || renewed.remaining() < TTL / 4), "time does not pass");
    assert_eq!(renewed.extend().await, Ok(()), "the primary has confirmed it");
    holds.push(renewed);
    primary.kill();
    standby.restart();
    assert_eq!(standby.sql("SELECT pg_promote()"), "t");

    for older in holds {
        let newer = second.lock(older.name()).wait(TIMEOUT).acquire().await.expect("nobody renews it here");
        assert!(older.is_held(), "it was confirmed");
        assert!(newer.fence() > older.fence(), "{:?} {:?}", newer.fence(), older.fence());
        // Its connection may have met the standby before it was promoted.
        let end = Instant::now() + TIMEOUT;
        let extended = loop {
            match older.extend().await {
                Err(ExtendError::Failed(_)) if Instant::now() < end => sleep(Duration::from_millis(20)).await,
                extended => break extended,
            }
        };
        assert_eq!(extended, Err(ExtendError::Lost(Loss::Taken)));
        assert!(newer.is_held());
    }
}

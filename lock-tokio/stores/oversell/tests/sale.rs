//! What the sale shows.
#![allow(clippy::unwrap_used, reason = "tests")]

use lock_proto::Fence;
use lock_proto::fence::FenceCheck;
use lock_testkit::Redis;
use oversell_stores::{GOODS, PostgresStock, RedisStock, SaleError, SqliteStock, Stock, Way, sell};
use store_testkit::Postgres;

/// A late write of an older holder between the newer one's read and write: without the token
/// stored before the read, both would be accepted.
fn newer_holder_claims_before_it_reads(connect: impl Fn() -> Box<dyn Stock>) {
    // F5
    let (mut old, mut new) = (connect(), connect());
    let [old_fence, new_fence] = [1, 2].map(Fence::new);
    assert_eq!(old.claim(old_fence).unwrap(), FenceCheck::Accepted);
    let seen_by_old = old.read().unwrap();
    assert_eq!(new.claim(new_fence).unwrap(), FenceCheck::Accepted);
    let seen_by_new = new.read().unwrap();
    let stale = FenceCheck::Stale { seen: new_fence };
    assert_eq!(old.write_fenced(seen_by_old - 1, old_fence).unwrap(), stale);
    assert_eq!(new.write_fenced(seen_by_new - 1, new_fence).unwrap(), FenceCheck::Accepted);
    assert_eq!(new.write_fenced(seen_by_new - 1, new_fence).unwrap(), FenceCheck::Accepted, "it repeats the write");
    assert_eq!((old.claim(old_fence).unwrap(), old.read().unwrap()), (stale, GOODS - 1));
}

/// All ways but the first and the lock without a fence sell what is there, whoever stalls.
fn sells_no_more_than_there_is<S: Stock>(
    connect: impl Fn() -> Result<S, SaleError> + Sync,
    reset: impl Fn(&mut S),
    locks: &str,
) {
    for way in [Way::RowLock, Way::Optimistic, Way::FencedLock] {
        reset(&mut connect().unwrap());
        let sale = sell(&connect, way, locks, "sale").unwrap();
        // On a busy machine, a buyer may lose its lock before it begins.
        assert_eq!(i64::from(sale.sold) + sale.left, GOODS, "{way:?}: {sale:?}");
        assert!(sale.sold > 0, "{way:?}");
    }
    reset(&mut connect().unwrap());
    let naive = sell(&connect, Way::Naive, locks, "sale").unwrap();
    assert!(naive.oversold() > 0, "{naive:?}");
}

#[test]
fn postgres_sells_no_more_than_there_is() {
    // F1
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let connect = || PostgresStock::connect(&postgres.url());
    let reset = |stock: &mut PostgresStock| stock.reset(GOODS).unwrap();
    reset(&mut connect().unwrap());
    newer_holder_claims_before_it_reads(|| Box::new(connect().unwrap()));
    sells_no_more_than_there_is(connect, reset, &redis.url());
}

#[test]
fn sqlite_sells_no_more_than_there_is() {
    // F1
    let (folder, redis) = (lock_testkit::temporary(), Redis::start());
    let path = folder.path().join("sale.db");
    let connect = || SqliteStock::open(&path);
    let reset = |stock: &mut SqliteStock| stock.reset(GOODS).unwrap();
    reset(&mut connect().unwrap());
    newer_holder_claims_before_it_reads(|| Box::new(connect().unwrap()));
    sells_no_more_than_there_is(connect, reset, &redis.url());
}

#[test]
fn redis_sells_no_more_than_there_is() {
    // F1
    let redis = Redis::start();
    let connect = || RedisStock::connect(&redis.url());
    let reset = |stock: &mut RedisStock| stock.reset(GOODS).unwrap();
    reset(&mut connect().unwrap());
    newer_holder_claims_before_it_reads(|| Box::new(connect().unwrap()));
    sells_no_more_than_there_is(connect, reset, &redis.url());
}

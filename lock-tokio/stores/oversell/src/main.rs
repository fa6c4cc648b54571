//! Sells on Postgres, SQLite and Redis in five ways, and prints what came of it. Starts its own
//! servers.

use lock_testkit::Redis;
use oversell_stores::{
    BUYERS, GOODS, PostgresStock, RedisStock, STALL, SaleError, SaleResult, SqliteStock, TTL, Way, sell,
};
use store_testkit::Postgres;

fn main() -> Result<(), SaleError> {
    let (postgres, redis, folder) = (Postgres::start(), Redis::start(), lock_testkit::temporary());
    let path = folder.path().join("sale.db");
    println!(
        "{BUYERS} buyers, {GOODS} goods, a lock with a TTL of {TTL:?}. Every fourth buyer stalls for {STALL:?}.\n"
    );
    println!(
        "{:10} {:16} {:>5} {:>5} {:>9} {:>8} {:>7}",
        "store", "way", "sold", "left", "oversold", "refused", "time"
    );
    for way in Way::ALL {
        PostgresStock::connect(&postgres.url())?.reset(GOODS)?;
        print("Postgres", way, &sell(|| PostgresStock::connect(&postgres.url()), way, &redis.url(), "postgres")?);
    }
    for way in Way::ALL {
        SqliteStock::open(&path)?.reset(GOODS)?;
        print("SQLite", way, &sell(|| SqliteStock::open(&path), way, &redis.url(), "sqlite")?);
    }
    for way in Way::ALL {
        RedisStock::connect(&redis.url())?.reset(GOODS)?;
        print("Redis", way, &sell(|| RedisStock::connect(&redis.url()), way, &redis.url(), "redis")?);
    }
    Ok(())
}

/// A line of the table, and a bar: a block for each order, a shaded one for each beyond the stock.
fn print(store: &str, way: Way, sale: &SaleResult) {
    let SaleResult { sold, left, refused, time } = sale;
    let oversold = sale.oversold();
    let bar = "█".repeat((sold - oversold) as usize) + &"▒".repeat(oversold as usize);
    let time = time.as_secs_f64();
    println!("{store:10} {:16} {sold:>5} {left:>5} {oversold:>9} {refused:>8} {time:>6.1}s  {bar}", way.name());
}

//! Fencing on Postgres. The functions `pay` and `ship` are in docs/fencing.md.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::thread;
use std::time::Duration;

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, FenceColumn, FenceTable, SqlDialect};
use postgres::error::SqlState;
use postgres::{Client, IsolationLevel, NoTls};
use store_testkit::Database;

mod kit;

/// Marks an invoice as paid.
fn pay(db: &mut Client, invoice: i64, fence: Fence) -> Result<Option<FenceCheck>, postgres::Error> {
    let column = FenceColumn::new(SqlDialect::Postgres, "fence");
    let (set, condition) = (column.set(1), column.condition(1));
    let update = format!("UPDATE invoice SET state = 'paid', {set} WHERE id = $2 AND {condition}");
    let affected = db.execute(&update, &[&fence.as_i64(), &invoice])?;
    // Only to learn why no row was affected.
    let row = db.query_opt("SELECT fence FROM invoice WHERE id = $1", &[&invoice])?;
    let seen = row.and_then(|row| row.get::<_, Option<i64>>(0)).map(Fence::from_i64);
    Ok(column.check(fence, affected, seen))
}

/// Writes a table that has no column for the token.
fn ship(db: &mut Client, lock: &str, fence: Fence) -> Result<FenceCheck, postgres::Error> {
    let table = FenceTable::new(SqlDialect::Postgres, "fence_seen");
    let mut transaction = db.transaction()?;
    let row = transaction.query_one(&table.raise(), &[&lock, &fence.as_i64()])?;
    let check = fence.check(Fence::from_i64(row.get(0)));
    if check == FenceCheck::Accepted {
        transaction.execute("INSERT INTO parcel (fence) VALUES ($1)", &[&fence.as_i64()])?;
        transaction.commit()?;
    }
    Ok(check)
}

fn connect(server: &Database) -> Client {
    Client::connect(&server.url(), NoTls).unwrap()
}

fn start() -> (Database, Client) {
    let server = Database::new();
    let mut db = connect(&server);
    db.batch_execute(&FenceTable::new(SqlDialect::Postgres, "fence_seen").create()).unwrap();
    db.batch_execute(
        "CREATE TABLE invoice (id bigint PRIMARY KEY, state text, fence bigint);
         INSERT INTO invoice VALUES (42, 'open', NULL);
         CREATE TABLE parcel (number bigserial, fence bigint)",
    )
    .unwrap();
    (server, db)
}

#[test]
fn stale_write_is_refused_on_postgres() {
    // F1
    let (server, mut db) = start();
    let [old, new] = [(1 << 53) + 1, (1 << 53) + 2].map(Fence::new);
    let stale = FenceCheck::Stale { seen: new };
    for (fence, check) in
        [(old, FenceCheck::Accepted), (new, FenceCheck::Accepted), (new, FenceCheck::Accepted), (old, stale)]
    {
        assert_eq!(pay(&mut db, 42, fence).unwrap(), Some(check));
        assert_eq!(ship(&mut db, "invoice:42", fence).unwrap(), check);
    }
    assert_eq!(pay(&mut db, 43, new).unwrap(), None, "there is no such invoice");
    assert_eq!(server.sql("SELECT count(*) FROM parcel"), "3");
    // Each lock has a row of its own.
    assert_eq!(ship(&mut db, "invoice:43", old).unwrap(), FenceCheck::Accepted);
    assert_eq!(ship(&mut db, "INVOICE:42", old).unwrap(), FenceCheck::Accepted);
    let seen = FenceTable::new(SqlDialect::Postgres, "fence_seen").seen();
    assert_eq!(db.query_one(&seen, &[&"invoice:42"]).unwrap().get::<_, i64>(0), new.as_i64());
}

/// A holder that was stopped in the middle of its transaction: the newer one waits, and what the
/// older one writes afterwards is refused.
#[test]
fn newer_holder_waits_for_open_transaction_on_postgres() {
    // F1
    let (server, mut db) = start();
    let raise = FenceTable::new(SqlDialect::Postgres, "fence_seen").raise();
    let mut old = db.transaction().unwrap();
    old.query_one(&raise, &[&"invoice:42", &1_i64]).unwrap();
    thread::scope(|scope| {
        let newer = scope.spawn(|| ship(&mut connect(&server), "invoice:42", Fence::new(2)));
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        assert!(lock_testkit::wait_until(Duration::from_secs(20), || server.sql(waits) == "1"), "it waits");
        old.execute("INSERT INTO parcel (fence) VALUES (1)", &[]).unwrap();
        old.commit().unwrap();
        assert_eq!(newer.join().unwrap().unwrap(), FenceCheck::Accepted);
    });
    assert_eq!(server.sql("SELECT string_agg(fence::text, ' ' ORDER BY number) FROM parcel"), "1 2");
    assert_eq!(ship(&mut db, "invoice:42", Fence::new(1)).unwrap(), FenceCheck::Stale { seen: Fence::new(2) });
}

#[test]
fn concurrent_writes_keep_order_on_postgres() {
    // F1
    let (server, _) = start();
    kit::storm(|| {
        let mut db = connect(&server);
        move |fence| {
            let check = ship(&mut db, "invoice:42", fence).unwrap();
            // The sequence counted while the row was locked. It has no value before the first write.
            let order = db.query_one("SELECT lastval()", &[]).map_or(0, |row| row.get::<_, i64>(0));
            (check, order as u64)
        }
    });
}

/// Under stricter isolation the server refuses what it cannot order. It accepts nothing stale.
#[test]
fn old_snapshot_is_an_error_on_postgres() {
    // F1
    let (server, mut db) = start();
    let raise = FenceTable::new(SqlDialect::Postgres, "fence_seen").raise();
    assert_eq!(ship(&mut db, "invoice:42", Fence::new(1)).unwrap(), FenceCheck::Accepted);
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let mut other = connect(&server);
        let mut old = other.build_transaction().isolation_level(level).start().unwrap();
        old.query("SELECT 1 FROM parcel", &[]).unwrap();
        assert_eq!(ship(&mut db, "invoice:42", Fence::new(3)).unwrap(), FenceCheck::Accepted);
        let error = old.query_one(&raise, &[&"invoice:42", &2_i64]).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    }
}

#[test]
fn any_name_can_be_quoted_on_postgres() {
    // F3
    let (_server, mut db) = start();
    let name = "a\"b`c'd; DROP TABLE invoice; -- é";
    let schema = name.replace('a', "s");
    let column = FenceColumn::new(SqlDialect::Postgres, name);
    let table = FenceTable::new(SqlDialect::Postgres, name).schema(&schema);
    let schema = FenceColumn::new(SqlDialect::Postgres, &schema).name();
    db.batch_execute(&format!("CREATE SCHEMA {schema}; ALTER TABLE invoice ADD COLUMN {} bigint", column.name()))
        .unwrap();
    let update = format!("UPDATE invoice SET {} WHERE {}", column.set(1), column.condition(1));
    assert_eq!(db.execute(&update, &[&5_i64]).unwrap(), 1);
    assert_eq!(db.execute(&update, &[&4_i64]).unwrap(), 0);
    db.batch_execute(&table.create()).unwrap();
    for (fence, seen) in [(5_i64, 5_i64), (4, 5), (6, 6)] {
        assert_eq!(db.query_one(&table.raise(), &[&name, &fence]).unwrap().get::<_, i64>(0), seen);
    }
    assert_eq!(db.query_one(&table.seen(), &[&name]).unwrap().get::<_, i64>(0), 6);
}

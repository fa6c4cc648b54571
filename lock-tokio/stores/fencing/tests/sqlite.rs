//! Fencing on SQLite. The functions `pay` and `ship` are in docs/fencing.md.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, FenceColumn, FenceTable, SqlDialect};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

mod kit;

/// Marks an invoice as paid.
fn pay(db: &Connection, invoice: i64, fence: Fence) -> rusqlite::Result<Option<FenceCheck>> {
    let column = FenceColumn::new(SqlDialect::Sqlite, "fence");
    let (set, condition) = (column.set(1), column.condition(1));
    let update = format!("UPDATE invoice SET state = 'paid', {set} WHERE id = ?2 AND {condition}");
    let affected = db.execute(&update, [fence.as_i64(), invoice])? as u64;
    // Only to learn why no row was affected.
    let select = "SELECT fence FROM invoice WHERE id = ?1";
    let seen: Option<Option<i64>> = db.query_row(select, [invoice], |row| row.get(0)).optional()?;
    Ok(column.check(fence, affected, seen.flatten().map(Fence::from_i64)))
}

/// Writes a table that has no column for the token.
fn ship(db: &mut Connection, lock: &str, fence: Fence) -> rusqlite::Result<FenceCheck> {
    let table = FenceTable::new(SqlDialect::Sqlite, "fence_seen");
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let seen = transaction.query_row(&table.raise(), (lock, fence.as_i64()), |row| row.get(0))?;
    let check = fence.check(Fence::from_i64(seen));
    if check == FenceCheck::Accepted {
        transaction.execute("INSERT INTO parcel (fence) VALUES (?1)", [fence.as_i64()])?;
        transaction.commit()?;
    }
    Ok(check)
}

fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    db.pragma_update(None, "synchronous", "off").unwrap();
    db.execute_batch(&FenceTable::new(SqlDialect::Sqlite, "fence_seen").create()).unwrap();
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS invoice (id INTEGER PRIMARY KEY, state TEXT, fence INTEGER);
         CREATE TABLE IF NOT EXISTS parcel (number INTEGER PRIMARY KEY, fence INTEGER);
         INSERT OR IGNORE INTO invoice VALUES (42, 'open', NULL)",
    )
    .unwrap();
    db
}

#[test]
fn stale_write_is_refused_on_sqlite() {
    // F1
    let mut db = open(Path::new(":memory:"));
    let [old, new] = [(1 << 53) + 1, (1 << 53) + 2].map(Fence::new);
    let stale = FenceCheck::Stale { seen: new };
    for (fence, check) in
        [(old, FenceCheck::Accepted), (new, FenceCheck::Accepted), (new, FenceCheck::Accepted), (old, stale)]
    {
        assert_eq!(pay(&db, 42, fence).unwrap(), Some(check));
        assert_eq!(ship(&mut db, "invoice:42", fence).unwrap(), check);
    }
    assert_eq!(pay(&db, 43, new).unwrap(), None, "there is no such invoice");
    let parcels: i64 = db.query_row("SELECT count(*) FROM parcel", [], |row| row.get(0)).unwrap();
    assert_eq!(parcels, 3);
    // Each lock has a row of its own.
    assert_eq!(ship(&mut db, "invoice:43", old).unwrap(), FenceCheck::Accepted);
    assert_eq!(ship(&mut db, "INVOICE:42", old).unwrap(), FenceCheck::Accepted);
    let seen = FenceTable::new(SqlDialect::Sqlite, "fence_seen").seen();
    let seen: i64 = db.query_row(&seen, ["invoice:42"], |row| row.get(0)).unwrap();
    assert_eq!(seen, new.as_i64());
}

#[test]
fn concurrent_writes_keep_order_on_sqlite() {
    // F1
    let folder = lock_testkit::temporary();
    let path = folder.path().join("db");
    drop(open(&path));
    kit::storm(|| {
        let mut db = open(&path);
        move |fence| {
            let check = ship(&mut db, "invoice:42", fence).unwrap();
            (check, db.last_insert_rowid() as u64)
        }
    });
}

#[test]
fn any_name_can_be_quoted_on_sqlite() {
    // F3
    let db = open(Path::new(":memory:"));
    let name = "a\"b`c'd; DROP TABLE invoice; -- é";
    let column = FenceColumn::new(SqlDialect::Sqlite, name);
    let table = FenceTable::new(SqlDialect::Sqlite, name).schema("main");
    db.execute_batch(&format!("ALTER TABLE invoice ADD COLUMN {} INTEGER", column.name())).unwrap();
    let update = format!("UPDATE invoice SET {} WHERE {}", column.set(1), column.condition(1));
    assert_eq!(db.execute(&update, [5]).unwrap(), 1);
    assert_eq!(db.execute(&update, [4]).unwrap(), 0);
    db.execute_batch(&table.create()).unwrap();
    for (fence, seen) in [(5_i64, 5_i64), (4, 5), (6, 6)] {
        let answer: i64 = db.query_row(&table.raise(), (name, fence), |row| row.get(0)).unwrap();
        assert_eq!(answer, seen);
    }
    // A column that does not exist is an error, not a text that every token is compared with.
    let missing = FenceColumn::new(SqlDialect::Sqlite, "missing").condition(1);
    assert!(db.execute(&format!("UPDATE invoice SET state = 'paid' WHERE {missing}"), [5]).is_err());
}

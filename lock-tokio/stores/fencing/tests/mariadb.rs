//! Fencing on MariaDB. The functions `pay` and `ship` are in docs/fencing.md. `make test-stores` runs them.
#![cfg(feature = "mariadb")]
#![allow(clippy::unwrap_used, reason = "tests")]

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, FenceColumn, FenceTable, SqlDialect};
use mysql::prelude::Queryable as _;
use mysql::{Conn, TxOpts};
use store_testkit::MariaDb;

mod kit;

/// Marks an invoice as paid.
fn pay(db: &mut Conn, invoice: i64, fence: Fence) -> mysql::Result<Option<FenceCheck>> {
    let column = FenceColumn::new(SqlDialect::MariaDb, "fence");
    let (set, condition) = (column.set(1), column.condition(1));
    let update = format!("UPDATE invoice SET state = 'paid', {set} WHERE id = ? AND {condition}");
    let mut transaction = db.start_transaction(TxOpts::default())?;
    // Its parameters have no numbers: the token comes once for each part.
    transaction.exec_drop(update, (fence.as_i64(), invoice, fence.as_i64()))?;
    let affected = transaction.affected_rows();
    let select = "SELECT fence FROM invoice WHERE id = ? FOR UPDATE";
    let seen: Option<Option<i64>> = transaction.exec_first(select, (invoice,))?;
    transaction.commit()?;
    Ok(column.check(fence, affected, seen.flatten().map(Fence::from_i64)))
}

/// Writes a table that has no column for the token.
fn ship(db: &mut Conn, lock: &str, fence: Fence) -> mysql::Result<FenceCheck> {
    let table = FenceTable::new(SqlDialect::MariaDb, "fence_seen");
    let mut transaction = db.start_transaction(TxOpts::default())?;
    transaction.exec_drop(table.raise(), (lock, fence.as_i64()))?;
    let seen: Option<i64> = transaction.exec_first(table.seen(), (lock,))?;
    let check = fence.check(Fence::from_i64(seen.unwrap_or_default()));
    if check == FenceCheck::Accepted {
        transaction.exec_drop("INSERT INTO parcel (fence) VALUES (?)", (fence.as_i64(),))?;
        transaction.commit()?;
    }
    Ok(check)
}

fn connect(server: &MariaDb) -> Conn {
    Conn::new(mysql::Opts::from_url(&server.url().replace("/test", "")).unwrap()).unwrap()
}

fn start() -> (MariaDb, Conn) {
    let server = MariaDb::start();
    let mut db = connect(&server);
    for statement in [
        "CREATE DATABASE IF NOT EXISTS test",
        "USE test",
        "CREATE TABLE invoice (id BIGINT PRIMARY KEY, state TEXT, fence BIGINT)",
        "INSERT INTO invoice VALUES (42, 'open', NULL)",
        "CREATE TABLE parcel (number BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT)",
        &FenceTable::new(SqlDialect::MariaDb, "fence_seen").create(),
    ] {
        db.query_drop(statement).unwrap();
    }
    (server, db)
}

#[test]
#[ignore = "make test-stores"]
fn stale_write_is_refused_on_mariadb() {
    // F1
    let (_server, mut db) = start();
    let [old, new] = [(1 << 53) + 1, (1 << 53) + 2].map(Fence::new);
    let stale = FenceCheck::Stale { seen: new };
    // The second write of `new` changes nothing, which the server counts as no row.
    for (fence, check) in
        [(old, FenceCheck::Accepted), (new, FenceCheck::Accepted), (new, FenceCheck::Accepted), (old, stale)]
    {
        assert_eq!(pay(&mut db, 42, fence).unwrap(), Some(check));
        assert_eq!(ship(&mut db, "invoice:42", fence).unwrap(), check);
    }
    // An equal token writes.
    db.query_drop("UPDATE invoice SET state = 'open'").unwrap();
    assert_eq!(pay(&mut db, 42, new).unwrap(), Some(FenceCheck::Accepted));
    assert_eq!(db.query_first("SELECT state FROM invoice").unwrap(), Some("paid".to_owned()));
    assert_eq!(pay(&mut db, 43, new).unwrap(), None, "there is no such invoice");
    assert_eq!(db.query_first("SELECT count(*) FROM parcel").unwrap(), Some(3));
    // Each lock has a row of its own, also if the names differ only in case or in spaces.
    for other in ["INVOICE:42", "invoice:42 ", "invoice:43"] {
        assert_eq!(ship(&mut db, other, old).unwrap(), FenceCheck::Accepted, "{other:?}");
    }
}

/// The application has read something before: the transaction's snapshot is older than the token.
#[test]
#[ignore = "make test-stores"]
fn old_snapshot_hides_no_token_on_mariadb() {
    // F1
    let (server, mut db) = start();
    let table = FenceTable::new(SqlDialect::MariaDb, "fence_seen");
    assert_eq!(ship(&mut db, "invoice:42", Fence::new(1)).unwrap(), FenceCheck::Accepted);
    let mut other = connect(&server);
    other.query_drop("USE test").unwrap();
    let mut old = other.start_transaction(TxOpts::default()).unwrap();
    old.query_drop("SELECT * FROM fence_seen").unwrap();
    assert_eq!(ship(&mut db, "invoice:42", Fence::new(3)).unwrap(), FenceCheck::Accepted);
    old.exec_drop(table.raise(), ("invoice:42", 2)).unwrap();
    let seen: Option<i64> = old.exec_first(table.seen(), ("invoice:42",)).unwrap();
    assert_eq!(seen, Some(3));
}

#[test]
#[ignore = "make test-stores"]
fn concurrent_writes_keep_order_on_mariadb() {
    // F1
    let (server, mut db) = start();
    // Two transactions that insert the same new row can end in a deadlock, which the server breaks.
    assert_eq!(ship(&mut db, "invoice:42", Fence::new(0)).unwrap(), FenceCheck::Accepted);
    kit::storm(|| {
        let mut db = connect(&server);
        db.query_drop("USE test").unwrap();
        move |fence| {
            let check = ship(&mut db, "invoice:42", fence).unwrap();
            let order = db.query_first("SELECT last_insert_id()").unwrap();
            (check, order.unwrap())
        }
    });
}

#[test]
#[ignore = "make test-stores"]
fn any_name_can_be_quoted_on_mariadb() {
    // F3
    let (_server, mut db) = start();
    let name = "a\"b`c'd; DROP TABLE invoice; -- é";
    let column = FenceColumn::new(SqlDialect::MariaDb, name);
    let table = FenceTable::new(SqlDialect::MariaDb, name).schema("test");
    db.query_drop(format!("ALTER TABLE invoice ADD COLUMN {} BIGINT", column.name())).unwrap();
    let update = format!("UPDATE invoice SET {} WHERE {}", column.set(1), column.condition(1));
    for (fence, affected) in [(5, 1), (4, 0), (6, 1)] {
        db.exec_drop(&update, (fence, fence)).unwrap();
        assert_eq!(db.affected_rows(), affected);
    }
    db.query_drop(table.create()).unwrap();
    for (fence, seen) in [(5, 5), (4, 5), (6, 6)] {
        db.exec_drop(table.raise(), (name, fence)).unwrap();
        assert_eq!(db.exec_first(table.seen(), (name,)).unwrap(), Some(seen));
    }
}

//! The store on files.

use std::path::Path;
use std::time::Duration;

use lock_driver::register::{Register as _, RegisterError};
use lock_sqlite::SqliteRegister;
use rusqlite::Connection;
use store_testkit::{Traits, both, check_register, read, record, write};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn store(path: &Path) -> SqliteRegister {
    SqliteRegister::open(path).expect("a thread")
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a file");
    connection.busy_timeout(Duration::from_secs(10)).expect("a connection");
    connection
}

fn mode(path: &Path) -> String {
    open(path).pragma_query_value(None, "journal_mode", |row| row.get(0)).expect("a mode")
}

async fn check(path: &Path) {
    let (one, other) = (store(path), store(path));
    // It creates the file.
    assert_eq!(one.read(b"k").await, Ok(None));
    let connection = open(path);
    check_register(&one, &other, Traits { age: true, changed: false }, async |key, bytes| {
        let planted = match bytes {
            Some(bytes) => connection.execute("INSERT INTO lock_register VALUES (?1, 1, 'x', ?2, 0)", (key, bytes)),
            None => connection.execute("DELETE FROM lock_register WHERE name = ?1", [key]),
        };
        planted.expect("a row");
    })
    .await;
}

#[tokio::test]
async fn new_file_is_a_register() {
    let folder = folder();
    let path = folder.path().join("new.db");
    check(&path).await;
    assert_eq!(mode(&path), "wal");
}

#[tokio::test]
async fn file_with_a_rollback_journal_is_a_register() {
    let folder = folder();
    let path = folder.path().join("old.db");
    open(&path).execute_batch("CREATE TABLE other (x)").expect("a table");
    check(&path).await;
    assert_eq!(mode(&path), "delete", "it stays as it was");
}

#[tokio::test]
async fn url_names_a_file() {
    let folder = folder();
    let path = folder.path().join("a b");
    let store = SqliteRegister::from_url(&format!("sqlite://{}/a%20b", folder.path().display())).expect("a URL");
    assert_eq!(store.read(b"k").await, Ok(None));
    assert!(path.exists());
    for url in ["sqlite:", "sqlite://", "sqlite://:memory:", "sqlite:///a?mode=ro", "sqlite:///%f", "/tmp/a"] {
        let error = SqliteRegister::from_url(url).expect_err(url);
        assert!(matches!(error, RegisterError::Refused(_)), "{url}: {error}");
    }
}

#[tokio::test]
async fn record_of_any_time_is_read() {
    // RG1
    let folder = folder();
    let path = folder.path().join("locks.db");
    let store = store(&path);
    write(&store, b"k", &record(1, 1), None).await;
    for (written, is_old) in [(i64::MIN, true), (0, true), (i64::MAX, false)] {
        open(&path).execute("UPDATE lock_register SET written_ms = ?1", [written]).expect("a row");
        assert_eq!(read(&store, b"k").await.age > Some(Duration::ZERO), is_old, "{written}");
    }
}

#[tokio::test]
async fn busy_file_is_no_conflict() {
    for journal in ["wal", "delete"] {
        let folder = folder();
        let path = folder.path().join("locks.db");
        let other = open(&path);
        other.pragma_update(None, "journal_mode", journal).expect("a mode");
        let store = store(&path);
        write(&store, b"k", &record(1, 1), None).await;
        let entry = read(&store, b"k").await;
        other.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
        for (key, expected) in [(b"k", Some(&entry)), (b"l", None)] {
            let error = store.write(key, &record(1, 2), expected).await.expect_err("it is locked");
            assert!(matches!(error, RegisterError::NotSent(_)), "{journal}: {error}");
        }
        other.execute_batch("COMMIT").expect("a transaction");
        write(&store, b"k", &record(1, 2), Some(&entry)).await;
        // A reader keeps a writer without a WAL from committing.
        let entry = read(&store, b"k").await;
        other.execute_batch("BEGIN; SELECT * FROM lock_register").expect("it reads");
        match store.write(b"k", &record(1, 3), Some(&entry)).await {
            Ok(_) => assert_eq!(journal, "wal"),
            Err(error) => {
                assert!(journal == "delete" && matches!(error, RegisterError::NotSent(_)), "{journal}: {error}");
                other.execute_batch("COMMIT").expect("a transaction");
                assert_eq!(read(&store, b"k").await.record, entry.record, "it was rolled back");
            }
        }
    }
}

#[tokio::test]
async fn file_that_cannot_be_used_is_refused() {
    let folder = folder();
    let missing = folder.path().join("missing/locks.db");
    let text = folder.path().join("text");
    std::fs::write(&text, "not a database, but a text of more than a hundred bytes. ".repeat(4)).expect("a file");
    let other_table = folder.path().join("other.db");
    open(&other_table).execute_batch("CREATE TABLE lock_register (x)").expect("a table");
    for path in [&missing, &text, &other_table, &folder.path().to_owned()] {
        let store = store(path);
        for error in [store.read(b"k").await.err(), store.write(b"k", &record(1, 1), None).await.err()] {
            assert!(matches!(&error, Some(RegisterError::Refused(_))), "{error:?}");
        }
        // Errors of the client name it.
        assert_eq!(store.name(), format!("sqlite://{}", path.display()));
    }
    // It may come later.
    let store = store(&missing);
    store.read(b"k").await.expect_err("there is no folder");
    std::fs::create_dir(folder.path().join("missing")).expect("a folder");
    write(&store, b"k", &record(1, 1), None).await;
}

#[cfg(unix)]
#[tokio::test]
async fn file_that_was_replaced_is_noticed() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let (one, other) = (store(&path), store(&path));
    write(&one, b"k", &record(1, 1), None).await;
    let entry = read(&one, b"k").await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(folder.path().join(name)).expect("a file");
    }
    write(&other, b"k", &record(2, 1), None).await;
    assert_eq!(one.write(b"k", &record(1, 2), Some(&entry)).await, Err(RegisterError::Conflict));
    assert_eq!(read(&one, b"k").await.record, record(2, 1));
}

/// Not a test: the process that the next one kills.
#[tokio::test]
#[ignore = "run by killed_writer_leaves_a_whole_record"]
async fn writer_until_killed() {
    let Some(path) = std::env::var_os("LOCK_SQLITE_FILE") else { return };
    let store = store(Path::new(&path));
    let mut number = 0;
    loop {
        let entry = store.read(b"k").await.expect("a read");
        number += 1;
        write(&store, b"k", &record(1, number), entry.as_ref()).await;
    }
}

#[tokio::test]
async fn killed_writer_leaves_a_whole_record() {
    for journal in ["wal", "delete"] {
        let folder = folder();
        let path = folder.path().join("locks.db");
        open(&path).pragma_update(None, "journal_mode", journal).expect("a mode");
        let store = store(&path);
        let mut seen = 0;
        for _ in 0..5 {
            let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "writer_until_killed", "--ignored"]).env("LOCK_SQLITE_FILE", &path);
            let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("it runs");
            let before = seen;
            while seen < before + 20 {
                match store.read(b"k").await {
                    Ok(entry) => seen = entry.map_or(0, |entry| entry.record.version - record(1, 0).version),
                    Err(RegisterError::NotSent(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(child.try_wait().expect("a child").is_none(), "it writes for ever");
                tokio::task::yield_now().await;
            }
            child.kill().expect("a child");
            child.wait().expect("a child");
            let entry = read(&store, b"k").await;
            let next = entry.record.version - record(1, 0).version + 1;
            let (a, b) = both(
                store.write(b"k", &record(2, next), Some(&entry)),
                store.write(b"k", &record(3, next), Some(&entry)),
            )
            .await;
            assert!(a.is_ok() && b == Err(RegisterError::Conflict), "{a:?} {b:?}");
            seen = 0;
        }
    }
}

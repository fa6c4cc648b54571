//! The Postgres server of the kit does what its tests rely on.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use store_testkit::{Database, Postgres};

#[test]
fn killed_server_keeps_its_data() {
    let mut postgres = Postgres::builder().arg("application_name", "kit").start();
    assert_eq!(postgres.sql("SHOW application_name"), "psql", "psql names itself");
    assert_eq!(postgres.sql("SHOW fsync"), "off");
    postgres.sql("CREATE TABLE sale (stock bigint); INSERT INTO sale VALUES (8)");
    let (pid, url) = (postgres.pid(), postgres.url());
    postgres.kill();
    postgres.kill();
    assert!(postgres.try_sql("SELECT 1").is_err_and(|error| error.contains("refused")), "it is gone");
    postgres.restart();
    assert_ne!(postgres.pid(), pid);
    assert_eq!((postgres.url(), postgres.sql("SELECT stock FROM sale")), (url, "8".to_owned()));
}

#[test]
fn paused_server_does_not_reply() {
    let postgres = Postgres::start();
    let mut connection = TcpStream::connect(postgres.address()).expect("it listens");
    // A request for TLS is answered by the process of the connection: by `N` for no.
    let ask_for_tls = [0, 0, 0, 8, 4, 210, 22, 47];
    let mut reply = [0];
    connection.write_all(&ask_for_tls).expect("it is open");
    connection.read_exact(&mut reply).expect("it replies");
    assert_eq!(&reply, b"N");

    postgres.pause();
    connection.write_all(&ask_for_tls).expect("it is open");
    connection.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    assert!(connection.read_exact(&mut reply).is_err(), "it is stopped");
    postgres.resume();
    connection.set_read_timeout(None).expect("a socket");
    assert_eq!(connection.read(&mut reply).expect("it replies, or refuses the second request"), 1);
    assert_eq!(postgres.sql("SELECT 1"), "1");
}

#[test]
fn paused_server_can_be_killed_and_dropped() {
    let mut postgres = Postgres::start();
    postgres.pause();
    postgres.kill();
    postgres.restart();
    postgres.pause();
}

#[test]
fn access_rules_come_first() {
    let postgres = Postgres::builder().access("host all stranger all reject").start();
    postgres.sql("CREATE ROLE stranger LOGIN; CREATE ROLE guest LOGIN");
    let answer = |user: &str| postgres.try_sql(&format!("\\c {}", postgres.url_as(user)));
    assert!(answer("stranger").is_err_and(|error| error.contains("reject")));
    assert!(answer("guest").is_ok());
}

#[test]
fn databases_of_one_server_are_separate() {
    let [one, other] = [(); 2].map(|()| Database::new());
    one.sql("CREATE TABLE sale (stock bigint)");
    assert_eq!(other.sql("SELECT count(*) FROM pg_tables WHERE tablename = 'sale'"), "0");
    assert_ne!(one.url(), other.url());
    drop(one);
    assert_eq!(other.sql("SELECT current_database()"), other.url().rsplit_once('/').unwrap().1);
}

//! The MariaDB server of the kit does what its tests rely on. Not in `make test`, which does
//! without MariaDB.

use std::net::TcpStream;

use store_testkit::MariaDb;

#[test]
#[ignore = "make test-stores"]
fn mariadb_restarts_on_the_same_port() {
    let mut mariadb = MariaDb::start();
    let url = mariadb.url();
    mariadb.kill();
    assert!(TcpStream::connect(mariadb.address()).is_err(), "it is gone");
    mariadb.restart();
    assert_eq!(mariadb.url(), url);
    assert!(TcpStream::connect(mariadb.address()).is_ok());
}

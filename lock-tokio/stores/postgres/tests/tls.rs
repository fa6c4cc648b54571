//! TLS to a real server.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use lock_driver::register::{Register as _, RegisterError};
use lock_postgres::{CREATE_TABLE, PostgresRegister};
use lock_testkit::{Authority, Pair, Validity};
use store_testkit::Postgres;

/// Starts a server that lets nobody in without TLS.
fn server(pair: &Pair) -> Postgres {
    let postgres = Postgres::builder().access("hostnossl all app all reject").start();
    let data = fs::metadata(postgres.data()).expect("a folder");
    for (name, from) in [("server.crt", &pair.cert), ("server.key", &pair.key)] {
        let path = postgres.data().join(name);
        fs::copy(from, &path).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("one's own file");
        chown(&path, Some(data.uid()), Some(data.gid())).expect("one's own file");
    }
    postgres.sql(CREATE_TABLE);
    postgres.sql("CREATE ROLE app LOGIN; GRANT SELECT ON lock_register TO app");
    postgres.sql("ALTER SYSTEM SET ssl = on");
    let mut postgres = postgres;
    postgres.restart();
    postgres
}

#[tokio::test]
async fn certificates_are_verified_as_asked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let postgres = server(&authority.issue("localhost", &["localhost"], Validity::Current));
    let (ca, wrong_ca) = (authority.ca(), other.ca());
    let (ca, wrong_ca) = (ca.display(), wrong_ca.display());
    let host = format!("localhost:{}", postgres.port());
    let by_address = postgres.address().to_string();
    for (host, query, says) in [
        (&host, "sslmode=disable".to_owned(), "reject"),
        (&host, String::new(), ""),
        (&host, "sslmode=require".into(), ""),
        (&host, format!("sslmode=verify-full&sslrootcert={ca}"), ""),
        (&host, format!("sslmode=require&sslrootcert={wrong_ca}"), "certificate"),
        (&host, "sslmode=verify-full".into(), "certificate"),
        (&by_address, format!("sslmode=verify-ca&sslrootcert={ca}"), "not valid for name"),
        (&host, "sslmode=require&sslrootcert=/missing".into(), "/missing"),
    ] {
        let store = PostgresRegister::from_url(&format!("postgres://app@{host}/postgres?{query}")).expect("a URL");
        let result = store.read(b"k").await;
        match says {
            "" => assert_eq!(result, Ok(None), "{query}"),
            _ => {
                let error = result.expect_err(&query);
                assert!(
                    matches!(error, RegisterError::Refused(_)) && error.to_string().contains(says),
                    "{query}: {error}"
                );
            }
        }
    }
}

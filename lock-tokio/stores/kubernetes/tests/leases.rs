//! The register on a small API server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod api;

use core::time::Duration;

use api::{ApiServer, Fault};
use lock_driver::register::{Register, RegisterError};
use lock_kubernetes::LeaseRegister;
use lock_proto::register::Record;
use serde_json::json;
use store_testkit::{Traits, check_register, read, record, write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn server() -> (ApiServer, LeaseRegister) {
    let server = ApiServer::default();
    let register = LeaseRegister::new(server.client(), "default");
    (server, register)
}

#[tokio::test]
async fn it_does_what_every_store_does() {
    let (server, one) = server();
    let other = LeaseRegister::new(server.client(), "default");
    let plant = async |key: &[u8], bytes: Option<&[u8]>| {
        let name = find(&server, key);
        server.plant(
            &name,
            bytes.map(|bytes| {
                let note = json!({ "holder": "", "term": 0, "record": String::from_utf8_lossy(bytes), "value": "" });
                json!({
                    "metadata": { "annotations": { "lock-proto/record": note.to_string() } },
                    "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0 },
                })
            }),
        );
    };
    check_register(&one, &other, Traits { age: false, changed: true }, plant).await;
}

/// The Lease of a key that the check plants.
fn find(server: &ApiServer, key: &[u8]) -> String {
    let slug = String::from_utf8_lossy(key).replace('/', "-");
    server.names().into_iter().find(|name| name.starts_with(&slug)).unwrap()
}

#[tokio::test]
async fn leases_are_those_of_client_go() {
    let (server, register) = server();
    let held = Record { ttl: Duration::from_millis(3500), ..record(1, 1) };
    write(&register, b"job", &held, None).await;
    let entry = read(&register, b"job").await;
    assert_eq!(entry.record, held);
    let lease = server.get("job").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], format!("host-1 4711_{:032x}", 1));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 4, "rounded up");
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    // A renewal: the same term, and another second.
    let mut renewed = lease["spec"]["renewTime"].clone();
    let mut entry = entry;
    for number in 2..5 {
        write(&register, b"job", &Record { ttl: held.ttl, ..record(1, number) }, Some(&entry)).await;
        let lease = server.get("job").unwrap();
        let second = |time: &serde_json::Value| time.as_str().unwrap()[..19].to_owned();
        assert!(second(&lease["spec"]["renewTime"]) > second(&renewed), "{lease}");
        assert_eq!(lease["spec"]["leaseTransitions"], 0);
        renewed = lease["spec"]["renewTime"].clone();
        entry = read(&register, b"job").await;
    }
    // Free, then taken by another one.
    let free = Record { held: false, ..record(1, 5) };
    write(&register, b"job", &free, Some(&entry)).await;
    let lease = server.get("job").unwrap();
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    let entry = read(&register, b"job").await;
    assert_eq!(entry.record, free);
    write(&register, b"job", &record(2, 1), Some(&entry)).await;
    let lease = server.get("job").unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    assert_eq!(lease["spec"]["acquireTime"], lease["spec"]["renewTime"]);
}

#[tokio::test]
async fn short_ttls_are_refused() {
    let (server, register) = server();
    let short = Record { ttl: Duration::from_millis(2999), ..record(1, 1) };
    let result = register.write(b"job", &short, None).await;
    assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains("at least 3s")), "{result:?}");
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn what_others_added_is_kept() {
    let (server, register) = server();
    write(&register, b"job", &record(1, 1), None).await;
    let before = read(&register, b"job").await;
    let mut lease = server.get("job").unwrap();
    lease["metadata"]["labels"] = json!({ "team": "red" });
    lease["metadata"]["annotations"]["note"] = "do not touch".into();
    server.plant("job", Some(lease));
    // RG1: the same record with a newer revision, which the next write expects.
    let after = read(&register, b"job").await;
    assert_eq!(after.record, before.record);
    assert_eq!(register.write(b"job", &record(1, 2), Some(&before)).await, Err(RegisterError::Conflict));
    write(&register, b"job", &record(1, 2), Some(&after)).await;
    let lease = server.get("job").unwrap();
    assert_eq!(lease["metadata"]["labels"]["team"], "red");
    assert_eq!(lease["metadata"]["annotations"]["note"], "do not touch");
}

#[tokio::test]
async fn leases_that_cannot_be_read_are_refused() {
    let (server, register) = server();
    for spec in [
        json!({ "holderIdentity": "somebody" }),
        json!({ "holderIdentity": "somebody", "leaseDurationSeconds": i32::MAX }),
    ] {
        server.plant("job", Some(json!({ "metadata": {}, "spec": spec })));
        let result = register.read(b"job").await;
        assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains("somebody")), "{result:?}");
    }
    // One without a spec is free.
    server.plant("job", Some(json!({ "metadata": {} })));
    let entry = read(&register, b"job").await;
    assert!(!entry.record.held);
    write(&register, b"job", &record(1, 1), Some(&entry)).await;
}

#[tokio::test]
async fn errors_say_what_to_do() {
    // RG4
    let (server, register) = server();
    write(&register, b"job", &record(1, 1), None).await;
    let entry = read(&register, b"job").await;
    for (code, remedy) in [(401, "credentials"), (403, "allow get, create, patch"), (422, "does not take")] {
        for expected in [None, Some(&entry)] {
            server.fail(&[Fault::Status(code, "")]);
            let result = register.write(b"job", &record(1, 2), expected).await;
            assert!(
                matches!(&result, Err(RegisterError::Refused(text)) if text.contains(remedy)),
                "{code}: {result:?}"
            );
        }
    }
    server.fail(&[Fault::Status(404, "NotFound")]);
    let result = register.write(b"other", &record(1, 1), None).await;
    assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains("create it")), "{result:?}");
    server.fail(&[Fault::Status(429, "TooManyRequests")]);
    let result = register.write(b"job", &record(1, 2), Some(&entry)).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
    // Applied, but who knows.
    server.fail(&[Fault::Lost]);
    let result = register.write(b"job", &record(1, 2), Some(&entry)).await;
    assert!(matches!(result, Err(RegisterError::Unknown(_))), "{result:?}");
    assert_eq!(read(&register, b"job").await.record, record(1, 2));
    // "Already exists" of a Lease that does not.
    server.fail(&[Fault::Status(409, "AlreadyExists")]);
    let result = register.write(b"other", &record(1, 1), None).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
}

/// Replies 503 to each request, and counts them.
#[tokio::test]
async fn requests_are_not_repeated() {
    // RG4
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let register = LeaseRegister::from_config(kube::Config::new(uri), Some("default"));
    let serve = async {
        let mut requests = 0;
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            while connection.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                requests += 1;
                assert_eq!(requests, 1);
                connection.write_all(b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
        }
    };
    let result = tokio::select! {
        result = register.read(b"job") => result,
        () = serve => unreachable!("it serves for ever"),
    };
    assert!(matches!(result, Err(RegisterError::Unknown(_))), "{result:?}");
    let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let result = LeaseRegister::from_config(nobody, None).write(b"job", &record(1, 1), None).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
}

#[test]
fn urls_are_checked() {
    for url in ["kube:/a", "http://a", "kube://a/b", "kube://A"] {
        let error = LeaseRegister::from_url(url).unwrap_err();
        assert!(matches!(&error, RegisterError::Refused(text) if text.contains("kube://NAMESPACE")), "{url}: {error}");
    }
    assert!(LeaseRegister::from_url("kube://").is_ok() && LeaseRegister::from_url("kube://my-app/").is_ok());
}

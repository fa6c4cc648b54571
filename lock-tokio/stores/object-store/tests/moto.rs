//! The register on moto, an S3 in Python. Not in `make test`, which does without it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use std::{env, thread};

use lock_conformance::stores::TestStore;
use lock_driver::register::{Register, RegisterError};
use lock_object_store::ObjectRegister;
use lock_testkit::{Process, TIMEOUT, free_port};
use lock_tokio::register::Config;
use lock_tokio::{Client, ConnectError};
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use store_testkit::{Traits, check_register, read, record, write};

/// One request at a time, since moto does not compare and write in one step.
const SERVER: &str = "
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple('127.0.0.1', int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
";

struct Moto {
    _process: Process,
    port: u16,
}

impl Moto {
    fn start() -> Self {
        let (mut process, port) = (Process::default(), free_port());
        process.run("python3".as_ref(), "python3", |command| {
            command.args(["-c", SERVER, &port.to_string()]);
            if let Some(folder) = env::var_os("MOTO") {
                command.env("PYTHONPATH", folder);
            }
        });
        let end = Instant::now() + TIMEOUT;
        while put_bucket(port).is_none() {
            assert!(process.ended().is_none(), "moto does not start; run `make test-stores`");
            assert!(Instant::now() < end, "moto does not answer within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { _process: process, port }
    }

    fn url(&self, bucket: &str) -> String {
        let settings = "region=us-east-1&allow_http=true&access_key_id=id&secret_access_key=secret";
        format!("s3://{bucket}/locks?{settings}&endpoint=http://127.0.0.1:{}", self.port)
    }

    fn register(&self, bucket: &str) -> ObjectRegister {
        ObjectRegister::from_url(&self.url(bucket)).unwrap()
    }
}

impl TestStore for Moto {
    type Register = ObjectRegister;

    fn new() -> Self {
        Self::start()
    }

    fn make(&self) -> impl FnOnce() -> Result<ObjectRegister, RegisterError> + Send + 'static {
        let url = self.url("bucket");
        move || ObjectRegister::from_url(&url)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_object_store::connect_with(config, &self.url("bucket"))
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }
}

lock_conformance::store_suite!(
    #[ignore = "make test-stores"]
    Moto
);

fn put_bucket(port: u16) -> Option<()> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.write_all(b"PUT /bucket HTTP/1.0\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").ok()?;
    let mut reply = String::new();
    connection.read_to_string(&mut reply).ok()?;
    reply.starts_with("HTTP/1.0 200").then_some(())
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn it_does_what_every_store_does() {
    let moto = Moto::start();
    let (one, other) = (moto.register("bucket"), moto.register("bucket"));
    let client = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_endpoint(format!("http://127.0.0.1:{}", moto.port))
        .with_allow_http(true)
        .with_access_key_id("id")
        .with_secret_access_key("secret")
        .build()
        .unwrap();
    let plant = async |key: &[u8], bytes: Option<&[u8]>| {
        let path = Path::parse(format!("locks/{}", str::from_utf8(key).unwrap().replace('/', "%2F"))).unwrap();
        match bytes {
            Some(bytes) => drop(client.put(&path, bytes.to_vec().into()).await.unwrap()),
            None => client.delete(&path).await.unwrap(),
        }
    };
    check_register(&one, &other, Traits { age: true, changed: false }, plant).await;
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn a_missing_bucket_is_refused() {
    let moto = Moto::start();
    let result = moto.register("none").read(b"job").await;
    assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains("create it")), "{result:?}");
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn a_store_that_is_gone_got_nothing() {
    let moto = Moto::start();
    let register = moto.register("bucket");
    write(&register, b"job", &record(1, 1), None).await;
    let entry = read(&register, b"job").await;
    drop(moto);
    let result = register.write(b"job", &record(1, 2), Some(&entry)).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
}

//! The register on moto, an S3 in Python. Not in `make test`, which does without it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use kit::Moto;
use lock_conformance::stores::TestStore;
use lock_driver::register::{Register, RegisterError};
use lock_object_store::ObjectRegister;
use lock_tokio::register::Config;
use lock_tokio::{Client, ConnectError};
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use store_testkit::{Traits, check_register, read, record, write};

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

fn register(moto: &Moto, bucket: &str) -> ObjectRegister {
    ObjectRegister::from_url(&moto.url(bucket)).unwrap()
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn it_does_what_every_store_does() {
    let moto = Moto::start();
    let (one, other) = (register(&moto, "bucket"), register(&moto, "bucket"));
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
    let result = register(&moto, "none").read(b"job").await;
    assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains("create it")), "{result:?}");
}

#[tokio::test]
#[ignore = "make test-stores"]
async fn a_store_that_is_gone_got_nothing() {
    let moto = Moto::start();
    let register = register(&moto, "bucket");
    write(&register, b"job", &record(1, 1), None).await;
    let entry = read(&register, b"job").await;
    drop(moto);
    let result = register.write(b"job", &record(1, 2), Some(&entry)).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
}

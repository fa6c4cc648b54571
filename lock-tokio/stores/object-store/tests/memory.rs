//! The register on `object_store`'s own store in memory.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use lock_driver::register::{Register, RegisterError};
use lock_object_store::ObjectRegister;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use store_testkit::{Traits, check_register, record};

fn store() -> (Arc<InMemory>, ObjectRegister) {
    let memory = Arc::new(InMemory::new());
    let register = ObjectRegister::new(memory.clone(), "locks");
    (memory, register)
}

#[tokio::test]
async fn it_does_what_every_store_does() {
    let (memory, register) = store();
    let plant = async |key: &[u8], bytes: Option<&[u8]>| {
        let path = Path::parse(format!("locks/{}", str::from_utf8(key).unwrap().replace('/', "%2F"))).unwrap();
        match bytes {
            Some(bytes) => drop(memory.put(&path, bytes.to_vec().into()).await.unwrap()),
            None => memory.delete(&path).await.unwrap(),
        }
    };
    check_register(&register, &register.clone(), Traits::default(), plant).await;
}

#[tokio::test]
async fn long_objects_are_not_read() {
    let (memory, register) = store();
    memory.put(&Path::from("locks/job"), vec![b'x'; 2 << 20].into()).await.unwrap();
    let error = register.read(b"job").await.unwrap_err();
    assert!(matches!(&error, RegisterError::Refused(text) if text.contains("\"locks/job\"")), "{error}");
    assert!(matches!(register.write(b"job", &record(1, 1), None).await, Err(RegisterError::Refused(_))));
}

//! Fencing in an object store. The function `append` is in docs/fencing.md.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::thread;

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, OBJECT_METADATA};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};

/// Adds to an object.
async fn append(store: &dyn ObjectStore, path: &Path, text: &str, fence: Fence) -> Result<FenceCheck, Error> {
    let token = Attribute::Metadata(OBJECT_METADATA.into());
    loop {
        let (mode, seen, mut data) = match store.get(path).await {
            Ok(object) => {
                let (meta, seen) = (object.meta.clone(), object.attributes.get(&token).map(|seen| seen.parse()));
                let version = UpdateVersion { e_tag: meta.e_tag, version: meta.version };
                (PutMode::Update(version), seen, object.bytes().await?.to_vec())
            }
            Err(Error::NotFound { .. }) => (PutMode::Create, None, Vec::new()),
            Err(error) => return Err(error),
        };
        let seen = seen.transpose().map_err(|error| Error::Generic { store: "fence", source: Box::new(error) })?;
        let check = fence.check(seen.unwrap_or(Fence::new(0)));
        if check != FenceCheck::Accepted {
            return Ok(check);
        }
        data.extend(text.as_bytes());
        let attributes = Attributes::from_iter([(token.clone(), fence.to_string())]);
        match store.put_opts(path, data.into(), PutOptions { mode, attributes, ..Default::default() }).await {
            Ok(_) => return Ok(FenceCheck::Accepted),
            // The object was written or deleted since it was read.
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn text(store: &dyn ObjectStore, path: &Path) -> String {
    String::from_utf8(store.get(path).await.unwrap().bytes().await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn stale_write_is_refused_by_object_store() {
    // F1
    let (store, path) = (InMemory::new(), Path::from("invoice/42"));
    let [old, new] = [(1 << 53) + 1, (1 << 53) + 2].map(Fence::new);
    let stale = FenceCheck::Stale { seen: new };
    for (data, fence, check) in [
        ("a", old, FenceCheck::Accepted),
        ("b", new, FenceCheck::Accepted),
        ("c", new, FenceCheck::Accepted),
        ("d", old, stale),
    ] {
        assert_eq!(append(&store, &path, data, fence).await.unwrap(), check);
    }
    assert_eq!(text(&store, &path).await, "abc");
}

#[tokio::test]
async fn foreign_metadata_is_an_error() {
    // F2
    let (store, path) = (InMemory::new(), Path::from("invoice/42"));
    let attributes = Attributes::from_iter([(Attribute::Metadata(OBJECT_METADATA.into()), "new")]);
    store.put_opts(&path, "a".into(), PutOptions { attributes, ..Default::default() }).await.unwrap();
    assert!(append(&store, &path, "b", Fence::new(1)).await.is_err());
    let head = GetOptions { head: true, ..Default::default() };
    assert_eq!(store.get_opts(&path, head).await.unwrap().meta.size, 1);
}

#[test]
fn concurrent_writes_keep_order_in_object_store() {
    // F1
    let (store, path) = (InMemory::new(), Path::from("invoice/42"));
    let write = |writer: u64| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let accepted = (0..50).filter(|step| {
            let fence = 1 + step + (writer + step) % 3;
            let text = format!("{fence} ");
            let check = runtime.block_on(append(&store, &path, &text, Fence::new(fence)));
            check.unwrap() == FenceCheck::Accepted
        });
        accepted.count()
    };
    let accepted: usize = thread::scope(|scope| {
        let writers = [0, 1, 2, 3].map(|writer| scope.spawn(move || write(writer)));
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let written = runtime.block_on(text(&store, &path));
    let written: Vec<u64> = written.split_whitespace().map(|fence| fence.parse().unwrap()).collect();
    assert_eq!(written.len(), accepted, "each was written once");
    assert!(written.is_sorted(), "a late write came through: {written:?}");
}

//! Buckets for tests.

use core::time::Duration;

use async_nats::jetstream::{self, kv};
use lock_nats::NatsRegister;
use store_testkit::NatsServer;

/// Creates a bucket as `nats kv add` does, with a maximal age. The client's own function does not work
/// with servers before 2.10.
pub(crate) async fn bucket(server: &NatsServer, name: &str, max_age: Duration) -> (kv::Store, NatsRegister) {
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = jetstream::stream::Config {
        name: format!("KV_{name}"),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: 1,
        discard: jetstream::stream::DiscardPolicy::New,
        num_replicas: 1,
        allow_direct: true,
        allow_rollup: true,
        deny_delete: true,
        max_age,
        ..jetstream::stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let store = context.get_key_value(name).await.unwrap();
    (store, NatsRegister::from_url(&format!("{}/{name}", server.url())).unwrap())
}

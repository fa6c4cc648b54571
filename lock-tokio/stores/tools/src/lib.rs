//! The stores of `with-lock` and `leader` whose libraries take long to build, beside those of
//! `lock-examples`.

use lock_examples::cli::register::StoreUrl;
#[cfg(any(feature = "kubernetes", feature = "nats", feature = "object-store"))]
use lock_examples::cli::register::{client_of, spawn};

/// The stores of the features that are turned on.
pub static STORES: &[StoreUrl] = &[
    #[cfg(feature = "object-store")]
    StoreUrl::new(&["s3", "gs", "az"], lock_object_store::config, |config, url| {
        spawn(client_of(config, lock_object_store::ObjectRegister::from_url(url)))
    }),
    #[cfg(feature = "kubernetes")]
    StoreUrl {
        min_ttl: Some((
            lock_kubernetes::MIN_TTL,
            "on Kubernetes a TTL has at least 3 s, as client-go sees whole seconds",
        )),
        ..StoreUrl::new(&["kube"], lock_proto::register::Config::new, |config, url| {
            spawn(client_of(config, lock_kubernetes::LeaseRegister::from_url(url)))
        })
    },
    #[cfg(feature = "nats")]
    StoreUrl::new(&["nats", "tls"], lock_proto::register::Config::new, |config, url| {
        spawn(client_of(config, lock_nats::NatsRegister::from_url(url)))
    }),
];

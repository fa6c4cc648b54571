//! The stores of this build, their URLs and drivers.

#![cfg_attr(
    not(any(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "register")),
    allow(unreachable_code, unused_variables, reason = "a build without any store has no settings")
)]

use alloc::vec::Vec;
use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::client::Client;
use super::connect::ConnectError;
use super::host::Host;
use super::settings::Settings;
use crate::clock::random_identity;
use lock_proto::ClientId;
use lock_proto::url::{parse_scheme, unsupported_scheme};

/// Declares the stores: name, feature of this crate, module, settings, schemes of URLs, feature of
/// the adapters.
///
/// A module has `parse`, `start` and `Driver`.
macro_rules! stores {
    ($($(#[$doc:meta])* $name:ident, $feature:literal, $module:ident($config:ty), $schemes:pat, $public:literal;)*) => {
        /// The settings of a client's machine, for one of the stores.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[must_use = "settings do nothing until they are given to `connect`"]
        pub enum StoreSettings {
            $($(#[$doc])* #[cfg(feature = $feature)] $name($config),)*
        }

        $(
            #[cfg(feature = $feature)]
            impl From<$config> for Settings {
                fn from(config: $config) -> Self {
                    StoreSettings::$name(config).into()
                }
            }
        )*

        impl StoreSettings {
            pub(super) fn prefix(self, prefix: &[u8]) -> Self {
                match self {
                    $(#[cfg(feature = $feature)] Self::$name(config) => Self::$name(config.prefix(prefix)),)*
                }
            }

            pub(super) fn default_password(self, password: &str) -> Self {
                match self {
                    $(#[cfg(feature = $feature)] Self::$name(config) => Self::$name(config.default_password(password)),)*
                }
            }

            fn request_credentials(&mut self, on: bool) {
                match self {
                    $(#[cfg(feature = $feature)] Self::$name(config) => config.request_credentials = on,)*
                    #[allow(unreachable_patterns, reason = "there may be no store")]
                    _ => {}
                }
            }
        }

        /// All stores, including those that were not compiled in.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        enum StoreName {
            $($name,)*
        }

        impl StoreName {
            const BUILT: &[Self] = &[$(#[cfg(feature = $feature)] Self::$name,)*];

            fn of_scheme(scheme: &str) -> Option<Self> {
                match scheme {
                    $($schemes => Some(Self::$name),)*
                    _ => None,
                }
            }

            const fn feature(self) -> &'static str {
                match self {
                    $(Self::$name => $public,)*
                }
            }

            fn parse(self, urls: &[&str]) -> Result<StoreSettings, ConnectError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$name => super::$module::parse(urls).map(StoreSettings::$name),)*
                    #[allow(unreachable_patterns, reason = "no feature may be missing")]
                    store => Err(ConnectError::MissingFeature { feature: store.feature() }),
                }
            }
        }

        #[allow(clippy::large_enum_variant, reason = "with one store, the other variant is empty")]
        enum DriverKind<H: Host> {
            $(#[cfg(feature = $feature)] $name(super::$module::Driver<H>),)*
            #[allow(dead_code, reason = "for a build without any store, never made")]
            None(Infallible, PhantomData<H>),
        }

        impl<H: Host> Future for Driver<H> {
            type Output = ();

            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
                match &mut self.0 {
                    $(#[cfg(feature = $feature)] DriverKind::$name(event_loop) => event_loop.poll(cx),)*
                    DriverKind::None(never, _) => match *never {},
                }
            }
        }

        impl<H: Host> fmt::Debug for Driver<H> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0 {
                    $(#[cfg(feature = $feature)] DriverKind::$name(event_loop) => event_loop.fmt(f),)*
                    DriverKind::None(never, _) => match *never {},
                }
            }
        }

        pub(super) fn with_identity<H: Host>(
            host: H,
            mut settings: Settings,
            id: ClientId,
            seed: u64,
        ) -> Result<(Client, Driver<H>), ConnectError> {
            settings.store.request_credentials(settings.host.credentials.is_some());
            match settings.store {
                $(
                    #[cfg(feature = $feature)]
                    StoreSettings::$name(config) => {
                        let (client, event_loop) = super::$module::start(host, config, settings.host, id, seed)?;
                        Ok((client, Driver(DriverKind::$name(event_loop))))
                    }
                )*
            }
        }
    };
}

stores! {
    /// One Redis server, or a quorum of them.
    Redis, "redis", redis(lock_proto::redis::Config),
        "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "rediss+unix" | "unix", "redis";
    /// An etcd cluster.
    Etcd, "etcd", etcd(lock_proto::etcd::Config), "etcd" | "etcds" | "http" | "https", "etcd";
    /// A ZooKeeper ensemble.
    ZooKeeper, "zookeeper", zookeeper(lock_proto::zookeeper::Config), "zk" | "zks", "zookeeper";
    /// A folder.
    File, "register", register(crate::register::FileConfig), "file", "register";
}

/// For messages. Includes the stores that are not built in: their own error names the feature.
const SCHEMES: &str =
    "redis://, rediss://, valkey://, valkeys://, redis+unix://, etcd://, etcds://, zk://, zks:// or file://";

impl StoreSettings {
    pub(super) fn parse<I>(urls: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let urls: Vec<_> = urls.into_iter().collect();
        let urls: Vec<&str> = urls.iter().map(AsRef::as_ref).collect();
        let of_url = |url: &&str| StoreName::of_scheme(&url.split_once("://")?.0.to_ascii_lowercase());
        // URLs of different stores never go together: the parser of the last one says so.
        match (urls.iter().filter_map(of_url).max(), urls.first()) {
            (Some(store), _) => store.parse(&urls),
            (None, None) => StoreName::BUILT.first().copied().unwrap_or(StoreName::Redis).parse(&urls),
            (None, Some(url)) => {
                let (scheme, _) = parse_scheme(url, SCHEMES)?;
                Err(unsupported_scheme(&scheme, SCHEMES).into())
            }
        }
    }
}

/// The task that runs a client's connections and timers. Ends after the
/// [shutdown](Client::shutdown). Spawns nothing.
///
/// Dropping it earlier ends everything at once: holders are notified of the loss, waiters
/// that the client was shut down. Keys stay in the store until their TTL ends.
#[must_use = "without its driver being polled, no lock is taken, renewed or released"]
pub struct Driver<H: Host>(DriverKind<H>);

// All pinned parts are boxed.
impl<H: Host> Unpin for Driver<H> {}

/// Creates a client and its driver, which must be spawned.
///
/// Its id and seed are taken from the system's entropy.
///
/// # Errors
///
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, or the system
/// has no random numbers.
pub fn connect<H: Host>(host: H, settings: impl Into<Settings>) -> Result<(Client, Driver<H>), ConnectError> {
    let (id, seed) = random_identity().map_err(ConnectError::Entropy)?;
    with_identity(host, settings.into(), id, seed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use alloc::string::ToString as _;

    use super::*;

    fn error(urls: &[&str]) -> String {
        Settings::parse(urls).unwrap_err().to_string()
    }

    #[cfg(feature = "redis")]
    #[test]
    fn redis_urls_form_quorum_and_invalid_urls_are_rejected() {
        let settings = Settings::parse(["redis://a", "redis://b", "redis://c"]).unwrap();
        assert!(matches!(settings.store, StoreSettings::Redis(config) if config.is_quorum()));
        for (url, word) in [
            ("redis://a?ca=x", "rediss://"),
            ("mysql://a", "zk://"),
            ("a", "no scheme"),
            ("redis-sentinel://a", "Sentinel is not"),
            ("'redis://a'", "quotes"),
        ] {
            let error = error(&[url]);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn etcd_takes_one_url() {
        if !StoreName::BUILT.contains(&StoreName::Etcd) {
            return;
        }
        let settings = Settings::parse(["etcd://a,b:1"]).unwrap();
        assert!(alloc::format!("{settings:?}").contains("b:1"));
        for (urls, word) in [
            (&["etcd://a", "etcd://b"][..], "exactly one URL"),
            (&["redis://a", "etcd://b"], "exactly one URL"),
            (&["etcds://a?cert=x"], "`key` go together"),
        ] {
            let error = error(urls);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn missing_feature_error_names_feature_without_secrets() {
        for (store, url, feature) in
            [(StoreName::Redis, "redis://:secret@a", "redis"), (StoreName::Etcd, "ETCD://a:secret@b", "etcd")]
        {
            if !StoreName::BUILT.contains(&store) {
                let http = error(&["http://127.0.0.1:6379"]);
                assert!(store != StoreName::Etcd || http.contains("Redis starts with redis://"), "{http}");
                let error = error(&[url]);
                assert!(error.contains(feature) && !error.contains("secret"), "{error}");
            }
        }
    }
}

//! Checks that the adapters offer the same API: the compiler checks their common part, and
//! `docs/api.md` is generated from their sources.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::fmt::Debug;
use core::ops::Deref;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use lock_proto::driver::{self, ConnectError, Host, Settings};

/// The API of every adapter's client. A missing method or another signature does not compile below.
trait Adapter: Clone + Debug + Deref<Target = driver::Client> + Send + Sync + Sized + 'static {
    type Host: Host + Copy + Debug + Default;

    fn connect(url: &str) -> Result<Self, ConnectError>;
    fn connect_quorum(urls: [&str; 3]) -> Result<Self, ConnectError>;
    fn with_config(config: Settings) -> Result<Self, ConnectError>;
    fn with_redis(config: lock_proto::redis::Config) -> Result<Self, ConnectError>;
    fn with_etcd(config: lock_proto::etcd::Config) -> Result<Self, ConnectError>;
    fn into_inner(self) -> driver::Client;
    fn host() -> Self::Host;
}

macro_rules! adapter {
    ($client:ty, $host:ty) => {
        impl Adapter for $client {
            type Host = $host;

            fn connect(url: &str) -> Result<Self, ConnectError> {
                <$client>::connect(url)
            }

            fn connect_quorum(urls: [&str; 3]) -> Result<Self, ConnectError> {
                <$client>::connect_quorum(urls)
            }

            fn with_config(config: Settings) -> Result<Self, ConnectError> {
                <$client>::with_config(config)
            }

            fn with_redis(config: lock_proto::redis::Config) -> Result<Self, ConnectError> {
                <$client>::with_config(config)
            }

            fn with_etcd(config: lock_proto::etcd::Config) -> Result<Self, ConnectError> {
                <$client>::with_config(config)
            }

            fn into_inner(self) -> driver::Client {
                <$client>::into_inner(self)
            }

            fn host() -> $host {
                <$host>::new()
            }
        }
    };
}
adapter!(lock_tokio::Client, lock_tokio::Tokio);
adapter!(lock_smol::Client, lock_smol::Smol);
adapter!(lock_smol::async_std::Client, lock_smol::async_std::AsyncStd);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The names that a `lib.rs` gives, with where they come from.
fn exports(path: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let text: String = source(path).lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    for item in text.split("pub use ").skip(1) {
        let item = item.split(';').next().unwrap();
        let (origin, list) = match item.split_once('{') {
            Some((origin, list)) => (origin.trim_end_matches("::"), list.trim_end_matches('}')),
            None => item.rsplit_once("::").unwrap_or(("", item)),
        };
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (origin, name) = match name {
                "self" => (origin, origin.rsplit("::").next().unwrap()),
                name => (origin, name),
            };
            // Of one's own: by another name of the module, the same thing.
            let origin = if ["client", "host", "stream"].contains(&origin) { "the adapter" } else { origin };
            names.insert(name.to_owned(), origin.to_owned());
        }
    }
    names
}

/// The public functions of `impl Client` in a file, in one line each.
fn functions(path: &str) -> Vec<String> {
    let text = source(path);
    let body = text.split_once("impl Client {").unwrap().1.split_once("\n}").unwrap().0;
    let functions = body.split("pub fn ").skip(1).map(|rest| {
        let signature = rest.split('{').next().unwrap();
        signature.split_whitespace().collect::<Vec<_>>().join(" ").replace(", >", ">").trim_end_matches(',').to_owned()
    });
    functions.collect()
}

fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
    let rule = vec!["---".to_owned(); columns.len()];
    let mut table = line(&head) + &line(&rule);
    rows.into_iter().for_each(|row| table += &line(&row));
    table
}

fn page() -> String {
    let (tokio, smol) = (exports("lock-tokio/src/lib.rs"), exports("lock-smol/src/lib.rs"));
    let mut names: Vec<&String> = tokio.keys().chain(smol.keys()).collect();
    names.sort();
    names.dedup();
    let cell = |names: &BTreeMap<String, String>, name: &str| match names.get(name).map(String::as_str) {
        None => String::new(),
        Some("the adapter") => "its own".to_owned(),
        Some("") => "the crate".to_owned(),
        Some(origin) => format!("`{origin}`"),
    };
    let exported = table(
        &["name", "lock-tokio", "lock-smol"],
        names.into_iter().map(|name| vec![format!("`{name}`"), cell(&tokio, name), cell(&smol, name)]),
    );
    let files = ["lock-tokio/src/client.rs", "lock-smol/src/client.rs", "lock-smol/src/async_std.rs"];
    let [on_tokio, on_smol, on_async_std] = files.map(functions);
    assert_eq!(on_tokio, on_smol, "the clients of lock-tokio and lock-smol have drifted apart");
    assert_eq!(on_tokio, on_async_std, "the clients of lock-tokio and lock_smol::async_std have drifted apart");
    let of_client = table(
        &["`Client`", "lock-tokio", "lock-smol", "lock_smol::async_std"],
        on_tokio
            .into_iter()
            .map(|signature| vec![format!("`{signature}`"), "yes".to_owned(), "yes".to_owned(), "yes".to_owned()]),
    );
    format!(
        "# The API of the adapters, side by side\n\n\
         Written by `UPDATE_API=1 cargo test -p lock-examples --test api`; without the variable that test fails when this page and the\n\
         sources differ, or when the adapters drift apart. Everything but the client and the host is of `lock-proto`, and so the same type\n\
         in each: code that names only those fits every runtime. The module `lock_smol::async_std` has a `Client` and a host, `AsyncStd`, of its own.\n\n\
         ## Names\n\n{exported}\n## The client\n\n\
         `Client` dereferences to `lock_proto::driver::Client` (`lock`, `election`, `shutdown`), and is `Clone + Debug + Send + Sync` in each.\n\
         On tokio it must be made inside a runtime, or the answer is `ConnectError::NoRuntime`; the others have an executor for the whole\n\
         process.\n\n{of_client}"
    )
}

#[test]
fn the_adapters_have_the_same_names_but_for_their_hosts() {
    let (tokio, smol) = (exports("lock-tokio/src/lib.rs"), exports("lock-smol/src/lib.rs"));
    let only = |own: &BTreeMap<String, String>, other: &BTreeMap<String, String>| {
        own.iter()
            .filter(|(name, origin)| other.get(*name) != Some(*origin))
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((only(&tokio, &smol), only(&smol, &tokio)), (vec!["Tokio".to_owned()], vec!["Smol".to_owned()]));
    assert!(tokio.len() > 20, "{tokio:?}");
}

#[test]
fn the_page_is_up_to_date() {
    let (path, page) = (root().join("docs/api.md"), page());
    if env::var_os("UPDATE_API").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/api.md is not what the sources say: UPDATE_API=1 cargo test -p lock-examples --test api"
    );
}

#[test]
fn every_adapter_refuses_the_same_urls() {
    fn refuses<A: Adapter>() {
        let _ = A::host();
        for url in ["http://localhost", "redis://", "etcd://", "etcds://localhost"] {
            let error = A::connect(url).map(A::into_inner).unwrap_err();
            assert!(matches!(error, ConnectError::Config(_)), "{url}: {error}");
        }
        let error = A::connect_quorum(["redis://a", "redis://b", "redis://a"]).unwrap_err();
        assert!(matches!(error, ConnectError::Config(_)), "{error}");
        let error = A::connect_quorum(["etcd://a", "redis://b", "redis://a"]).unwrap_err();
        assert!(matches!(error, ConnectError::SeveralUrls), "{error}");
        let none = lock_proto::redis::Config::new([]);
        for made in [A::with_redis(none.clone()), A::with_config(none.into())] {
            assert!(matches!(made, Err(ConnectError::Config(_))));
        }
        let endless = lock_proto::etcd::Config::parse("etcd://a").unwrap().session_ttl(core::time::Duration::MAX);
        assert!(matches!(A::with_etcd(endless), Err(ConnectError::Config(_))));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { refuses::<lock_tokio::Client>() });
    refuses::<lock_smol::Client>();
    refuses::<lock_smol::async_std::Client>();
}

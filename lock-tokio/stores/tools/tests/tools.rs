//! Black-box tests of `with-lock` and `leader` on the stores of this package. Not in `make test`,
//! which does without their libraries.
#![cfg(all(feature = "kubernetes", feature = "nats", feature = "object-store"))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../kubernetes/tests/api/mod.rs"]
mod api;
#[path = "../../nats/tests/kit/mod.rs"]
mod buckets;
#[path = "../../../../examples/tests/kit/mod.rs"]
mod kit;
#[path = "../../object-store/tests/kit/mod.rs"]
mod moto;

use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddr};
use std::{fs, thread};

use api::ApiServer;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use kit::stores::{assert_usage, check_elections, check_locks};
use kit::{Scratch, Tool, WITH_SIGNALS, started_by};
use moto::Moto;
use store_testkit::NatsServer;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

fn start(program: &str, url: &str, args: &[&str], env: &[(&str, &str)]) -> Tool {
    let mut command = started_by(WITH_SIGNALS, program);
    command.args(["--backend", url]).args(args).env_remove("LOCK_BACKEND").envs(env.iter().copied());
    Tool::spawn(command)
}

fn with_lock(url: &str, args: &[&str], env: &[(&str, &str)]) -> Tool {
    start(env!("CARGO_BIN_EXE_with-lock"), url, args, env)
}

fn leader(url: &str, args: &[&str], env: &[(&str, &str)]) -> Tool {
    start(env!("CARGO_BIN_EXE_leader"), url, args, env)
}

fn check(url: &str, env: &[(&str, &str)]) {
    check_locks(|args| with_lock(url, args, env));
    check_elections(|args| leader(url, args, env));
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
#[ignore = "make test-stores"]
fn bucket_of_nats() {
    let server = NatsServer::start();
    runtime().block_on(buckets::bucket(&server, "locks", Duration::ZERO));
    check(&format!("{}/locks", server.url()), &[]);
    let ended = with_lock(&format!("{}/none", server.url()), &["job", "--", "true"], &[]).end();
    assert!(ended.code == 77 && ended.err.contains("nats kv add"), "{ended:?}");
}

#[test]
#[ignore = "make test-stores"]
fn bucket_of_s3() {
    let moto = Moto::start();
    check(&moto.url("bucket"), &[]);
    let ended = with_lock(&moto.url("none"), &["job", "--", "true"], &[]).end();
    assert!(ended.code == 77 && ended.err.contains("create it"), "{ended:?}");
}

/// Serves the stand-in over HTTP.
fn serve(server: ApiServer) -> SocketAddr {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(server.clone());
            drop(tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service)));
        }
    };
    thread::spawn(move || runtime.block_on(accept));
    address
}

#[test]
#[ignore = "make test-stores"]
fn leases_of_kubernetes() {
    let address = serve(ApiServer::default());
    let scratch = Scratch::new();
    let file = scratch.path("config");
    let config = format!(
        "apiVersion: v1
kind: Config
clusters: [{{ name: it, cluster: {{ server: 'http://{address}' }} }}]
users: [{{ name: it, user: {{}} }}]
contexts: [{{ name: it, context: {{ cluster: it, user: it }} }}]
current-context: it
"
    );
    fs::write(&file, config).unwrap();
    let env = [("KUBECONFIG", &*file)];
    check("kube://default", &env);
    let holder = with_lock("kube://", &["--ttl", "1s", "job"], &env);
    holder.wait_for_err("--ttl 1s became 3s: on Kubernetes");
    holder.wait_for_out(" ttl=3000\n");
    assert_eq!(holder.terminate().code, 0);
}

#[test]
#[ignore = "make test-stores"]
fn invalid_urls_and_options_are_usage_errors() {
    // RF8
    for (url, word) in [
        ("kube://Not/One", "kube://NAMESPACE"),
        ("nats://app:hunter2@host", "nats://HOST/BUCKET"),
        ("s3://bucket/x?secret_access_key=hunter2&colour=red", "colour"),
    ] {
        for ended in [with_lock(url, &["job", "--", "true"], &[]).end(), leader(url, &[], &[]).end()] {
            assert_usage(&ended, word);
            assert!(!ended.err.contains("hunter2"), "{ended:?}");
        }
        assert_usage(&with_lock(url, &["--create-table", "job"], &[]).end(), "postgres://");
        assert_usage(&with_lock(url, &["--runtime", "smol", "job"], &[]).end(), "needs tokio");
    }
}

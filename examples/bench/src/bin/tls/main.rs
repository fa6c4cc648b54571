//! Cost of TLS: cycles of locks over TLS compared with plain connections, and resumed handshakes
//! compared with full ones.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin tls
//! [SECONDS [PART]]`. Only the ratios count. All measurements of a part alternate in one process on
//! one server, so that a noisy machine disturbs all of them.
//!
//! A PART runs alone: `redis`, `etcd` or `handshake`.

mod cycles;
mod etcd;
mod handshake;
mod redis;

use lock_bench::args::Args;

fn main() {
    let mut args = Args::new("tls [SECONDS [PART]], PART one of redis, etcd, handshake");
    let (span, part) = (args.seconds(0.2), args.choice("PART", &["redis", "etcd", "handshake"]));
    args.end();
    let wants = |name: &str| part.as_deref().is_none_or(|part| part == name);
    // redis-rs uses the provider of the process. This library has one of its own, also ring.
    rustls::crypto::ring::default_provider().install_default().expect("nothing else has installed one");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if wants("redis") {
        runtime.block_on(redis::contest(span));
    }
    if wants("etcd") {
        runtime.block_on(etcd::contest(span));
    }
    if wants("handshake") {
        handshake::contest();
    }
}

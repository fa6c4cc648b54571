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

use std::time::Duration;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(0.2, |text| text.parse().expect("SECONDS is a number"));
    let (span, part) = (Duration::from_secs_f64(seconds), args.next());
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

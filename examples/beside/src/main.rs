//! Both crates use redis-protocol, and cargo builds it once, with the features of both. It must compile.

fn main() {
    let _ = fred::prelude::Builder::default_centralized();
    let _ = lock_tokio::Config::new([]);
}

//! Checks that two clients compile together. Both use redis-protocol, which cargo builds once,
//! with the features that both ask for.

fn main() {
    let _ = fred::prelude::Builder::default_centralized();
    let _ = lock_tokio::Config::new([]);
}

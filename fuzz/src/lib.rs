//! The fuzz targets as plain functions, so that tests on stable Rust can replay the corpora. Each
//! panics if the state machine breaks a rule.
// S7
#![forbid(unsafe_code)]

mod pipe;
mod tls;
mod url;
mod worlds;
mod zk_pipe;

pub use pipe::pipe;
pub use tls::tls;
pub use url::url;
pub use worlds::{
    election_ops, etcd_ops, plan, play, plays_worlds, quorum_ops, redis_model, redis_ops, register_ops, zk_ops,
};
pub use zk_pipe::zk_pipe;

/// Defines the program of a fuzz target. Without cargo-fuzz it is empty, so that stable Rust builds
/// it without libFuzzer.
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$target(data));

        #[cfg(not(fuzzing))]
        fn main() {}
    };
}

/// Plays one input of a target.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("pipe", pipe),
    ("url", url),
    ("tls", tls),
    ("redis_ops", redis_ops),
    ("quorum_ops", quorum_ops),
    ("etcd_ops", etcd_ops),
    ("election_ops", election_ops),
    ("redis_model", redis_model),
    ("zk_pipe", zk_pipe),
    ("zk_ops", zk_ops),
    ("register_ops", register_ops),
];

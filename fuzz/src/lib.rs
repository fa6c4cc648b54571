//! What the fuzz targets do with their bytes. Plain functions, so that tests on stable Rust replay the corpora by them (requirement S7).
//!
//! Each panics if a promise of the machine it drives is broken.
#![forbid(unsafe_code)]

mod pipe;
mod url;
mod worlds;

pub use pipe::pipe;
pub use url::url;
pub use worlds::{election_ops, etcd_ops, quorum_ops, redis_ops};

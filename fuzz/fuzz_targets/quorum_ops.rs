//! Fuzz target: see `lock_fuzz::quorum_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::quorum_ops(data));

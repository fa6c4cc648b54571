//! Fuzz target: see `lock_fuzz::zk_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::zk_ops(data));

//! Fuzz target: see `lock_fuzz::etcd_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::etcd_ops(data));

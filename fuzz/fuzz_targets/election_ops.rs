//! Fuzz target: see `lock_fuzz::election_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::election_ops(data));

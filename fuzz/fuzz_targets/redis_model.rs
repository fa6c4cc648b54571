//! Fuzz target: see `lock_fuzz::redis_model`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::redis_model(data));

//! Fuzz target: see `lock_fuzz::tls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::tls(data));

//! Fuzz target: see `lock_fuzz::url`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::url(data));

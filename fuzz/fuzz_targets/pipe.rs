//! Fuzz target: see `lock_fuzz::pipe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::pipe(data));

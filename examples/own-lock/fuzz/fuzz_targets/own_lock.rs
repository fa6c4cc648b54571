#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| own_lock::fuzz(data));

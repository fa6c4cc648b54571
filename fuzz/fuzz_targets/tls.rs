//! Fuzz target: see `lock_fuzz::tls`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(tls);

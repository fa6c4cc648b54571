//! Fuzz target: see `lock_fuzz::url`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(url);

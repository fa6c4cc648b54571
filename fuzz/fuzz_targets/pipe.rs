//! Fuzz target: see `lock_fuzz::pipe`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(pipe);

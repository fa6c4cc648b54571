//! Fuzz target: see `lock_fuzz::redis_model`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(redis_model);

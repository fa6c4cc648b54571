//! Fuzz target: see `lock_fuzz::redis_ops`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(redis_ops);

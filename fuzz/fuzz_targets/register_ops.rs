//! Fuzz target: see `lock_fuzz::register_ops`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(register_ops);

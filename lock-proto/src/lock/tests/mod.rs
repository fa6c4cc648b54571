//! Tests of the lifecycle with a store that has one server and no rules.

mod fake;
mod search;

//! Stores of one's own: anything with compare-and-set.

mod store;

pub use store::{Register, RegisterError};

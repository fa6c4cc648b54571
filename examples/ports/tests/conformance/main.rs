//! The conformance suite on each of these runtimes.

mod compio;
mod embassy;
mod monoio;

//! A tower layer that refuses requests with a stale fencing token.
//!
//! Callers send the token of their lock in the header `Fence-Token`. The layer answers 412 to a
//! token smaller than the greatest it has seen for the same resource. A request with a greater
//! token waits until those with smaller ones are answered: a stale one that was let through
//! cannot write after it.
//!
//! [`MemoryGate`] remembers the tokens of one process and forgets them when it ends. A service of
//! several processes keeps the token with its data, as `docs/fencing.md` of the repository shows
//! for databases, or implements [`FenceGate`].
//!
//! Copy this crate: it is an example, and not published.

mod memory;
mod service;

pub use memory::{MemoryGate, MemoryPass};
pub use service::{FenceLayer, FenceService};

use lock_proto::Fence;

/// Where the greatest token of each resource is remembered.
pub trait FenceGate: Clone + Send + 'static {
    /// What a request holds until it is answered. It keeps greater tokens waiting.
    type Pass: Send;

    /// Compares `fence` with the greatest token of this name and stores the greater one, in one
    /// step.
    ///
    /// # Errors
    ///
    /// The token is stale, or the gate cannot tell. The request is not carried out.
    ///
    /// # Cancel safety
    ///
    /// The token may be stored already. Nothing is held.
    fn admit(&self, name: &str, fence: Fence) -> impl Future<Output = Result<Self::Pass, Refused>> + Send;
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A greater token was seen. Answered with status 412 and that token.
    Stale {
        /// The greatest token.
        seen: Fence,
    },
    /// The gate has no room for another name, or cannot reach its store. Answered with status 503.
    Unavailable,
}

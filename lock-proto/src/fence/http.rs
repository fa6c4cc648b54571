//! The header that carries a fencing token.

use super::InvalidFence;
use crate::lock::Fence;

/// The name of the header, `Fence-Token`, in lower case. Its value is the token in decimal digits,
/// as `Fence`'s `Display` writes it.
pub const FENCE_HEADER: &str = "fence-token";

/// Parses the value of the header.
///
/// # Errors
///
/// It is no decimal number below 2^64. Refuse the request: a token that was misread could let a
/// stale write pass.
// F2
pub fn parse_header(value: &[u8]) -> Result<Fence, InvalidFence> {
    core::str::from_utf8(value).map_err(|_| InvalidFence)?.parse()
}

//! Frames: a length of four bytes, and that many bytes.

use alloc::vec::Vec;

use crate::fault::Breach;

/// The start of a frame whose rest has not arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frames {
    partial: Vec<u8>,
    /// The last frame was taken from `partial`.
    taken: bool,
    /// How many of the next bytes to drop: the rest of a frame that was [cut](Self::cut).
    dropping: usize,
}

/// Length of the length and the header of a reply.
const HEAD: usize = 20;

/// A buffer that is at most this large is kept for the next frame.
const KEPT: usize = 4096;

impl Frames {
    /// Returns the content of the next frame, and moves `bytes` behind it. `None` if its end has
    /// not arrived: the bytes are then kept. A frame inside `bytes` is not copied.
    ///
    /// # Errors
    ///
    /// [`Breach::TooLong`] for more than `limit` bytes, [`Breach::Malformed`] for a negative
    /// length, or what shows that the peer speaks another protocol.
    pub fn next<'a, 'b: 'a>(&'a mut self, bytes: &mut &'b [u8], limit: usize) -> Result<Option<&'a [u8]>, Breach> {
        if self.taken {
            self.taken = false;
            self.partial.clear();
            self.partial.shrink_to(KEPT);
        }
        let dropped = self.dropping.min(bytes.len());
        self.dropping -= dropped;
        *bytes = bytes.split_at(dropped).1;
        if self.partial.is_empty()
            && let Some((header, rest)) = bytes.split_first_chunk()
            && let Some((frame, rest)) = rest.split_at_checked(length(*header, bytes, limit)?)
        {
            *bytes = rest;
            return Ok(Some(frame));
        }
        self.fill(bytes, 4);
        let Some((header, _)) = self.partial.split_first_chunk() else { return Ok(None) };
        let whole = 4 + length(*header, &self.partial, limit)?;
        self.fill(bytes, whole);
        if self.partial.len() < whole {
            return Ok(None);
        }
        self.taken = true;
        Ok(self.partial.get(4..whole))
    }

    /// Returns the header of the reply for which [`next`](Self::next) has returned
    /// [`Breach::TooLong`], and drops the rest of that frame, also what has not arrived. `None` if
    /// the header has not arrived.
    pub fn cut(&mut self, bytes: &mut &[u8]) -> Option<[u8; HEAD - 4]> {
        self.fill(bytes, HEAD);
        let (length, header) = self.partial.split_first_chunk()?;
        let header = *header.first_chunk()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        self.partial.clear();
        self.dropping = (length + 4).saturating_sub(HEAD);
        Some(header)
    }

    /// Appends received bytes until there are `wanted`. Memory grows with what has arrived, not
    /// with what was announced.
    // ZK9
    fn fill(&mut self, bytes: &mut &[u8], wanted: usize) {
        let missing = wanted.saturating_sub(self.partial.len());
        let (more, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(more);
        *bytes = rest;
    }
}

fn length(header: [u8; 4], start: &[u8], limit: usize) -> Result<usize, Breach> {
    let length = i32::from_be_bytes(header);
    let foreign = || Breach::of_other_protocol(start);
    let length = usize::try_from(length).map_err(|_| Breach::Malformed)?;
    if length > limit { Err(foreign().unwrap_or(Breach::TooLong)) } else { Ok(length) }
}

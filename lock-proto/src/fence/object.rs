//! Conditional writes to an object store.

/// The name under which an object's own metadata holds its token.
pub const OBJECT_METADATA: &str = "fence";

/// What the answer to a conditional write means.
///
/// The write is the second of two steps. First read the object's entity tag and the token in its
/// metadata, and compare: [`Fence::check`](crate::Fence::check). Then write with `If-Match` and that
/// tag, or `If-None-Match: *` if there was no object, with the new token in the metadata. Whatever
/// another client wrote in between changed the tag, so the store refuses, and both steps begin
/// anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum PutAnswer {
    /// The object is written: the token is accepted.
    Accepted,
    /// The object has changed since it was read. Read again.
    ReadAgain,
    /// Nothing is known: another failure of the store, or of the way there. Reading again is safe
    /// too, since an equal token passes.
    Unknown,
}

/// Returns what the HTTP status of a conditional write means.
// F1
pub const fn put_answer(status: u16) -> PutAnswer {
    match status {
        200..=299 => PutAnswer::Accepted,
        // 409: another write is under way. 404: the object to match was deleted.
        404 | 409 | 412 => PutAnswer::ReadAgain,
        _ => PutAnswer::Unknown,
    }
}

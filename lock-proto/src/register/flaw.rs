//! Mistakes that a test plants, to see that the search finds them.

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RegisterFlaw {
    /// A record counts as seen since the departure of the read that showed it.
    SinceDeparture,
    /// A write whose outcome is unknown counts as not applied.
    UnknownIsNo,
    /// A key that is absent counts as free at once.
    AbsentIsFree,
    /// Records have the same version and number.
    AlikeRecords,
    /// A write with a shorter TTL limits the validity only once it is confirmed.
    ShorterTtlInFlight,
    /// The fence is that of the record before and one.
    FenceFromRecord,
}

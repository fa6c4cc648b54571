//! Token numbers and the ranges of retired numbers.
//!
//! Every attempt writes a unique token: the client's id and a number that only grows. Because
//! numbers are ordered, a script needs constant space to tell a live value from one that this
//! client left over and may replace or delete.
// A2, A3

/// Length in bytes of the client part of a token: 32 hexadecimal digits and a colon.
pub const CLIENT_PART: usize = 33;

/// The numbers of this client's tokens that may be replaced or deleted under a name.
///
/// A number is retired once it was released or its attempt was abandoned: all up to `upto`, and
/// those above `after` up to `last`. The gap protects tokens of holders that lost the lock but
/// still have a guard, because their keys must live as long as possible.
// H6
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Retired {
    /// Every number up to this one is retired.
    pub upto: u64,
    /// Numbers above this one, up to `last`, are retired as well.
    pub after: u64,
    /// The end of the second range.
    pub last: u64,
}

impl Retired {
    /// Retires every number up to `number`.
    #[must_use]
    pub const fn all_to(number: u64) -> Self {
        Self { upto: number, after: number, last: number }
    }

    /// Returns true if `number` is retired.
    pub const fn contains(&self, number: u64) -> bool {
        number <= self.upto || (number > self.after && number <= self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ClientId;
    use crate::lock::Token;
    use alloc::string::ToString;

    #[test]
    fn token_is_ascii_with_fixed_length_client_part() {
        let text = Token { client: ClientId::from_bits(0xab), number: 17 }.to_string();
        assert_eq!(text, "000000000000000000000000000000ab:17");
        assert_eq!(text.find(':'), Some(CLIENT_PART - 1));
    }

    #[test]
    fn retired_excludes_gap_of_lost_holders() {
        let retired = Retired { upto: 4, after: 6, last: 9 };
        let inside: alloc::vec::Vec<u64> = (1..12).filter(|n| retired.contains(*n)).collect();
        assert_eq!(inside, [1, 2, 3, 4, 7, 8, 9]);
    }
}

//! Who wrote a value: numbered tokens, and which of them are spent.
//!
//! Every attempt of a client writes a token of its own: the client's id and a number that only grows
//! (requirement A2). Because numbers can be compared, one script decides in constant space whether a value is a
//! live lock or a leftover of ours that may be replaced or deleted (requirement A3).

/// Length in bytes of the part of a token that names the client: 32 hexadecimal digits and a colon.
pub const CLIENT_PART: usize = 33;

/// Which numbers of this client's own tokens may be replaced or deleted under a name.
///
/// Retired are the numbers that were given back or never granted: all up to `upto`, and those above `after` up to
/// `last`. The gap between `upto` and `after` keeps the tokens of holders that were told `Lost` but whose guard is still
/// out: their key must live as long as it can (requirement H6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Retired {
    /// Every number up to this one is spent.
    pub upto: u64,
    /// Numbers above this one, up to `last`, are spent as well.
    pub after: u64,
    /// The end of the second range.
    pub last: u64,
}

impl Retired {
    /// Every number up to `number`.
    #[must_use]
    pub const fn all_to(number: u64) -> Self {
        Self { upto: number, after: number, last: number }
    }

    /// Whether `number` is spent.
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
    fn token_is_ascii_and_its_client_part_has_a_fixed_length() {
        let text = Token { client: ClientId::from_bits(0xab), number: 17 }.to_string();
        assert_eq!(text, "000000000000000000000000000000ab:17");
        assert_eq!(text.find(':'), Some(CLIENT_PART - 1));
    }

    #[test]
    fn spent_leaves_the_gap_of_lost_holders() {
        let retired = Retired { upto: 4, after: 6, last: 9 };
        let inside: alloc::vec::Vec<u64> = (1..12).filter(|n| retired.contains(*n)).collect();
        assert_eq!(inside, [1, 2, 3, 4, 7, 8, 9]);
    }
}

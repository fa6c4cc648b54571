//! How often a scenario does something.

use crate::chance::Chance;

/// How many runs of a scenario have a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Often {
    Never,
    OneIn(u64),
    Always,
}

impl Often {
    pub(super) fn draw(self, chance: &mut Chance) -> bool {
        match self {
            Self::Never => false,
            Self::OneIn(n) => chance.one_in(n),
            Self::Always => true,
        }
    }
}

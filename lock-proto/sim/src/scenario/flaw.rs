//! Flaws that can be planted in the clients of a plan, by name.

use alloc::format;
use core::fmt::{self, Write as _};

use super::{Backend, EtcdFlaw, RedisFlaw, RegisterHostFlaw};

/// A flaw to plant in every client of a plan, see [`Plan::flaw`](super::Plan::flaw).
///
/// The clients contain no such code: a wrapper changes what passes between a client and the world.
/// So a checker can be seen to fail, and a finding can be read before there is a real one.
// S4
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// Clients of Redis.
    Redis(RedisFlaw),
    /// Clients of etcd.
    Etcd(EtcdFlaw),
    /// Clients of a store with compare-and-set, or their hosts.
    Register(RegisterHostFlaw),
}

impl Flaw {
    /// Returns every flaw.
    pub fn all() -> impl Iterator<Item = Self> {
        let redis = RedisFlaw::ALL.into_iter().map(Self::Redis);
        let register = RegisterHostFlaw::ALL.into_iter().map(Self::Register);
        redis.chain(EtcdFlaw::ALL.into_iter().map(Self::Etcd)).chain(register)
    }

    /// Returns the kind of store whose clients it is for. A plan for another one ignores it.
    #[must_use]
    pub const fn backend(self) -> Backend {
        match self {
            Self::Redis(_) => Backend::Redis,
            Self::Etcd(_) => Backend::Etcd,
            Self::Register(_) => Backend::Register,
        }
    }

    /// Returns the flaw that is displayed as `name`, such as `redis-deletes-anything`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|flaw| format!("{flaw}") == name)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (store, name) = match self {
            Self::Redis(flaw) => ("redis", format!("{flaw:?}")),
            Self::Etcd(flaw) => ("etcd", format!("{flaw:?}")),
            Self::Register(flaw) => ("register", format!("{flaw:?}")),
        };
        f.write_str(store)?;
        for letter in name.chars() {
            if letter.is_ascii_uppercase() {
                f.write_char('-')?;
            }
            f.write_char(letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn flaws_have_different_names_by_which_they_are_found() {
        // S4
        for flaw in Flaw::all() {
            assert_eq!(Flaw::named(&format!("{flaw}")), Some(flaw));
        }
        assert_eq!(Flaw::named("redis-deletes-anything"), Some(Flaw::Redis(RedisFlaw::DeletesAnything)));
        assert_eq!(Flaw::named("redis-none"), None);
    }
}

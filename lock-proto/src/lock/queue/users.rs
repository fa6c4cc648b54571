//! The locks that use a session, and what they need of it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// What a lock needs of a session that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Nothing: whatever the lock left in the store may end with the session.
    Nothing,
    /// It must stay alive.
    Alive,
    /// It must be alive, and proven so by a renewal where pings prove nothing: the lock is held, or
    /// is about to be.
    Proof,
}

/// The locks of a session, by their slots, and what each needs of it. The needs are counted: a
/// session may have very many locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Users {
    needs: BTreeMap<u32, Need>,
    alive: usize,
    proof: usize,
}

impl Users {
    fn count(&mut self, need: Need) -> Option<&mut usize> {
        match need {
            Need::Nothing => None,
            Need::Alive => Some(&mut self.alive),
            Need::Proof => Some(&mut self.proof),
        }
    }

    pub(super) fn set(&mut self, slot: u32, need: Need) {
        let old = self.needs.insert(slot, need);
        if let Some(count) = self.count(need) {
            *count += 1;
        }
        if let Some(count) = old.and_then(|old| self.count(old)) {
            *count -= 1;
        }
    }

    /// Returns false if there is no such user.
    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let Some(need) = self.needs.remove(&slot) else { return false };
        if let Some(count) = self.count(need) {
            *count -= 1;
        }
        true
    }

    /// Returns the most that one of them needs.
    pub(super) const fn need(&self) -> Need {
        match (self.proof, self.alive) {
            (1.., _) => Need::Proof,
            (0, 1..) => Need::Alive,
            (0, 0) => Need::Nothing,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    pub(super) fn slots(&self) -> Vec<u32> {
        self.needs.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_what_users_need_is_counted() {
        let mut users = Users::default();
        for (slot, need, most) in [
            (1, Need::Nothing, Need::Nothing),
            (2, Need::Alive, Need::Alive),
            (3, Need::Proof, Need::Proof),
            (2, Need::Proof, Need::Proof),
            (3, Need::Alive, Need::Proof),
            (2, Need::Alive, Need::Alive),
        ] {
            users.set(slot, need);
            assert_eq!(users.need(), most);
        }
        assert!(users.remove(3) && !users.remove(3) && users.remove(2));
        assert_eq!((users.need(), users.is_empty()), (Need::Nothing, false));
        assert!(users.remove(1) && users.is_empty());
    }
}

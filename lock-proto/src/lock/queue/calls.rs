//! The calls of a lock that are in flight, in one table.
// M12

use crate::collections::Few;

/// The calls in flight, each with its purpose. The reply to any other call is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallTable<P>(Few<(u64, P)>);

impl<P> CallTable<P> {
    pub(crate) const fn new() -> Self {
        Self(Few::None)
    }

    pub(crate) fn put(&mut self, serial: u64, purpose: P) {
        self.0.push((serial, purpose));
    }

    /// Removes a call that was answered, and returns its purpose.
    pub(crate) fn answered(&mut self, serial: u64) -> Option<P> {
        let place = self.0.iter().position(|(call, _)| *call == serial)?;
        self.0.remove(place).map(|(_, purpose)| purpose)
    }

    /// Removes the first call for such a purpose, to await its reply for another one.
    pub(crate) fn take(&mut self, is: impl Fn(&P) -> bool) -> Option<(u64, P)> {
        let place = self.0.iter().position(|(_, purpose)| is(purpose))?;
        self.0.remove(place)
    }

    /// Drops the replies to all calls for such a purpose.
    pub(crate) fn forget(&mut self, is: impl Fn(&P) -> bool) {
        while self.take(&is).is_some() {}
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &P> {
        self.0.iter().map(|(_, purpose)| purpose)
    }
}

impl<P: PartialEq> CallTable<P> {
    /// Awaits the reply to this call alone for this purpose.
    pub(crate) fn replace(&mut self, serial: u64, purpose: P) {
        self.forget(|known| *known == purpose);
        self.put(serial, purpose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_answered_once_and_only_for_its_last_purpose() {
        let mut calls = CallTable::new();
        for (serial, purpose) in [(1, 'a'), (2, 'b'), (3, 'a')] {
            calls.put(serial, purpose);
        }
        assert_eq!((calls.answered(2), calls.answered(2), calls.answered(9)), (Some('b'), None, None));
        assert_eq!(calls.take(|purpose| *purpose == 'a'), Some((1, 'a')));
        calls.replace(4, 'a');
        assert_eq!((calls.answered(3), calls.iter().count(), calls.answered(4)), (None, 1, Some('a')));
        calls.put(5, 'c');
        calls.forget(|purpose| *purpose == 'c');
        assert_eq!(calls, CallTable::new());
    }
}

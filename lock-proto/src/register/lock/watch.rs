//! The watch of a key, by a waiter or an observer.
// RG7

use crate::register::record::Revision;

/// The watch of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum KeyWatch {
    #[default]
    Off,
    /// From this revision on.
    On(Option<Revision>),
    /// It has reported a change since this revision.
    Reported(Option<Revision>),
}

impl KeyWatch {
    /// Returns true if the key is to be watched from the revision on that a read has shown. If it
    /// was watched from there, and a change was reported, it is not: the next poll finds out what
    /// the report was about.
    pub(crate) fn follow(&mut self, seen: Option<&Revision>) -> bool {
        if let Self::On(before) | Self::Reported(before) = self
            && before.as_ref() == seen
        {
            return false;
        }
        *self = Self::On(seen.cloned());
        true
    }

    /// A change was reported. Returns true if the key was watched. A read in flight may have been
    /// made before the change.
    pub(crate) fn report(&mut self, is_reading: bool) -> bool {
        let Self::On(seen) = self else { return false };
        *self = if is_reading { Self::Off } else { Self::Reported(seen.take()) };
        true
    }

    /// The key is polled, whatever was reported.
    pub(crate) fn poll(&mut self) {
        if let Self::Reported(_) = self {
            *self = Self::Off;
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        matches!(self, Self::On(_))
    }

    /// Ends the watch. Returns true if there was one.
    pub(crate) fn end(&mut self) -> bool {
        matches!(core::mem::take(self), Self::On(_))
    }
}

//! The names of a lock's keys.

use alloc::sync::Arc;

/// Suffix of the marker key, which exists while a lock has waiters.
pub const WAITING_SUFFIX: &str = ":lock-proto:waiting";
/// Suffix of the list key on which waiters block.
pub const SIGNAL_SUFFIX: &str = ":lock-proto:waiting:signal";
/// Name of the fence counter. Its key is the namespace's prefix and this name.
pub const FENCE_NAME: &str = "lock-proto:fence";
/// Substring reserved for side keys. Lock keys must not contain it.
pub const RESERVED: &str = "lock-proto:";

/// Keys up to this length, suffix included, are assembled on the stack.
const SHORT_KEY: usize = 128;

/// How the keys of a lock are named: nothing else forms one. There are no channels.
///
/// The lock's own key is the prefix and the name in every layout, since other clients may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyLayout {
    /// Side keys are the lock's key and a suffix, and each prefix has one fence counter. In a
    /// cluster all keys of a lock are in one slot only if the prefix has a hash tag. With a tag in
    /// the name, the fence counter is still elsewhere.
    #[default]
    Suffixes,
}

impl KeyLayout {
    /// Returns the keys of the lock `name` in the namespace `prefix`.
    #[must_use]
    pub fn key(self, prefix: &[u8], name: &[u8]) -> Key {
        match self {
            Self::Suffixes => Key::concat([prefix, name, SIGNAL_SUFFIX.as_bytes()]),
        }
    }

    /// Returns the fence counter of the namespace `prefix` in place of a lock, as a check of a
    /// server reads it.
    #[must_use]
    pub fn counter(self, prefix: &[u8]) -> Key {
        match self {
            Self::Suffixes => self.key(prefix, FENCE_NAME.as_bytes()),
        }
    }

    /// Returns the key of the counter that mints the fencing tokens of the lock `key`. `counter` is
    /// that of its namespace.
    pub(super) fn fence_key<'a>(self, counter: &'a Key, _key: &'a Key) -> &'a [u8] {
        match self {
            Self::Suffixes => counter.lock(),
        }
    }
}

/// The keys of one lock. Cheap to clone, and requests need no allocation for them.
///
/// One buffer stores all of them, since each key is a prefix of the next one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Creates the keys of the lock `name` in the namespace `prefix`, in the default layout.
    #[must_use]
    pub fn new(prefix: &[u8], name: &[u8]) -> Self {
        KeyLayout::default().key(prefix, name)
    }

    fn concat(parts: [&[u8]; 3]) -> Self {
        // Nearly every key fits, which saves one of two allocations.
        let mut buf = [0; SHORT_KEY];
        let mut len = 0;
        for part in parts {
            let Some(free) = buf.get_mut(len..len + part.len()) else { return Self(parts.concat().into()) };
            free.copy_from_slice(part);
            len += part.len();
        }
        Self(buf[..len].into())
    }

    /// The lock's key: prefix and name, byte for byte.
    pub fn lock(&self) -> &[u8] {
        &self.0[..self.0.len() - SIGNAL_SUFFIX.len()]
    }

    /// The marker, which exists while the lock has waiters.
    pub fn waiting(&self) -> &[u8] {
        &self.0[..self.0.len() - (SIGNAL_SUFFIX.len() - WAITING_SUFFIX.len())]
    }

    /// The list on which waiters block.
    pub fn signal(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Key({})", self.lock().escape_ascii())
    }
}

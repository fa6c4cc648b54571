//! Keys and key ranges in requests.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Bound;

use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeySpan {
    One(Bytes),
    /// The end is exclusive. A range whose end is not after its start is empty.
    Range(Bytes, Bytes),
    /// All keys from this one on.
    From(Bytes),
}

impl KeySpan {
    /// Converts from a request: without an end it is one key; the end `\0` means no limit.
    pub(super) fn new(key: &Bytes, end: &Bytes) -> Self {
        match &**end {
            [] => Self::One(key.clone()),
            [0] => Self::From(key.clone()),
            _ => Self::Range(key.clone(), end.clone()),
        }
    }

    pub(super) fn start(&self) -> &Bytes {
        match self {
            Self::One(key) | Self::Range(key, _) | Self::From(key) => key,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Range(key, end) if end <= key)
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(own) => **own == *key,
            Self::Range(start, end) => **start <= *key && *key < **end,
            Self::From(start) => **start <= *key,
        }
    }

    /// The range must not be empty.
    pub(super) fn bounds(&self) -> (Bound<&Bytes>, Bound<&Bytes>) {
        match self {
            Self::One(key) => (Bound::Included(key), Bound::Included(key)),
            Self::Range(start, end) => (Bound::Included(start), Bound::Excluded(end)),
            Self::From(start) => (Bound::Included(start), Bound::Unbounded),
        }
    }
}

/// The end of a permission: a key (exclusive), or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Until {
    Key(Vec<u8>),
    Last,
}

impl Ord for Until {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Key(own), Self::Key(other)) => own.cmp(other),
            (Self::Key(_), Self::Last) => Ordering::Less,
            (Self::Last, Self::Key(_)) => Ordering::Greater,
            (Self::Last, Self::Last) => Ordering::Equal,
        }
    }
}

impl PartialOrd for Until {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the end of the range of keys that start with `prefix`.
pub(super) fn after_prefix(prefix: &[u8]) -> Until {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Until::Key(end);
        }
    }
    Until::Last
}

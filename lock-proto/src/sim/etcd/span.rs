//! Keys and ranges, as requests name them.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Bound;

use bytes::Bytes;

/// One key, or the keys from one to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Span {
    One(Bytes),
    /// The end is exclusive; not after the start, if there is no key in it.
    Range(Bytes, Bytes),
    /// To the last key of all.
    From(Bytes),
}

impl Span {
    /// As a request names it: no end is one key, an end of one zero byte is no end.
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

    /// The bounds for a map. Not for an empty range.
    pub(super) fn bounds(&self) -> (Bound<&Bytes>, Bound<&Bytes>) {
        match self {
            Self::One(key) => (Bound::Included(key), Bound::Included(key)),
            Self::Range(start, end) => (Bound::Included(start), Bound::Excluded(end)),
            Self::From(start) => (Bound::Included(start), Bound::Unbounded),
        }
    }
}

/// Where a permission ends: a key, exclusive, or nowhere.
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

/// The first key after all that begin with `prefix`.
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

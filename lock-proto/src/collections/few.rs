//! A list that needs no allocation for one value.

use alloc::vec::Vec;
use core::mem;
use core::ops::{Deref, DerefMut};
use core::slice;

/// Room for this many, once there is more than one.
const MANY: usize = 8;

/// A list of mostly at most one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self {
            Self::None => *self = Self::One(value),
            Self::One(_) => self.grow(value),
            Self::Many(values) => values.push(value),
        }
    }

    #[cold]
    fn grow(&mut self, value: T) {
        let mut values = Vec::with_capacity(MANY);
        if let Self::One(first) = mem::take(self) {
            values.push(first);
        }
        values.push(value);
        *self = Self::Many(values);
    }

    /// Removes the value at `place`, and keeps the order of the others.
    #[inline]
    pub(crate) fn remove(&mut self, place: usize) -> Option<T> {
        if let Self::Many(values) = self {
            let removed = (place < values.len()).then(|| values.remove(place));
            if values.is_empty() {
                *self = Self::None;
            }
            return removed;
        }
        if let Self::One(value) = mem::take(self) {
            if place == 0 {
                return Some(value);
            }
            *self = Self::One(value);
        }
        None
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (None, _) => Self::None,
            (Some(one), None) => Self::One(one),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(values).collect()),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(value) => slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(value) => slice::from_mut(value),
            Self::Many(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order() {
        let mut few = Few::default();
        for value in 1..=3 {
            few.push(value);
        }
        assert_eq!(few[..], [1, 2, 3]);
        assert_eq!((few.remove(3), few.remove(0)), (None, Some(1)));
        assert_eq!(few[..], [2, 3]);
    }

    #[test]
    fn empty_list_frees_its_memory() {
        let mut few = Few::default();
        few.push(1);
        few.push(2);
        assert_eq!((few.remove(0), few.remove(0), few.remove(0), few), (Some(1), Some(2), None, Few::None));
    }
}

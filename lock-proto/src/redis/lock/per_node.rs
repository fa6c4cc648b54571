//! A collection of one value per node. A single value needs no allocation.

use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};
use core::slice;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PerNode<T> {
    One(T),
    Many(Box<[T]>),
}

impl<T> FromIterator<T> for PerNode<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(values).collect()),
        }
    }
}

impl<T> Deref for PerNode<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl<T> DerefMut for PerNode<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(value) => slice::from_mut(value),
            Self::Many(values) => values,
        }
    }
}

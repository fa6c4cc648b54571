//! The names of a node's children.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The names of a node's children, in no order.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Names {
    /// All names, one after the other: a queue can be long, and is listed often.
    text: String,
    /// Where each one ends.
    ends: Vec<usize>,
}

impl Names {
    /// Returns the number of names.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there is none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let name = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            name
        })
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let mut all = Self::default();
        for name in names {
            all.text.push_str(name.as_ref());
            all.ends.push(all.text.len());
        }
        all
    }
}

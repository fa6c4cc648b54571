//! Finds room for texts, so that they do not overlap.

use alloc::vec::Vec;

/// Estimates the width of a text of this size.
pub(super) fn width(text: &str, size: f64) -> f64 {
    // Slightly more than the average of digits and lower-case letters in system fonts.
    text.chars().count() as f64 * size * 0.58
}

/// Assigns rows: the lowest row that is free from `start` on.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows(Vec<f64>);

impl Rows {
    pub(super) fn place(&mut self, start: f64, end: f64) -> usize {
        let free = self.0.iter().position(|taken| *taken <= start);
        let row = free.unwrap_or_else(|| {
            self.0.push(f64::NEG_INFINITY);
            self.0.len() - 1
        });
        self.0[row] = end;
        row
    }

    /// Does the same, limited to the first `limit` rows.
    pub(super) fn try_place(&mut self, start: f64, end: f64, limit: usize) -> Option<usize> {
        let full = self.0.len() >= limit && self.0.iter().take(limit).all(|taken| *taken > start);
        (!full).then(|| self.place(start, end))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

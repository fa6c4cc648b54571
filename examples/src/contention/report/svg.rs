//! Drawing: a picture as text, and axes.

use core::fmt::{self, Write as _};

/// Text in an element or an attribute.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            c => f.write_char(c),
        })
    }
}

/// Where a text stands to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture. Everything is placed in its own units; classes give colours, so that light and dark are a matter of the page.
pub(super) struct Svg {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

impl Svg {
    /// `label` is for who does not see it.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Self {
        Self { width, height, label: label.to_owned(), body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(self.body, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
    }

    /// Through these points; closed if it is an area.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], closed: bool) {
        let mut d = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        }
        let end = if closed { "Z" } else { "" };
        let _ = write!(self.body, r#"<path class="{class}" d="{d}{end}"/>"#);
    }

    /// With words for who points at it.
    pub(super) fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, words: &str) {
        let (x, y) = at;
        let words = Escaped(words);
        let _ = write!(
            self.body,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{words}</title></circle>"#
        );
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let ((x, y), text) = (at, Escaped(text));
        let _ =
            write!(self.body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
    }
}

impl fmt::Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, height, label, body } = self;
        let label = Escaped(label);
        write!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{body}</svg>"#
        )
    }
}

/// An axis from a value at one end to a value at the other.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    is_log: bool,
    values: (f64, f64),
    places: (f64, f64),
}

impl Axis {
    /// Logarithmic, over the whole decades around these values.
    pub(super) fn decades(of: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in of.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value.log10()), high.max(value.log10()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let low = low.floor();
        let high = high.ceil().max(low + 1.0);
        Self { is_log: true, values: (low, high), places }
    }

    /// Linear, from 0 to this value.
    pub(super) const fn linear(to: f64, places: (f64, f64)) -> Self {
        Self { is_log: false, values: (0.0, to), places }
    }

    /// The same values elsewhere.
    pub(super) const fn moved(self, places: (f64, f64)) -> Self {
        Self { places, ..self }
    }

    /// The place of a value; one that is off the axis is at its end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    /// The values that get a line, at most about `most`.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        if !self.is_log {
            // Steps of 1, 2 or 5 times a power of ten.
            let rough = self.values.1 / most.max(1) as f64;
            let power = 10_f64.powf(rough.log10().floor());
            let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
            let count = (self.values.1 / (factor * power) + 1e-9) as usize;
            return (0..=count).map(|i| i as f64 * factor * power).collect();
        }
        let (low, high) = (self.values.0 as i32, self.values.1 as i32);
        let step = (high - low) as usize / most.max(1) + 1;
        (low..=high).rev().step_by(step).map(|power| 10_f64.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(Escaped("<a & \"b\">").to_string(), "&lt;a &amp; &quot;b&quot;&gt;");
    }

    #[test]
    fn a_linear_axis_has_round_ticks() {
        assert_eq!(Axis::linear(1.0, (0.0, 10.0)).ticks(2), [0.0, 0.5, 1.0]);
        assert_eq!(Axis::linear(470.0, (0.0, 10.0)).ticks(5), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(Axis::linear(9.0, (0.0, 10.0)).ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn an_axis_covers_whole_decades() {
        let axis = Axis::decades([20.0, 0.0, 3_000.0].into_iter(), (100.0, 400.0));
        for (value, place) in [(10.0, 100.0), (100.0, 200.0), (10_000.0, 400.0), (1e9, 400.0), (0.0, 100.0)] {
            assert!((axis.at(value) - place).abs() < 1e-9, "{value}: {}", axis.at(value));
        }
        assert_eq!(axis.ticks(5), [10_000.0, 1_000.0, 100.0, 10.0]);
        assert_eq!(axis.ticks(2), [10_000.0, 100.0]);
        assert_eq!(Axis::decades(core::iter::empty(), (0.0, 1.0)).ticks(9), [10.0, 1.0]);
    }
}

//! Elements of a picture, as text that is well-formed XML.

use core::fmt::{self, Write as _};

/// Text between tags or in an attribute: what means something to XML is escaped, what it does not allow is shown as an escape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A coordinate, to a tenth of a pixel.
#[derive(Clone, Copy, Debug)]
struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        // `-0` is no number that anybody wants to read.
        if tenths == 0.0 { f.write_str("0") } else { write!(f, "{tenths}") }
    }
}

/// Where a text begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// About how wide a text of this size is.
pub(super) fn width(text: &str, size: f64) -> f64 {
    // The average of digits and lower-case letters of system fonts, and a little more: room is better than overlap.
    text.chars().count() as f64 * size * 0.58
}

/// A picture, or a part of one.
#[derive(Clone, Debug, Default)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    pub(super) fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(text);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// Ends an element: with a title, which is shown when the pointer rests on it.
    fn end(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.0.push_str("/>\n");
        } else {
            self.put(format_args!("><title>{}</title></{element}>\n", Escaped(title)));
        }
    }

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64), title: &str) {
        let (x, y, w, h) = (Px(x), Px(y), Px(w.max(0.0)), Px(h));
        self.put(format_args!(r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}""#));
        self.end("rect", title);
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), title: &str) {
        let (x1, y1, x2, y2) = (Px(x1), Px(y1), Px(x2), Px(y2));
        self.put(format_args!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}""#));
        self.end("line", title);
    }

    pub(super) fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        self.put(format_args!(r#"<circle class="{class}" cx="{}" cy="{}" r="{}""#, Px(x), Px(y), Px(radius)));
        self.end("circle", title);
    }

    /// Straight lines through these points.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        self.put(format_args!(r#"<path class="{class}" d=""#));
        for (i, (x, y)) in points.iter().enumerate() {
            self.put(format_args!("{}{} {}", if i == 0 { 'M' } else { 'L' }, Px(*x), Px(*y)));
        }
        self.0.push('"');
        self.end("path", title);
    }

    /// A cross.
    pub(super) fn cross(&mut self, class: &str, (x, y): (f64, f64), arm: f64, title: &str) {
        let (l, r, t, b) = (Px(x - arm), Px(x + arm), Px(y - arm), Px(y + arm));
        self.put(format_args!(r#"<path class="{class}" d="M{l} {t}L{r} {b}M{l} {b}L{r} {t}""#));
        self.end("path", title);
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\"{anchor}>{}</text>\n",
            Px(x),
            Px(y),
            Escaped(text)
        ));
    }
}

/// Places in rows, so that nothing lies on something else: the lowest row that is free from `start` on.
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

    /// The same, if there is room in the first `limit` rows.
    pub(super) fn try_place(&mut self, start: f64, end: f64, limit: usize) -> Option<usize> {
        let full = self.0.len() >= limit && self.0.iter().take(limit).all(|taken| *taken > start);
        (!full).then(|| self.place(start, end))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

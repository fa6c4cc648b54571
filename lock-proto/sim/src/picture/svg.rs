//! SVG elements as well-formed XML. Elements have classes; the page defines their colours, light
//! and dark.

use alloc::string::String;
use core::fmt::{self, Write as _};

/// Text for element content or attributes. Escapes XML markup, and shows invalid characters as
/// escapes.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

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

/// A coordinate, rounded to a tenth of a pixel.
#[derive(Clone, Copy, Debug)]
struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        // Avoids `-0`.
        if tenths == 0.0 { f.write_str("0") } else { write!(f, "{tenths}") }
    }
}

/// Alignment of a text relative to its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

/// An SVG picture, or a part of one.
#[derive(Clone, Debug, Default)]
pub struct Svg(String);

impl Svg {
    /// Creates an empty picture.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the elements as text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }

    /// Adds text as it is.
    pub fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(text);
    }

    /// Adds the elements of another picture.
    pub fn add(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// Closes an element. Its title is the tooltip.
    fn end(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.0.push_str("/>\n");
        } else {
            self.put(format_args!("><title>{}</title></{element}>\n", Escaped(title)));
        }
    }

    /// Draws a rectangle at this corner with this width and height. `title` is the tooltip.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64), title: &str) {
        let (x, y, w, h) = (Px(x), Px(y), Px(w.max(0.0)), Px(h));
        self.put(format_args!(r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}""#));
        self.end("rect", title);
    }

    /// Draws a line between two points.
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), title: &str) {
        let (x1, y1, x2, y2) = (Px(x1), Px(y1), Px(x2), Px(y2));
        self.put(format_args!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}""#));
        self.end("line", title);
    }

    /// Draws a circle.
    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        self.put(format_args!(r#"<circle class="{class}" cx="{}" cy="{}" r="{}""#, Px(x), Px(y), Px(radius)));
        self.end("circle", title);
    }

    /// Draws straight lines through these points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        self.through(class, points, "", title);
    }

    /// Draws the closed polygon through these points.
    pub fn area(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        self.through(class, points, "Z", title);
    }

    fn through(&mut self, class: &str, points: &[(f64, f64)], last: &str, title: &str) {
        self.put(format_args!(r#"<path class="{class}" d=""#));
        for (i, (x, y)) in points.iter().enumerate() {
            self.put(format_args!("{}{} {}", if i == 0 { 'M' } else { 'L' }, Px(*x), Px(*y)));
        }
        self.put(format_args!("{last}\""));
        self.end("path", title);
    }

    /// Draws a diagonal cross with arms of this length.
    pub fn cross(&mut self, class: &str, (x, y): (f64, f64), arm: f64, title: &str) {
        let (l, r, t, b) = (Px(x - arm), Px(x + arm), Px(y - arm), Px(y + arm));
        self.put(format_args!(r#"<path class="{class}" d="M{l} {t}L{r} {b}M{l} {b}L{r} {t}""#));
        self.end("path", title);
    }

    /// Draws a text.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(Escaped("<a & \"b\">").to_string(), "&lt;a &amp; &quot;b&quot;&gt;");
    }

    #[test]
    fn characters_invalid_in_xml_are_escaped_or_replaced() {
        assert_eq!(
            Escaped("a<b>&\"c'\u{0}\u{1b}\u{ffff}é\n").to_string(),
            "a&lt;b&gt;&amp;&quot;c&#39;\\u{0}\\u{1b}\u{fffd}é\n"
        );
    }
}

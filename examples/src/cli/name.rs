//! Lock names for terminals and logs.

use core::fmt::{self, Write as _};

/// Displays a name on one line, with control characters and invalid UTF-8 escaped.
#[derive(Clone, Copy)]
pub(crate) struct DisplayName<'a>(pub(crate) &'a [u8]);

impl fmt::Display for DisplayName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Displays a name as [`DisplayName`] does, shortened if it is long.
#[derive(Clone, Copy)]
pub(crate) struct ShortName<'a>(pub(crate) &'a [u8]);

impl fmt::Display for ShortName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 64;
        let shown = DisplayName(self.0).to_string();
        match shown.char_indices().nth(LONGEST) {
            None => f.write_str(&shown),
            Some((end, _)) => write!(f, "{}… ({} bytes)", &shown[..end], self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DisplayName, ShortName};

    #[test]
    fn long_name_is_shortened() {
        assert_eq!(ShortName(&[b'n'; 64]).to_string(), "n".repeat(64));
        assert_eq!(ShortName(&"ї".repeat(65).into_bytes()).to_string(), "ї".repeat(64) + "… (130 bytes)");
    }

    #[test]
    fn shown_name_escapes_control_and_invalid_bytes() {
        assert_eq!(DisplayName("рахунок:42 x".as_bytes()).to_string(), "рахунок:42 x");
        assert_eq!(DisplayName(b"a\nb\x1b[2J\xffc").to_string(), "a\\nb\\u{1b}[2J\\xffc");
    }
}

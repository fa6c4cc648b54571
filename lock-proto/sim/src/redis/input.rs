//! Parses requests, with the limits and error texts of Redis
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

/// Maximum length of a line: an inline command or a length.
const MAX_LINE: usize = 64 * 1024;
const MAX_ARGS: i64 = 1024 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedInput {
    Incomplete,
    /// A request of `len` bytes, whose arguments were appended. May be empty: ignore it then.
    Request {
        len: usize,
    },
    /// An inline request, whose words may have been quoted.
    Inline {
        len: usize,
        words: Vec<Vec<u8>>,
    },
    /// A protocol error: reply with this and close.
    Broken(Cow<'static, str>),
}

/// Limits that depend on the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputLimits {
    pub(crate) max_bulk: usize,
    pub(crate) authenticated: bool,
}

/// Parses one request. `args` must be empty; the caller provides it to reuse the allocation.
pub(crate) fn parse<'a>(buf: &'a [u8], limits: InputLimits, args: &mut Vec<&'a [u8]>) -> ParsedInput {
    match buf.first() {
        None => ParsedInput::Incomplete,
        Some(b'*') => {
            let parsed = array(buf, limits, args);
            if !matches!(parsed, ParsedInput::Request { .. }) {
                args.clear();
            }
            parsed
        }
        Some(_) => inline(buf),
    }
}

/// Parses an array without recursion, and without allocating for announced lengths.
fn array<'a>(buf: &'a [u8], limits: InputLimits, args: &mut Vec<&'a [u8]>) -> ParsedInput {
    let (count, mut at) = match length(buf, 1, "ERR Protocol error: too big mbulk count string") {
        Ok(Some((number, next))) => (number, next),
        Ok(None) => return ParsedInput::Incomplete,
        Err(broken) => return ParsedInput::Broken(broken.into()),
    };
    let count = match count {
        Some(n) if !limits.authenticated && n > 10 => {
            return ParsedInput::Broken("ERR Protocol error: unauthenticated multibulk length".into());
        }
        Some(n) if n <= MAX_ARGS => n,
        Some(_) | None => return ParsedInput::Broken("ERR Protocol error: invalid multibulk length".into()),
    };
    if count <= 0 {
        return ParsedInput::Request { len: at };
    }
    for _ in 0..count {
        match buf.get(at) {
            None => return ParsedInput::Incomplete,
            Some(b'$') => {}
            Some(other) => {
                let shown = char::from(*other);
                return ParsedInput::Broken(format!("ERR Protocol error: expected '$', got '{shown}'").into());
            }
        }
        let (size, start) = match length(buf, at + 1, "ERR Protocol error: too big bulk count string") {
            Ok(Some((number, next))) => (number, next),
            Ok(None) => return ParsedInput::Incomplete,
            Err(broken) => return ParsedInput::Broken(broken.into()),
        };
        let size = match size.map(usize::try_from) {
            Some(Ok(n)) if n <= limits.max_bulk => n,
            Some(Ok(_) | Err(_)) | None => {
                return ParsedInput::Broken("ERR Protocol error: invalid bulk length".into());
            }
        };
        if !limits.authenticated && size > 16_384 {
            return ParsedInput::Broken("ERR Protocol error: unauthenticated bulk length".into());
        }
        at = start + size + 2;
        if buf.len() < at {
            return ParsedInput::Incomplete;
        }
        args.push(&buf[start..start + size]);
    }
    ParsedInput::Request { len: at }
}

/// Parses a line with a number at `from`. Also returns the offset of the next line.
fn length(buf: &[u8], from: usize, too_long: &'static str) -> Result<Option<(Option<i64>, usize)>, &'static str> {
    let line = &buf[from..];
    // Fast path for one or two digits.
    match line {
        [n @ b'0'..=b'9', b'\r', _, ..] => return Ok(Some((Some(i64::from(n - b'0')), from + 3))),
        [n @ b'1'..=b'9', m @ b'0'..=b'9', b'\r', _, ..] => {
            return Ok(Some((Some(i64::from(n - b'0') * 10 + i64::from(m - b'0')), from + 4)));
        }
        _ => {}
    }
    let Some(end) = line.iter().take(MAX_LINE).position(|b| *b == b'\r') else {
        return if line.len() > MAX_LINE { Err(too_long) } else { Ok(None) };
    };
    if line.len() < end + 2 {
        return Ok(None);
    }
    Ok(Some((super::number::integer(&line[..end]), from + end + 2)))
}

fn inline(buf: &[u8]) -> ParsedInput {
    let Some(end) = buf.iter().take(MAX_LINE).position(|b| *b == b'\n') else {
        return if buf.len() >= MAX_LINE {
            ParsedInput::Broken("ERR Protocol error: too big inline request".into())
        } else {
            ParsedInput::Incomplete
        };
    };
    let line = buf[..end].strip_suffix(b"\r").unwrap_or(&buf[..end]);
    match words(line) {
        Some(words) => ParsedInput::Inline { len: end + 1, words },
        None => ParsedInput::Broken("ERR Protocol error: unbalanced quotes in request".into()),
    }
}

/// Splits a line at blanks, with quotes as in redis-cli. `None` if a quote is malformed.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        let mut word = Vec::new();
        if matches!(first, b'"' | b'\'') {
            let mut at = 1;
            loop {
                let byte = *rest.get(at)?;
                if byte == *first {
                    break;
                }
                let (literal, used) = if byte == b'\\' { escape(&rest[at..], *first)? } else { (byte, 1) };
                word.push(literal);
                at += used;
            }
            rest = &rest[at + 1..];
            if rest.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                return None;
            }
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

/// Returns the byte of an escape sequence, and the length of the sequence.
fn escape(at: &[u8], quote: u8) -> Option<(u8, usize)> {
    let next = *at.get(1)?;
    if quote == b'\'' {
        return Some(if next == b'\'' { (next, 2) } else { (b'\\', 1) });
    }
    if next == b'x' {
        let digits = at.get(2..4).and_then(|hex| core::str::from_utf8(hex).ok());
        if let Some(byte) = digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            return Some((byte, 4));
        }
    }
    let byte = match next {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    };
    Some((byte, 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const LIMITS: InputLimits = InputLimits { max_bulk: 1 << 20, authenticated: true };

    fn request(bytes: &[u8]) -> (ParsedInput, Vec<&[u8]>) {
        let mut args = Vec::new();
        (parse(bytes, LIMITS, &mut args), args)
    }

    fn refused(bytes: &[u8], limits: InputLimits) -> ParsedInput {
        let mut args = Vec::new();
        let parsed = parse(bytes, limits, &mut args);
        assert!(args.is_empty(), "nothing is left of it");
        parsed
    }

    fn broken(text: &'static str) -> ParsedInput {
        ParsedInput::Broken(text.into())
    }

    #[test]
    fn arrays_and_inline_commands_are_parsed() {
        let none: Vec<&[u8]> = Vec::new();
        let get = vec![&b"GET"[..], b"k"];
        assert_eq!(request(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nrest"), (ParsedInput::Request { len: 20 }, get));
        let words = [&b"get"[..], b"a bA", b"c'd"].map(Vec::from).into();
        let line = b"get  \"a b\\x41\" 'c\\'d'\r\n";
        assert_eq!(request(line), (ParsedInput::Inline { len: 23, words }, none.clone()));
        assert_eq!(request(b"*0\r\n"), (ParsedInput::Request { len: 4 }, none.clone()));
        assert_eq!(request(b"*-1\r\n"), (ParsedInput::Request { len: 5 }, none.clone()));
        assert_eq!(request(b"\r\n"), (ParsedInput::Inline { len: 2, words: Vec::new() }, none));
    }

    #[test]
    fn argument_terminator_is_skipped_unchecked_as_in_redis() {
        assert_eq!(request(b"*1\r\n$1\r\nabc"), (ParsedInput::Request { len: 11 }, vec![&b"a"[..]]));
    }

    #[test]
    fn every_request_prefix_is_incomplete() {
        let whole = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        for n in 0..whole.len() {
            assert_eq!(refused(&whole[..n], LIMITS), ParsedInput::Incomplete, "{n} bytes");
        }
    }

    #[test]
    fn hostile_input_is_refused_before_buffering() {
        let nested = b"*1\r\n".repeat(10_000);
        assert_eq!(refused(&nested, LIMITS), broken("ERR Protocol error: expected '$', got '*'"));
        for (bytes, text) in [
            (&b"*1\r\n$4611686018427387904\r\n"[..], "ERR Protocol error: invalid bulk length"),
            (b"*1\r\n$-1\r\n", "ERR Protocol error: invalid bulk length"),
            (b"*4611686018427387904\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*x\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"get \"a\r\n", "ERR Protocol error: unbalanced quotes in request"),
        ] {
            assert_eq!(refused(bytes, LIMITS), broken(text));
        }
        assert_eq!(refused(&vec![b'a'; MAX_LINE], LIMITS), broken("ERR Protocol error: too big inline request"));
        let digits = [&b"*"[..], &vec![b'1'; MAX_LINE + 1]].concat();
        assert_eq!(refused(&digits, LIMITS), broken("ERR Protocol error: too big mbulk count string"));
    }

    #[test]
    fn unauthenticated_request_size_is_limited() {
        let limits = InputLimits { authenticated: false, ..LIMITS };
        assert_eq!(refused(b"*11\r\n", limits), broken("ERR Protocol error: unauthenticated multibulk length"));
        assert_eq!(refused(b"*1\r\n$16385\r\n", limits), broken("ERR Protocol error: unauthenticated bulk length"));
    }
}

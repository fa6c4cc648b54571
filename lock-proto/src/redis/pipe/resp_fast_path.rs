//! Fast path for the most common replies. Decoding costs as much as all other processing of a
//! reply. Anything not recognised here goes to the scanner and the decoder.

use super::frame::{Decoded, Limits, MAX_INTS};
use crate::redis::url::Protocol;

/// More digits may not fit into an `i64`.
const DIGITS: usize = 18;

/// Parses `OK`, an integer, null, two or four integers at the start of `bytes`, and returns the
/// length. `None` if the frame is incomplete or of another form.
pub(super) fn parse_common_reply(
    bytes: &[u8],
    protocol: Protocol,
    limits: &Limits,
) -> Option<(Decoded<'static>, usize)> {
    let (answer, len) = match *bytes.first()? {
        b':' => int(bytes, 0).map(|(n, end)| (Decoded::Int(n), end))?,
        b'+' => bytes.starts_with(b"+OK\r\n").then_some((Decoded::Text(b"OK"), 5))?,
        b'$' => (protocol == Protocol::Resp2 && bytes.starts_with(b"$-1\r\n")).then_some((Decoded::Nil, 5))?,
        b'_' => (protocol == Protocol::Resp3 && bytes.starts_with(b"_\r\n")).then_some((Decoded::Nil, 3))?,
        b'*' => {
            let len = match bytes.get(1..4)? {
                b"2\r\n" => 2,
                b"4\r\n" => 4,
                _ => return None,
            };
            if limits.depth == 0 || limits.elements < len {
                return None;
            }
            let (mut values, mut end) = ([0; MAX_INTS], 4);
            for value in values.iter_mut().take(len) {
                (*value, end) = int(bytes, end)?;
            }
            (Decoded::Ints { values, len }, end)
        }
        _ => return None,
    };
    (len <= limits.frame).then_some((answer, len))
}

/// Parses the integer at `at`, and returns where it ends.
fn int(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let digits = bytes.get(at..)?.strip_prefix(b":")?;
    let (negative, digits) = digits.strip_prefix(b"-").map_or((false, digits), |digits| (true, digits));
    let mut n = 0;
    let mut len = 0;
    while let Some(digit) = digits.get(len).filter(|digit| digit.is_ascii_digit()) {
        if len == DIGITS {
            return None;
        }
        n = n * 10 + i64::from(digit - b'0');
        len += 1;
    }
    let complete = len > 0 && digits.get(len..)?.starts_with(b"\r\n");
    complete.then_some((if negative { -n } else { n }, at + 1 + usize::from(negative) + len + 2))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::frame::{Scan, Scanner};
    use super::*;
    use crate::fault::Breach;
    use crate::jitter::mix;
    use alloc::vec::Vec;

    const PARTS: [&[u8]; 21] = [
        b":",
        b"+",
        b"$",
        b"*",
        b"_",
        b"-",
        b"2",
        b"0",
        b"1",
        b"9",
        b"1700000000000000",
        b"OK",
        b"\r\n",
        b"\r",
        b"\n",
        b":1\r\n",
        b":-2\r\n",
        b"*2\r\n",
        b"*4\r\n:1\r\n:9\r\n",
        b"$-1\r\n",
        b"+OK\r\n",
    ];

    /// Compares with the scanner and the decoder, on frames assembled and cut at random.
    #[test]
    fn short_parser_agrees_with_scanner_and_decoder() {
        // P3
        let mut read = [0; 5];
        for seed in 0..200_000 {
            let mut n = 0;
            let mut draw = |below: usize| {
                n += 1;
                mix(seed, n) as usize % below
            };
            let parts = 1 + draw(7);
            let bytes: Vec<u8> = (0..parts).flat_map(|_| PARTS[draw(PARTS.len())]).copied().collect();
            let limits = match draw(4) {
                0 => Limits { frame: draw(12), depth: draw(2), elements: draw(3), ..Limits::default() },
                _ => Limits::default(),
            };
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let Some((answer, len)) = parse_common_reply(&bytes, protocol, &limits) else { continue };
                assert_eq!(Scanner::default().scan(&bytes, protocol, &limits), Ok(Scan::Complete(len)), "{bytes:?}");
                assert_eq!(Decoded::decode(&bytes[..len], protocol), Ok(answer), "{bytes:?}");
                read[b":+$_*".iter().position(|kind| *kind == bytes[0]).unwrap_or_default()] += 1;
            }
        }
        assert!(read.iter().all(|count| *count > 100), "every form is met: {read:?}");
    }

    #[test]
    fn limits_apply_to_short_replies() {
        // P3
        let (pair, four) = (&b"*2\r\n:1\r\n:1\r\n"[..], &b"*4\r\n:1\r\n:1700000000000000\r\n:64\r\n:0\r\n"[..]);
        for (list, elements) in [(pair, 2), (four, 4)] {
            let exact = Limits { frame: list.len(), depth: 1, elements, ..Limits::default() };
            let (answer, len) = parse_common_reply(list, Protocol::Resp2, &exact).unwrap();
            assert_eq!(Decoded::decode(list, Protocol::Resp2), Ok(answer));
            assert_eq!(Scanner::default().scan(list, Protocol::Resp2, &exact), Ok(Scan::Complete(len)));
            // The frame is incomplete, and its rest exceeds the limit.
            let full = Limits { frame: 4, ..exact };
            assert_eq!(Scanner::default().scan(&list[..4], Protocol::Resp2, &full), Err(Breach::TooLong));
            let (frame, elements) = (list.len() - 1, elements - 1);
            for less in [Limits { frame, ..exact }, Limits { depth: 0, ..exact }, Limits { elements, ..exact }] {
                assert_eq!(parse_common_reply(list, Protocol::Resp2, &less), None, "{less:?}");
            }
        }
    }

    #[test]
    fn uncertain_input_is_left_to_decoder() {
        let long = [b":".as_slice(), &b"9".repeat(19), b"\r\n"].concat();
        let incomplete: [&[u8]; 6] = [b"", b":", b":1", b":1\r", b"*2\r\n:1\r\n", b"*2\r\n:1\r\n:"];
        for bytes in
            [&long[..], b":+5\r\n", b"*2\r\n:1\r\n+OK\r\n", b"*3\r\n:1\r\n:1\r\n:1\r\n"].iter().chain(&incomplete)
        {
            assert_eq!(parse_common_reply(bytes, Protocol::Resp2, &Limits::default()), None, "{bytes:?}");
        }
        assert_eq!(parse_common_reply(b"$-1\r\n", Protocol::Resp3, &Limits::default()), None);
        assert_eq!(parse_common_reply(b"_\r\n", Protocol::Resp2, &Limits::default()), None);
    }
}

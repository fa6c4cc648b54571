//! Replies in RESP2 and RESP3.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Simple strings, errors and verbatim strings, with their type byte.
    Line(char, String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil(char),
    List(char, Vec<Self>),
}

/// Returns the first reply in `bytes` and its length, or `None` if it is incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|w| w == b"\r\n")?;
    let kind = char::from(*bytes.first()?);
    let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
    let start = end + 2;
    let number = || line.parse::<i64>().unwrap_or_else(|_| panic!("a number in {kind}{line}"));
    match kind {
        '+' | '-' => Some((Reply::Line(kind, line), start)),
        ':' => Some((Reply::Int(number()), start)),
        '_' => Some((Reply::Nil('_'), start)),
        '$' | '=' => {
            let Ok(len) = usize::try_from(number()) else { return Some((Reply::Nil(kind), start)) };
            let data = bytes.get(start..start + len)?.to_vec();
            bytes.get(start + len + 1)?;
            let reply =
                if kind == '=' { Reply::Line('=', String::from_utf8_lossy(&data).into()) } else { Reply::Bulk(data) };
            Some((reply, start + len + 2))
        }
        '*' | '%' | '>' => {
            let Ok(len) = usize::try_from(number()) else { return Some((Reply::Nil(kind), start)) };
            let len = if kind == '%' { len * 2 } else { len };
            let mut at = start;
            let mut items = Vec::new();
            for _ in 0..len {
                let (item, used) = parse(&bytes[at..])?;
                items.push(item);
                at += used;
            }
            Some((Reply::List(kind, items), at))
        }
        other => panic!("what is {other:?} in {:?}?", String::from_utf8_lossy(bytes)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Exact,
    /// In any order.
    Set,
    /// Numbers may differ by the time between the two servers.
    Clock,
    /// Only the type counts.
    Kind,
}

impl Reply {
    pub(crate) fn agrees(&self, other: &Self, how: Match) -> bool {
        match (self, other, how) {
            (_, _, Match::Exact) => self == other,
            (Self::List(a, x), Self::List(b, y), Match::Set) => {
                let sorted = |list: &[Self]| {
                    let mut list: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
                    list.sort();
                    list
                };
                a == b && sorted(x) == sorted(y)
            }
            (Self::List(_, x), Self::List(_, y), Match::Clock) if minted(x).is_some() && minted(y).is_some() => {
                minted(x).zip(minted(y)).is_some_and(|(x, y)| x.iter().zip(y).all(|(x, y)| x.agrees(y, how)))
            }
            (Self::List(a, x), Self::List(b, y), _) => {
                a == b && x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.agrees(y, how))
            }
            (Self::Int(a), Self::Int(b), Match::Clock) => near(*a, *b),
            (Self::Bulk(a), Self::Bulk(b), Match::Clock) => {
                let words = |text: &'_ [u8]| text.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
                let same = |(a, b): (&Vec<u8>, &Vec<u8>)| match (number(a), number(b)) {
                    (Some(a), Some(b)) => near(a, b),
                    _ => a == b,
                };
                let (mut a, mut b) = (words(a), words(b));
                // The second word is the number of tokens that a script has minted for each of
                // several locks.
                if a.len() > 4 && [&a, &b].iter().all(|words| number(&words[0]).is_some_and(|first| first >= MICROS)) {
                    (a[1], b[1]) = (Vec::new(), Vec::new());
                }
                a.len() == b.len() && a.iter().zip(&b).all(same)
            }
            (Self::Line(a, x), Self::Line(b, y), Match::Kind) => a == b && x.split(' ').next() == y.split(' ').next(),
            (Self::Int(_), Self::Int(_), Match::Kind) | (Self::Bulk(_), Self::Bulk(_), Match::Kind) => true,
            _ => self == other,
        }
    }
}

/// Returns the comparable parts of a script's reply. The number of minted tokens depends on the
/// time since the last ones.
fn minted(items: &[Reply]) -> Option<[&Reply; 2]> {
    match items {
        [Reply::Int(1), first, Reply::Int(1..), ahead] => Some([first, ahead]),
        _ => None,
    }
}

/// Unix time in microseconds is more.
const MICROS: i64 = 1_000_000_000_000_000;

/// Compares milliseconds of an expiry or microseconds of a fence, allowing 60 s for a slow machine.
/// Smaller numbers are seconds.
fn near(a: i64, b: i64) -> bool {
    let allowed = match a {
        MICROS.. => 60_000_000,
        100_000_000.. => 60_000,
        _ => 60,
    };
    // Smaller numbers are results, not times: no TTL here is less than a million seconds.
    a == b || (a.min(b) >= 100_000 && a.abs_diff(b) < allowed)
}

fn number(text: &[u8]) -> Option<i64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[test]
fn only_times_may_differ() {
    assert!(!near(18, 22) && !near(-1, 0) && !near(99_999, 100_000));
    assert!(near(999_998, 1_000_000) && !near(999_900, 1_000_000));
    assert!(near(1_000_000_000, 1_000_059_999) && !near(1_000_000_000, 1_000_060_000));
    assert!(near(1_700_000_000_000_000, 1_700_000_059_999_999));
}

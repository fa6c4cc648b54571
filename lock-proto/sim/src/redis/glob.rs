//! Glob patterns of Redis: `*`, `?`, `[a-z]`, `[^x]` and `\`
//! (<https://redis.io/docs/latest/commands/keys/>).

pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Backtracking to the last star is enough, so the work is at most the product of the lengths.
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(_), Some(byte)) => {
                let (fits, next) = one(pattern, p, *byte);
                if fits {
                    (p, t) = (next, t + 1);
                    continue;
                }
            }
            (None, Some(_)) => {}
            (Some(_), None) => return false,
        }
        match retry {
            Some((after_star, from)) if from < text.len() => {
                retry = Some((after_star, from + 1));
                (p, t) = (after_star, from + 1);
            }
            Some(_) | None => return false,
        }
    }
}

/// Matches `byte` with the element at `p`, and returns the start of the next element.
fn one(pattern: &[u8], p: usize, byte: u8) -> (bool, usize) {
    match pattern[p] {
        b'?' => (true, p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        b'[' => class(pattern, p + 1, byte),
        literal => (literal == byte, p + 1),
    }
}

fn class(pattern: &[u8], start: usize, byte: u8) -> (bool, usize) {
    let mut p = start;
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut found = false;
    loop {
        match pattern.get(p) {
            // An unclosed class ends at the end of the pattern.
            None => break,
            Some(b']') => {
                p += 1;
                break;
            }
            Some(b'\\') if p + 1 < pattern.len() => {
                found |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(low) if pattern.get(p + 1) == Some(&b'-') && p + 2 < pattern.len() => {
                let (a, b) = (*low.min(&pattern[p + 2]), *low.max(&pattern[p + 2]));
                found |= (a..=b).contains(&byte);
                p += 3;
            }
            Some(literal) => {
                found |= *literal == byte;
                p += 1;
            }
        }
    }
    (found != negated, p)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*lock-proto:*", "x:lock-proto:fence", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[abc", "b", true),
            ("a**b", "ab", true),
            ("*a", "aaaa", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        let pattern = "a*".repeat(200);
        let text = "a".repeat(5_000);
        assert!(!matches((pattern + "b").as_bytes(), text.as_bytes()));
    }
}

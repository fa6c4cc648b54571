//! The lock of one Redis key: `SET key token NX PX ttl`, an extension and a release by scripts that
//! compare the token, and the expiry.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use lock_proto::Instant;

/// A value of the key; those of our clients are tokens.
pub(crate) type ModelValue = Arc<[u8]>;

/// How a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    /// Its TTL ran out.
    Expired,
    /// Its owner deleted the key.
    Released,
    /// By something else than the clients and the clock, such as an eviction.
    Disturbed,
}

/// A holder, past or present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelTenure {
    /// When and how it ended.
    pub(crate) end: Option<(Instant, End)>,
}

impl ModelTenure {
    /// Returns whether it held the lock at some time from `since` to now.
    pub(crate) fn is_since(&self, since: Instant) -> bool {
        self.end.is_none_or(|(at, _)| at >= since)
    }
}

/// The lock of one key. Times of expiry are those of the server's clock, in ms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Polling {
    /// The holder and its expiry.
    holder: Option<(ModelValue, u64)>,
    tenures: BTreeMap<ModelValue, ModelTenure>,
}

impl Polling {
    /// Returns the holder and its expiry.
    pub(crate) fn holder(&self) -> Option<(&[u8], u64)> {
        self.holder.as_ref().map(|(value, until)| (&**value, *until))
    }

    /// Returns the tenure of this value.
    pub(crate) fn tenure(&self, value: &[u8]) -> Option<&ModelTenure> {
        self.tenures.get(value)
    }

    /// Returns whether anything but `value` held the lock at some time from `since` to now.
    pub(crate) fn was_held_by_other(&self, value: &[u8], since: Instant) -> bool {
        self.tenures.iter().any(|(other, tenure)| **other != *value && tenure.is_since(since))
    }

    /// The server's clock reads `wall_ms`: the holder's TTL may be over. Redis keeps a key up to
    /// and including the ms of its expiry.
    pub(crate) fn expire(&mut self, now: Instant, wall_ms: u64) {
        if self.holder.as_ref().is_some_and(|(_, until)| *until < wall_ms) {
            self.end(now, End::Expired);
        }
    }

    /// `SET key value NX PX ttl`, granted by the server.
    pub(crate) fn take(&mut self, value: &[u8], until_ms: u64) -> Result<(), String> {
        if let Some((holder, _)) = &self.holder {
            return Err(format!("{} was set while {} held the lock", show(value), show(holder)));
        }
        let again = self.tenures.contains_key(value);
        self.adopt(Some((value, until_ms)));
        if again {
            return Err(format!("{} was set a second time: tokens are used once", show(value)));
        }
        Ok(())
    }

    /// `PEXPIRE`, if the key holds this value.
    pub(crate) fn extend(&mut self, value: &[u8], until_ms: u64) -> Result<(), String> {
        match &mut self.holder {
            Some((holder, until)) if **holder == *value => {
                let before = core::mem::replace(until, until_ms);
                if until_ms < before {
                    return Err(format!("the TTL of {} was shortened by {} ms", show(value), before - until_ms));
                }
                Ok(())
            }
            Some(_) | None => Err(format!("{} was extended, but does not hold the lock", show(value))),
        }
    }

    /// `DEL`, if the key holds the value that the owner compares with.
    pub(crate) fn release(&mut self, now: Instant) {
        self.end(now, End::Released);
    }

    /// Something else changed the key.
    pub(crate) fn disturb(&mut self, now: Instant, found: Option<(&[u8], u64)>) {
        self.end(now, End::Disturbed);
        self.adopt(found);
    }

    fn adopt(&mut self, found: Option<(&[u8], u64)>) {
        let Some((value, until_ms)) = found else { return };
        let value: ModelValue = value.into();
        self.tenures.insert(value.clone(), ModelTenure { end: None });
        self.holder = Some((value, until_ms));
    }

    fn end(&mut self, now: Instant, end: End) {
        if let Some((value, _)) = self.holder.take()
            && let Some(tenure) = self.tenures.get_mut(&value)
        {
            tenure.end = Some((now, end));
        }
    }
}

/// Shows a token by its last digits: the client and the number.
pub(crate) fn show(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    match text.split_once(':') {
        Some((client, number)) if client.len() > 4 => format!("token …{}:{number}", &client[client.len() - 4..]),
        Some(_) | None => format!("value {}", value.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_holds_until_its_release_or_expiry() {
        // S13
        let at = Instant::from_millis;
        let mut lock = Polling::default();
        assert_eq!(lock.take(b"a", 101), Ok(()));
        assert!(lock.take(b"b", 102).is_err_and(|text| text.contains("held")));
        assert_eq!(lock.extend(b"a", 150), Ok(()));
        assert!(lock.extend(b"b", 200).is_err_and(|text| text.contains("does not hold")));
        assert!(lock.extend(b"a", 140).is_err_and(|text| text.contains("shortened by 10 ms")));
        assert_eq!(lock.extend(b"a", 150), Ok(()));
        lock.expire(at(150), 150);
        assert_eq!(lock.holder(), Some((&b"a"[..], 150)));
        lock.expire(at(151), 151);
        assert_eq!(lock.tenure(b"a").and_then(|tenure| tenure.end), Some((at(151), End::Expired)));
        assert_eq!(lock.take(b"b", 260), Ok(()));
        assert!(lock.was_held_by_other(b"a", at(160)) && lock.was_held_by_other(b"b", at(151)));
        assert!(!lock.was_held_by_other(b"b", at(152)));
        lock.release(at(170));
        assert_eq!(lock.tenure(b"b").and_then(|tenure| tenure.end), Some((at(170), End::Released)));
        assert!(lock.take(b"a", 280).is_err_and(|text| text.contains("second time")));
        lock.disturb(at(190), None);
        assert_eq!(lock.holder(), None);
        assert_eq!(lock.tenure(b"a").and_then(|tenure| tenure.end), Some((at(190), End::Disturbed)));
    }
}

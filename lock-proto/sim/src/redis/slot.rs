//! Hash slots of a cluster, see "Key distribution model" in
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

/// Returns the CRC16 of the text between the first `{` and the next `}`, if any, else of the key.
pub(super) fn of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC16, variant XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(*byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use alloc::collections::BTreeSet;
    use lock_proto::ClientId;
    use lock_proto::redis::{Identity, KeyLayout};

    /// All keys of a lock, in the only layout. A command may name all of them, so a cluster would
    /// accept them only from one slot.
    #[test]
    fn keys_of_a_lock_are_in_one_slot_if_the_prefix_has_a_tag() {
        let layout = KeyLayout::default();
        let keys = |prefix: &str, name: &str| {
            let (key, prefix) = (layout.key(prefix.as_bytes(), name.as_bytes()), prefix.as_bytes());
            let identity = Identity::new(ClientId::from_bits(1), layout, prefix);
            [key.lock(), key.waiting(), key.signal(), identity.fence_key(&key)].map(<[u8]>::to_vec)
        };
        assert_eq!(
            keys("app:", "job"),
            [
                &b"app:job"[..],
                b"app:job:lock-proto:waiting",
                b"app:job:lock-proto:waiting:signal",
                b"app:lock-proto:fence",
            ]
        );
        for (prefix, name, slots) in [
            ("app:", "job", 4),
            ("app:", "{job}", 2),
            ("app:", "{}job", 4),
            ("{app}:", "job", 1),
            ("{app}:", "{job}", 1),
        ] {
            let distinct: BTreeSet<_> = keys(prefix, name).iter().map(|key| of(key)).collect();
            assert_eq!(distinct.len(), slots, "{prefix}{name}");
        }
    }

    /// Compares with `CLUSTER KEYSLOT` of redis-server 7.0.
    #[test]
    fn slots_match_redis() {
        for (key, slot) in [("foo", 12_182), ("lock:job", 3_647), ("{foo}bar", 12_182), ("a{}b", 13_694), ("", 0)] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
    }
}

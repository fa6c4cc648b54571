//! The slots of a cluster: which one a key belongs to
//! (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>).

/// The slot of a key: CRC16 of what stands between the first `{` and the next `}`, if that is something, else of the whole key.
pub(super) fn of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(*byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `CLUSTER KEYSLOT` of redis-server 7.0 says.
    #[test]
    fn slots_are_those_of_redis() {
        for (key, slot) in [("foo", 12_182), ("lock:job", 3_647), ("{foo}bar", 12_182), ("a{}b", 13_694), ("", 0)] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
    }
}

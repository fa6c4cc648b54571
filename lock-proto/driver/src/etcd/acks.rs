//! Delayed ping replies. A gRPC server in Go, such as etcd, sends another ping with the first data
//! after the reply to its last one. Immediate replies would cost one ping per call.

use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

/// Delay of a ping reply. Pings that check for a dead peer allow seconds.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(10);
/// Size of a frame header. Its first three bytes are the length of the payload (RFC 9113, section
/// 4.1).
pub(super) const FRAME_HEAD: usize = 9;
/// Header of a ping reply: length, type, flag `ACK`, stream 0 (RFC 9113, section 6.7).
const ACK_HEAD: [u8; FRAME_HEAD] = [0, 0, 8, 6, 1, 0, 0, 0, 0];
const ACK: usize = FRAME_HEAD + 8;
/// Length of the client's connection preface (RFC 9113, section 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Takes ping replies out of hyper's output, and inserts them later between two frames.
pub(super) struct Acks {
    /// Missing bytes of the current frame. `None` if the frame boundaries are unknown.
    frame_remaining: Option<usize>,
    held: Option<[u8; ACK]>,
    /// The held reply must leave at the next frame boundary.
    due: bool,
    /// The task that releases the held reply.
    reminder: Option<Waker>,
}

impl Default for Acks {
    fn default() -> Self {
        Self { frame_remaining: Some(PREFACE), held: None, due: false, reminder: None }
    }
}

impl Acks {
    /// Ready if a reply is held.
    pub(super) fn poll_held(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.held.is_some() {
            return Poll::Ready(());
        }
        self.reminder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Moves hyper's output into the buffer, except for ping replies.
    pub(super) fn pass(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.frame_remaining == Some(0) {
                if let Some(ack) = bytes.first_chunk::<ACK>().filter(|ack| ack.starts_with(&ACK_HEAD)) {
                    self.hold(ack, into);
                    bytes = bytes.get(ACK..).unwrap_or_default();
                    continue;
                }
                self.begin_frame(bytes, into);
            }
            let count = self.frame_remaining.unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at(count);
            into.extend_from_slice(part);
            self.frame_remaining = self.frame_remaining.map(|left| left - count);
            bytes = rest;
            if self.due {
                self.release(into);
            }
        }
    }

    fn begin_frame(&mut self, bytes: &[u8], into: &mut Vec<u8>) {
        let Some([a, b, c, ..]) = bytes.first_chunk::<FRAME_HEAD>() else {
            // Half a frame header: frame boundaries are lost, so everything passes unchanged from
            // here on.
            self.release(into);
            self.frame_remaining = None;
            return;
        };
        let length = u32::from_be_bytes([0, *a, *b, *c]);
        self.frame_remaining = usize::try_from(length).ok().map(|length| FRAME_HEAD + length);
    }

    /// Holds one reply. A second one releases both: a peer that sends more pings does not wait for
    /// replies.
    fn hold(&mut self, ack: &[u8; ACK], into: &mut Vec<u8>) {
        if self.held.is_some() {
            self.release(into);
            into.extend_from_slice(ack);
            return;
        }
        self.held = Some(*ack);
        if let Some(reminder) = self.reminder.take() {
            reminder.wake();
        }
    }

    /// Releases the held reply, now or after the current frame.
    pub(super) fn release(&mut self, into: &mut Vec<u8>) {
        self.due = self.held.is_some() && self.frame_remaining != Some(0);
        if self.due {
            return;
        }
        if let Some(ack) = self.held.take() {
            into.extend_from_slice(&ack);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::tests::kit::{DATA, HEADERS, PING, frame};
    use super::*;

    fn ack(of: u8) -> Vec<u8> {
        frame(PING, 1, 0, &[of; 8])
    }

    struct AckedWrite {
        acks: Acks,
        out: Vec<u8>,
    }

    impl AckedWrite {
        fn after_preface() -> Self {
            let mut written = Self { acks: Acks::default(), out: Vec::new() };
            written.write(&[b'P'; PREFACE]);
            assert_eq!(written.left(), [b'P'; PREFACE]);
            written
        }

        fn write(&mut self, bytes: &[u8]) {
            self.acks.pass(bytes, &mut self.out);
        }

        fn release(&mut self) {
            self.acks.release(&mut self.out);
        }

        fn left(&mut self) -> Vec<u8> {
            core::mem::take(&mut self.out)
        }
    }

    #[test]
    fn ping_ack_is_held_while_other_frames_pass() {
        let (headers, data) = (frame(HEADERS, 0, 1, &[7; 3]), frame(DATA, 0, 1, &[8; 200]));
        // Before, between and after other frames. The same bytes inside a frame are left alone.
        for place in 0..3 {
            let mut frames = vec![&*headers, &*data];
            let answer = ack(1);
            frames.insert(place, &answer);
            let mut written = AckedWrite::after_preface();
            written.write(&frames.concat());
            assert_eq!(written.left(), [&*headers, &*data].concat(), "{place}");
            written.release();
            assert_eq!(written.left(), answer, "{place}");
        }
        let mut written = AckedWrite::after_preface();
        let mut data = frame(DATA, 0, 1, &[8; 30]);
        data[FRAME_HEAD + 2..][..ACK].copy_from_slice(&ack(1));
        // Also if the write is split there.
        for cut in 0..data.len() {
            let (first, second) = data.split_at(cut);
            if first.is_empty() || first.len() >= FRAME_HEAD {
                written.write(first);
                written.write(second);
                assert_eq!(written.left(), data, "{cut}");
            }
        }
        written.write(&ack(2));
        assert_eq!(written.left(), b"", "it is known still where frames begin");
    }

    #[test]
    fn ping_ack_leaves_only_between_frames() {
        let (headers, data) = (frame(HEADERS, 0, 1, &[7; 3]), frame(DATA, 0, 1, &[8; 200]));
        for cut in FRAME_HEAD..=data.len() {
            let mut written = AckedWrite::after_preface();
            let (first, second) = data.split_at(cut);
            written.write(&[&ack(1), first].concat());
            written.release();
            let before = written.left();
            written.write(&[second, &*headers].concat());
            let all = [before, written.left()].concat();
            assert_eq!(all, [&*data, &ack(1), &*headers].concat(), "{cut}");
        }
    }

    #[test]
    fn second_ping_ack_flushes_first() {
        let mut written = AckedWrite::after_preface();
        written.write(&ack(1));
        assert_eq!(written.left(), b"");
        written.write(&ack(2));
        assert_eq!(written.left(), [ack(1), ack(2)].concat());
        written.write(&ack(3));
        assert_eq!(written.left(), b"", "the next one waits again");
    }

    #[test]
    fn ping_ack_leaves_at_once_if_frame_boundary_is_unknown() {
        let mut written = AckedWrite::after_preface();
        let headers = frame(HEADERS, 0, 1, &[7; 3]);
        written.write(&ack(1));
        written.write(&headers[..4]);
        assert_eq!(written.left(), [&ack(1), &headers[..4]].concat());
        written.write(&headers[4..]);
        written.write(&ack(2));
        assert_eq!(written.left(), [&headers[4..], &ack(2)].concat());
    }
}

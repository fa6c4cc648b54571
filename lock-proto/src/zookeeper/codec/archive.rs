//! Reading and writing of jute's primitive types: big-endian, with lengths of four bytes.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;

use crate::fault::Breach;

/// Reads the records of one frame.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Breach> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Breach::Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn int(&mut self) -> Result<i32, Breach> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Breach> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Breach> {
        self.take().map(|[byte]| byte != 0)
    }

    /// A length of -1 means that there is no value, which reads as an empty one.
    fn length(&mut self) -> Result<usize, Breach> {
        let length = self.int()?;
        if length == -1 { Ok(0) } else { usize::try_from(length).map_err(|_| Breach::Malformed) }
    }

    fn slice(&mut self) -> Result<&'a [u8], Breach> {
        let length = self.length()?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(Breach::Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    pub(super) fn buffer(&mut self) -> Result<Bytes, Breach> {
        self.slice().map(Bytes::copy_from_slice)
    }

    /// Java's server replaces bytes that are not UTF-8, and so does this. Others deliver them.
    pub(super) fn text(&mut self) -> Result<Cow<'a, str>, Breach> {
        let bytes = self.slice()?;
        // The lossy conversion alone is slower for text without errors.
        Ok(core::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed))
    }

    pub(super) fn string(&mut self) -> Result<Box<str>, Breach> {
        self.text().map(Into::into)
    }

    /// Reads a vector whose elements have at least `least` bytes.
    pub(super) fn vector<T, C: FromIterator<T>>(
        &mut self,
        least: usize,
        element: impl Fn(&mut Self) -> Result<T, Breach>,
    ) -> Result<C, Breach> {
        let count = self.length()?;
        if count > self.0.len() / least {
            return Err(Breach::Malformed);
        }
        (0..count).map(|_| element(self)).collect()
    }

    /// The frame must have been read entirely.
    pub(super) const fn end(&self) -> Result<(), Breach> {
        if self.is_empty() { Ok(()) } else { Err(Breach::Malformed) }
    }
}

/// Appends one frame to a buffer.
pub(super) struct FrameWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        Self { out, start }
    }

    /// Writes the length of the frame.
    pub(super) fn finish(self) {
        let length = length(self.out.len() - self.start - 4).to_be_bytes();
        if let Some(place) = self.out.get_mut(self.start..self.start + 4) {
            place.copy_from_slice(&length);
        }
    }

    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, value: i64) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Self {
        self.out.push(value.into());
        self
    }

    pub(super) fn buffer(&mut self, value: &[u8]) -> &mut Self {
        self.int(length(value.len()));
        self.out.extend_from_slice(value);
        self
    }

    pub(super) fn string(&mut self, value: &str) -> &mut Self {
        self.buffer(value.as_bytes())
    }

    pub(super) fn vector<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        element: impl Fn(&mut Self, T),
    ) -> &mut Self {
        self.int(length(values.len()));
        values.for_each(|value| element(self, value));
        self
    }
}

fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

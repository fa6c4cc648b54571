//! A tonic codec for any pair of messages.

use core::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes `A`, decodes `B`.
pub(crate) struct Prost<A, B>(PhantomData<(A, B)>);

impl<A, B> Default for Prost<A, B> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A, B> Codec for Prost<A, B>
where
    A: Message + Send + 'static,
    B: Message + Default + Send + 'static,
{
    type Encode = A;
    type Decode = B;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<A: Message, B> Encoder for Prost<A, B> {
    type Item = A;
    type Error = Status;

    fn encode(&mut self, message: A, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(buffer).map_err(|e| Status::internal(e.to_string()))
    }
}

impl<A, B: Message + Default> Decoder for Prost<A, B> {
    type Item = B;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<B>, Status> {
        B::decode(buffer).map(Some).map_err(|e| Status::internal(e.to_string()))
    }
}

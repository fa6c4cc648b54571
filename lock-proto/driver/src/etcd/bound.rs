//! Limits on the number of elements in a server's message. An empty element takes two bytes on the
//! wire but about a hundred decoded: 4 MiB become some 200 MB. So elements are counted before
//! decoding.
// E12

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use lock_proto::etcd::message::{Op, RangeRequest, RequestOp, TxnRequest};
use lock_proto::etcd::{Rpc, StreamKind};

/// Maximal length of a message. etcd splits longer watch messages on request, and the queue of a
/// lock is read in pages.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximal length of a message without repeated fields.
const MAX_FLAT_MESSAGE: usize = 64 << 10;
/// Maximal number of changes in one watch message. etcd sends a lagging watch a thousand revisions
/// at a time. A message with more changes reopens the stream, and the watched keys are read again.
const MAX_EVENTS: usize = 4_096;
/// Maximal number of members and URLs in a list of members. Clusters rarely have more than nine
/// members.
const MAX_MEMBERS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    shape: Shape,
    elements: usize,
}

/// Where a message has repeated fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Flat,
    Range,
    Txn,
    Op,
    Watch,
    Members,
    Member,
    /// A string.
    Text,
}

impl Shape {
    /// The shape of field number `field`, if it is an element or contains some.
    const fn of(self, field: u32) -> Option<Self> {
        match (self, field) {
            (Self::Txn, 3) => Some(Self::Op),
            (Self::Op, 1) => Some(Self::Range),
            (Self::Op, 4) => Some(Self::Txn),
            (Self::Members, 2) => Some(Self::Member),
            (Self::Range, 2) | (Self::Watch, 11) => Some(Self::Flat),
            (Self::Member, 4) => Some(Self::Text),
            (
                Self::Flat
                | Self::Range
                | Self::Txn
                | Self::Op
                | Self::Watch
                | Self::Members
                | Self::Member
                | Self::Text,
                _,
            ) => None,
        }
    }
}

impl Bound {
    pub(super) fn of_answer(rpc: &Rpc) -> Self {
        match rpc {
            Rpc::Range(range) => Self { shape: Shape::Range, elements: keys(range) },
            Rpc::Txn(txn) => Self { shape: Shape::Txn, elements: results(txn) },
            Rpc::MemberList(_) => Self { shape: Shape::Members, elements: MAX_MEMBERS },
            Rpc::Grant(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) => Self { shape: Shape::Flat, elements: 0 },
        }
    }

    pub(super) const fn of_message(kind: StreamKind) -> Self {
        match kind {
            StreamKind::KeepAlive => Self { shape: Shape::Flat, elements: 0 },
            StreamKind::Watch => Self { shape: Shape::Watch, elements: MAX_EVENTS },
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self.shape {
            Shape::Flat | Shape::Members | Shape::Member | Shape::Text => MAX_FLAT_MESSAGE,
            Shape::Range | Shape::Txn | Shape::Op | Shape::Watch => MAX_MESSAGE,
        }
    }

    /// Returns true if the message is within the limit.
    ///
    /// # Errors
    ///
    /// The message is malformed.
    pub(super) fn admits(self, message: &[u8]) -> Result<bool, DecodeError> {
        let mut left = self.elements;
        count(self.shape, message, &mut left)
    }
}

/// Subtracts the elements of the message from `left`. Returns false if there are too many. `left`
/// also bounds the recursion.
fn count(shape: Shape, mut message: &[u8], left: &mut usize) -> Result<bool, DecodeError> {
    if shape == Shape::Text {
        return Ok(true);
    }
    while !message.is_empty() {
        let (field, wire) = decode_key(&mut message)?;
        let Some(inner) = shape.of(field).filter(|_| wire == WireType::LengthDelimited) else {
            skip_field(wire, field, &mut message, DecodeContext::default())?;
            continue;
        };
        let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
        *left = fewer;
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        // The decoder reports truncated messages.
        let Some((element, rest)) = message.split_at_checked(length) else { return Ok(true) };
        if !count(inner, element, left)? {
            return Ok(false);
        }
        message = rest;
    }
    Ok(true)
}

/// Maximal number of keys in a reply.
fn keys(range: &RangeRequest) -> usize {
    match range.limit {
        _ if range.count_only => 0,
        _ if range.range_end.is_empty() => 1,
        1.. => usize::try_from(range.limit).unwrap_or(usize::MAX),
        // Not reached: every range request has a limit.
        _ => usize::MAX,
    }
}

/// Maximal number of results and keys in a reply: that of the larger branch.
fn results(txn: &TxnRequest) -> usize {
    let branch = |ops: &[RequestOp]| ops.iter().map(result).fold(0, usize::saturating_add);
    branch(&txn.success).max(branch(&txn.failure))
}

/// Both a result and its content count.
fn result(op: &RequestOp) -> usize {
    match &op.request {
        Some(Op::Range(range)) => keys(range).saturating_add(2),
        Some(Op::Txn(txn)) => results(txn).saturating_add(2),
        Some(Op::Put(_) | Op::Delete(_)) | None => 1,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use alloc::vec;
    use alloc::vec::Vec;

    use prost::Message as _;

    use super::*;
    use lock_proto::etcd::message::{
        KeyValue, Member, MemberListRequest, MemberListResponse, OpResponse, PutResponse, RangeResponse,
        ResponseHeader, ResponseOp, TxnResponse, WatchEvent, WatchResponse,
    };
    use lock_proto::etcd::{LISTED, LeaseId, Queue, Request};

    fn found(keys: usize) -> RangeResponse {
        let kv = KeyValue { key: "a/7f".into(), create_revision: 4, mod_revision: 5, ..KeyValue::default() };
        let header = Some(ResponseHeader { member_id: 1, revision: 9 });
        RangeResponse { header, kvs: vec![kv; keys], count: 3, ..RangeResponse::default() }
    }

    fn txn(responses: Vec<OpResponse>) -> TxnResponse {
        let responses = responses.into_iter().map(|response| ResponseOp { response: Some(response) }).collect();
        TxnResponse { header: Some(ResponseHeader { member_id: 1, revision: 9 }), succeeded: true, responses }
    }

    fn admits(request: &Request, answer: &[u8]) -> bool {
        Bound::of_answer(&request.rpc().unwrap()).admits(answer).unwrap()
    }

    #[test]
    fn reply_is_bounded_by_request() {
        let (queue, lease) = (Queue::new(b"", b"a"), LeaseId::from_bits(0x7f));
        let put = OpResponse::Put(PutResponse::default());
        let range = |keys| OpResponse::Range(found(keys));
        let create = Request::Create {
            queue: queue.clone(),
            lease,
            value: "v".into(),
            alone: false,
            expects: None,
            long: false,
        };
        assert!(admits(&create, &txn(vec![put.clone(), range(LISTED + 1)]).encode_to_vec()));
        assert!(!admits(&create, &txn(vec![put, range(LISTED + 3)]).encode_to_vec()));
        let look = Request::Look { queue: queue.clone(), lease, before: Some(9), ahead: None };
        assert!(admits(&look, &txn(vec![range(1), range(LISTED)]).encode_to_vec()));
        assert!(!admits(&look, &txn(vec![range(1), range(LISTED + 1)]).encode_to_vec()));
        let first = Request::First { queue };
        assert!(admits(&first, &found(1).encode_to_vec()));
        assert!(!admits(&first, &found(2).encode_to_vec()));
    }

    #[test]
    fn nested_transactions_count_towards_bound() {
        let (queue, lease) = (Queue::new(b"", b"a"), LeaseId::from_bits(0x7f));
        let Some(Rpc::Txn(inner)) = (Request::Delete { queue, lease, modified: 4 }).rpc() else { unreachable!() };
        let op = RequestOp { request: Some(Op::Txn(inner)) };
        let outer = Bound::of_answer(&Rpc::Txn(TxnRequest { success: vec![op; 32], ..TxnRequest::default() }));
        let answer = |keys| {
            let refused = txn(vec![OpResponse::Range(found(keys)), OpResponse::Range(found(0))]);
            txn(vec![OpResponse::Txn(refused); 32]).encode_to_vec()
        };
        assert!(outer.admits(&answer(1)).unwrap());
        assert!(!outer.admits(&answer(2)).unwrap());
        assert!(!outer.admits(&txn(vec![OpResponse::Range(found(1)); 400]).encode_to_vec()).unwrap());
        // One result whose field is repeated: a decoder merges the keys.
        let mut again = vec![0x1a];
        let range: Vec<u8> = [&[0x0a, 2, 0x12, 0][..]; 300].concat();
        prost::encoding::encode_varint(range.len() as u64, &mut again);
        again.extend(range);
        assert_eq!(TxnResponse::decode(&*again).unwrap().responses.len(), 1);
        assert!(!outer.admits(&again).unwrap());
    }

    #[test]
    fn watch_report_is_bounded_by_max_events() {
        let event = WatchEvent { kind: 1, kv: found(1).kvs.pop(), prev_kv: None };
        let report = |events| WatchResponse { events: vec![event.clone(); events], ..WatchResponse::default() };
        let bound = Bound::of_message(StreamKind::Watch);
        assert!(bound.admits(&report(MAX_EVENTS).encode_to_vec()).unwrap());
        assert!(!bound.admits(&report(MAX_EVENTS + 1).encode_to_vec()).unwrap());
    }

    #[test]
    fn member_list_is_bounded() {
        let member = Member { client_urls: vec!["https://10.0.0.1:2379".into(); 2], is_learner: false };
        let list = |members| MemberListResponse { header: None, members: vec![member.clone(); members] };
        let bound = Bound::of_answer(&Rpc::MemberList(MemberListRequest {}));
        assert!(bound.admits(&list(MAX_MEMBERS / 3).encode_to_vec()).unwrap());
        assert!(!bound.admits(&list(MAX_MEMBERS / 3 + 1).encode_to_vec()).unwrap());
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let mut nested: Vec<u8> = Vec::new();
        while nested.len() < 4_000 {
            let mut outer = vec![0x22];
            prost::encoding::encode_varint(nested.len() as u64, &mut outer);
            outer.extend(&nested);
            nested = vec![0x1a];
            prost::encoding::encode_varint(outer.len() as u64, &mut nested);
            nested.extend(outer);
        }
        let bound = Bound { shape: Shape::Txn, elements: 200 };
        assert!(!bound.admits(&nested).unwrap());
        assert!(bound.admits(&[0xff]).is_err(), "no message at all");
        assert!(bound.admits(&[0x1a, 9]).unwrap(), "the decoder finds the missing bytes");
        assert_eq!(Bound::of_message(StreamKind::KeepAlive).bytes(), MAX_FLAT_MESSAGE);
    }
}

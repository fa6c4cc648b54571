//! The machine for etcd, with the encoding and decoding of its messages.

use alloc::vec::Vec;
use core::hint::black_box;

use lock_proto::etcd::message::{
    AuthenticateResponse, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRevokeResponse, MemberListResponse,
    RangeResponse, TxnResponse, WatchResponse,
};
use lock_proto::etcd::{Client, Code, Config, Output, Rpc, RpcReply, Status, StreamReceived, StreamSend};
use lock_proto::{Acquire, ClientId, Fault, LockClient as _, Machine as _};
use prost::Message;

use crate::{call, now};

fn decoded<M: Message + Default>() -> Option<M> {
    M::decode(black_box(&[0_u8; 64][..])).ok()
}

fn encoded(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Calls everything that a program calls.
pub(crate) fn drive() -> Option<()> {
    let config = Config::parse(black_box("etcd://a")).ok()?;
    let mut client = Client::new(now(), config, ClientId::from_bits(black_box(1)), black_box(1)).ok()?;
    let lock = client.acquire(now(), &Acquire::new(black_box("name"))).ok()?;
    while black_box(true) {
        while let Some(output) = client.poll_output() {
            match &output {
                Output::Connect { conn, .. } if black_box(true) => client.handle_connected(now(), *conn),
                Output::Connect { conn, .. } => client.handle_disconnected(now(), *conn, Fault::Closed),
                Output::Call { rpc, request, .. } => {
                    let (bytes, reply) = match request {
                        Rpc::Range(m) => (encoded(m), RpcReply::Range(decoded::<RangeResponse>()?)),
                        Rpc::Txn(m) => (encoded(m), RpcReply::Txn(decoded::<TxnResponse>()?)),
                        Rpc::Grant(m) => (encoded(m), RpcReply::Grant(decoded::<LeaseGrantResponse>()?)),
                        Rpc::Revoke(m) => (encoded(m), RpcReply::Revoke(decoded::<LeaseRevokeResponse>()?)),
                        Rpc::Authenticate(m) => {
                            (encoded(m), RpcReply::Authenticate(decoded::<AuthenticateResponse>()?))
                        }
                        Rpc::MemberList(m) => (encoded(m), RpcReply::MemberList(decoded::<MemberListResponse>()?)),
                    };
                    black_box(bytes);
                    let failed = || Status::new(Code::from_number(black_box(1)), black_box("why"));
                    client.handle_reply(now(), *rpc, if black_box(true) { Ok(reply) } else { Err(failed()) });
                }
                Output::Send { stream, message } => {
                    let (bytes, received) = match message {
                        StreamSend::KeepAlive(m) => {
                            (encoded(m), StreamReceived::KeepAlive(decoded::<LeaseKeepAliveResponse>()?))
                        }
                        StreamSend::Watch(m) => (encoded(m), StreamReceived::Watch(decoded::<WatchResponse>()?)),
                    };
                    black_box(bytes);
                    client.handle_message(now(), *stream, received);
                    client.handle_stream_ended(now(), *stream, Status::new(Code::Unavailable, black_box("why")));
                }
                _ => {}
            }
            black_box(&output);
        }
        call(&mut client, lock)?;
    }
    Some(())
}

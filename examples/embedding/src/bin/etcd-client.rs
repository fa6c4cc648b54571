//! A lock under the crate `etcd-client`, the machine `etcd::Locks`: `etcd-client URL NAME SECONDS`.
//!
//! Its messages and those of `lock-proto` are the same on the wire, so replies are converted by
//! encoding and decoding them.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, ConnectOptions, EventType, GetOptions, LeaseGrantOptions, PutOptions, SortOrder, SortTarget,
    Txn, TxnOp, WatchFilterType, WatchOptions,
};
use lock_driver::{BootClock, random_identity};
use lock_proto::etcd::message::{BY_CREATE, CompareWith, DESCEND, KeyValue, Op, RangeRequest, RequestOp, TxnRequest};
use lock_proto::etcd::{Code, Config, Locks, LocksOutput, Reply, Request, Rpc, RpcReply, Status, WatchId, WatchOutput};
use lock_proto::{Acquire, CallId, ErrorClass, Event, Fault, LockId, Loss, ServerError};
use prost::Message;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// How long a request may take. Much less than the TTL.
const SILENCE: Duration = Duration::from_millis(500);
/// The longest sleep: timers may stop while the computer is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name), Some(seconds)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: etcd-client URL NAME SECONDS".into());
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut client = Client::new(&url).await?;

    // Acquire. The lock is held once the grant has been claimed.
    let lock = client.locks.acquire(client.clock.now(), &Acquire::new(&name))?;
    let grant = loop {
        match client.next().await {
            (_, Event::Granted(grant)) => break grant,
            (_, Event::Failed(failure)) => return Err(failure.into()),
            (_, Event::Blocked(why)) => eprintln!("waiting: {why}"),
            _ => {}
        }
    };
    client.locks.claim(client.clock.now(), lock)?;
    println!("held, fencing token {:?}", grant.fence);

    // Work, and cancel it if the lock is lost. `lost` renews the lock meanwhile.
    let work = tokio::time::sleep(seconds);
    let lost = tokio::select! {
        () = work => !client.is_held(lock),
        loss = client.lost() => {
            println!("lost: {loss}");
            true
        }
    };

    // Release in both cases: it deletes the key if it is still there.
    client.locks.release(client.clock.now(), lock)?;
    let released = loop {
        if let (_, Event::Released(released)) = client.next().await {
            break released;
        }
    };
    println!("released: {released:?}");
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the tasks report.
enum Fact {
    Reply(CallId, Reply),
    Watching(WatchId, i64),
    Changed(WatchId, i64, bool, KeyValue),
    Unsubscribed(WatchId),
    WatchRefused(WatchId, ServerError),
}

struct Client {
    locks: Locks,
    clock: BootClock,
    etcd: etcd_client::Client,
    watches: BTreeMap<WatchId, JoinHandle<()>>,
    facts_sender: UnboundedSender<Fact>,
    facts: UnboundedReceiver<Fact>,
}

impl Client {
    async fn new(url: &str) -> Result<Self, Box<dyn Error>> {
        let clock = BootClock::new();
        let (id, seed) = random_identity()?;
        let config = Config::parse(url)?.session_ttl(Duration::from_secs(3));
        let locks = Locks::new(clock.now(), config, id, seed)?;
        // A member without a leader cannot end a watch, so it must refuse.
        let options = ConnectOptions::new().with_require_leader(true);
        let etcd = etcd_client::Client::connect([url], Some(options)).await?;
        let (facts_sender, facts) = unbounded_channel();
        Ok(Self { locks, clock, etcd, watches: BTreeMap::new(), facts_sender, facts })
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.locks.valid_until(lock) > Some(self.clock.now())
    }

    async fn lost(&mut self) -> Loss {
        loop {
            if let (_, Event::Lost(loss)) = self.next().await {
                return loss;
            }
        }
    }

    /// Runs the machine until the next event. Cancel safe: nothing is lost if this is dropped.
    async fn next(&mut self) -> (LockId, Event) {
        loop {
            while let Some(output) = self.locks.poll_output() {
                let (etcd, facts) = (self.etcd.clone(), self.facts_sender.clone());
                match output {
                    // Requests may run in any order.
                    LocksOutput::Send { call, request, .. } => drop(tokio::spawn(async move {
                        let done = tokio::time::timeout(SILENCE, execute(etcd, &request)).await;
                        let _ = facts.send(Fact::Reply(call, done.unwrap_or(Reply::Unknown(Fault::TimedOut.into()))));
                    })),
                    LocksOutput::Store(WatchOutput::Watch { watch, key, end, deletions }) => {
                        let options = match deletions {
                            true => WatchOptions::new().with_filters([WatchFilterType::NoPut]),
                            false => WatchOptions::new(),
                        };
                        let options = if end.is_empty() { options } else { options.with_range(end) };
                        let task = tokio::spawn(run_watch(etcd, watch, key.into(), options, facts));
                        self.watches.insert(watch, task);
                    }
                    LocksOutput::Store(WatchOutput::Unwatch { watch }) => {
                        if let Some(task) = self.watches.remove(&watch) {
                            task.abort();
                        }
                    }
                    LocksOutput::Event { lock, event } => return (lock, event),
                    LocksOutput::Operation { .. } | LocksOutput::Stopped { .. } => {}
                }
            }
            let now = self.clock.now();
            let wait = self.locks.next_deadline().map_or(MAX_SLEEP, |next| next.since(now).min(MAX_SLEEP));
            let fact = tokio::time::timeout(wait, self.facts.recv()).await;
            let now = self.clock.now();
            match fact {
                Ok(Some(Fact::Reply(call, reply))) => self.locks.handle_reply(now, call, &reply),
                Ok(Some(Fact::Watching(watch, revision))) => self.locks.handle_watching(now, watch, revision),
                Ok(Some(Fact::Changed(watch, revision, deleted, kv))) => {
                    self.locks.handle_changed(now, watch, revision, deleted, &kv);
                }
                Ok(Some(Fact::Unsubscribed(watch))) => self.locks.handle_unsubscribed(now, watch),
                Ok(Some(Fact::WatchRefused(watch, error))) => {
                    self.watches.remove(&watch);
                    self.locks.handle_watch_refused(now, watch, &error);
                }
                Ok(None) | Err(_) => self.locks.handle_timeout(now),
            }
        }
    }
}

/// Watches a key until this is aborted, or the server refuses it.
async fn run_watch(
    mut etcd: etcd_client::Client,
    watch: WatchId,
    key: Vec<u8>,
    options: WatchOptions,
    facts: UnboundedSender<Fact>,
) {
    loop {
        if let Ok(mut stream) = etcd.watch(key.clone(), Some(options.clone())).await {
            while let Ok(Some(response)) = stream.message().await {
                let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
                if response.created() && response.canceled() {
                    let error = ServerError { class: ErrorClass::Refused, text: response.cancel_reason().into() };
                    let _ = facts.send(Fact::WatchRefused(watch, error));
                    return;
                }
                if response.canceled() {
                    break;
                }
                if response.created() {
                    let _ = facts.send(Fact::Watching(watch, revision));
                }
                for event in response.events() {
                    let kv = event.kv().map(|kv| KeyValue {
                        key: kv.key().to_vec().into(),
                        create_revision: kv.create_revision(),
                        mod_revision: kv.mod_revision(),
                        version: kv.version(),
                        value: kv.value().to_vec().into(),
                        lease: kv.lease(),
                    });
                    let deleted = event.event_type() == EventType::Delete;
                    let _ = facts.send(Fact::Changed(watch, revision, deleted, kv.unwrap_or_default()));
                }
            }
        }
        let _ = facts.send(Fact::Unsubscribed(watch));
        tokio::time::sleep(SILENCE).await;
    }
}

async fn execute(mut etcd: etcd_client::Client, request: &Request) -> Reply {
    let answer = match (request.rpc(), request) {
        (None, Request::KeepAlive { lease, .. }) => match etcd.lease_keep_alive(lease.get()).await {
            // The stream begins with the reply to a first request.
            Ok((mut keeper, mut stream)) => match keeper.keep_alive().await {
                Ok(()) => match stream.message().await {
                    Ok(Some(reply)) => return request.read_keep_alive(reply.ttl()),
                    Ok(None) => return Reply::Unknown(Fault::Closed.into()),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            },
            // What the crate says for a lease that does not exist.
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => return request.read_keep_alive(0),
            Err(error) => Err(error),
        },
        (Some(Rpc::Range(range)), _) => {
            let (key, options) = get(range);
            etcd.get(key, Some(options)).await.map(|reply| RpcReply::Range(convert(&reply.0)))
        }
        (Some(Rpc::Txn(request)), _) => etcd.txn(txn(request)).await.map(|reply| RpcReply::Txn(convert(&reply.0))),
        (Some(Rpc::Grant(grant)), _) => {
            let options = LeaseGrantOptions::new().with_id(grant.id);
            etcd.lease_grant(grant.ttl, Some(options)).await.map(|reply| RpcReply::Grant(convert(&reply.0)))
        }
        (Some(Rpc::Revoke(revoke)), _) => {
            etcd.lease_revoke(revoke.id).await.map(|reply| RpcReply::Revoke(convert(&reply.0)))
        }
        (Some(Rpc::Authenticate(_) | Rpc::MemberList(_)) | None, _) => {
            Err(etcd_client::Error::InvalidArgs("not a request of the hub".to_owned()))
        }
    };
    match answer {
        Ok(answer) => request.read(answer),
        // Only a status that came from the server keeps its code. One of the transport has a
        // source.
        Err(etcd_client::Error::GRpcStatus(status)) if status.source().is_none() => {
            request.read_error(&Status::new(Code::from_number(status.code().into()), status.message()))
        }
        Err(error) => request.read_error(&Status::new(Code::Unavailable, error.to_string())),
    }
}

fn convert<A: Message, B: Message + Default>(message: &A) -> B {
    B::decode(&*message.encode_to_vec()).unwrap_or_default()
}

fn get(range: RangeRequest) -> (Vec<u8>, GetOptions) {
    let mut options = GetOptions::new().with_limit(range.limit).with_max_create_revision(range.max_create_revision);
    if !range.range_end.is_empty() {
        options = options.with_range(range.range_end);
    }
    if range.sort_target == BY_CREATE {
        let order = if range.sort_order == DESCEND { SortOrder::Descend } else { SortOrder::Ascend };
        options = options.with_sort(SortTarget::Create, order);
    }
    if range.keys_only {
        options = options.with_keys_only();
    }
    if range.count_only {
        options = options.with_count_only();
    }
    (range.key.into(), options)
}

fn txn(request: TxnRequest) -> Txn {
    let compares = request.compare.into_iter().map(|compare| {
        let key = compare.key;
        let made = match compare.with {
            Some(CompareWith::ModRevision(revision)) => Compare::mod_revision(key, CompareOp::Equal, revision),
            Some(CompareWith::CreateRevision(revision)) => Compare::create_revision(key, CompareOp::Equal, revision),
            Some(CompareWith::Version(version)) => Compare::version(key, CompareOp::Equal, version),
            Some(CompareWith::Value(value)) => Compare::value(key, CompareOp::Equal, value),
            Some(CompareWith::Lease(lease)) => Compare::lease(key, CompareOp::Equal, lease),
            None => Compare::create_revision(key, CompareOp::Equal, 0),
        };
        if compare.range_end.is_empty() { made } else { made.with_range(compare.range_end) }
    });
    let ops = |ops: Vec<RequestOp>| ops.into_iter().filter_map(|op| op.request).map(op).collect::<Vec<_>>();
    Txn::new().when(compares.collect::<Vec<_>>()).and_then(ops(request.success)).or_else(ops(request.failure))
}

fn op(op: Op) -> TxnOp {
    match op {
        Op::Range(range) => {
            let (key, options) = get(range);
            TxnOp::get(key, Some(options))
        }
        Op::Put(put) => TxnOp::put(put.key, put.value, Some(PutOptions::new().with_lease(put.lease))),
        Op::Delete(delete) => TxnOp::delete(delete.key, None),
        Op::Txn(inner) => TxnOp::txn(txn(inner)),
    }
}

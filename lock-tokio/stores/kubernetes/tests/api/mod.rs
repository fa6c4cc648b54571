//! A small API server below the HTTP client: Leases of the namespace `default`, with resource versions,
//! merge patches and watches.

#![allow(clippy::unwrap_used, dead_code, reason = "tests")]

use core::convert::Infallible;
use core::fmt::Debug;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

/// What the next request meets.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An answer, without anything done.
    Status(u16, &'static str),
    /// The request is carried out, and the answer is an internal error.
    Lost,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    leases: BTreeMap<String, Value>,
    /// All that happened to a Lease.
    events: Vec<(u64, String, Value)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    faults: VecDeque<Fault>,
    requests: u64,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiServer(Arc<Mutex<State>>);

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl ApiServer {
    pub(crate) fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.0.lock().unwrap().faults = faults.iter().cloned().collect();
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.lock().unwrap().requests
    }

    /// Returns a Lease as it is stored.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        self.0.lock().unwrap().leases.get(name).cloned()
    }

    /// The names of all Leases that there were.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().events.iter().map(|(_, name, _)| name.clone()).collect()
    }

    /// Stores a Lease, or deletes it.
    pub(crate) fn plant(&self, name: &str, lease: Option<Value>) {
        let mut state = self.0.lock().unwrap();
        match lease {
            Some(lease) => drop(state.store(name, lease)),
            None => drop(state.delete(name)),
        }
    }
}

impl<B: Body<Data: Send, Error: Debug> + Send + 'static> tower_service::Service<Request<B>> for ApiServer {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let mut state = server.0.lock().unwrap();
            state.requests += 1;
            let fault = state.faults.pop_front();
            if let Some(Fault::Status(code, reason)) = fault {
                return Ok(failure(code, reason));
            }
            let reply = state.serve(&parts, &body);
            Ok(if fault.is_some() { failure(500, "InternalError") } else { reply })
        })
    }
}

impl State {
    fn serve(&mut self, parts: &http::request::Parts, body: &[u8]) -> Reply {
        let Some(path) = parts.uri.path().strip_prefix("/apis/coordination.k8s.io/v1/namespaces/default/leases") else {
            return failure(404, "NotFound");
        };
        let name = path.trim_start_matches('/');
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (&parts.method, name.is_empty()) {
            (&Method::GET, true) => self.watch(parts.uri.query().unwrap_or_default()),
            (&Method::GET, false) => {
                self.leases.get(name).map_or_else(|| failure(404, "NotFound"), |lease| reply(200, lease))
            }
            (&Method::POST, true) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if self.leases.contains_key(&name) { failure(409, "AlreadyExists") } else { self.store(&name, body) }
            }
            (&Method::PUT, false) => self.update(name, body),
            (&Method::PATCH, false) => {
                assert_eq!(parts.headers["content-type"], "application/merge-patch+json");
                let Some(mut lease) = self.leases.get(name).cloned() else { return failure(404, "NotFound") };
                merge(&mut lease, body);
                self.update(name, lease)
            }
            _ => failure(405, "MethodNotAllowed"),
        }
    }

    fn update(&mut self, name: &str, lease: Value) -> Reply {
        let Some(current) = self.leases.get(name) else { return failure(404, "NotFound") };
        if lease["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"] {
            return failure(409, "Conflict");
        }
        self.store(name, lease)
    }

    /// Stores a Lease if it is valid: the rules of the real server.
    fn store(&mut self, name: &str, mut lease: Value) -> Reply {
        let spec = &lease["spec"];
        let is_positive = |field: &Value| field.as_i64().is_none_or(|n| n > 0 && n <= i64::from(i32::MAX));
        if !is_positive(&spec["leaseDurationSeconds"]) || spec["leaseTransitions"].as_i64().is_some_and(|n| n < 0) {
            return failure(422, "Invalid");
        }
        let is_update = self.leases.contains_key(name);
        self.version += 1;
        lease["apiVersion"] = "coordination.k8s.io/v1".into();
        lease["kind"] = "Lease".into();
        lease["metadata"]["name"] = name.into();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.leases.insert(name.to_owned(), lease.clone());
        self.tell(name, if is_update { "MODIFIED" } else { "ADDED" }, &lease);
        reply(if is_update { 200 } else { 201 }, &lease)
    }

    fn delete(&mut self, name: &str) -> Option<()> {
        let mut lease = self.leases.remove(name)?;
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.tell(name, "DELETED", &lease);
        Some(())
    }

    fn tell(&mut self, name: &str, kind: &str, lease: &Value) {
        let event = json!({ "type": kind, "object": lease });
        self.watchers.retain(|(watched, watcher)| watched != name || watcher.send(line(&event)).is_ok());
        self.events.push((self.version, name.to_owned(), event));
    }

    fn watch(&mut self, query: &str) -> Reply {
        let query: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        assert_eq!(query.get("watch"), Some(&"true"), "only watches");
        let name = query["fieldSelector"].strip_prefix("metadata.name%3D").expect("a watch of one name");
        let (sender, receiver) = mpsc::unbounded_channel();
        match query["resourceVersion"].parse::<u64>().expect("a version") {
            0 => {
                if let Some(lease) = self.leases.get(name) {
                    let _ = sender.send(line(&json!({ "type": "ADDED", "object": lease })));
                }
            }
            since => {
                for (_, _, event) in self.events.iter().filter(|(version, of, _)| *version > since && of == name) {
                    let _ = sender.send(line(event));
                }
            }
        }
        self.watchers.push((name.to_owned(), sender));
        let frames = stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|line| (Ok(Frame::data(line)), receiver))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn line(event: &Value) -> Bytes {
    format!("{event}\n").into()
}

/// RFC 7386.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(&name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn reply(code: u16, value: &Value) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *reply.status_mut() = code.try_into().expect("a status");
    reply
}

fn failure(code: u16, reason: &str) -> Reply {
    reply(code, &json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "as told" }))
}

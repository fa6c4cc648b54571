//! The layer in front of a service.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex};

use fence_layer::{FenceLayer, FenceService, MemoryGate};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use lock_proto::fence::FENCE_HEADER;
use tokio::sync::oneshot;
use tower_layer::Layer as _;
use tower_service::Service;

/// A service that writes down the bodies of requests.
#[derive(Clone, Default)]
struct BodyLog(Arc<Mutex<Vec<&'static str>>>);

impl BodyLog {
    fn lines(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

impl Service<Request<&'static str>> for BodyLog {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<&'static str>) -> Self::Future {
        self.0.lock().unwrap().push(request.into_body());
        ready(Ok(Response::new("written".to_owned())))
    }
}

/// The lock of an invoice has the path of the invoice as its name. Reading needs no token.
fn name_of(request: &Parts) -> Option<String> {
    (request.method != Method::GET).then(|| request.uri.path().to_owned())
}

type NameOf = fn(&Parts) -> Option<String>;

/// A service that checks tokens for up to 10 000 invoices.
fn fenced<S>(service: S) -> FenceService<S, MemoryGate, NameOf> {
    FenceLayer::<_, NameOf>::new(MemoryGate::new(10_000), name_of).layer(service)
}

fn put(path: &str, fence: u64, body: &'static str) -> Request<&'static str> {
    Request::put(path).header(FENCE_HEADER, fence).body(body).unwrap()
}

#[tokio::test]
async fn smaller_token_is_refused() {
    // F1
    let log = BodyLog::default();
    let mut service = fenced(log.clone());
    let requests = [
        (put("/42", 7, "a"), StatusCode::OK),
        (put("/42", 8, "b"), StatusCode::OK),
        (put("/42", 8, "c"), StatusCode::OK),
        (put("/42", 7, "late"), StatusCode::PRECONDITION_FAILED),
        (put("/43", 7, "d"), StatusCode::OK),
    ];
    for (request, status) in requests {
        let body = *request.body();
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), status, "{body}");
        let seen = response.headers().get(FENCE_HEADER).map(|seen| seen.to_str().unwrap());
        assert_eq!(seen, (status == StatusCode::PRECONDITION_FAILED).then_some("8"));
    }
    assert_eq!(log.lines(), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn missing_and_invalid_tokens_are_refused() {
    // F2
    let log = BodyLog::default();
    let mut service = fenced(log.clone());
    let put = || Request::put("/42");
    let requests = [
        (put(), StatusCode::PRECONDITION_REQUIRED),
        (put().header(FENCE_HEADER, "+7"), StatusCode::BAD_REQUEST),
        (put().header(FENCE_HEADER, "7, 8"), StatusCode::BAD_REQUEST),
        (put().header(FENCE_HEADER, "7").header(FENCE_HEADER, "8"), StatusCode::BAD_REQUEST),
        (Request::get("/42"), StatusCode::OK),
    ];
    for (request, status) in requests {
        assert_eq!(service.call(request.body("read").unwrap()).await.unwrap().status(), status);
    }
    assert_eq!(log.lines(), ["read"]);
}

#[tokio::test]
async fn memory_is_bounded_and_forgets_nothing() {
    // F1
    let mut service = FenceLayer::new(MemoryGate::new(2), name_of).layer(BodyLog::default());
    for (path, fence, status) in [
        ("/1", 8, StatusCode::OK),
        ("/2", 8, StatusCode::OK),
        ("/3", 8, StatusCode::SERVICE_UNAVAILABLE),
        ("/1", 7, StatusCode::PRECONDITION_FAILED),
        ("/2", 9, StatusCode::OK),
    ] {
        assert_eq!(service.call(put(path, fence, "")).await.unwrap().status(), status, "{path} {fence}");
    }
}

type Unanswered = (&'static str, oneshot::Sender<()>);

/// A service whose requests are answered when the test says so.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<Unanswered>>>);

impl Slow {
    /// The requests that are being served.
    fn served(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|(body, _)| *body).collect()
    }

    fn answer_first(&self) {
        self.0.lock().unwrap().remove(0).1.send(()).unwrap();
    }
}

impl Service<Request<&'static str>> for Slow {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = core::pin::Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<&'static str>) -> Self::Future {
        let (answer, answered) = oneshot::channel();
        self.0.lock().unwrap().push((request.into_body(), answer));
        Box::pin(async move {
            let _ = answered.await;
            Ok(Response::new(String::new()))
        })
    }
}

#[test]
fn greater_token_waits_for_smaller_ones_under_way() {
    // F4
    let slow = Slow::default();
    let mut service = fenced(slow.clone());
    let mut call = |path, fence, body| service.call(put(path, fence, body));
    let mut cx = Context::from_waker(Waker::noop());
    let [mut a, mut b] = ["a", "b"].map(|body| call("/42", 7, body));
    assert!(a.as_mut().poll(&mut cx).is_pending() && b.as_mut().poll(&mut cx).is_pending());
    assert_eq!(slow.served(), ["a", "b"], "equal tokens do not wait for each other");

    let (mut new, mut newer) = (call("/42", 8, "new"), call("/42", 9, "newer"));
    assert!(new.as_mut().poll(&mut cx).is_pending());
    assert!(newer.as_mut().poll(&mut cx).is_pending());
    assert_eq!(slow.served(), ["a", "b"]);
    // Its token is known although it waits.
    let Poll::Ready(late) = call("/42", 7, "late").as_mut().poll(&mut cx) else { panic!("it waits") };
    assert_eq!(late.unwrap().status(), StatusCode::PRECONDITION_FAILED);
    // Another name does not wait.
    assert!(call("/43", 8, "other").as_mut().poll(&mut cx).is_pending());
    assert_eq!(slow.served(), ["a", "b", "other"]);

    slow.answer_first();
    assert!(a.as_mut().poll(&mut cx).is_ready());
    assert!(newer.as_mut().poll(&mut cx).is_pending());
    // A caller that has left is served no more.
    drop(b);
    assert!(newer.as_mut().poll(&mut cx).is_pending());
    assert_eq!(slow.served(), ["b", "other", "newer"]);
    // Overtaken while it waited.
    let Poll::Ready(new) = new.as_mut().poll(&mut cx) else { panic!("it waits") };
    assert_eq!(new.unwrap().status(), StatusCode::PRECONDITION_FAILED);
}

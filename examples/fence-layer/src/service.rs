//! The layer and its service.

use core::pin::Pin;
use core::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use lock_proto::Fence;
use lock_proto::fence::{FENCE_HEADER, parse_header};
use tower_layer::Layer;
use tower_service::Service;

use crate::{FenceGate, Refused};

/// Checks the tokens of requests.
///
/// `name_of` names the resource that a request changes, in the unit that the callers lock, or
/// returns `None` for a request that needs no token.
#[derive(Clone, Debug)]
pub struct FenceLayer<G, N> {
    gate: G,
    name_of: N,
}

impl<G, N> FenceLayer<G, N> {
    /// A layer with this gate.
    pub const fn new(gate: G, name_of: N) -> Self {
        Self { gate, name_of }
    }
}

impl<S, G: Clone, N: Clone> Layer<S> for FenceLayer<G, N> {
    type Service = FenceService<S, G, N>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService { inner, layer: self.clone() }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<S, G, N> {
    inner: S,
    layer: FenceLayer<G, N>,
}

impl<S, G, N, B, R> Service<Request<B>> for FenceService<S, G, N>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    G: FenceGate + Sync,
    N: Fn(&Parts) -> Option<String>,
    B: Send + 'static,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is not ready yet; the one that is takes the request.
        let clone = self.inner.clone();
        let mut inner = core::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        let checked = (self.layer.name_of)(&parts).map(|name| (name, token(&parts.headers)));
        let request = Request::from_parts(parts, body);
        let gate = self.layer.gate.clone();
        Box::pin(async move {
            let _pass = match checked {
                None => None,
                Some((_, Err(status))) => return Ok(refusal(status, None)),
                Some((name, Ok(fence))) => match gate.admit(&name, fence).await {
                    Ok(pass) => Some(pass),
                    Err(Refused::Stale { seen }) => return Ok(refusal(StatusCode::PRECONDITION_FAILED, Some(seen))),
                    Err(Refused::Unavailable) => return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, None)),
                },
            };
            inner.call(request).await
        })
    }
}

/// The token of a request, or the status that refuses it.
fn token(headers: &HeaderMap) -> Result<Fence, StatusCode> {
    let mut values = headers.get_all(FENCE_HEADER).iter();
    let value = values.next().ok_or(StatusCode::PRECONDITION_REQUIRED)?;
    // Of two tokens, the wrong one could be checked.
    // F2
    if values.next().is_some() {
        return Err(StatusCode::BAD_REQUEST);
    }
    parse_header(value.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)
}

fn refusal<R: Default>(status: StatusCode, seen: Option<Fence>) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    if let Some(seen) = seen {
        response.headers_mut().insert(FENCE_HEADER, HeaderValue::from(seen.get()));
    }
    response
}

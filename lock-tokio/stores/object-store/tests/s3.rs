//! The register on S3: a stand-in below the HTTP client, so that it fails as told, and counts requests.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::BodyExt;
use lock_driver::register::{Register, RegisterError};
use lock_object_store::ObjectRegister;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, HeaderMap};
use store_testkit::{Traits, check_register, record};

/// What the next request meets.
#[derive(Clone, Debug)]
enum Fault {
    /// An answer, without anything done.
    Status(u16, &'static str),
    /// The request is carried out, and the connection breaks before the reply.
    Lost,
    /// There is no connection.
    Down,
}

#[derive(Debug, Default)]
struct State {
    /// Content and number of each object.
    objects: HashMap<String, (Bytes, u64)>,
    writes: u64,
    faults: VecDeque<Fault>,
    puts: u64,
    /// Conditions that it ignores.
    ignores: &'static [&'static str],
    headers: Vec<(&'static str, &'static str)>,
}

/// An S3 in memory. Entity tags grow with each write, as if each content were new.
#[derive(Clone, Debug, Default)]
struct S3(Arc<Mutex<State>>);

impl HttpConnector for S3 {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for S3 {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let state = &mut *self.0.lock().unwrap();
        let is_put = parts.method == "PUT";
        state.puts += u64::from(is_put);
        let fault = state.faults.pop_front();
        let lost = |kind| Err(HttpError::new(kind, std::io::Error::other("no reply")));
        match fault {
            Some(Fault::Status(status, text)) => return Ok(reply(status, &[], text.into())),
            Some(Fault::Down) => return lost(HttpErrorKind::Connect),
            Some(Fault::Lost) | None => {}
        }
        let done = if is_put { state.put(parts.uri.path(), &parts.headers, body) } else { state.get(parts.uri.path()) };
        if fault.is_some() { lost(HttpErrorKind::Interrupted) } else { Ok(done) }
    }
}

impl State {
    fn put(&mut self, path: &str, headers: &HeaderMap, body: Bytes) -> HttpResponse {
        let header =
            |name| headers.get(name).filter(|_| !self.ignores.contains(&name)).map(|value| value.to_str().unwrap());
        let tag = self.objects.get(path).map(|(_, number)| format!("\"{number}\""));
        if header("if-none-match").is_some() && tag.is_some() {
            return reply(412, &[], "<Error><Code>PreconditionFailed</Code></Error>".into());
        }
        match (header("if-match"), tag) {
            (Some(_), None) => return reply(404, &[], "<Error><Code>NoSuchKey</Code></Error>".into()),
            (Some(wanted), Some(tag)) if wanted != tag => {
                return reply(412, &[], "<Error><Code>PreconditionFailed</Code></Error>".into());
            }
            _ => {}
        }
        self.writes += 1;
        self.objects.insert(path.into(), (body, self.writes));
        reply(200, &[("etag", format!("\"{}\"", self.writes))], Bytes::new())
    }

    fn get(&self, path: &str) -> HttpResponse {
        let Some((content, number)) = self.objects.get(path) else {
            return reply(404, &[], "<Error><Code>NoSuchKey</Code></Error>".into());
        };
        let mut headers = vec![("etag", format!("\"{number}\"")), ("content-length", content.len().to_string())];
        headers.extend(self.headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
        reply(200, &headers, content.clone())
    }
}

fn reply(status: u16, headers: &[(&'static str, String)], body: Bytes) -> HttpResponse {
    let mut reply = HttpResponse::new(HttpResponseBody::from(body));
    *reply.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        reply.headers_mut().insert(*name, value.parse().unwrap());
    }
    reply
}

impl S3 {
    fn register(&self) -> ObjectRegister {
        let url = "s3://bucket/locks?region=eu-central-1&access_key_id=id&secret_access_key=secret";
        ObjectRegister::from_url_over(url, self.clone()).unwrap()
    }

    fn fail(&self, faults: &[Fault]) {
        self.0.lock().unwrap().faults = faults.iter().cloned().collect();
    }

    fn set_headers(&self, headers: &[(&'static str, &'static str)]) {
        self.0.lock().unwrap().headers = headers.to_vec();
    }

    fn puts(&self) -> u64 {
        self.0.lock().unwrap().puts
    }
}

const MODIFIED: (&str, &str) = ("last-modified", "Sat, 28 Nov 2026 12:00:00 GMT");

/// A register that has been probed.
async fn probed() -> (S3, ObjectRegister) {
    let s3 = S3::default();
    s3.set_headers(&[MODIFIED]);
    let register = s3.register();
    register.probe().await.unwrap();
    (s3, register)
}

#[tokio::test]
async fn it_does_what_every_store_does() {
    let (s3, register) = probed().await;
    let plant = async |key: &[u8], bytes: Option<&[u8]>| {
        let path = format!("/bucket/locks/{}", str::from_utf8(key).unwrap().replace('/', "%252F"));
        let objects = &mut s3.0.lock().unwrap().objects;
        match bytes {
            Some(bytes) => drop(objects.insert(path, (Bytes::copy_from_slice(bytes), 77_777))),
            None => drop(objects.remove(&path)),
        }
    };
    check_register(&register, &register.clone(), Traits::default(), plant).await;
}

#[tokio::test]
async fn stores_that_ignore_a_condition_are_refused() {
    for condition in ["if-match", "if-none-match"] {
        let s3 = S3::default();
        s3.set_headers(&[MODIFIED]);
        s3.0.lock().unwrap().ignores = if condition == "if-match" { &["if-match"] } else { &["if-none-match"] };
        let register = s3.register();
        for result in
            [register.read(b"job").await.map(|_| ()), register.write(b"job", &record(1, 1), None).await.map(|_| ())]
        {
            let Err(RegisterError::Refused(text)) = result else { panic!("{condition}: {result:?}") };
            assert!(text.to_ascii_lowercase().contains(condition), "{text}");
        }
        assert!(s3.0.lock().unwrap().objects.keys().all(|path| path.ends_with("~probe")), "it wrote a record");
    }
}

#[tokio::test]
async fn a_probe_without_an_answer_is_made_again() {
    let s3 = S3::default();
    s3.set_headers(&[MODIFIED]);
    let register = s3.register();
    s3.fail(&[Fault::Lost]);
    let lost = register.write(b"job", &record(1, 1), None).await;
    assert!(matches!(lost, Err(RegisterError::NotSent(_))), "{lost:?}");
    register.write(b"job", &record(1, 1), None).await.unwrap();
}

#[tokio::test]
async fn writes_are_not_repeated() {
    let (s3, register) = probed().await;
    let before = s3.puts();
    for fault in [Fault::Status(500, ""), Fault::Status(503, "<Code>SlowDown</Code>"), Fault::Lost] {
        s3.fail(&[fault]);
        let result = register.write(b"job", &record(1, 1), None).await;
        assert!(matches!(result, Err(RegisterError::Unknown(_))), "{result:?}");
    }
    assert_eq!(s3.puts(), before + 3, "each write is one request");
    // The last one was applied.
    assert_eq!(register.read(b"job").await.unwrap().unwrap().record, record(1, 1));
}

#[tokio::test]
async fn a_conflict_is_proved() {
    let (s3, register) = probed().await;
    // Writes met another one under way, which has failed.
    s3.fail(&[Fault::Status(409, "<Code>ConditionalRequestConflict</Code>")]);
    let result = register.write(b"job", &record(1, 1), None).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
    register.write(b"job", &record(1, 1), None).await.unwrap();
    let found = register.read(b"job").await.unwrap().unwrap();
    s3.fail(&[Fault::Status(409, "<Code>ConditionalRequestConflict</Code>")]);
    let result = register.write(b"job", &record(1, 2), Some(&found)).await;
    assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
    // One that has succeeded.
    register.write(b"job", &record(1, 2), Some(&found)).await.unwrap();
    for expected in [None, Some(&found)] {
        s3.fail(&[Fault::Status(409, "<Code>ConditionalRequestConflict</Code>")]);
        assert_eq!(register.write(b"job", &record(1, 3), expected).await, Err(RegisterError::Conflict));
    }
    // And one that nobody knows of.
    s3.fail(&[Fault::Status(409, ""), Fault::Status(500, "")]);
    let result = register.write(b"job", &record(1, 3), None).await;
    assert!(matches!(result, Err(RegisterError::Unknown(_))), "{result:?}");
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let (s3, register) = probed().await;
    register.write(b"job", &record(1, 1), None).await.unwrap();
    let found = register.read(b"job").await.unwrap().unwrap();
    for (status, body, remedy) in [
        (403, "<Code>AccessDenied</Code>", "allow reading and writing"),
        (401, "", "credentials"),
        (404, "<Code>NoSuchBucket</Code>", "create it"),
        (301, "<Code>PermanentRedirect</Code>", "name its region"),
    ] {
        for expected in [None, Some(&found)] {
            s3.fail(&[Fault::Status(status, body)]);
            let result = register.write(b"job", &record(1, 2), expected).await;
            assert!(
                matches!(&result, Err(RegisterError::Refused(text)) if text.contains(remedy)),
                "{status}: {result:?}"
            );
        }
        s3.fail(&[Fault::Status(status, body)]);
        let result = register.read(b"job").await;
        assert!(matches!(&result, Err(RegisterError::Refused(text)) if text.contains(remedy)), "{status}: {result:?}");
    }
    for fault in [Fault::Down, Fault::Status(429, "")] {
        s3.fail(&[fault]);
        let result = register.write(b"job", &record(1, 2), Some(&found)).await;
        assert!(matches!(result, Err(RegisterError::NotSent(_))), "{result:?}");
    }
}

#[tokio::test]
async fn the_age_is_by_the_clock_of_the_store() {
    // RG1
    let (s3, register) = probed().await;
    register.write(b"job", &record(1, 1), None).await.unwrap();
    for (headers, age) in [
        // Whole seconds: it may be one less.
        (&[MODIFIED, ("date", "Sat, 28 Nov 2026 12:00:10 GMT")][..], Some(9)),
        (&[MODIFIED, ("date", "Sat, 28 Nov 2026 12:00:00 GMT")], Some(0)),
        (&[MODIFIED, ("date", "Sat, 28 Nov 2026 11:59:00 GMT")], None),
        (&[MODIFIED, ("date", "yesterday")], None),
        (&[MODIFIED], None),
        (&[MODIFIED, ("date", "Sat, 28 Nov 2026 12:00:10 GMT"), ("age", "5")], None),
        (&[("date", "Sat, 28 Nov 2026 12:00:10 GMT")], None),
    ] {
        s3.set_headers(headers);
        let found = register.read(b"job").await.unwrap().unwrap();
        assert_eq!(found.age, age.map(Duration::from_secs), "{headers:?}");
    }
}

#[test]
fn urls_are_checked() {
    for (url, part) in [
        ("s3://bucket/a?colour=red", "colour"),
        ("http://bucket/a", "unsupported scheme"),
        ("bucket", "relative url"),
        ("s3://bucket/a//b", "empty"),
    ] {
        let error = ObjectRegister::from_url(url).unwrap_err();
        assert!(matches!(&error, RegisterError::Refused(text) if text.to_lowercase().contains(part)), "{url}: {error}");
    }
}

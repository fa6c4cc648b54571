//! Stores by URL, over HTTP.

use core::time::Duration;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use lock_driver::register::RegisterError;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use crate::ObjectRegister;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the setting for a builder of `object_store` that switches its retries off.
///
/// They last up to three minutes, and a retry would report the success of the first try as a
/// conflict.
#[must_use]
pub fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl ObjectRegister {
    /// Creates a register from a URL: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or
    /// `az://CONTAINER/PREFIX`, each with the feature of its name.
    ///
    /// Credentials and settings come from the environment, as `object_store` reads it
    /// (`AWS_ACCESS_KEY_ID`, …), and from the query, which uses the same names: `?region=eu-central-1`,
    /// `?endpoint=http://localhost:9000&allow_http=true`.
    ///
    /// TLS uses the provider of cryptography that the process has installed for rustls; if it has none,
    /// ring is installed.
    ///
    /// # Errors
    ///
    /// [`Refused`](RegisterError::Refused) if the URL or a setting is invalid. Nothing is sent.
    pub fn from_url(url: &str) -> Result<Self, RegisterError> {
        // Fails if there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self::from_url_over(url, ReqwestConnector::default())
    }

    /// Like [`from_url`](Self::from_url), with another HTTP client.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn from_url_over(url: &str, client: impl HttpConnector) -> Result<Self, RegisterError> {
        let mut url = Url::parse(url).map_err(RegisterError::refused)?;
        let settings: Vec<(String, String)> =
            url.query_pairs().map(|(name, value)| (name.to_ascii_lowercase(), value.into())).collect();
        url.set_query(None);
        let prefix = Path::from_url_path(url.path()).map_err(RegisterError::refused)?;
        url.set_path("");
        let store = open(&url, &settings, Dated(client)).map_err(RegisterError::refused)?;
        Ok(Self::new(store, prefix))
    }
}

macro_rules! build {
    ($builder:ty, $url:expr, $settings:expr, $connector:expr) => {{
        let mut builder = <$builder>::from_env()
            .with_url($url.as_str())
            .with_retry(no_retries())
            .with_client_options(ClientOptions::default().with_timeout(TIMEOUT))
            .with_http_connector($connector);
        for (name, value) in $settings {
            builder = builder.with_config(name.parse()?, value);
        }
        Ok(Arc::new(builder.build()?))
    }};
}

#[cfg_attr(not(any(feature = "s3", feature = "gs", feature = "az")), expect(unused_variables, reason = "features"))]
fn open(
    url: &Url,
    settings: &[(String, String)],
    connector: impl HttpConnector,
) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    match url.scheme() {
        #[cfg(feature = "s3")]
        "s3" => build!(object_store::aws::AmazonS3Builder, url, settings, connector),
        #[cfg(feature = "gs")]
        "gs" => build!(object_store::gcp::GoogleCloudStorageBuilder, url, settings, connector),
        #[cfg(feature = "az")]
        "az" => build!(object_store::azure::MicrosoftAzureBuilder, url, settings, connector),
        other => Err(object_store::Error::NotSupported {
            source: format!(
                "unsupported scheme {other:?}; expected s3://, gs:// or az:// (features `s3`, `gs`, `az` of lock-object-store)"
            )
            .into(),
        }),
    }
}

/// The store's time of day at a reply. An extension of the reply, which reaches the result of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerDate(pub(crate) SystemTime);

/// An HTTP client that keeps the `Date` of replies.
#[derive(Debug)]
struct Dated<T>(T);

impl<T: HttpConnector> HttpConnector for Dated<T> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Dated(self.0.connect(options)?)))
    }
}

#[async_trait]
impl HttpService for Dated<HttpClient> {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut reply = self.0.execute(request).await?;
        // A cache answers with the date of the original reply.
        if !reply.headers().contains_key("age")
            && let Some(date) =
                reply.headers().get("date").and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        {
            reply.extensions_mut().insert(ServerDate(date));
        }
        Ok(reply)
    }
}

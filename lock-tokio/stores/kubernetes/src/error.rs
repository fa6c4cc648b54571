//! What an error of the API server means for a lock.

use kube::Error;
use lock_driver::register::RegisterError;

/// Returns what a failed request means. Conflicts, and what is absent, are the caller's.
// RG4
#[expect(clippy::wildcard_enum_match_arm, reason = "what is not known better is unknown")]
pub(crate) fn classify(error: &Error, namespace: &str) -> RegisterError {
    let text = text(error);
    let refused = |remedy: &str| RegisterError::refused(format!("{remedy}: {text}"));
    match error {
        Error::Api(status) => match status.code {
            401 => refused("the API server rejected the credentials; configure valid ones"),
            403 => refused("no permission; allow get, create, patch and watch on leases of coordination.k8s.io"),
            404 => refused(&format!("there is no namespace {namespace:?}; create it, or name another one")),
            // The request was wrong: too long a value, for example.
            400 | 405 | 413 | 415 | 422 => refused("the API server does not take the Lease"),
            // Throttled before anything was done.
            429 => RegisterError::not_sent(text),
            _ => RegisterError::unknown(text),
        },
        Error::InferConfig(_) | Error::InferKubeconfig(_) => {
            refused("there is neither a service account nor a kubeconfig; run inside a cluster, or configure one")
        }
        Error::Auth(_) | Error::BuildRequest(_) | Error::TlsRequired => RegisterError::not_sent(text),
        error if is_unsent(error) => RegisterError::not_sent(text),
        _ => RegisterError::unknown(text),
    }
}

/// Returns an error with its causes, as one line.
pub(crate) fn text(error: &dyn core::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns true if no connection was made.
fn is_unsent(error: &dyn core::error::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(client) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return client.is_connect();
        }
        source = error.source();
    }
    false
}

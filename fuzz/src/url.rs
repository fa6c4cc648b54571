//! Server URLs.

use lock_proto::Secret;
use lock_proto::redis::Endpoint;

/// Parses `data` as a URL. An accepted URL is displayed as an equivalent URL without the password,
/// and a rejected one gives an error message.
pub fn url(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let endpoint = match Endpoint::parse(text) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let shown = endpoint.to_string();
    let debug = format!("{endpoint:?}");
    let mut masked = endpoint;
    masked.login.password = masked.login.password.map(|_| Secret::new("***"));
    // Whatever does not change with the password does not reveal it.
    assert_eq!((masked.to_string(), format!("{masked:?}")), (shown.clone(), debug));
    assert_eq!(Endpoint::parse(&shown).as_ref(), Ok(&masked), "{shown}");
}

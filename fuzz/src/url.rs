//! URLs of servers.

use lock_proto::redis::{Endpoint, Secret};

/// Parses `data` as a URL. What is accepted is displayed as a URL that means the same and hides the password; what is refused is
/// refused with a message.
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
    let masked = Endpoint { password: endpoint.password.as_ref().map(|_| Secret::new("***")), ..endpoint };
    // What does not depend on the password does not show it.
    assert_eq!((masked.to_string(), format!("{masked:?}")), (shown.clone(), debug));
    assert_eq!(Endpoint::parse(&shown).as_ref(), Ok(&masked), "{shown}");
}

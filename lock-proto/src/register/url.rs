//! URLs of folders.

use alloc::boxed::Box;

use crate::url::{UrlError, decoded, parse_scheme, unsupported_scheme};

const SCHEMES: &str = "file://";

/// Returns the path in the URL of a folder with locks, such as `file:///var/lib/app/locks`.
///
/// # Errors
///
/// The URL has another scheme, or something else than an absolute path in UTF-8.
pub fn parse_folder(url: &str) -> Result<Box<str>, UrlError> {
    let (scheme, rest) = parse_scheme(url, SCHEMES)?;
    if scheme != "file" {
        return Err(unsupported_scheme(&scheme, SCHEMES));
    }
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') || path.contains(['?', '#']) {
        return Err(UrlError::Folder);
    }
    decoded(path, "path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_folder_is_absolute_path() {
        for (url, path) in
            [("file:///var/lib/app", "/var/lib/app"), ("FILE://localhost/a%20b%3f", "/a b?"), ("file:///", "/")]
        {
            assert_eq!(parse_folder(url).as_deref(), Ok(path), "{url}");
        }
        for url in ["file://", "file://locks", "file://host/locks", "file:///a?b=c", "file:///a#b"] {
            assert_eq!(parse_folder(url), Err(UrlError::Folder), "{url}");
        }
        assert!(matches!(parse_folder("redis://a"), Err(UrlError::Scheme { .. })));
        assert_eq!(parse_folder("file:///%00"), Err(UrlError::NotText { part: "path" }));
    }
}

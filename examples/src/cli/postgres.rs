//! What only Postgres has: a table, and a password in its URL.

use core::fmt::Write as _;

use lock_postgres::PostgresRegister;

use super::register::CreatingTable;

pub(super) fn create_table(url: &str) -> CreatingTable<'_> {
    Box::pin(async { PostgresRegister::from_url(url)?.create_table().await })
}

pub(super) fn default_password(url: &str, password: &str) -> String {
    let (rest, query) = url.split_once('?').unwrap_or((url, ""));
    let login = rest.rsplit_once('@').and_then(|(login, _)| login.split_once("://"));
    let is_given = login.is_some_and(|(_, login)| login.contains(':'))
        || query.split('&').any(|parameter| parameter.starts_with("password="));
    let mut url = url.to_owned();
    if !is_given {
        url.push_str(if url.contains('?') { "&password=" } else { "?password=" });
        for byte in password.bytes() {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::default_password;

    #[test]
    fn password_of_url_comes_first() {
        let with = |url| default_password(url, "a&");
        assert_eq!(with("postgres://app@host/db"), "postgres://app@host/db?password=%61%26");
        assert_eq!(with("postgres://host/db?user=app"), "postgres://host/db?user=app&password=%61%26");
        for url in ["postgres://app:b@host/db", "postgres://app:@host/db", "postgres://host/db?password=b"] {
            assert_eq!(with(url), url);
        }
    }
}

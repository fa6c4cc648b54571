//! The parameters of URLs that all stores share: login and TLS.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::tls::Tls;
use crate::url::{Login, Secret, UrlError, decoded, shown};

const LOGIN: [&str; 3] = ["user", "password", "password_file"];
const TLS: [&str; 4] = ["ca", "cert", "key", "server_name"];

/// Collects the parameters of a URL.
#[derive(Default)]
pub(crate) struct Parameters {
    login: [Option<Box<str>>; LOGIN.len()],
    tls: [Option<Box<str>>; TLS.len()],
}

impl Parameters {
    /// Reads one parameter. Returns false if it is of another kind.
    pub(crate) fn read(&mut self, name: &str, value: &str) -> Result<bool, UrlError> {
        let login = LOGIN.into_iter().zip(&mut self.login);
        for (known, place) in login.chain(TLS.into_iter().zip(&mut self.tls)) {
            if known == name {
                let value = decoded(value, known)?;
                if value.is_empty() {
                    return Err(UrlError::EmptyParameter { name: known });
                }
                return match place.replace(value) {
                    None => Ok(true),
                    Some(_) => Err(UrlError::Twice { name: known }),
                };
            }
        }
        Ok(false)
    }

    /// Returns the error for a parameter of no kind. After a password its name is not shown: a
    /// password with a raw `&` would be parsed as further parameters.
    pub(crate) fn unknown(&self, name: &str, allowed: &'static str) -> UrlError {
        let [_, password, _] = &self.login;
        UrlError::Parameter { name: if password.is_some() { "…".into() } else { shown(name) }, allowed }
    }

    /// Returns the TLS settings of a URL that asks for TLS.
    ///
    /// # Errors
    ///
    /// A certificate without its key, or the reverse; or, without TLS, a parameter for it.
    /// `expected` are the schemes with TLS.
    pub(crate) fn tls(&self, wanted: bool, insecure: bool, expected: &'static str) -> Result<Option<Tls>, UrlError> {
        if !wanted {
            let needless = insecure || self.tls.iter().any(Option::is_some);
            return if needless { Err(UrlError::TlsParameter { expected }) } else { Ok(None) };
        }
        let [ca, cert, key, server_name] = self.tls.clone();
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(UrlError::CertWithoutKey),
        };
        Ok(Some(Tls { ca, identity, server_name, insecure }))
    }

    /// Combines the login before the host with that of the parameters. A user before the host needs
    /// a password here; that of the parameter `user` may come from the host.
    ///
    /// # Errors
    ///
    /// A part is given twice, or a password is missing.
    pub(crate) fn login(self, before_host: Login) -> Result<Login, UrlError> {
        let [user, password, password_file] = self.login;
        let [user_name, password_name, _] = LOGIN;
        let password_may_follow = before_host.username.is_none();
        let login = Login {
            username: once(before_host.username, user, user_name)?,
            password: once(before_host.password, password.map(|text| Secret::new(&text)), password_name)?,
            password_file,
        };
        match (&login.password, &login.password_file) {
            (Some(_), Some(_)) => Err(UrlError::Twice { name: password_name }),
            (None, None) if !password_may_follow => Err(UrlError::NoPassword),
            _ => Ok(login),
        }
    }
}

fn once<T>(before_host: Option<T>, parameter: Option<T>, name: &'static str) -> Result<Option<T>, UrlError> {
    match (before_host, parameter) {
        (Some(_), Some(_)) => Err(UrlError::Twice { name }),
        (one, other) => Ok(one.or(other)),
    }
}

/// The parameters of the URL that has these settings. A password is shown before the host, if at
/// all.
pub(crate) fn shown_parameters<'a>(login: &'a Login, tls: Option<&'a Tls>) -> Vec<(&'static str, &'a str)> {
    let [user, _, password_file] = LOGIN;
    let [ca, cert, key, server_name] = TLS;
    let identity = tls.and_then(|tls| tls.identity.as_ref());
    let values = [
        (user, login.username.as_deref().filter(|_| login.password.is_none())),
        (password_file, login.password_file.as_deref()),
        (ca, tls.and_then(|tls| tls.ca.as_deref())),
        (cert, identity.map(|(cert, _)| &**cert)),
        (key, identity.map(|(_, key)| &**key)),
        (server_name, tls.and_then(|tls| tls.server_name.as_deref())),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

//! Access control lists, for `world`, `auth` and `digest`.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::redis::sha1;
use lock_proto::zookeeper::codec::{Acl, ErrorCode, Permissions};

const DIGEST: &str = "digest";

pub(super) const READ: Permissions = Permissions(1);
pub(super) const WRITE: Permissions = Permissions(2);
pub(super) const CREATE: Permissions = Permissions(4);
pub(super) const DELETE: Permissions = Permissions(8);

/// A user that a connection has authenticated: `user:digest`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DigestUser(Box<str>);

impl DigestUser {
    /// Returns the identity of `user:password`, as `DigestAuthenticationProvider` does. The colon
    /// may be missing.
    pub(super) fn digest(auth: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(auth).ok()?;
        let user = text.split(':').next()?;
        Some(Self(format!("{user}:{}", base64(&sha1::digest(auth))).into()))
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0_u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() { digit.into() } else { '=' });
        }
    }
    text
}

/// Checks that one of the identities has a permission.
pub(super) fn check(acl: &[Acl], wanted: Permissions, identities: &[DigestUser]) -> Result<(), ErrorCode> {
    let permits = |entry: &Acl| {
        let anyone = &*entry.scheme == "world" && &*entry.id == "anyone";
        let known = || &*entry.scheme == DIGEST && identities.iter().any(|identity| identity.0 == entry.id);
        entry.permissions.0 & wanted.0 != 0 && (anyone || known())
    };
    if acl.is_empty() || acl.iter().any(permits) { Ok(()) } else { Err(ErrorCode::NO_AUTH) }
}

/// Replaces `auth` by the identities of the connection (`fixupACL`).
pub(super) fn expand(acl: &[Acl], identities: &[DigestUser]) -> Result<Vec<Acl>, ErrorCode> {
    let mut expanded = Vec::new();
    for entry in acl {
        match &*entry.scheme {
            "world" if &*entry.id == "anyone" => expanded.push(entry.clone()),
            DIGEST if entry.id.split(':').count() == 2 => expanded.push(entry.clone()),
            "auth" if !identities.is_empty() => expanded.extend(identities.iter().map(|identity| Acl {
                permissions: entry.permissions,
                scheme: DIGEST.into(),
                id: identity.0.clone(),
            })),
            _ => return Err(ErrorCode::INVALID_ACL),
        }
    }
    if expanded.is_empty() { Err(ErrorCode::INVALID_ACL) } else { Ok(expanded) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn digest_is_that_of_the_server() {
        // `DigestAuthenticationProvider.generateDigest("super:test")`, as in ZooKeeper's own tests.
        assert_eq!(&*DigestUser::digest(b"super:test").unwrap().0, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
        assert!(DigestUser::digest(b"no colon").unwrap().0.starts_with("no colon:"));
        assert_eq!(base64(b"a"), "YQ==");
    }

    #[test]
    fn auth_stands_for_the_users_of_the_connection() {
        let (ann, bob) = (DigestUser::digest(b"ann:1").unwrap(), DigestUser::digest(b"bob:2").unwrap());
        let acl = expand(&Acl::creator(), core::slice::from_ref(&ann)).unwrap();
        assert_eq!(check(&acl, DELETE, &[bob.clone(), ann]), Ok(()));
        assert_eq!(check(&acl, READ, &[bob]), Err(ErrorCode::NO_AUTH));
        assert_eq!(check(&Acl::open(), WRITE, &[]), Ok(()));
        assert_eq!(expand(&Acl::creator(), &[]), Err(ErrorCode::INVALID_ACL));
        assert_eq!(expand(&[], &[]), Err(ErrorCode::INVALID_ACL));
    }
}

//! Users, passwords and permissions: the part of Redis' access control that affects a lock client
//! (<https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/>).

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::glob;

/// A user of a simulated server.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "a User does nothing until it is given to a NodeConfig"]
pub struct User {
    pub(super) name: String,
    /// None: `nopass`.
    passwords: Option<BTreeSet<String>>,
    only: Option<BTreeSet<String>>,
    except: BTreeSet<String>,
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
}

impl User {
    /// Creates a user without a password who may use every command, key and channel.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            passwords: None,
            only: None,
            except: BTreeSet::new(),
            keys: [b"*".to_vec()].into(),
            channels: [b"*".to_vec()].into(),
        }
    }

    /// Requires this password, or another one of several.
    pub fn password(mut self, password: &str) -> Self {
        self.set_password(password, true);
        self
    }

    /// Adds or removes a password.
    pub(super) fn set_password(&mut self, password: &str, on: bool) {
        let passwords = self.passwords.get_or_insert_default();
        if on {
            passwords.insert(password.to_owned());
        } else {
            passwords.remove(password);
        }
    }

    /// Permits only these commands: `get`, or `client|id` for one subcommand.
    pub fn only<'a>(mut self, commands: impl IntoIterator<Item = &'a str>) -> Self {
        self.only = Some(commands.into_iter().map(str::to_ascii_lowercase).collect());
        self
    }

    /// Forbids these commands.
    pub fn except<'a>(mut self, commands: impl IntoIterator<Item = &'a str>) -> Self {
        self.except.extend(commands.into_iter().map(str::to_ascii_lowercase));
        self
    }

    /// Permits only keys that match one of these patterns.
    pub fn keys<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> Self {
        self.keys = patterns.into_iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
        self
    }

    /// Permits only channels that match one of these patterns. A new user in Redis 7 has none.
    pub fn channels<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> Self {
        self.channels = patterns.into_iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
        self
    }

    pub(super) const fn needs_password(&self) -> bool {
        self.passwords.is_some()
    }

    pub(super) fn accepts(&self, password: &[u8]) -> bool {
        let given = |own: &String| own.as_bytes() == password;
        self.passwords.as_ref().is_none_or(|own| own.iter().any(given))
    }

    /// Returns true if the user may run `command`, given by its full name such as `client|id`.
    pub(super) fn may_run(&self, command: &str) -> bool {
        if self.only.is_none() && self.except.is_empty() {
            return true;
        }
        let parent = command.split('|').next().unwrap_or(command);
        let named = |set: &BTreeSet<String>| set.contains(command) || set.contains(parent);
        self.only.as_ref().is_none_or(named) && !named(&self.except)
    }

    /// Checks the permission to subscribe. A pattern must be permitted literally.
    pub(super) fn may_subscribe(&self, channels: &[&[u8]], patterns: bool) -> bool {
        channels.iter().all(|channel| {
            self.channels.iter().any(|allowed| {
                if patterns { allowed == channel || allowed == b"*" } else { glob::matches(allowed, channel) }
            })
        })
    }

    pub(super) fn may_use(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|pattern| pattern == b"*" || glob::matches(pattern, key))
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("password", &self.passwords.as_ref().map(|_| "…"))
            .field("only", &self.only)
            .field("except", &self.except)
            .finish_non_exhaustive()
    }
}

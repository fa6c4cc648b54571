//! Types of settings: credentials, TLS, timing. See [`Settings`](crate::Settings), and the `Config`
//! of each store.

pub use lock_proto::{Backoff, Credentials, CredentialsRequest, Drift, Login, Secret, Target, Tls};

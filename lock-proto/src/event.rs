//! What an application asks for, and what it is told, whatever the store.

pub(crate) use crate::redis::{
    Acquire, Answer, Blocked, Cause, ErrorClass, Event, Expiry, Failure, Fence, Grant, Loss, Release, Renew, Report,
    ServerError, Token, Wait,
};

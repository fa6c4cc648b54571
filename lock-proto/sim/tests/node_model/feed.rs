//! The replication stream of a real primary, read as a replica would.

use lock_sim::redis::Effect;

use crate::reply::{Match, Reply};
use crate::server::RealConnection;

pub(crate) struct Feed {
    connection: RealConnection,
}

impl Feed {
    /// Requests a full copy, which is discarded, and the stream after it.
    pub(crate) fn open(port: u16) -> Self {
        let mut connection = RealConnection::open(port);
        connection.send(b"PSYNC ? -1\r\n");
        match connection.read() {
            Ok(Reply::Line('+', line)) if line.starts_with("FULLRESYNC") => {}
            other => panic!("not a full synchronisation: {other:?}"),
        }
        connection.skip_copy();
        Self { connection }
    }

    /// Compares the next commands with the primary's. Times and fences may differ.
    pub(crate) fn expect(&mut self, effect: &Effect) -> Result<(), String> {
        for command in effect.commands() {
            let words: Vec<Reply> = command.iter().map(|word| Reply::Bulk(word.to_vec())).collect();
            let expected = Reply::List('*', words);
            match self.connection.read() {
                Ok(found) if expected.agrees(&found, Match::Clock) => {}
                found => return Err(format!("the model sends {expected:?}, redis-server {found:?}, in {effect:?}")),
            }
        }
        Ok(())
    }
}

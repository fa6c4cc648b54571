//! What a real primary sends to its replicas, read as a replica would.

use lock_proto::sim::redis::Effect;

use crate::reply::{Match, Reply};
use crate::server::RealConnection;

pub(crate) struct Feed {
    connection: RealConnection,
}

impl Feed {
    /// Asks for a copy, which is thrown away, and for all that follows.
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

    /// Whether the primary sends the same commands. Times and fences may be as far apart as the two servers.
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

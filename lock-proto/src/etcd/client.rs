//! The etcd client: connects the hub to its channel.

use super::channel::{Channel, ChannelOutput};
use super::config::Config;
use super::lock::Etcd;
use super::locks::Locks;
use super::locks_output::{LocksOutput, WatchOutput};
use super::output::Output;
use super::rpc::{RpcId, RpcReply, Status, StreamId, StreamReceived};
use super::url::Endpoint;
use crate::error::ConfigError;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, NodeId};
use crate::lock::{self, Credentials, Transport};
use crate::time::Instant;

/// All locks and elections of one client, and its connection to the cluster.
///
/// Its methods are those of [`Machine`](crate::Machine) and [`Elections`](crate::Elections). The
/// host carries out the outputs of [`poll_output`](Self::poll_output), and reports the results.
pub type Client = lock::Client<Etcd>;

impl Transport for Etcd {
    type Links = Channel;
    type HostOutput = Output;

    fn connected(channel: &mut Channel, now: Instant, conn: ConnId) {
        channel.handle_connected(now, conn);
    }

    fn disconnected(channel: &mut Channel, now: Instant, conn: ConnId, why: Fault) {
        channel.handle_disconnected(now, conn, why);
    }

    fn credentials(channel: &mut Channel, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        channel.handle_credentials(now, conn, credentials);
    }

    fn links_timeout(channel: &mut Channel, now: Instant) {
        if channel.next_deadline().is_some_and(|at| at <= now) {
            channel.handle_timeout(now);
        }
    }

    fn links_deadline(channel: &Channel) -> Option<(Instant, &'static str)> {
        channel.next_deadline_reason()
    }

    fn hurry(client: &mut Client, by: Instant) {
        let ended = client.links.end_pause(client.now(), by);
        if client.links.down_cause().is_none() {
            client.locks.ctx.env.hurry_lease(by, ended);
        }
    }

    fn route(client: &mut Client) {
        let now = client.now();
        loop {
            if let Some(output) = client.locks.poll_output() {
                match output {
                    LocksOutput::Send { call, request, timeout } => client.links.send(now, call, request, timeout),
                    LocksOutput::Store(WatchOutput::Watch { watch, key, end, deletions }) => {
                        client.links.watch(now, watch, key, end, deletions);
                    }
                    LocksOutput::Store(WatchOutput::Unwatch { watch }) => client.links.unwatch(now, watch),
                    LocksOutput::Event { lock, event } => client.out.push_back(Output::Event { lock, event }),
                    LocksOutput::Operation { id, event } => client.out.push_back(Output::Operation { id, event }),
                    LocksOutput::Stopped { unreleased } => {
                        client.links.close(now);
                        client.out.push_back(Output::Stopped { unreleased });
                    }
                }
            } else if let Some(output) = client.links.poll_notification() {
                match output {
                    ChannelOutput::Do(output) => client.out.push_back(output),
                    ChannelOutput::Reply { call, reply } => {
                        client.answered(now, reply.answer());
                        client.locks.handle_reply(now, call, &reply);
                    }
                    ChannelOutput::Watching { watch, revision } => client.locks.handle_watching(now, watch, revision),
                    ChannelOutput::Changed { watch, revision, deleted, kv } => {
                        client.locks.handle_changed(now, watch, revision, deleted, &kv);
                    }
                    ChannelOutput::Unsubscribed { watch } => client.locks.handle_unsubscribed(now, watch),
                    ChannelOutput::WatchRefused { watch, error } => {
                        client.locks.handle_watch_refused(now, watch, &error);
                    }
                }
            } else {
                return;
            }
        }
    }
}

impl Client {
    /// Creates a client of the cluster in `config`. It connects when the first lock is requested.
    ///
    /// `id` must be globally unique; `seed` is 64 bits of entropy. Take both from the OS.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range, with the allowed range.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        let locks = Locks::new(now, config, id, seed)?;
        let channel = Channel::new(locks.config().channel(), seed);
        Ok(Self::with(locks, channel))
    }

    /// Handles the end of a unary call.
    pub fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>) {
        self.input(now, |channel, now| channel.handle_reply(now, rpc, reply));
    }

    /// Handles a message on a stream.
    pub fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.input(now, |channel, now| channel.handle_message(now, stream, message));
    }

    /// Handles the end of a stream, or a failure to open it.
    pub fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.input(now, |channel, now| channel.handle_stream_ended(now, stream, status));
    }

    /// Returns the next output. Outputs must be carried out in this order.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.poll_notification().or_else(|| self.poll_request())
    }

    /// Returns the next output that is not a request.
    ///
    /// A host that queues outputs drains this at once. It calls
    /// [`poll_request`](Self::poll_request) when its queue is empty, so that requests made in
    /// between leave together.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_notification(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Returns the next request or stream operation: `Call`, `Open` or `Send`.
    ///
    /// The server may execute the request from now on, so all other outputs come first.
    // M8
    #[must_use = "a request that is not carried out stalls the client"]
    pub fn poll_request(&mut self) -> Option<Output> {
        if self.out.is_empty() { self.links.poll_request() } else { None }
    }

    /// Returns the endpoint of the current connection or an earlier one. Members that the cluster
    /// reports get new numbers while no connection is open.
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.links.endpoint(node)
    }
}

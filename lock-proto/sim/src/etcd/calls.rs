//! Unary calls.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use core::iter;

use prost::Message;

use super::connection::Pending;
use super::refusal::RefusalStatus;
use super::span::KeySpan;
use super::user::Caller;
use super::{Cluster, ClusterOutput, Condition, ProposalOutcome, txn};
use lock_proto::Instant;
use lock_proto::etcd::message::{
    AuthenticateRequest, AuthenticateResponse, ClusterHeader, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, Member, MemberListResponse, RangeRequest, RangeResponse, ResponseHeader,
    TxnRequest, TxnResponse,
};
use lock_proto::etcd::{Rpc, RpcReply};

/// An auth token: its user, and when it expires on each member that knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct IssuedToken {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) expires: BTreeMap<usize, Instant>,
}

impl Cluster {
    pub(super) fn call(&mut self, conn: u64, rpc: u64, token: Option<String>, request: Rpc) {
        let Some(member) = self.connections.get(&conn).map(|connection| connection.member) else { return };
        if let Err(refusal) = self.check(member, token.as_deref(), &request) {
            self.emit(ClusterOutput::Reply { conn, rpc, reply: Err(refusal.status()) });
            return;
        }
        let forwarded = is_proposal(&request) && !self.has_noticed(member);
        let until = self.now + self.config.request_timeout;
        let call = Pending { member, conn, rpc, token, request, until, forwarded };
        if self.has_leader(member) || self.reads_own_state(&call) {
            self.answer(&call);
        } else {
            self.pending.push_back(call);
        }
    }

    /// Returns true if a member answers from what it has applied, whoever leads. What it has not
    /// applied must still be in the history, or the old state is lost.
    pub(super) fn reads_own_state(&self, call: &Pending) -> bool {
        let reads = match &call.request {
            Rpc::Range(range) => range.serializable || self.reads_stale(call.member),
            Rpc::Txn(txn) => txn::is_read_only(txn) && self.reads_stale(call.member),
            Rpc::Grant(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => false,
        };
        reads && self.members[call.member].applied >= self.store.compacted()
    }

    pub(super) fn answer(&mut self, call: &Pending) {
        let reply = self.execute(call.member, call.token.as_deref(), &call.request);
        // The reply precedes watch events of the change; etcd leaves the order open.
        self.emit(ClusterOutput::Reply { conn: call.conn, rpc: call.rpc, reply: reply.map_err(RefusalStatus::status) });
        self.publish();
    }

    /// Handles a call whose client is gone. It may still be applied.
    pub(super) fn call_orphaned(&mut self, member: usize, token: Option<String>, request: Rpc) {
        if !is_proposal(&request) || !self.survives() {
            return;
        }
        let call = Pending { member, conn: 0, rpc: 0, token, request, until: self.now, forwarded: true };
        if self.has_leader(member) {
            self.execute_orphaned(&call);
        } else {
            self.orphans.push_back(call);
        }
    }

    pub(super) fn execute_orphaned(&mut self, call: &Pending) {
        // The client is gone, so the result does not matter.
        let _ = self.execute(call.member, call.token.as_deref(), &call.request);
        self.publish();
    }

    /// Returns whether a proposal without a reply is applied.
    pub(super) fn survives(&mut self) -> bool {
        match self.config.proposal_outcome {
            ProposalOutcome::Random => self.rng.one_in(2),
            ProposalOutcome::Applied => true,
            ProposalOutcome::Dropped => false,
        }
    }

    /// Performs the checks that need no consensus.
    fn check(&self, member: usize, token: Option<&str>, request: &Rpc) -> Result<(), RefusalStatus> {
        match request {
            Rpc::Range(range) => txn::check_range(range)?,
            Rpc::Txn(txn) => txn::check(txn, self.config.max_txn_ops)?,
            Rpc::Grant(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => {}
        }
        if !is_proposal(request) {
            return Ok(());
        }
        if self.conditions.contains(&Condition::TooManyRequests) {
            return Err(RefusalStatus::TOO_MANY_REQUESTS);
        }
        self.caller(member, token)?;
        let size = match request {
            Rpc::Txn(txn) => txn.encoded_len(),
            Rpc::Range(_) | Rpc::Grant(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => 0,
        };
        if size > self.config.max_request { Err(RefusalStatus::TOO_LARGE) } else { Ok(()) }
    }

    fn execute(&mut self, member: usize, token: Option<&str>, request: &Rpc) -> Result<RpcReply, RefusalStatus> {
        self.refresh(member, token);
        match request {
            Rpc::Range(range) => self.range(member, token, range).map(RpcReply::Range),
            Rpc::Txn(txn) => self.txn(member, token, txn).map(RpcReply::Txn),
            Rpc::Grant(grant) => self.grant(member, token, *grant).map(RpcReply::Grant),
            Rpc::Revoke(revoke) => self.revoke_lease(member, token, *revoke).map(RpcReply::Revoke),
            Rpc::Authenticate(login) => self.authenticate(member, login).map(RpcReply::Authenticate),
            Rpc::MemberList(_) => Ok(RpcReply::MemberList(self.member_list())),
        }
    }

    pub(super) fn header(&self, member: usize) -> Option<ResponseHeader> {
        Some(ResponseHeader { member_id: self.members[member].id, revision: self.store.revision() })
    }

    /// The members in order, with the URLs `http://member0:2379` and so on, and a learner.
    fn member_list(&self) -> MemberListResponse {
        let url = |name| vec![format!("http://{name}:2379")];
        if !self.client_urls.is_empty() {
            let voters =
                self.client_urls.iter().map(|url| Member { client_urls: vec![url.clone()], is_learner: false });
            return MemberListResponse { header: Some(ClusterHeader { cluster_id: 1 }), members: voters.collect() };
        }
        let voter = |i| Member { client_urls: url(format!("member{i}")), is_learner: false };
        let learner = Member { client_urls: url("learner".into()), is_learner: true };
        let members = iter::once(learner).chain((0..self.members.len()).map(voter)).collect();
        MemberListResponse { header: Some(ClusterHeader { cluster_id: 1 }), members }
    }

    fn range(&self, member: usize, token: Option<&str>, range: &RangeRequest) -> Result<RangeResponse, RefusalStatus> {
        self.caller(member, token)?.may_read(&KeySpan::new(&range.key, &range.range_end))?;
        let applied = self.members[member].applied;
        if range.revision > applied {
            return Err(RefusalStatus::FUTURE_REVISION);
        }
        self.store.check_revision(range.revision)?;
        // Only a serializable read, or a stale one, may find its member behind.
        let at = if range.revision <= 0 && applied < self.store.revision() { applied } else { range.revision };
        let found = txn::read(&self.store, &RangeRequest { revision: at, ..range.clone() }, &[]);
        Ok(RangeResponse { header: self.header_of(member, applied), ..found })
    }

    fn txn(&mut self, member: usize, token: Option<&str>, request: &TxnRequest) -> Result<TxnResponse, RefusalStatus> {
        self.caller(member, token)?.may_run(request)?;
        if self.conditions.contains(&Condition::NoSpace) && txn::puts(request) {
            return Err(RefusalStatus::NO_SPACE);
        }
        let applied = self.members[member].applied;
        if self.reads_stale(member) && txn::is_read_only(request) && applied < self.store.revision() {
            let response = txn::run(&mut self.store.at(applied), request)?;
            return Ok(TxnResponse { header: self.header_of(member, applied), ..response });
        }
        let response = txn::run(&mut self.store, request)?;
        Ok(TxnResponse { header: self.header(member), ..response })
    }

    fn grant(
        &mut self,
        member: usize,
        token: Option<&str>,
        request: LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, RefusalStatus> {
        self.caller(member, token)?;
        if self.conditions.contains(&Condition::NoSpace) {
            return Err(RefusalStatus::NO_SPACE);
        }
        let mut id = request.id;
        while id == 0 {
            id = i64::try_from(self.rng.next() >> 1).unwrap_or(0);
        }
        let ttl = self.store.leases_mut().grant(self.now, id, request.ttl, self.config.min_ttl)?;
        Ok(LeaseGrantResponse { header: self.header(member), id, ttl })
    }

    fn revoke_lease(
        &mut self,
        member: usize,
        token: Option<&str>,
        request: LeaseRevokeRequest,
    ) -> Result<LeaseRevokeResponse, RefusalStatus> {
        let caller = self.caller(member, token)?;
        if let Some(lease) = self.store.leases().get(request.id) {
            lease.keys.iter().try_for_each(|key| caller.may_write(&KeySpan::One(key.clone())))?;
        }
        self.store.revoke(request.id)?;
        Ok(LeaseRevokeResponse { header: self.header(member) })
    }

    fn authenticate(
        &mut self,
        member: usize,
        request: &AuthenticateRequest,
    ) -> Result<AuthenticateResponse, RefusalStatus> {
        if self.config.users.is_empty() {
            return Err(RefusalStatus::AUTH_NOT_ENABLED);
        }
        if !self.config.users.get(&request.name).is_some_and(|user| user.accepts(&request.password)) {
            return Err(RefusalStatus::AUTH_FAILED);
        }
        let token = format!("{:016x}.{}", self.rng.next(), self.logins.len() + 1);
        let (now, until) = (self.now, self.now + self.config.token_ttl);
        self.logins.retain(|_, login| login.expires.values().any(|at| now < *at));
        let expires = (0..self.members.len()).filter(|member| self.members[*member].up).map(|member| (member, until));
        let (user, password) = (request.name.clone(), request.password.clone());
        self.logins.insert(token.clone(), IssuedToken { user, password, expires: expires.collect() });
        Ok(AuthenticateResponse { header: self.header(member), token })
    }

    /// Returns the user of a token. A token is invalid if authentication is off.
    pub(super) fn caller(&self, member: usize, token: Option<&str>) -> Result<Caller<'_>, RefusalStatus> {
        let Some(token) = token else {
            return Ok(if self.config.users.is_empty() { Caller::Anybody } else { Caller::Nobody });
        };
        let login = self.logins.get(token).filter(|login| login.expires.get(&member).is_some_and(|at| self.now < *at));
        let user = login.and_then(|login| self.config.users.get(&login.user));
        user.map(Caller::User).ok_or(RefusalStatus::INVALID_TOKEN)
    }

    /// Extends a token on the member where it is used.
    pub(super) fn refresh(&mut self, member: usize, token: Option<&str>) {
        let until = self.now + self.config.token_ttl;
        let login = token.and_then(|token| self.logins.get_mut(token));
        if let Some(at) = login.and_then(|login| login.expires.get_mut(&member))
            && self.now < *at
        {
            *at = until;
        }
    }
}

/// Returns true if a call goes directly through the cluster's log. (A login reads first.)
pub(super) fn is_proposal(request: &Rpc) -> bool {
    match request {
        Rpc::Range(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => false,
        Rpc::Txn(txn) => !txn::is_read_only(txn),
        Rpc::Grant(_) | Rpc::Revoke(_) => true,
    }
}

//! A model of client-go's leader election (`tools/leaderelection`, with its lock on Leases), rule by rule.

use core::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};

/// What client-go reads of a Lease, and compares as text: times have whole seconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct ElectionRecord {
    holder: String,
    duration: i32,
    acquired: i64,
    renewed: i64,
    transitions: i32,
}

/// One candidate.
pub(crate) struct LeaderElector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    duration: i32,
    /// The Lease as it was last read or written, which the next update sends back.
    lease: Lease,
    observed: ElectionRecord,
    observed_raw: Option<ElectionRecord>,
    observed_at: Duration,
}

impl LeaderElector {
    pub(crate) fn new(client: Client, name: &str, identity: &str, duration: i32) -> Self {
        Self {
            leases: Api::namespaced(client, "default"),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration,
            lease: Lease::default(),
            observed: ElectionRecord::default(),
            observed_raw: None,
            observed_at: Duration::ZERO,
        }
    }

    /// `tryAcquireOrRenew`: returns whether it leads. `now` is its clock.
    pub(crate) async fn try_acquire_or_renew(&mut self, now: Duration) -> bool {
        let mut wanted = ElectionRecord {
            holder: self.identity.clone(),
            duration: self.duration,
            acquired: seconds(now),
            renewed: seconds(now),
            transitions: 0,
        };
        // 1. The leader updates what it has seen, without reading.
        if self.is_leader() && self.is_valid(now) {
            wanted.acquired = self.observed.acquired;
            wanted.transitions = self.observed.transitions;
            if self.update(&wanted).await {
                self.observe(wanted, now);
                return true;
            }
        }
        // 2. It reads the Lease, or creates it.
        let old = match self.leases.get(&self.name).await {
            Ok(lease) => lease,
            Err(Error::Api(status)) if status.code == 404 => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(spec_of(&wanted)) };
                let Ok(created) = self.leases.create(&PostParams::default(), &lease).await else { return false };
                self.lease = created;
                self.observe(wanted, now);
                return true;
            }
            Err(_) => return false,
        };
        let record = old.spec.as_ref().map(record_of).unwrap_or_default();
        self.lease = old;
        // 3. A record that changed is valid from now.
        if self.observed_raw.as_ref() != Some(&record) {
            self.observed_raw = Some(record.clone());
            self.observe(record.clone(), now);
        }
        if !record.holder.is_empty() && self.is_valid(now) && !self.is_leader() {
            return false;
        }
        // 4. It is free, expired, or its own.
        if self.is_leader() {
            wanted.acquired = record.acquired;
            wanted.transitions = record.transitions;
        } else {
            wanted.transitions = record.transitions + 1;
        }
        if !self.update(&wanted).await {
            return false;
        }
        self.observe(wanted, now);
        true
    }

    /// `release`: returns whether it was the leader's.
    pub(crate) async fn release(&mut self, now: Duration) -> bool {
        if !self.is_leader() {
            return false;
        }
        let free = ElectionRecord {
            holder: String::new(),
            duration: 1,
            acquired: seconds(now),
            renewed: seconds(now),
            transitions: self.observed.transitions,
        };
        let is_done = self.update(&free).await;
        if is_done {
            self.observe(free, now);
        }
        is_done
    }

    fn is_leader(&self) -> bool {
        self.observed.holder == self.identity
    }

    fn is_valid(&self, now: Duration) -> bool {
        let duration = u64::try_from(self.observed.duration).unwrap_or(0);
        self.observed_at + Duration::from_secs(duration) > now
    }

    fn observe(&mut self, record: ElectionRecord, now: Duration) {
        self.observed = record;
        self.observed_at = now;
    }

    /// `LeaseLock.Update`: it replaces the spec, and sends the metadata as it was.
    async fn update(&mut self, record: &ElectionRecord) -> bool {
        self.lease.spec = Some(spec_of(record));
        match self.leases.replace(&self.name, &PostParams::default(), &self.lease).await {
            Ok(lease) => {
                self.lease = lease;
                true
            }
            Err(_) => false,
        }
    }
}

/// Its clock runs beside the real one.
fn seconds(now: Duration) -> i64 {
    1_790_000_000 + i64::try_from(now.as_secs()).expect("a time of a test")
}

fn record_of(spec: &LeaseSpec) -> ElectionRecord {
    let second = |time: &Option<MicroTime>| time.as_ref().map_or(0, |time| time.0.as_second());
    ElectionRecord {
        holder: spec.holder_identity.clone().unwrap_or_default(),
        duration: spec.lease_duration_seconds.unwrap_or(0),
        acquired: second(&spec.acquire_time),
        renewed: second(&spec.renew_time),
        transitions: spec.lease_transitions.unwrap_or(0),
    }
}

fn spec_of(record: &ElectionRecord) -> LeaseSpec {
    let time = |second| Timestamp::from_second(second).ok().map(MicroTime);
    LeaseSpec {
        holder_identity: Some(record.holder.clone()),
        lease_duration_seconds: Some(record.duration),
        acquire_time: time(record.acquired),
        renew_time: time(record.renewed),
        lease_transitions: Some(record.transitions),
        ..LeaseSpec::default()
    }
}

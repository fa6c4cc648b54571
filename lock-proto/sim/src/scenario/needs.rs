//! What faults need of the scenarios that list them.

use super::faults::{FaultEntry, FaultNeed};
use super::often::Often;
use super::queue::draw::QueueRecipe;
use super::redis::RedisRecipe;
use super::zookeeper::EnsembleRecipe;
use super::{Bounds, Draws, Scenario};

impl Scenario {
    /// Returns the names of the faults of the scenario, with their greatest weights.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.fault_lists().into_iter().flatten().map(|(fault, weight)| (fault.name, *weight))
    }

    /// Up to three lists of faults: two that exclude each other, and those that begin at any time.
    const fn fault_lists(&self) -> [&'static [(FaultEntry, u64)]; 3] {
        match self.draws {
            Draws::Redis(recipe) => [recipe.faults, recipe.other_faults, &[]],
            Draws::Etcd(recipe) | Draws::Register(recipe) => [recipe.faults, recipe.other_faults, &[]],
            Draws::Zookeeper(recipe, servers) => [recipe.faults, recipe.other_faults, servers.faults],
        }
    }

    const fn offers(&self, need: FaultNeed) -> bool {
        match (need, self.draws) {
            (FaultNeed::Beyond, _) => matches!(self.bounds, Bounds::Beyond(_)),
            (FaultNeed::Store(backend), _) => self.backend as u8 == backend as u8,
            (FaultNeed::Queue, draws) => !matches!(draws, Draws::Redis(_)),
            (FaultNeed::Nodes(least), Draws::Redis(RedisRecipe { nodes, .. })) => at_least(nodes, least),
            (
                FaultNeed::Nodes(least),
                Draws::Etcd(QueueRecipe { members, .. }) | Draws::Register(QueueRecipe { members, .. }),
            ) => at_least(members, least),
            (FaultNeed::Nodes(least), Draws::Zookeeper(_, EnsembleRecipe { members, .. })) => at_least(members, least),
            (FaultNeed::Tls, Draws::Redis(RedisRecipe { tls, .. })) => matches!(tls, Often::Always),
            (FaultNeed::Tls, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _) | Draws::Register(recipe)) => {
                matches!(recipe.tls, Often::Always)
            }
            (FaultNeed::Login, Draws::Redis(recipe)) => recipe.login || recipe.credentials,
            (FaultNeed::Login, Draws::Etcd(recipe) | Draws::Register(recipe)) => !matches!(recipe.login, Often::Never),
            (FaultNeed::Login, Draws::Zookeeper(_, servers)) => !matches!(servers.login, Often::Never),
            (FaultNeed::Credentials, Draws::Redis(recipe)) => recipe.credentials,
            (FaultNeed::Credentials, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _) | Draws::Register(recipe)) => {
                recipe.credentials
            }
            (FaultNeed::Stale, Draws::Redis(recipe)) => recipe.stale,
            (FaultNeed::Stale, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _) | Draws::Register(recipe)) => {
                recipe.stale
            }
        }
    }

    /// Panics, and so does not compile, if a fault needs what the scenario does not offer.
    pub(super) const fn check(&self) {
        let lists = self.fault_lists();
        let (mut list, mut fault, mut need) = (0, 0, 0);
        while list < lists.len() {
            while fault < lists[list].len() {
                let FaultEntry { name, needs, .. } = lists[list][fault].0;
                while need < needs.len() {
                    assert!(self.offers(needs[need]), "{}", name);
                    need += 1;
                }
                (fault, need) = (fault + 1, 0);
            }
            (list, fault) = (list + 1, 0);
        }
    }
}

const fn at_least(choices: &[usize], least: usize) -> bool {
    let mut i = 0;
    while i < choices.len() {
        if choices[i] < least {
            return false;
        }
        i += 1;
    }
    true
}

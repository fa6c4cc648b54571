//! What faults need of the scenarios that list them.

use super::faults::{Fault, Need};
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
    const fn fault_lists(&self) -> [&'static [(Fault, u64)]; 3] {
        match self.draws {
            Draws::Redis(recipe) => [recipe.faults, recipe.other_faults, &[]],
            Draws::Etcd(recipe) => [recipe.faults, recipe.other_faults, &[]],
            Draws::Zookeeper(recipe, servers) => [recipe.faults, recipe.other_faults, servers.faults],
        }
    }

    const fn offers(&self, need: Need) -> bool {
        match (need, self.draws) {
            (Need::Beyond, _) => matches!(self.bounds, Bounds::Beyond(_)),
            (Need::Store(backend), _) => self.backend as u8 == backend as u8,
            (Need::Queue, draws) => !matches!(draws, Draws::Redis(_)),
            (Need::Nodes(least), Draws::Redis(RedisRecipe { nodes, .. })) => at_least(nodes, least),
            (Need::Nodes(least), Draws::Etcd(QueueRecipe { members, .. })) => at_least(members, least),
            (Need::Nodes(least), Draws::Zookeeper(_, EnsembleRecipe { members, .. })) => at_least(members, least),
            (Need::Tls, Draws::Redis(RedisRecipe { tls, .. })) => matches!(tls, Often::Always),
            (Need::Tls, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _)) => {
                matches!(recipe.tls, Often::Always)
            }
            (Need::Login, Draws::Redis(recipe)) => recipe.login || recipe.credentials,
            (Need::Login, Draws::Etcd(recipe)) => !matches!(recipe.login, Often::Never),
            (Need::Login, Draws::Zookeeper(_, servers)) => !matches!(servers.login, Often::Never),
            (Need::Credentials, Draws::Redis(recipe)) => recipe.credentials,
            (Need::Credentials, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _)) => recipe.credentials,
            (Need::Stale, Draws::Redis(recipe)) => recipe.stale,
            (Need::Stale, Draws::Etcd(recipe) | Draws::Zookeeper(recipe, _)) => recipe.stale,
        }
    }

    /// Panics, and so does not compile, if a fault needs what the scenario does not offer.
    pub(super) const fn check(&self) {
        let lists = self.fault_lists();
        let (mut list, mut fault, mut need) = (0, 0, 0);
        while list < lists.len() {
            while fault < lists[list].len() {
                let Fault { name, needs, .. } = lists[list][fault].0;
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

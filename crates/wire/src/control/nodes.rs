//! The nodes of a job as each agent is told of them: which one it is, and where the others are.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Numbers of nodes are below this, even those of nodes that come while the job runs.
pub const MOST_NODES: u32 = 1 << 16;

/// The plan of a job on several nodes. A job on one node has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// The node that is told this, from 0.
    pub own: u32,
    /// Grows with each command that empties logs on all nodes: frames between agents carry the epoch that they belong
    /// to.
    pub epoch: u64,
    /// Per node: the addresses where its agent listens for others' agents, the one to try first in front.
    pub mesh: Vec<Vec<SocketAddr>>,
    /// Per node: the port at which its agent gives and takes copies of images.
    #[serde(default)]
    pub copies: Vec<u16>,
    /// Whether nodes encrypt what they say to one another.
    #[serde(default)]
    pub is_encrypted: bool,
    /// Per rank: the node that it runs on.
    pub of_rank: Vec<u32>,
}

impl Nodes {
    /// Whether the rank runs on the node that is told. True for ranks that the plan does not name: without a plan there
    /// is one node.
    pub fn is_here(&self, rank: usize) -> bool {
        self.of_rank.get(rank).is_none_or(|node| *node == self.own)
    }

    /// Its node has no address any more.
    pub fn is_lost(&self, rank: usize) -> bool {
        let mesh = self.of_rank.get(rank).and_then(|node| self.mesh.get(*node as usize));
        !self.is_here(rank) && mesh.is_none_or(Vec::is_empty)
    }

    /// Where the agent of a node gives and takes copies of images.
    pub fn copies_at(&self, node: u32) -> Vec<SocketAddr> {
        let place = node as usize;
        let known = self.mesh.get(place).zip(self.copies.get(place));
        let addresses = known.map(|(mesh, port)| mesh.iter().map(|address| SocketAddr::new(address.ip(), *port)));
        addresses.map_or(Vec::new(), Iterator::collect)
    }

    /// The ranks of a node, in ascending order.
    pub fn ranks_of(&self, node: u32) -> impl Iterator<Item = usize> {
        let of_rank = self.of_rank.iter().enumerate();
        of_rank.filter(move |(_, of)| **of == node).map(|(rank, _)| rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_who_is_where() {
        let plan = Nodes {
            own: 1,
            epoch: 0,
            mesh: vec![vec!["127.0.0.1:1".parse().unwrap()], vec!["[::1]:2".parse().unwrap()]],
            copies: vec![3, 4],
            is_encrypted: true,
            of_rank: vec![0, 1, 0, 1],
        };
        assert_eq!((0..4).filter(|rank| plan.is_here(*rank)).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(plan.ranks_of(0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(plan.copies_at(1), ["[::1]:4".parse().unwrap()]);
        assert_eq!(plan.copies_at(2), []);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Nodes>(&text).unwrap(), plan);
    }
}

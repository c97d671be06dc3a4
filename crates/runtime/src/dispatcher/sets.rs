//! Sets of images whose pieces of parity are being made, and images that are being made anew.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use resurgo_protocol::{Command, Node};

/// A set whose pieces are being made.
pub struct Making {
    pub wave: u64,
    pub ranks: Vec<u32>,
    pub holders: Vec<Node>,
    /// They have no piece yet.
    waits: BTreeSet<Node>,
    pub bytes: u64,
    pub time: Duration,
}

/// What was ordered and has not been answered.
#[derive(Default)]
pub struct Sets {
    making: HashMap<u64, Making>,
    rebuilding: HashSet<(u32, u64)>,
}

impl Sets {
    /// The coordinator gives a command.
    pub fn mind(&mut self, command: &Command) {
        match command {
            Command::Encode {
                number,
                set,
                members,
                holders,
            } => {
                let making = Making {
                    wave: *number,
                    ranks: members.clone(),
                    holders: holders.clone(),
                    waits: holders.iter().copied().collect(),
                    bytes: 0,
                    time: Duration::ZERO,
                };
                self.making.insert(*set, making);
            }
            Command::CollectSet { set, .. } => drop(self.making.remove(set)),
            Command::Rebuild { rank, number, .. } => drop(self.rebuilding.insert((*rank, *number))),
            _ => {}
        }
    }

    /// A node has made the pieces. It says so before it and others say that they have theirs.
    pub fn made(&mut self, set: u64, bytes: u64, time: Duration) {
        if let Some(making) = self.making.get_mut(&set) {
            (making.bytes, making.time) = (bytes, time);
        }
    }

    /// The node has its piece. Returns the set if that was the last one.
    pub fn has_piece(&mut self, set: u64, node: Node) -> Option<Making> {
        let making = self.making.get_mut(&set)?;
        making.waits.remove(&node);
        match making.waits.is_empty() {
            true => self.making.remove(&set),
            false => None,
        }
    }

    /// A piece is not there. Returns whether the set was being made.
    pub fn lacks_piece(&mut self, set: u64) -> bool {
        self.making.remove(&set).is_some()
    }

    /// An image has come, or will not. Returns whether it was to be made anew.
    pub fn was_rebuilt(&mut self, rank: u32, number: u64) -> bool {
        self.rebuilding.remove(&(rank, number))
    }
}

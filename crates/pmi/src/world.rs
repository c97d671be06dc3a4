//! A world: the ranks of one launch or of one spawn, with the key-value space and the barriers they share. MPI calls it
//! MPI_COMM_WORLD.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Name of the key-value space of a job's world number `world`; 0 is the one that was launched.
pub fn kvs_name(job: &str, world: usize) -> String {
    match world {
        0 => job.to_string(),
        // As long for every world: a name's length must not move anything in the memory of a rank.
        _ => format!("{job}_{world:04}"),
    }
}

/// Where a rank of the job belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// 0: the ranks that were launched.
    pub world: usize,
    /// Its rank in that world, and how many that has.
    pub rank: usize,
    pub size: usize,
    pub kvs_name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct World {
    pub kvs_name: String,
    /// Every value a key has had, oldest first.
    pub kvs: HashMap<String, Vec<String>>,
    /// The job's number of its rank 0; its other ranks follow.
    pub first: usize,
    /// Per rank, the number of the program it runs.
    pub appnums: Vec<u32>,
    pub barriers_done: u64,
    pub arrived: usize,
}

impl World {
    pub fn new(kvs_name: String, first: usize, appnums: Vec<u32>) -> World {
        World {
            kvs_name,
            kvs: HashMap::new(),
            first,
            appnums,
            barriers_done: 0,
            arrived: 0,
        }
    }

    pub fn size(&self) -> usize {
        self.appnums.len()
    }

    /// The job's numbers of its ranks.
    pub fn ranks(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.size()
    }
}

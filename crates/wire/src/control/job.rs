//! A job as the agent is told of it: its programs, and what the user wants.

use std::ffi::OsString;

use resurgo_protocol::group::Groups;
pub use resurgo_protocol::group::formation::Grouping;
pub use resurgo_protocol::kinds::by_number as protocol_number;
use resurgo_protocol::{Protocol, kinds};
use serde::{Deserialize, Serialize};

use super::Nodes;
use crate::node_memory;
use crate::services::Services;

/// Everything an agent has to know about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the key-value space, different for every job on the machine.
    pub name: String,
    /// The programs that are launched; those that ranks spawn follow when it comes to that.
    pub programs: Vec<Program>,
    /// Most ranks the job can ever have.
    pub most_ranks: usize,
    #[serde(with = "protocol_number")]
    pub protocol: Protocol,
    pub tolerate_node: bool,
    /// Most segments of log a rank holds in memory.
    pub log_segments: usize,
    pub prefault_segments: u32,
    pub spin_ns: u64,
    /// Directory where full segments go when the log memory is used up; nowhere when absent.
    pub spill_directory: Option<OsString>,
    /// How piggybacks are kept small (causal): [`crate::node_memory::REDUCTIONS`] by number.
    #[serde(default)]
    pub reduction: u32,
    /// How stable clocks spread where there are several event loggers: [`crate::node_memory::CLOCK_SPREADS`] by number.
    #[serde(default)]
    pub clock_spread: u32,
    #[serde(default)]
    pub services: Services,
    pub key: [u8; 32],
    pub stdin: Stdin,
    /// Images of ranks may be asked for.
    pub images: bool,
    #[serde(flatten)]
    pub image_files: ImageFiles,
    /// The processors of ranks, which take them in turn; none: ranks run where this process may.
    #[serde(default)]
    pub cpus: Vec<Vec<u32>>,
    /// On several nodes each agent finds the processors of its own machine by these: what is written at `-bind-to`, and at `-map-by`.
    #[serde(default)]
    pub binding: Vec<String>,
    /// Soft and hard limit of open files that ranks get.
    pub open_files: (u64, u64),
    /// How ranks are put into groups that are copied one after the other (group).
    #[serde(default)]
    pub groups: Grouping,
    /// Most groups that write their images at the same time.
    #[serde(default)]
    pub groups_at_once: u32,
    #[serde(flatten)]
    pub addresses: Addresses,
    /// (rank, messages): the rank's first life kills itself after so many sends and deliveries.
    pub message_faults: Vec<(usize, u64)>,
    /// (rank, messages): an image of the rank is taken after so many sends and deliveries.
    pub image_at_messages: Vec<(usize, u64)>,
    /// Who is where; absent: all ranks run on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
}

/// Where and how images are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageFiles {
    /// Directory below which image files are written; nowhere when absent.
    #[serde(rename = "checkpoint_directory")]
    pub directory: Option<OsString>,
    /// Level of zstd at which image files are compressed; absent: they are not.
    #[serde(rename = "checkpoint_compress")]
    pub compress: Option<u8>,
    /// Image files stay when the job has ended well.
    #[serde(rename = "checkpoint_keep")]
    pub keep: bool,
    /// Images stay in memory beside their files, so that only a rank that has lost its own reads one (MPICH-V/CL's copies on
    /// local disks; Bouteiller 2006, §III.E). Without files they always do.
    #[serde(default = "yes")]
    pub local_copies: bool,
    /// Each goes to another node as well. Where there is no directory they are files in memory for that.
    #[serde(default)]
    pub partners: bool,
    /// All nodes see one directory.
    #[serde(default)]
    pub shared: bool,
}

impl ImageFiles {
    /// Images are files.
    pub fn is_any(&self) -> bool {
        self.directory.is_some() || self.partners
    }
}

/// Where the memory of ranks lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Addresses {
    /// Switch address randomisation off, so that a new life has the memory layout of the last. Under coordinated protocols, where
    /// all begin anew together, it is a courtesy.
    #[serde(rename = "fixed_addresses")]
    pub are_fixed: bool,
    /// Where ranks map the node memory.
    pub place: usize,
    /// Soft limit of the stack (`u64::MAX`: none), and whether the legacy layout is asked for. Both decide where the kernel places a
    /// program's memory, so a job that goes on has them as they were.
    pub stack_limit: u64,
    pub legacy_layout: bool,
}

fn yes() -> bool {
    true
}

impl Job {
    /// The processors of a rank, as the kernel writes lists; none when it is not bound. The ranks of each node take them in turn.
    pub fn cpus_of(&self, rank: usize) -> Option<String> {
        let nodes = self.nodes.as_ref();
        let turn = nodes.map_or(rank, |nodes| {
            nodes.ranks_of(nodes.own).filter(|other| *other < rank).count()
        });
        let cpus = self.cpus.get(turn.checked_rem(self.cpus.len())?)?;
        let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
        Some(numbers.join(","))
    }

    /// How many nodes the job is on.
    pub fn node_count(&self) -> usize {
        self.nodes.as_ref().map_or(1, |nodes| nodes.mesh.len())
    }

    /// Determinants are piggybacked, so what a rank has delivered may be known to others only.
    pub fn piggybacks(&self) -> bool {
        self.protocol.piggybacks(self.tolerate_node)
    }

    /// Of the node memory, with room for `ranks` ranks, or as many as there may be.
    pub fn layout(&self, ranks: usize) -> node_memory::Layout {
        node_memory::Layout {
            size: self.most_ranks.max(ranks),
            log_segments: self.log_segments,
            spills: self.spill_directory.is_some(),
            piggybacks: self.piggybacks(),
        }
    }

    /// The ranks of a job of so many that have their waves, or each their images, together.
    pub fn units(&self, ranks: usize) -> Groups {
        match self.protocol.waves() {
            kinds::Waves::OfEachGroup => self.groups.lasting(ranks),
            _ => Groups::one(ranks),
        }
    }
}

/// A program of the job and the ranks that run it, in rank order after those of the programs before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub ranks: usize,
    /// The file to execute.
    pub path: OsString,
    pub arguments: Vec<OsString>,
    /// Environment of its ranks, in order, without what differs from rank to rank.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: OsString,
    /// There is no MPI in it.
    #[serde(default)]
    pub is_plain: bool,
    /// The world that its ranks belong to: 0 is the one that was launched, each spawn makes another.
    #[serde(default)]
    pub world: usize,
}

/// Per rank, the number of its program.
pub fn appnums(programs: &[Program]) -> Vec<u32> {
    let numbered = programs.iter().enumerate();
    numbered
        .flat_map(|(number, program)| std::iter::repeat_n(number as u32, program.ranks))
        .collect()
}

/// A program that a rank wants to spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedProgram {
    pub ranks: usize,
    /// As the caller wrote it: a path, or a name to be searched for.
    pub name: String,
    pub arguments: Vec<String>,
    /// The caller's info keys and values.
    pub info: Vec<(String, String)>,
}

/// Where rank 0 gets its standard input from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    Nothing,
    /// A regular file that every life opens again, and the offset at which it starts.
    File(OsString, u64),
    /// The dispatcher sends it to each life anew (`ToAgent::Stdin`).
    Stream,
}

//! A job as an agent is told of it: its programs, and what the user wants.

use std::ffi::OsString;

use resurgo_protocol::group::Groups;
pub use resurgo_protocol::group::formation::Grouping;
pub use resurgo_protocol::kinds::by_number as protocol_number;
use resurgo_protocol::modes::Modes;
use resurgo_protocol::placement::Parity;
use resurgo_protocol::{Protocol, kinds};
use serde::{Deserialize, Serialize};

use super::Nodes;
use crate::node_memory;
use crate::services::Services;

/// Everything that an agent must know about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the key-value space, different for every job on the machine.
    pub name: String,
    /// The launched programs; programs that ranks spawn are added later.
    pub programs: Vec<Program>,
    /// The most ranks that the job can ever have.
    pub most_ranks: usize,
    #[serde(with = "protocol_number")]
    pub protocol: Protocol,
    pub tolerate_node: bool,
    /// The most segments of log that a rank holds in memory.
    pub log_segments: usize,
    pub prefault_segments: u32,
    pub spin_ns: u64,
    /// Directory for full segments when the log memory is used up. Absent: they stay in memory.
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
    /// Whether images of ranks may be asked for.
    pub images: bool,
    #[serde(flatten)]
    pub image_files: ImageFiles,
    /// The processors of ranks, which take them in turn. None: ranks run where this process may.
    #[serde(default)]
    pub cpus: Vec<Vec<u32>>,
    /// On several nodes each agent finds its own machine's processors by these: the words of `-bind-to` and of
    /// `-map-by`.
    #[serde(default)]
    pub binding: Vec<String>,
    /// Soft and hard limit of open files that ranks get.
    pub open_files: (u64, u64),
    /// How ranks form groups that are copied one after the other (group).
    #[serde(default)]
    pub groups: Grouping,
    /// The most groups that write their images at the same time.
    #[serde(default)]
    pub groups_at_once: u32,
    #[serde(flatten)]
    pub addresses: Addresses,
    /// (rank, messages): the rank's first life kills itself after so many sends and deliveries.
    pub message_faults: Vec<(usize, u64)>,
    /// (rank, messages): an image of the rank is taken after so many sends and deliveries.
    pub image_at_messages: Vec<(usize, u64)>,
    /// Where ranks run. Absent: all on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
}

/// Where and how images are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageFiles {
    /// Directory below which image files are written. Absent: there are none.
    #[serde(rename = "checkpoint_directory")]
    pub directory: Option<OsString>,
    /// Level of zstd for image files. Absent: they are not compressed.
    #[serde(rename = "checkpoint_compress")]
    pub compress: Option<u8>,
    /// Image files stay after the job has ended well.
    #[serde(rename = "checkpoint_keep")]
    pub keep: bool,
    /// Images stay in memory beside their files, so that only a rank that has lost its own reads one (MPICH-V/CL's
    /// copies on local disks; Bouteiller 2006, §III.E). Without files they always do.
    #[serde(default = "yes")]
    pub local_copies: bool,
    /// Each image also goes to other nodes. Without a directory, images are files in memory for that.
    #[serde(default)]
    pub partners: bool,
    /// To so many, if there are as many.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Images of waves have parity instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity: Option<Parity>,
    /// The most that a node sends of either, in bytes a second. Absent: half of its link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_rate: Option<u64>,
    /// All nodes see one directory.
    #[serde(default)]
    pub shared: bool,
    /// On several nodes ranks have images alone, and logs that no file has: a suspension has a wave.
    #[serde(default)]
    pub waves_to_suspend: bool,
    /// The user says where images go, and is told what each level is good for.
    #[serde(default)]
    pub are_named: bool,
    /// Where recorded waves are copied, as `--store` names it: one place each.
    #[serde(default)]
    pub places: Vec<String>,
    #[serde(default)]
    pub secret: Secret,
}

/// Files of recorded waves go to a place of the job ([`ImageFiles::places`]), as a part of a generation there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flush {
    pub place: usize,
    pub generation: String,
    /// The oldest, and the newest.
    pub waves: (u64, u64),
}

/// What places of the job need and nobody else may know, masked by the job's key: whoever hears connections does not
/// learn it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// `key`: that of the job, which masks one secret only.
    pub fn masked(secret: &[u8], key: &[u8; 32]) -> Secret {
        let mut mask = vec![0; secret.len()];
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(b"resurgo 2026-11-27 mask of a store's key");
        hasher.finalize_xof().fill(&mut mask);
        Secret(secret.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect())
    }

    /// The secret; nothing if there is none.
    pub fn opened(&self, key: &[u8; 32]) -> Vec<u8> {
        Secret::masked(&self.0, key).0
    }
}

fn one() -> u32 {
    1
}

impl ImageFiles {
    /// Whether images are files in memory of which other nodes have whole copies, and are nowhere else.
    pub fn are_memory(&self) -> bool {
        self.partners && self.directory.is_none() && self.parity.is_none() && self.places.is_empty()
    }

    /// Whether images are files.
    pub fn is_any(&self) -> bool {
        self.directory.is_some() || self.partners
    }
}

/// Where the memory of ranks lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Addresses {
    /// Switch address randomisation off, so that a new life has the memory layout of the last. Coordinated protocols do
    /// not need it, as all ranks begin anew together.
    #[serde(rename = "fixed_addresses")]
    pub are_fixed: bool,
    /// Address at which ranks map the node memory.
    pub place: usize,
    /// Soft limit of the stack (`u64::MAX`: none), and whether the user asks for the legacy layout. Both decide where
    /// the kernel places a program's memory, so a job that goes on keeps them.
    pub stack_limit: u64,
    pub legacy_layout: bool,
    #[serde(default)]
    pub trace: Trace,
}

/// The rings of traces in the node memory ([`crate::trace`]). A job that goes on keeps their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trace {
    /// Of each ring; 0: there are none.
    pub records: usize,
    /// This run of the job is traced.
    pub is_on: bool,
}

fn yes() -> bool {
    true
}

impl Job {
    /// When it, or its first run, was started: in nanoseconds since 1970. Its name ends with that, in hexadecimal; 0: it
    /// has another name.
    pub fn began_ns(&self) -> u64 {
        let last = self.name.rsplit('_').next().unwrap_or_default();
        u64::from_str_radix(last, 16).unwrap_or(0)
    }

    /// The processors of a rank, in the kernel's notation; none if it is not bound. Each node's ranks take them in
    /// turn.
    pub fn cpus_of(&self, rank: usize) -> Option<String> {
        let nodes = self.nodes.as_ref();
        let turn = nodes.map_or(rank, |nodes| {
            nodes.ranks_of(nodes.own).filter(|other| *other < rank).count()
        });
        let cpus = self.cpus.get(turn.checked_rem(self.cpus.len())?)?;
        let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
        Some(numbers.join(","))
    }

    /// The program deals with failures itself.
    pub fn survives(&self) -> bool {
        self.programs.first().is_some_and(|program| program.survives)
    }

    /// How it deals with them, as in [`node_memory::header::SURVIVORS`].
    pub fn survivors(&self) -> u64 {
        let modes = self.programs.first().and_then(|program| program.modes);
        modes.map_or(u64::from(self.survives()), Modes::word)
    }

    /// How many nodes the job is on.
    pub fn node_count(&self) -> usize {
        self.nodes.as_ref().map_or(1, |nodes| nodes.mesh.len())
    }

    /// Whether determinants are piggybacked: then perhaps only other ranks know what a rank has delivered.
    pub fn piggybacks(&self) -> bool {
        self.protocol.piggybacks(self.tolerate_node)
    }

    /// Nodes are lost with records and logs, and later lives of their ranks begin on others while the other ranks go
    /// on. They begin from images on other nodes, with the logs that lie beside.
    pub fn moves_ranks(&self) -> bool {
        self.tolerate_node && self.nodes.is_some() && self.protocol.recovers_alone_elsewhere()
    }

    /// What ranks note of files is kept off their nodes: others may be lost, and later lives begin elsewhere. Ranks say so
    /// by the way of their images.
    pub fn keeps_file_notes(&self) -> bool {
        self.nodes.is_some() && self.images
    }

    /// The layout of the node memory, with room for `ranks` ranks, or for as many as there may be.
    pub fn layout(&self, ranks: usize) -> node_memory::Layout {
        node_memory::Layout {
            size: self.most_ranks.max(ranks),
            log_segments: self.log_segments,
            spills: self.spill_directory.is_some(),
            piggybacks: self.piggybacks(),
            trace_records: self.addresses.trace.records,
            undoes: self.protocol.can_return_together() || self.image_files.waves_to_suspend,
            rereads: self.protocol.repeats_reads(),
        }
    }

    /// In a job of so many ranks: the ranks that have their waves, or each their images, together.
    pub fn units(&self, ranks: usize) -> Groups {
        match self.protocol.waves() {
            kinds::Waves::OfEachGroup => self.groups.lasting(ranks),
            _ => Groups::one(ranks),
        }
    }
}

/// A program of the job and the ranks that run it. They follow, in rank order, those of the programs before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub ranks: usize,
    /// The file to execute.
    pub path: OsString,
    pub arguments: Vec<OsString>,
    /// Environment of its ranks, in order, without what differs from rank to rank.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: OsString,
    /// It has no MPI.
    #[serde(default)]
    pub is_plain: bool,
    /// It deals with failures itself.
    #[serde(default)]
    pub survives: bool,
    /// By FT-MPI's rules; none: by ULFM's.
    #[serde(default)]
    pub modes: Option<Modes>,
    /// The world of its ranks: 0 is the launched one; each spawn makes another.
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

/// The source of rank 0's standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    Nothing,
    /// A regular file that every life opens again, and the offset at which it starts.
    File(OsString, u64),
    /// The dispatcher sends it to each life anew (`ToAgent::Stdin`).
    Stream,
}

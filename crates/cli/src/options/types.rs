//! The content of a command line.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_protocol::Protocol;
use resurgo_protocol::modes::Modes;
use resurgo_protocol::placement::Parity;
use resurgo_runtime::dispatcher::{Launcher, Listeners, Order, Period, Reports};
use resurgo_runtime::pattern::Pattern;
use resurgo_store::Described;
use resurgo_wire::handshake::Server;
use resurgo_wire::trace;

use resurgo_runtime::binding::Unit;

/// The part of `resurgo run`'s environment to pass on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inherit {
    All,
    Nothing,
    Listed(Vec<String>),
}

/// Hosts that the user asks for, with the option as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    Listed(String, String),
    InFile(String, PathBuf),
}

/// One program of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramOptions {
    /// 0: not given; set once it is known where they run.
    pub ranks: usize,
    /// Hosts of its own; none: it runs on those of the job. The first program has none: its hosts are the job's.
    pub hosts: Vec<Hosts>,
    pub directory: Option<PathBuf>,
    pub inherit: Option<Inherit>,
    pub environment: Vec<(OsString, OsString)>,
    /// The program's name and arguments.
    pub arguments: Vec<OsString>,
}

impl ProgramOptions {
    pub fn new() -> ProgramOptions {
        ProgramOptions {
            ranks: 0,
            hosts: Vec::new(),
            directory: None,
            inherit: None,
            environment: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

/// The whole command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub programs: Vec<ProgramOptions>,
    pub environment: Environment,
    pub nodes: Nodes,
    pub binding: Binding,
    pub output: Output,
    pub ends: Ends,
    pub protocol: Protocol,
    /// What `--protocol auto` means for this job, if the user named auto or the choice is unusual.
    pub choice: Option<&'static str>,
    pub tolerate_node: bool,
    pub loggers: Loggers,
    pub memories: Memories,
    pub groups: Groups,
    pub log: Log,
    pub images: Images,
    /// Go on with the suspended job of this command line, if there is one.
    pub resume_if_any: bool,
    /// As written; their meaning depends on the number of ranks.
    pub faults: Vec<String>,
    /// Kinds of memory that MPI is asked for.
    pub memory_alloc_kinds: Option<String>,
    /// Absent: chosen from the number of cores.
    pub spin: Option<Duration>,
    /// Configuration files are left out.
    pub without_files: bool,
    /// The names of the job's options that the command line, the environment or a file gives.
    pub given: Vec<&'static str>,
}

/// What all programs get from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    pub inherit: Inherit,
    pub set: Vec<(OsString, OsString)>,
    /// Variables that all programs get, even if they get nothing else of it.
    pub exported: Vec<String>,
}

/// Where ranks run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Those of all programs without hosts of their own.
    pub hosts: Vec<Hosts>,
    /// How many nodes, all on this machine.
    pub count: Option<usize>,
    /// Ranks that a node takes in one turn, instead of its slots.
    pub per_node: Option<u32>,
    /// How many of the nodes, the last ones, are kept for ranks whose nodes are lost.
    pub spares: usize,
    /// How many nodes may be missing when the job begins.
    pub may_miss: usize,
    /// Where the token for joining nodes is, or goes; and the port where they join.
    pub token_file: Option<PathBuf>,
    pub join_port: u16,
    /// How a node hears that it will be taken away.
    pub preempt_signal: Option<Signal>,
    pub preempt_file: Option<PathBuf>,
    pub preempt_url: Option<String>,
    /// The interface whose addresses nodes announce.
    pub interface: Option<String>,
    /// Absent: found automatically.
    pub launcher: Option<Launcher>,
    /// Used instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// How long a node may be silent.
    pub lease: Duration,
    /// How long its ranks then stand still before they end.
    pub hold: Duration,
    /// Whether nodes encrypt what they say to one another.
    pub is_encrypted: bool,
}

impl Nodes {
    /// Whether nodes are named, beyond how they are used.
    pub fn names_nodes(&self) -> bool {
        !self.hosts.is_empty() || self.count.is_some()
    }

    /// Makes host files relative to the current directory, wherever the job was started.
    pub fn name_files_from_here(&mut self) -> Result<(), String> {
        for hosts in &mut self.hosts {
            if let Hosts::InFile(option, file) = hosts {
                let absolute = std::path::absolute(&*file);
                *file = absolute.map_err(|error| format!("{option} {}: {error}", file.display()))?;
            }
        }
        Ok(())
    }

    /// Forgets the nodes: a job that goes on runs on others.
    pub fn forget_nodes(&mut self) {
        (self.hosts, self.count, self.spares) = (Vec::new(), None, 0);
        (self.launcher, self.launcher_file) = (None, None);
        self.per_node = None;
    }
}

/// Which processors ranks run on, and in which order they take them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// As written, and the meaning.
    pub to: Option<(String, Unit)>,
    pub by: Option<(String, Unit)>,
}

impl Binding {
    /// As written; the order alone means nothing.
    pub fn words(&self) -> Vec<String> {
        let by = self.by.iter().filter(|_| self.to.is_some());
        self.to.iter().chain(by).map(|(word, _)| word.clone()).collect()
    }
}

/// What is printed and written, and in which form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// The text before every line of output.
    pub label: Option<Pattern>,
    /// Files for standard output and standard error of each rank.
    pub files: [Option<Pattern>; 2],
    pub quiet: bool,
    pub verbose: bool,
    /// Print the exit code of every rank at the end.
    pub exit_codes: bool,
    pub reports: Reports,
    /// Bytes for the trace of each rank, if there is one.
    pub trace_memory: u64,
    /// Where browsers find the job's page.
    pub web: Option<SocketAddr>,
}

/// When the job ends early.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    pub restarts: u64,
    pub restarts_per_rank: u64,
    /// Time after its start.
    pub timeout: Option<Duration>,
    /// How long ranks may take to end after a signal has ended the job.
    pub grace: Duration,
    pub time_limit: Option<TimeLimit>,
    /// The program deals with failures itself.
    pub survives: bool,
    /// By FT-MPI's rules.
    pub modes: Option<Modes>,
    /// It is told of a rank's failure after so many restarts of the rank.
    pub after: u64,
}

/// Event loggers, for jobs that tolerate the loss of a node, and what messages carry for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loggers {
    pub count: usize,
    /// Where the first of them listens.
    pub address: SocketAddr,
    /// How piggybacks are kept small.
    pub reduction: u32,
    /// How stable clocks spread between several event loggers.
    pub clock_spread: u32,
}

/// Channel memories, under channel-memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memories {
    pub count: usize,
    /// Where the first of them listens.
    pub address: SocketAddr,
    /// Hosts that run them, and how many each; none: they run beside `resurgo run`.
    pub hosts: Vec<(String, u32)>,
}

/// Groups of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// The value of `--groups`, as written.
    pub how: Option<String>,
    pub size: Option<usize>,
    /// The most groups that write their images at the same time.
    pub at_once: u32,
}

/// Message logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// Bytes. Absent: chosen from the machine's memory.
    pub memory: Option<u64>,
    pub prefault: u64,
    pub spill_directory: Option<PathBuf>,
}

/// Images of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// How often each rank gets an image.
    pub period: Period,
    /// The part of the job's time that images may take.
    pub share: f64,
    /// As written: see [`super::policy`].
    pub policy: String,
    pub order: Order,
    /// The most images that are taken or written at the same time.
    pub in_flight: Option<usize>,
    /// The job's mean time between failures, from which the best period follows.
    pub mtbf: Option<Duration>,
    /// As written, like the faults.
    pub at: Vec<String>,
    /// The signal that takes images now; other signals go to the ranks.
    pub signal: Option<Signal>,
    /// Where images are also written into files.
    pub directory: Option<PathBuf>,
    /// Level of zstd.
    pub compress: Option<u8>,
    pub keep: bool,
    /// Images stay in memory beside their files.
    pub local_copies: bool,
    /// Where recorded waves are copied.
    pub places: Vec<Described>,
    /// The level that is always there is named, too: the images of each node itself.
    pub names_local: bool,
    /// So many other nodes have each image.
    pub peers: Option<u32>,
    /// Or parity of images of waves.
    pub parity: Option<Parity>,
    /// The most that copies or pieces take of each node's link, in bytes a second.
    pub copy_rate: Option<u64>,
    /// The file with the key that seals what goes there.
    pub store_key: Option<PathBuf>,
}

impl Images {
    /// The user says where images go.
    pub fn names_levels(&self) -> bool {
        self.names_local || self.peers.is_some() || !self.places.is_empty()
    }

    pub fn forget_levels(&mut self) {
        (self.names_local, self.peers, self.copy_rate) = (false, None, None);
        self.places.clear();
    }
}

/// When the job must be off the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// This long after its start.
    After(Duration),
    /// When Slurm ends the present job.
    Slurm,
}

/// What a command line asks for.
#[derive(Debug, PartialEq)]
pub enum Request {
    Run(Box<Options>),
    Help,
    Version,
}

const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Options {
    /// No option is given yet, not even a default.
    pub fn empty() -> Options {
        Options {
            programs: Vec::new(),
            environment: Environment {
                inherit: Inherit::All,
                set: Vec::new(),
                exported: Vec::new(),
            },
            nodes: Nodes::default(),
            binding: Binding::default(),
            output: Output::default(),
            ends: Ends::default(),
            protocol: Protocol::Auto,
            choice: None,
            tolerate_node: false,
            loggers: Loggers {
                count: 0,
                address: NO_ADDRESS,
                reduction: 0,
                clock_spread: 0,
            },
            memories: Memories {
                count: 0,
                address: NO_ADDRESS,
                hosts: Vec::new(),
            },
            groups: Groups::default(),
            log: Log::default(),
            images: Images {
                period: Period::Never,
                share: 0.0,
                policy: String::new(),
                order: Order::Periodic,
                in_flight: None,
                mtbf: None,
                at: Vec::new(),
                signal: None,
                directory: None,
                compress: None,
                keep: false,
                local_copies: false,
                places: Vec::new(),
                names_local: false,
                peers: None,
                parity: None,
                copy_rate: None,
                store_key: None,
            },
            resume_if_any: false,
            faults: Vec::new(),
            memory_alloc_kinds: None,
            spin: None,
            without_files: false,
            given: Vec::new(),
        }
    }

    /// Whether its images are of use when their nodes are lost. Those of single ranks are not without the logs there.
    pub fn outlives_nodes(&self) -> bool {
        let alone = self.tolerate_node && self.protocol.recovers_alone_elsewhere();
        self.has_images() && (self.protocol.images_outlive_nodes() || alone)
    }

    /// Whether the command line or the environment gives this option of the job.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// Whether ranks can have images.
    pub fn has_images(&self) -> bool {
        self.protocol.has_images() && !self.ends.survives
    }

    /// How many event loggers the job has.
    pub fn logger_count(&self) -> usize {
        if self.tolerate_node { self.loggers.count } else { 0 }
    }

    /// Records of each rank's trace; 0: the job has none.
    pub fn trace_records(&self) -> usize {
        let traced = self.output.reports.trace.as_ref();
        traced.map_or(0, |_| trace::records(self.output.trace_memory))
    }

    /// The servers that the job has.
    pub fn servers(&self) -> Vec<Listeners> {
        let memories = match self.protocol {
            Protocol::ChannelMemory if self.memories.hosts.is_empty() => self.memories.count,
            _ => 0,
        };
        let kinds = [
            (Server::EventLogger, self.logger_count(), self.loggers.address),
            (Server::ChannelMemory, memories, self.memories.address),
        ];
        let wanted = kinds.into_iter().filter(|(_, count, _)| *count > 0);
        wanted
            .map(|(kind, count, first)| Listeners {
                kind,
                count,
                first,
                are_encrypted: self.nodes.is_encrypted,
            })
            .collect()
    }

    /// Ranks of all programs.
    pub fn size(&self) -> usize {
        self.programs.iter().map(|program| program.ranks).sum()
    }
}

//! What a command line says.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::{Launcher, Listeners, Order, Period};
use resurgo_runtime::pattern::Pattern;
use resurgo_wire::handshake::Server;

use resurgo_runtime::binding::Unit;

/// What to pass on of the environment of `resurgo run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inherit {
    All,
    Nothing,
    Listed(Vec<String>),
}

/// Hosts that are asked for, by the option as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    Listed(String, String),
    InFile(String, PathBuf),
}

/// One program of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramOptions {
    /// 0: nothing is said, until it is known where they run.
    pub ranks: usize,
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
    /// What `--protocol auto` means for this job, when it was asked for by name or is not what it mostly is.
    pub choice: Option<&'static str>,
    pub tolerate_node: bool,
    pub loggers: Loggers,
    pub memories: Memories,
    pub groups: Groups,
    pub log: Log,
    pub images: Images,
    /// Go on with the job of this command line if it is suspended.
    pub resume_if_any: bool,
    /// As written; their meaning depends on the number of ranks.
    pub faults: Vec<String>,
    /// Chosen from the number of cores when absent.
    pub spin: Option<Duration>,
    /// The names of options of the job that command line or environment have given.
    pub given: Vec<&'static str>,
}

/// What all programs get of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    pub inherit: Inherit,
    pub set: Vec<(OsString, OsString)>,
    /// Variables that all programs get, also when they get nothing else of it.
    pub exported: Vec<String>,
}

/// Where ranks run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    pub hosts: Vec<Hosts>,
    /// So many nodes, all on this machine.
    pub count: Option<usize>,
    /// Ranks that a node takes in turn, instead of its slots.
    pub per_node: Option<u32>,
    /// So many of the nodes, the last ones, are kept for ranks whose nodes are lost.
    pub spares: usize,
    /// So many may be missing when the job begins.
    pub may_miss: usize,
    /// Where the token for nodes that join is, or goes; the port at which they are waited for.
    pub token_file: Option<PathBuf>,
    pub join_port: u16,
    /// How a node hears that it is about to be taken away.
    pub preempt_signal: Option<Signal>,
    pub preempt_file: Option<PathBuf>,
    /// The interface whose addresses nodes tell.
    pub interface: Option<String>,
    /// Found by itself when absent.
    pub launcher: Option<Launcher>,
    /// Used instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// How long a node may be silent.
    pub lease: Duration,
    /// What they say to one another is encrypted.
    pub is_encrypted: bool,
}

impl Nodes {
    /// They are said, and not only how they are used.
    pub fn names_nodes(&self) -> bool {
        !self.hosts.is_empty() || self.count.is_some()
    }

    /// Host files are named from the current directory, wherever the job was started.
    pub fn name_files_from_here(&mut self) -> Result<(), String> {
        for hosts in &mut self.hosts {
            if let Hosts::InFile(option, file) = hosts {
                let absolute = std::path::absolute(&*file);
                *file = absolute.map_err(|error| format!("{option} {}: {error}", file.display()))?;
            }
        }
        Ok(())
    }

    /// A job that goes on is on others.
    pub fn forget_nodes(&mut self) {
        (self.hosts, self.count, self.spares) = (Vec::new(), None, 0);
        (self.launcher, self.launcher_file) = (None, None);
        self.per_node = None;
    }
}

/// On which processors ranks run, and in which order they take them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// As it is written, and what that means.
    pub to: Option<(String, Unit)>,
    pub by: Option<(String, Unit)>,
}

impl Binding {
    /// As it is written; what orders ranks means nothing alone.
    pub fn words(&self) -> Vec<String> {
        let by = self.by.iter().filter(|_| self.to.is_some());
        self.to.iter().chain(by).map(|(word, _)| word.clone()).collect()
    }
}

/// What is printed and written, and how.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// What stands before every line of output.
    pub label: Option<Pattern>,
    /// Files for standard output and standard error of each rank.
    pub files: [Option<Pattern>; 2],
    pub quiet: bool,
    pub verbose: bool,
    /// The exit code of every rank, at the end.
    pub exit_codes: bool,
    pub json_events: Option<PathBuf>,
    /// Print the measurements at the end, and write them into a file.
    pub stats: bool,
    pub stats_json: Option<PathBuf>,
}

/// When the job ends early.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    pub restarts: u64,
    pub restarts_per_rank: u64,
    /// After its start.
    pub timeout: Option<Duration>,
    /// How long ranks may take to end when a signal has ended the job.
    pub grace: Duration,
    pub time_limit: Option<TimeLimit>,
}

/// Event loggers, where the loss of a node is tolerated, and what messages carry for it.
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
}

/// Groups of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// What `--groups` says, as written.
    pub how: Option<String>,
    pub size: Option<usize>,
    /// Most groups that write their images at the same time.
    pub at_once: u32,
}

/// Message logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// Bytes; chosen from the machine's memory when absent.
    pub memory: Option<u64>,
    pub prefault: u64,
    pub spill_directory: Option<PathBuf>,
}

/// Images of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// How often there is one of each rank.
    pub period: Period,
    /// The part of the job's time that images may take.
    pub share: f64,
    /// As written: see [`super::policy`].
    pub policy: String,
    pub order: Order,
    /// Most images that are taken or written at the same time.
    pub in_flight: Option<usize>,
    /// The job's mean time between failures, for the best period.
    pub mtbf: Option<Duration>,
    /// As written, like the faults.
    pub at: Vec<String>,
    /// Takes images now; the other signals go to the ranks.
    pub signal: Option<Signal>,
    /// Where images are written into files as well.
    pub directory: Option<PathBuf>,
    /// Level of zstd.
    pub compress: Option<u8>,
    pub keep: bool,
    /// Images stay in memory beside their files.
    pub local_copies: bool,
}

/// When the job has to be off the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// So long after its start.
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
    /// Nothing is said yet, not even what is the default.
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
            },
            resume_if_any: false,
            faults: Vec::new(),
            spin: None,
            given: Vec::new(),
        }
    }

    /// Whether command line or environment have given an option of the job.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// Ranks can have images.
    pub fn has_images(&self) -> bool {
        self.protocol.has_images()
    }

    /// How many event loggers the job has.
    pub fn logger_count(&self) -> usize {
        if self.tolerate_node { self.loggers.count } else { 0 }
    }

    /// The servers that the job has.
    pub fn servers(&self) -> Vec<Listeners> {
        let memories = match self.protocol {
            Protocol::ChannelMemory => self.memories.count,
            _ => 0,
        };
        let kinds = [
            (Server::EventLogger, self.logger_count(), self.loggers.address),
            (Server::ChannelMemory, memories, self.memories.address),
        ];
        let wanted = kinds.into_iter().filter(|(_, count, _)| *count > 0);
        wanted
            .map(|(kind, count, first)| Listeners { kind, count, first })
            .collect()
    }

    /// Ranks of all programs.
    pub fn size(&self) -> usize {
        self.programs.iter().map(|program| program.ranks).sum()
    }
}

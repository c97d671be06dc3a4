//! The command line of `resurgo run`: what people type at mpiexec, and options of our own.

mod combinations;
pub mod config_file;
pub mod groups;
mod names;
mod policy;
mod values;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddrV4;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::{Order, Period};
use resurgo_runtime::pattern::Pattern;
use resurgo_runtime::suspended::Origin;
use resurgo_runtime::units::{parse_duration, parse_size};
use resurgo_wire::node_memory::{MAX_RANKS, SPREAD_MULTICAST};

use crate::binding::Unit;
use combinations::check;
use names::OPTIONS;
pub use names::{check_variable, nearest};
use values::set;

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
    pub ranks: usize,
    pub directory: Option<PathBuf>,
    pub inherit: Option<Inherit>,
    pub environment: Vec<(OsString, OsString)>,
    /// The program's name and arguments.
    pub arguments: Vec<OsString>,
}

/// The whole command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub programs: Vec<ProgramOptions>,
    pub inherit: Inherit,
    pub environment: Vec<(OsString, OsString)>,
    /// Variables that all programs get from the environment, whatever else they get of it.
    pub exported: Vec<String>,
    /// Where the user wants ranks to run.
    pub hosts: Vec<Hosts>,
    /// On which processors ranks run.
    pub bind_to: Option<Unit>,
    /// In which order they take them.
    pub map_by: Option<Unit>,
    /// What stands before every line of output.
    pub label: Option<Pattern>,
    /// Files for standard output and standard error of each rank.
    pub output_files: [Option<Pattern>; 2],
    pub verbose: bool,
    pub print_exit_codes: bool,
    /// When the job is ended, after its start.
    pub timeout: Option<Duration>,
    pub protocol: Protocol,
    pub tolerate_node: bool,
    /// What `--protocol auto` means for this job, when it was asked for by name or is not what it mostly is.
    pub choice: Option<&'static str>,
    /// How piggybacks are kept small; manetho when absent.
    pub reduction: Option<u32>,
    /// One when absent, where the loss of a node is tolerated.
    pub event_loggers: Option<usize>,
    /// How stable clocks spread between several event loggers; multicast when absent.
    pub clock_spread: Option<u32>,
    /// What `--groups` says, as written, and the ranks of a group.
    pub groups: Option<String>,
    pub group_size: Option<usize>,
    /// Most groups that write their images at the same time; one when absent.
    pub groups_at_once: Option<u32>,
    /// One when absent, under channel-memory.
    pub channel_memories: Option<usize>,
    /// Where the first of them listens; at any port of the loopback address when absent.
    pub channel_memory: Option<SocketAddrV4>,
    pub max_restarts: u64,
    pub max_restarts_per_rank: u64,
    /// Bytes; chosen from the machine's memory when absent.
    pub log_memory: Option<u64>,
    pub log_prefault: u64,
    /// How often an image of each rank is taken.
    pub checkpoint_period: Period,
    /// The part of the job's time that images may take.
    pub checkpoint_share: f64,
    /// As written: see [`policy`].
    pub checkpoint_policy: Option<String>,
    pub checkpoint_order: Order,
    /// Most images that are taken or written at the same time.
    pub images_in_flight: Option<usize>,
    /// The job's mean time between failures, for the best period.
    pub mtbf: Option<Duration>,
    /// Where images are written into files as well.
    pub checkpoint_directory: Option<PathBuf>,
    /// Level of zstd.
    pub checkpoint_compress: Option<u8>,
    pub checkpoint_keep: bool,
    /// Takes images now; the other signals go to the ranks.
    pub checkpoint_signal: Option<Signal>,
    /// How long ranks may take to end when a signal has ended the job.
    pub grace: Duration,
    /// Images stay in memory beside their files.
    pub local_copies: bool,
    /// Go on with the job of this command line if it has been suspended.
    pub resume_if_any: bool,
    pub time_limit: Option<TimeLimit>,
    /// As written, like the faults.
    pub checkpoint_at: Vec<String>,
    pub spill_directory: Option<PathBuf>,
    /// As written; their meaning depends on the number of ranks.
    pub faults: Vec<String>,
    pub quiet: bool,
    pub json_events: Option<PathBuf>,
    /// Print the measurements at the end, and write them into a file.
    pub stats: bool,
    pub stats_json: Option<PathBuf>,
    pub event_logger: SocketAddrV4,
    /// Chosen from the number of cores when absent.
    pub spin: Option<Duration>,
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

/// Any port of the loopback address.
pub const ANY_PORT: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);

/// [`REDUCTIONS`] by number: the smallest piggybacks of those that are quick to make.
const MANETHO: u32 = 1;

impl Options {
    fn new() -> Options {
        Options {
            programs: Vec::new(),
            inherit: Inherit::All,
            environment: Vec::new(),
            exported: Vec::new(),
            hosts: Vec::new(),
            bind_to: None,
            map_by: None,
            label: None,
            output_files: [None, None],
            verbose: false,
            print_exit_codes: false,
            timeout: None,
            protocol: Protocol::Auto,
            tolerate_node: false,
            choice: None,
            reduction: None,
            event_loggers: None,
            clock_spread: None,
            groups: None,
            group_size: None,
            groups_at_once: None,
            channel_memories: None,
            channel_memory: None,
            max_restarts: 64,
            max_restarts_per_rank: 16,
            log_memory: None,
            log_prefault: 4 << 20,
            checkpoint_period: Period::Never,
            checkpoint_share: 0.1,
            checkpoint_policy: None,
            checkpoint_order: Order::Periodic,
            images_in_flight: None,
            mtbf: None,
            checkpoint_directory: None,
            checkpoint_compress: None,
            checkpoint_keep: false,
            checkpoint_signal: Some(Signal::SIGUSR1),
            grace: Duration::from_secs(2),
            local_copies: true,
            resume_if_any: false,
            time_limit: None,
            checkpoint_at: Vec::new(),
            spill_directory: None,
            faults: Vec::new(),
            quiet: false,
            json_events: None,
            stats: false,
            stats_json: None,
            event_logger: ANY_PORT,
            spin: None,
        }
    }

    /// Ranks can have images.
    pub fn has_images(&self) -> bool {
        self.protocol.has_images()
    }

    /// How many event loggers the job has.
    pub fn loggers(&self) -> usize {
        if self.tolerate_node {
            self.event_loggers.unwrap_or(1)
        } else {
            0
        }
    }

    /// How many channel memories the job has.
    pub fn memories(&self) -> usize {
        if self.protocol == Protocol::ChannelMemory {
            self.channel_memories.unwrap_or(1)
        } else {
            0
        }
    }

    /// [`REDUCTIONS`] by number.
    pub fn reduction(&self) -> u32 {
        self.reduction.unwrap_or(MANETHO)
    }

    /// [`CLOCK_SPREADS`] by number.
    pub fn clock_spread(&self) -> u32 {
        self.clock_spread.unwrap_or(SPREAD_MULTICAST)
    }

    /// Ranks of all programs.
    pub fn size(&self) -> usize {
        self.programs.iter().map(|program| program.ranks).sum()
    }
}

/// Reads a command line; `variable` looks into the environment.
pub fn parse(arguments: Vec<OsString>, variable: impl Fn(&str) -> Option<OsString>) -> Result<Request, String> {
    let mut options = Options::new();
    read_environment(&mut options, variable)?;
    if let Some(other) = read(&mut options, arguments, false)? {
        return Ok(other);
    }
    check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

/// The names of the options that `resurgo resume` takes.
pub fn at_resume() -> impl Iterator<Item = &'static str> {
    let all = OPTIONS
        .iter()
        .filter(|known| known.is_for_resume() && known.is_in_environment());
    all.map(|known| known.name)
}

/// Reads a command line of `resurgo resume`, which ends with the name of a job. `find` says how the job was started.
pub fn parse_resume(
    arguments: Vec<OsString>,
    find: impl FnOnce(&OsString) -> Result<Origin, String>,
) -> Result<Request, String> {
    let mut named = Options::new();
    if let Some(other) = read(&mut named, arguments.clone(), true)? {
        return Ok(other);
    }
    let words: Vec<&OsString> = named.programs.iter().flat_map(|program| &program.arguments).collect();
    let [job] = words[..] else {
        return Err("resume takes options and then one job".to_string());
    };
    let origin = find(job)?;
    let mut options = Options::new();
    read_environment(&mut options, |name| {
        let mut variables = origin.environment.iter();
        variables
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    })?;
    read(&mut options, origin.arguments, false)?;
    // These belong to the former run.
    (options.faults, options.json_events, options.stats_json) = (Vec::new(), None, None);
    options.checkpoint_at.clear();
    let programs = std::mem::take(&mut options.programs);
    read(&mut options, arguments, true)?;
    options.programs = programs;
    check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

fn read_environment(options: &mut Options, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    if let Some(value) = variable("MPIEXEC_TIMEOUT").filter(|value| !value.is_empty()) {
        // As at mpiexec: in whole seconds, and nothing or less is no limit.
        let seconds = value.to_str().and_then(|value| value.trim().parse::<i64>().ok());
        let seconds = seconds.ok_or_else(|| format!("MPIEXEC_TIMEOUT={}: not a number of seconds", value.display()))?;
        options.timeout = u64::try_from(seconds)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs);
    }
    for option in OPTIONS.iter().filter(|option| option.is_in_environment()) {
        let (name, in_environment) = (option.name, option.variable());
        let Some(value) = variable(&in_environment).filter(|value| !value.is_empty()) else {
            continue;
        };
        let text = value.to_str().ok_or_else(|| format!("{in_environment} is not UTF-8"))?;
        let values = if ["fault", "checkpoint-at"].contains(&name) {
            text.split(';').collect()
        } else {
            vec![text]
        };
        for value in values {
            if option.is_switch() {
                match value {
                    "0" | "no" | "false" => continue,
                    "1" | "yes" | "true" => {}
                    _ => return Err(format!("{in_environment}={value:?}: write 1 or 0")),
                }
            }
            set(options, name, value).map_err(|error| format!("{in_environment}: {error}"))?;
        }
    }
    Ok(())
}

/// Reads a command line; `is_resume`: that of a job that goes on, which is named instead of a program.
fn read(options: &mut Options, arguments: Vec<OsString>, is_resume: bool) -> Result<Option<Request>, String> {
    let faults_from_environment = options.faults.len();

    let mut arguments = arguments.into_iter().peekable();
    loop {
        let mut program = ProgramOptions {
            ranks: 1,
            directory: None,
            inherit: None,
            environment: Vec::new(),
            arguments: Vec::new(),
        };
        while let Some(argument) = arguments.next_if(|argument| argument.as_encoded_bytes().starts_with(b"-")) {
            if argument == "--" {
                break;
            }
            let text = argument
                .to_str()
                .ok_or_else(|| format!("{:?} is not UTF-8", argument.display()))?;
            let (mut name, mut attached) = names::split(text);
            if attached.is_none()
                && let Some(number) = names::attached_number(name)
            {
                (name, attached) = ("n", Some(number));
            }
            let Some(option) = names::find(name) else {
                return Err(names::unknown(text, name));
            };
            if is_resume && !option.is_for_resume() {
                return Err(format!(
                    "{text} cannot be given to a job that goes on: it has what it was started with"
                ));
            }
            let mut values: Vec<OsString> = attached.into_iter().map(OsString::from).collect();
            if values.len() > option.values {
                return Err(format!("{text}: -{name} takes no value"));
            }
            while values.len() < option.values {
                let next = arguments.peek().and_then(|next| next.to_str());
                let (what, forced) = match option.values {
                    1 => ("a value", format!("{text}=VALUE")),
                    _ => ("a name and a value", format!("{text} NAME=VALUE")),
                };
                // Only the last of several values may be anything.
                if values.is_empty()
                    && let Some(next) = next.filter(|next| names::is_option(next))
                {
                    return Err(format!(
                        "{text} needs {what}, and {next} is an option; where that is meant, write {forced}"
                    ));
                }
                values.push(arguments.next().ok_or_else(|| format!("{text} needs {what}"))?);
                if option.values == 2 && separate(&mut values) {
                    break;
                }
            }
            match name {
                "h" | "help" => return Ok(Some(Request::Help)),
                "version" => return Ok(Some(Request::Version)),
                "fault" if options.faults.len() == faults_from_environment && faults_from_environment > 0 => {
                    options.faults.clear();
                    apply(options, &mut program, option, text, values)?;
                }
                _ => apply(options, &mut program, option, text, values)?,
            }
        }
        let mut more = false;
        for argument in arguments.by_ref() {
            if argument == ":" {
                more = true;
                break;
            }
            program.arguments.push(argument);
        }
        if program.arguments.is_empty() {
            let what = match is_resume {
                false => "no program given; try: resurgo run -n 4 ./program",
                true => "no job given; resurgo ps lists those that are suspended",
            };
            return Err(what.to_string());
        }
        options.programs.push(program);
        if !more {
            return Ok(None);
        }
    }
}

/// Makes two values of a single `NAME=VALUE`, if it is one.
fn separate(values: &mut Vec<OsString>) -> bool {
    let [pair] = values.as_slice() else { return false };
    let bytes = pair.as_bytes();
    let Some(at) = bytes.iter().position(|byte| *byte == b'=') else {
        return false;
    };
    let parts = [&bytes[..at], &bytes[at + 1..]];
    *values = parts.map(|part| OsStr::from_bytes(part).to_owned()).to_vec();
    true
}

fn apply(
    options: &mut Options,
    program: &mut ProgramOptions,
    option: &names::Known,
    text: &str,
    mut values: Vec<OsString>,
) -> Result<(), String> {
    let name = option.name;
    let listed = |value: &OsString| {
        Inherit::Listed(
            value
                .to_string_lossy()
                .split(',')
                .map(|name| name.trim().to_string())
                .collect(),
        )
    };
    match name {
        "n" | "np" => {
            let value = values[0].to_string_lossy().into_owned();
            program.ranks = match value.parse::<usize>() {
                Ok(0) => return Err(format!("{text} 0: a program needs at least one rank")),
                Ok(ranks) if ranks > MAX_RANKS => {
                    return Err(format!("{text} {ranks}: a node can hold at most {MAX_RANKS} ranks"));
                }
                Ok(ranks) => ranks,
                Err(_) => return Err(format!("{text} {value}: not a number of ranks")),
            };
        }
        "env" | "genv" => {
            let value = values.pop().unwrap_or_default();
            let name = values.pop().unwrap_or_default();
            if name.is_empty() || name.as_encoded_bytes().contains(&b'=') {
                return Err(format!("{text} {}: not a name of a variable", name.display()));
            }
            let target = if text.contains("genv") {
                &mut options.environment
            } else {
                &mut program.environment
            };
            target.push((name, value));
        }
        "x" => {
            // A variable with a value, or one that the user has.
            if separate(&mut values) {
                let value = values.pop().unwrap_or_default();
                let name = values.pop().unwrap_or_default();
                options.environment.push((name, value));
            } else {
                options.exported.push(values[0].to_string_lossy().into_owned());
            }
        }
        "f" | "hostfile" | "machinefile" => {
            let file = PathBuf::from(values.pop().unwrap_or_default());
            options.hosts.push(Hosts::InFile(text.to_string(), file));
        }
        "host" | "hosts" | "H" => {
            let list = values[0].to_string_lossy().into_owned();
            options.hosts.push(Hosts::Listed(text.to_string(), list));
        }
        "configfile" => {
            return Err(format!(
                "{text} stands alone, or after other options, and gives all programs"
            ));
        }
        _ if option.is_without_effect() => {}
        "envall" => program.inherit = Some(Inherit::All),
        "envnone" => program.inherit = Some(Inherit::Nothing),
        "envlist" => program.inherit = Some(listed(&values[0])),
        "genvall" => options.inherit = Inherit::All,
        "genvnone" => options.inherit = Inherit::Nothing,
        "genvlist" => options.inherit = listed(&values[0]),
        "wdir" | "wd" => program.directory = values.pop().map(PathBuf::from),
        _ => {
            let value = values.pop().unwrap_or_default();
            let value = value
                .to_str()
                .ok_or_else(|| format!("the value of {text} is not UTF-8"))?;
            set(options, name, value).map_err(|error| format!("{text}: {error}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

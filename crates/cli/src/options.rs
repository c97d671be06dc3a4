//! The command line of `resurgo run`: what people type at mpiexec, and options of our own.

pub mod groups;
mod policy;

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use resurgo_runtime::dispatcher::{Order, Period};
use resurgo_runtime::suspended::Origin;
use resurgo_runtime::units::{parse_duration, parse_size};
use resurgo_wire::node_memory::{
    CLOCK_SPREADS, MAX_CHANNEL_MEMORIES, MAX_EVENT_LOGGERS, MAX_LOG_SEGMENTS, MAX_RANKS, PROTOCOL_AUTO,
    PROTOCOL_CAUSAL, PROTOCOL_CHANNEL_MEMORY, PROTOCOL_GROUP, PROTOCOL_HIERARCHICAL, PROTOCOL_NONE,
    PROTOCOL_PESSIMISTIC, PROTOCOLS, REDUCTIONS, SEGMENT, SPREAD_MULTICAST, only_waves,
};

/// What to pass on of the environment of `resurgo run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inherit {
    All,
    Nothing,
    Listed(Vec<String>),
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
    pub label: bool,
    pub protocol: u32,
    pub tolerate_node: bool,
    /// What `--protocol auto` means for this job, when it was asked for by name.
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

/// Option names with the number of values they take.
const OPTIONS: &[(&str, usize)] = &[
    ("n", 1),
    ("np", 1),
    ("env", 2),
    ("genv", 2),
    ("envall", 0),
    ("envnone", 0),
    ("envlist", 1),
    ("genvall", 0),
    ("genvnone", 0),
    ("genvlist", 1),
    ("wdir", 1),
    ("wd", 1),
    ("l", 0),
    ("label", 0),
    ("prepend-rank", 0),
    ("protocol", 1),
    ("tolerate", 1),
    ("reduction", 1),
    ("event-loggers", 1),
    ("clock-spread", 1),
    ("groups", 1),
    ("group-size", 1),
    ("groups-at-once", 1),
    ("channel-memories", 1),
    ("channel-memory", 1),
    ("max-restarts", 1),
    ("max-restarts-per-rank", 1),
    ("log-memory", 1),
    ("log-prefault", 1),
    ("checkpoint-every", 1),
    ("checkpoint-policy", 1),
    ("checkpoint-in-flight", 1),
    ("mtbf", 1),
    ("checkpoint-dir", 1),
    ("checkpoint-compress", 1),
    ("checkpoint-keep", 0),
    ("local-copies", 1),
    ("resume-if-any", 0),
    ("time-limit", 1),
    ("checkpoint-at", 1),
    ("spill-dir", 1),
    ("fault", 1),
    ("q", 0),
    ("quiet", 0),
    ("json-events", 1),
    ("stats", 0),
    ("stats-json", 1),
    ("event-logger", 1),
    ("spin", 1),
    ("h", 0),
    ("help", 0),
    ("version", 0),
];

/// Any port of the loopback address.
pub const ANY_PORT: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);

/// [`REDUCTIONS`] by number: the smallest piggybacks of those that are quick to make.
const MANETHO: u32 = 1;

/// The options that the environment can give too.
const IN_ENVIRONMENT: &[&str] = &[
    "label",
    "protocol",
    "tolerate",
    "reduction",
    "event-loggers",
    "clock-spread",
    "groups",
    "group-size",
    "groups-at-once",
    "channel-memories",
    "channel-memory",
    "max-restarts",
    "max-restarts-per-rank",
    "log-memory",
    "log-prefault",
    "checkpoint-every",
    "checkpoint-policy",
    "checkpoint-in-flight",
    "mtbf",
    "checkpoint-dir",
    "checkpoint-compress",
    "checkpoint-keep",
    "local-copies",
    "resume-if-any",
    "time-limit",
    "checkpoint-at",
    "spill-dir",
    "fault",
    "quiet",
    "json-events",
    "stats",
    "stats-json",
    "event-logger",
    "spin",
];

/// The options that can be given anew when a job is resumed; the others are part of what was suspended.
const AT_RESUME: &[&str] = &[
    "l",
    "label",
    "prepend-rank",
    "max-restarts",
    "max-restarts-per-rank",
    "checkpoint-every",
    "checkpoint-policy",
    "checkpoint-in-flight",
    "mtbf",
    "checkpoint-keep",
    "time-limit",
    "checkpoint-at",
    "fault",
    "q",
    "quiet",
    "json-events",
    "stats",
    "stats-json",
    "h",
    "help",
    "version",
];

/// The options that are on or off.
const SWITCHES: &[&str] = &["label", "quiet", "stats", "checkpoint-keep", "resume-if-any"];

/// Options of other launchers that mean something we cannot do.
const ELSEWHERE: &[(&str, &str)] = &[
    ("f", "hosts cannot be chosen: this version runs on one machine"),
    ("hostfile", "hosts cannot be chosen: this version runs on one machine"),
    (
        "machinefile",
        "hosts cannot be chosen: this version runs on one machine",
    ),
    ("host", "hosts cannot be chosen: this version runs on one machine"),
    ("hosts", "hosts cannot be chosen: this version runs on one machine"),
    (
        "ppn",
        "ranks cannot be spread over hosts: this version runs on one machine",
    ),
    (
        "bind-to",
        "ranks are not bound to cores; use taskset or the program's own means",
    ),
];

/// The name of `names` most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let like = |candidate: &str| strsim::damerau_levenshtein(name, candidate);
    let best = names.iter().min_by_key(|candidate| like(candidate))?;
    (like(best) <= 1 + best.len() / 3).then_some(*best)
}

impl Options {
    fn new() -> Options {
        Options {
            programs: Vec::new(),
            inherit: Inherit::All,
            environment: Vec::new(),
            label: false,
            protocol: PROTOCOL_AUTO,
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
            checkpoint_policy: None,
            checkpoint_order: Order::Periodic,
            images_in_flight: None,
            mtbf: None,
            checkpoint_directory: None,
            checkpoint_compress: None,
            checkpoint_keep: false,
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
        if self.protocol == PROTOCOL_CHANNEL_MEMORY {
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
    if let Some(other) = read(&mut options, arguments, None)? {
        return Ok(other);
    }
    check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

/// Reads a command line of `resurgo resume`, which ends with the name of a job. `find` says how the job was started.
pub fn parse_resume(
    arguments: Vec<OsString>,
    find: impl FnOnce(&OsString) -> Result<Origin, String>,
) -> Result<Request, String> {
    let mut named = Options::new();
    if let Some(other) = read(&mut named, arguments.clone(), Some(AT_RESUME))? {
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
    read(&mut options, origin.arguments, None)?;
    // These belong to the former run.
    (options.faults, options.json_events, options.stats_json) = (Vec::new(), None, None);
    options.checkpoint_at.clear();
    let programs = std::mem::take(&mut options.programs);
    read(&mut options, arguments, Some(AT_RESUME))?;
    options.programs = programs;
    check(&mut options)?;
    Ok(Request::Run(Box::new(options)))
}

fn read_environment(options: &mut Options, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    for name in IN_ENVIRONMENT {
        let in_environment = format!("RESURGO_{}", name.to_ascii_uppercase().replace('-', "_"));
        let Some(value) = variable(&in_environment).filter(|value| !value.is_empty()) else {
            continue;
        };
        let text = value.to_str().ok_or_else(|| format!("{in_environment} is not UTF-8"))?;
        let values = if ["fault", "checkpoint-at"].contains(name) {
            text.split(';').collect()
        } else {
            vec![text]
        };
        for value in values {
            if SWITCHES.contains(name) {
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

/// Reads a command line, of which only the options `allowed` may be given; none for all.
fn read(options: &mut Options, arguments: Vec<OsString>, allowed: Option<&[&str]>) -> Result<Option<Request>, String> {
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
            let bare = text.strip_prefix("--").or(text.strip_prefix('-')).unwrap_or(text);
            let (name, attached) = match bare.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (bare, None),
            };
            let Some((name, count)) = OPTIONS.iter().find(|option| option.0 == name) else {
                return Err(unknown(text, name));
            };
            if allowed.is_some_and(|allowed| !allowed.contains(name)) {
                return Err(format!(
                    "{text} cannot be given to a job that goes on: it has what it was started with"
                ));
            }
            let mut values: Vec<OsString> = attached.into_iter().map(OsString::from).collect();
            if values.len() > *count {
                return Err(format!("{text}: -{name} takes no value"));
            }
            while values.len() < *count {
                let what = if *count == 1 { "a value" } else { "a name and a value" };
                values.push(arguments.next().ok_or_else(|| format!("{text} needs {what}"))?);
            }
            match *name {
                "h" | "help" => return Ok(Some(Request::Help)),
                "version" => return Ok(Some(Request::Version)),
                "fault" if options.faults.len() == faults_from_environment && faults_from_environment > 0 => {
                    options.faults.clear();
                    apply(options, &mut program, name, text, values)?;
                }
                _ => apply(options, &mut program, name, text, values)?,
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
            let what = match allowed {
                None => "no program given; try: resurgo run -n 4 ./program",
                Some(_) => "no job given; resurgo ps lists those that are suspended",
            };
            return Err(what.to_string());
        }
        options.programs.push(program);
        if !more {
            return Ok(None);
        }
    }
}

/// Logs and waves together, where that is possible. Returns why it is what it is.
fn choose_protocol(options: &mut Options) -> &'static str {
    let why = if options.tolerate_node {
        "message logging alone: images are kept on the node that would be lost"
    } else if options.spill_directory.is_some() {
        "message logging alone: logs that have been spilled cannot be cut back to a wave"
    } else if options.images_in_flight.is_some() || policy::is_of_single_ranks(options.checkpoint_policy.as_deref()) {
        "message logging alone: images of single ranks are asked for, and in a wave all have theirs together"
    } else {
        return "message logging, so that a failed rank recovers alone, and waves, to which all ranks return if the program \
                does not repeat what it did";
    };
    options.protocol = PROTOCOL_PESSIMISTIC;
    why
}

/// Whether the options go together.
fn check(options: &mut Options) -> Result<(), String> {
    let size = options.size();
    if options.protocol == PROTOCOL_AUTO {
        let why = choose_protocol(options);
        options.choice = options.choice.and(Some(why));
    }
    if size > MAX_RANKS {
        return Err(format!("{size} ranks: a node can hold at most {MAX_RANKS}"));
    }
    if options.tolerate_node && options.protocol == PROTOCOL_CHANNEL_MEMORY {
        return Err(
            "--tolerate node: under --protocol channel-memory a rank needs nothing of its node in any case; leave --tolerate out"
                .to_string(),
        );
    }
    if options.tolerate_node && ![PROTOCOL_PESSIMISTIC, PROTOCOL_CAUSAL].contains(&options.protocol) {
        let protocol = PROTOCOLS[options.protocol as usize];
        return Err(format!(
            "--tolerate node needs --protocol pessimistic or causal; {protocol} does not tolerate the loss of a node"
        ));
    }
    if options.stats_json.is_some() && options.stats_json == options.json_events {
        return Err("--stats-json and --json-events need files of their own".to_string());
    }
    if let Some(policy) = options.checkpoint_policy.take() {
        policy::check(options, &policy)?;
    }
    check_loggers(options, size)?;
    groups::check(options, size)?;
    check_memories(options, size)?;
    let checkpoints = options.checkpoint_period != Period::Never;
    if checkpoints && options.protocol == PROTOCOL_NONE {
        return Err("--checkpoint-every needs a protocol that recovers; --protocol none uses no images".to_string());
    }
    if let Period::Daly { mtbf } = &mut options.checkpoint_period {
        *mtbf = options.mtbf;
    } else if options.mtbf.is_some() {
        return Err("--mtbf is for --checkpoint-every daly".to_string());
    }
    if checkpoints && options.tolerate_node {
        return Err(
            "--checkpoint-every and --tolerate node cannot be combined yet: images are kept on the node that would be lost"
                .to_string(),
        );
    }
    if options.images_in_flight.is_some() {
        if only_waves(options.protocol) {
            let protocol = PROTOCOLS[options.protocol as usize];
            if options.protocol == PROTOCOL_HIERARCHICAL {
                return Err(
                    "--checkpoint-in-flight is for images of single ranks; under --protocol hierarchical all ranks of a group \
                     write theirs together; leave it out, or run with --protocol pessimistic"
                        .to_string(),
                );
            }
            if options.protocol == PROTOCOL_GROUP {
                let images = options.images_in_flight.unwrap_or(1);
                return Err(format!(
                    "--checkpoint-in-flight is for images of single ranks; under --protocol group a whole group writes \
                     its images at a time; the nearest is --groups-at-once {images}"
                ));
            }
            return Err(format!(
                "--checkpoint-in-flight is for images of single ranks; under --protocol {protocol} all ranks write theirs \
                 together, one wave at a time"
            ));
        }
        if options.checkpoint_directory.is_none() {
            return Err(
                "--checkpoint-in-flight needs --checkpoint-dir: images that stay in memory are taken one at a time"
                    .to_string(),
            );
        }
    }
    if options.protocol == PROTOCOL_HIERARCHICAL && options.spill_directory.is_some() {
        return Err(
            "--spill-dir and --protocol hierarchical cannot be combined: logs inside a group that have been spilled cannot be \
             cut back to a wave. Leave it out and have images taken (--checkpoint-every), which let logs between groups forget, \
             or run with --protocol pessimistic"
                .to_string(),
        );
    }
    if options.checkpoint_compress.is_some() && options.checkpoint_directory.is_none() {
        return Err("--checkpoint-compress is for image files: it needs --checkpoint-dir".to_string());
    }
    if !options.local_copies {
        if options.protocol == PROTOCOL_NONE || options.tolerate_node {
            return Err(
                "--local-copies off needs images, which neither --protocol none nor --tolerate node has".to_string(),
            );
        }
        if options.checkpoint_directory.is_none() {
            return Err(
                "--local-copies off needs --checkpoint-dir: without files, the copies in memory are all images there are; add \
                 --checkpoint-dir DIR, or keep them"
                    .to_string(),
            );
        }
    }
    for (given, name) in [
        (options.resume_if_any, "--resume-if-any"),
        (options.time_limit.is_some(), "--time-limit"),
        (!options.checkpoint_at.is_empty(), "--checkpoint-at"),
    ] {
        if given && name != "--checkpoint-at" && options.checkpoint_directory.is_none() {
            return Err(format!("{name} needs --checkpoint-dir, where the job is suspended"));
        }
        if given && (options.protocol == PROTOCOL_NONE || options.tolerate_node) {
            return Err(format!(
                "{name} needs images, which neither --protocol none nor --tolerate node has"
            ));
        }
    }
    Ok(())
}

/// Whether what is said of channel memories goes together with the rest.
fn check_memories(options: &Options, size: usize) -> Result<(), String> {
    if options.protocol != PROTOCOL_CHANNEL_MEMORY {
        let given = options.channel_memories.is_some() || options.channel_memory.is_some();
        return match given {
            true => Err(format!(
                "--channel-memories and --channel-memory are for --protocol channel-memory; {} has none",
                PROTOCOLS[options.protocol as usize]
            )),
            false => Ok(()),
        };
    }
    match options.channel_memories {
        Some(0) => {
            return Err(
                "--channel-memories 0: every message goes through a channel memory; --channel-memories 1 at least, or --protocol \
                 pessimistic, under which messages stay with their senders"
                    .to_string(),
            );
        }
        Some(memories) if memories > size => {
            return Err(format!(
                "--channel-memories {memories} are more than the {size} ranks that they serve; --channel-memories {size} at most"
            ));
        }
        _ => {}
    }
    for (given, name) in [
        (options.resume_if_any, "--resume-if-any"),
        (options.time_limit.is_some(), "--time-limit"),
    ] {
        if given {
            return Err(format!(
                "{name}: under --protocol channel-memory a job cannot be suspended, as what its channel memories hold is in no \
                 file; leave it out, or run with --protocol pessimistic"
            ));
        }
    }
    Ok(())
}

/// Whether what is said of event loggers and piggybacks goes together.
fn check_loggers(options: &Options, size: usize) -> Result<(), String> {
    let (causal, node) = (options.protocol == PROTOCOL_CAUSAL, options.tolerate_node);
    let protocol = PROTOCOLS[options.protocol as usize];
    if options.reduction.is_some() && !causal {
        return Err(format!(
            "--reduction is for --protocol causal; {protocol} piggybacks nothing"
        ));
    }
    if options.reduction.is_some() && !node {
        return Err(
            "--reduction needs --tolerate node: while only processes are lost, nothing is piggybacked".to_string(),
        );
    }
    match options.event_loggers {
        Some(_) if !node => {
            return Err(
                "--event-loggers needs --tolerate node: while only processes are lost, the node's memory keeps all deliveries"
                    .to_string(),
            );
        }
        Some(0) if !causal => {
            return Err(
                "--event-loggers 0 needs --protocol causal: under pessimistic, sends wait until an event logger has all \
                 deliveries before them"
                    .to_string(),
            );
        }
        Some(loggers) if loggers > size => {
            return Err(format!(
                "--event-loggers {loggers} are more than the {size} ranks that log to them; --event-loggers {size} at most"
            ));
        }
        _ => {}
    }
    if options.clock_spread.is_some() && (!causal || options.loggers() < 2) {
        let why = match causal {
            true => "one event logger tells all there is to tell; add --event-loggers 2".to_string(),
            false => format!("{protocol} needs the clock of its own rank only; it is for --protocol causal"),
        };
        return Err(format!("--clock-spread: {why}"));
    }
    Ok(())
}

/// The number of `value` among `names`.
fn choice(value: &str, what: &str, names: &[&str]) -> Result<u32, String> {
    if let Some(number) = names.iter().position(|name| *name == value) {
        return Ok(number as u32);
    }
    let hint = match nearest(value, names) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    };
    Err(format!("there is no {what} {value:?}; {hint}"))
}

fn unknown(text: &str, name: &str) -> String {
    if let Some((_, why)) = ELSEWHERE.iter().find(|(other, _)| *other == name) {
        return format!("{text}: {why}");
    }
    let names: Vec<&str> = OPTIONS
        .iter()
        .map(|option| option.0)
        .filter(|name| name.len() > 1)
        .collect();
    match nearest(name, &names) {
        Some(near) => {
            let dashes = if IN_ENVIRONMENT.contains(&near) { "--" } else { "-" };
            format!("unknown option {text}; did you mean {dashes}{near}?")
        }
        None => format!("unknown option {text}; resurgo run --help lists them"),
    }
}

fn apply(
    options: &mut Options,
    program: &mut ProgramOptions,
    name: &str,
    text: &str,
    mut values: Vec<OsString>,
) -> Result<(), String> {
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

/// Sets one of the options that the environment can give too.
fn set(options: &mut Options, name: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
    match name {
        "l" | "label" | "prepend-rank" => options.label = true,
        "q" | "quiet" => options.quiet = true,
        "protocol" => {
            options.protocol = choice(value, "protocol", &PROTOCOLS)?;
            options.choice = (options.protocol == PROTOCOL_AUTO).then_some("");
        }
        "reduction" => options.reduction = Some(choice(value, "reduction", &REDUCTIONS)?),
        "clock-spread" => options.clock_spread = Some(choice(value, "way to spread clocks", &CLOCK_SPREADS)?),
        "event-loggers" => {
            let loggers = number()?;
            if loggers > MAX_EVENT_LOGGERS as u64 {
                return Err(format!("{value} are too many: at most {MAX_EVENT_LOGGERS}"));
            }
            options.event_loggers = Some(loggers as usize);
        }
        "groups" => options.groups = Some(value.to_string()),
        "group-size" => match number()? as usize {
            0 => return Err("a group has at least one rank".to_string()),
            ranks => options.group_size = Some(ranks),
        },
        "groups-at-once" => match u32::try_from(number()?).unwrap_or(u32::MAX) {
            0 => return Err("at least one group must write, or there are no images".to_string()),
            groups => options.groups_at_once = Some(groups),
        },
        "channel-memories" => {
            let memories = number()?;
            if memories > MAX_CHANNEL_MEMORIES as u64 {
                return Err(format!("{value} are too many: at most {MAX_CHANNEL_MEMORIES}"));
            }
            options.channel_memories = Some(memories as usize);
        }
        "channel-memory" => options.channel_memory = Some(address(value)?),
        "tolerate" => {
            options.tolerate_node = match value {
                "process" => false,
                "node" => true,
                _ => return Err(format!("{value:?} is neither process nor node")),
            }
        }
        "max-restarts" => options.max_restarts = number()?,
        "max-restarts-per-rank" => options.max_restarts_per_rank = number()?,
        "log-memory" => {
            let bytes = parse_size(value)?;
            if bytes < 1 << 20 {
                return Err(format!("{value} is too small: at least 1M is needed"));
            }
            if bytes > (MAX_LOG_SEGMENTS * SEGMENT) as u64 {
                return Err(format!(
                    "{value} is too much: a rank can hold at most 64G of log in memory"
                ));
            }
            options.log_memory = Some(bytes);
        }
        "checkpoint-every" => {
            if value == "daly" {
                options.checkpoint_period = Period::Daly { mtbf: None };
                return Ok(());
            }
            let every = parse_duration(value).map_err(|error| format!("{error}; or write daly for the best one"))?;
            if every < Duration::from_millis(10) {
                return Err(format!("{value} is too often: at least 10ms are needed"));
            }
            options.checkpoint_period = Period::Every(every);
        }
        "checkpoint-policy" => {
            policy::order(value)?;
            options.checkpoint_policy = Some(value.to_string());
        }
        "checkpoint-in-flight" => match number()? as usize {
            0 => return Err("at least one image must be on its way, or there are none".to_string()),
            images => options.images_in_flight = Some(images),
        },
        "mtbf" => options.mtbf = Some(parse_duration(value)?),
        "log-prefault" => options.log_prefault = parse_size(value)?,
        "checkpoint-dir" => options.checkpoint_directory = Some(PathBuf::from(value)),
        "checkpoint-compress" => options.checkpoint_compress = Some(parse_compression(value)?),
        "checkpoint-keep" => options.checkpoint_keep = true,
        "local-copies" => {
            options.local_copies = match value {
                "on" => true,
                "off" => false,
                _ => return Err(format!("{value:?} is neither on nor off")),
            }
        }
        "resume-if-any" => options.resume_if_any = true,
        "checkpoint-at" => options.checkpoint_at.push(value.to_string()),
        "time-limit" => {
            options.time_limit = Some(match value {
                "slurm" => TimeLimit::Slurm,
                _ => TimeLimit::After(
                    parse_duration(value)
                        .map_err(|error| format!("{error}; or write slurm for the limit of its job"))?,
                ),
            });
        }
        "spill-dir" => options.spill_directory = Some(PathBuf::from(value)),
        "fault" => options.faults.push(value.to_string()),
        "stats" => options.stats = true,
        "stats-json" => options.stats_json = Some(PathBuf::from(value)),
        "json-events" => options.json_events = Some(PathBuf::from(value)),
        "event-logger" => options.event_logger = address(value)?,
        "spin" => {
            // The option is in microseconds; a unit may be written all the same.
            let text = if value.ends_with('s') {
                value.to_string()
            } else {
                format!("{value}us")
            };
            options.spin = Some(parse_duration(&text)?);
        }
        other => return Err(format!("{other} cannot be set here")),
    }
    Ok(())
}

fn address(value: &str) -> Result<SocketAddrV4, String> {
    let wrong = |_| format!("{value:?} is not an IPv4 address and a port, as in 127.0.0.1:7000");
    value.parse().map_err(wrong)
}

/// The level of `zstd` or `zstd:LEVEL`.
fn parse_compression(value: &str) -> Result<u8, String> {
    use resurgo_image::file::MOST_COMPRESSED;
    let wrong = || format!("{value:?} is neither zstd nor zstd:LEVEL with a level from 1 to {MOST_COMPRESSED}");
    let level = match value.strip_prefix("zstd").ok_or_else(wrong)? {
        "" => 1,
        level => level
            .strip_prefix(':')
            .and_then(|level| level.parse().ok())
            .ok_or_else(wrong)?,
    };
    if (1..=MOST_COMPRESSED).contains(&level) {
        Ok(level)
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(OsString::from).collect(), |_| None)
    }

    fn options(line: &str) -> Options {
        match parse_words(line) {
            Ok(Request::Run(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_people_type_at_mpiexec() {
        for line in [
            "-n 4 ./app -x 3",
            "-np 4 ./app -x 3",
            "-np=4 ./app -x 3",
            "--np 4 -- ./app -x 3",
        ] {
            let options = options(line);
            assert_eq!(options.programs[0].ranks, 4, "{line}");
            assert_eq!(options.programs[0].arguments, ["./app", "-x", "3"], "{line}");
        }
        let options = options("-genv A 1 -l -wdir /tmp -n 2 -env B 2 ./a x : -n 3 -envnone ./b -- :y");
        assert!(options.label);
        assert_eq!(options.size(), 5);
        assert_eq!(options.environment, [("A".into(), "1".into())]);
        assert_eq!(options.programs[0].environment, [("B".into(), "2".into())]);
        assert_eq!(options.programs[0].directory, Some("/tmp".into()));
        assert_eq!(options.programs[1].inherit, Some(Inherit::Nothing));
        assert_eq!(options.programs[1].arguments, ["./b", "--", ":y"]);
        assert_eq!(options.programs[1].directory, None);
    }

    #[test]
    fn options_of_our_own() {
        let options = options(
            "--protocol none --max-restarts 3 --max-restarts-per-rank=2 --log-memory 1.5G --log-prefault 0 \
             --spill-dir /var/tmp --fault rank=1,at=3s --fault rank=2,at=4s -q --json-events e.json \
             --event-logger 127.0.0.1:7000 --spin 20 ./a",
        );
        assert_eq!(options.protocol, PROTOCOL_NONE);
        assert_eq!((options.max_restarts, options.max_restarts_per_rank), (3, 2));
        assert_eq!((options.log_memory, options.log_prefault), (Some(3 << 29), 0));
        assert_eq!(options.faults, ["rank=1,at=3s", "rank=2,at=4s"]);
        assert_eq!(options.event_logger.port(), 7000);
        assert_eq!(options.spin, Some(Duration::from_micros(20)));
        assert!(options.quiet && options.spill_directory.is_some() && options.json_events.is_some());
    }

    #[test]
    fn the_environment_gives_options_and_the_command_line_wins() {
        let variable = |name: &str| match name {
            "RESURGO_LOG_MEMORY" => Some("64M".into()),
            "RESURGO_PROTOCOL" => Some("none".into()),
            "RESURGO_QUIET" => Some("1".into()),
            "RESURGO_FAULT" => Some("rank=0,at=1s;rank=1,at=2s".into()),
            _ => None,
        };
        let parse = |line: &str| match parse(line.split_whitespace().map(OsString::from).collect(), variable) {
            Ok(Request::Run(options)) => *options,
            other => panic!("{line}: {other:?}"),
        };
        let options = parse("--protocol pessimistic ./a");
        assert_eq!(
            (options.log_memory, options.protocol),
            (Some(64 << 20), PROTOCOL_PESSIMISTIC)
        );
        assert!(options.quiet);
        assert_eq!(options.faults.len(), 2);
        assert_eq!(
            parse("--fault rank=0,at=5s --fault rank=0,at=6s ./a").faults,
            ["rank=0,at=5s", "rank=0,at=6s"]
        );
    }

    #[test]
    fn policies_say_whose_image_comes_next() {
        let every = "--checkpoint-every 2s";
        for (line, order) in [
            ("periodic", Order::Periodic),
            ("round-robin", Order::RoundRobin),
            ("random", Order::Random { seed: 1 }),
            ("random,seed=9", Order::Random { seed: 9 }),
            ("most-log", Order::MostLog),
        ] {
            let options = options(&format!("--checkpoint-policy {line} {every} ./a"));
            assert_eq!(options.checkpoint_order, order);
            assert_eq!(options.checkpoint_period, Period::Every(Duration::from_secs(2)));
        }
        let mtbf = Some(Duration::from_secs(3600));
        for line in ["--checkpoint-policy daly", "--checkpoint-every daly"] {
            let options = options(&format!("{line} --mtbf 1h --protocol blocking ./a"));
            assert_eq!(options.checkpoint_period, Period::Daly { mtbf });
        }
        let both = options("--checkpoint-policy round-robin --checkpoint-every daly ./a");
        assert_eq!(
            (both.checkpoint_order, both.checkpoint_period),
            (Order::RoundRobin, Period::Daly { mtbf: None })
        );
    }

    #[test]
    fn local_copies_are_on_unless_said() {
        assert!(options("--checkpoint-dir d ./a").local_copies && options("--local-copies on ./a").local_copies);
        for protocol in [
            "auto",
            "pessimistic",
            "causal",
            "blocking",
            "chandy-lamport",
            "group",
            "hierarchical",
            "channel-memory",
        ] {
            let options = options(&format!(
                "-n 4 --protocol {protocol} --local-copies off --checkpoint-dir d ./a"
            ));
            assert!(!options.local_copies, "{protocol}");
        }
        let variable = |name: &str| (name == "RESURGO_LOCAL_COPIES").then(|| "off".into());
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect();
        match parse(words("--checkpoint-dir d ./a"), variable) {
            Ok(Request::Run(options)) => assert!(!options.local_copies),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn levels_of_compression() {
        for (value, level) in [("zstd", 1), ("zstd:1", 1), ("zstd:19", 19)] {
            let options = options(&format!("--checkpoint-dir d --checkpoint-compress {value} ./a"));
            assert_eq!(options.checkpoint_compress, Some(level), "{value}");
        }
        assert_eq!(options("--checkpoint-dir d ./a").checkpoint_compress, None);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (line, expected) in [
            ("", "no program"),
            ("-n 4", "no program"),
            ("-n 4 ./a :", "no program"),
            ("-n 0 ./a", "at least one rank"),
            ("-n 5000 ./a", "4096"),
            ("-n 4000 ./a : -n 4000 ./b", "4096"),
            ("-n four ./a", "not a number"),
            ("-n", "needs a value"),
            ("-env A", "needs a name and a value"),
            ("-env A=B C ./a", "not a name"),
            ("-l=3 ./a", "takes no value"),
            ("--protocl none ./a", "did you mean --protocol?"),
            (
                "--checkpoint-dir d --checkpoint-compress gzip ./a",
                "neither zstd nor zstd:LEVEL with a level from 1 to 19",
            ),
            ("--checkpoint-dir d --checkpoint-compress zstd:0 ./a", "from 1 to 19"),
            ("--checkpoint-dir d --checkpoint-compress zstd:20 ./a", "from 1 to 19"),
            ("--checkpoint-dir d --checkpoint-compress zstd3 ./a", "from 1 to 19"),
            ("--checkpoint-compress zstd ./a", "needs --checkpoint-dir"),
            ("--local-copies no --checkpoint-dir d ./a", "neither on nor off"),
            ("--local-copies off ./a", "add --checkpoint-dir DIR"),
            (
                "--local-copies off --protocol chandy-lamport ./a",
                "add --checkpoint-dir DIR",
            ),
            ("--local-copies off --protocol none ./a", "needs images"),
            (
                "--local-copies off --tolerate node --checkpoint-dir d ./a",
                "needs images",
            ),
            ("--log-memroy 3M ./a", "did you mean --log-memory?"),
            ("-gnev A B ./a", "did you mean -genv?"),
            ("--xyzzy ./a", "--help lists them"),
            ("-host a ./a", "one machine"),
            ("--protocol pesimistic ./a", "did you mean pessimistic?"),
            ("--log-memory lots ./a", "not a size"),
            ("--log-memory 4K ./a", "too small"),
            ("--log-memory 1T ./a", "too much"),
            ("--tolerate disk ./a", "neither process nor node"),
            ("--tolerate node --protocol none ./a", "does not tolerate"),
            ("--reduction logon ./a", "is for --protocol causal"),
            ("--protocol causal --reduction logon ./a", "needs --tolerate node"),
            ("--protocol causal --reduction manhatto ./a", "did you mean manetho?"),
            ("--event-loggers 1 ./a", "needs --tolerate node"),
            ("--tolerate node --event-loggers 0 ./a", "needs --protocol causal"),
            (
                "-n 2 --tolerate node --event-loggers 3 ./a",
                "--event-loggers 2 at most",
            ),
            ("--tolerate node --event-loggers 99 ./a", "at most 64"),
            (
                "--protocol causal --tolerate node --clock-spread multicast ./a",
                "add --event-loggers 2",
            ),
            (
                "-n 2 --tolerate node --event-loggers 2 --clock-spread broadcast ./a",
                "for --protocol causal",
            ),
            (
                "--protocol causal --tolerate node --clock-spread gossip ./a",
                "there are multicast, broadcast",
            ),
            (
                "--group-size 2 ./a",
                "--group-size is for --protocol group and hierarchical",
            ),
            (
                "--protocol blocking --groups dynamic ./a",
                "under blocking all ranks have their images together",
            ),
            (
                "--protocol chandy-lamport --groups-at-once 2 ./a",
                "is for --protocol group",
            ),
            (
                "--protocol pessimistic --group-size 2 ./a",
                "each rank has its images alone",
            ),
            ("--protocol group --group-size 0 ./a", "at least one rank"),
            ("-n 4 --protocol group --group-size 5 ./a", "--group-size 4 at most"),
            ("--protocol group --group-size x ./a", "not a number"),
            (
                "-n 4 --protocol group --groups list --group-size 2 ./a",
                "leave --group-size out",
            ),
            ("--protocol group --groups-at-once 0 ./a", "at least one group"),
            ("-n 4 --protocol group --groups-at-once 2 ./a", "needs --checkpoint-dir"),
            (
                "-n 4 --protocol group --groups static --group-size 2 --groups-at-once 3 --checkpoint-dir d ./a",
                "--groups-at-once 2 at most",
            ),
            (
                "-n 4 --protocol group --checkpoint-in-flight 2 --checkpoint-dir d ./a",
                "the nearest is --groups-at-once 2",
            ),
            ("--tolerate node --protocol group ./a", "does not tolerate"),
            ("--tolerate node --protocol hierarchical ./a", "does not tolerate"),
            (
                "-n 4 --protocol hierarchical --groups dynamic ./a",
                "stay the same; the nearest is --groups static",
            ),
            (
                "-n 4 --protocol hierarchical --groups-at-once 2 --checkpoint-dir d ./a",
                "each group writes its images",
            ),
            (
                "--protocol hierarchical --spill-dir d ./a",
                "cannot be cut back to a wave",
            ),
            (
                "--protocol hierarchical --checkpoint-in-flight 2 --checkpoint-dir d ./a",
                "run with --protocol pessimistic",
            ),
            (
                "--protocol hierarchical --checkpoint-policy most-log --checkpoint-every 1s ./a",
                "a wave of each group every time",
            ),
            (
                "-n 4 --protocol hierarchical --group-size 5 ./a",
                "--group-size 4 at most",
            ),
            ("--event-logger here ./a", "not an IPv4 address"),
            ("--channel-memory here ./a", "not an IPv4 address"),
            ("--channel-memories 1 ./a", "are for --protocol channel-memory"),
            ("--protocol causal --channel-memory 127.0.0.1:0 ./a", "causal has none"),
            (
                "--protocol channel-memory --channel-memories 0 ./a",
                "--channel-memories 1 at least",
            ),
            (
                "-n 2 --protocol channel-memory --channel-memories 3 ./a",
                "--channel-memories 2 at most",
            ),
            ("--protocol channel-memory --channel-memories 99 ./a", "at most 64"),
            ("--protocol channel-memory --tolerate node ./a", "leave --tolerate out"),
            (
                "--protocol channel-memory --event-loggers 1 ./a",
                "needs --tolerate node",
            ),
            (
                "--protocol channel-memory --checkpoint-dir d --time-limit 1h ./a",
                "cannot be suspended",
            ),
            (
                "--protocol channel-memory --checkpoint-dir d --resume-if-any ./a",
                "cannot be suspended",
            ),
            ("--protocol chanel-memory ./a", "did you mean channel-memory?"),
            ("--spin soon ./a", "not a duration"),
            ("--stats-json a --json-events a ./a", "files of their own"),
            ("--checkpoint-every now ./a", "not a duration"),
            ("--checkpoint-every 1ms ./a", "too often"),
            ("--checkpoint-policy round-robbin ./a", "did you mean round-robin?"),
            ("--checkpoint-policy xyzzy ./a", "there are periodic"),
            ("--checkpoint-policy random,seed=x ./a", "random,seed=N"),
            ("--checkpoint-policy most-log,seed=1 ./a", "only random"),
            ("--checkpoint-policy most-log ./a", "how often"),
            ("--checkpoint-policy daly --checkpoint-every 1s ./a", "chooses the time"),
            (
                "--checkpoint-policy random --checkpoint-every 1s --protocol blocking ./a",
                "the nearest is periodic",
            ),
            ("--checkpoint-policy daly --protocol none ./a", "uses no images"),
            ("--checkpoint-in-flight 0 --checkpoint-dir d ./a", "at least one"),
            ("--checkpoint-in-flight 2 ./a", "needs --checkpoint-dir"),
            (
                "--checkpoint-in-flight 2 --checkpoint-dir d --protocol blocking ./a",
                "one wave at a time",
            ),
            ("--mtbf 1h ./a", "is for --checkpoint-every daly"),
            ("--checkpoint-every 1s --protocol none ./a", "uses no images"),
            ("--checkpoint-every 1s --tolerate node ./a", "cannot be combined"),
        ] {
            match parse_words(line) {
                Err(error) => assert!(error.contains(expected), "{line}: {error}"),
                Ok(_) => panic!("{line} is accepted"),
            }
        }
    }

    #[test]
    fn help_is_help_wherever_it_stands() {
        assert_eq!(parse_words("-n 4 --help"), Ok(Request::Help));
        assert_eq!(parse_words("--version ./a"), Ok(Request::Version));
    }
}

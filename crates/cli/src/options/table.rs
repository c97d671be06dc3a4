//! The table of options. Its lines decide what the command line and the environment may say, what `--help` prints, and
//! what `resurgo resume` takes. They also decide what the reference must contain (`tests.rs`).

use std::path::PathBuf;

use resurgo_runtime::page::Page;
use resurgo_runtime::pattern::Pattern;
use resurgo_runtime::units::{parse_duration, parse_size};
use resurgo_wire::node_memory::{MAX_SERVERS, REDUCTIONS};

use super::types::{Inherit, Options};
use super::values::*;
use super::written::Written;
use resurgo_runtime::binding::Unit;

/// One option.
pub struct Line {
    /// As help shows them, separated by blanks; all mean the same.
    names: &'static str,
    /// Placeholders of its values: a word for each, none for a switch.
    pub values: &'static str,
    /// The value without the option, as a user would write it. Empty: nothing, or a value chosen when the job begins.
    pub default: &'static str,
    places: Places,
    pub help: &'static str,
    pub does: Does,
}

/// Lines that help shows together.
pub struct Section {
    pub title: &'static str,
    pub lines: &'static [Line],
}

/// What an option does.
pub enum Does {
    /// Sets something for the whole job.
    Job(fn(&mut Options, &str) -> Result<(), String>),
    /// The same, any number of times; the environment separates the values by `;`.
    JobAgain(fn(&mut Options, &str) -> Result<(), String>),
    /// Concerns the program that follows, or values that need not be UTF-8.
    Program(fn(Written) -> Result<(), String>),
    /// Chooses among hosts or their networks. Here there is one of each: accepted, without effect.
    Nothing,
    Help,
    Version,
    /// Is no option, but a mark of the command line.
    Mark,
}

use Does::{Help, Job, JobAgain, Mark, Nothing, Program, Version};

/// Where an option can be given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// On the command line of `resurgo run`.
    Run,
    /// There and in the environment. A suspended job keeps it.
    RunOrEnvironment,
    /// On the command line of `resurgo run`, and anew on that of `resurgo resume`.
    RunOrResume,
    /// All three.
    Everywhere,
}

use Places::{Everywhere, Run, RunOrEnvironment, RunOrResume};

impl Line {
    /// Its names, with their dashes.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(' ')
    }

    /// Its names, without dashes.
    pub fn bare_names(&self) -> impl Iterator<Item = &'static str> {
        self.names().map(|name| name.trim_start_matches('-'))
    }

    /// Its names that are words.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.bare_names().filter(|name| name.len() > 1)
    }

    pub fn is(&self, name: &str) -> bool {
        self.bare_names().any(|known| known == name)
    }

    pub fn value_count(&self) -> usize {
        self.values.split_whitespace().count()
    }

    /// Whether it is on or off, without a value.
    pub fn is_switch(&self) -> bool {
        self.values.is_empty()
    }

    pub fn is_for_resume(&self) -> bool {
        matches!(self.places, RunOrResume | Everywhere)
    }

    /// The variable that gives it, if there is one. It is named after the first name that is a word.
    pub fn variable(&self) -> Option<String> {
        let has_one = matches!(self.places, RunOrEnvironment | Everywhere);
        let word = self.words().next().filter(|_| has_one)?;
        Some(format!("RESURGO_{}", word.to_ascii_uppercase().replace('-', "_")))
    }
}

/// Every option.
pub fn options() -> impl Iterator<Item = &'static Line> {
    SECTIONS
        .iter()
        .flat_map(|section| section.lines)
        .filter(|line| !matches!(line.does, Mark))
}

/// The option `name`, without dashes.
pub fn find(name: &str) -> Option<&'static Line> {
    options().find(|line| line.is(name))
}

/// Each line: names, values, default; where it can be given; its text in help; what it does.
macro_rules! table {
    ($($title:literal { $($names:literal $values:literal $default:literal $places:ident $help:literal $does:expr;)* })*) => {
        pub const SECTIONS: &[Section] = &[$(Section {
            title: $title,
            lines: &[$(Line {
                names: $names,
                values: $values,
                default: $default,
                places: $places,
                help: $help,
                does: $does,
            },)*],
        },)*];
    };
}

table! {
"As at mpiexec" {
    "-n -np" "N" "" Run
        "ranks that run the program (1, or as many as the hosts of the command line or of Slurm have slots)"
        Program(ranks);
    "-wdir -wd" "DIR" "" Run
        "working directory of the program"
        Program(|given| { given.program.directory = Some(given.path()); Ok(()) });
    "-env" "NAME VALUE" "" Run
        "environment of this program"
        Program(|given| given.pair().map(|pair| given.program.environment.push(pair)));
    "-genv" "NAME VALUE" "" Run
        "environment of all programs"
        Program(|given| given.pair().map(|pair| given.options.environment.set.push(pair)));
    "-x" "NAME[=VALUE]" "" Run
        "give all programs this variable"
        Program(variable);
    "-envall" "" "" Run
        "give this program all of the environment (the default)"
        Program(|given| { given.program.inherit = Some(Inherit::All); Ok(()) });
    "-envnone" "" "" Run
        "give this program none of the environment"
        Program(|given| { given.program.inherit = Some(Inherit::Nothing); Ok(()) });
    "-envlist" "A,B" "" Run
        "give this program only these variables"
        Program(|given| { given.program.inherit = Some(given.listed()); Ok(()) });
    "-genvall" "" "" Run
        "as -envall, for all programs"
        Program(|given| { given.options.environment.inherit = Inherit::All; Ok(()) });
    "-genvnone" "" "" Run
        "as -envnone, for all programs"
        Program(|given| { given.options.environment.inherit = Inherit::Nothing; Ok(()) });
    "-genvlist" "A,B" "" Run
        "as -envlist, for all programs"
        Program(|given| { given.options.environment.inherit = given.listed(); Ok(()) });
    "-l -label -prepend-rank" "" "" Everywhere
        "label every line of output with its rank"
        Job(|options, _| { options.output.label = Some(Pattern::label()); Ok(()) });
    "-prepend-pattern" "TEXT" "" RunOrResume
        "label it so: %r rank, %g group, %h host, %t time"
        Job(|options, value| Pattern::parse(value).map(|text| options.output.label = Some(text)));
    "-outfile-pattern" "FILE" "" Run
        "write standard output of ranks into files, as out.%r"
        Job(|options, value| file_pattern(value).map(|files| options.output.files[0] = Some(files)));
    "-errfile-pattern" "FILE" "" Run
        "the same for standard error"
        Job(|options, value| file_pattern(value).map(|files| options.output.files[1] = Some(files)));
    "-bind-to" "UNIT" "" Run
        "run each rank on a core, socket, numa, hwthread (core:2: two of them) or on user:0+1,2+3"
        Job(|options, value| Unit::parse(value).map(|unit| options.binding.to = Some((value.to_string(), unit))));
    "-map-by" "UNIT" "" Run
        "with -bind-to: in this order"
        Job(|options, value| Unit::parse(value).map(|unit| options.binding.by = Some((value.to_string(), unit))));
    "-timeout" "TIME" "" RunOrResume
        "end the job after so long (also MPIEXEC_TIMEOUT, in seconds)"
        Job(|options, value| some_time(value).map(|time| options.ends.timeout = Some(time)));
    "-memory-alloc-kinds" "A,B:C" "" Run
        "ask MPI for these kinds of memory (mpi_memory_alloc_kinds)"
        Job(|options, value| memory_kinds(value).map(|kinds| options.memory_alloc_kinds = Some(kinds)));
    "-print-all-exitcodes" "" "" RunOrResume
        "print the exit code of every rank at the end"
        Job(|options, _| { options.output.exit_codes = true; Ok(()) });
    "-v -verbose" "" "" RunOrResume
        "tell of every life of a rank, and which libraries are used"
        Job(|options, _| { options.output.verbose = true; Ok(()) });
    ":" "" "" Run
        "another program follows, with hosts of its own if -hosts or -f stand before it"
        Mark;
    "-configfile" "FILE" "" Run
        "the programs are in FILE, one a line"
        Program(config_file);
    "-hosts -host -H" "A,B:4" "" RunOrResume
        "run ranks on these hosts: each takes one rank in turn, or as many as it has slots (:4)"
        Program(hosts_listed);
    "-f -hostfile -machinefile" "FILE" "" RunOrResume
        "the same, with the hosts in FILE, one a line: host, host:4 or host slots=4"
        Program(hosts_in_file);
    "-ppn -perhost" "N" "" RunOrResume
        "ranks that each host takes in turn, whatever slots it has"
        Job(|options, value| per_node(value).map(|ranks| options.nodes.per_node = Some(ranks)));
    "-launcher -bootstrap" "NAME" "" RunOrResume
        "what starts resurgo on other hosts: ssh, slurm, fork, which is for this machine alone, or join: whoever types \
         resurgo join there (slurm in a job of Slurm, otherwise ssh)"
        Job(|options, value| launcher(value).map(|launcher| options.nodes.launcher = Some(launcher)));
    "-launcher-exec -bootstrap-exec" "FILE" "" RunOrResume
        "the program to use instead of ssh or srun"
        Job(|options, value| { options.nodes.launcher_file = Some(PathBuf::from(value)); Ok(()) });
    "-rmk -localhost -usize -order-nodes -topolib -demux" "WORD" "" Run
        "accepted, without effect"
        Nothing;
    "-hybrid-hosts -disable-hostname-propagation -enable-x -disable-x --oversubscribe --allow-run-as-root" "" "" Run
        "accepted, without effect"
        Nothing;
    "-disable-auto-cleanup -enable-auto-cleanup" "" "" Run
        "accepted, without effect: --protocol and --ft say what follows from a crash"
        Nothing;
    "--" "" "" Run
        "end of the options"
        Mark;
}
"Recovery" {
    "--protocol" "NAME" "auto" RunOrEnvironment
        "what follows from a crash:\n\
         auto: a crashed rank is restarted and replayed; all return to their last images, taken together, if the \
         program does not repeat itself\n\
         pessimistic: a crashed rank is restarted and replayed\n\
         causal: messages carry what a crashed rank must be told\n\
         blocking: all ranks return to their last images, taken together\n\
         chandy-lamport: the same; each is taken while the others go on\n\
         group: the same; those of one group of ranks after the other\n\
         hierarchical: logging between groups of ranks; a failed rank's group returns to its last images, taken \
         together\n\
         channel-memory: every message goes through a process that keeps it for its receiver; a crashed rank is \
         restarted and replayed\n\
         none: a crashed rank ends the job"
        Job(protocol);
    "--ft" "" "" Run
        "the program deals with failures itself (ULFM): a rank that fails does not begin again, and the others are \
         told; with --protocol none, on one node"
        Job(|options, _| { options.ends.survives = true; Ok(()) });
    "--ft-mode" "MODE[,MESSAGES][,strict]" "" Run
        "the same by FT-MPI's rules. A communicator with a failed member, when survivors rebuild it\n\
         shrink: has the survivors only, numbered anew\n\
         blank: is as large as before, with gaps\n\
         rebuild: is as large as before: new ranks are in the places of failed ones\n\
         rebuild-shrink: the same with new ranks behind the survivors\n\
         abort: it is not rebuilt: the job ends\n\
         MESSAGES, until then: nop: every call is an error; cont: messages between survivors go on\n\
         strict: a collective call ends well for all members, or for none"
        Job(modes);
    "--ft-after" "N" "0" RunOrEnvironment
        "with --ft or --ft-mode: a rank that fails is restarted and replayed, and nobody is told; after N restarts of the \
         rank, or if it cannot be replayed, the others are told; with --protocol pessimistic, on one node"
        Job(|options, value| number(value).map(|restarts| options.ends.after = restarts));
    "--max-restarts" "N" "64" Everywhere
        "restarts a job may have"
        Job(|options, value| number(value).map(|restarts| options.ends.restarts = restarts));
    "--max-restarts-per-rank" "N" "16" Everywhere
        "restarts a rank may have"
        Job(|options, value| number(value).map(|restarts| options.ends.restarts_per_rank = restarts));
    "--grace" "TIME" "2s" Everywhere
        "time for ranks to end after SIGTERM, SIGINT or SIGHUP"
        Job(|options, value| parse_duration(value).map(|time| options.ends.grace = time));
    "--spin" "MICROSECONDS" "" RunOrEnvironment
        "how long a waiting rank polls before it sleeps (50, or 3 when there are more ranks than cores)"
        Job(|options, value| microseconds(value).map(|time| options.spin = Some(time)));
}
"Several nodes" {
    "--nodes" "N" "" Everywhere
        "so many nodes, all on this machine, each with an agent and a memory of its own"
        Job(|options, value| nodes(value).map(|nodes| options.nodes.count = Some(nodes)));
    "--spares" "N" "" Everywhere
        "keep the last N nodes for ranks whose nodes are lost"
        Job(|options, value| at_least_one(value).map(|nodes| options.nodes.spares = nodes));
    "--allow-missing" "N" "" Everywhere
        "begin without up to N nodes that cannot be reached; their ranks go to the others"
        Job(|options, value| at_least_one(value).map(|nodes| options.nodes.may_miss = nodes));
    "--join-token-file" "FILE" "" Everywhere
        "the token that nodes must know which join; a new one is written there if there is no such file"
        Job(|options, value| { options.nodes.token_file = Some(PathBuf::from(value)); Ok(()) });
    "--join-port" "PORT" "" Everywhere
        "where nodes that join are waited for"
        Job(|options, value| port(value).map(|port| options.nodes.join_port = port));
    "--interface -iface" "NAME" "" Everywhere
        "nodes reach one another by the addresses of this interface: its name, or a network (10.1.0.0/16)"
        Job(|options, value| { options.nodes.interface = Some(value.to_string()); Ok(()) });
    "--preempt-signal" "SIGNAL" "" Everywhere
        "a node whose agent gets this signal is about to be taken away: its ranks go on elsewhere"
        Job(|options, value| notice(value).map(|signal| options.nodes.preempt_signal = Some(signal)));
    "--preempt-file" "PATH" "" Everywhere
        "so is a node on which there is such a file"
        Job(|options, value| { options.nodes.preempt_file = Some(PathBuf::from(value)); Ok(()) });
    "--preempt-url" "URL" "" Everywhere
        "so is a node for which this page says so (http://169.254.169.254/...), as AWS, Google Cloud and Azure have it"
        Job(|options, value| { Page::at(value)?; options.nodes.preempt_url = Some(value.to_string()); Ok(()) });
    "--lease" "TIME" "3s" Everywhere
        "how long a node may be silent before its ranks are taken for lost"
        Job(|options, value| lease(value).map(|lease| options.nodes.lease = lease));
    "--hold" "TIME" "60s" Everywhere
        "how long the ranks of a node that hears nothing stand still before they end"
        Job(|options, value| parse_duration(value).map(|hold| options.nodes.hold = hold));
    "--encrypt" "" "" RunOrEnvironment
        "encrypt what nodes say to one another (TLS 1.3)"
        Job(|options, _| { options.nodes.is_encrypted = true; Ok(()) });
}
"Images" {
    "--checkpoint-every" "TIME" "" Everywhere
        "take an image of each rank so often, from which it can go on; or daly: as often as is best for the time to \
         solution"
        Job(|options, value| period(value).map(|period| options.images.period = period));
    "--checkpoint-share" "PERCENT" "10%" Everywhere
        "the part of the job's time that images may take"
        Job(|options, value| share(value).map(|share| options.images.share = share));
    "--checkpoint-policy" "NAME" "periodic" Everywhere
        "whose image comes next: periodic, round-robin, random[,seed=N], most-log (whose image frees most of the \
         message logs), or daly"
        Job(policy);
    "--checkpoint-in-flight" "N" "" Everywhere
        "most images that are taken or written to files at the same time"
        Job(|options, value| at_least_one(value).map(|images| options.images.in_flight = Some(images)));
    "--mtbf" "TIME" "" Everywhere
        "mean time between failures of the job, for daly (otherwise as observed)"
        Job(|options, value| mtbf(value).map(|time| options.images.mtbf = Some(time)));
    "--checkpoint-at" "SPEC" "" Everywhere
        "take an image after so many messages: rank=1,messages=1000"
        JobAgain(|options, value| { options.images.at.push(value.to_string()); Ok(()) });
    "--checkpoint-signal" "NAME" "USR1" Everywhere
        "the signal to resurgo run that takes images: USR1, USR2, none"
        Job(|options, value| signal(value).map(|signal| options.images.signal = signal));
    "--checkpoint-dir" "DIR" "" RunOrEnvironment
        "write images of ranks into files there as well"
        Job(|options, value| directory(value).map(|path| options.images.directory = Some(path)));
    "--checkpoint-compress" "zstd[:LEVEL]" "" RunOrEnvironment
        "compress those files: level 1 (zstd alone) to 19"
        Job(|options, value| compression(value).map(|level| options.images.compress = Some(level)));
    "--checkpoint-keep" "" "" Everywhere
        "keep the last image files when the job has ended well"
        Job(|options, _| { options.images.keep = true; Ok(()) });
    "--store" "PLACE[,PLACE]" "" RunOrEnvironment
        "copy complete waves there: dir:/PATH, server:HOST[:PORT], s3://BUCKET/PREFIX, gs://, az://; each may have \
         ;every=N;rate=SIZE;keep=N. server:HOST;start: the job starts it. peers:N: each image to N other nodes of the \
         job (1). parity:N+M: instead, M pieces of parity for N images of a wave, on other nodes; either may have \
         ;rate=SIZE. local: each stays on \
         its own node, as always"
        Job(|options, value| add_places(&mut options.images, value));
    "--store-key" "FILE" "" Everywhere
        "encrypt what goes there with the key in FILE"
        Job(|options, value| file(value).map(|path| options.images.store_key = Some(path)));
    "--local-copies" "on|off" "on" RunOrEnvironment
        "keep images in memory beside their files: only a rank that has lost its own reads its file"
        Job(|options, value| on_or_off(value).map(|is_on| options.images.local_copies = is_on));
    "--time-limit" "TIME" "" Everywhere
        "suspend the job before it has run so long; slurm: before Slurm ends it"
        Job(|options, value| time_limit(value).map(|limit| options.ends.time_limit = Some(limit)));
    "--resume-if-any" "" "" RunOrEnvironment
        "go on with the suspended job of the same command, if there is one"
        Job(|options, _| { options.resume_if_any = true; Ok(()) });
}
"Groups of ranks" {
    "--groups" "HOW" "" RunOrEnvironment
        "with group: dynamic (if not given: by who talks to whom), static (by size and rank) or a file with a line of \
         ranks for each group; with hierarchical: static (if not given) or a file"
        Job(groups);
    "--group-size" "N" "" RunOrEnvironment
        "ranks in a group (otherwise the square root of their number)"
        Job(|options, value| group_size(value).map(|ranks| options.groups.size = Some(ranks)));
    "--groups-at-once" "N" "1" RunOrEnvironment
        "most groups that write image files at the same time"
        Job(|options, value| groups_at_once(value).map(|groups| options.groups.at_once = groups));
}
"Message logs" {
    "--log-memory" "SIZE" "" RunOrEnvironment
        "bound of the message log of each rank (otherwise half of the available memory divided by the ranks, at most \
         8G)"
        Job(|options, value| log_memory(value).map(|bytes| options.log.memory = Some(bytes)));
    "--log-prefault" "SIZE" "4M" RunOrEnvironment
        "memory each rank touches at its start"
        Job(|options, value| parse_size(value).map(|bytes| options.log.prefault = bytes));
    "--spill-dir" "DIR" "" RunOrEnvironment
        "write the log to a file there when its bound is reached"
        Job(|options, value| { options.log.spill_directory = Some(PathBuf::from(value)); Ok(()) });
}
"Event loggers and channel memories" {
    "--tolerate" "LOSS" "process" RunOrEnvironment
        "process or node: what the record of deliveries has to survive"
        Job(|options, value| tolerate(value).map(|is_node| options.tolerate_node = is_node));
    "--event-loggers" "N" "1" RunOrEnvironment
        "how many there are, with --tolerate node; 0 only with causal"
        Job(|options, value| servers(value, MAX_SERVERS).map(|loggers| options.loggers.count = loggers));
    "--event-logger" "ADDR:PORT" "127.0.0.1:0" RunOrEnvironment
        "where the event logger listens"
        Job(|options, value| address(value).map(|address| options.loggers.address = address));
    "--reduction" "NAME" "manetho" RunOrEnvironment
        "vcausal, manetho or logon: how causal keeps messages small"
        Job(|options, value| choice(value, "reduction", &REDUCTIONS).map(|way| options.loggers.reduction = way));
    "--clock-spread" "HOW" "multicast" RunOrEnvironment
        "multicast, broadcast or piggyback, with several event loggers"
        Job(clock_spread);
    "--channel-memories" "N" "1" RunOrEnvironment
        "how many there are, with channel-memory"
        Job(|options, value| servers(value, MAX_SERVERS).map(|count| options.memories.count = count));
    "--channel-memory" "ADDR:PORT" "127.0.0.1:0" RunOrEnvironment
        "where the channel memory listens"
        Job(|options, value| address(value).map(|address| options.memories.address = address));
    "--channel-memory-hosts" "HOSTS" "" RunOrEnvironment
        "hosts that run channel memories, and no rank: a,b:2"
        Job(memory_hosts);
}
"Trying it out" {
    "--fault" "SPEC" "" Everywhere
        "kill ranks, or nodes:\n\
         rank=2,at=3s or rank=all,at=1s\n\
         rank=1,messages=1000\n\
         rank=1,during=replay\n\
         random,seed=7,mean=2s[,count=5]\n\
         node=2,at=3s or node=random,at=3s\n\
         node=random,mean=9s[,seed=7][,count=5]"
        JobAgain(|options, value| { options.faults.push(value.to_string()); Ok(()) });
}
"Messages" {
    "-q --quiet" "" "" Everywhere
        "tell errors only"
        Job(|options, _| { options.output.quiet = true; Ok(()) });
    "--json-events" "FILE" "" Everywhere
        "write what happens as JSON, one object a line"
        Job(|options, value| { options.output.reports.json_events = Some(PathBuf::from(value)); Ok(()) });
    "--stats" "" "" Everywhere
        "print at the end what messages, checkpoints and recoveries have cost"
        Job(|options, _| { options.output.reports.stats = true; Ok(()) });
    "--stats-json" "FILE" "" Everywhere
        "write that into this file as JSON"
        Job(|options, value| { options.output.reports.stats_json = Some(PathBuf::from(value)); Ok(()) });
    "--trace" "FILE" "" Everywhere
        "write a trace there that shows messages, waits, images, failures and replays (for ui.perfetto.dev)"
        Job(|options, value| { options.output.reports.trace = Some(PathBuf::from(value)); Ok(()) });
    "--trace-memory" "SIZE" "16M" RunOrEnvironment
        "memory for the trace of each rank; the newest part of the trace is kept"
        Job(|options, value| trace_memory(value).map(|bytes| options.output.trace_memory = bytes));
    "--metrics" "ADDR:PORT" "" Everywhere
        "answer there with metrics of the job (OpenMetrics, http://ADDR:PORT/metrics)"
        Job(|options, value| address(value).map(|address| options.output.reports.metrics = Some(address)));
    "--metrics-file" "FILE" "" Everywhere
        "write them into this file every 5 s, and at the end"
        Job(|options, value| { options.output.reports.metrics_file = Some(PathBuf::from(value)); Ok(()) });
    "--web" "ADDR:PORT" "" Everywhere
        "show the job to browsers there, as resurgo web does; 127.0.0.1:0 takes a free port"
        Job(|options, value| address(value).map(|address| options.output.web = Some(address)));
    "--notify" "COMMAND" "" Everywhere
        "run this command of the shell when ranks fail or recover, and at the end; $NOTIFY_EVENT says what it is"
        Job(|options, value| { options.output.reports.notify = Some(value.into()); Ok(()) });
    "--journal" "" "" Everywhere
        "write what fails and recovers, and the end, into the journal of the system"
        Job(|options, _| { options.output.reports.journal = true; Ok(()) });
    "--no-config" "" "" RunOrEnvironment
        "read no configuration files; resurgo config tells which there are"
        Job(|options, _| { options.without_files = true; Ok(()) });
    "-h --help" "" "" RunOrResume
        "print this"
        Help;
    "--version" "" "" RunOrResume
        "print the version"
        Version;
}
}

//! Names that are no options: those of other launchers, with what to write instead, and those that resemble ours.

use super::table::{self, find};
use super::written::{attached_number, split};
use crate::near::nearest;

/// Variables beginning with `RESURGO_` that are no options. They say where things are. Others are set by resurgo, its
/// tests or its build, and programs inside a rank inherit them.
const OTHER_VARIABLES: &[&str] = &[
    "RESURGO_FABRIC_DIR",
    "RESURGO_LIBFABRIC_DIR",
    resurgo_wire::node_memory::ENV_RANK,
    crate::clock::TRIED,
    resurgo_store::KEY_VARIABLE,
    "RESURGO_DEPS",
    "RESURGO_PYTHON",
    "RESURGO_TEST_MARK",
    "RESURGO_BENCH_MARK",
];

const OF_OPEN_MPI: &str = "programs run with MPICH or Intel MPI here, for which parameters of Open MPI mean nothing; leave it out \
                           (theirs are variables: -genv NAME VALUE)";
const ONE_COUNT: &str = "there is one node; write how many ranks it runs in all, as -n 4";
const OWN_PMI: &str = "ranks reach resurgo's own PMI without it; leave it out";
const BINDING: &str = "write -bind-to core, socket, numa or hwthread";
const DEBUGGER: &str = "write the debugger before the program, as in resurgo run -n 2 xterm -e gdb ./program";
const GPUS: &str = "ranks see all GPUs; let the program choose by its rank";
const IMAGES: &str = "write --checkpoint-every TIME, and --checkpoint-dir DIR for files";
const TAGS: &str = "write -l, or -prepend-pattern '%t [%r] '";

/// Options of other launchers that have no effect here, and what to write.
const ELSEWHERE: &[(&str, &str)] = &[
    ("mca", OF_OPEN_MPI),
    ("gmca", OF_OPEN_MPI),
    ("omca", OF_OPEN_MPI),
    ("pmca", OF_OPEN_MPI),
    ("prtemca", OF_OPEN_MPI),
    ("am", OF_OPEN_MPI),
    ("tune", OF_OPEN_MPI),
    ("N", ONE_COUNT),
    ("npernode", ONE_COUNT),
    ("pernode", ONE_COUNT),
    ("npersocket", ONE_COUNT),
    ("ntasks", ONE_COUNT),
    ("ntasks-per-node", ONE_COUNT),
    (
        "nooversubscribe",
        "there is no limit of ranks for each core; leave it out",
    ),
    ("rankmap", "there is one node, which runs all ranks; leave it out"),
    ("skip-launch-node", "there is one node, this one; leave it out"),
    ("prefix", "there is one node; leave it out"),
    (
        "rank-by",
        "ranks have the numbers of the command line's order; leave it out",
    ),
    ("rankfile", "write -bind-to user:LIST, the cpus of each rank"),
    ("rf", "write -bind-to user:LIST, the cpus of each rank"),
    ("bind-to-core", BINDING),
    ("bind-to-socket", BINDING),
    ("binding", BINDING),
    ("cpu-bind", BINDING),
    ("bycore", BINDING),
    ("bysocket", BINDING),
    ("byslot", BINDING),
    ("bynode", ONE_COUNT),
    ("cpus-per-proc", "write -bind-to core:N"),
    ("cpus-per-rank", "write -bind-to core:N"),
    ("cpu-set", "write taskset -c LIST before resurgo run"),
    ("cpu-list", "write taskset -c LIST before resurgo run"),
    ("membind", "write numactl --membind=NODES before resurgo run"),
    ("report-bindings", "-v tells the cpus of each rank"),
    ("display-map", "-v tells the cpus of each rank"),
    (
        "output-filename",
        "write -outfile-pattern FILE.%r and -errfile-pattern FILE.%r",
    ),
    ("output", TAGS),
    ("tag-output", TAGS),
    ("timestamp-output", TAGS),
    (
        "stdin",
        "rank 0 has the standard input, the others have none; leave it out",
    ),
    (
        "enable-recovery",
        "it is what --protocol says, and on by itself; leave it out",
    ),
    ("ckpoint-interval", IMAGES),
    ("ckpoint-prefix", IMAGES),
    ("ckpointlib", IMAGES),
    ("nameserver", "ports are published within a job only; leave it out"),
    ("pmi-port", OWN_PMI),
    ("pmi", OWN_PMI),
    ("mpi", OWN_PMI),
    ("gpus-per-proc", GPUS),
    ("gpus-per-node", GPUS),
    ("info", "resurgo --version and resurgo doctor ./program tell"),
    ("V", "write --version"),
    ("profile", "write --stats"),
    ("gdb", DEBUGGER),
    ("tv", DEBUGGER),
    ("debug", DEBUGGER),
    ("path", "write the program with its directory, or -wdir DIR"),
    ("file", "write -configfile FILE"),
];

/// Whether a word in a value's place is an option instead.
pub fn is_option(word: &str) -> bool {
    let (name, _) = split(word);
    let elsewhere = || ELSEWHERE.iter().any(|(other, _)| *other == name);
    word == "--" || word.starts_with('-') && (find(name).is_some() || attached_number(name).is_some() || elsewhere())
}

/// The message for an unknown option.
pub fn unknown(text: &str, name: &str) -> String {
    if let Some((_, why)) = ELSEWHERE.iter().find(|(other, _)| *other == name) {
        return format!("{text}: {why}");
    }
    let known = table::options().flat_map(|line| line.names().zip(line.bare_names()));
    let known: Vec<(&str, &str)> = known.filter(|(_, bare)| bare.len() > 1).collect();
    let bare: Vec<&str> = known.iter().map(|(_, bare)| *bare).collect();
    let near = nearest(name, &bare).and_then(|near| known.iter().find(|(_, bare)| *bare == near));
    match near {
        Some((shown, _)) => format!("unknown option {text}; did you mean {shown}?"),
        None => format!("unknown option {text}; resurgo run --help lists them"),
    }
}

/// Refuses an unknown variable beginning with `RESURGO_`: the user meant it to have an effect.
pub fn check_variable(variable: &str) -> Result<(), String> {
    let names: Vec<String> = table::options().filter_map(|line| line.variable()).collect();
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(OTHER_VARIABLES.iter().copied())
        .collect();
    if !variable.starts_with("RESURGO_") || names.contains(&variable) {
        return Ok(());
    }
    // The common beginning says nothing about how similar they are.
    let tails: Vec<&str> = names.iter().map(|name| &name["RESURGO_".len()..]).collect();
    let hint = match nearest(&variable["RESURGO_".len()..], &tails) {
        Some(near) => format!("did you mean RESURGO_{near}? Otherwise unset it"),
        None => "unset it; resurgo run --help says which options can be given so".to_string(),
    };
    Err(format!(
        "the environment has {variable}, which means nothing to resurgo; {hint}"
    ))
}

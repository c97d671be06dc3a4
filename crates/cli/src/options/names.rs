//! The names of options: one table of those that there are, and what to say of those of other launchers.

/// An option of the command line.
pub(super) struct Known {
    pub name: &'static str,
    /// How many values it takes.
    pub values: usize,
    places: u8,
}

/// The environment can give it, too, as `RESURGO_NAME`.
const ENVIRONMENT: u8 = 1;
/// It can be given anew when a job is resumed; all others are part of what was suspended.
const RESUME: u8 = 2;
/// It chooses among hosts or their networks, of which there is one here: accepted, and without effect.
const ONE_NODE: u8 = 4;

const fn known(name: &'static str, values: usize, places: u8) -> Known {
    Known { name, values, places }
}

impl Known {
    pub fn is_in_environment(&self) -> bool {
        self.places & ENVIRONMENT != 0
    }

    pub fn is_for_resume(&self) -> bool {
        self.places & RESUME != 0
    }

    pub fn is_without_effect(&self) -> bool {
        self.places & ONE_NODE != 0
    }

    /// It is on or off.
    pub fn is_switch(&self) -> bool {
        self.values == 0
    }

    /// The variable that gives it.
    pub fn variable(&self) -> String {
        format!("RESURGO_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }
}

/// Every option.
pub(super) const OPTIONS: &[Known] = &[
    known("n", 1, 0),
    known("np", 1, 0),
    known("env", 2, 0),
    known("genv", 2, 0),
    known("x", 1, 0),
    known("envall", 0, 0),
    known("envnone", 0, 0),
    known("envlist", 1, 0),
    known("genvall", 0, 0),
    known("genvnone", 0, 0),
    known("genvlist", 1, 0),
    known("wdir", 1, 0),
    known("wd", 1, 0),
    known("configfile", 1, 0),
    known("l", 0, RESUME),
    known("label", 0, ENVIRONMENT | RESUME),
    known("prepend-rank", 0, RESUME),
    known("prepend-pattern", 1, RESUME),
    known("outfile-pattern", 1, 0),
    known("errfile-pattern", 1, 0),
    known("print-all-exitcodes", 0, RESUME),
    known("timeout", 1, RESUME),
    known("v", 0, RESUME),
    known("verbose", 0, RESUME),
    known("bind-to", 1, 0),
    known("map-by", 1, 0),
    known("f", 1, 0),
    known("hostfile", 1, 0),
    known("machinefile", 1, 0),
    known("host", 1, 0),
    known("hosts", 1, 0),
    known("H", 1, 0),
    known("ppn", 1, ONE_NODE),
    known("perhost", 1, ONE_NODE),
    known("launcher", 1, ONE_NODE),
    known("launcher-exec", 1, ONE_NODE),
    known("bootstrap", 1, ONE_NODE),
    known("bootstrap-exec", 1, ONE_NODE),
    known("rmk", 1, ONE_NODE),
    known("iface", 1, ONE_NODE),
    known("localhost", 1, ONE_NODE),
    known("usize", 1, ONE_NODE),
    known("order-nodes", 1, ONE_NODE),
    known("topolib", 1, ONE_NODE),
    known("demux", 1, ONE_NODE),
    known("hybrid-hosts", 0, ONE_NODE),
    known("disable-hostname-propagation", 0, ONE_NODE),
    known("enable-x", 0, ONE_NODE),
    known("disable-x", 0, ONE_NODE),
    known("oversubscribe", 0, ONE_NODE),
    known("allow-run-as-root", 0, ONE_NODE),
    known("protocol", 1, ENVIRONMENT),
    known("tolerate", 1, ENVIRONMENT),
    known("reduction", 1, ENVIRONMENT),
    known("event-loggers", 1, ENVIRONMENT),
    known("clock-spread", 1, ENVIRONMENT),
    known("groups", 1, ENVIRONMENT),
    known("group-size", 1, ENVIRONMENT),
    known("groups-at-once", 1, ENVIRONMENT),
    known("channel-memories", 1, ENVIRONMENT),
    known("channel-memory", 1, ENVIRONMENT),
    known("max-restarts", 1, ENVIRONMENT | RESUME),
    known("max-restarts-per-rank", 1, ENVIRONMENT | RESUME),
    known("log-memory", 1, ENVIRONMENT),
    known("log-prefault", 1, ENVIRONMENT),
    known("checkpoint-every", 1, ENVIRONMENT | RESUME),
    known("checkpoint-share", 1, ENVIRONMENT | RESUME),
    known("checkpoint-policy", 1, ENVIRONMENT | RESUME),
    known("checkpoint-in-flight", 1, ENVIRONMENT | RESUME),
    known("mtbf", 1, ENVIRONMENT | RESUME),
    known("checkpoint-dir", 1, ENVIRONMENT),
    known("checkpoint-compress", 1, ENVIRONMENT),
    known("checkpoint-signal", 1, ENVIRONMENT | RESUME),
    known("grace", 1, ENVIRONMENT | RESUME),
    known("checkpoint-keep", 0, ENVIRONMENT | RESUME),
    known("local-copies", 1, ENVIRONMENT),
    known("resume-if-any", 0, ENVIRONMENT),
    known("time-limit", 1, ENVIRONMENT | RESUME),
    known("checkpoint-at", 1, ENVIRONMENT | RESUME),
    known("spill-dir", 1, ENVIRONMENT),
    known("fault", 1, ENVIRONMENT | RESUME),
    known("q", 0, RESUME),
    known("quiet", 0, ENVIRONMENT | RESUME),
    known("json-events", 1, ENVIRONMENT | RESUME),
    known("stats", 0, ENVIRONMENT | RESUME),
    known("stats-json", 1, ENVIRONMENT | RESUME),
    known("event-logger", 1, ENVIRONMENT),
    known("spin", 1, ENVIRONMENT),
    known("h", 0, RESUME),
    known("help", 0, RESUME),
    known("version", 0, RESUME),
];

/// Variables beginning with `RESURGO_` that are no options: they say where things are, or resurgo itself, its tests and its
/// build set them, and what runs inside a rank inherits them.
const OTHER_VARIABLES: &[&str] = &[
    "RESURGO_FABRIC_DIR",
    "RESURGO_LIBFABRIC_DIR",
    resurgo_wire::node_memory::ENV_RANK,
    crate::clock::TRIED,
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

/// Options of other launchers that cannot be followed here, and what to write.
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
    ("disable-auto-cleanup", "no rank outlives its job; leave it out"),
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
    (
        "memory-alloc-kinds",
        "ask for it in the program, by the info of MPI_Session_init",
    ),
    ("info", "resurgo --version and resurgo doctor ./program tell"),
    ("V", "write --version"),
    ("profile", "write --stats"),
    ("gdb", DEBUGGER),
    ("tv", DEBUGGER),
    ("debug", DEBUGGER),
    ("path", "write the program with its directory, or -wdir DIR"),
    ("file", "write -configfile FILE"),
];

/// The option `name`.
pub(super) fn find(name: &str) -> Option<&'static Known> {
    OPTIONS.iter().find(|option| option.name == name)
}

/// The number in `n4` or `np4`.
pub(super) fn attached_number(name: &str) -> Option<&str> {
    let number = name.strip_prefix("np").or(name.strip_prefix('n'))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// An option, with the dashes taken away, and what follows its equals sign.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    let bare = text.strip_prefix("--").or(text.strip_prefix('-')).unwrap_or(text);
    match bare.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (bare, None),
    }
}

/// Whether a word where a value should be is rather an option that follows.
pub(super) fn is_option(word: &str) -> bool {
    let (name, _) = split(word);
    let elsewhere = || ELSEWHERE.iter().any(|(other, _)| *other == name);
    word == "--" || word.starts_with('-') && (find(name).is_some() || attached_number(name).is_some() || elsewhere())
}

/// What to say of an option that there is not.
pub(super) fn unknown(text: &str, name: &str) -> String {
    if let Some((_, why)) = ELSEWHERE.iter().find(|(other, _)| *other == name) {
        return format!("{text}: {why}");
    }
    let names = OPTIONS.iter().map(|option| option.name);
    let names: Vec<&str> = names.filter(|name| name.len() > 1).collect();
    match nearest(name, &names) {
        Some(near) => {
            let ours = find(near).is_some_and(Known::is_in_environment);
            format!(
                "unknown option {text}; did you mean {}{near}?",
                if ours { "--" } else { "-" }
            )
        }
        None => format!("unknown option {text}; resurgo run --help lists them"),
    }
}

/// Refuses a variable beginning with `RESURGO_` that means nothing: it was meant to.
pub fn check_variable(variable: &str) -> Result<(), String> {
    let options = OPTIONS.iter().filter(|option| option.is_in_environment());
    let names: Vec<String> = options.map(Known::variable).collect();
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(OTHER_VARIABLES.iter().copied())
        .collect();
    if !variable.starts_with("RESURGO_") || names.contains(&variable) {
        return Ok(());
    }
    // The beginning that all have says nothing of how like they are.
    let tails: Vec<&str> = names.iter().map(|name| &name["RESURGO_".len()..]).collect();
    let hint = match nearest(&variable["RESURGO_".len()..], &tails) {
        Some(near) => format!("did you mean RESURGO_{near}? Otherwise unset it"),
        None => "unset it; resurgo run --help says which options can be given so".to_string(),
    };
    Err(format!(
        "the environment has {variable}, which means nothing to resurgo; {hint}"
    ))
}

/// The name of `names` most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let like = |candidate: &str| strsim::damerau_levenshtein(name, candidate);
    let best = names.iter().min_by_key(|candidate| like(candidate))?;
    (like(best) <= 1 + best.len() / 3).then_some(*best)
}

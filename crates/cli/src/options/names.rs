//! The names of options.

/// Option names with the number of values they take.
pub(super) const OPTIONS: &[(&str, usize)] = &[
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

/// The options that the environment can give too.
pub(super) const IN_ENVIRONMENT: &[&str] = &[
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
pub(super) const AT_RESUME: &[&str] = &[
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
pub(super) const SWITCHES: &[&str] = &["label", "quiet", "stats", "checkpoint-keep", "resume-if-any"];

/// Options of other launchers that mean something we cannot do.
pub(super) const ELSEWHERE: &[(&str, &str)] = &[
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

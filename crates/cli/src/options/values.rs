//! What options are set to.

use resurgo_protocol::Protocol;
use resurgo_wire::node_memory::{
    CLOCK_SPREADS, MAX_CHANNEL_MEMORIES, MAX_EVENT_LOGGERS, MAX_LOG_SEGMENTS, REDUCTIONS, SEGMENT,
};

use super::*;
use crate::binding::Unit;

/// What the papers call some of the protocols, in lower case.
const IN_PAPERS: &[(&str, &str)] = &[
    ("mpich-v1", "channel-memory"),
    ("mpich-v2", "pessimistic"),
    ("mpich-vcl", "chandy-lamport"),
    ("mpich-vcausal", "causal"),
    ("v1", "channel-memory"),
    ("v2", "pessimistic"),
    ("vcl", "chandy-lamport"),
    ("coordinated", "blocking"),
    ("vcausal", "causal --tolerate node --reduction vcausal"),
    ("manetho", "causal --tolerate node --reduction manetho"),
    ("logon", "causal --tolerate node --reduction logon"),
];

/// The number of `value` among `names`.
pub(super) fn choice(value: &str, what: &str, names: &[&str]) -> Result<u32, String> {
    if let Some(number) = names.iter().position(|name| *name == value) {
        return Ok(number as u32);
    }
    let small = value.to_ascii_lowercase();
    let of_papers = IN_PAPERS.iter().find(|(name, _)| what == "protocol" && *name == small);
    let hint = match of_papers.map(|(_, ours)| *ours).or_else(|| nearest(&small, names)) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    };
    Err(format!("there is no {what} {value:?}; {hint}"))
}

/// Sets one of the options that the environment can give too.
pub(super) fn set(options: &mut Options, name: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
    match name {
        "l" | "label" | "prepend-rank" => options.label = Some(Pattern::label()),
        "prepend-pattern" => options.label = Some(Pattern::parse(value)?),
        "outfile-pattern" | "errfile-pattern" if value.is_empty() => {
            return Err("write the name of a file, as out.%r".to_string());
        }
        "outfile-pattern" => options.output_files[0] = Some(Pattern::parse(value)?),
        "errfile-pattern" => options.output_files[1] = Some(Pattern::parse(value)?),
        "bind-to" => options.bind_to = Some(Unit::parse(value)?),
        "map-by" => options.map_by = Some(Unit::parse(value)?),
        "v" | "verbose" => options.verbose = true,
        "print-all-exitcodes" => options.print_exit_codes = true,
        "timeout" => match parse_duration(value)? {
            Duration::ZERO => return Err("a job needs some time; leave it out for no limit".to_string()),
            limit => options.timeout = Some(limit),
        },
        "q" | "quiet" => options.quiet = true,
        "protocol" => {
            options.protocol = Protocol::ALL[choice(value, "protocol", &Protocol::NAMES)? as usize];
            options.choice = (options.protocol == Protocol::Auto).then_some("");
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
        "groups" if value.is_empty() => {
            return Err("write static, dynamic, or the name of a file with a line of ranks for each group".to_string());
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
        "checkpoint-share" => options.checkpoint_share = parse_share(value)?,
        "checkpoint-policy" => {
            policy::order(value)?;
            options.checkpoint_policy = Some(value.to_string());
        }
        "checkpoint-in-flight" => match number()? as usize {
            0 => return Err("at least one image must be on its way, or there are none".to_string()),
            images => options.images_in_flight = Some(images),
        },
        "mtbf" => match parse_duration(value)? {
            Duration::ZERO => return Err("the time between failures is longer than nothing".to_string()),
            mtbf => options.mtbf = Some(mtbf),
        },
        "log-prefault" => options.log_prefault = parse_size(value)?,
        "checkpoint-dir" if value.is_empty() => return Err("write the name of a directory".to_string()),
        "checkpoint-dir" => options.checkpoint_directory = Some(PathBuf::from(value)),
        "checkpoint-compress" => options.checkpoint_compress = Some(parse_compression(value)?),
        "checkpoint-signal" => {
            options.checkpoint_signal = match value.trim_start_matches("SIG") {
                "USR1" => Some(Signal::SIGUSR1),
                "USR2" => Some(Signal::SIGUSR2),
                "none" => None,
                _ => return Err(format!("{value:?} is none of USR1, USR2 and none")),
            }
        }
        "grace" => options.grace = parse_duration(value)?,
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
                _ => match parse_duration(value)
                    .map_err(|error| format!("{error}; or write slurm for the limit of its job"))?
                {
                    // It would be suspended before it has done anything, whenever it goes on.
                    Duration::ZERO => return Err("a job needs some time; leave it out for no limit".to_string()),
                    limit => TimeLimit::After(limit),
                },
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

/// 0.1 from `10%` or `10`.
fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    match percent {
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is no part of the time: write 0.1% to 100%")),
    }
}

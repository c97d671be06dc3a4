//! The meaning of options' values, and the options that need more than a line of the table.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_protocol::Protocol;
use resurgo_protocol::modes::{MESSAGES, Modes, NAMES, STRICT};
use resurgo_protocol::placement::Parity;
use resurgo_runtime::dispatcher::{Launcher, Period};
use resurgo_runtime::pattern::Pattern;
use resurgo_runtime::units::{parse_duration, parse_size, readable_size};
use resurgo_store::{Places, rate};
use resurgo_wire::node_memory::{CLOCK_SPREADS, MAX_LOG_SEGMENTS, MAX_RANKS, SEGMENT};
use resurgo_wire::trace::{LEAST_MEMORY, MOST_MEMORY};

use super::types::{Hosts, Images, Options, TimeLimit};
use super::written::{Written, separate};
use crate::host_names;
use crate::near::nearest;

/// The papers' names of some of the protocols, in lower case.
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

/// The most nodes that this machine can play.
const MOST_NODES: usize = 128;

/// The number of `value` among `names`.
pub fn choice(value: &str, what: &str, names: &[&str]) -> Result<u32, String> {
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

/// FT-MPI's modes.
pub fn modes(options: &mut Options, value: &str) -> Result<(), String> {
    let modes = Modes::parse(value).ok_or_else(|| {
        let names = |names: &[&str]| names.join(" or ");
        let (becomes, messages) = (NAMES.map(|(name, _)| name), MESSAGES.map(|(name, _)| name));
        format!(
            "there is no mode {value:?}; it is {}, then perhaps a comma and {}, and perhaps a comma and {STRICT}",
            names(&becomes),
            names(&messages)
        )
    })?;
    options.ends.survives = true;
    options.ends.modes = Some(modes);
    Ok(())
}

pub fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{value:?} is not a number"))
}

pub fn at_least_one(value: &str) -> Result<usize, String> {
    match number(value)? {
        0 => Err("must be at least 1".to_string()),
        count => Ok(count as usize),
    }
}

/// Memory for a trace, in bytes.
pub fn trace_memory(value: &str) -> Result<u64, String> {
    match parse_size(value)? {
        bytes if (LEAST_MEMORY..=MOST_MEMORY).contains(&bytes) => Ok(bytes),
        _ => Err(format!(
            "must be from {} to {}",
            readable_size(LEAST_MEMORY),
            readable_size(MOST_MEMORY)
        )),
    }
}

pub fn group_size(value: &str) -> Result<usize, String> {
    match number(value)? {
        0 => Err("must be at least 1".to_string()),
        ranks => Ok(ranks as usize),
    }
}

pub fn groups_at_once(value: &str) -> Result<u32, String> {
    match u32::try_from(number(value)?).unwrap_or(u32::MAX) {
        0 => Err("must be at least 1".to_string()),
        groups => Ok(groups),
    }
}

/// The number of servers.
pub fn servers(value: &str, most: usize) -> Result<usize, String> {
    match number(value)? {
        count if count > most as u64 => Err(format!("must be at most {most}")),
        count => Ok(count as usize),
    }
}

/// Nodes on this machine.
pub fn nodes(value: &str) -> Result<usize, String> {
    match at_least_one(value)? {
        nodes if nodes > MOST_NODES => Err(format!("must be at most {MOST_NODES}")),
        nodes => Ok(nodes),
    }
}

/// A signal for notices that nothing else waits for.
pub fn notice(value: &str) -> Result<Signal, String> {
    let name = value.strip_prefix("SIG").unwrap_or(value);
    match name {
        "TERM" => Ok(Signal::SIGTERM),
        "INT" => Ok(Signal::SIGINT),
        "HUP" => Ok(Signal::SIGHUP),
        "USR1" => Ok(Signal::SIGUSR1),
        "USR2" => Ok(Signal::SIGUSR2),
        _ => Err("must be TERM, INT, HUP, USR1 or USR2".to_string()),
    }
}

pub fn port(value: &str) -> Result<u16, String> {
    let port = value.parse::<u16>().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "must be a port: 1 to 65535".to_string())
}

pub fn per_node(value: &str) -> Result<u32, String> {
    let ranks = at_least_one(value)?;
    u32::try_from(ranks).map_err(|_| format!("{ranks} are too many"))
}

pub fn launcher(value: &str) -> Result<Launcher, String> {
    let number = choice(value, "launcher", &Launcher::NAMES)?;
    Ok(Launcher::ALL[number as usize])
}

pub fn lease(value: &str) -> Result<Duration, String> {
    match parse_duration(value)? {
        lease if lease < Duration::from_millis(500) => Err("must be at least 500ms".to_string()),
        lease => Ok(lease),
    }
}

pub fn some_time(value: &str) -> Result<Duration, String> {
    match parse_duration(value)? {
        Duration::ZERO => Err("must be greater than 0; leave it out for no limit".to_string()),
        time => Ok(time),
    }
}

pub fn mtbf(value: &str) -> Result<Duration, String> {
    match parse_duration(value)? {
        Duration::ZERO => Err("must be greater than 0".to_string()),
        time => Ok(time),
    }
}

/// Microseconds; a unit may be written as well.
pub fn microseconds(value: &str) -> Result<Duration, String> {
    match value.ends_with('s') {
        true => parse_duration(value),
        false => parse_duration(&format!("{value}us")),
    }
}

pub fn time_limit(value: &str) -> Result<TimeLimit, String> {
    if value == "slurm" {
        return Ok(TimeLimit::Slurm);
    }
    let limit = parse_duration(value).map_err(|error| format!("{error}; or write slurm for the limit of its job"))?;
    match limit {
        // The job would be suspended before it did anything, each time it goes on.
        Duration::ZERO => Err("must be greater than 0; leave it out for no limit".to_string()),
        limit => Ok(TimeLimit::After(limit)),
    }
}

pub fn period(value: &str) -> Result<Period, String> {
    if value == "daly" {
        return Ok(Period::Daly { mtbf: None });
    }
    let every = parse_duration(value).map_err(|error| format!("{error}; or write daly for the best one"))?;
    match every < Duration::from_millis(10) {
        true => Err("must be at least 10ms".to_string()),
        false => Ok(Period::Every(every)),
    }
}

/// 0.1 from `10%` or `10`.
pub fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    match percent {
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a share of the time: write 0.1% to 100%")),
    }
}

/// The place of images that is the node itself.
const LOCAL: &str = "local";
/// The place of images that is the job's other nodes.
const PEERS: &str = "peers:";
const MOST_PEERS: u32 = 64;
/// The same, with parity in place of copies.
const PARITY: &str = "parity:";
/// The most images and pieces of a set.
const MOST_OF_SET: u32 = 256;

/// From `parity:8+2`.
fn parity(part: &str) -> Result<Parity, String> {
    let numbers = part.trim_start_matches(PARITY).split_once('+');
    let numbers = numbers.and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
    match numbers {
        Some((data @ 1..=MOST_OF_SET, parity @ 1..=MOST_OF_SET)) if data + parity <= MOST_OF_SET => {
            Ok(Parity { data, parity })
        }
        _ => Err(format!(
            "{part:?}: write {PARITY}N+M, as in {PARITY}8+2: N images have M pieces of parity, both at least 1 and at most \
             {MOST_OF_SET} together"
        )),
    }
}

/// Takes the options from `peers:2;rate=60M`: the most that copies take of a node's link.
fn without_rate<'a>(part: &'a str, copy_rate: &mut Option<u64>) -> Result<&'a str, String> {
    let Some((name, option)) = part.split_once(';') else {
        return Ok(part);
    };
    let value = option
        .strip_prefix("rate=")
        .ok_or_else(|| format!("{option:?} is no option of copies on other nodes: there is rate=SIZE"))?;
    *copy_rate = Some(rate(option, value)?);
    Ok(name)
}

/// Adds what one `--store` names to what others have named.
pub fn add_places(images: &mut Images, text: &str) -> Result<(), String> {
    let is_local = |part: &&str| part.split(';').next() == Some(LOCAL);
    let (local, others): (Vec<&str>, Vec<&str>) = text.split(',').partition(is_local);
    if let Some(part) = local.iter().find(|part| **part != LOCAL) {
        return Err(format!("{part:?}: {LOCAL} has every image, and takes no options"));
    }
    images.names_local |= !local.is_empty();
    let (with_parity, others): (Vec<&str>, Vec<&str>) = others.into_iter().partition(|part| part.starts_with(PARITY));
    for part in &with_parity {
        let part = without_rate(part, &mut images.copy_rate)?;
        if images.parity.replace(parity(part)?).is_some() {
            return Err(format!("{PARITY} is named twice"));
        }
    }
    let (peers, others): (Vec<&str>, Vec<&str>) = others.into_iter().partition(|part| part.starts_with(PEERS));
    for part in &peers {
        let part = without_rate(part, &mut images.copy_rate)?;
        let number = part.trim_start_matches(PEERS).parse().ok();
        let number = number.filter(|number| *number <= MOST_PEERS);
        let number = number.ok_or_else(|| format!("{part:?}: write {PEERS} and a number from 0 to {MOST_PEERS}"))?;
        if images.peers.replace(number).is_some() {
            return Err(format!("{PEERS} is named twice"));
        }
    }
    if images.peers.is_some() && images.parity.is_some() {
        return Err(format!(
            "images have either copies ({PEERS}) or parity ({PARITY}): name one of both"
        ));
    }
    if others.is_empty() {
        return Ok(());
    }
    let places = &mut images.places;
    for place in Places::parse(&others.join(","))?.0 {
        if places.iter().any(|other| other.location == place.location) {
            return Err(format!("{:?} is named twice", place.shown));
        }
        places.push(place);
    }
    Ok(())
}

/// Bytes of the message log of a rank.
pub fn log_memory(value: &str) -> Result<u64, String> {
    let bytes = parse_size(value)?;
    if bytes < 1 << 20 {
        return Err("must be at least 1M".to_string());
    }
    if bytes > (MAX_LOG_SEGMENTS * SEGMENT) as u64 {
        return Err("must be at most 64G".to_string());
    }
    Ok(bytes)
}

/// The level of `zstd` or `zstd:LEVEL`.
pub fn compression(value: &str) -> Result<u8, String> {
    use resurgo_image::file::MOST_COMPRESSED;
    let wrong = || format!("{value:?} is neither zstd nor zstd:LEVEL with a level from 1 to {MOST_COMPRESSED}");
    let level = match value.strip_prefix("zstd").ok_or_else(wrong)? {
        "" => 1,
        level => level
            .strip_prefix(':')
            .and_then(|level| level.parse().ok())
            .ok_or_else(wrong)?,
    };
    match (1..=MOST_COMPRESSED).contains(&level) {
        true => Ok(level),
        false => Err(wrong()),
    }
}

pub fn on_or_off(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{value:?} is neither on nor off")),
    }
}

/// Whether the job survives the loss of a node.
pub fn tolerate(value: &str) -> Result<bool, String> {
    match value {
        "process" => Ok(false),
        "node" => Ok(true),
        _ => Err(format!("{value:?} is neither process nor node")),
    }
}

pub fn signal(value: &str) -> Result<Option<Signal>, String> {
    match value.trim_start_matches("SIG") {
        "USR1" => Ok(Some(Signal::SIGUSR1)),
        "USR2" => Ok(Some(Signal::SIGUSR2)),
        "none" => Ok(None),
        _ => Err(format!("{value:?} is none of USR1, USR2 and none")),
    }
}

pub fn address(value: &str) -> Result<SocketAddr, String> {
    match value.parse() {
        Ok(SocketAddr::V6(address)) if address.scope_id() != 0 => Err(format!(
            "{value:?} is good on one interface only; give an address that all ranks can reach"
        )),
        Ok(address) => Ok(address),
        Err(_) => Err(format!(
            "{value:?} is not an address and a port, as in 127.0.0.1:7000 or [::1]:7000"
        )),
    }
}

pub fn directory(value: &str) -> Result<PathBuf, String> {
    match value {
        "" => Err("write the name of a directory".to_string()),
        path => Ok(PathBuf::from(path)),
    }
}

pub fn file(value: &str) -> Result<PathBuf, String> {
    match value {
        "" => Err("write the name of a file".to_string()),
        path => Ok(PathBuf::from(path)),
    }
}

pub fn file_pattern(value: &str) -> Result<Pattern, String> {
    match value {
        "" => Err("write the name of a file, as out.%r".to_string()),
        name => Pattern::parse(name),
    }
}

pub fn protocol(options: &mut Options, value: &str) -> Result<(), String> {
    options.protocol = Protocol::ALL[choice(value, "protocol", &Protocol::NAMES)? as usize];
    options.choice = None;
    Ok(())
}

pub fn policy(options: &mut Options, value: &str) -> Result<(), String> {
    super::policy::order(value)?;
    options.images.policy = value.to_string();
    Ok(())
}

pub fn groups(options: &mut Options, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Err("write static, dynamic, or the name of a file with a line of ranks for each group".to_string());
    }
    options.groups.how = Some(value.to_string());
    Ok(())
}

pub fn memory_hosts(options: &mut Options, value: &str) -> Result<(), String> {
    options.memories.hosts = host_names::of_list(value)?;
    match options.memories.hosts.is_empty() {
        true => Err("names no host; leave it out".to_string()),
        false => Ok(()),
    }
}

pub fn clock_spread(options: &mut Options, value: &str) -> Result<(), String> {
    options.loggers.clock_spread = choice(value, "way to spread clocks", &CLOCK_SPREADS)?;
    Ok(())
}

/// The number of ranks of a program.
pub fn ranks(given: Written) -> Result<(), String> {
    let (text, value) = (given.text, given.value());
    given.program.ranks = match value.parse::<usize>() {
        Ok(0) => return Err(format!("{text} 0: a program needs at least one rank")),
        Ok(ranks) if ranks > MAX_RANKS => {
            return Err(format!("{text} {ranks}: a node can hold at most {MAX_RANKS} ranks"));
        }
        Ok(ranks) => ranks,
        Err(_) => return Err(format!("{text} {value}: not a number of ranks")),
    };
    Ok(())
}

/// A variable with a value, or the name of one that the user has.
pub fn variable(given: Written) -> Result<(), String> {
    match given.values.first().and_then(|pair| separate(pair)) {
        Some([name, value]) => given.options.environment.set.push((name, value)),
        None => given.options.environment.exported.push(given.value()),
    }
    Ok(())
}

pub fn hosts_listed(given: Written) -> Result<(), String> {
    let hosts = Hosts::Listed(given.text.to_string(), given.value());
    add_hosts(given, hosts);
    Ok(())
}

pub fn hosts_in_file(given: Written) -> Result<(), String> {
    let hosts = Hosts::InFile(given.text.to_string(), given.path());
    add_hosts(given, hosts);
    Ok(())
}

/// Hosts before the first program are the job's; those before another one are its own.
fn add_hosts(given: Written, hosts: Hosts) {
    match given.options.programs.is_empty() {
        true => given.options.nodes.hosts.push(hosts),
        false => given.program.hosts.push(hosts),
    }
}

/// Refused here: `config_file.rs` has expanded the option if it could.
pub fn config_file(given: Written) -> Result<(), String> {
    Err(format!(
        "{} names all programs: only other options may stand beside it",
        given.text
    ))
}

/// Kinds of memory, as the MPI library will read them in an answer of PMI.
pub fn memory_kinds(value: &str) -> Result<String, String> {
    let is_word = !value.is_empty() && value.len() <= 1023 && value.chars().all(|c| c.is_ascii_graphic());
    match is_word {
        true => Ok(value.to_string()),
        false => Err("write kinds of memory with commas between them, as mpi,system".to_string()),
    }
}

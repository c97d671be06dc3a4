//! Options that exclude one another, and settings that follow from others.

use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::{Period, Reports};
use resurgo_runtime::trampoline::addresses_can_be_fixed;
use resurgo_store::{Described, Location};
use resurgo_wire::node_memory::{MAX_RANKS, MAX_SERVERS};

use super::types::{Images, Options};
use super::{groups, policy};

/// Chooses logs and waves together, where that is possible. Returns the reason, and whether the user must be told in
/// any case.
fn choose_protocol(options: &mut Options) -> (&'static str, bool) {
    if options.tolerate_node {
        options.protocol = Protocol::Causal;
        let why = "message logging alone, as causal, where no send waits for an event logger: what these have cannot be cut back to \
                   a wave";
        return (why, true);
    }
    let why = if options.log.spill_directory.is_some() {
        "message logging alone, as pessimistic: logs that have been spilled cannot be cut back to a wave"
    } else if options.images.in_flight.is_some() || policy::is_of_single_ranks(&options.images.policy) {
        "message logging alone, as pessimistic: images of single ranks are asked for, and in a wave all have theirs together"
    } else if addresses_can_be_fixed() {
        let why = "message logging, so that a failed rank recovers alone, and waves, to which all ranks return if the program \
                   does not repeat what it did";
        return (why, false);
    } else {
        options.protocol = Protocol::Blocking;
        let why = "waves alone, to which all ranks return when one fails: a rank that recovered alone would need the addresses of \
                   its former life, and this container forbids to switch address randomisation off (--security-opt seccomp=unconfined \
                   allows it)";
        return (why, true);
    };
    options.protocol = Protocol::Pessimistic;
    (why, true)
}

/// The protocol by name, with how it was chosen if the user did not choose it.
fn described(options: &Options) -> String {
    let name = options.protocol.name();
    match options.choice {
        Some(_) if options.protocol != Protocol::Auto => format!("{name} (which auto is here)"),
        _ => name.to_string(),
    }
}

/// Checks that the options go together.
pub fn check(options: &mut Options) -> Result<(), String> {
    let size = options.size();
    check_survival(options)?;
    if options.protocol == Protocol::Auto {
        let (why, is_unexpected) = choose_protocol(options);
        options.choice = (is_unexpected || options.has("protocol")).then_some(why);
    }
    if size > MAX_RANKS {
        return Err(format!("{size} ranks: a node can hold at most {MAX_RANKS}"));
    }
    check_tolerance(options)?;
    check_reports(&options.output.reports)?;
    policy::check(options)?;
    check_loggers(options, size)?;
    groups::check(options, size)?;
    check_memories(options, size)?;
    check_period(&mut options.images, options.protocol)?;
    check_in_flight(options)?;
    check_spilling(options)?;
    check_files(options)?;
    check_suspension(options)?;
    if !options.images.at.is_empty() && !options.has_images() {
        return Err("--checkpoint-at needs images, which --protocol none has not".to_string());
    }
    Ok(())
}

fn check_reports(reports: &Reports) -> Result<(), String> {
    let files = [
        ("--stats-json", &reports.stats_json),
        ("--json-events", &reports.json_events),
        ("--metrics-file", &reports.metrics_file),
        ("--trace", &reports.trace),
    ];
    for (at, (one, file)) in files.iter().enumerate() {
        if let Some((other, _)) = files[at + 1..]
            .iter()
            .find(|(_, other)| file.is_some() && other == file)
        {
            return Err(format!("{one} and {other} need files of their own"));
        }
    }
    Ok(())
}

/// A program that deals with failures itself: no rank begins again, or each some times.
fn check_survival(options: &mut Options) -> Result<(), String> {
    match (options.ends.survives, options.ends.after) {
        (false, 0) => return Ok(()),
        (false, _) => {
            return Err(
                "--ft-after is for programs that deal with failures themselves: add --ft or --ft-mode, or leave it out"
                    .to_string(),
            );
        }
        (true, 0) => {}
        (true, _) => return check_recovery(options),
    }
    match options.protocol {
        Protocol::None => {}
        _ if !options.has("protocol") => options.protocol = Protocol::None,
        protocol => {
            return Err(format!(
                "--ft and --protocol {} cannot be combined: with --ft a failed rank is told to the others instead of being \
                 restarted; add --ft-after N, and it is restarted N times first; or leave one of both out",
                protocol.name()
            ));
        }
    }
    Ok(())
}

/// A rank of such a program recovers by itself first: from its beginning, with its messages on one node.
fn check_recovery(options: &mut Options) -> Result<(), String> {
    match options.protocol {
        Protocol::Pessimistic | Protocol::Causal => {}
        Protocol::Auto => {
            options.protocol = Protocol::Pessimistic;
            let why = "message logging alone, as pessimistic: with --ft-after a rank that does not repeat what it did is told \
                       to the others";
            options.choice = options.has("protocol").then_some(why);
        }
        protocol => {
            return Err(format!(
                "--ft-after and --protocol {} cannot be combined: a rank that recovers alone replays its messages; leave \
                 --protocol out, or run with --protocol pessimistic",
                protocol.name()
            ));
        }
    }
    if options.tolerate_node {
        return Err("--ft-after and --tolerate node cannot be combined; leave one of both out".to_string());
    }
    let images = [
        ("checkpoint-every", "--checkpoint-every"),
        ("checkpoint-policy", "--checkpoint-policy"),
        ("checkpoint-at", "--checkpoint-at"),
        ("checkpoint-dir", "--checkpoint-dir"),
        ("store", "--store"),
        ("local-copies", "--local-copies"),
    ];
    match images.into_iter().find(|(name, _)| options.has(name)) {
        Some((_, name)) => Err(format!(
            "--ft-after and {name} cannot be combined: a rank that deals with failures has no images, and is replayed from its \
             beginning; leave one of both out"
        )),
        None => Ok(()),
    }
}

fn check_tolerance(options: &Options) -> Result<(), String> {
    match options.protocol {
        _ if !options.tolerate_node => Ok(()),
        protocol if protocol.recovers_alone_elsewhere() => Ok(()),
        Protocol::ChannelMemory => Err(
            "--tolerate node: under --protocol channel-memory a rank needs nothing of its node in any case; leave --tolerate out"
                .to_string(),
        ),
        protocol => Err(format!(
            "--tolerate node needs --protocol pessimistic, causal or hierarchical; {} does not tolerate the loss of a node",
            protocol.name()
        )),
    }
}

fn check_period(images: &mut Images, protocol: Protocol) -> Result<(), String> {
    if images.period != Period::Never && protocol == Protocol::None {
        return Err("--checkpoint-every needs a protocol that recovers; --protocol none uses no images".to_string());
    }
    if let Period::Daly { mtbf } = &mut images.period {
        *mtbf = images.mtbf;
    } else if images.mtbf.is_some() {
        return Err("--mtbf is for --checkpoint-every daly".to_string());
    }
    Ok(())
}

fn check_in_flight(options: &Options) -> Result<(), String> {
    let Some(images) = options.images.in_flight else {
        return Ok(());
    };
    let why = match options.protocol {
        Protocol::Hierarchical => {
            "under --protocol hierarchical all ranks of a group write theirs together; leave it out, or run with --protocol \
             pessimistic"
                .to_string()
        }
        Protocol::Group => format!(
            "under --protocol group a whole group writes its images at a time; the nearest is --groups-at-once {images}"
        ),
        protocol if protocol.only_waves() => format!(
            "under --protocol {} all ranks write theirs together, one wave at a time",
            protocol.name()
        ),
        _ if options.images.directory.is_none() => {
            return Err(
                "--checkpoint-in-flight needs --checkpoint-dir: images that stay in memory are taken one at a time"
                    .to_string(),
            );
        }
        _ => return Ok(()),
    };
    Err(format!("--checkpoint-in-flight is for images of single ranks; {why}"))
}

fn check_spilling(options: &Options) -> Result<(), String> {
    match options.protocol {
        _ if options.log.spill_directory.is_none() => Ok(()),
        Protocol::Hierarchical => Err(
            "--spill-dir and --protocol hierarchical cannot be combined: logs inside a group that have been spilled cannot be \
             cut back to a wave. Leave it out and have images taken (--checkpoint-every), which let logs between groups forget, \
             or run with --protocol pessimistic"
                .to_string(),
        ),
        protocol if protocol.recovers_alone() => Ok(()),
        protocol => Err(format!(
            "--spill-dir is for message logs, and --protocol {} has none; leave it out",
            protocol.name()
        )),
    }
}

/// The place is the directory of image files, or in it.
fn is_with_files(place: &Described, images: &Images) -> bool {
    let files = images
        .directory
        .as_deref()
        .and_then(|path| std::path::absolute(path).ok());
    let Location::Dir(place) = &place.location else {
        return false;
    };
    files.is_some_and(|files| place.starts_with(files))
}

/// Checks that there are image files, if an option is about them.
fn check_files(options: &Options) -> Result<(), String> {
    let images = &options.images;
    let has_files = images.directory.is_some();
    if has_files && !options.has_images() {
        return Err("--checkpoint-dir is for image files, and --protocol none has no images; leave it out".to_string());
    }
    for (given, name) in [
        (images.keep, "--checkpoint-keep"),
        (images.compress.is_some(), "--checkpoint-compress"),
        (!images.places.is_empty(), "--store"),
    ] {
        if given && !has_files {
            return Err(format!("{name} is for image files: it needs --checkpoint-dir"));
        }
    }
    if !images.places.is_empty() && (!options.protocol.can_return_together() || options.tolerate_node) {
        return Err(format!(
            "--store takes complete waves of all ranks, which a job with --protocol {}{} does not record; run it with one of \
             auto, blocking, chandy-lamport and group",
            options.protocol.name(),
            if options.tolerate_node { " --tolerate node" } else { "" },
        ));
    }
    if let Some(place) = images.places.iter().find(|place| is_with_files(place, images)) {
        return Err(format!(
            "--store {}: it is in --checkpoint-dir, and would be lost with it; name another directory",
            place.shown
        ));
    }
    if images.names_local && !options.has_images() {
        return Err("--store local: --protocol none has no images; leave it out".to_string());
    }
    if images.names_local && !images.local_copies {
        return Err(
            "--store local keeps images in memory, and --local-copies off does not; leave one of them out".to_string(),
        );
    }
    if images.peers.is_some_and(|peers| peers > 0) && !options.outlives_nodes() {
        return Err(format!(
            "--store peers: copies images to other nodes, and those of --protocol {} are of no use there; with --tolerate \
             node those of pessimistic, causal and hierarchical are",
            options.protocol.name(),
        ));
    }
    if images.parity.is_some() && (!options.protocol.can_return_together() || options.tolerate_node) {
        let instead = match options.outlives_nodes() {
            true => "use peers:1",
            false => "leave it out",
        };
        return Err(format!(
            "--store parity: needs waves of all ranks, which a job with --protocol {}{} has not: {instead}, or run it with one of \
             auto, blocking, chandy-lamport and group",
            options.protocol.name(),
            if options.tolerate_node { " --tolerate node" } else { "" },
        ));
    }
    if images.store_key.is_some() && images.places.is_empty() {
        return Err("--store-key encrypts what goes to the places of --store, and none is named".to_string());
    }
    if images.local_copies {
        return Ok(());
    }
    if !options.has_images() {
        return Err("--local-copies off needs images, which --protocol none has not".to_string());
    }
    if !has_files {
        return Err(
            "--local-copies off needs --checkpoint-dir: without files, the copies in memory are all images there are; add \
             --checkpoint-dir DIR, or keep them"
                .to_string(),
        );
    }
    Ok(())
}

/// Checks that the job can be suspended, if options ask for that.
fn check_suspension(options: &Options) -> Result<(), String> {
    let servers = match options.protocol {
        Protocol::ChannelMemory => Some(("under --protocol channel-memory", "channel memories")),
        _ if options.tolerate_node => Some(("with --tolerate node", "event loggers")),
        _ => None,
    };
    for (given, name) in [
        (options.resume_if_any, "--resume-if-any"),
        (options.ends.time_limit.is_some(), "--time-limit"),
    ] {
        if !given {
            continue;
        }
        if let Some((when, servers)) = servers {
            return Err(format!(
                "{name}: {when} a job cannot be suspended, as what its {servers} hold is in no file; leave it out, or run with \
                 --protocol pessimistic and without --tolerate node"
            ));
        }
        if options.images.directory.is_none() {
            return Err(format!("{name} needs --checkpoint-dir, where the job is suspended"));
        }
    }
    Ok(())
}

/// Checks that the options about channel memories go together with the rest.
fn check_memories(options: &mut Options, size: usize) -> Result<(), String> {
    if options.protocol != Protocol::ChannelMemory {
        let all = ["channel-memories", "channel-memory", "channel-memory-hosts"];
        return match all.into_iter().find(|name| options.has(name)) {
            Some(name) => Err(format!(
                "--{name}: channel memories are for --protocol channel-memory; {} has none",
                options.protocol.name()
            )),
            None => Ok(()),
        };
    }
    if !options.memories.hosts.is_empty() {
        for (name, instead) in [
            ("channel-memories", "write HOST:2 for two on a host"),
            ("channel-memory", "they listen on all addresses of their hosts"),
        ] {
            if options.has(name) {
                return Err(format!(
                    "--{name} and --channel-memory-hosts cannot be combined: {instead}"
                ));
            }
        }
        let counts = options.memories.hosts.iter().map(|(_, count)| *count as usize);
        options.memories.count = counts.sum();
        if options.memories.count > MAX_SERVERS {
            return Err(format!(
                "--channel-memory-hosts: at most {MAX_SERVERS} channel memories"
            ));
        }
    }
    match options.memories.count {
        0 => {
            return Err(
                "--channel-memories 0: every message goes through a channel memory; --channel-memories 1 at least, or --protocol \
                 pessimistic, under which messages stay with their senders"
                    .to_string(),
            );
        }
        memories if memories > size => {
            return Err(format!(
                "{memories} channel memories are more than the {size} ranks that they serve; {size} at most"
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Checks that the options about event loggers and piggybacks go together.
fn check_loggers(options: &Options, size: usize) -> Result<(), String> {
    let (causal, node) = (options.protocol == Protocol::Causal, options.tolerate_node);
    let protocol = described(options);
    if options.has("reduction") && !(causal && node) {
        let missing = match (causal, node) {
            (true, _) => "add --tolerate node: while only processes are lost, nothing is piggybacked".to_string(),
            (_, true) => format!("add --protocol causal: {protocol} piggybacks nothing"),
            _ => format!("{protocol} piggybacks nothing; add both"),
        };
        return Err(format!(
            "--reduction is for --protocol causal --tolerate node; {missing}"
        ));
    }
    let logger = options.has("event-logger");
    if options.has("event-loggers") || logger {
        let name = if logger { "--event-logger" } else { "--event-loggers" };
        if !options.protocol.recovers_alone_elsewhere() && options.protocol != Protocol::Auto {
            return Err(format!(
                "{name} is for --tolerate node with --protocol pessimistic, causal or hierarchical; {protocol} has no event loggers; \
                 leave it out"
            ));
        }
        if !node {
            return Err(format!(
                "{name} needs --tolerate node: while only processes are lost, the node's memory keeps all deliveries"
            ));
        }
    }
    match options.loggers.count {
        _ if !node => {}
        0 if !causal => {
            return Err(format!(
                "--event-loggers 0 needs --protocol causal: under {protocol}, sends wait until an event logger has all \
                 deliveries before them; the nearest is --event-loggers 1"
            ));
        }
        loggers if loggers > size => {
            return Err(format!(
                "--event-loggers {loggers} are more than the {size} ranks that log to them; --event-loggers {size} at most"
            ));
        }
        _ => {}
    }
    if options.has("clock-spread") && (!causal || options.logger_count() < 2) {
        let why = match (causal, node, options.logger_count()) {
            (false, ..) => format!("{protocol} needs the clock of its own rank only; it is for --protocol causal"),
            (_, false, _) => {
                "only --tolerate node has event loggers, whose clocks are spread; add --tolerate node --event-loggers 2"
                    .to_string()
            }
            (_, _, 0) => "without event loggers there are no clocks to spread; write --event-loggers 2".to_string(),
            _ => "one event logger tells all there is to tell; add --event-loggers 2".to_string(),
        };
        return Err(format!("--clock-spread: {why}"));
    }
    Ok(())
}

//! What cannot be combined, and what follows from what was given.

use resurgo_protocol::Protocol;
use resurgo_runtime::trampoline::addresses_can_be_fixed;
use resurgo_wire::node_memory::MAX_RANKS;

use super::*;

/// Logs and waves together, where that is possible. Returns why it is what it is, and whether that must be said in any case.
fn choose_protocol(options: &mut Options) -> (&'static str, bool) {
    let why = if options.tolerate_node {
        "message logging alone, as pessimistic: what event loggers have cannot be cut back to a wave"
    } else if options.spill_directory.is_some() {
        "message logging alone, as pessimistic: logs that have been spilled cannot be cut back to a wave"
    } else if options.images_in_flight.is_some() || policy::is_of_single_ranks(options.checkpoint_policy.as_deref()) {
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

/// The protocol by name; by the way how it has come about when the user did not choose it.
fn described(options: &Options) -> String {
    let name = options.protocol.name();
    match options.choice {
        Some(_) if options.protocol != Protocol::Auto => format!("{name} (which auto is here)"),
        _ => name.to_string(),
    }
}

/// Whether the options go together.
pub(super) fn check(options: &mut Options) -> Result<(), String> {
    let size = options.size();
    if options.protocol == Protocol::Auto {
        let (why, is_unexpected) = choose_protocol(options);
        options.choice = (is_unexpected || options.choice.is_some()).then_some(why);
    }
    if size > MAX_RANKS {
        return Err(format!("{size} ranks: a node can hold at most {MAX_RANKS}"));
    }
    if options.tolerate_node && options.protocol == Protocol::ChannelMemory {
        return Err(
            "--tolerate node: under --protocol channel-memory a rank needs nothing of its node in any case; leave --tolerate out"
                .to_string(),
        );
    }
    if options.tolerate_node && ![Protocol::Pessimistic, Protocol::Causal].contains(&options.protocol) {
        let protocol = options.protocol.name();
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
    if checkpoints && options.protocol == Protocol::None {
        return Err("--checkpoint-every needs a protocol that recovers; --protocol none uses no images".to_string());
    }
    if let Period::Daly { mtbf } = &mut options.checkpoint_period {
        *mtbf = options.mtbf;
    } else if options.mtbf.is_some() {
        return Err("--mtbf is for --checkpoint-every daly".to_string());
    }
    if options.checkpoint_directory.is_some() && !options.has_images() {
        return Err("--checkpoint-dir is for image files, and --protocol none has no images; leave it out".to_string());
    }
    if options.images_in_flight.is_some() {
        if options.protocol.only_waves() {
            let protocol = options.protocol.name();
            if options.protocol == Protocol::Hierarchical {
                return Err(
                    "--checkpoint-in-flight is for images of single ranks; under --protocol hierarchical all ranks of a group \
                     write theirs together; leave it out, or run with --protocol pessimistic"
                        .to_string(),
                );
            }
            if options.protocol == Protocol::Group {
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
    if options.spill_directory.is_some() && !options.protocol.recovers_alone() {
        return Err(format!(
            "--spill-dir is for message logs, and --protocol {} has none; leave it out",
            options.protocol.name()
        ));
    }
    if options.protocol == Protocol::Hierarchical && options.spill_directory.is_some() {
        return Err(
            "--spill-dir and --protocol hierarchical cannot be combined: logs inside a group that have been spilled cannot be \
             cut back to a wave. Leave it out and have images taken (--checkpoint-every), which let logs between groups forget, \
             or run with --protocol pessimistic"
                .to_string(),
        );
    }
    for (given, name) in [
        (options.checkpoint_keep, "--checkpoint-keep"),
        (options.checkpoint_compress.is_some(), "--checkpoint-compress"),
    ] {
        if given && options.checkpoint_directory.is_none() {
            return Err(format!("{name} is for image files: it needs --checkpoint-dir"));
        }
    }
    if !options.local_copies {
        if !options.has_images() {
            return Err("--local-copies off needs images, which --protocol none has not".to_string());
        }
        if options.checkpoint_directory.is_none() {
            return Err(
                "--local-copies off needs --checkpoint-dir: without files, the copies in memory are all images there are; add \
                 --checkpoint-dir DIR, or keep them"
                    .to_string(),
            );
        }
    }
    let servers = match options.protocol {
        Protocol::ChannelMemory => Some(("under --protocol channel-memory", "channel memories")),
        _ if options.tolerate_node => Some(("with --tolerate node", "event loggers")),
        _ => None,
    };
    for (given, name) in [
        (options.resume_if_any, "--resume-if-any"),
        (options.time_limit.is_some(), "--time-limit"),
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
        if options.checkpoint_directory.is_none() {
            return Err(format!("{name} needs --checkpoint-dir, where the job is suspended"));
        }
    }
    if !options.checkpoint_at.is_empty() && !options.has_images() {
        return Err("--checkpoint-at needs images, which --protocol none has not".to_string());
    }
    Ok(())
}

/// Whether what is said of channel memories goes together with the rest.
fn check_memories(options: &Options, size: usize) -> Result<(), String> {
    if options.protocol != Protocol::ChannelMemory {
        let given = options.channel_memories.is_some() || options.channel_memory.is_some();
        return match given {
            true => Err(format!(
                "--channel-memories and --channel-memory are for --protocol channel-memory; {} has none",
                options.protocol.name()
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
    Ok(())
}

/// Whether what is said of event loggers and piggybacks goes together.
fn check_loggers(options: &Options, size: usize) -> Result<(), String> {
    let (causal, node) = (options.protocol == Protocol::Causal, options.tolerate_node);
    let protocol = described(options);
    if options.reduction.is_some() && !(causal && node) {
        let missing = match (causal, node) {
            (true, _) => "add --tolerate node: while only processes are lost, nothing is piggybacked".to_string(),
            (_, true) => format!("add --protocol causal: {protocol} piggybacks nothing"),
            _ => format!("{protocol} piggybacks nothing; add both"),
        };
        return Err(format!(
            "--reduction is for --protocol causal --tolerate node; {missing}"
        ));
    }
    let logger = options.event_logger != ANY_PORT;
    if options.event_loggers.is_some() || logger {
        let name = if logger { "--event-logger" } else { "--event-loggers" };
        if ![Protocol::Pessimistic, Protocol::Causal, Protocol::Auto].contains(&options.protocol) {
            return Err(format!(
                "{name} is for --tolerate node with --protocol pessimistic or causal; {protocol} has no event loggers; leave it out"
            ));
        }
        if !node {
            return Err(format!(
                "{name} needs --tolerate node: while only processes are lost, the node's memory keeps all deliveries"
            ));
        }
    }
    match options.event_loggers {
        Some(0) if !causal => {
            return Err(format!(
                "--event-loggers 0 needs --protocol causal: under {protocol}, sends wait until an event logger has all \
                 deliveries before them; the nearest is --event-loggers 1"
            ));
        }
        Some(loggers) if loggers > size => {
            return Err(format!(
                "--event-loggers {loggers} are more than the {size} ranks that log to them; --event-loggers {size} at most"
            ));
        }
        _ => {}
    }
    if options.clock_spread.is_some() && (!causal || options.loggers() < 2) {
        let why = match (causal, node, options.loggers()) {
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

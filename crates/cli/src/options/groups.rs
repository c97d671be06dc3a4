//! `--groups`, `--group-size` and `--groups-at-once`: how `--protocol group` and `hierarchical` form groups of ranks.

use std::path::Path;

use resurgo_protocol::Protocol;
use resurgo_protocol::group::formation;
use resurgo_wire::control::Grouping;

use super::types::Options;
use crate::near::nearest;
use crate::text_file;

const DYNAMIC: &str = "dynamic";
const STATIC: &str = "static";

/// Checks that the options about groups go together, for a job of `ranks` ranks.
pub fn check(options: &Options, ranks: usize) -> Result<(), String> {
    for (given, name) in [
        (options.groups.how.is_some(), "--groups"),
        (options.groups.size.is_some(), "--group-size"),
        (options.has("groups-at-once"), "--groups-at-once"),
    ] {
        if given && !options.protocol.has_groups() {
            let with = match name {
                "--groups-at-once" => "group",
                _ => "group and hierarchical",
            };
            return Err(format!(
                "{name} is for --protocol {with}; under {}",
                without_groups(options.protocol)
            ));
        }
    }
    if options.protocol == Protocol::Hierarchical {
        if options.groups.how.as_deref() == Some(DYNAMIC) {
            return Err(
                "--groups dynamic is for --protocol group; under hierarchical groups stay the same; the nearest is --groups static"
                    .to_string(),
            );
        }
        if options.has("groups-at-once") {
            return Err(
                "--groups-at-once is for --protocol group; under hierarchical each group writes its images at times of its own"
                    .to_string(),
            );
        }
    }
    let way = way(options);
    let is_list = way != DYNAMIC && way != STATIC;
    match options.groups.size {
        Some(_) if is_list => {
            return Err(format!(
                "--groups {way}: the file says how large groups are; leave --group-size out, or write --groups static"
            ));
        }
        Some(size) if size > ranks => {
            return Err(format!(
                "--group-size {size} is more than the job's {ranks} ranks; --group-size {ranks} at most, one group of all"
            ));
        }
        _ => {}
    }
    if !options.has("groups-at-once") {
        return Ok(());
    }
    let at_once = options.groups.at_once;
    if options.images.directory.is_none() {
        return Err(
            "--groups-at-once is for image files: it needs --checkpoint-dir; images that stay in memory are taken one group \
             at a time"
                .to_string(),
        );
    }
    match way {
        STATIC => at_most(at_once, ranks.div_ceil(size(options, ranks)) as u32),
        // At most as many groups as ranks.
        DYNAMIC => at_most(at_once, ranks as u32),
        _ => Ok(()),
    }
}

/// How groups are formed, as the user would write it.
fn way(options: &Options) -> &str {
    let usual = if options.protocol == Protocol::Group {
        DYNAMIC
    } else {
        STATIC
    };
    options.groups.how.as_deref().unwrap_or(usual)
}

fn without_groups(protocol: Protocol) -> String {
    let name = protocol.name();
    match protocol {
        Protocol::None => format!("{name} there are no images"),
        _ if protocol.has_waves() && !protocol.logs() => format!("{name} all ranks have their images together"),
        _ if protocol.has_waves() => format!("{name} all ranks have their images together, or each alone"),
        _ => format!("{name} each rank has its images alone"),
    }
}

fn at_most(at_once: u32, groups: u32) -> Result<(), String> {
    if at_once > groups {
        return Err(format!(
            "--groups-at-once {at_once} are more than the {groups} groups; --groups-at-once {groups} at most"
        ));
    }
    Ok(())
}

fn size(options: &Options, ranks: usize) -> usize {
    options.groups.size.unwrap_or_else(|| formation::usual_size(ranks))
}

/// How groups are formed in a job of `ranks` ranks. Reads the file, if there is one.
pub fn grouping(options: &Options, ranks: usize) -> Result<Grouping, String> {
    if !options.protocol.has_groups() {
        return Ok(Grouping::One);
    }
    let size = size(options, ranks);
    match way(options) {
        DYNAMIC => Ok(Grouping::Dynamic { size }),
        STATIC => Ok(Grouping::Static { size }),
        file => list(
            file,
            ranks,
            options.has("groups-at-once").then_some(options.groups.at_once),
        ),
    }
}

/// The same, where `node_of` is the node of each rank in a job on several nodes. Under hierarchical each node's ranks
/// are a group then. No group has ranks of several nodes, as the ranks of a group cut off the logs between them.
pub fn on_nodes(options: &Options, ranks: usize, node_of: Option<&[u32]>) -> Result<Grouping, String> {
    let hierarchical = options.protocol == Protocol::Hierarchical;
    if hierarchical && options.tolerate_node && node_of.is_none() {
        return Err(
            "--tolerate node with --protocol hierarchical is for a job on several nodes (-hosts, -f, --nodes); on one machine leave it out"
                .to_string(),
        );
    }
    let Some(node_of) = node_of.filter(|_| hierarchical) else {
        return grouping(options, ranks);
    };
    if node_of.is_empty() {
        return Err(
            "--protocol hierarchical groups ranks by their nodes, which are not known before they join; name them (-hosts, -f) \
             instead of -launcher join"
                .to_string(),
        );
    }
    if options.groups.how.is_none() && options.groups.size.is_none() {
        let mut nodes = node_of.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        let number = |node: &u32| 1 + nodes.partition_point(|other| other < node) as u32;
        return Ok(Grouping::Listed(node_of.iter().map(number).collect()));
    }
    let grouping = grouping(options, ranks)?;
    let groups = grouping.lasting(ranks);
    let first = |rank: u32| (0..rank).find(|other| groups.of(*other) == groups.of(rank));
    let is_apart = |(one, other): &(u32, u32)| node_of[*one as usize] != node_of[*other as usize];
    let pairs = (0..ranks as u32).filter_map(|rank| Some((first(rank)?, rank)));
    match pairs.into_iter().find(is_apart) {
        None => Ok(grouping),
        Some((one, other)) => Err(format!(
            "ranks {one} and {other} are in one group and on two nodes; under hierarchical a group is on one node. Without --groups \
             and --group-size the ranks of each node are a group"
        )),
    }
}

/// The most bytes of a file of groups.
const LONGEST: u64 = 16 << 20;

fn list(file: &str, ranks: usize, at_once: Option<u32>) -> Result<Grouping, String> {
    let read = text_file::read(Path::new(file), LONGEST);
    let text = read.and_then(|text| String::from_utf8(text).map_err(|_| "it is not text".to_string()));
    let text = text.map_err(|error| {
        let hint = match nearest(file, &[DYNAMIC, STATIC]) {
            Some(near) => format!("did you mean {near}?"),
            None => "give static, dynamic, or a file with a line of ranks for each group, as in 0-3".to_string(),
        };
        format!("--groups {file}: cannot read the file: {error}; {hint}")
    })?;
    let groups = formation::from_text(&text, ranks).map_err(|error| match error.line {
        0 => format!("--groups {file}: {}", error.reason),
        line => format!("--groups {file}, line {line}: {}", error.reason),
    })?;
    if let Some(at_once) = at_once {
        at_most(at_once, groups.count())?;
    }
    Ok(Grouping::Listed(
        (0..ranks as u32).map(|rank| groups.of(rank)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Request, parse};

    fn of(line: &str, ranks: usize) -> Result<Grouping, String> {
        let words = line.split_whitespace().map(Into::into).collect();
        match parse(words, &[], |_| None)? {
            Request::Run(options) => grouping(&options, ranks),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_are_formed_as_is_said() {
        assert_eq!(of("-n 9 ./a", 9), Ok(Grouping::One));
        assert_eq!(of("-n 9 --protocol group ./a", 9), Ok(Grouping::Dynamic { size: 3 }));
        let size = of("-n 9 --protocol group --groups static --group-size 2 ./a", 9);
        assert_eq!(size, Ok(Grouping::Static { size: 2 }));
        let usual = of("-n 9 --protocol hierarchical ./a", 9);
        assert_eq!(usual, Ok(Grouping::Static { size: 3 }));
    }

    #[test]
    fn groups_of_a_hierarchy_are_on_one_node_each() {
        let of = |line: &str, node_of: &[u32]| {
            let words = format!("-n {} {line} ./a", node_of.len());
            match parse(words.split_whitespace().map(Into::into).collect(), &[], |_| None)? {
                Request::Run(options) => on_nodes(&options, node_of.len(), Some(node_of)),
                other => panic!("{other:?}"),
            }
        };
        let nodes = [0, 0, 2, 2, 0];
        let usual = of("--protocol hierarchical", &nodes);
        assert_eq!(usual, Ok(Grouping::Listed(vec![1, 1, 2, 2, 1])));
        let pairs = "--protocol hierarchical --group-size 2";
        assert_eq!(of(pairs, &nodes[..4]), Ok(Grouping::Static { size: 2 }));
        let apart = of("--protocol hierarchical --group-size 3", &nodes).unwrap_err();
        assert!(
            apart.contains("ranks 0 and 2 are in one group and on two nodes"),
            "{apart}"
        );
        let waves = of("--protocol group", &nodes);
        assert_eq!(waves, Ok(Grouping::Dynamic { size: 3 }));
    }

    #[test]
    fn a_file_says_which_ranks_are_together_or_what_is_wrong_with_it() {
        let file = std::env::temp_dir().join(format!("resurgo-groups-{}", std::process::id()));
        let line = |more: &str| format!("-n 3 --protocol group --groups {} {more} ./a", file.display());
        std::fs::write(&file, "0 2\n1\n").unwrap();
        assert_eq!(of(&line(""), 3), Ok(Grouping::Listed(vec![1, 2, 1])));
        let many = of(&line("--checkpoint-dir d --groups-at-once 3"), 3).unwrap_err();
        assert!(many.contains("--groups-at-once 2 at most"), "{many}");
        std::fs::write(&file, "0 2\n3\n").unwrap();
        let wrong = of(&line(""), 3).unwrap_err();
        assert!(wrong.contains(", line 2: there is no rank 3"), "{wrong}");
        std::fs::write(&file, "0 2\n").unwrap();
        let missing = of(&line(""), 3).unwrap_err();
        assert!(missing.contains("rank 1 is in no group: add a line `1`"), "{missing}");
        std::fs::remove_file(&file).unwrap();
        let none = of(&line(""), 3).unwrap_err();
        assert!(
            none.contains("cannot read the file") && none.contains("give static, dynamic"),
            "{none}"
        );
        let near = of("--protocol group --groups dynamik ./a", 1).unwrap_err();
        assert!(near.contains("did you mean dynamic?"), "{near}");
    }
}

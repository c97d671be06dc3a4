//! Where images are, in the order in which recovery looks for them, and what each level survives.

use std::path::Path;

use resurgo_protocol::placement::Parity;
use resurgo_store::Described;
use resurgo_wire::control::{ImageFiles, Job};

use super::Dispatcher;
use super::cluster::Cluster;
use super::events::Event;

#[derive(Debug, PartialEq, Eq)]
struct Level {
    what: String,
    survives: String,
}

fn level(what: impl Into<String>, survives: impl Into<String>) -> Level {
    let (what, survives) = (what.into(), survives.into());
    Level { what, survives }
}

/// The nearest first. `are_of_all`: all ranks can return to waves. `cluster`: of a job on several nodes, which know by
/// now whether they see one directory.
fn levels(files: &ImageFiles, are_of_all: bool, cluster: Option<&Cluster>) -> Vec<Level> {
    let directory = files.directory.as_deref().map(Path::new);
    let memory = files
        .local_copies
        .then(|| level("memory of the rank's node", "a crashed rank"));
    let near = directory.map(|directory| in_files(files, are_of_all, directory, cluster));
    let others = cluster.filter(|_| files.partners);
    let others = others.and_then(|cluster| match files.parity {
        Some(parity) => with_parity(parity, cluster),
        None => elsewhere(files.replicas, cluster),
    });
    let described = files.places.iter().filter_map(|place| Described::parse(place).ok());
    let places = described.map(|place| level(taken(&place), of_all(&place, cluster.is_some())));
    memory.into_iter().chain(near).chain(others).chain(places).collect()
}

/// The directory of image files, beside copies in memory, or instead of them.
fn in_files(files: &ImageFiles, are_of_all: bool, directory: &Path, cluster: Option<&Cluster>) -> Level {
    let shown = directory.display();
    let later = |what: &str| match are_of_all {
        true => format!(", and, with resurgo resume, that of {what}"),
        false => String::new(),
    };
    let rank = match files.local_copies {
        true => "a crashed rank whose copy in memory is lost, too",
        false => "a crashed rank",
    };
    let own = || format!("{rank}{}", later("all processes of the job"));
    match cluster {
        Some(_) if files.shared => level(
            format!("files in {shown}, which all nodes see"),
            match are_of_all {
                true => format!("the loss of any nodes{}", later("all nodes and this launcher")),
                false => "the loss of any nodes with ranks".to_string(),
            },
        ),
        Some(_) => level(format!("files in {shown} on the rank's node"), own()),
        None => level(format!("files in {shown}"), own()),
    }
}

/// So many replicas on other nodes; none: there is no other node.
fn elsewhere(replicas: u32, cluster: &Cluster) -> Option<Level> {
    let replicas = (replicas as usize).min(cluster.others());
    let one = |of: &str| match replicas {
        1 => format!("the loss of any {of}"),
        _ => format!("the loss of any {replicas} {of}s at one moment"),
    };
    let are_apart = cluster.racks().is_some_and(|racks| racks > replicas);
    let survives = match are_apart {
        true => one("rack"),
        false => one("node"),
    };
    let what = match replicas {
        0 => return None,
        1 => "another node".to_string(),
        _ => format!("{replicas} other nodes"),
    };
    Some(match cluster.nodes_of_ranks() < cluster.hosts.len() {
        // These nodes have no ranks.
        true => level(
            match replicas {
                1 => "a node of channel memories".to_string(),
                _ => format!("{replicas} nodes of channel memories"),
            },
            "the loss of any nodes with ranks",
        ),
        false => level(what, survives),
    })
}

/// Pieces of parity on other nodes; none: there is no other node.
fn with_parity(parity: Parity, cluster: &Cluster) -> Option<Level> {
    let sizes = parity.sizes(cluster.hosts.len() as u32).into_iter();
    let survives = match sizes.map(|(size, _)| parity.of(size)).min()? {
        0 => return None,
        1 => "the loss of any node".to_string(),
        lost => format!("the loss of any {lost} nodes at one moment"),
    };
    let Parity { data, parity } = parity;
    Some(level(format!("parity {data}+{parity} on other nodes"), survives))
}

/// The place, and which waves it takes.
fn taken(place: &Described) -> String {
    let shown = match place.start {
        Some(_) => format!("{}, which this job starts", place.shown),
        None => place.shown.clone(),
    };
    match place.every {
        1 => format!("{shown}, every recorded wave"),
        every => format!("{shown}, one recorded wave in {every}"),
    }
}

fn of_all(place: &Described, are_several: bool) -> String {
    let by_hand = match place.start {
        Some(_) => "servers started by hand and ",
        None => "",
    };
    let later = format!("with {by_hand}resurgo resume --from {}", place.shown);
    match are_several {
        true => format!("the loss of all nodes with images, and, {later}, that of this launcher"),
        false => format!("damaged files, and, {later}, the loss of this machine"),
    }
}

impl Dispatcher {
    /// Tells which levels a job has, if there are several nodes, or the user has named levels.
    pub(super) fn tell_levels(&mut self, job: &Job, cluster: Option<&Cluster>) {
        let is_asked = job.image_files.are_named;
        if !job.images || !(is_asked || cluster.is_some()) {
            return;
        }
        // Elsewhere images are of no use where a lost node takes logs along.
        let cluster = cluster.filter(|_| job.protocol.images_outlive_nodes() || job.tolerate_node);
        for (number, level) in levels(&job.image_files, job.protocol.can_return_together(), cluster)
            .iter()
            .enumerate()
        {
            self.bus.tell(Event::ImageLevel {
                level: number + 1,
                what: &level.what,
                survives: &level.survives,
                is_asked,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatcher::cluster::tests::cluster;

    fn files() -> ImageFiles {
        let none = json!({ "checkpoint_directory": null, "checkpoint_compress": null, "checkpoint_keep": false });
        serde_json::from_value(none).unwrap()
    }

    fn with_files() -> ImageFiles {
        ImageFiles {
            directory: Some("/d".into()),
            ..files()
        }
    }

    /// What each level survives.
    fn survived(files: &ImageFiles, are_of_all: bool, cluster: Option<&Cluster>) -> Vec<String> {
        let all = levels(files, are_of_all, cluster).into_iter();
        all.map(|level| level.survives).collect()
    }

    #[test]
    fn a_machine_has_its_memory_its_disk_and_places() {
        assert_eq!(survived(&files(), true, None), ["a crashed rank"]);
        let mut files = with_files();
        files.places = vec!["dir:/p;every=3".to_string()];
        let all = survived(&files, true, None);
        assert_eq!(all.len(), 3);
        assert!(all[1].contains("copy in memory is lost") && all[1].contains("resurgo resume"));
        assert!(all[2].contains("--from dir:/p, the loss of this machine"));
        (files.local_copies, files.places) = (false, Vec::new());
        assert_eq!(survived(&files, false, None), ["a crashed rank"]);
    }

    #[test]
    fn other_nodes_survive_as_many_losses_as_there_are_replicas() {
        let mut nodes = cluster(&[(1, false); 4], &[0, 1, 2, 3]);
        let of = |replicas: u32, nodes: &Cluster| {
            let partners = replicas > 0;
            let files = ImageFiles {
                partners,
                replicas,
                ..files()
            };
            survived(&files, true, Some(nodes))[1..].concat()
        };
        assert_eq!(of(1, &nodes), "the loss of any node");
        assert_eq!(of(2, &nodes), "the loss of any 2 nodes at one moment");
        assert_eq!(of(9, &nodes), "the loss of any 3 nodes at one moment");
        for (host, rack) in nodes.hosts.iter_mut().zip(["a", "a", "b", "b"]) {
            host.rack = Some(rack.to_string());
        }
        assert_eq!(of(1, &nodes), "the loss of any rack");
        assert_eq!(of(2, &nodes), "the loss of any 2 nodes at one moment");
        nodes.hosts[3].memories = 1;
        assert_eq!(of(1, &nodes), "the loss of any nodes with ranks");
        assert_eq!(of(1, &cluster(&[(1, false)], &[0])), "");
        assert_eq!(of(0, &nodes), "");
    }

    #[test]
    fn parity_survives_what_the_smallest_group_of_nodes_does() {
        let of = |data, parity, nodes: usize| {
            let files = ImageFiles {
                partners: true,
                parity: Some(Parity { data, parity }),
                ..files()
            };
            let nodes = cluster(&vec![(1, false); nodes], &[0]);
            survived(&files, true, Some(&nodes))[1..].concat()
        };
        assert_eq!(of(4, 2, 6), "the loss of any 2 nodes at one moment");
        assert_eq!(of(4, 2, 8), "the loss of any node");
        assert_eq!(of(4, 2, 2), "the loss of any node");
        assert_eq!(of(4, 2, 1), "");
    }

    #[test]
    fn nodes_with_one_directory_need_no_replicas() {
        let nodes = cluster(&[(1, false); 2], &[0, 1]);
        let of = |are_of_all: bool, shared: bool| {
            let files = ImageFiles {
                shared,
                partners: !shared,
                ..with_files()
            };
            survived(&files, are_of_all, Some(&nodes))[1..].to_vec()
        };
        let shared = of(true, true);
        assert!(shared.len() == 1 && shared[0].starts_with("the loss of any nodes, and, with resurgo resume"));
        assert_eq!(of(false, true), ["the loss of any nodes with ranks"]);
        assert_eq!(of(true, false)[1], "the loss of any node");
    }
}

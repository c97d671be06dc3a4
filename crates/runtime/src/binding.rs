//! `-bind-to` and `-map-by`: on which processors each rank runs.
//!
//! Objects (cores, sockets, …) have hwloc's logical numbers: in the order of the machine's tree, so neighbours have
//! neighbouring numbers, whatever the kernel's numbers. As with Hydra's mpiexec, ranks take the objects of `-map-by` in
//! turn, and of each the next object of `-bind-to`.

use std::collections::BTreeSet;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Processors, by the kernel's numbers.
type Cpus = BTreeSet<usize>;

/// Where the kernel describes processors.
const SYSTEM: &str = "/sys/devices/system";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    Socket,
    Numa,
    Cache(usize),
    Core,
    Thread,
}

/// The units that ranks are bound to, or mapped by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unit {
    None,
    /// So many objects of a kind.
    Objects(Kinds),
    /// Processors in the order of their numbers.
    RoundRobin,
    /// Of each rank in turn.
    Listed(Vec<Cpus>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    kind: Kind,
    count: usize,
}

impl Unit {
    /// Reads Hydra's and Open MPI's names.
    pub fn parse(text: &str) -> Result<Unit, String> {
        let wrong = || {
            format!(
                "{text:?}: write none, core, socket, numa, hwthread, l1cache to l5cache or machine (core:2: two of them each), rr, \
                 or user:0+1,2+3 (the cpus of each rank)"
            )
        };
        if let Some(list) = text.strip_prefix("user:") {
            let rank = |cpus: &str| {
                cpus.split('+')
                    .map(|cpu| cpu.parse::<usize>().ok())
                    .collect::<Option<Cpus>>()
            };
            let ranks = list.split(',').map(rank).collect::<Option<Vec<_>>>();
            return ranks.map(Unit::Listed).ok_or_else(wrong);
        }
        let (name, count) = match text.split_once(':') {
            Some((name, count)) => (name, count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?),
            None => (text, 1),
        };
        let kind = match name.to_ascii_lowercase().as_str() {
            // Open MPI's slots are places for ranks. Here there are as many as ranks.
            "none" | "slot" => return Ok(Unit::None),
            "rr" => return Ok(Unit::RoundRobin),
            "machine" | "node" | "board" => Kind::Machine,
            "socket" | "package" => Kind::Socket,
            "numa" => Kind::Numa,
            "core" => Kind::Core,
            "hwthread" | "thread" | "pu" => Kind::Thread,
            cache => {
                let level = cache.strip_prefix('l').and_then(|rest| rest.strip_suffix("cache"));
                let level = level.map(|level| level.trim_end_matches(['d', 'u']));
                match level.and_then(|level| level.parse().ok()) {
                    Some(level) if (1..=5).contains(&level) => Kind::Cache(level),
                    _ => return Err(wrong()),
                }
            }
        };
        Ok(Unit::Objects(Kinds { kind, count }))
    }
}

/// The same from the words of `-bind-to` and, if there is a second one, `-map-by`.
pub fn of_words(words: &[String]) -> Result<Vec<Vec<u32>>, String> {
    let units = words.iter().map(|word| Unit::parse(word));
    let units = units.collect::<Result<Vec<_>, _>>()?;
    of(units.first(), units.get(1))
}

/// The processors of this machine's ranks, which take these units in turn, in order; none for ranks that are not bound.
pub fn of(to: Option<&Unit>, by: Option<&Unit>) -> Result<Vec<Vec<u32>>, String> {
    let Some(bind) = to.filter(|bind| **bind != Unit::None) else {
        return Ok(Vec::new());
    };
    let allowed = sched_getaffinity(Pid::from_raw(0))
        .map_err(|error| format!("cannot read the processors that may be used: {error}"))?;
    let allowed: Cpus = (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
        .collect();
    let topology = Topology::read(Path::new(SYSTEM), allowed);
    let sets = topology.bind(bind, by)?;
    let numbers = |cpus: &Cpus| cpus.iter().map(|cpu| *cpu as u32).collect();
    Ok(sets.iter().map(numbers).collect())
}

/// How many processors the ranks of a job have between them, when they are bound.
pub fn processors(of_ranks: &[Vec<u32>], ranks: usize) -> Option<usize> {
    let cpus: BTreeSet<&u32> = of_ranks.iter().take(ranks).flatten().collect();
    (!cpus.is_empty()).then_some(cpus.len())
}

/// The objects that contain one usable processor.
struct Place {
    cpu: usize,
    socket: Cpus,
    numa: Cpus,
    core: Cpus,
    /// By level, from 1.
    caches: Vec<(usize, Cpus)>,
}

impl Place {
    fn of(&self, kind: Kind, all: &Cpus) -> Option<Cpus> {
        match kind {
            Kind::Machine => Some(all.clone()),
            Kind::Socket => Some(self.socket.clone()),
            Kind::Numa => Some(self.numa.clone()),
            Kind::Core => Some(self.core.clone()),
            Kind::Thread => Some(Cpus::from([self.cpu])),
            Kind::Cache(level) => self
                .caches
                .iter()
                .find(|cache| cache.0 == level)
                .map(|cache| cache.1.clone()),
        }
    }
}

/// The processors that may be used, in hwloc's order.
struct Topology {
    all: Cpus,
    places: Vec<Place>,
}

impl Topology {
    fn read(system: &Path, allowed: Cpus) -> Topology {
        let list = |file: &Path| -> Option<Cpus> {
            let cpus = parse_list(&std::fs::read_to_string(file).ok()?)?;
            Some(cpus.intersection(&allowed).copied().collect())
        };
        let of_cpu = |cpu: usize, names: [&str; 2]| {
            let directory = system.join(format!("cpu/cpu{cpu}/topology"));
            let found = names.into_iter().find_map(|name| list(&directory.join(name)));
            found.filter(|cpus| cpus.contains(&cpu))
        };
        let nodes: Vec<Cpus> = numbered(&system.join("node"), "node")
            .into_iter()
            .filter_map(|node| list(&system.join(format!("node/node{node}/cpulist"))))
            .collect();
        let place = |cpu: usize| Place {
            cpu,
            socket: of_cpu(cpu, ["package_cpus_list", "core_siblings_list"]).unwrap_or_else(|| allowed.clone()),
            numa: nodes
                .iter()
                .find(|node| node.contains(&cpu))
                .unwrap_or(&allowed)
                .clone(),
            core: of_cpu(cpu, ["core_cpus_list", "thread_siblings_list"]).unwrap_or_else(|| Cpus::from([cpu])),
            caches: caches(&system.join(format!("cpu/cpu{cpu}/cache")), &list),
        };
        let mut places: Vec<Place> = allowed.iter().map(|cpu| place(*cpu)).collect();
        // Nodes are parts of sockets, or sockets of nodes.
        let node_is_larger = places.iter().any(|place| place.numa.len() > place.socket.len());
        let first = |cpus: &Cpus| cpus.first().copied().unwrap_or_default();
        places.sort_by_cached_key(|place| {
            let (socket, numa) = (first(&place.socket), first(&place.numa));
            let mut key = if node_is_larger {
                vec![numa, socket]
            } else {
                vec![socket, numa]
            };
            // From the largest cache to the smallest.
            key.extend(place.caches.iter().rev().map(|cache| first(&cache.1)));
            key.extend([first(&place.core), place.cpu]);
            key
        });
        Topology { all: allowed, places }
    }

    /// The objects of a kind, in units of so many.
    fn objects(&self, of: Kinds) -> Result<Vec<Cpus>, String> {
        let mut objects: Vec<Cpus> = Vec::new();
        for object in self.places.iter().filter_map(|place| place.of(of.kind, &self.all)) {
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        if objects.is_empty() {
            return Err("this machine tells of no such cache; write core, socket or numa".to_string());
        }
        if objects.len() < of.count {
            return Err(format!(
                "{} are wanted together, and there are {}",
                of.count,
                objects.len()
            ));
        }
        Ok(objects
            .chunks_exact(of.count)
            .map(|some| some.iter().flatten().copied().collect())
            .collect())
    }

    /// The processors of ranks, which take them in turn.
    fn bind(&self, bind: &Unit, map: Option<&Unit>) -> Result<Vec<Cpus>, String> {
        let objects = match bind {
            Unit::None => return Ok(Vec::new()),
            Unit::RoundRobin => return Ok(self.all.iter().map(|cpu| Cpus::from([*cpu])).collect()),
            Unit::Listed(ranks) => {
                if let Some(cpu) = ranks.iter().flatten().find(|cpu| !self.all.contains(cpu)) {
                    return Err(format!(
                        "cpu {cpu} is none of those that may be used: {}",
                        shown(&self.all)
                    ));
                }
                return Ok(ranks.clone());
            }
            Unit::Objects(of) => self.objects(*of)?,
        };
        let Some(Unit::Objects(map)) = map else {
            return Ok(objects);
        };
        // For each object of the map: the objects to bind to inside it, or the one that contains it.
        let shared: Vec<Vec<&Cpus>> = self
            .objects(*map)?
            .iter()
            .map(|part| objects.iter().filter(|object| !object.is_disjoint(part)).collect())
            .filter(|objects: &Vec<_>| !objects.is_empty())
            .collect();
        let rounds = shared.iter().map(Vec::len).max().unwrap_or(0);
        let of_round = |round: usize| shared.iter().map(move |objects| objects[round % objects.len()].clone());
        Ok((0..rounds).flat_map(of_round).collect())
    }
}

fn caches(directory: &Path, list: &impl Fn(&Path) -> Option<Cpus>) -> Vec<(usize, Cpus)> {
    let read = |index: usize, name: &str| {
        std::fs::read_to_string(directory.join(format!("index{index}/{name}"))).map(|text| text.trim().to_string())
    };
    let cache = |index: usize| {
        let holds_data = read(index, "type").is_ok_and(|kind| kind != "Instruction");
        let level = read(index, "level").ok()?.parse().ok()?;
        let cpus = list(&directory.join(format!("index{index}/shared_cpu_list")))?;
        holds_data.then_some((level, cpus))
    };
    let mut caches: Vec<_> = numbered(directory, "index").into_iter().filter_map(cache).collect();
    caches.sort();
    caches
}

/// The numbers in the names of a directory that begin so.
fn numbered(directory: &Path, start: &str) -> BTreeSet<usize> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(start)?.parse().ok();
    entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect()
}

/// `0-3,8`.
fn parse_list(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?);
    }
    Some(cpus)
}

fn shown(cpus: &Cpus) -> String {
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    numbers.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// The kernel's description of a machine, in a directory of its own.
    struct Machine(PathBuf);

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Machine {
        /// Two sockets of two cores of two threads, numbered as on most servers: first the first threads, alternating
        /// between the sockets. `nodes`: the processors of each NUMA node.
        fn new(name: &str, nodes: &[&str]) -> Machine {
            let root = std::env::temp_dir().join(format!("resurgo-{name}-{}", std::process::id()));
            let machine = Machine(root);
            for cpu in 0..8usize {
                let (socket, core) = (cpu % 2, cpu % 4);
                machine.write(
                    &format!("cpu/cpu{cpu}/topology/package_cpus_list"),
                    &format!("{socket},{},{},{}", socket + 2, socket + 4, socket + 6),
                );
                machine.write(
                    &format!("cpu/cpu{cpu}/topology/core_cpus_list"),
                    &format!("{core},{}", core + 4),
                );
                for (index, level, kind, cpus) in [
                    (0, 1, "Data", format!("{core},{}", core + 4)),
                    (1, 1, "Instruction", format!("{core},{}", core + 4)),
                    (
                        2,
                        3,
                        "Unified",
                        format!("{socket},{},{},{}", socket + 2, socket + 4, socket + 6),
                    ),
                ] {
                    let cache = format!("cpu/cpu{cpu}/cache/index{index}");
                    machine.write(&format!("{cache}/level"), &level.to_string());
                    machine.write(&format!("{cache}/type"), kind);
                    machine.write(&format!("{cache}/shared_cpu_list"), &cpus);
                }
            }
            for (number, cpus) in nodes.iter().enumerate() {
                machine.write(&format!("node/node{number}/cpulist"), cpus);
            }
            machine
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }

        fn bind(&self, allowed: &str, bind: &str, map: Option<&str>) -> Result<String, String> {
            let topology = Topology::read(&self.0, parse_list(allowed).unwrap());
            let map = map.map(|map| Unit::parse(map).unwrap());
            let sets = topology.bind(&Unit::parse(bind)?, map.as_ref())?;
            Ok(sets.iter().map(shown).collect::<Vec<_>>().join(" "))
        }
    }

    #[test]
    fn objects_are_taken_in_hwlocs_order() {
        let machine = Machine::new("order", &["0,2,4,6", "1,3,5,7"]);
        for (bind, expected) in [
            ("none", ""),
            ("hwthread", "0 4 2 6 1 5 3 7"),
            ("core", "0,4 2,6 1,5 3,7"),
            ("core:2", "0,2,4,6 1,3,5,7"),
            ("core:3", "0,1,2,4,5,6"),
            ("l1cache", "0,4 2,6 1,5 3,7"),
            ("l3ucache", "0,2,4,6 1,3,5,7"),
            ("socket", "0,2,4,6 1,3,5,7"),
            ("package:1", "0,2,4,6 1,3,5,7"),
            ("numa", "0,2,4,6 1,3,5,7"),
            ("machine", "0,1,2,3,4,5,6,7"),
            ("rr", "0 1 2 3 4 5 6 7"),
            ("user:0+2,7,1", "0,2 7 1"),
        ] {
            assert_eq!(machine.bind("0-7", bind, None).unwrap(), expected, "{bind}");
        }
    }

    #[test]
    fn a_map_says_in_which_order() {
        let machine = Machine::new("map", &["0,2,4,6", "1,3,5,7"]);
        for (bind, map, expected) in [
            ("core", "socket", "0,4 1,5 2,6 3,7"),
            ("hwthread", "core", "0 2 1 3 4 6 5 7"),
            ("hwthread", "socket", "0 1 4 5 2 3 6 7"),
            ("socket", "core", "0,2,4,6 0,2,4,6 1,3,5,7 1,3,5,7"),
            ("core", "none", "0,4 2,6 1,5 3,7"),
            ("core", "machine", "0,4 2,6 1,5 3,7"),
        ] {
            assert_eq!(
                machine.bind("0-7", bind, Some(map)).unwrap(),
                expected,
                "{bind} by {map}"
            );
        }
    }

    #[test]
    fn only_what_may_be_used_counts() {
        let machine = Machine::new("allowed", &["0-7"]);
        assert_eq!(machine.bind("1-4", "core", None).unwrap(), "1 3 2 4");
        assert_eq!(machine.bind("1-4", "core", Some("socket")).unwrap(), "1 2 3 4");
        assert_eq!(machine.bind("1-4", "socket", None).unwrap(), "1,3 2,4");
        assert_eq!(machine.bind("1-4", "numa", None).unwrap(), "1,2,3,4");
        let error = machine.bind("1-4", "user:1,0", None).unwrap_err();
        assert!(
            error.contains("cpu 0 is none of those that may be used: 1,2,3,4"),
            "{error}"
        );
        assert!(
            machine
                .bind("1-4", "l2cache", None)
                .unwrap_err()
                .contains("no such cache")
        );
        assert!(
            machine
                .bind("1-4", "socket:3", None)
                .unwrap_err()
                .contains("there are 2")
        );
    }

    #[test]
    fn a_kernel_that_tells_nothing_is_lived_with() {
        let nothing = Topology::read(Path::new("/nowhere"), Cpus::from([0, 3]));
        let bind = |unit: &str| nothing.bind(&Unit::parse(unit).unwrap(), None).unwrap();
        assert_eq!(bind("core"), [Cpus::from([0]), Cpus::from([3])]);
        assert_eq!(bind("socket"), [Cpus::from([0, 3])]);
    }

    #[test]
    fn what_is_no_unit_is_said() {
        for text in [
            "cores",
            "core:0",
            "core:x",
            "l0cache",
            "l9cache",
            "user:",
            "user:a",
            "ppr:2:socket",
            "socket:PE=2",
            "",
        ] {
            assert!(
                Unit::parse(text).unwrap_err().contains("write none, core, socket"),
                "{text}"
            );
        }
        assert_eq!(Unit::parse("Core"), Unit::parse("core:1"));
    }

    #[test]
    fn processors_of_a_job_are_counted() {
        let sets = [vec![0], vec![1, 2], vec![3]];
        assert_eq!(processors(&sets, 2), Some(3));
        assert_eq!(processors(&sets, 9), Some(4));
        assert_eq!(processors(&[], 9), None);
    }
}

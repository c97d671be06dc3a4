//! The nodes of a job on several, as its command line names them, and the commands that start their agents.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use resurgo_protocol::placement::{self, Parity, Room, Shelf};
use resurgo_wire::control::{AGENT, HELPER, KEPT, Limit, Preemption};

use crate::invited;

/// The exit status of ssh when it cannot reach a host, or has lost the connection.
pub const SSH_FAILED: i32 = 255;

/// The way in which agents are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// This process, on this machine.
    Fork,
    Ssh,
    Slurm,
    /// A user types `resurgo join` on the node.
    Join,
}

impl Launcher {
    pub const NAMES: [&str; 4] = ["fork", "ssh", "slurm", "join"];
    pub const ALL: [Launcher; 4] = [Launcher::Fork, Launcher::Ssh, Launcher::Slurm, Launcher::Join];
}

/// A node as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// The way in which its agent is started.
    pub launcher: Launcher,
    /// How many ranks it has room for.
    pub slots: u32,
    /// It is kept for ranks whose nodes are lost.
    pub spare: bool,
    /// So many channel memories run there, and no rank.
    pub memories: u32,
    /// Hosts of one rack may be lost together.
    pub rack: Option<String>,
}

impl Host {
    /// The first of these hosts, each with its machine, that is the same machine under another name. Nodes of `--nodes`
    /// share this one on purpose. Slurm knows its nodes, and users those that join.
    pub fn twin<'a>(&self, machine: &str, others: &'a [(Host, String)]) -> Option<&'a str> {
        let is_named = |other: &Host| match (self.launcher, other.launcher) {
            (Launcher::Ssh, Launcher::Ssh | Launcher::Fork) | (Launcher::Fork, Launcher::Ssh) => {
                other.name != self.name
            }
            _ => false,
        };
        let mut twins = others
            .iter()
            .filter(|(other, theirs)| theirs == machine && is_named(other));
        twins.next().map(|(other, _)| other.name.as_str())
    }
}

/// How nodes join a job by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The secret that they must know.
    pub token: String,
    /// The file of the secret, if the user has named one.
    pub token_file: Option<PathBuf>,
    /// Where the job listens for them; 0: anywhere.
    pub port: u16,
    /// How many ranks the job begins with, and how many each node takes in place of its slots.
    pub ranks: usize,
    pub per_node: Option<u32>,
    /// The job waits for so many more nodes.
    pub spares: usize,
}

impl Join {
    /// How many of these nodes, in order, have room for all ranks. None: all together have not.
    fn needed(&self, slots: &[u32]) -> Option<usize> {
        let mut room = 0;
        let room_with = |slots: &u32| {
            room += self.per_node.unwrap_or(*slots) as usize;
            room
        };
        let last = slots.iter().map(room_with).position(|room| room >= self.ranks);
        last.map(|last| last + 1)
    }

    /// The job can begin with nodes of these slots.
    pub fn are_enough(&self, slots: &[u32]) -> bool {
        self.needed(slots)
            .is_some_and(|needed| slots.len() >= needed + self.spares)
    }
}

/// The nodes of a job that has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    /// The way in which agents of added hosts are started.
    pub launcher: Launcher,
    /// So many nodes may be missing when the job begins.
    pub may_miss: usize,
    /// How nodes learn that they are about to be taken away.
    pub preemption: Preemption,
    /// Nodes join by themselves.
    pub join: Option<Join>,
    /// The interface, by name or network, whose addresses nodes use for one another.
    pub interface: Option<String>,
    /// The command to use instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// The node of each rank.
    pub of_rank: Vec<u32>,
    /// How long a node may be silent before its ranks count as lost.
    pub lease: Duration,
    /// How long its ranks then stand still before they end.
    pub hold: Duration,
    /// Nodes encrypt what they send to one another.
    pub is_encrypted: bool,
    /// Files that must be the same on all nodes, beside resurgo itself. A directory only has to exist.
    pub files: Vec<OsString>,
    /// Limits of this process, for all ranks. The job fills them in.
    pub limits: Vec<Limit>,
}

impl Cluster {
    /// How many nodes have ranks, or may have.
    pub fn nodes_of_ranks(&self) -> usize {
        self.hosts.iter().filter(|host| host.memories == 0).count()
    }

    /// Why there are fewer nodes or racks than for so many copies of an image beside its own; none: there are enough.
    pub fn lacks_room_for(&self, replicas: u32) -> Option<String> {
        let (others, wanted) = (self.others(), replicas as usize);
        let possible = wanted.min(others);
        if possible < wanted && (wanted > 1 || others > 0) {
            return Some(format!(
                "each image is to be on {wanted} other nodes, and there is room on {others} only"
            ));
        }
        let copies = possible + 1;
        let racks = self.racks().filter(|racks| *racks < copies);
        racks.map(|racks| {
            format!("each image is on {copies} nodes, and there are fewer racks ({racks}): some share one")
        })
    }

    /// So many nodes may have copies of an image of another one. Nodes without ranks have all copies, if there are any.
    pub fn others(&self) -> usize {
        match self.hosts.len() - self.nodes_of_ranks() {
            0 => self.hosts.len().saturating_sub(1),
            keepers => keepers,
        }
    }

    /// How many racks there are; a host without one counts as one. None: no host has one.
    pub fn racks(&self) -> Option<usize> {
        let mut racks: Vec<&str> = self.hosts.iter().filter_map(|host| host.rack.as_deref()).collect();
        racks.sort_unstable();
        racks.dedup();
        let alone = self.hosts.iter().filter(|host| host.rack.is_none()).count();
        (!racks.is_empty()).then(|| racks.len() + alone)
    }

    /// What images with parity survive, if that is less than it could be: there are few nodes or racks.
    pub fn lacks_nodes_for(&self, parity: Parity) -> Option<String> {
        let nodes = self.hosts.len() as u32;
        if nodes < parity.data.saturating_add(parity.parity) {
            let lost = parity.of(nodes);
            return Some(format!(
                "parity:{}+{} is for {} nodes, and there are {nodes}: any {lost} of them may be lost at one moment",
                parity.data,
                parity.parity,
                parity.data.saturating_add(parity.parity),
            ));
        }
        let shelves = (0..).zip(&self.hosts).map(|(node, host)| Shelf {
            node,
            rack: host.rack.as_deref(),
            has: false,
        });
        let shelves: Vec<Shelf> = shelves.collect();
        let is_spread = |group: &Vec<u32>| {
            let racks = group
                .iter()
                .filter_map(|node| self.hosts[*node as usize].rack.as_deref());
            let mut most: BTreeMap<&str, u32> = BTreeMap::new();
            racks.for_each(|rack| *most.entry(rack).or_default() += 1);
            most.values().all(|count| *count <= parity.of(group.len() as u32))
        };
        let are_spread = parity.groups(&shelves, 0).iter().all(is_spread);
        (!are_spread).then(|| {
            let few = "images with parity survive the loss of";
            format!(
                "{few} any {} nodes, but not of every rack: there are too few racks",
                parity.parity
            )
        })
    }

    /// All nodes are on this machine.
    pub fn is_here(&self) -> bool {
        self.join.is_none() && self.hosts.iter().all(|host| host.launcher == Launcher::Fork)
    }

    /// Leaves out hosts that are missing. Other nodes take their ranks, as after the loss of a node.
    pub fn leave_out(&mut self, is_missing: impl Fn(usize) -> bool) {
        let left: Vec<usize> = (0..self.hosts.len()).filter(|host| !is_missing(*host)).collect();
        let number = |node: u32| left.iter().position(|host| *host == node as usize);
        let mut rooms: Vec<Room> = (0..)
            .zip(&left)
            .map(|(node, host)| Room {
                node,
                slots: self.hosts[*host].slots,
                ranks: self.of_rank.iter().filter(|of| **of as usize == *host).count() as u32,
                spare: self.hosts[*host].spare,
            })
            .collect();
        for of in &mut self.of_rank {
            *of = match number(*of) {
                Some(node) => node as u32,
                None => {
                    let node = placement::next(u32::MAX, &rooms).unwrap_or(0);
                    rooms
                        .iter_mut()
                        .filter(|room| room.node == node)
                        .for_each(|room| room.ranks += 1);
                    node
                }
            };
        }
        self.hosts = left.iter().map(|host| self.hosts[*host].clone()).collect();
    }

    /// These hosts have joined, and have room for all ranks. Hosts beyond that are spares.
    pub fn joined_by(&mut self, mut hosts: Vec<Host>) {
        if let Some(join) = &self.join {
            let slots: Vec<u32> = hosts.iter().map(|host| host.slots).collect();
            let needed = join.needed(&slots).unwrap_or(slots.len());
            for (place, host) in hosts.iter_mut().enumerate() {
                host.spare = place >= needed;
            }
            let turns: Vec<(u32, u32)> = (0..).zip(slots).take(needed).collect();
            self.of_rank = placement::initial(&turns, join.ranks, join.per_node).unwrap_or_default();
        }
        self.hosts = hosts;
    }

    /// The command that starts the agent of a host.
    pub fn command(&self, host: &Host) -> io::Result<Command> {
        let command = match host.launcher {
            Launcher::Fork => invited::agent(),
            launcher => on_host(launcher, self.launcher_file.as_deref(), &host.name, &[AGENT, KEPT])?,
        };
        Ok(of_the_dispatcher(command, Stdio::null()))
    }

    /// The command that starts a helper on a host.
    pub fn helper(&self, host: &Host) -> io::Result<Command> {
        let file = self.launcher_file.as_deref().map(Path::as_os_str);
        let command = invited::by_ssh(file, &host.name, &[AGENT, HELPER])?;
        Ok(of_the_dispatcher(command, Stdio::piped()))
    }
}

/// The command that starts resurgo with these words on a host. `file`: to use instead of ssh or srun.
pub fn on_host(launcher: Launcher, file: Option<&Path>, host: &str, words: &[&str]) -> io::Result<Command> {
    let file = file.map(Path::as_os_str);
    Ok(match launcher {
        Launcher::Fork => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("resurgo").args(words);
            command
        }
        Launcher::Ssh => invited::by_ssh(file, host, words)?,
        Launcher::Slurm => {
            let mut command = Command::new(file.unwrap_or("srun".as_ref()));
            command.args(["--nodes=1", "--ntasks=1", &format!("--nodelist={host}")]);
            command.args([
                "--no-kill",
                "--kill-on-bad-exit=0",
                "--overlap",
                "--mpi=none",
                "--quiet",
            ]);
            command.arg(std::env::current_exe()?).args(words);
            command
        }
        Launcher::Join => return Err(io::Error::other("it joins by itself")),
    })
}

fn of_the_dispatcher(mut command: Command, stdout: Stdio) -> Command {
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
    // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
    command.process_group(0);
    command
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn cluster(slots: &[(u32, bool)], of_rank: &[u32]) -> Cluster {
        let host = |(slots, spare): &(u32, bool)| Host {
            name: format!("n{slots}"),
            launcher: Launcher::Ssh,
            slots: *slots,
            spare: *spare,
            memories: 0,
            rack: None,
        };
        Cluster {
            hosts: slots.iter().map(host).collect(),
            launcher: Launcher::Ssh,
            may_miss: 0,
            preemption: Preemption::default(),
            join: None,
            interface: None,
            launcher_file: None,
            of_rank: of_rank.to_vec(),
            lease: Duration::ZERO,
            hold: Duration::ZERO,
            is_encrypted: false,
            files: Vec::new(),
            limits: Vec::new(),
        }
    }

    #[test]
    fn those_who_join_first_get_the_ranks() {
        let mut joined = cluster(&[], &[]);
        let join = Join {
            token: String::new(),
            token_file: None,
            port: 0,
            ranks: 4,
            per_node: None,
            spares: 1,
        };
        assert!(!join.are_enough(&[2, 1, 8][..2]) && !join.are_enough(&[2, 2]) && join.are_enough(&[2, 2, 1]));
        joined.join = Some(join);
        joined.joined_by(cluster(&[(3, true), (2, true), (1, true)], &[]).hosts);
        assert_eq!(joined.of_rank, [0, 0, 0, 1]);
        assert_eq!(
            joined.hosts.iter().map(|host| host.spare).collect::<Vec<_>>(),
            [false, false, true]
        );
    }

    #[test]
    fn too_few_nodes_or_racks_are_told() {
        let mut all = cluster(&[(1, false); 4], &[0, 1, 2]);
        let lacks = |all: &Cluster, replicas| all.lacks_room_for(replicas).unwrap_or_default();
        assert_eq!(lacks(&all, 3), "");
        assert!(lacks(&all, 4).contains("room on 3 only"));
        for (host, rack) in all.hosts.iter_mut().zip(["a", "a", "b"]) {
            host.rack = Some(rack.to_string());
        }
        assert_eq!(lacks(&all, 2), "");
        assert!(lacks(&all, 3).contains("fewer racks (3)"));
        all.hosts[3].memories = 1;
        assert!(lacks(&all, 2).contains("room on 1 only"));
        assert_eq!(lacks(&cluster(&[(1, false)], &[0]), 1), "");
    }

    #[test]
    fn too_few_nodes_or_racks_for_parity_are_told() {
        let mut all = cluster(&[(1, false); 6], &[0, 1, 2]);
        let lacks = |all: &Cluster, data, parity| all.lacks_nodes_for(Parity { data, parity }).unwrap_or_default();
        assert_eq!(lacks(&all, 4, 2), "");
        assert!(lacks(&all, 8, 2).contains("for 10 nodes, and there are 6: any 2 of them"));
        assert!(lacks(&cluster(&[(1, false); 2], &[0, 1]), 8, 2).contains("any 1 of them"));
        for (host, rack) in all.hosts.iter_mut().zip(["a", "a", "b", "b", "c", "c"]) {
            host.rack = Some(rack.to_string());
        }
        assert_eq!(lacks(&all, 4, 2), "");
        assert_eq!(lacks(&all, 2, 1), "");
        assert!(lacks(&all, 5, 1).contains("not of every rack"));
    }

    #[test]
    fn a_machine_has_one_name() {
        let host = |name: &str, launcher| Host {
            name: name.to_string(),
            launcher,
            ..cluster(&[(1, false)], &[]).hosts.remove(0)
        };
        let there = [
            (host("0", Launcher::Fork), "here".to_string()),
            (host("n1", Launcher::Ssh), "one".to_string()),
            (host("n2", Launcher::Slurm), "two".to_string()),
        ];
        let twin = |name: &str, launcher, machine: &str| host(name, launcher).twin(machine, &there).map(str::to_string);
        assert_eq!(twin("n1-ib", Launcher::Ssh, "one").as_deref(), Some("n1"));
        assert_eq!(twin("gate", Launcher::Ssh, "here").as_deref(), Some("0"));
        assert_eq!(twin("localhost", Launcher::Fork, "one").as_deref(), Some("n1"));
        for (name, launcher, machine) in [
            ("n1", Launcher::Ssh, "one"),
            ("n3", Launcher::Ssh, "three"),
            ("1", Launcher::Fork, "here"),
            ("n3", Launcher::Slurm, "two"),
            ("n3", Launcher::Join, "one"),
        ] {
            assert_eq!(twin(name, launcher, machine), None, "{name}");
        }
    }

    #[test]
    fn ranks_of_hosts_that_are_missing_go_to_others() {
        let mut all = cluster(&[(2, false), (1, false), (4, false)], &[0, 0, 1, 2, 2]);
        all.leave_out(|host| host == 1);
        assert_eq!((all.hosts.len(), &all.of_rank[..]), (2, &[0, 0, 1, 1, 1][..]));
        let mut with_spare = cluster(&[(2, false), (2, false), (1, true)], &[0, 0, 1, 1]);
        with_spare.leave_out(|host| host == 0);
        assert_eq!(with_spare.of_rank, [1, 0, 0, 0], "the spare one has one slot");
        let mut none = cluster(&[(1, false), (1, false)], &[0, 1]);
        none.leave_out(|_| false);
        assert_eq!(none.of_rank, [0, 1]);
    }
}

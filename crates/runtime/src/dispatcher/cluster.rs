//! The nodes of a job that has several, as its command line has them, and what starts the agent of each.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use resurgo_protocol::placement::{self, Room};
use resurgo_wire::control::{AGENT, KEPT, Preemption};

use crate::invited;

/// What starts agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// This process, on this machine.
    Fork,
    Ssh,
    Slurm,
    /// Whoever types `resurgo join` on the node.
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
    /// What starts its agent.
    pub launcher: Launcher,
    /// How many ranks it has room for.
    pub slots: u32,
    /// It is kept for ranks whose nodes are lost.
    pub spare: bool,
}

/// How nodes join a job by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// What they must know.
    pub token: String,
    /// Where it is, if the user has named a file.
    pub token_file: Option<PathBuf>,
    /// Where the job listens for them; 0: anywhere.
    pub port: u16,
    /// How many ranks the job begins with, and those that a node takes, instead of its slots.
    pub ranks: usize,
    pub per_node: Option<u32>,
    /// So many more nodes are waited for.
    pub spares: usize,
}

impl Join {
    /// How many nodes with these slots, the first ones, have room for all ranks. None: they have not.
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
    /// What starts the agents of hosts that are added.
    pub launcher: Launcher,
    /// So many of them may be missing when the job begins.
    pub may_miss: usize,
    /// How nodes hear that they are about to be taken away.
    pub preemption: Preemption,
    /// Nodes join by themselves.
    pub join: Option<Join>,
    /// The interface, by its name or a network, by whose addresses nodes reach one another.
    pub interface: Option<String>,
    /// Instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// The node of each rank.
    pub of_rank: Vec<u32>,
    /// How long a node may be silent before its ranks are taken for lost.
    pub lease: Duration,
    /// What they say to one another is encrypted.
    pub is_encrypted: bool,
    /// What must be the same on all nodes, beside resurgo itself. Of a directory it is that it is there.
    pub files: Vec<OsString>,
}

impl Cluster {
    /// All nodes are this machine.
    pub fn is_here(&self) -> bool {
        self.join.is_none() && self.hosts.iter().all(|host| host.launcher == Launcher::Fork)
    }

    /// Leaves out hosts that are missing. Their ranks go to others, as they do when a node is lost.
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

    /// These have joined, and have room for all ranks. Those that are not needed for that are spare ones.
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

    /// What starts the agent of a host.
    pub fn command(&self, host: &Host) -> io::Result<Command> {
        let own = std::env::current_exe()?;
        let program = |usual: &str| Command::new(self.launcher_file.clone().unwrap_or_else(|| usual.into()));
        let mut command = match host.launcher {
            Launcher::Fork => invited::agent(),
            Launcher::Ssh => {
                let mut command = program("ssh");
                // ssh joins what follows with blanks, and the login shell there splits it again.
                let quoted = format!("'{}'", own.to_string_lossy().replace('\'', r"'\''"));
                command.args(["-T", "-x", "-o", "BatchMode=yes", "--", &host.name]);
                command.args(["exec", &quoted, AGENT, KEPT]);
                command
            }
            Launcher::Slurm => {
                let mut command = program("srun");
                command.args(["--nodes=1", "--ntasks=1", &format!("--nodelist={}", host.name)]);
                command.args([
                    "--no-kill",
                    "--kill-on-bad-exit=0",
                    "--overlap",
                    "--mpi=none",
                    "--quiet",
                ]);
                command.arg(own).args([AGENT, KEPT]);
                command
            }
            Launcher::Join => return Err(io::Error::other("it joins by itself")),
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
        command.process_group(0);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(slots: &[(u32, bool)], of_rank: &[u32]) -> Cluster {
        let host = |(slots, spare): &(u32, bool)| Host {
            name: format!("n{slots}"),
            launcher: Launcher::Ssh,
            slots: *slots,
            spare: *spare,
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
            is_encrypted: false,
            files: Vec::new(),
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

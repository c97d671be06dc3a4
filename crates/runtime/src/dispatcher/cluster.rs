//! The nodes of a job that has several, as its command line has them, and what starts the agent of each.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use resurgo_protocol::placement::{self, Room};
use resurgo_wire::control::{AGENT, INVITED, KEPT};

/// What starts agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// This process, on this machine.
    Fork,
    Ssh,
    Slurm,
}

impl Launcher {
    pub const NAMES: [&str; 3] = ["fork", "ssh", "slurm"];
    pub const ALL: [Launcher; 3] = [Launcher::Fork, Launcher::Ssh, Launcher::Slurm];
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

/// The nodes of a job that has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    /// So many of them may be missing when the job begins.
    pub may_miss: usize,
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
        self.hosts.iter().all(|host| host.launcher == Launcher::Fork)
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

    /// What starts the agent of a host.
    pub fn command(&self, host: &Host) -> io::Result<Command> {
        let own = std::env::current_exe()?;
        let program = |usual: &str| Command::new(self.launcher_file.clone().unwrap_or_else(|| usual.into()));
        let mut command = match host.launcher {
            Launcher::Fork => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("resurgo").args([AGENT, INVITED]);
                command
            }
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
            may_miss: 0,
            launcher_file: None,
            of_rank: of_rank.to_vec(),
            lease: Duration::ZERO,
            is_encrypted: false,
            files: Vec::new(),
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

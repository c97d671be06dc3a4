//! Ranks whose MPI library has not opened our provider: their messages do not pass through us, so they cannot be
//! recovered.
//!
//! MPICH opens its endpoint before it announces it in PMI's first barrier. A rank that arrives there with UCX and
//! without libfabric will not use our provider. Other libraries (Intel's) have barriers before they load libfabric, so
//! the agent knows only when such a rank finalises. The maps of the process name the library.

use std::io;
use std::path::PathBuf;

use nix::unistd::Pid;
use resurgo_protocol::Protocol;
use resurgo_wire::control::ToDispatcher;

use super::Agent;
use crate::children::{self, State};

/// The beginnings of the file names of MPI libraries.
const MPI: [&str; 4] = ["libmpi.so", "libmpich.so", "libmpi_abi.so", "libpmpi.so"];
/// While one of these is mapped, our provider may still be opened.
const FABRIC: [&str; 2] = ["libresurgo-fi.so", "libfabric.so"];

/// A rank with an MPI library that does without us.
#[derive(Debug, PartialEq, Eq)]
struct Bypass {
    library: PathBuf,
    is_over_ucx: bool,
}

/// `maps`: the text of /proc/PID/maps.
fn bypassing(maps: &str) -> Option<Bypass> {
    let files = || maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let named = |file: &str, starts: &[&str]| {
        let name = file.rsplit('/').next().unwrap_or(file);
        starts.iter().any(|start| name.starts_with(start))
    };
    if files().any(|file| named(file, &FABRIC)) {
        return None;
    }
    let library = PathBuf::from(files().find(|file| named(file, &MPI))?);
    let is_over_ucx = files().any(|file| named(file, &["libucp.so"]));
    Some(Bypass { library, is_over_ucx })
}

/// Looks at all processes of a rank: any of them may be the one that speaks PMI.
fn look(leader: Pid) -> Option<Bypass> {
    let is_member = |pid: &Pid| State::of(*pid).is_some_and(|state| state.group == leader);
    let maps = |pid: Pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).ok();
    children::all().filter(is_member).find_map(|pid| bypassing(&maps(pid)?))
}

impl Agent {
    /// `rank` waits in a barrier of PMI, or `leaves`.
    pub(super) fn mind_bypass(&mut self, rank: usize, leaves: bool) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let Some(life) = this.life.as_ref().filter(|_| !this.uses_provider) else {
            return Ok(());
        };
        this.uses_provider = work.memory.attached(rank)?.is_some();
        if this.uses_provider {
            return Ok(());
        }
        let Some(bypass) = look(life.pid).filter(|bypass| leaves || bypass.is_over_ucx) else {
            return Ok(());
        };
        let over = if bypass.is_over_ucx { " over UCX" } else { "" };
        let what = format!("its MPI library is {}{over}", bypass.library.display());
        // The other ranks use the same library: one message is enough.
        work.ranks.iter_mut().for_each(|rank| rank.uses_provider = true);
        let cure = "build the program, or the module that it loads, for an MPICH with libfabric \
                    (pip install mpich, in an active virtual environment, gives one)";
        if leaves || work.job.protocol == Protocol::None {
            let text = format!("is not protected: {what} and does without Resurgo's provider; {cure}");
            return self.send(&ToDispatcher::MpiTrouble { rank, text });
        }
        let reason = format!(
            "rank {rank} cannot be protected: {what} and does without Resurgo's provider; {cure}, or run with --protocol none"
        );
        self.send(&ToDispatcher::Failed { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_our_provider_is_named() {
        let line = |file: &str| format!("7f0000000000-7f0000001000 r--p 00000000 08:01 1234    {file}\n");
        let (ucx, mpich) = (line("/usr/lib/libucp.so.0.0.0"), line("/opt/a b/libmpich.so.12.2.2"));
        let plain = line("/usr/lib/libc.so.6") + "7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0   [stack]\n";
        let library = PathBuf::from("/opt/a b/libmpich.so.12.2.2");
        for (more, is_over_ucx) in [(ucx.as_str(), true), ("", false)] {
            let library = library.clone();
            let found = bypassing(&format!("{plain}{mpich}{more}"));
            assert_eq!(found, Some(Bypass { library, is_over_ucx }));
        }
        assert_eq!(bypassing(&plain), None);
        assert_eq!(bypassing(&(mpich + &line("/x/libresurgo-fi.so"))), None);
    }
}

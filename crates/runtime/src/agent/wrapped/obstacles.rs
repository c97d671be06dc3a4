//! Why there can be no image of a program below a wrapper.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::unistd::Pid;
use resurgo_wire::control::{Stdin, Stream};
use resurgo_wire::node_memory::RANK_FDS;

use super::{GENERATIONS, reason};
use crate::agent::{Work, spawn};
use crate::children::State;

const IN_FILES: &str = "nothing can bring a wrapper back from files (--checkpoint-dir)";
const ON_NODES: &str = "nothing can bring a wrapper back on another node";
const SERVERS: &str = "event loggers or channel memories keep what another course would need";
const SPAWNED: &str = "the job has spawned ranks, so it could not begin again without the wrapper";
const SURVIVES: &str = "the program deals with failures itself";
const INPUT: &str = "both may read the standard input of rank 0 (let the job have none: < /dev/null)";
const PIPE: &str = "a pipe leads from the program to another process below it";

/// An open file: device, inode.
type Inode = (u64, u64);

impl Work {
    /// Why `rank`, whose program is process `number` below a wrapper, has no images, for people.
    pub(super) fn why_not_below(&self, rank: usize, number: i32) -> io::Result<Option<String>> {
        let Some(life) = &self.ranks[rank].life else {
            return Ok(None);
        };
        let Some(obstacle) = self.obstacle(rank, number)? else {
            return Ok(None);
        };
        let wrapper = fs::read(format!("/proc/{}/cmdline", life.pid)).unwrap_or_default();
        let program = fs::read_link(format!("/proc/{number}/exe"));
        let program = program.map_or("the program".to_string(), |path| path.display().to_string());
        Ok(Some(reason(&wrapper, &program, obstacle)))
    }

    fn obstacle(&self, rank: usize, number: i32) -> io::Result<Option<&'static str>> {
        let has_spawned = spawn::place(&self.job, self.ranks.len() - 1).world > 0;
        let of_job = [
            (self.job.nodes.is_some(), ON_NODES),
            (self.store.is_some(), IN_FILES),
            (self.job.services.iter().next().is_some(), SERVERS),
            (self.job.survives(), SURVIVES),
            (has_spawned, SPAWNED),
            (rank == 0 && self.has_input_left(), INPUT),
        ];
        if let Some((_, why)) = of_job.into_iter().find(|(is_so, _)| *is_so) {
            return Ok(Some(why));
        }
        Ok(self.has_foreign_pipe(rank, number)?.then_some(PIPE))
    }

    /// A later life of the program would read it again, and the wrapper something else.
    fn has_input_left(&self) -> bool {
        match self.job.stdin {
            // All lives have the wrapper's open file.
            Stdin::Nothing | Stdin::File(..) => false,
            Stdin::Stream => !self.feed.is_over(),
        }
    }

    /// Standard input, output or error is a pipe, and not the rank's own. The image's own list knows all others.
    fn has_foreign_pipe(&self, rank: usize, number: i32) -> io::Result<bool> {
        let this = &self.ranks[rank];
        let own = Stream::ALL.map(|stream| this.output(stream).and_then(inode_of));
        let input = self.feed.pipe().filter(|_| rank == 0);
        let may_be = [vec![input.and_then(inode_of)], vec![own[0]], own.to_vec()];
        for (fd, may_be) in may_be.into_iter().enumerate() {
            let Ok(found) = fs::metadata(format!("/proc/{number}/fd/{fd}")) else {
                continue;
            };
            if found.file_type().is_fifo() && !may_be.contains(&Some((found.dev(), found.ino()))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn inode_of(file: &impl AsFd) -> Option<Inode> {
    let file = File::from(file.as_fd().try_clone_to_owned().ok()?);
    file.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// The descriptors of the program, a bit for each, whose regular files some process above it, up to the wrapper, has
/// open, too. They may be the same open file, with the same offset. None: there are others than have bits.
pub(super) fn shared_files(program: Pid, wrapper: Pid) -> Option<u64> {
    let mut of_others = HashSet::new();
    let above = std::iter::successors(Some(program), |process| State::of(*process).map(|state| state.parent));
    for process in above.skip(1).take(GENERATIONS) {
        of_others.extend(files_of(process).map(|(_, inode)| inode));
        if process == wrapper {
            break;
        }
    }
    let mut own = files_of(program).filter(|(_, inode)| of_others.contains(inode));
    own.try_fold(0u64, |bits, (fd, _)| Some(bits | 1u64.checked_shl(fd)?))
}

/// The regular files that a process has open, but the rank's own, and their descriptors.
fn files_of(process: Pid) -> impl Iterator<Item = (u32, Inode)> {
    let names = fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    names.filter_map(|entry| {
        let fd: u32 = entry.file_name().to_str()?.parse().ok()?;
        let found = fs::metadata(entry.path()).ok().filter(|found| found.is_file())?;
        let is_own = RANK_FDS.contains(&(fd as i32));
        (!is_own).then_some((fd, (found.dev(), found.ino())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn files_that_both_have_open_are_found() {
        let path = std::env::temp_dir().join(format!("resurgo-shared-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let begin = |stdout: Stdio| {
            let mut command = Command::new("sleep");
            command
                .arg("60")
                .stdin(Stdio::null())
                .stdout(stdout)
                .stderr(Stdio::null());
            command.spawn().unwrap()
        };
        for (stdout, shared) in [(Stdio::from(file.try_clone().unwrap()), 1 << 1), (Stdio::null(), 0)] {
            let mut child = begin(stdout);
            let found = shared_files(Pid::from_raw(child.id() as i32), Pid::this());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, Some(shared));
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_pipe_is_known_by_its_other_end() {
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(inode_of(&reader), inode_of(&writer));
    }
}

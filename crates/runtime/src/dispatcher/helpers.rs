//! Processes on some nodes that start the agents of others, where hosts are many (see [`crate::helper`]).
//!
//! The dispatcher needs none of them. An agent that a helper cannot start is started from here, so the reason why a
//! node is missing is always that of this machine. A helper's end is not that of its agents, which have their leases.
//! Only the starter of an agent, on the agent's own machine, can say that nothing of it runs any more.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStderr, ChildStdout, Command};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use resurgo_wire::control::{Errand, Told};

use crate::invited;

/// Most nodes that one helper starts, with its own.
const MOST: usize = 32;
/// How long a helper's agents may take to arrive. Then the dispatcher starts those that have not.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest line that a helper may say.
const LONGEST_LINE: usize = 4 << 10;

/// Divides hosts among helpers: at most `most` of these, if that is possible.
pub fn parts(hosts: &[u32], most: usize) -> Vec<Vec<u32>> {
    let of_each = hosts.len().div_ceil(most).clamp(1, MOST);
    hosts.chunks(of_each).map(<[u32]>::to_vec).collect()
}

/// A child's standard error, while it is open.
pub struct Complaints(Option<ChildStderr>);

impl Complaints {
    pub fn of(process: &mut Child) -> Complaints {
        Complaints(process.stderr.take())
    }

    pub fn none() -> Complaints {
        Complaints(None)
    }

    /// What to wait for.
    pub fn descriptor(&self) -> Option<PollFd<'_>> {
        let complaints = self.0.as_ref()?;
        Some(PollFd::new(complaints.as_fd(), PollFlags::POLLIN))
    }

    /// What has come, when ready.
    pub fn read(&mut self) -> Vec<u8> {
        read(&mut self.0)
    }
}

/// Reads what a child has written; at its end there is no stream any more.
fn read(stream: &mut Option<impl Read>) -> Vec<u8> {
    let Some(open) = stream else { return Vec::new() };
    let mut bytes = vec![0; 4 << 10];
    let length = match open.read(&mut bytes) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
        Err(_) => 0,
    };
    if length == 0 {
        *stream = None;
    }
    bytes.truncate(length);
    bytes
}

struct Helper {
    process: Child,
    since: Instant,
    /// It runs, or the dispatcher starts its agents itself.
    is_settled: bool,
    said: Option<ChildStdout>,
    /// The beginning of a line.
    begun: Vec<u8>,
    complaints: Complaints,
    /// Numbers of the nodes that it starts.
    nodes: Vec<u32>,
}

/// The helpers of a job, until it is over.
#[derive(Default)]
pub struct Helpers {
    helpers: Vec<Helper>,
    /// Numbers of nodes of which nothing runs any more.
    ended: BTreeSet<u32>,
}

impl Helpers {
    pub fn start(&mut self, mut command: Command, errand: &Errand) -> io::Result<()> {
        let mut process = command.spawn()?;
        invited::invite(&mut process, errand)?;
        let said = process.stdout.take();
        for stream in [said.as_ref().map(AsFd::as_fd), process.stderr.as_ref().map(AsFd::as_fd)] {
            stream.map_or(Ok(()), crate::sys::set_nonblocking)?;
        }
        let others = errand.others.iter().map(|(node, _)| *node);
        self.helpers.push(Helper {
            since: Instant::now(),
            is_settled: false,
            said,
            begun: Vec::new(),
            complaints: Complaints::of(&mut process),
            nodes: [errand.invitation.node].into_iter().chain(others).collect(),
            process,
        });
        Ok(())
    }

    /// How many do not run yet.
    pub fn starting(&self) -> usize {
        self.helpers.iter().filter(|helper| !helper.is_settled).count()
    }

    /// Nothing of this node runs any more, for sure.
    pub fn have_ended(&self, node: u32) -> bool {
        self.ended.contains(&node)
    }

    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.helpers.iter().map(|helper| helper.process.id())
    }

    /// What to wait for while agents start.
    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let said = self.helpers.iter().filter_map(|helper| helper.said.as_ref());
        said.map(|said| PollFd::new(said.as_fd(), PollFlags::POLLIN))
            .chain(self.complaint_descriptors())
    }

    /// What to wait for later: what helpers say then is only read when a node's connection is broken.
    pub fn complaint_descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.helpers.iter().filter_map(|helper| helper.complaints.descriptor())
    }

    /// What helpers, and launchers and agents below them, complain of.
    pub fn complaints(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.helpers.iter_mut().map(|helper| helper.complaints.read())
    }

    /// Hears what has happened. Returns the nodes whose agents have no starter any more: those that have not arrived
    /// will not come by themselves.
    pub fn hear(&mut self) -> Vec<u32> {
        let mut without = Vec::new();
        for helper in &mut self.helpers {
            without.extend(helper.hear(&mut self.ended));
        }
        without
    }

    /// The job is over: waits for those that are left.
    pub fn end(&mut self, deadline: Instant) {
        for helper in &mut self.helpers {
            while Instant::now() < deadline && matches!(helper.process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            helper.end();
        }
    }
}

impl Helper {
    fn hear(&mut self, ended: &mut BTreeSet<u32>) -> Vec<u32> {
        let mut without = Vec::new();
        let is_over = !matches!(self.process.try_wait(), Ok(None));
        loop {
            let bytes = read(&mut self.said);
            if bytes.is_empty() {
                break;
            }
            self.begun.extend(bytes);
            while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(Told::Here) => self.is_settled = true,
                    Ok(Told::LauncherEnded { node }) => without.push(node),
                    Ok(Told::Ended { node }) => _ = ended.insert(node),
                    // A login shell may say anything.
                    Err(_) => {}
                }
            }
            self.begun.truncate(LONGEST_LINE);
        }
        let is_late = self.since.elapsed() > PATIENCE;
        if is_late && !self.is_settled {
            self.end();
        }
        if is_late || is_over {
            self.is_settled = true;
            without.extend(std::mem::take(&mut self.nodes));
        }
        without
    }

    fn end(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_divided_among_helpers() {
        let sizes = |hosts: u32| {
            let parts = parts(&(0..hosts).collect::<Vec<_>>(), 32);
            assert_eq!(parts.concat(), (0..hosts).collect::<Vec<_>>());
            (parts.len(), parts.iter().map(Vec::len).max())
        };
        assert_eq!(sizes(33), (17, Some(2)));
        assert_eq!(sizes(64), (32, Some(2)));
        assert_eq!(sizes(1024), (32, Some(32)));
        assert_eq!(sizes(4000), (125, Some(32)));
    }
}

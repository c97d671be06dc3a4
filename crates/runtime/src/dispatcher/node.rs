//! A node of the job, as the dispatcher knows it: the agent there, and the connection to it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_protocol::Membership;
use resurgo_protocol::membership::{Change, Death, Timing};
use resurgo_protocol::policy::End;
use resurgo_wire::beats::NAME_BYTES;
use resurgo_wire::console;
use resurgo_wire::control::{AGENT, LifeStatistics, LongestTurns, ToAgent, ToDispatcher};

use super::cluster::SSH_FAILED;
use super::ends::how_ended;
use super::helpers::{Complaints, Helpers};
use super::start_error::{StartError, cannot};
use crate::connection::{Connection, Received};
use crate::{beats, children};

pub struct Node {
    /// As the user calls it; none: it is this machine alone.
    name: Option<String>,
    /// The number by which helpers know it.
    number: u32,
    /// The agent, or its launcher; none: the node joined by itself, or a helper has started its agent.
    process: Option<Child>,
    /// The agent's standard input: when it closes, the agent ends.
    life_line: Option<ChildStdin>,
    /// Complaints of the agent or its launcher.
    complaints: Complaints,
    connection: Connection,
    /// By what its heartbeats as datagrams are known.
    beats: [u8; NAME_BYTES],
}

impl Node {
    /// Starts an agent on this node, which is the only one.
    pub fn start() -> Result<Node, StartError> {
        let (ours, theirs) = UnixStream::pair().map_err(cannot("make a socket"))?;
        let process = Command::new("/proc/self/exe")
            .arg0("resurgo")
            .arg(AGENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Out of the terminal's foreground group: Ctrl-C is the dispatcher's to handle.
            .process_group(0)
            .spawn()
            .map_err(cannot("start the agent"))?;
        Ok(Node {
            name: None,
            number: 0,
            process: Some(process),
            life_line: None,
            complaints: Complaints::none(),
            connection: Connection::new(ours).map_err(cannot("talk to the agent"))?,
            beats: [0; NAME_BYTES],
        })
    }

    /// One of several, whose agent has come.
    pub fn of(
        name: String,
        number: u32,
        mut process: Option<Child>,
        connection: Connection,
        beats: [u8; NAME_BYTES],
    ) -> Node {
        Node {
            name: Some(name),
            number,
            life_line: process.as_mut().and_then(|process| process.stdin.take()),
            complaints: process.as_mut().map_or_else(Complaints::none, Complaints::of),
            process,
            connection,
            beats,
        }
    }

    /// The address at which it reached this machine, on several nodes.
    pub fn knows_this_machine_as(&self) -> Option<IpAddr> {
        self.connection.own_address().map(|address| address.ip())
    }

    pub fn tell(&mut self, message: &ToAgent) {
        // A broken connection is noticed when it is read.
        let _ = self.connection.send(message);
    }

    /// The same, to be sent together with others.
    pub fn queue(&mut self, message: &ToAgent) {
        self.connection.queue(message);
    }

    /// Sends what is queued as far as that goes. False: the connection is broken.
    pub fn send_queued(&mut self) -> bool {
        self.connection.flush().is_ok()
    }

    /// What to wait for.
    pub fn descriptor(&self) -> PollFd<'_> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, self.connection.has_queued());
        PollFd::new(self.connection.as_fd(), flags)
    }

    /// The agent, or its launcher, has ended.
    fn has_ended(&mut self) -> bool {
        // Without a process here only a helper or its silence tells.
        let process = self.process.as_mut();
        process.is_some_and(|process| !matches!(process.try_wait(), Ok(None)))
    }

    /// Sends the queue as far as possible, and takes what has come.
    pub fn hear(&mut self) -> io::Result<Received<ToDispatcher>> {
        let flushed = self.connection.flush();
        let mut received = self.connection.receive()?;
        received.closed |= flushed.is_err();
        Ok(received)
    }

    /// Waits until all that is queued has been sent. False: the connection is broken.
    pub fn send_all(&mut self) -> bool {
        while self.connection.has_queued() {
            if self.connection.flush().is_err() {
                return false;
            }
        }
        true
    }

    /// The agent is about to end: waits until it and all that it leaves behind have.
    fn await_end(&mut self, deadline: Instant) {
        let mut is_over = || match &mut self.process {
            Some(process) => !matches!(process.try_wait(), Ok(None)),
            None => {
                let received = self.connection.receive::<ToDispatcher>();
                received.map_or(true, |received| received.closed)
            }
        };
        while !is_over() && Instant::now() < deadline {
            std::thread::sleep(LOOK_AT_END);
        }
    }

    /// Ends the rest of it, and says how it was lost. `is_silent`: its lease is over, without a word from it.
    pub fn end(&mut self, is_silent: bool) -> Lost {
        self.life_line = None;
        if let Some(process) = &mut self.process {
            let _ = process.kill();
        }
        let ended = self.ended();
        if !is_silent {
            return ended;
        }
        // The end of its launcher is our own doing.
        let name = self.name.as_deref().unwrap_or_default();
        Lost {
            words: format!("node {name} cannot be reached (its lease is over, without a word from it)"),
            cause: "it cannot be reached".to_string(),
        }
    }

    /// The agent has ended: its name, and how.
    pub fn last_words(&mut self) -> String {
        self.ended().words
    }

    /// Waits for the end of the agent, or of its launcher.
    fn ended(&mut self) -> Lost {
        let name = self.name.as_ref();
        let of = name.map_or(String::new(), |name| format!(" of node {name}"));
        let Some(process) = &mut self.process else {
            return Lost {
                words: format!("the agent{of} has gone"),
                cause: "its agent has gone".to_string(),
            };
        };
        let pid = process.id();
        match process.wait().map(end_of) {
            Ok(End::Exited(SSH_FAILED)) => Lost {
                words: format!("the connection to the agent{of} has ended (pid {pid}: exit status {SSH_FAILED})"),
                cause: "the connection to its agent has ended".to_string(),
            },
            Ok(end) => {
                let how = how_ended(end);
                let was = if matches!(end, End::Signalled(_)) { "was " } else { "" };
                Lost {
                    words: format!("the agent{of} (pid {pid}) has died ({how})"),
                    cause: format!("its agent {was}{how}"),
                }
            }
            Err(error) => Lost {
                words: format!("the agent{of} (pid {pid}) has died ({error})"),
                cause: format!("its agent has ended ({error})"),
            },
        }
    }
}

/// How a node was lost, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// With the name of the node.
    pub words: String,
    /// Without it: "its agent was killed by SIGKILL".
    pub cause: String,
}

/// The end of an agent. Where a launcher has started it, this is what the launcher passes on: as of a shell, an exit
/// status above 128 stands for a signal.
fn end_of(status: ExitStatus) -> End {
    match children::end_of(status) {
        End::Exited(code @ 129..=254) => End::Signalled(code - 128),
        end => end,
    }
}

/// The state of a node, as far as its connection tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    There,
    /// Its connection is broken, and its ranks may run.
    Broken,
    /// It has ended the job, or is lost: nothing from there counts.
    Gone,
}

/// The agents of all nodes.
pub struct Agents {
    nodes: Vec<Node>,
    /// What has started some of them.
    helpers: Helpers,
    standings: Vec<Standing>,
    /// The statistics of each node that has ended the job for good.
    stopped: Vec<Option<Vec<LifeStatistics>>>,
    turns: Vec<Option<LongestTurns>>,
    /// Measured logs of nodes, until all nodes have reported.
    measured: BTreeMap<usize, Vec<u64>>,
    /// How many nodes have no process of a rank since the halt.
    halted: usize,
    /// Which of several nodes are present.
    membership: Option<Watched>,
}

/// Several nodes and the clock that watches them: it stands still while the dispatcher does not read their messages.
struct Watched {
    membership: Membership,
    lease: Duration,
    clock: Duration,
    read: Instant,
    /// Per node: its last message or datagram, and its longest silence.
    silences: Vec<(Duration, Duration)>,
    /// Per node: its last message on its connection, and the number of its last heartbeat as a datagram.
    spoke: Vec<(Duration, u64)>,
    beats: Option<beats::Heard>,
    /// The time of its loss.
    lost: Vec<Option<Instant>>,
    /// The images of other nodes that it has got, and those of them that were made anew.
    images: Vec<(u64, u64)>,
    held: Vec<HeldForOthers>,
}

/// Bytes that a node holds for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldForOthers {
    /// In copies of images, and in pieces of parity, at last.
    pub images: u64,
    pub pieces: u64,
    /// The most together.
    pub most: u64,
}

/// Figures of a node, for the statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFigures {
    pub name: String,
    /// It was lost, so long after the start of the job.
    pub lost: Option<Duration>,
    /// The longest time without a message from it.
    pub silence: Duration,
    /// The images of other nodes that it has got, and those of them that were made anew.
    pub images: (u64, u64),
    pub held: HeldForOthers,
    /// Of its agent's loops; none: it was lost.
    pub turns: Option<LongestTurns>,
}

/// How often the dispatcher checks whether an agent with a broken connection has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long the dispatcher waits for the rest of a lost agent's processes. They are killed, and other agents wait for
/// answers.
const PATIENCE: Duration = Duration::from_millis(50);
/// How often it looks whether agents have ended at the end of the job.
const LOOK_AT_END: Duration = Duration::from_millis(1);
/// For how many leases a connection may be silent while datagrams pass: a cut lasts up to a lease and a margin, and
/// TCP needs as much again.
const CUTS: u32 = 3;
/// An agent has only one life so far.
const LIFE: u64 = 1;

impl Watched {
    fn now(&mut self) -> Duration {
        let read = Instant::now();
        self.clock += read.saturating_duration_since(self.read).min(self.lease / 2);
        self.read = read;
        self.clock
    }

    fn was_heard(&mut self, number: usize, now: Duration) {
        let (heard, longest) = &mut self.silences[number];
        *longest = (*longest).max(now.saturating_sub(*heard));
        *heard = now;
    }
}

impl Agents {
    /// The only one, on this machine.
    pub fn one(node: Node) -> Agents {
        Agents {
            nodes: vec![node],
            helpers: Helpers::default(),
            standings: vec![Standing::There],
            stopped: vec![None],
            turns: vec![None],
            measured: BTreeMap::new(),
            halted: 0,
            membership: None,
        }
    }

    /// Those of several nodes. `lease`: how long each goes on without a message from here.
    pub fn several(nodes: Vec<Node>, helpers: Helpers, lease: Duration, beats: Option<beats::Heard>) -> Agents {
        let count = nodes.len();
        let mut membership = Membership::new(Timing::of_lease(lease));
        for node in 0..nodes.len() {
            // A new number cannot be taken.
            let _ = membership.join(node as u32, Duration::ZERO);
        }
        Agents {
            standings: vec![Standing::There; nodes.len()],
            stopped: vec![None; nodes.len()],
            turns: vec![None; nodes.len()],
            nodes,
            helpers,
            measured: BTreeMap::new(),
            halted: 0,
            membership: Some(Watched {
                membership,
                lease,
                clock: Duration::ZERO,
                read: Instant::now(),
                silences: vec![Default::default(); count],
                spoke: vec![Default::default(); count],
                beats,
                lost: vec![None; count],
                images: vec![(0, 0); count],
                held: vec![HeldForOthers::default(); count],
            }),
        }
    }

    /// Adds one agent; returns its number.
    pub fn comes(&mut self, node: Node) -> usize {
        let number = self.nodes.len();
        if let Some(watched) = &mut self.membership {
            let now = watched.now();
            // A new number cannot be taken.
            let _ = watched.membership.join(number as u32, now);
            watched.silences.push((now, Duration::ZERO));
            watched.spoke.push((now, 0));
            watched.lost.push(None);
            watched.images.push((0, 0));
            watched.held.push(HeldForOthers::default());
        }
        self.nodes.push(node);
        self.standings.push(Standing::There);
        self.stopped.push(None);
        self.turns.push(None);
        number
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The user's name of the node; none: it is the only one.
    pub fn name(&self, number: usize) -> Option<&str> {
        self.nodes[number].name.as_deref()
    }

    pub fn node(&mut self, number: usize) -> &mut Node {
        &mut self.nodes[number]
    }

    /// Those that are there, with their numbers.
    fn present(&mut self) -> impl Iterator<Item = (usize, &mut Node)> {
        let nodes = self.nodes.iter_mut().zip(&self.standings).enumerate();
        nodes.filter_map(|(number, (node, standing))| (*standing == Standing::There).then_some((number, node)))
    }

    /// The numbers of those that are there.
    pub fn numbers(&self) -> Vec<usize> {
        let all = 0..self.nodes.len();
        all.filter(|node| self.standings[*node] == Standing::There).collect()
    }

    /// There are, or were, several.
    pub fn are_several(&self) -> bool {
        self.membership.is_some()
    }

    /// What several nodes have been like since the job was started.
    pub fn figures(&self, start: Instant) -> Vec<NodeFigures> {
        let Some(watched) = &self.membership else {
            return Vec::new();
        };
        let figures = |(number, node): (usize, &Node)| NodeFigures {
            name: node.name.clone().unwrap_or_default(),
            lost: watched.lost[number].map(|lost| lost.saturating_duration_since(start)),
            silence: watched.silences[number].1,
            images: watched.images[number],
            held: watched.held[number],
            turns: self.turns[number],
        };
        self.nodes.iter().enumerate().map(figures).collect()
    }

    /// How the node stands.
    pub fn standing(&self, number: usize) -> console::Standing {
        let is_lost = |watched: &Watched| watched.lost[number].is_some();
        match self.standings[number] {
            Standing::There => console::Standing::There,
            Standing::Broken => console::Standing::Broken,
            Standing::Gone if self.membership.as_ref().is_some_and(is_lost) => console::Standing::Lost,
            Standing::Gone => console::Standing::Left,
        }
    }

    /// The time since its last message, and what it holds for others; none: it is the only one.
    pub fn figures_of(&self, number: usize) -> Option<(Duration, HeldForOthers)> {
        let watched = self.membership.as_ref()?;
        let now = watched.clock + watched.read.elapsed();
        Some((now.saturating_sub(watched.silences[number].0), watched.held[number]))
    }

    /// The node has an image of another one, which was made anew or not.
    pub fn has_image(&mut self, number: usize, is_anew: bool) {
        let images = self
            .membership
            .as_mut()
            .and_then(|watched| watched.images.get_mut(number));
        if let Some((all, anew)) = images {
            *all += 1;
            *anew += u64::from(is_anew);
        }
    }

    /// The node holds so many bytes for others.
    pub fn holds(&mut self, number: usize, images: u64, pieces: u64) {
        let held = self
            .membership
            .as_mut()
            .and_then(|watched| watched.held.get_mut(number));
        if let Some(held) = held {
            let most = held.most.max(images + pieces);
            *held = HeldForOthers { images, pieces, most };
        }
    }

    /// The job is over: waits until nothing of any node runs any more, and its agent has tidied up.
    pub fn end(&mut self, patience: Duration) {
        if self.membership.is_none() {
            return;
        }
        let deadline = Instant::now() + patience;
        for (node, standing) in self.nodes.iter_mut().zip(&self.standings) {
            // The connection to a node that is gone may never close.
            if *standing != Standing::Gone || node.process.is_some() {
                node.await_end(deadline);
            }
        }
        self.helpers.end(deadline);
    }

    /// Tells all.
    pub fn tell(&mut self, message: &ToAgent) {
        self.present().for_each(|(_, node)| node.tell(message));
    }

    /// Tells all but one, together with others.
    pub fn tell_others(&mut self, one: usize, message: &ToAgent) {
        let others = self.present().filter(|(number, _)| *number != one);
        others.for_each(|(_, node)| node.queue(message));
    }

    /// The node is lost: its messages no longer count. Ends its agent if need be, and returns how the node was lost.
    /// `others`: processes of this one that go on.
    pub fn lose(&mut self, number: usize, why: Death, others: impl Iterator<Item = u32>) -> Lost {
        self.standings[number] = Standing::Gone;
        self.stopped[number] = Some(Vec::new());
        if let Some(watched) = &mut self.membership {
            watched.lost[number] = Some(Instant::now());
        }
        let lost = self.nodes[number].end(why == Death::Silent);
        // Processes that it started on this machine are our children now.
        let own = self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id()));
        let own: Vec<u32> = own.chain(self.helpers.processes()).chain(others).collect();
        children::kill_others(&own, PATIENCE);
        lost
    }

    /// The node has no ranks and is not needed: its agent ends by itself.
    pub fn let_go(&mut self, number: usize) {
        self.nodes[number].tell(&ToAgent::End {
            grace_ms: 0,
            finished: false,
        });
        self.standings[number] = Standing::Gone;
        self.stopped[number] = Some(Vec::new());
        if let Some(watched) = &mut self.membership {
            watched.membership.ended(number as u32, LIFE);
        }
    }

    /// All present nodes have ended the job.
    pub fn have_stopped(&self) -> bool {
        self.have_stopped_but(&[])
    }

    /// The same of all but these.
    pub fn have_stopped_but(&self, nodes: &[usize]) -> bool {
        let mut stopped = self.stopped.iter().enumerate();
        stopped.all(|(node, stopped)| stopped.is_some() || nodes.contains(&node))
    }

    /// This node has ended the job. Returns whether all have.
    pub fn has_stopped(&mut self, node: usize, statistics: Vec<LifeStatistics>, turns: LongestTurns) -> bool {
        self.stopped[node] = Some(statistics);
        self.turns[node] = Some(turns);
        self.have_stopped()
    }

    /// How much each rank's image would free, as far as this node knows.
    pub fn have_measured(&mut self, node: usize, bytes: Vec<u64>) {
        self.measured.insert(node, bytes);
    }

    /// The same of all ranks, once all present nodes have reported.
    pub fn measured(&mut self, of_rank: &[usize]) -> Option<Vec<u64>> {
        let there = self.numbers();
        if self.measured.is_empty() || !there.iter().all(|node| self.measured.contains_key(node)) {
            return None;
        }
        let measured = std::mem::take(&mut self.measured);
        let of = |(rank, node): (usize, &usize)| measured.get(node)?.get(rank).copied();
        Some(of_rank.iter().enumerate().map(|rank| of(rank).unwrap_or(0)).collect())
    }

    /// Each rank's statistics, from its node.
    pub fn statistics(&mut self, of_rank: impl Fn(usize) -> usize) -> Vec<LifeStatistics> {
        let all: Vec<_> = self
            .stopped
            .iter_mut()
            .map(|stopped| stopped.take().unwrap_or_default())
            .collect();
        let ranks = all.iter().map(Vec::len).max().unwrap_or(0);
        let of = |rank: usize| all.get(of_rank(rank))?.get(rank).copied();
        (0..ranks).map(|rank| of(rank).unwrap_or_default()).collect()
    }

    /// Tells all, together with others.
    pub fn queue_all(&mut self, message: &ToAgent) {
        self.present().for_each(|(_, node)| node.queue(message));
    }

    /// Queues a command of the coordinator for all.
    pub fn give_all(&mut self, command: resurgo_protocol::Command) {
        if command == resurgo_protocol::Command::Halt {
            self.halted = 0;
        }
        self.queue_all(&ToAgent::Do(command));
    }

    /// One more node has no process of a rank. Returns whether none has.
    pub fn has_halted(&mut self) -> bool {
        self.halted += 1;
        self.halted == self.numbers().len()
    }

    /// What to wait for: first one of each that is there ([`Agents::numbers`]), then those of complaints.
    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let there = self.numbers().into_iter();
        let complaints = self.nodes.iter().filter_map(|node| node.complaints.descriptor());
        there
            .map(|number| self.nodes[number].descriptor())
            .chain(complaints)
            .chain(self.helpers.complaint_descriptors())
    }

    /// Sends what is queued as far as that goes. Answers the nodes whose connections are broken.
    pub fn send_queued(&mut self) -> Vec<usize> {
        let broken = self
            .present()
            .filter_map(|(number, node)| (!node.send_queued()).then_some(number));
        broken.collect()
    }

    /// Those from which something has come.
    pub fn readable(&self) -> Vec<usize> {
        let numbers = self.numbers();
        let connection = |number: &usize| self.nodes[*number].connection.as_fd();
        let mut ready: Vec<PollFd> = numbers
            .iter()
            .map(|number| PollFd::new(connection(number), PollFlags::POLLIN))
            .collect();
        if poll(&mut ready, PollTimeout::ZERO).is_err() {
            return Vec::new();
        }
        let ready: Vec<bool> = ready.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        numbers
            .into_iter()
            .zip(ready)
            .filter_map(|(number, is)| is.then_some(number))
            .collect()
    }

    /// What they, or their launchers, say on standard error now.
    pub fn complaints(&mut self) -> impl Iterator<Item = Vec<u8>> {
        let of_nodes = self.nodes.iter_mut().map(|node| node.complaints.read());
        of_nodes.chain(self.helpers.complaints())
    }

    /// Sends all that is queued. False: a connection is broken.
    pub fn send_all(&mut self) -> bool {
        self.present().all(|(_, node)| node.send_all())
    }

    /// Reads the messages of a node. True: the only node is lost.
    pub fn hear(&mut self, number: usize) -> io::Result<(Vec<ToDispatcher>, bool)> {
        if let Some(watched) = &mut self.membership {
            let now = watched.now();
            if watched.membership.heard(number as u32, LIFE, now).is_err() {
                return Ok((Vec::new(), false));
            }
            watched.was_heard(number, now);
            watched.spoke[number].0 = now;
        }
        let received = self.nodes[number].hear()?;
        let has_stopped = |message: &ToDispatcher| matches!(message, ToDispatcher::Stopped { .. });
        if self.stopped[number].is_some() || received.messages.iter().any(has_stopped) {
            if received.closed {
                self.standings[number] = Standing::Gone;
            }
            return Ok((received.messages, false));
        }
        if received.closed {
            self.breaks(number);
        }
        Ok((received.messages, received.closed && self.membership.is_none()))
    }

    /// Where heartbeats come as datagrams.
    pub fn beats(&self) -> Option<BorrowedFd<'_>> {
        Some(self.membership.as_ref()?.beats.as_ref()?.as_fd())
    }

    /// Answers the heartbeats that have come as datagrams. They count while the node's connection may still come back
    /// to life: TCP takes up to twice the length of a cut.
    pub fn answer_beats(&mut self) {
        let Some(watched) = &mut self.membership else { return };
        let came = watched.beats.as_ref().map_or(Vec::new(), beats::Heard::all);
        let now = watched.now();
        for (beat, from) in came {
            let Some(number) = self.nodes.iter().position(|node| node.beats == beat.of) else {
                continue;
            };
            let (spoke, last) = watched.spoke[number];
            let counts = self.standings[number] == Standing::There
                && beat.number > last
                && now.saturating_sub(spoke) < watched.lease * CUTS;
            if counts && watched.membership.heard(number as u32, LIFE, now).is_ok() {
                watched.was_heard(number, now);
                watched.spoke[number].1 = beat.number;
                watched.beats.iter().for_each(|beats| beats.answer(beat, from));
            }
        }
    }

    /// The connection of one of several nodes is broken: it counts as lost when nothing of it can run any more.
    pub fn breaks(&mut self, number: usize) {
        if let Some(watched) = &mut self.membership {
            self.standings[number] = Standing::Broken;
            watched.membership.broken(number as u32, LIFE);
        }
    }

    /// When [`Agents::lost`] may have news.
    pub fn due(&self) -> Option<Duration> {
        let watched = self.membership.as_ref()?;
        if self.standings.contains(&Standing::Broken) {
            return Some(LOOK);
        }
        let since = watched.read.elapsed();
        Some(watched.membership.due()?.saturating_sub(watched.clock + since))
    }

    /// A node where nothing runs any more: its agent has ended, or was silent until its lease ended its ranks.
    pub fn lost(&mut self) -> Option<(usize, Death)> {
        let watched = self.membership.as_mut()?;
        let now = watched.now();
        if self.standings.contains(&Standing::Broken) {
            // Agents go on without their starters.
            let _ = self.helpers.hear();
        }
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let has_ended = |node: &mut Node| node.has_ended() || self.helpers.have_ended(node.number);
            if self.standings[number] == Standing::Broken && has_ended(node) {
                watched.membership.ended(number as u32, LIFE);
            }
        }
        watched.membership.pass(now);
        while let Some(change) = watched.membership.poll() {
            if let Change::Dead { node, why, .. } = change
                && self.stopped[node as usize].is_none()
            {
                return Some((node as usize, why));
            }
        }
        None
    }
}

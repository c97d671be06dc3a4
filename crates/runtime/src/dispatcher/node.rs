//! A node of the job, as the dispatcher knows it: the agent there, and the connection to it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use resurgo_protocol::Membership;
use resurgo_protocol::membership::{Change, Timing};
use resurgo_wire::control::{AGENT, LifeStatistics, ToAgent, ToDispatcher};

use super::start_error::{StartError, cannot};
use crate::children;
use crate::connection::{Connection, Received};

pub struct Node {
    /// As the user calls it; none: it is this machine alone.
    name: Option<String>,
    /// The agent, or what has started it on another machine; none: it has come by itself.
    process: Option<Child>,
    /// The agent's standard input, whose end is the agent's.
    life_line: Option<ChildStdin>,
    /// What it, or its launcher, has to complain of.
    complaints: Option<ChildStderr>,
    connection: Connection,
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
            process: Some(process),
            life_line: None,
            complaints: None,
            connection: Connection::new(ours).map_err(cannot("talk to the agent"))?,
        })
    }

    /// One of several, whose agent has come.
    pub fn of(name: String, mut process: Option<Child>, connection: Connection) -> Node {
        Node {
            name: Some(name),
            life_line: process.as_mut().and_then(|process| process.stdin.take()),
            complaints: process.as_mut().and_then(|process| process.stderr.take()),
            process,
            connection,
        }
    }

    /// The address by which it has reached this machine, if it is one of several.
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

    /// The same of complaints, if there may be any.
    pub fn complaint_descriptor(&self) -> Option<PollFd<'_>> {
        let complaints = self.complaints.as_ref()?;
        Some(PollFd::new(complaints.as_fd(), PollFlags::POLLIN))
    }

    /// Some of what it, or its launcher, says on standard error, when that is ready.
    pub fn complaints(&mut self) -> Vec<u8> {
        let Some(complaints) = &mut self.complaints else {
            return Vec::new();
        };
        let mut bytes = vec![0; 4 << 10];
        let length = match complaints.read(&mut bytes) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Err(_) => 0,
        };
        if length == 0 {
            self.complaints = None;
        }
        bytes.truncate(length);
        bytes
    }

    /// The agent, or what has started it, has ended.
    fn has_ended(&mut self) -> bool {
        // One that has come by itself is heard of or not.
        let process = self.process.as_mut();
        process.is_some_and(|process| !matches!(process.try_wait(), Ok(None)))
    }

    /// Sends what is queued as far as that goes, and takes what has come.
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

    /// Ends what is left of it, and says what has ended.
    pub fn end(&mut self) -> String {
        self.life_line = None;
        if let Some(process) = &mut self.process {
            let _ = process.kill();
        }
        self.last_words()
    }

    /// The agent has ended: who it was, and how.
    pub fn last_words(&mut self) -> String {
        let of = self
            .name
            .as_ref()
            .map_or(String::new(), |name| format!(" of node {name}"));
        let Some(process) = &mut self.process else {
            return format!("the agent{of} has gone");
        };
        let end = match process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        format!("the agent{of} (pid {}) has died ({end})", process.id())
    }
}

/// How a node stands, as far as its connection tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    There,
    /// Its connection is broken, and its ranks may run.
    Broken,
    /// It has ended the job, or is lost: nothing that comes from there counts.
    Gone,
}

/// The agents of all nodes.
pub struct Agents {
    nodes: Vec<Node>,
    standings: Vec<Standing>,
    /// Of each node that has ended the job for good, what its ranks have done.
    stopped: Vec<Option<Vec<LifeStatistics>>>,
    /// What nodes have said of the logs that they have measured, while that is not known of all.
    measured: BTreeMap<usize, Vec<u64>>,
    /// How many have no process of a rank any more since the job was halted.
    halted: usize,
    /// Which of several are there.
    membership: Option<Watched>,
}

/// Several nodes, and the clock by which they are watched: it stands still while nobody listens to them.
struct Watched {
    membership: Membership,
    lease: Duration,
    clock: Duration,
    read: Instant,
    /// Per node: when it was heard last, and its longest silence.
    silences: Vec<(Duration, Duration)>,
    /// When it was lost.
    lost: Vec<Option<Instant>>,
}

/// What a node has been like, for the statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFigures {
    pub name: String,
    /// It was lost, so long after the start of the job.
    pub lost: Option<Duration>,
    /// The longest time without a word of it.
    pub silence: Duration,
}

/// How often it is looked whether an agent with a broken connection has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long what a lost agent has left is waited for. It has been killed, and other agents wait for answers.
const PATIENCE: Duration = Duration::from_millis(50);
/// The only life of an agent's that there is so far.
const LIFE: u64 = 1;

impl Watched {
    fn now(&mut self) -> Duration {
        let read = Instant::now();
        self.clock += read.saturating_duration_since(self.read).min(self.lease / 2);
        self.read = read;
        self.clock
    }
}

impl Agents {
    /// The only one, on this machine.
    pub fn one(node: Node) -> Agents {
        Agents {
            nodes: vec![node],
            standings: vec![Standing::There],
            stopped: vec![None],
            measured: BTreeMap::new(),
            halted: 0,
            membership: None,
        }
    }

    /// Those of several nodes. `lease`: for how long each goes on without a word from here.
    pub fn several(nodes: Vec<Node>, lease: Duration) -> Agents {
        let count = nodes.len();
        let mut membership = Membership::new(Timing::of_lease(lease));
        for node in 0..nodes.len() {
            // Nobody was there before.
            let _ = membership.join(node as u32, Duration::ZERO);
        }
        Agents {
            standings: vec![Standing::There; nodes.len()],
            stopped: vec![None; nodes.len()],
            nodes,
            measured: BTreeMap::new(),
            halted: 0,
            membership: Some(Watched {
                membership,
                lease,
                clock: Duration::ZERO,
                read: Instant::now(),
                silences: vec![Default::default(); count],
                lost: vec![None; count],
            }),
        }
    }

    /// One more has come; its number.
    pub fn comes(&mut self, node: Node) -> usize {
        let number = self.nodes.len();
        if let Some(watched) = &mut self.membership {
            let now = watched.now();
            // Nobody was there before.
            let _ = watched.membership.join(number as u32, now);
            watched.silences.push((now, Duration::ZERO));
            watched.lost.push(None);
        }
        self.nodes.push(node);
        self.standings.push(Standing::There);
        self.stopped.push(None);
        number
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What the user calls the node; none: it is the only one.
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
        let figures = |(node, of): (&Node, (&(Duration, Duration), &Option<Instant>))| NodeFigures {
            name: node.name.clone().unwrap_or_default(),
            lost: of.1.map(|lost| lost.saturating_duration_since(start)),
            silence: of.0.1,
        };
        let of = watched.silences.iter().zip(&watched.lost);
        self.nodes.iter().zip(of).map(figures).collect()
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

    /// The node is lost: nothing of it is heard any more. What has become of its agent, which ends if it has not. `others`: processes
    /// of this one that go on.
    pub fn lose(&mut self, number: usize, others: impl Iterator<Item = u32>) -> String {
        self.standings[number] = Standing::Gone;
        self.stopped[number] = Some(Vec::new());
        if let Some(watched) = &mut self.membership {
            watched.lost[number] = Some(Instant::now());
        }
        let words = self.nodes[number].end();
        // What it has started on this machine is ours now.
        let own = self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id()));
        let own: Vec<u32> = own.chain(others).collect();
        children::kill_others(&own, PATIENCE);
        words
    }

    /// The node has no ranks, and is not needed: it ends by itself.
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

    /// All that are there have ended the job.
    pub fn have_stopped(&self) -> bool {
        self.stopped.iter().all(Option::is_some)
    }

    /// This node has ended the job. Whether all have.
    pub fn has_stopped(&mut self, node: usize, statistics: Vec<LifeStatistics>) -> bool {
        self.stopped[node] = Some(statistics);
        self.have_stopped()
    }

    /// How much each rank's image would free, as far as this node knows.
    pub fn have_measured(&mut self, node: usize, bytes: Vec<u64>) {
        self.measured.insert(node, bytes);
    }

    /// The same of all ranks, each by its node, once all that are there have said it.
    pub fn measured(&mut self, of_rank: &[usize]) -> Option<Vec<u64>> {
        let there = self.numbers();
        if self.measured.is_empty() || !there.iter().all(|node| self.measured.contains_key(node)) {
            return None;
        }
        let measured = std::mem::take(&mut self.measured);
        let of = |(rank, node): (usize, &usize)| measured.get(node)?.get(rank).copied();
        Some(of_rank.iter().enumerate().map(|rank| of(rank).unwrap_or(0)).collect())
    }

    /// What each rank has done, by its node.
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

    /// What the coordinator wants of all goes to them together with others.
    pub fn give_all(&mut self, command: resurgo_protocol::Command) {
        if command == resurgo_protocol::Command::Halt {
            self.halted = 0;
        }
        self.queue_all(&ToAgent::Do(command));
    }

    /// One more node has no process of a rank. Whether that is so of all.
    pub fn has_halted(&mut self) -> bool {
        self.halted += 1;
        self.halted == self.numbers().len()
    }

    /// What to wait for: first one of each that is there ([`Agents::numbers`]), then those of complaints.
    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let there = self.numbers().into_iter();
        let complaints = self.nodes.iter().filter_map(Node::complaint_descriptor);
        there.map(|number| self.nodes[number].descriptor()).chain(complaints)
    }

    /// Sends what is queued as far as that goes. Answers a node whose connection is broken.
    pub fn send_queued(&mut self) -> Option<usize> {
        let mut broken = None;
        for (number, node) in self.present() {
            if !node.send_queued() {
                broken = Some(number);
            }
        }
        broken
    }

    /// What they, or their launchers, say on standard error now.
    pub fn complaints(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.nodes.iter_mut().map(Node::complaints)
    }

    /// Sends all that is queued. False: a connection is broken.
    pub fn send_all(&mut self) -> bool {
        self.present().all(|(_, node)| node.send_all())
    }

    /// Hears what a node has to say. True: the only node is lost.
    pub fn hear(&mut self, number: usize) -> io::Result<(Vec<ToDispatcher>, bool)> {
        if let Some(watched) = &mut self.membership {
            let now = watched.now();
            if watched.membership.heard(number as u32, LIFE, now).is_err() {
                return Ok((Vec::new(), false));
            }
            let (heard, longest) = &mut watched.silences[number];
            *longest = (*longest).max(now.saturating_sub(*heard));
            *heard = now;
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

    /// The connection of one of several is broken: it is lost when nothing of it can run any more.
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

    /// A node of which nothing runs any more: its agent has ended, or has been silent for so long that it has ended its ranks.
    pub fn lost(&mut self) -> Option<usize> {
        let watched = self.membership.as_mut()?;
        let now = watched.now();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if self.standings[number] == Standing::Broken && node.has_ended() {
                watched.membership.ended(number as u32, LIFE);
            }
        }
        watched.membership.pass(now);
        while let Some(change) = watched.membership.poll() {
            if let Change::Dead { node, .. } = change
                && self.stopped[node as usize].is_none()
            {
                return Some(node as usize);
            }
        }
        None
    }
}

//! The agents of a job on several nodes: their start or arrival, and the wait for them.
//!
//! Each gets an [`Invitation`] on its standard input, connects back, and proves the job's key. A node that cannot be
//! reached, has no resurgo, or is not like this one is *missing*. If more are missing than may be, the job ends before
//! it begins. Where many hosts are reached by ssh, helpers start most agents.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use resurgo_wire::control::join::{self, Joining, Welcome};
use resurgo_wire::control::{
    Alike, Arrival, Errand, Invitation, Job, JobDirectory, MOST_NODES, Nodes, Serve, Sight, ToAgent, ToDispatcher,
};
use resurgo_wire::handshake::Server;

use super::cluster::{Cluster, Host, Launcher, SSH_FAILED};
use super::door::Door;
use super::helpers::{self, Helpers};
use super::node::Node;
use super::servers;
use super::start_error::{StartError, cannot};
use crate::connection::Connection;
use crate::reception::Reception;
use crate::stream::Tls;
use crate::{beats, interfaces, invited, likeness, server_process};

/// How long a node's agent may take to arrive.
const LAUNCH: Duration = Duration::from_secs(60);
/// Agents and helpers started at a time: each is a process of ssh or srun here, and a login there. Where there are more
/// hosts, helpers start most agents.
const AT_ONCE: usize = 32;
/// How long helpers may take to end after their agents.
const LAST: Duration = Duration::from_secs(2);
/// How often the dispatcher looks at launchers: their ends make nothing readable.
const LOOK: Duration = Duration::from_millis(50);
/// Most bytes of complaints that a report shows.
const COMPLAINTS: usize = 2 << 10;
/// How complaints of resurgo begin.
const OURS: &str = "resurgo: ";
/// A shell's exit status when the file is missing; ssh passes it on.
const NOT_FOUND: i32 = 127;
/// A shell's exit status from which on it stands for a signal that ended its command.
const SIGNALLED: i32 = 128;

/// The state of an expected node.
enum Fate {
    /// Its agent has not arrived yet.
    Awaited,
    There(Connection, Box<Arrival>),
    /// Why.
    Missing(String),
}

/// A node of the job.
struct Guest {
    /// The number with which its agent greets.
    number: u32,
    host: Host,
    /// The launcher's process.
    process: Option<Child>,
    /// A helper starts its agent.
    is_below: bool,
    since: Instant,
    complaints: Vec<u8>,
    has_closed: bool,
    /// What a login shell prints on standard output: nothing waits for a reader of this file.
    printed: Option<File>,
    fate: Fate,
}

/// Agents that are starting or expected, before the job begins and while it runs.
pub struct Launching {
    cluster: Cluster,
    invitation: Invitation,
    /// Where agents arrive.
    agents: Door,
    /// Where nodes join.
    door: Option<Door>,
    guests: Vec<Guest>,
    helpers: Helpers,
    /// For each helper that has not been started, the numbers of its nodes.
    parts: Vec<Vec<u32>>,
    /// How many numbers are taken.
    numbers: u32,
    /// What server nodes run.
    serve: Option<Serve>,
    alike: Alike,
    /// Hears heartbeats as datagrams, until the job begins.
    beats: Option<beats::Heard>,
    /// The machines of hosts whose agents have arrived.
    machines: Vec<(Host, String)>,
}

/// How the user may end the job before it begins: the descriptor that tells, and the signal.
pub struct Patience<'a> {
    pub signals: BorrowedFd<'a>,
    pub ended: &'a dyn Fn() -> io::Result<Option<Signal>>,
}

/// An agent that has arrived.
pub struct Arrived {
    number: u32,
    pub host: Host,
    pub connection: Connection,
    pub arrival: Arrival,
    process: Option<Child>,
}

impl Arrived {
    /// What it found in the job's directory.
    fn sight(&self) -> Sight {
        let directory = self.arrival.directory.clone();
        directory.and_then(Result::ok).unwrap_or_default()
    }

    /// It is a node of the job.
    pub fn into_node(self) -> Node {
        let Arrival { beats, .. } = self.arrival;
        Node::of(self.host.name, self.number, self.process, self.connection, beats)
    }

    /// It is not needed.
    pub fn end(mut self) {
        let end = ToAgent::End {
            grace_ms: 0,
            finished: false,
        };
        let _ = self.connection.send(&end);
        drop(self.connection);
        if let Some(process) = &mut self.process {
            drop(process.stdin.take());
            let _ = process.wait();
        }
    }
}

/// The agents with which a job begins.
pub struct Launched {
    pub nodes: Vec<Node>,
    pub helpers: Helpers,
    /// Hears heartbeats as datagrams.
    pub beats: Option<beats::Heard>,
    /// Each agent's plan of the nodes.
    pub plans: Vec<Nodes>,
    /// What each found in the job's directory.
    pub sights: Vec<Sight>,
    /// Each agent's description of its node.
    pub arrivals: Vec<Arrival>,
    /// Names of missing nodes, with reasons.
    pub missing: Vec<(String, String)>,
    /// Others may come later.
    pub launching: Launching,
}

/// Starts an agent on each node and waits for all of them, or until enough have joined. Takes nodes that may be
/// missing, and are, out of the cluster.
pub fn launch(
    cluster: &mut Cluster,
    job: &Job,
    directory: Option<JobDirectory>,
    patience: &Patience,
) -> Result<Launched, StartError> {
    let may_miss = cluster.may_miss.min(cluster.hosts.len().saturating_sub(1));
    let mut launching = Launching::begin(cluster.clone(), job.key, directory)?;
    let memories: u32 = cluster.hosts.iter().map(|host| host.memories).sum();
    if memories > 0 {
        let ranks = job.programs.iter().map(|program| program.ranks).sum();
        launching.serve = Some(servers::on_nodes(job, memories as usize, ranks, cluster.is_encrypted)?);
    }
    launching.tell_how_to_join();
    while launching.is_waiting() {
        if let Some(signal) = launching.step(Some(patience))? {
            return Err(StartError::Interrupted(signal));
        }
        if launching.door.is_some() {
            launching.refuse_missing();
            continue;
        }
        let mut missing = launching.guests.iter().filter_map(Guest::missing);
        let needed = launching.guests.iter().filter(|guest| guest.host.memories > 0);
        if let Some((name, why)) = needed.filter_map(Guest::missing).next().or(missing.nth(may_miss)) {
            let (name, why) = (name.to_string(), why.to_string());
            return Err(StartError::Node { name, why });
        }
    }
    let missing = launching.guests.iter().filter_map(Guest::missing);
    let missing = missing.map(|(name, why)| (name.to_string(), why.to_string())).collect();
    let arrived = launching.arrivals();
    match &cluster.join {
        Some(_) => cluster.joined_by(arrived.iter().map(|arrived| arrived.host.clone()).collect()),
        None => {
            let is_there = |host: &Host| arrived.iter().any(|arrived| arrived.host == *host);
            let missing: Vec<bool> = cluster.hosts.iter().map(|host| !is_there(host)).collect();
            cluster.leave_out(|host| missing[host]);
        }
    }
    launching.guests.retain(|guest| guest.missing().is_none());
    launching.cluster = cluster.clone();
    let mesh: Vec<_> = arrived.iter().map(|arrived| arrived.arrival.mesh.clone()).collect();
    let copies: Vec<u16> = arrived.iter().map(|arrived| arrived.arrival.copies).collect();
    let plan = |own| Nodes {
        own,
        epoch: 0,
        mesh: mesh.clone(),
        copies: copies.clone(),
        is_encrypted: cluster.is_encrypted,
        of_rank: cluster.of_rank.clone(),
    };
    Ok(Launched {
        sights: arrived.iter().map(Arrived::sight).collect(),
        arrivals: arrived.iter().map(|arrived| arrived.arrival.clone()).collect(),
        plans: (0..arrived.len() as u32).map(plan).collect(),
        nodes: arrived.into_iter().map(Arrived::into_node).collect(),
        helpers: std::mem::take(&mut launching.helpers),
        beats: launching.beats.take(),
        missing,
        launching,
    })
}

impl Guest {
    fn of(number: u32, host: Host) -> Guest {
        Guest {
            number,
            host,
            process: None,
            is_below: false,
            since: Instant::now(),
            complaints: Vec::new(),
            has_closed: false,
            printed: None,
            fate: Fate::Awaited,
        }
    }

    fn start(&mut self, cluster: &Cluster, invitation: &Invitation) -> io::Result<()> {
        let mut command = cluster.command(&self.host)?;
        if self.host.launcher == Launcher::Ssh {
            let printed = File::from(memfd_create("printed", MFdFlags::MFD_CLOEXEC)?);
            command.stdout(printed.try_clone()?);
            self.printed = Some(printed);
        }
        let process = self.process.insert(command.spawn()?);
        self.since = Instant::now();
        invited::invite(process, invitation)?;
        if let Some(complaints) = &process.stderr {
            crate::sys::set_nonblocking(complaints)?;
        }
        Ok(())
    }

    fn is_awaited(&self) -> bool {
        matches!(self.fate, Fate::Awaited)
    }

    /// Its name and why, if it is missing.
    fn missing(&self) -> Option<(&str, &str)> {
        match &self.fate {
            Fate::Missing(why) => Some((&self.host.name, why)),
            _ => None,
        }
    }

    /// Its agent, or why that is not there.
    fn arrived(self) -> Result<Arrived, String> {
        match self.fate {
            Fate::There(connection, arrival) => Ok(Arrived {
                number: self.number,
                host: self.host,
                connection,
                arrival: *arrival,
                process: self.process,
            }),
            Fate::Missing(why) => Err(why),
            Fate::Awaited => Err("its agent has not come".to_string()),
        }
    }

    /// The node does not come: ends its launcher.
    fn misses(&mut self, why: String) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        self.fate = Fate::Missing(why);
    }

    fn read_complaints(&mut self) {
        let mut bytes = [0; 4 << 10];
        let stream = self.process.as_mut().and_then(|process| process.stderr.as_mut());
        let Some(stream) = stream else { return };
        while !self.has_closed {
            match stream.read(&mut bytes) {
                Ok(0) => self.has_closed = true,
                Ok(length) => self.complaints.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Its last complaints, on one line.
    fn complained(&self) -> String {
        on_one_line(&self.complaints)
    }

    /// The last that its shell has printed on standard output, on one line.
    fn has_printed(&self) -> String {
        let Some(file) = &self.printed else {
            return String::new();
        };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; COMPLAINTS];
        let read = file.read_at(&mut bytes, length.saturating_sub(COMPLAINTS as u64));
        on_one_line(&bytes[..read.unwrap_or(0)])
    }

    /// Answers the agent's beats while it waits for others, so that it keeps its lease.
    fn hear(&mut self) {
        let Fate::There(connection, _) = &mut self.fate else {
            return;
        };
        if keep_waiting(connection).is_err() {
            self.read_complaints();
            let said = self.complained();
            let said = if said.is_empty() { said } else { format!(": {said}") };
            self.misses(format!("its agent has gone{said}"));
        }
    }

    /// Sees whether its launcher has ended, or takes too long, or its agent has gone.
    fn mind(&mut self) {
        self.hear();
        self.read_complaints();
        let Some(process) = self.process.as_mut().filter(|_| matches!(self.fate, Fate::Awaited)) else {
            return;
        };
        if let Ok(Some(status)) = process.try_wait() {
            self.read_complaints();
            self.misses(self.why(status));
        } else if self.since.elapsed() > LAUNCH {
            let said = self.complained();
            let said = if said.is_empty() { said } else { format!(": {said}") };
            self.misses(format!("no word of its agent within {} s{said}", LAUNCH.as_secs()));
        }
    }

    /// Some of the complaints are resurgo's: it had started there.
    fn is_of_resurgo(&self) -> bool {
        let complaints = String::from_utf8_lossy(&self.complaints);
        complaints.lines().any(|line| line.starts_with(OURS))
    }

    /// The launcher has ended before the agent arrived: why.
    fn why(&self, status: ExitStatus) -> String {
        let said = self.complained();
        let said = if said.is_empty() { status.to_string() } else { said };
        match (self.host.launcher, status.code()) {
            (Launcher::Ssh, Some(SSH_FAILED)) => format!("ssh cannot reach it: {said}"),
            (Launcher::Ssh, Some(NOT_FOUND)) => {
                format!("there is no resurgo where it is here: {said}; install it under the same path")
            }
            (Launcher::Ssh, Some(code)) if code < SIGNALLED && !self.is_of_resurgo() => {
                let said = [self.complained(), self.has_printed()];
                let said: Vec<String> = said.into_iter().filter(|said| !said.is_empty()).collect();
                let said = match said.is_empty() {
                    true => " without a word".to_string(),
                    false => format!(": {}", said.join("; ")),
                };
                format!("the shell there ended before resurgo started ({status}){said}; see its start files (.bashrc)")
            }
            (Launcher::Slurm, _) => format!("srun has ended: {said}"),
            _ => said,
        }
    }
}

/// The last lines of what a process has said.
fn on_one_line(text: &[u8]) -> String {
    let most = text.len().saturating_sub(COMPLAINTS);
    let text = String::from_utf8_lossy(&text[most..]);
    let lines = text.lines().map(|line| line.trim_start_matches(OURS).trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("; ").replace(char::is_control, " ")
}

/// Answers the beats of a waiting agent.
fn keep_waiting(connection: &mut Connection) -> io::Result<()> {
    let received = connection.receive()?;
    for message in received.messages {
        if let ToDispatcher::Beat { number } = message {
            connection.queue(&ToAgent::Beat { number });
        }
    }
    connection.flush()?;
    match received.closed {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(()),
    }
}

impl Launching {
    pub fn begin(cluster: Cluster, key: [u8; 32], directory: Option<JobDirectory>) -> Result<Launching, StartError> {
        let mut addresses = match cluster.is_here() {
            true => Vec::new(),
            false => interfaces::own_addresses(cluster.interface.as_deref())
                .map_err(|error| cannot("listen for agents")(io::Error::other(error)))?,
        };
        if addresses.is_empty() {
            addresses = vec![Ipv4Addr::LOCALHOST.into()];
        }
        let listener = server_process::listen_for(&addresses, 0).map_err(cannot("listen for agents"))?;
        let port = listener.local_addr().map_err(cannot("listen for agents"))?.port();
        let tls = Tls::wanted(cluster.is_encrypted, &key);
        let mut agents = Door::new(listener, Server::Dispatcher, MOST_NODES, key);
        agents.reception = Reception::new(cluster.hosts.len()).encrypted(tls.map_err(cannot("encrypt"))?);
        let door = cluster.join.as_ref().map(|terms| {
            let listener = server_process::listen_for(&addresses, terms.port)?;
            Ok(Door::new(listener, Server::Join, 1, join::key_of(&terms.token)))
        });
        // Without it there are the heartbeats on connections.
        let beats = beats::Heard::listen(&addresses, key).ok();
        let own_umask = umask(Mode::empty());
        umask(own_umask);
        let mut launching = Launching {
            invitation: Invitation {
                version: env!("CARGO_PKG_VERSION").to_string(),
                key,
                node: 0,
                nodes: MOST_NODES,
                addresses,
                port,
                umask: own_umask.bits(),
                limits: cluster.limits.clone(),
                lease_ms: cluster.lease.as_millis() as u64,
                hold_ms: cluster.hold.as_millis() as u64,
                is_encrypted: cluster.is_encrypted,
                files: cluster.files.clone(),
                directory,
                serve: None,
                has_life_line: true,
                preemption: cluster.preemption.clone(),
                interface: cluster.interface.clone(),
                beats: beats.as_ref().and_then(|beats| beats.port().ok()),
            },
            agents,
            beats,
            door: door.transpose().map_err(cannot("listen for nodes that join"))?,
            guests: Vec::new(),
            helpers: Helpers::default(),
            parts: Vec::new(),
            numbers: 0,
            serve: None,
            alike: likeness::of_this_node(&cluster.files).map_err(cannot("read resurgo's own file"))?,
            machines: Vec::new(),
            cluster,
        };
        for host in launching.cluster.hosts.clone() {
            launching.add(host);
        }
        launching.plan_helpers();
        Ok(launching)
    }

    /// Where hosts are many, helpers start their agents.
    fn plan_helpers(&mut self) {
        let is_for_helpers = |guest: &&mut Guest| guest.host.launcher == Launcher::Ssh && guest.host.memories == 0;
        let mut guests: Vec<&mut Guest> = self.guests.iter_mut().filter(is_for_helpers).collect();
        if guests.len() > AT_ONCE {
            guests.iter_mut().for_each(|guest| guest.is_below = true);
            let numbers: Vec<u32> = guests.iter().map(|guest| guest.number).collect();
            self.parts = helpers::parts(&numbers, AT_ONCE);
        }
    }

    /// Expects one more node. Returns the number with which its agent greets.
    pub fn add(&mut self, host: Host) -> u32 {
        let number = self.numbers;
        self.numbers += 1;
        self.guests.push(Guest::of(number, host));
        number
    }

    /// Prints the command for nodes that join.
    fn tell_how_to_join(&self) {
        let Some((door, terms)) = self.door.as_ref().zip(self.cluster.join.as_ref()) else {
            return;
        };
        let port = door.listener.local_addr().map_or(0, |address| address.port());
        let address = SocketAddr::new(self.invitation.addresses[0], port);
        let ranks = terms.ranks;
        eprintln!("resurgo: waiting for nodes with room for {ranks} ranks; type on each:");
        match &terms.token_file {
            Some(file) => eprintln!("resurgo:   resurgo join --token-file {} {address}", file.display()),
            None => eprintln!("resurgo:   RESURGO_JOIN_TOKEN={} resurgo join {address}", terms.token),
        }
    }

    /// The job cannot begin yet.
    pub fn is_waiting(&self) -> bool {
        match &self.cluster.join {
            Some(terms) => {
                let there = self.guests.iter().filter(|guest| matches!(guest.fate, Fate::There(..)));
                !terms.are_enough(&there.map(|guest| guest.host.slots).collect::<Vec<_>>())
            }
            None => self.guests.iter().any(Guest::is_awaited),
        }
    }

    /// The agents that have arrived.
    pub fn arrivals(&mut self) -> Vec<Arrived> {
        let has_come = |guest: &mut Guest| matches!(guest.fate, Fate::There(..));
        let come = self.guests.extract_if(.., has_come);
        come.filter_map(|guest| guest.arrived().ok()).collect()
    }

    /// The way in which agents of added hosts are started.
    pub fn launcher(&self) -> Launcher {
        self.cluster.launcher
    }

    /// A present or expected node has this name.
    pub fn is_known(&self, name: &str) -> bool {
        let guests = self.guests.iter().map(|guest| &guest.host);
        guests.chain(&self.cluster.hosts).any(|host| host.name == name)
    }

    /// The node of this name is this machine.
    pub fn is_here(&self, name: &str) -> bool {
        let mut hosts = self.cluster.hosts.iter();
        hosts.any(|host| host.name == name && host.launcher == Launcher::Fork)
    }

    /// It is a node of the job now.
    pub fn has_come(&mut self, host: Host) {
        self.cluster.hosts.push(host);
    }

    /// The node is not part of the job any more.
    pub fn has_gone(&mut self, name: &str) {
        self.cluster.hosts.retain(|host| host.name != name);
        self.machines.retain(|(host, _)| host.name != name);
    }

    /// The outcome for all nodes in the order of their names, when none is expected any more.
    pub fn fates(&mut self) -> Vec<(String, Result<Arrived, String>)> {
        let guests = std::mem::take(&mut self.guests).into_iter();
        guests.map(|guest| (guest.host.name.clone(), guest.arrived())).collect()
    }

    /// Nodes that do not come, with reasons.
    pub fn refuse_missing(&mut self) -> Vec<(String, String)> {
        let gone = self.guests.extract_if(.., |guest| guest.missing().is_some());
        let gone: Vec<(String, String)> = gone
            .filter_map(|guest| guest.missing().map(|(name, why)| (name.to_string(), why.to_string())))
            .collect();
        for (name, why) in &gone {
            eprintln!("resurgo: node {name} does not come: {why}");
        }
        gone
    }

    /// None of the agents is needed.
    pub fn end(mut self) {
        self.helpers.end(Instant::now() + LAST);
    }

    /// Processes of launchers whose agents have not arrived.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let processes = self.guests.iter().filter_map(|guest| guest.process.as_ref());
        processes.map(Child::id)
    }

    /// Waits for an event and handles it. Returns the signal by which the user ends the job.
    pub fn step(&mut self, patience: Option<&Patience>) -> Result<Option<Signal>, StartError> {
        self.start_some();
        let mut ready = self.descriptors();
        ready.extend(
            patience
                .iter()
                .map(|patience| PollFd::new(patience.signals, PollFlags::POLLIN)),
        );
        let _ = poll(&mut ready, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
        drop(ready);
        let signal = patience.map_or(Ok(None), |patience| (patience.ended)());
        self.mind();
        signal.map_err(cannot("wait for the nodes"))
    }

    /// What to wait for.
    pub fn descriptors(&self) -> Vec<PollFd<'_>> {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut ready: Vec<PollFd> = Vec::new();
        ready.extend(self.agents.descriptors());
        ready.extend(self.door.iter().flat_map(Door::descriptors));
        ready.extend(self.helpers.descriptors());
        let complaints = self.guests.iter().filter(|guest| !guest.has_closed);
        ready.extend(complaints.filter_map(|guest| Some(readable(guest.process.as_ref()?.stderr.as_ref()?.as_fd()))));
        ready
    }

    /// When there may be work although no descriptor is ready.
    pub fn due(&self) -> Option<Duration> {
        let is_busy = self.agents.is_busy() || self.door.as_ref().is_some_and(Door::is_busy);
        (!self.guests.is_empty() || is_busy).then_some(LOOK)
    }

    /// Does the work that is due.
    pub fn mind(&mut self) {
        self.start_some();
        self.hear_strangers();
        self.guests.iter_mut().for_each(Guest::mind);
        let without = self.helpers.hear();
        let guests = self.guests.iter_mut();
        guests
            .filter(|guest| without.contains(&guest.number))
            .for_each(|guest| guest.is_below = false);
        // If an agent does not arrive, the reason will be that of its own launcher.
        self.helpers.complaints().for_each(drop);
    }

    /// Starts a helper for these nodes, on the first of them.
    fn start_helper(&mut self, part: &[u32]) -> io::Result<()> {
        let guests = self.guests.iter().filter(|guest| part.contains(&guest.number));
        let mut others: Vec<(u32, String)> = guests.map(|guest| (guest.number, guest.host.name.clone())).collect();
        let (node, _) = others.remove(0);
        let errand = Errand {
            invitation: Invitation {
                node,
                serve: None,
                has_life_line: false,
                ..self.invitation.clone()
            },
            others,
            launcher_file: self.cluster.launcher_file.clone().map(PathBuf::into_os_string),
        };
        let head = self.guests.iter().find(|guest| guest.number == node);
        let command = head.map(|head| self.cluster.helper(&head.host)).transpose()?;
        command.map_or(Ok(()), |command| self.helpers.start(command, &errand))
    }

    /// Starts further helpers and agents, up to the limit.
    fn start_some(&mut self) {
        let is_starting = |guest: &&Guest| guest.process.is_some() && guest.is_awaited();
        let starting = self.guests.iter().filter(is_starting).count() + self.helpers.starting();
        let mut room = AT_ONCE.saturating_sub(starting);
        while room > 0
            && let Some(part) = self.parts.pop()
        {
            room -= 1;
            if self.start_helper(&part).is_err() {
                let guests = self.guests.iter_mut();
                guests
                    .filter(|guest| part.contains(&guest.number))
                    .for_each(|guest| guest.is_below = false);
            }
        }
        for guest in &mut self.guests {
            let starts = guest.host.launcher != Launcher::Join;
            if room > 0 && starts && guest.process.is_none() && !guest.is_below && guest.is_awaited() {
                room -= 1;
                self.invitation.node = guest.number;
                let count = guest.host.memories;
                let serve = self.serve.clone().filter(|_| count > 0);
                self.invitation.serve = serve.map(|serve| Serve { count, ..serve });
                if let Err(error) = guest.start(&self.cluster, &self.invitation) {
                    let hint = crate::hint(&error);
                    guest.misses(format!("its agent cannot be started: {error}{hint}"));
                }
            }
        }
    }

    /// Lets callers in at the doors, and reads their messages.
    fn hear_strangers(&mut self) {
        for (proved, said) in self.agents.hear() {
            if let ToDispatcher::Arrived(arrival) = said {
                self.arrived(proved.number, proved.connection, arrival);
            }
        }
        let joining = self.door.as_mut().map_or(Vec::new(), Door::hear);
        for (mut proved, joining) in joining {
            if let Ok(welcome) = self.welcome(joining) {
                let _ = proved.connection.send(&welcome);
            }
        }
    }

    /// A node with the token asks to join.
    fn welcome(&mut self, joining: Joining) -> io::Result<Welcome> {
        let refused = |reason: String| Ok(Welcome::Refused { reason });
        let ours = &self.invitation.version;
        if joining.version != *ours {
            return refused(format!("this is resurgo {}, and the job's is {ours}", joining.version));
        }
        let Some(token_key) = self.door.as_ref().map(|door| door.key) else {
            return refused("the job takes no nodes".to_string());
        };
        let number = self.numbers;
        let name = joining.host.replace(char::is_control, " ");
        let is_taken = self.is_known(&name);
        let host = Host {
            name: if is_taken { format!("{name}#{number}") } else { name },
            launcher: Launcher::Join,
            slots: joining.slots.clamp(1, MOST_NODES),
            spare: true,
            memories: 0,
            rack: None,
        };
        self.invitation.node = self.add(host);
        let salt = crate::sys::random()?;
        let mut invitation = Box::new(self.invitation.clone());
        invitation.key = join::mask(invitation.key, &token_key, &joining.salt, &salt);
        Ok(Welcome::Invited { invitation, salt })
    }

    fn arrived(&mut self, number: u32, mut connection: Connection, arrival: Arrival) {
        let mut guests = self.guests.iter_mut();
        let Some(guest) = guests.find(|guest| guest.number == number && guest.is_awaited()) else {
            return;
        };
        let difference = match guest.host.memories {
            0 => likeness::difference(&self.alike, &arrival.alike, &self.cluster.files),
            _ => likeness::difference_of_resurgo(&self.alike, &arrival.alike),
        };
        let directory = arrival
            .directory
            .as_ref()
            .and_then(|directory| directory.as_ref().err());
        let trouble = difference.or_else(|| {
            let hint = "see that the directory can be made and written to there";
            directory.map(|why| format!("cannot keep image files in {why}; {hint}"))
        });
        let machine = arrival.machine.clone();
        let twin = machine
            .as_ref()
            .and_then(|machine| guest.host.twin(machine, &self.machines));
        let trouble = trouble.or_else(|| {
            let hint = "name it once, with the slots of both: a copy of an image there would be lost with the image";
            twin.map(|other| format!("is the same machine as {other}; {hint}"))
        });
        match trouble {
            Some(reason) => {
                let _ = connection.send(&ToAgent::Refused { reason: reason.clone() });
                guest.misses(reason);
            }
            None => {
                self.machines
                    .extend(machine.map(|machine| (guest.host.clone(), machine)));
                guest.fate = Fate::There(connection, Box::new(arrival));
            }
        }
    }
}

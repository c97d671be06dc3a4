//! The agents of a job on several nodes: how they are started or join, and the wait until they have come.
//!
//! Each gets an [`Invitation`] on its standard input, connects back, and proves the job's key. A node that cannot be reached, has no
//! resurgo, or is not like this one is *missing*. If more are than may be, the job ends before it has begun.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use resurgo_wire::control::join::{self, Joining, Welcome};
use resurgo_wire::control::{
    Alike, Arrival, Invitation, Job, JobDirectory, MOST_NODES, Message, Nodes, Sight, ToAgent, ToDispatcher,
    first_message,
};
use resurgo_wire::handshake::Server;

use super::cluster::{Cluster, Host, Launcher};
use super::node::Node;
use super::start_error::{StartError, cannot};
use crate::connection::Connection;
use crate::reception::{Framing, Guest as _, Reception, Stranger};
use crate::stream::Tls;
use crate::{interfaces, invited, likeness, server_process};

/// How long a node may take until its agent is there.
const LAUNCH: Duration = Duration::from_secs(60);
/// Agents that are being started at a time: each is a process of ssh or srun here, and a login there.
const AT_ONCE: usize = 32;
/// How long one that has proved the key may take to say what its node is like: it reads files for that.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How often launchers are looked at: their ends make nothing readable.
const LOOK: Duration = Duration::from_millis(50);
/// Most bytes of complaints that are shown.
const COMPLAINTS: usize = 2 << 10;
/// What a shell answers when there is no such file, and ssh when it has not come so far.
const NOT_FOUND: i32 = 127;
const SSH_FAILED: i32 = 255;

/// What has become of a node.
enum Fate {
    /// Its agent has yet to be started, or to come.
    Awaited,
    There(Connection, Box<Arrival>),
    /// Why.
    Missing(String),
}

/// A node of the job.
struct Guest {
    /// By which its agent greets.
    number: u32,
    host: Host,
    /// What has been started for it.
    process: Option<Child>,
    since: Instant,
    complaints: Vec<u8>,
    has_closed: bool,
    fate: Fate,
}

/// Where somebody proves a key, and has then something to say.
struct Door {
    listener: TcpListener,
    server: Server,
    /// Numbers that callers have are below this.
    size: u32,
    key: [u8; 32],
    reception: Reception<Stranger>,
    proved: Vec<Proved>,
}

/// One that has proved the key, and has yet to say what its node is like.
struct Proved {
    number: u32,
    connection: Connection,
    since: Instant,
}

const FRAMING: Framing = Framing {
    read: |said| first_message(said).map_err(io::Error::other),
    write: |word| {
        let mut bytes = Vec::new();
        word.encode(&mut bytes);
        bytes
    },
};

/// Agents that are being started or awaited, before the job begins and while it runs.
pub struct Launching {
    cluster: Cluster,
    invitation: Invitation,
    /// Where agents come.
    agents: Door,
    /// Where nodes join.
    door: Option<Door>,
    guests: Vec<Guest>,
    /// How many there have been.
    numbers: u32,
    alike: Alike,
}

/// How the user may end the job before it has begun: what is readable then, and which signal has come.
pub struct Patience<'a> {
    pub signals: BorrowedFd<'a>,
    pub ended: &'a dyn Fn() -> io::Result<Option<Signal>>,
}

/// An agent that has come.
pub struct Arrived {
    pub host: Host,
    pub connection: Connection,
    pub arrival: Arrival,
    process: Option<Child>,
}

impl Arrived {
    /// What it has found in the job's directory.
    fn sight(&self) -> Sight {
        let directory = self.arrival.directory.clone();
        directory.and_then(Result::ok).unwrap_or_default()
    }

    /// It is a node of the job.
    pub fn into_node(self) -> Node {
        Node::of(self.host.name, self.process, self.connection)
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
    /// What each is told of the others.
    pub plans: Vec<Nodes>,
    /// What each has found in the job's directory.
    pub sights: Vec<Sight>,
    /// Of those that are missing: their names, and why.
    pub missing: Vec<(String, String)>,
    /// Others may come later.
    pub launching: Launching,
}

/// Starts an agent on each node and waits for all, or until enough have joined. Those that are missing, and may be, are taken out of the
/// cluster.
pub fn launch(
    cluster: &mut Cluster,
    job: &Job,
    directory: Option<JobDirectory>,
    patience: &Patience,
) -> Result<Launched, StartError> {
    let may_miss = cluster.may_miss.min(cluster.hosts.len().saturating_sub(1));
    let mut launching = Launching::begin(cluster.clone(), job.key, directory)?;
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
        if let Some((name, why)) = missing.nth(may_miss) {
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
        plans: (0..arrived.len() as u32).map(plan).collect(),
        nodes: arrived.into_iter().map(Arrived::into_node).collect(),
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
            since: Instant::now(),
            complaints: Vec::new(),
            has_closed: false,
            fate: Fate::Awaited,
        }
    }

    fn start(&mut self, cluster: &Cluster, invitation: &Invitation) -> io::Result<()> {
        let process = self.process.insert(cluster.command(&self.host)?.spawn()?);
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
                host: self.host,
                connection,
                arrival: *arrival,
                process: self.process,
            }),
            Fate::Missing(why) => Err(why),
            Fate::Awaited => Err("its agent has not come".to_string()),
        }
    }

    /// Nothing comes of it: what has been started for it ends.
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

    /// What has been complained of, on one line.
    fn complained(&self) -> String {
        let most = self.complaints.len().saturating_sub(COMPLAINTS);
        let text = String::from_utf8_lossy(&self.complaints[most..]);
        let lines = text.lines().map(|line| line.trim_start_matches("resurgo: ").trim());
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        lines.join("; ").replace(char::is_control, " ")
    }

    /// Sees whether its launcher has ended, or takes too long.
    fn mind(&mut self) {
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

    /// The launcher has ended before the agent came: why.
    fn why(&self, status: ExitStatus) -> String {
        let said = self.complained();
        let said = if said.is_empty() { status.to_string() } else { said };
        match (self.host.launcher, status.code()) {
            (Launcher::Ssh, Some(SSH_FAILED)) => format!("ssh cannot reach it: {said}"),
            (Launcher::Ssh, Some(NOT_FOUND)) => {
                format!("there is no resurgo where it is here: {said}; install it under the same path")
            }
            (Launcher::Slurm, _) => format!("srun has ended: {said}"),
            _ => said,
        }
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
        let tls = cluster.is_encrypted.then(|| Tls::of(&key)).transpose();
        let mut agents = Door::new(listener, Server::Dispatcher, MOST_NODES, key);
        agents.reception = Reception::new(cluster.hosts.len()).encrypted(tls.map_err(cannot("encrypt"))?);
        let door = cluster.join.as_ref().map(|terms| {
            let listener = server_process::listen_for(&addresses, terms.port)?;
            Ok(Door::new(listener, Server::Join, 1, join::key_of(&terms.token)))
        });
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
                lease_ms: cluster.lease.as_millis() as u64,
                is_encrypted: cluster.is_encrypted,
                files: cluster.files.clone(),
                directory,
                preemption: cluster.preemption.clone(),
                interface: cluster.interface.clone(),
            },
            agents,
            door: door.transpose().map_err(cannot("listen for nodes that join"))?,
            guests: Vec::new(),
            numbers: 0,
            alike: likeness::of_this_node(&cluster.files).map_err(cannot("read resurgo's own file"))?,
            cluster,
        };
        for host in launching.cluster.hosts.clone() {
            launching.add(host);
        }
        Ok(launching)
    }

    /// One more node is to be there. The number by which its agent greets.
    pub fn add(&mut self, host: Host) -> u32 {
        let number = self.numbers;
        self.numbers += 1;
        self.guests.push(Guest::of(number, host));
        number
    }

    /// Says what is to be typed on nodes that join.
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

    /// The agents that have come.
    pub fn arrivals(&mut self) -> Vec<Arrived> {
        let has_come = |guest: &mut Guest| matches!(guest.fate, Fate::There(..));
        let come = self.guests.extract_if(.., has_come);
        come.filter_map(|guest| guest.arrived().ok()).collect()
    }

    /// What starts the agents of hosts that are added.
    pub fn launcher(&self) -> Launcher {
        self.cluster.launcher
    }

    /// A node has this name, or will have.
    pub fn is_known(&self, name: &str) -> bool {
        let guests = self.guests.iter().map(|guest| &guest.host);
        guests.chain(&self.cluster.hosts).any(|host| host.name == name)
    }

    /// It is a node of the job now.
    pub fn has_come(&mut self, host: Host) {
        self.cluster.hosts.push(host);
    }

    /// It is none any more.
    pub fn has_gone(&mut self, name: &str) {
        self.cluster.hosts.retain(|host| host.name != name);
    }

    /// What has become of all, when nobody is awaited any more: in the order in which they are named.
    pub fn fates(self) -> Vec<(String, Result<Arrived, String>)> {
        let guests = self.guests.into_iter();
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

    /// Processes that have been started and whose agents have not come.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let processes = self.guests.iter().filter_map(|guest| guest.process.as_ref());
        processes.map(Child::id)
    }

    /// Waits until there is something to do, and does it. Answers the signal by which the user ends the job.
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
        let complaints = self.guests.iter().filter(|guest| !guest.has_closed);
        ready.extend(complaints.filter_map(|guest| Some(readable(guest.process.as_ref()?.stderr.as_ref()?.as_fd()))));
        ready
    }

    /// When there may be something to do although nothing is ready.
    pub fn due(&self) -> Option<Duration> {
        let is_busy = self.agents.is_busy() || self.door.as_ref().is_some_and(Door::is_busy);
        (!self.guests.is_empty() || is_busy).then_some(LOOK)
    }

    /// Does what is to be done now.
    pub fn mind(&mut self) {
        self.start_some();
        self.hear_strangers();
        self.guests.iter_mut().for_each(Guest::mind);
    }

    /// Starts agents, as far as not too many are being started.
    fn start_some(&mut self) {
        let is_starting = |guest: &&Guest| guest.process.is_some() && guest.is_awaited();
        let mut room = AT_ONCE.saturating_sub(self.guests.iter().filter(is_starting).count());
        for guest in &mut self.guests {
            let starts = guest.host.launcher != Launcher::Join;
            if room > 0 && starts && guest.process.is_none() && guest.is_awaited() {
                room -= 1;
                self.invitation.node = guest.number;
                if let Err(error) = guest.start(&self.cluster, &self.invitation) {
                    let hint = crate::hint(&error);
                    guest.misses(format!("its agent cannot be started: {error}{hint}"));
                }
            }
        }
    }

    /// Lets in who waits at the doors, and hears who is in.
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

    /// A node that has the token would join.
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
        let difference = likeness::difference(&self.alike, &arrival.alike, &self.cluster.files);
        let directory = arrival
            .directory
            .as_ref()
            .and_then(|directory| directory.as_ref().err());
        let trouble = difference.or_else(|| {
            let hint = "see that the directory can be made and written to there";
            directory.map(|why| format!("cannot keep image files in {why}; {hint}"))
        });
        match trouble {
            Some(reason) => {
                let _ = connection.send(&ToAgent::Refused { reason: reason.clone() });
                guest.misses(reason);
            }
            None => guest.fate = Fate::There(connection, Box::new(arrival)),
        }
    }
}

impl Door {
    fn new(listener: TcpListener, server: Server, size: u32, key: [u8; 32]) -> Door {
        Door {
            listener,
            server,
            size,
            key,
            reception: Reception::new(0),
            proved: Vec::new(),
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let strangers = self.reception.iter().map(|(_, stranger)| stranger.line().poll(false));
        let proved = self
            .proved
            .iter()
            .map(move |proved| readable(proved.connection.as_fd()));
        [readable(self.listener.as_fd())]
            .into_iter()
            .chain(strangers)
            .chain(proved)
    }

    /// Somebody has come and has yet to say something.
    fn is_busy(&self) -> bool {
        self.reception.has_deadlines() || !self.proved.is_empty()
    }

    /// Lets in who waits, and hears who is in: those who have said what they have to say.
    fn hear<M: Message>(&mut self) -> Vec<(Proved, M)> {
        let (server, size, key) = (self.server, self.size, self.key);
        self.reception
            .accept(&self.listener, |line| Stranger::new(line, server, size, key));
        for id in self.reception.ids() {
            let Some(mut stranger) = self.reception.take(id) else {
                continue;
            };
            match stranger.hear(&FRAMING) {
                Ok(None) => self.reception.put_back(id, stranger),
                Ok(Some(visitor)) => self
                    .proved
                    .extend(Connection::admitted(stranger.admitted()).map(|connection| Proved {
                        number: visitor.rank,
                        connection,
                        since: Instant::now(),
                    })),
                // Whoever it was, it has no business here.
                Err(_) => {}
            }
        }
        self.reception.cut_late();
        let mut heard = Vec::new();
        for mut proved in std::mem::take(&mut self.proved) {
            let is_late = proved.since.elapsed() > ARRIVAL;
            match proved.hear() {
                Ok(Some(said)) => heard.push((proved, said)),
                Ok(None) if !is_late => self.proved.push(proved),
                Ok(None) | Err(_) => {}
            }
        }
        heard
    }
}

impl Proved {
    /// Reads what has come: what it says, once that is there.
    fn hear<M: Message>(&mut self) -> io::Result<Option<M>> {
        let closed = self.connection.read()?;
        match self.connection.next()? {
            Some(said) => Ok(Some(said)),
            _ if closed => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(None),
        }
    }
}

//! The agents of a job on several nodes: how they are started, and the wait until they have come.
//!
//! Each gets an [`Invitation`] on its standard input, connects back, and proves the job's key. A node that cannot be reached, has no
//! resurgo, or is not like this one is *missing*. If more are than may be, the job ends before it has begun.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use resurgo_wire::control::{
    Alike, Arrival, Invitation, Job, JobDirectory, Message, Nodes, Sight, ToAgent, ToDispatcher, first_message,
};
use resurgo_wire::handshake::Server;

use super::cluster::{Cluster, Host, Launcher};
use super::node::Node;
use super::start_error::{StartError, cannot};
use crate::connection::Connection;
use crate::reception::{Framing, Guest as _, Reception, Stranger};
use crate::stream::Tls;
use crate::{interfaces, likeness, server_process};

/// How long a node may take until its agent is there.
const LAUNCH: Duration = Duration::from_secs(60);
/// Agents that are being started at a time: each is a process of ssh or srun here, and a login there.
const AT_ONCE: usize = 32;
/// How long an agent that has proved the key may take to say what its node is like: it reads files for that.
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
    host: Host,
    /// What has been started for it.
    process: Option<Child>,
    since: Instant,
    complaints: Vec<u8>,
    has_closed: bool,
    fate: Fate,
}

/// An agent that has proved the key, and has yet to say what its node is like.
struct Proved {
    node: usize,
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

pub struct Launching<'a> {
    cluster: &'a Cluster,
    invitation: Invitation,
    listener: TcpListener,
    guests: Vec<Guest>,
    reception: Reception<Stranger>,
    proved: Vec<Proved>,
    alike: Alike,
}

/// How the user may end the job before it has begun: what is readable then, and which signal has come.
pub struct Patience<'a> {
    pub signals: BorrowedFd<'a>,
    pub ended: &'a dyn Fn() -> io::Result<Option<Signal>>,
}

/// An agent that has come.
pub struct Arrived {
    pub connection: Connection,
    pub arrival: Arrival,
    process: Option<Child>,
}

impl Arrived {
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

/// The agents that have come.
pub struct Launched {
    pub nodes: Vec<Node>,
    /// What each is told of the others.
    pub plans: Vec<Nodes>,
    /// What each has found in the job's directory.
    pub sights: Vec<Sight>,
    /// Of those that are missing: their names, and why.
    pub missing: Vec<(String, String)>,
}

/// Starts an agent on each node and waits for all. Those that are missing, and may be, are taken out of the cluster.
pub fn launch(
    cluster: &mut Cluster,
    job: &Job,
    directory: Option<JobDirectory>,
    patience: &Patience,
) -> Result<Launched, StartError> {
    let may_miss = cluster.may_miss.min(cluster.hosts.len().saturating_sub(1));
    let mut launching = Launching::begin(cluster, job.key, directory)?;
    while launching.is_waiting() {
        if let Some(signal) = launching.step(Some(patience))? {
            return Err(StartError::Interrupted(signal));
        }
        let mut missing = launching.guests.iter().filter_map(Guest::missing);
        if let Some((name, why)) = missing.nth(may_miss) {
            let (name, why) = (name.to_string(), why.to_string());
            return Err(StartError::Node { name, why });
        }
    }
    let guests = launching.guests;
    let missing = guests.iter().filter_map(Guest::missing);
    let missing = missing.map(|(name, why)| (name.to_string(), why.to_string())).collect();
    cluster.leave_out(|host| guests[host].missing().is_some());
    let (mut nodes, mut mesh, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    let mut sights = Vec::new();
    for guest in guests {
        if let (Fate::There(connection, arrival), Some(process)) = (guest.fate, guest.process) {
            mesh.push(arrival.mesh);
            copies.push(arrival.copies);
            sights.push(arrival.directory.and_then(Result::ok).unwrap_or_default());
            nodes.push(Node::of(guest.host.name, process, connection));
        }
    }
    let plan = |own| Nodes {
        own,
        epoch: 0,
        mesh: mesh.clone(),
        copies: copies.clone(),
        is_encrypted: cluster.is_encrypted,
        of_rank: cluster.of_rank.clone(),
    };
    Ok(Launched {
        plans: (0..nodes.len() as u32).map(plan).collect(),
        nodes,
        sights,
        missing,
    })
}

impl Guest {
    fn of(host: &Host) -> Guest {
        Guest {
            host: host.clone(),
            process: None,
            since: Instant::now(),
            complaints: Vec::new(),
            has_closed: false,
            fate: Fate::Awaited,
        }
    }

    fn start(&mut self, cluster: &Cluster, invitation: &Invitation) -> io::Result<()> {
        let mut line = serde_json::to_vec(invitation)?;
        line.push(b'\n');
        let mut process = cluster.command(&self.host)?.spawn()?;
        self.since = Instant::now();
        // Who has ended already is noticed by that.
        let _ = process.stdin.as_mut().map(|stdin| stdin.write_all(&line));
        if let Some(complaints) = &process.stderr {
            crate::sys::set_nonblocking(complaints)?;
        }
        self.process = Some(process);
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

impl<'a> Launching<'a> {
    pub fn begin(
        cluster: &'a Cluster,
        key: [u8; 32],
        directory: Option<JobDirectory>,
    ) -> Result<Launching<'a>, StartError> {
        let mut addresses = interfaces::own_addresses();
        if cluster.is_here() || addresses.is_empty() {
            addresses = vec![Ipv4Addr::LOCALHOST.into()];
        }
        let listener = server_process::listen_for(&addresses).map_err(cannot("listen for agents"))?;
        let tls = cluster.is_encrypted.then(|| Tls::of(&key)).transpose();
        let own_umask = umask(Mode::empty());
        umask(own_umask);
        Ok(Launching {
            cluster,
            invitation: Invitation {
                version: env!("CARGO_PKG_VERSION").to_string(),
                key,
                node: 0,
                nodes: cluster.hosts.len() as u32,
                addresses,
                port: listener.local_addr().map_err(cannot("listen for agents"))?.port(),
                umask: own_umask.bits(),
                lease_ms: cluster.lease.as_millis() as u64,
                is_encrypted: cluster.is_encrypted,
                files: cluster.files.clone(),
                directory,
            },
            listener,
            guests: cluster.hosts.iter().map(Guest::of).collect(),
            reception: Reception::new(cluster.hosts.len()).encrypted(tls.map_err(cannot("encrypt"))?),
            proved: Vec::new(),
            alike: likeness::of_this_node(&cluster.files).map_err(cannot("read resurgo's own file"))?,
        })
    }

    pub fn is_waiting(&self) -> bool {
        self.guests.iter().any(Guest::is_awaited)
    }

    /// What has become of all, when nobody is awaited any more.
    pub fn fates(self) -> Vec<(String, Result<Arrived, String>)> {
        let fate = |guest: Guest| match guest.fate {
            Fate::There(connection, arrival) => Ok(Arrived {
                connection,
                arrival: *arrival,
                process: guest.process,
            }),
            Fate::Missing(why) => Err(why),
            Fate::Awaited => Err("its agent has not come".to_string()),
        };
        self.guests
            .into_iter()
            .map(|guest| (guest.host.name.clone(), fate(guest)))
            .collect()
    }

    /// Waits until there is something to do, and does it. Answers the signal by which the user ends the job.
    pub fn step(&mut self, patience: Option<&Patience>) -> Result<Option<Signal>, StartError> {
        self.start_some();
        let signal = self.wait(patience).map_err(cannot("wait for the nodes"))?;
        self.hear_strangers();
        self.guests.iter_mut().for_each(Guest::mind);
        Ok(signal)
    }

    /// Starts agents, as far as not too many are being started.
    fn start_some(&mut self) {
        let is_starting = |guest: &&Guest| guest.process.is_some() && guest.is_awaited();
        let mut room = AT_ONCE.saturating_sub(self.guests.iter().filter(is_starting).count());
        for (node, guest) in (0..).zip(&mut self.guests) {
            if room > 0 && guest.process.is_none() && guest.is_awaited() {
                room -= 1;
                self.invitation.node = node;
                if let Err(error) = guest.start(self.cluster, &self.invitation) {
                    let hint = crate::hint(&error);
                    guest.misses(format!("its agent cannot be started: {error}{hint}"));
                }
            }
        }
    }

    fn wait(&mut self, patience: Option<&Patience>) -> io::Result<Option<Signal>> {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut ready = vec![readable(self.listener.as_fd())];
        ready.extend(patience.iter().map(|patience| readable(patience.signals)));
        ready.extend(self.reception.iter().map(|(_, stranger)| stranger.line().poll(false)));
        ready.extend(self.proved.iter().map(|proved| readable(proved.connection.as_fd())));
        let complaints = self.guests.iter().filter(|guest| !guest.has_closed);
        ready.extend(complaints.filter_map(|guest| Some(readable(guest.process.as_ref()?.stderr.as_ref()?.as_fd()))));
        let _ = poll(&mut ready, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
        patience.map_or(Ok(None), |patience| (patience.ended)())
    }

    /// Lets in who waits at the door, and hears who is in.
    fn hear_strangers(&mut self) {
        let (nodes, key) = (self.invitation.nodes, self.invitation.key);
        self.reception.accept(&self.listener, |line| {
            Stranger::new(line, Server::Dispatcher, nodes, key)
        });
        for id in self.reception.ids() {
            let Some(mut stranger) = self.reception.take(id) else {
                continue;
            };
            match stranger.hear(&FRAMING) {
                Ok(None) => self.reception.put_back(id, stranger),
                Ok(Some(visitor)) => self
                    .proved
                    .extend(Connection::admitted(stranger.admitted()).map(|connection| Proved {
                        node: visitor.rank as usize,
                        connection,
                        since: Instant::now(),
                    })),
                // Whoever it was, it is no agent of this job.
                Err(_) => {}
            }
        }
        self.reception.cut_late();
        for mut proved in std::mem::take(&mut self.proved) {
            let is_late = proved.since.elapsed() > ARRIVAL;
            match proved.hear() {
                Ok(Some(arrival)) => self.arrived(proved.node, proved.connection, arrival),
                Ok(None) if !is_late => self.proved.push(proved),
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn arrived(&mut self, node: usize, connection: Connection, arrival: Arrival) {
        let Some(guest) = self.guests.get_mut(node).filter(|guest| guest.is_awaited()) else {
            return;
        };
        let difference = likeness::difference(&self.alike, &arrival.alike, &self.cluster.files);
        match (difference, &arrival.directory) {
            (Some(why), _) => guest.misses(why),
            (None, Some(Err(why))) => guest.misses(format!(
                "cannot keep image files in {why}; see that the directory can be made and written to there"
            )),
            (None, _) => guest.fate = Fate::There(connection, Box::new(arrival)),
        }
    }
}

impl Proved {
    /// Reads what has come: what it says of itself, once that is there.
    fn hear(&mut self) -> io::Result<Option<Arrival>> {
        let closed = self.connection.read()?;
        match self.connection.next()? {
            Some(ToDispatcher::Arrived(arrival)) => Ok(Some(arrival)),
            _ if closed => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(None),
        }
    }
}

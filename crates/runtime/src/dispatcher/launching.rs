//! The agents of a job on several nodes: how they are started, and the wait until they have come.
//!
//! Each gets an [`Invitation`] on its standard input, connects back, and proves the job's key. A node that cannot be reached, has no
//! resurgo, or is not like this one ends the job before it has begun.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use resurgo_wire::control::{AGENT, Alike, Arrival, INVITED, Invitation, Job, KEPT, Nodes, ToDispatcher};
use resurgo_wire::handshake::{Doorkeeper, Heard, Server, Word};

use super::node::Node;
use super::start_error::{StartError, cannot};
use crate::connection::Connection;
use crate::{interfaces, likeness, server_process};

/// How long all nodes together may take until their agents are there.
const LAUNCH: Duration = Duration::from_secs(60);
/// How long a stranger may take to prove the key.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Strangers beside one for each node.
const STRANGERS: usize = 64;
/// How often launchers are looked at: their ends make nothing readable.
const LOOK: Duration = Duration::from_millis(50);
/// Most bytes of complaints that are shown.
const COMPLAINTS: usize = 2 << 10;
/// What a shell answers when there is no such file, and ssh when it has not come so far.
const NOT_FOUND: i32 = 127;
const SSH_FAILED: i32 = 255;

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

/// The nodes of a job that has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Their names, and what starts their agents.
    pub hosts: Vec<(String, Launcher)>,
    /// How many ranks each has room for.
    pub slots: Vec<u32>,
    /// So many of them, the last ones, are kept for ranks whose nodes are lost.
    pub spares: usize,
    /// Instead of ssh or srun.
    pub launcher_file: Option<PathBuf>,
    /// The node of each rank.
    pub of_rank: Vec<u32>,
    /// How long a node may be silent before its ranks are taken for lost.
    pub lease: Duration,
    /// What must be the same on all nodes, beside resurgo itself.
    pub files: Vec<std::ffi::OsString>,
}

impl Cluster {
    /// All nodes are this machine.
    pub fn is_here(&self) -> bool {
        self.hosts.iter().all(|(_, launcher)| *launcher == Launcher::Fork)
    }
}

/// A node whose agent has been started.
struct Guest {
    name: String,
    launcher: Launcher,
    process: Child,
    complaints: Vec<u8>,
    has_closed: bool,
    arrived: Option<(Connection, Arrival)>,
}

/// Who has connected and not proved the key, or said nothing of itself yet.
struct Stranger {
    connection: Connection,
    door: Doorkeeper,
    /// The node that it has proved to be.
    node: Option<usize>,
    since: Instant,
}

pub struct Launching<'a> {
    cluster: &'a Cluster,
    key: [u8; 32],
    listener: TcpListener,
    guests: Vec<Guest>,
    strangers: Vec<Stranger>,
    alike: Alike,
}

/// How the user may end the job before it has begun: what is readable then, and which signal has come.
pub struct Patience<'a> {
    pub signals: BorrowedFd<'a>,
    pub ended: &'a dyn Fn() -> io::Result<Option<Signal>>,
}

/// Starts an agent on each node and waits for all. Returns them with what each is told of the others.
pub fn launch(cluster: &Cluster, job: &Job, patience: &Patience) -> Result<(Vec<Node>, Vec<Nodes>), StartError> {
    let mut launching = Launching::begin(cluster, job)?;
    let deadline = Instant::now() + LAUNCH;
    while launching.guests.iter().any(|guest| guest.arrived.is_none()) {
        if let Some(signal) = launching.wait(patience).map_err(cannot("wait for the nodes"))? {
            return Err(StartError::Interrupted(signal));
        }
        launching.accept().map_err(cannot("accept a connection"))?;
        launching.hear_strangers()?;
        launching.mind_launchers()?;
        if Instant::now() > deadline {
            return Err(launching.late());
        }
    }
    let mut plans = Vec::new();
    let mesh: Vec<Vec<SocketAddr>> = launching.guests.iter().map(Guest::mesh).collect();
    let arrivals = launching.guests.iter().map(|guest| guest.arrived.as_ref());
    let copies: Vec<u16> = arrivals
        .map(|arrived| arrived.map_or(0, |(_, arrival)| arrival.copies))
        .collect();
    let mut nodes = Vec::new();
    for (own, guest) in (0..).zip(launching.guests) {
        plans.push(Nodes {
            own,
            epoch: 0,
            mesh: mesh.clone(),
            copies: copies.clone(),
            of_rank: cluster.of_rank.clone(),
        });
        nodes.extend(
            guest
                .arrived
                .map(|(connection, _)| Node::of(guest.name, guest.process, connection)),
        );
    }
    Ok((nodes, plans))
}

impl Guest {
    fn start(cluster: &Cluster, node: usize, invitation: &Invitation) -> Result<Guest, StartError> {
        let (name, launcher) = &cluster.hosts[node];
        let failed = |error: io::Error| StartError::Node {
            name: name.clone(),
            why: format!("its agent cannot be started: {error}{}", crate::hint(&error)),
        };
        let mut process = command(cluster, name, *launcher)
            .map_err(failed)?
            .spawn()
            .map_err(failed)?;
        let mut line = serde_json::to_vec(invitation).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        // Who has ended already is noticed by that.
        let _ = process.stdin.as_mut().map(|stdin| stdin.write_all(&line));
        if let Some(complaints) = &process.stderr {
            crate::sys::set_nonblocking(complaints).map_err(failed)?;
        }
        Ok(Guest {
            name: name.clone(),
            launcher: *launcher,
            process,
            complaints: Vec::new(),
            has_closed: false,
            arrived: None,
        })
    }

    fn mesh(&self) -> Vec<SocketAddr> {
        let arrival = self.arrived.as_ref().map(|(_, arrival)| arrival);
        arrival.map_or(Vec::new(), |arrival| arrival.mesh.clone())
    }

    fn read_complaints(&mut self) {
        let mut bytes = [0; 4 << 10];
        while let Some(complaints) = self.process.stderr.as_mut().filter(|_| !self.has_closed) {
            match complaints.read(&mut bytes) {
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

    /// The launcher has ended before the agent came: why.
    fn why(&self, status: ExitStatus) -> String {
        let said = self.complained();
        let said = if said.is_empty() { status.to_string() } else { said };
        match (self.launcher, status.code()) {
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
    fn begin(cluster: &'a Cluster, job: &Job) -> Result<Launching<'a>, StartError> {
        let mut addresses = interfaces::own_addresses();
        if cluster.is_here() || addresses.is_empty() {
            addresses = vec![Ipv4Addr::LOCALHOST.into()];
        }
        let listener = server_process::listen_for(&addresses).map_err(cannot("listen for agents"))?;
        let own_umask = umask(Mode::empty());
        umask(own_umask);
        let mut invitation = Invitation {
            version: env!("CARGO_PKG_VERSION").to_string(),
            key: job.key,
            node: 0,
            nodes: cluster.hosts.len() as u32,
            addresses,
            port: listener.local_addr().map_err(cannot("listen for agents"))?.port(),
            umask: own_umask.bits(),
            lease_ms: cluster.lease.as_millis() as u64,
            files: cluster.files.clone(),
        };
        let mut guests = Vec::new();
        for node in 0..cluster.hosts.len() {
            invitation.node = node as u32;
            guests.push(Guest::start(cluster, node, &invitation)?);
        }
        Ok(Launching {
            cluster,
            key: job.key,
            listener,
            guests,
            strangers: Vec::new(),
            alike: likeness::of_this_node(&cluster.files).map_err(cannot("read resurgo's own file"))?,
        })
    }

    /// Waits until there is something to do. Answers the signal by which the user ends the job.
    fn wait(&mut self, patience: &Patience) -> io::Result<Option<Signal>> {
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut ready = vec![readable(patience.signals), readable(self.listener.as_fd())];
        ready.extend(
            self.strangers
                .iter()
                .map(|stranger| readable(stranger.connection.as_fd())),
        );
        let complaints = self.guests.iter().filter(|guest| !guest.has_closed);
        ready.extend(complaints.filter_map(|guest| Some(readable(guest.process.stderr.as_ref()?.as_fd()))));
        let _ = poll(&mut ready, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
        (patience.ended)()
    }

    /// Lets in who waits at the door. The eldest stranger goes when there are too many.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Ok(()),
            };
            let nodes = self.guests.len();
            self.strangers.push(Stranger {
                connection: Connection::tcp(stream)?,
                door: Doorkeeper::new(Server::Dispatcher, nodes as u32, 0, self.key, crate::sys::random()?),
                node: None,
                since: Instant::now(),
            });
            if self.strangers.len() > nodes + STRANGERS {
                self.strangers.remove(0);
            }
        }
    }

    fn hear_strangers(&mut self) -> Result<(), StartError> {
        for mut stranger in std::mem::take(&mut self.strangers) {
            let is_late = stranger.since.elapsed() > HANDSHAKE;
            match stranger.hear() {
                Ok(Some((node, arrival))) => self.arrived(node, stranger.connection, arrival)?,
                Ok(None) if !is_late => self.strangers.push(stranger),
                // Whoever it was, it is no agent of this job.
                Ok(None) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn arrived(&mut self, node: usize, connection: Connection, arrival: Arrival) -> Result<(), StartError> {
        let guest = &mut self.guests[node];
        if let Some(why) = likeness::difference(&self.alike, &arrival.alike, &self.cluster.files) {
            let name = guest.name.clone();
            return Err(StartError::Node { name, why });
        }
        guest.arrived = Some((connection, arrival));
        Ok(())
    }

    /// Sees whether launchers have ended.
    fn mind_launchers(&mut self) -> Result<(), StartError> {
        for guest in &mut self.guests {
            guest.read_complaints();
            if guest.arrived.is_none()
                && let Ok(Some(status)) = guest.process.try_wait()
            {
                guest.read_complaints();
                let (name, why) = (guest.name.clone(), guest.why(status));
                return Err(StartError::Node { name, why });
            }
        }
        Ok(())
    }

    /// It has taken too long.
    fn late(&self) -> StartError {
        let missing = self.guests.iter().find(|guest| guest.arrived.is_none());
        let (name, said) = missing.map_or_else(Default::default, |guest| (guest.name.clone(), guest.complained()));
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let seconds = LAUNCH.as_secs();
        StartError::Node {
            name,
            why: format!("no word of its agent within {seconds} s{said}"),
        }
    }
}

impl Stranger {
    /// Reads what has come: the node that it is of, and what it says of itself, once that is there.
    fn hear(&mut self) -> io::Result<Option<(usize, Arrival)>> {
        let closed = self.connection.read()?;
        while self.node.is_none() {
            let Some(word) = self.connection.next::<Word>()? else {
                break;
            };
            match self.door.hear(word).map_err(io::Error::other)? {
                Heard::Stranger(answer) => self.connection.send(&answer)?,
                Heard::Proved(visitor) => self.node = Some(visitor.rank as usize),
            }
        }
        if let Some(node) = self.node
            && let Some(ToDispatcher::Arrived(arrival)) = self.connection.next()?
        {
            return Ok(Some((node, arrival)));
        }
        match closed {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(None),
        }
    }
}

/// What starts the agent of a node.
fn command(cluster: &Cluster, host: &str, launcher: Launcher) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let program = |usual: &str| Command::new(cluster.launcher_file.clone().unwrap_or_else(|| usual.into()));
    let mut command = match launcher {
        Launcher::Fork => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("resurgo").args([AGENT, INVITED]);
            command
        }
        Launcher::Ssh => {
            let mut command = program("ssh");
            // ssh joins what follows with blanks, and the login shell there splits it again.
            let quoted = format!("'{}'", own.to_string_lossy().replace('\'', r"'\''"));
            command.args([
                "-T",
                "-x",
                "-o",
                "BatchMode=yes",
                "--",
                host,
                "exec",
                &quoted,
                AGENT,
                KEPT,
            ]);
            command
        }
        Launcher::Slurm => {
            let mut command = program("srun");
            command.args(["--nodes=1", "--ntasks=1", &format!("--nodelist={host}")]);
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

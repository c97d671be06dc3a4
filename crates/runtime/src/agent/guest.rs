//! An agent of another node. It reads an invitation from standard input, connects to the dispatcher, proves the job's
//! key, and describes its node.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{Mode, umask};
use nix::unistd::gethostname;
use resurgo_protocol::Lease;
use resurgo_protocol::membership::{Duty, Timing};
use resurgo_wire::control::{Arrival, Invitation, Preemption, ToDispatcher};
use resurgo_wire::handshake::{Greeting, Hello, Server, Word};

use super::serving::Serving;
use super::store::Store;
use crate::connection::Connection;
use crate::stream::{Stream, Tls};
use crate::{beats, interfaces, invited, likeness, limits, machine, server_process, since_boot};

/// How long the agent tries one address of the dispatcher.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the dispatcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
/// How long the agent calls again. The dispatcher expects it for not much longer.
const INVITED: Duration = Duration::from_secs(50);
/// How often it tries to connect before it says that it cannot.
const TRIES: u32 = 3;
/// The pause between two calls, in milliseconds.
const PAUSE: u16 = 200;

/// Connections to the dispatcher other than the control connection.
pub(super) struct Guest {
    invitation: Invitation,
    /// Until when it calls again.
    until: Instant,
    /// What it tells the dispatcher of this node.
    arrival: Arrival,
    /// The dispatcher has said something: the connection is not taken for a stranger's.
    is_known: bool,
    timing: Timing,
    lease: Lease,
    /// Heartbeats as datagrams, as far as they pass.
    beats: Option<beats::Sent>,
    /// How this node learns that it is about to be taken away.
    pub preemption: Preemption,
    /// Standard input: when it closes, the agent ends. None: its starter is a helper, whose end must not end it.
    life_line: Option<OwnedFd>,
    /// Where agents of other nodes connect.
    mesh: TcpListener,
    /// Where agents of other nodes give and take copies of images.
    copies: Option<TcpListener>,
    /// Where image files are.
    store: Option<Store>,
    /// Servers of the job.
    pub serving: Serving,
}

impl Guest {
    /// Connects to the dispatcher that the invitation names.
    pub fn arrive() -> io::Result<(Guest, Connection)> {
        let life_line = io::stdin().as_fd().try_clone_to_owned()?;
        let invitation = invited::read::<Invitation>(&life_line, "/version")?;
        let life_line = invitation.has_life_line.then_some(life_line);
        umask(Mode::from_bits_truncate(invitation.umask));
        let limits = limits::take(&invitation.limits);
        // This reads files, so it comes before the connection: a stranger has little time to prove the key.
        let alike = likeness::of_this_node(&invitation.files)?;
        let until = Instant::now() + INVITED;
        let mut control = call(&invitation, life_line.as_ref(), until)?;
        let listen = || server_process::listen_for(&invitation.addresses, 0);
        let (mesh, copies) = (listen()?, listen()?);
        let store = invitation.directory.as_ref().map(|place| {
            let store = Store::on_node(place, invitation.node);
            store.map_err(|error| format!("{}: {error}{}", place.path.display(), crate::hint(&error)))
        });
        let serving = match &invitation.serve {
            Some(wanted) => Serving::start(wanted, &invitation.addresses).map_err(|error| {
                let what = &wanted.verb;
                io::Error::other(format!("cannot start a {what}: {error}{}", crate::hint(&error)))
            })?,
            None => Serving::default(),
        };
        let host = gethostname().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let arrival = Arrival {
            machine: machine::of_this_process(&host),
            host,
            limits,
            mesh: Vec::new(),
            copies: copies.local_addr()?.port(),
            servers: serving.places()?,
            beats: crate::sys::random()?,
            alike,
            directory: store
                .as_ref()
                .map(|store| store.as_ref().map(Store::sight).map_err(String::clone)),
        };
        let timing = Timing {
            hold: Duration::from_millis(invitation.hold_ms),
            ..Timing::of_lease(Duration::from_millis(invitation.lease_ms))
        };
        let mut guest = Guest {
            until,
            arrival,
            is_known: false,
            timing,
            lease: Lease::waiting(timing, since_boot()),
            beats: None,
            preemption: invitation.preemption.clone(),
            life_line,
            mesh,
            copies: Some(copies),
            store: store.and_then(Result::ok),
            serving,
            invitation,
        };
        guest.introduce(&mut control)?;
        Ok((guest, control))
    }

    /// Describes this node to the dispatcher.
    fn introduce(&mut self, control: &mut Connection) -> io::Result<()> {
        self.arrival.mesh = addresses(&self.invitation, control, self.mesh.local_addr()?.port())?;
        self.lease = Lease::waiting(self.timing, since_boot());
        let to = control.peer_address().zip(self.invitation.beats);
        let to = to.map(|(peer, port)| SocketAddr::new(peer.ip(), port));
        self.beats = to.and_then(|to| beats::Sent::to(to, self.arrival.beats, self.invitation.key).ok());
        // A broken connection shows when it is read.
        let _ = control.send(&ToDispatcher::Arrived(self.arrival.clone()));
        Ok(())
    }

    /// The connection has ended. Calls again if the dispatcher has never said a word: strangers may have taken the
    /// place, or this node was slow. None: the agent is not needed.
    pub fn come_again(&mut self) -> Option<Connection> {
        let may_call = !self.is_known && Instant::now() < self.until;
        if !may_call || rest(self.life_line.as_ref()).is_err() {
            return None;
        }
        let mut control = call(&self.invitation, self.life_line.as_ref(), self.until).ok()?;
        self.introduce(&mut control).ok().map(|()| control)
    }

    /// The dispatcher has said something.
    pub fn is_heard(&mut self) {
        self.is_known = true;
    }

    /// The job is there. False: its lease cannot begin before the next answer ([`Lease::begin`]).
    pub fn begins(&mut self) -> bool {
        self.lease.begin(since_boot())
    }

    /// Where agents of other nodes connect.
    pub fn mesh(&self) -> io::Result<TcpListener> {
        self.mesh.try_clone()
    }

    /// Where agents of other nodes give and take copies of images, once.
    pub fn copies(&mut self) -> Option<TcpListener> {
        self.copies.take()
    }

    /// Where image files are, once.
    pub fn store(&mut self) -> Option<Store> {
        self.store.take()
    }

    /// Sends the heartbeat that is due. Returns what has changed: whether ranks have to stand still now.
    ///
    /// # Errors
    /// The lease ran out long ago.
    pub fn keep_up(&mut self, control: &mut Connection) -> io::Result<Option<bool>> {
        // The agent asks in each turn; answers matter when a heartbeat or the end of the lease is due.
        if self.is_due() {
            let answered = self.beats.as_ref().map_or(Vec::new(), beats::Sent::answered);
            answered.into_iter().for_each(|number| self.answered(number));
        }
        match self.lease.poll(since_boot()) {
            Some(Duty::Beat { number }) => {
                self.beats.iter().for_each(|beats| beats.send(number));
                control.send(&ToDispatcher::Beat { number }).map(|()| None)
            }
            Some(Duty::Hold) => Ok(Some(true)),
            Some(Duty::GoOn) => Ok(Some(false)),
            Some(Duty::End) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "resurgo run has not answered for the length of the lease, nor for {:?} since: ranks of this node end",
                    self.timing.hold
                ),
            )),
            None => Ok(None),
        }
    }

    /// The user has stopped the dispatcher and the ranks: the lease begins anew.
    pub fn rests(&mut self) {
        self.lease.renew(since_boot());
    }

    /// Until when ranks may speak to other nodes ([`Lease::until`]).
    pub fn until(&self) -> Duration {
        self.lease.until()
    }

    /// There is something to do now.
    pub fn is_due(&self) -> bool {
        self.lease.due() <= since_boot()
    }

    /// How long until there is something to do.
    pub fn wait(&self) -> Duration {
        self.lease.due().saturating_sub(since_boot()) + Duration::from_millis(1)
    }

    pub fn answered(&mut self, number: u64) {
        self.lease.answered(number, since_boot());
    }

    /// What ends the agent when it closes.
    pub fn life_line(&self) -> Option<BorrowedFd<'_>> {
        self.life_line.as_ref().map(AsFd::as_fd)
    }

    /// Reads the life line, where nothing should come. False: it is closed.
    pub fn holds(&self) -> bool {
        self.life_line.as_ref().is_none_or(holds)
    }
}

fn holds(life_line: &OwnedFd) -> bool {
    match nix::unistd::read(life_line, &mut [0; 64]) {
        Ok(length) => length > 0,
        Err(error) => error == nix::errno::Errno::EINTR || error == nix::errno::Errno::EAGAIN,
    }
}

/// Calls the dispatcher and proves the key. Calls again while connections end before that: strangers may take all
/// places, or this node may be slow.
fn call(invitation: &Invitation, life_line: Option<&OwnedFd>, until: Instant) -> io::Result<Connection> {
    loop {
        let mut control = reach(invitation, life_line)?;
        match greet(&mut control, invitation) {
            Ok(()) => return Ok(control),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => rest(life_line)?,
        }
    }
}

/// The pause between two calls.
///
/// # Errors
/// The life line has closed.
fn rest(life_line: Option<&OwnedFd>) -> io::Result<()> {
    let mut ready: Vec<PollFd> = Vec::new();
    ready.extend(life_line.map(|line| PollFd::new(line.as_fd(), PollFlags::POLLIN)));
    let _ = poll(&mut ready, PollTimeout::from(PAUSE));
    let is_ready = ready.iter().any(|line| line.any().unwrap_or(false));
    match is_ready && !life_line.is_none_or(holds) {
        true => Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "resurgo run has ended",
        )),
        false => Ok(()),
    }
}

/// Connects to the dispatcher. One that cannot be reached is tried again, but not for long: mostly it is a firewall.
fn reach(invitation: &Invitation, life_line: Option<&OwnedFd>) -> io::Result<Connection> {
    for _ in 1..TRIES {
        match connect(invitation) {
            Ok(control) => return Ok(control),
            Err(_) => rest(life_line)?,
        }
    }
    connect(invitation)
}

/// Connects to the first address that answers.
fn connect(invitation: &Invitation) -> io::Result<Connection> {
    let tls = Tls::wanted(invitation.is_encrypted, &invitation.key)?;
    let mut tried = Vec::new();
    for address in &invitation.addresses {
        let address = SocketAddr::new(*address, invitation.port);
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Connection::tcp(Stream::calling(stream, tls.as_ref())?),
            Err(error) => tried.push(format!("{address} ({error})")),
        }
    }
    let tried = tried.join(", ");
    Err(io::Error::other(format!(
        "the node of resurgo run cannot be reached from here: {tried}; a firewall may be between them"
    )))
}

fn greet(control: &mut Connection, invitation: &Invitation) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let hello = Hello {
        rank: invitation.node,
        size: invitation.nodes,
        incarnation: 0,
        nonce: crate::sys::random()?,
    };
    let greeting = Greeting::new(Server::Dispatcher, invitation.key, hello);
    control.queue(&greeting.hello());
    let challenge: Word = control.wait_for(deadline)?;
    let (_, proof) = greeting.answer(challenge, |_| None).map_err(io::Error::other)?;
    control.send(&proof)
}

/// All nodes are on this machine.
fn is_here(invitation: &Invitation) -> bool {
    invitation.addresses.iter().all(IpAddr::is_loopback)
}

/// Where others reach this node, beginning with the address that the dispatcher sees.
fn addresses(invitation: &Invitation, control: &Connection, port: u16) -> io::Result<Vec<SocketAddr>> {
    let seen = control.own_address().map(|address| address.ip());
    let others = match is_here(invitation) {
        true => Vec::new(),
        false => interfaces::own_addresses(invitation.interface.as_deref()).map_err(io::Error::other)?,
    };
    // Where an interface is chosen, only its addresses are given.
    let seen = seen.filter(|seen| invitation.interface.is_none() || others.is_empty() || others.contains(seen));
    let others = others.into_iter().filter(|address| Some(*address) != seen);
    let mut all: Vec<IpAddr> = seen.into_iter().chain(others).collect();
    all.sort_by_key(IpAddr::is_loopback);
    Ok(all.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::handshake::{Doorkeeper, Heard};

    const KEY: [u8; 32] = [7; 32];

    fn invitation(to: SocketAddr) -> Invitation {
        Invitation {
            version: String::new(),
            key: KEY,
            node: 3,
            nodes: 4,
            addresses: vec![to.ip()],
            port: to.port(),
            umask: 0,
            limits: Vec::new(),
            lease_ms: 3_000,
            hold_ms: 60_000,
            is_encrypted: false,
            files: Vec::new(),
            preemption: Preemption::default(),
            interface: None,
            directory: None,
            serve: None,
            has_life_line: true,
            beats: None,
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Reads the first word of a caller.
    fn hear(listener: &TcpListener) -> (Connection, Word) {
        let (stream, _) = listener.accept().unwrap();
        let mut caller = Connection::tcp(Stream::called(stream, None).unwrap()).unwrap();
        let hello = caller.wait_for(soon()).unwrap();
        (caller, hello)
    }

    #[test]
    fn an_agent_that_cannot_connect_tries_again() {
        use nix::sys::socket::{
            AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
        };
        use std::os::fd::AsRawFd;
        // It has its port from the beginning on, but refuses connections before it listens.
        let door = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(door.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let port = getsockname::<SockaddrIn>(door.as_raw_fd()).unwrap().port();
        let invitation = invitation(SocketAddr::from(([127, 0, 0, 1], port)));
        assert!(connect(&invitation).is_err());
        let (ours, _theirs) = io::pipe().unwrap();
        let ours = OwnedFd::from(ours);
        let caller = std::thread::spawn(move || reach(&invitation, Some(&ours)).map(drop));
        listen(&door, Backlog::new(4).unwrap()).unwrap();
        caller.join().unwrap().unwrap();
    }

    #[test]
    fn an_agent_that_is_turned_away_calls_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let invitation = invitation(listener.local_addr().unwrap());
        let (ours, _theirs) = io::pipe().unwrap();
        let ours = OwnedFd::from(ours);
        let caller = std::thread::spawn(move || call(&invitation, Some(&ours), soon()).map(drop));
        // Unread, read, and by somebody who has another key.
        drop(listener.accept().unwrap());
        drop(hear(&listener));
        for key in [[8; 32], KEY] {
            let (mut caller, hello) = hear(&listener);
            let mut door = Doorkeeper::new(Server::Dispatcher, 4, 0, key, [1; 32]);
            let Ok(Heard::Stranger(challenge)) = door.hear(hello) else {
                panic!("this is the first word");
            };
            caller.send(&challenge).unwrap();
            let proof: io::Result<Word> = caller.wait_for(soon());
            match key == KEY {
                true => assert!(matches!(door.hear(proof.unwrap()), Ok(Heard::Proved(visitor)) if visitor.rank == 3)),
                false => assert!(proof.is_err()),
            }
        }
        caller.join().unwrap().unwrap();
    }

    #[test]
    fn an_agent_calls_as_long_as_its_life_line_holds() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let invitation = invitation(listener.local_addr().unwrap());
        let (ours, theirs) = io::pipe().unwrap();
        let ours = OwnedFd::from(ours);
        let caller = std::thread::spawn(move || call(&invitation, Some(&ours), soon()).map(drop));
        drop(hear(&listener));
        drop(hear(&listener));
        drop(theirs);
        // It may be calling just now, and is turned away as before.
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let error = caller.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
    }
}

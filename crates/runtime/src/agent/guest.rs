//! An agent of another node: it was started with an invitation on its standard input, connects to the dispatcher, proves the job's
//! key, and says what its node is like.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};
use nix::unistd::gethostname;
use resurgo_protocol::Lease;
use resurgo_protocol::membership::{Duty, Timing};
use resurgo_wire::control::{Arrival, Invitation, LONGEST_INVITATION, Preemption, ToDispatcher};
use resurgo_wire::handshake::{Greeting, Hello, Server, Word};

use super::store::Store;
use crate::connection::Connection;
use crate::stream::{Stream, Tls};
use crate::{interfaces, likeness, server_process, since_boot};

/// How long one address of the dispatcher is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the dispatcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What connects it with the dispatcher, beside the control connection.
pub(super) struct Guest {
    lease: Lease,
    /// How this node hears that it is about to be taken away.
    pub preemption: Preemption,
    /// Standard input: at its end everything ends.
    life_line: OwnedFd,
    /// Where agents of other nodes connect.
    mesh: TcpListener,
    /// Where they give and take copies of images.
    copies: Option<TcpListener>,
    /// Where image files are.
    store: Option<Store>,
}

impl Guest {
    /// Goes where the invitation leads.
    pub fn arrive() -> io::Result<(Guest, Connection)> {
        let asked = since_boot();
        let life_line = io::stdin().as_fd().try_clone_to_owned()?;
        let invitation = read_invitation(&life_line)?;
        umask(Mode::from_bits_truncate(invitation.umask));
        let mut control = connect(&invitation)?;
        greet(&mut control, &invitation)?;
        let listen = || server_process::listen_for(&invitation.addresses, 0);
        let (mesh, copies) = (listen()?, listen()?);
        let store = invitation.directory.as_ref().map(|place| {
            let store = Store::on_node(place, invitation.node);
            store.map_err(|error| format!("{}: {error}{}", place.path.display(), crate::hint(&error)))
        });
        let host = gethostname().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        control.queue(&ToDispatcher::Arrived(Arrival {
            host,
            mesh: addresses(&invitation, &control, mesh.local_addr()?.port())?,
            copies: copies.local_addr()?.port(),
            alike: likeness::of_this_node(&invitation.files)?,
            directory: store
                .as_ref()
                .map(|store| store.as_ref().map(Store::sight).map_err(String::clone)),
        }));
        let timing = Timing::of_lease(Duration::from_millis(invitation.lease_ms));
        let guest = Guest {
            lease: Lease::new(timing, asked),
            preemption: invitation.preemption.clone(),
            life_line,
            mesh,
            copies: Some(copies),
            store: store.and_then(Result::ok),
        };
        Ok((guest, control))
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

    /// Sends the heartbeat that is due. False: the lease is over.
    pub fn keep_up(&mut self, control: &mut Connection) -> io::Result<bool> {
        match self.lease.poll(since_boot()) {
            Some(Duty::Beat { number }) => control.send(&ToDispatcher::Beat { number })?,
            Some(Duty::End) => return Ok(false),
            None => {}
        }
        Ok(true)
    }

    /// The dispatcher is away because its user has stopped it, and so are the ranks: the lease begins anew.
    pub fn rests(&mut self) {
        self.lease.renew(since_boot());
    }

    /// Until when ranks may speak to other nodes ([`Lease::until`]).
    pub fn until(&self) -> Duration {
        self.lease.until()
    }

    /// How long until there is something to do.
    pub fn wait(&self) -> Duration {
        self.lease.due().saturating_sub(since_boot()) + Duration::from_millis(1)
    }

    pub fn answered(&mut self, number: u64) {
        self.lease.answered(number, since_boot());
    }

    /// Reads what comes on standard input; nothing should. False: it has come to its end.
    pub fn holds(&self) -> bool {
        let mut bytes = [0; 64];
        match nix::unistd::read(&self.life_line, &mut bytes) {
            Ok(length) => length > 0,
            Err(error) => error == nix::errno::Errno::EINTR || error == nix::errno::Errno::EAGAIN,
        }
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.life_line.as_fd()
    }
}

fn read_invitation(from: &OwnedFd) -> io::Result<Invitation> {
    let mut line = String::new();
    BufReader::new(File::from(from.try_clone()?).take(LONGEST_INVITATION)).read_line(&mut line)?;
    let wrong = |why: String| io::Error::other(format!("what came on standard input is no invitation: {why}"));
    let told: serde_json::Value = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
    let (ours, theirs) = (env!("CARGO_PKG_VERSION"), &told["version"]);
    if theirs != ours {
        return Err(io::Error::other(format!(
            "this is resurgo {ours}, and the job's is {theirs}"
        )));
    }
    serde_json::from_value(told).map_err(|error| wrong(error.to_string()))
}

/// To the first address that answers.
fn connect(invitation: &Invitation) -> io::Result<Connection> {
    let tls = invitation.is_encrypted.then(|| Tls::of(&invitation.key)).transpose()?;
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
    control.queue(&proof);
    Ok(())
}

/// All nodes are this machine.
fn is_here(invitation: &Invitation) -> bool {
    invitation.addresses.iter().all(IpAddr::is_loopback)
}

/// Where others reach this node: where the dispatcher sees it first.
fn addresses(invitation: &Invitation, control: &Connection, port: u16) -> io::Result<Vec<SocketAddr>> {
    let seen = control.own_address().map(|address| address.ip());
    let others = match is_here(invitation) {
        true => Vec::new(),
        false => interfaces::own_addresses(invitation.interface.as_deref()).map_err(io::Error::other)?,
    };
    // Where an interface is chosen its addresses are told and no other.
    let seen = seen.filter(|seen| invitation.interface.is_none() || others.is_empty() || others.contains(seen));
    let others = others.into_iter().filter(|address| Some(*address) != seen);
    let mut all: Vec<IpAddr> = seen.into_iter().chain(others).collect();
    all.sort_by_key(IpAddr::is_loopback);
    Ok(all.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

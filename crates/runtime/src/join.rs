//! `resurgo join`: this node joins a job whose dispatcher is elsewhere. It asks for an invitation with the token,
//! starts an agent with it, and asks again when the agent loses the dispatcher.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::unistd::gethostname;
use resurgo_wire::control::Invitation;
use resurgo_wire::control::join::{self, Joining, Welcome};
use resurgo_wire::handshake::Word;

use crate::agent::ALONE;
use crate::connection::Connection;
use crate::invited;
use crate::stream::Stream;

/// How long it tries to reach a job that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the dispatcher may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a node has not joined.
enum Trouble {
    /// It may work later.
    NotNow(io::Error),
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::NotNow(error)
    }
}

/// Takes part in the job at `address` (a host and its port) until that ends; returns the exit status.
pub fn run(address: &str, token: &str, slots: u32) -> i32 {
    let mut since = Instant::now();
    loop {
        let said = match ask(address, token, slots) {
            Ok(invitation) => {
                eprintln!("resurgo: this node takes part in the job at {address}");
                match serve(&invitation) {
                    Ok(0) => {
                        eprintln!("resurgo: the job needs this node no more");
                        return 0;
                    }
                    Ok(ALONE) => {
                        eprintln!("resurgo: the connection to the job is lost; this node tries to join again");
                        since = Instant::now();
                        continue;
                    }
                    // The agent has reported the reason.
                    Ok(_) => return 1,
                    Err(error) => format!("an agent cannot be started: {error}"),
                }
            }
            Err(Trouble::NotNow(_)) if since.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(Trouble::NotNow(error)) => format!(
                "no job answers at {address}: {error}; has it ended, or does a firewall lie between? resurgo run prints its address"
            ),
            Err(Trouble::Refused(reason)) => format!("the job at {address} does not take this node: {reason}"),
        };
        eprintln!("resurgo: {said}");
        return 1;
    }
}

fn ask(address: &str, token: &str, slots: u32) -> Result<Invitation, Trouble> {
    let mut connection = connect(address)?;
    let deadline = Instant::now() + ANSWER;
    let greeting = join::greeting(token, crate::sys::random()?);
    connection.queue(&greeting.hello());
    let challenge: Word = connection.wait_for(deadline)?;
    let answer = greeting.answer(challenge, |_| None);
    let (_, proof) = answer.map_err(|_| Trouble::Refused("it has another token".to_string()))?;
    connection.queue(&proof);
    let joining = Joining {
        version: env!("CARGO_PKG_VERSION").to_string(),
        host: gethostname().map_or(String::new(), |name| name.to_string_lossy().into_owned()),
        slots,
        salt: crate::sys::random()?,
    };
    connection.queue(&joining);
    match connection.wait_for(deadline)? {
        Welcome::Refused { reason } => Err(Trouble::Refused(reason)),
        Welcome::Invited { mut invitation, salt } => {
            invitation.key = join::mask(invitation.key, &join::key_of(token), &joining.salt, &salt);
            // This address worked; others may not.
            let here = connection.peer_address().map(|address| address.ip().to_canonical());
            invitation.addresses.retain(|address| Some(*address) != here);
            invitation.addresses.splice(0..0, here);
            Ok(*invitation)
        }
    }
}

fn connect(address: &str) -> io::Result<Connection> {
    let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, "no such host"));
    let all: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    for address in all {
        match TcpStream::connect_timeout(&address, ANSWER) {
            Ok(stream) => return Connection::tcp(Stream::calling(stream, None)?),
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Starts an agent, and waits for its end; returns its exit status. When this process ends, the agent ends.
fn serve(invitation: &Invitation) -> io::Result<i32> {
    let mut agent = invited::agent();
    agent.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
    Ok(invited::run(&mut agent, Some(invitation))?.code().unwrap_or(1))
}

//! A channel memory (MPICH-V1; Bouteiller 2006, §III.B): one loop around one `resurgo_protocol::ChannelMemory`, for
//! many ranks, in a process of its own that the dispatcher starts.
//!
//! It waits for no connection. The channel memory keeps the messages to a rank until an image of the rank covers
//! them, first in memory and then in a file ([`store`]). A connection counts only after it has proved
//! the job's key. A later life's connection replaces the former one, whose remaining input is processed first.
//! Nothing here outlives the process: when it ends, the job ends.

mod connection;
mod spill;
mod store;

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use nix::poll::PollTimeout;
use resurgo_protocol::Rank;
use resurgo_wire::channel_memory::Life;
use serde::{Deserialize, Serialize};

use crate::reception::Reception;
use crate::server_process::{Beginning, ServerProcess, begin, listen_anywhere, say};
use crate::stream::Tls;
use crate::sys::open_nameless;
use connection::{Connection, Heard};
use store::{Store, Trouble};

/// The hidden verb.
pub const VERB: &str = "channel-memory";
/// Reads from one connection before others get their turn.
const READS: usize = 16;

/// What a channel memory is told when it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The most ranks of the job.
    pub size: usize,
    pub key: [u8; 32],
    /// Others speak to it encrypted.
    pub is_encrypted: bool,
    /// Ranks wait until the channel memory says that it has their reports.
    pub acknowledges: bool,
    /// The most bytes of messages in memory.
    pub bound: u64,
    /// Messages beyond that go to the file.
    pub spills: bool,
}

/// What a channel memory says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It cannot go on.
    Failed { reason: String },
    /// Its memory fills, and it has no file: images of its ranks would let it forget messages.
    Fills,
    /// It ends with the job, and has had this much.
    Held(Held),
}

/// Messages that a channel memory has had, for all its ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub messages: u64,
    /// Their payload.
    pub bytes: u64,
    /// Payload among this that was given up because images cover it.
    pub forgotten_bytes: u64,
    /// The most that it held at once, in memory and in the spill file.
    pub most_bytes: u64,
    /// The most that it held in memory at once.
    pub most_memory_bytes: u64,
    /// Written to the spill file.
    pub spilled_bytes: u64,
    /// The size to which the spill file has grown: new messages overwrite given-up ones.
    pub spill_file_bytes: u64,
}

/// A channel memory as the dispatcher sees it.
pub type Process = ServerProcess<Settings, Report>;

/// Why a channel memory cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error("a channel memory cannot listen on {bind}: {error}{}", crate::hint(.error))]
    Listen { bind: SocketAddr, error: io::Error },
    #[error("a channel memory cannot make its spill file: {error}{}", crate::hint(.error))]
    SpillFile { error: io::Error },
}

/// A channel memory that is not running yet. `spill`: the directory of its file, if it has one.
pub fn make(settings: Settings, bind: SocketAddr, spill: Option<&OsStr>) -> Result<Process, MakeError> {
    let listener = listen_anywhere(bind).map_err(|error| MakeError::Listen { bind, error })?;
    let file = spill.map(open_nameless).transpose();
    let file = file.map_err(|error| MakeError::SpillFile { error })?;
    Ok(ServerProcess::new(VERB, settings, listener, file))
}

/// `resurgo channel-memory`.
pub fn run() -> i32 {
    begin(c"resurgo-chanmem", |beginning| {
        serve(&beginning).map_err(|reason| {
            // The dispatcher may be gone.
            let _ = say(&beginning.control, &Report::Failed { reason });
        })
    })
}

fn serve(beginning: &Beginning<Settings>) -> Result<(), String> {
    let settings = beginning.settings.clone();
    let failed = |error: io::Error| format!("{error}{}", crate::hint(&error));
    let file = settings.spills.then(|| beginning.file()).transpose().map_err(failed)?;
    let tls = Tls::wanted(settings.is_encrypted, &settings.key);
    let tls = tls.map_err(failed)?;
    let mut server = Server {
        store: Store::new(settings.bound, file),
        connections: Reception::new(settings.size).encrypted(tls),
        settings,
        listener: beginning.listener.try_clone().map_err(failed)?,
    };
    server.serve(&beginning.control)?;
    let _ = say(&beginning.control, &Report::Held(server.store.held()));
    Ok(())
}

struct Server {
    settings: Settings,
    store: Store,
    listener: TcpListener,
    connections: Reception<Connection>,
}

impl Server {
    /// Runs until the other side closes `control`, or until it cannot go on; the error says why.
    fn serve(&mut self, control: &UnixStream) -> Result<(), String> {
        loop {
            let (connections, listener) = (&self.connections, &self.listener);
            let others = std::iter::empty();
            let happened = connections.wait(control, listener, Connection::poll, others, self.timeout());
            let happened = happened.map_err(|error| error.to_string())?;
            if happened.is_over {
                return Ok(());
            }
            if happened.calls {
                self.accept();
            }
            for id in happened.speaking {
                self.attend(id)?;
            }
            self.serve_all()?;
            if self.store.fills() {
                // The dispatcher may be gone.
                let _ = say(control, &Report::Fills);
            }
            self.connections.cut_late();
        }
    }

    fn timeout(&self) -> PollTimeout {
        if self.connections.has_deadlines() {
            return PollTimeout::from(250u8);
        }
        PollTimeout::NONE
    }

    fn accept(&mut self) {
        let (size, key) = (self.settings.size, self.settings.key);
        self.connections
            .accept(&self.listener, |line| Connection::new(line, size, key));
    }

    /// Hears what has come on a connection. Drops a connection that must not go on; that gets a reason if there is one.
    fn attend(&mut self, id: u64) -> Result<(), String> {
        let Some(mut connection) = self.connections.take(id) else {
            return Ok(());
        };
        let mut open = true;
        for _ in 0..READS {
            match connection.receive() {
                Ok(Some(0)) | Err(_) => open = false,
                Ok(Some(_)) => {}
                Ok(None) => break,
            }
            self.hear(&mut connection)?;
            if !open {
                return Ok(());
            }
        }
        // Send what is not served from the store, too, such as a challenge.
        if self.serve_one(&mut connection)? {
            self.connections.put_back(id, connection);
        }
        Ok(())
    }

    fn hear(&mut self, connection: &mut Connection) -> Result<(), String> {
        loop {
            match connection.hear(&mut self.store) {
                Ok(Heard::Nothing) => return Ok(()),
                Ok(Heard::Admit(life)) => match self.admit(connection, life) {
                    Ok(()) => {}
                    Err(Trouble::Refused(reason)) => connection.part(reason),
                    Err(Trouble::Fatal(reason)) => return Err(reason),
                },
                Err(Trouble::Refused(reason)) => {
                    connection.part(reason);
                    return Ok(());
                }
                Err(Trouble::Fatal(reason)) => return Err(reason),
            }
        }
    }

    fn admit(&mut self, connection: &mut Connection, life: Life) -> Result<(), Trouble> {
        let Life {
            rank,
            incarnation,
            delivered,
        } = life;
        self.store.may_admit(rank, incarnation)?;
        self.hear_last_words(rank)?;
        let admission = self.store.admit(rank, incarnation, delivered)?;
        connection.welcome(rank, incarnation, admission);
        Ok(())
    }

    /// The process of an earlier life is dead: what the kernel still has from it is everything that it will ever say.
    fn hear_last_words(&mut self, rank: Rank) -> Result<(), Trouble> {
        for mut connection in self.connections.take_of(rank) {
            while let Ok(Some(1..)) = connection.receive() {
                match connection.hear(&mut self.store) {
                    Ok(_) => {}
                    Err(Trouble::Refused(_)) => break,
                    Err(fatal) => return Err(fatal),
                }
            }
        }
        Ok(())
    }

    /// Serves every rank for which something has come.
    fn serve_all(&mut self) -> Result<(), String> {
        let due: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_due(&self.store))
            .map(|(id, _)| id)
            .collect();
        for id in due {
            let Some(mut connection) = self.connections.take(id) else {
                continue;
            };
            if self.serve_one(&mut connection)? {
                self.connections.put_back(id, connection);
            }
        }
        Ok(())
    }

    /// Serves one connection. False: the connection is of no use any more.
    fn serve_one(&mut self, connection: &mut Connection) -> Result<bool, String> {
        match connection.serve(&mut self.store, self.settings.acknowledges) {
            Ok(sent) => Ok(sent.is_ok()),
            Err(Trouble::Fatal(reason)) => Err(reason),
            Err(Trouble::Refused(reason)) => {
                connection.part(reason);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

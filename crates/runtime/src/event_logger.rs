//! An event logger: one loop around one `resurgo_protocol::EventLogger` (Bouteiller 2006, §III.C; Bouteiller 2005,
//! §IV.B), in a process of its own (`process.rs`).
//!
//! A connection counts only after it has proved the job's key. One that sends what it must not is cut and disturbs no
//! other. A rank's later connection replaces its earlier one. Before the logger acknowledges anything, the journal has
//! it (`journal.rs`).

mod connection;
mod journal;
mod process;

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use resurgo_protocol::causal::Event;
use resurgo_protocol::{EventLogger, Rank};
use resurgo_wire::event_logger::{Delivery, LOGGER};

use crate::reception::Reception;
use crate::server_process;
use crate::stream::Tls;
use connection::{Connection, Heard};
use journal::Journal;
pub use process::{Process, Report, VERB, make, run};

/// The least time between two messages about stable clocks to a rank or logger that has logged nothing itself.
const SPREAD: Duration = Duration::from_millis(1);
/// How often a logger tries to connect to another.
const PEER_AGAIN: Duration = Duration::from_millis(200);

/// Why the event logger cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the event logger cannot listen on {address}: {source}{}", crate::hint(source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the event logger cannot start: {0}")]
    Start(io::Error),
}

/// What an event logger learns when it starts.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// Ranks of the job.
    pub size: usize,
    pub key: [u8; 32],
    /// Others speak to it encrypted.
    pub is_encrypted: bool,
    /// Its number among the job's.
    pub number: usize,
    /// The others, if this one tells them its clocks (multicast).
    pub peers: Vec<SocketAddr>,
    /// It tells its clocks even to ranks that log elsewhere (broadcast).
    pub broadcasts: bool,
    /// Its epoch if it finds no journal that it can read.
    pub epoch: u64,
}

/// Listens for ranks. Port 0 takes a free one.
pub fn listen(bind: SocketAddr) -> Result<TcpListener, Error> {
    server_process::listen(bind).map_err(|source| Error::Listen { address: bind, source })
}

/// A running event logger.
struct Server {
    settings: Settings,
    tls: Option<Tls>,
    logger: EventLogger,
    journal: Option<Journal>,
    listener: TcpListener,
    connections: Reception<Connection>,
    /// Connections to other loggers.
    peers: Vec<Peer>,
    spread_at: Instant,
    /// Something may have become stable since the clocks were last told.
    changed: bool,
}

struct Peer {
    address: SocketAddr,
    connection: Option<connection::Outgoing>,
    again_at: Instant,
}

impl Server {
    fn new(
        settings: Settings,
        listener: TcpListener,
        journal: Option<Journal>,
        logger: EventLogger,
    ) -> io::Result<Server> {
        let now = Instant::now();
        let tls = Tls::wanted(settings.is_encrypted, &settings.key)?;
        let peer = |address: &SocketAddr| Peer {
            address: *address,
            connection: None,
            again_at: now,
        };
        Ok(Server {
            peers: settings.peers.iter().map(peer).collect(),
            connections: Reception::new(settings.size + settings.peers.len()).encrypted(tls.clone()),
            tls,
            settings,
            logger,
            journal,
            listener,
            spread_at: now,
            changed: true,
        })
    }

    /// Runs until the other side closes `control`.
    fn serve(&mut self, control: &UnixStream) -> io::Result<()> {
        loop {
            let peers = self.peers.iter().filter_map(|peer| peer.connection.as_ref());
            let peers = peers.map(connection::Outgoing::poll);
            let (connections, listener) = (&self.connections, &self.listener);
            let happened = connections.wait(control, listener, Connection::poll, peers, self.timeout())?;
            if happened.is_over {
                return Ok(());
            }
            if happened.calls {
                self.accept();
            }
            for id in happened.speaking {
                self.attend(id);
            }
            self.connections.cut_late();
            if let Some(journal) = &mut self.journal
                && let Err(error) = journal.write(&self.logger)
            {
                self.go_on_without_journal(control, &error)?;
            }
            self.acknowledge();
            self.spread(Instant::now());
        }
    }

    /// What has been stored is in memory. The file must be empty from here on: others will hear of more than it
    /// contains.
    fn go_on_without_journal(&mut self, control: &UnixStream, why: &io::Error) -> io::Result<()> {
        if let Some(journal) = self.journal.take() {
            journal.give_up()?;
        }
        process::without_journal(control, why)
    }

    fn timeout(&self) -> PollTimeout {
        let now = Instant::now();
        let mut wait = Duration::from_secs(60);
        if self.changed {
            wait = wait.min(self.spread_at.saturating_duration_since(now));
        }
        if self.peers.iter().any(|peer| peer.connection.is_none()) {
            wait = wait.min(PEER_AGAIN);
        }
        if self.connections.has_deadlines() {
            wait = wait.min(Duration::from_millis(250));
        }
        // Round up: a loop that waits for less than a millisecond by asking again takes a core from the ranks.
        PollTimeout::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
    }

    fn accept(&mut self) {
        let (size, epoch, key) = (self.settings.size, self.logger.epoch(), self.settings.key);
        self.connections
            .accept(&self.listener, |line| Connection::new(line, size, epoch, key));
    }

    /// Hears what has come on a connection. Drops a connection that must not go on; that gets a reason if there is one.
    fn attend(&mut self, id: u64) {
        let Some(mut connection) = self.connections.take(id) else {
            return;
        };
        let kept = match connection.exchange() {
            Ok(()) => match self.hear_all(&mut connection) {
                Ok(()) => connection.exchange_output(),
                Err(reason) => {
                    connection.part(reason);
                    true
                }
            },
            Err(_) => false,
        };
        if kept {
            self.connections.put_back(id, connection);
        }
    }

    fn hear_all(&mut self, connection: &mut Connection) -> Result<(), String> {
        while let Some(heard) = connection.next_heard()? {
            match heard {
                Heard::Admit {
                    rank,
                    incarnation,
                    acknowledged,
                } => self.admit(connection, rank, incarnation, acknowledged)?,
                Heard::Log {
                    rank,
                    incarnation,
                    first_rclock,
                    deliveries,
                } => {
                    log(&mut self.logger, rank, incarnation, first_rclock, &deliveries)?;
                    self.changed = true;
                }
                Heard::Clocks(clocks) => self.learn(&clocks)?,
                Heard::Forget { rank, rclock } => {
                    let forgotten = self.logger.forget(rank, rclock);
                    forgotten.map_err(|error| error.to_string())?;
                    if let Some(journal) = &mut self.journal {
                        journal.forget(rank, rclock);
                    }
                    self.changed = true;
                }
                Heard::Query { rank, above_rclock } => {
                    connection.answer(above_rclock, self.logger.query(rank, above_rclock))?;
                }
            }
        }
        Ok(())
    }

    fn admit(
        &mut self,
        connection: &mut Connection,
        rank: Rank,
        incarnation: u64,
        acknowledged: Option<u64>,
    ) -> Result<(), String> {
        if rank >= LOGGER {
            connection.welcome(0);
            return Ok(());
        }
        let admitted = self.logger.admit(rank, incarnation, acknowledged);
        admitted.map_err(|error| error.to_string())?;
        if let Some(journal) = &mut self.journal {
            journal.admit(rank, incarnation, acknowledged);
        }
        let (dropped, records) = self.logger.stored(rank).map_err(|error| error.to_string())?;
        connection.welcome(dropped + records.len() as u64);
        // Drop its earlier connection, if there is one: that has nothing to say any more.
        self.connections.take_of(rank);
        self.changed = true;
        Ok(())
    }

    fn learn(&mut self, clocks: &[(Rank, u64)]) -> Result<(), String> {
        learn(&mut self.logger, clocks)?;
        self.changed = true;
        Ok(())
    }

    /// Tells ranks which of their deliveries have become stable since they were last told.
    fn acknowledge(&mut self) {
        let clocks: Vec<u64> = self.logger.stable_clocks().collect();
        for connection in self.connections.values_mut() {
            connection.acknowledge(&self.logger, &clocks);
        }
    }

    /// Tells the stable clocks to everybody who should know, not too often.
    fn spread(&mut self, now: Instant) {
        for peer in &mut self.peers {
            peer.attend(&self.settings, self.tls.as_ref(), self.logger.epoch(), now);
        }
        if self.peers.is_empty() && !self.settings.broadcasts {
            self.changed = false;
        }
        if !self.changed || now < self.spread_at {
            return;
        }
        (self.changed, self.spread_at) = (false, now + SPREAD);
        let clocks: Vec<u64> = self.logger.stable_clocks().collect();
        for peer in &mut self.peers {
            self.changed |= !peer.tell(&clocks);
        }
        if self.settings.broadcasts {
            for connection in self.connections.values_mut() {
                connection.tell(&clocks);
            }
        }
    }
}

impl Peer {
    fn attend(&mut self, settings: &Settings, tls: Option<&Tls>, epoch: u64, now: Instant) {
        if let Some(connection) = &mut self.connection {
            if connection.exchange().is_err() {
                self.connection = None;
                self.again_at = now + PEER_AGAIN;
            }
        } else if now >= self.again_at {
            self.again_at = now + PEER_AGAIN;
            self.connection = connection::Outgoing::connect(self.address, settings, tls, epoch).ok();
        }
    }

    /// False: the peer cannot be told now.
    fn tell(&mut self, clocks: &[u64]) -> bool {
        self.connection
            .as_mut()
            .is_some_and(|connection| connection.tell(clocks))
    }
}

/// Stores deliveries, which may have to wait for others.
fn log(
    logger: &mut EventLogger,
    rank: Rank,
    incarnation: u64,
    first_rclock: u64,
    deliveries: &[Delivery],
) -> Result<(), String> {
    let events: Vec<Event> = (first_rclock..)
        .zip(deliveries)
        .map(|(rclock, (record, antecedent))| Event {
            receiver: rank,
            rclock,
            record: *record,
            antecedent: *antecedent,
        })
        .collect();
    let logged = logger.log_events(rank, incarnation, first_rclock, &events);
    logged.map(|_| ()).map_err(|error| error.to_string())
}

fn learn(logger: &mut EventLogger, clocks: &[(Rank, u64)]) -> Result<(), String> {
    let mut all = vec![0; logger.size()];
    for (rank, clock) in clocks {
        *all.get_mut(*rank as usize)
            .ok_or_else(|| format!("there is no rank {rank}"))? = *clock;
    }
    logger.learn(&all);
    Ok(())
}

/// An event logger in a thread of this process, without a journal; dropping it stops it.
#[derive(Debug)]
pub struct EventLoggerServer {
    epoch: u64,
    address: SocketAddr,
    control: UnixStream,
    thread: Option<JoinHandle<()>>,
    #[cfg(test)]
    clock: crate::reception::Clock,
}

impl EventLoggerServer {
    /// Starts the first event logger of a job of `size` ranks. Port 0 takes a free one.
    pub fn start(bind: SocketAddr, size: usize, key: [u8; 32]) -> Result<Self, Error> {
        Self::launch(bind, key, EventLogger::new(size))
    }

    /// Starts an empty event logger to replace a lost one. `epoch`: 2 for the first replacement, and so on.
    pub fn start_replacement(bind: SocketAddr, size: usize, key: [u8; 32], epoch: u64) -> Result<Self, Error> {
        Self::launch(bind, key, EventLogger::replacement(size, epoch))
    }

    fn launch(bind: SocketAddr, key: [u8; 32], logger: EventLogger) -> Result<Self, Error> {
        let listener = listen(bind)?;
        let address = listener.local_addr().map_err(Error::Start)?;
        let (control, other) = UnixStream::pair().map_err(Error::Start)?;
        let epoch = logger.epoch();
        let settings = Settings {
            size: logger.size(),
            key,
            is_encrypted: false,
            number: 0,
            peers: Vec::new(),
            broadcasts: false,
            epoch,
        };
        let mut server = Server::new(settings, listener, None, logger).map_err(Error::Start)?;
        #[cfg(test)]
        let clock = server.connections.clock();
        let thread = std::thread::Builder::new().name("event-logger".into()).spawn(move || {
            // Connected ranks see that it ends.
            let _ = server.serve(&other);
        });
        Ok(Self {
            epoch,
            address,
            control,
            thread: Some(thread.map_err(Error::Start)?),
            #[cfg(test)]
            clock,
        })
    }

    /// The TCP port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Cuts every connection and waits for the thread.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The thread also wakes when this end closes; nothing is lost if the write fails.
        let _ = (&self.control).write_all(&[0]);
        let _ = self.control.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

impl Drop for EventLoggerServer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn quick(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

#[cfg(test)]
pub(crate) mod tests;

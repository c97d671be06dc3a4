//! The event logger as a TCP server: one thread a connection around one `resurgo_protocol::EventLogger`
//! (Bouteiller 2006, §III.C).
//!
//! A connection is worth nothing until it has proved the job's key; one that sends what it must not is cut and
//! disturbs no other. A rank's later connection replaces its earlier one. What is acknowledged is in memory here:
//! the event logger is the stable component, and losing it together with a rank is reported to that rank.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_protocol::{EventLogger, Rank};
use resurgo_wire::event_logger::{LoggerSide, MAX_RECORDS, Request};

/// Time for a peer to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest time that a refused peer is listened to.
const PARTING: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes read at once; with one frame that is not whole, all that a connection keeps.
const READ_BYTES: usize = 64 << 10;
/// Stack of a connection's thread: there is one for every rank.
const STACK_BYTES: usize = 256 << 10;

/// Why the event logger cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the event logger cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the event logger cannot start: {0}")]
    Start(io::Error),
}

/// A running event logger; dropping it stops it.
#[derive(Debug)]
pub struct EventLoggerServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    wake: UnixStream,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    key: [u8; 32],
    size: usize,
    epoch: u64,
    logger: Mutex<EventLogger>,
    connections: Mutex<Connections>,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct Connections {
    next: u64,
    open: HashMap<u64, TcpStream>,
    of_rank: HashMap<Rank, u64>,
}

/// A poisoned lock guards plain data that every holder leaves whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventLoggerServer {
    /// Starts the first event logger of a job of `size` ranks. Port 0 takes a free one.
    pub fn start(bind: SocketAddr, size: usize, key: [u8; 32]) -> Result<Self, Error> {
        Self::launch(bind, key, EventLogger::new(size))
    }

    /// Starts an empty event logger in the place of a lost one. `epoch`: 2 for the first replacement, and so on.
    pub fn start_replacement(bind: SocketAddr, size: usize, key: [u8; 32], epoch: u64) -> Result<Self, Error> {
        Self::launch(bind, key, EventLogger::replacement(size, epoch))
    }

    fn launch(bind: SocketAddr, key: [u8; 32], logger: EventLogger) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address: bind, source };
        let listener = TcpListener::bind(bind).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        // A connection that vanishes between poll and accept must not block the acceptor.
        listener.set_nonblocking(true).map_err(listen)?;
        let (wake, woken) = UnixStream::pair().map_err(Error::Start)?;
        let shared = Arc::new(Shared {
            key,
            size: logger.size(),
            epoch: logger.epoch(),
            logger: Mutex::new(logger),
            connections: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let acceptor = std::thread::Builder::new()
            .name("event-logger".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.accept(&listener, &woken)
            })
            .map_err(Error::Start)?;
        Ok(Self {
            shared,
            address,
            wake,
            acceptor: Some(acceptor),
        })
    }

    /// The TCP port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Deliveries stored, per rank.
    pub fn stable_clocks(&self) -> Vec<u64> {
        lock(&self.shared.logger).stable_clocks().collect()
    }

    /// Cuts every connection and waits for the threads.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.stopping.store(true, Ordering::SeqCst);
        // The acceptor also wakes when this end closes; nothing is lost if the write fails.
        let _ = self.wake.write_all(&[0]);
        let _ = self.wake.shutdown(Shutdown::Both);
        let _ = acceptor.join();
    }
}

impl Drop for EventLoggerServer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener, woken: &UnixStream) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        while !self.stopping.load(Ordering::SeqCst) {
            let mut ready = [
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(woken.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut ready, PollTimeout::NONE).is_err() {
                continue;
            }
            threads.retain(|thread| !thread.is_finished());
            match listener.accept() {
                Ok((stream, _)) => threads.extend(self.attend(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
        for stream in lock(&self.connections).open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Starts the thread of a new connection; nothing when there are too many or no thread is to be had.
    fn attend(self: &Arc<Self>, stream: TcpStream) -> Option<JoinHandle<()>> {
        let id = {
            let mut connections = lock(&self.connections);
            // Room for an old and a new connection of every rank, and some strangers.
            if connections.open.len() >= 2 * self.size + 64 {
                return None;
            }
            connections.next += 1;
            let id = connections.next;
            connections.open.insert(id, stream.try_clone().ok()?);
            id
        };
        let shared = Arc::clone(self);
        let attending = std::thread::Builder::new()
            .name("event-logger-rank".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // The peer sees the end of its connection, and an error of it concerns nobody else.
                let _ = shared.serve(id, &stream);
                let _ = stream.shutdown(Shutdown::Both);
                lock(&shared.connections).close(id);
            });
        if attending.is_err() {
            lock(&self.connections).close(id);
        }
        attending.ok()
    }

    fn serve(&self, id: u64, stream: &TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        let mut nonce = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut nonce)?;
        let mut connection = Connection {
            shared: self,
            id,
            stream,
            side: LoggerSide::new(self.size as u32, self.epoch, self.key, nonce),
            rank: None,
        };
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let came = match (&mut &*stream).read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            connection.side.receive(&bytes[..came]);
            if let Err(reason) = connection.answer_all() {
                connection.side.refuse(reason);
                return connection.part();
            }
            connection.flush()?;
        }
    }
}

impl Connections {
    fn close(&mut self, id: u64) {
        self.open.remove(&id);
        self.of_rank.retain(|_, connection| *connection != id);
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    id: u64,
    stream: &'a TcpStream,
    side: LoggerSide,
    /// Who it is, once admitted: rank and incarnation.
    rank: Option<(Rank, u64)>,
}

impl Connection<'_> {
    fn flush(&mut self) -> io::Result<()> {
        let output = self.side.output();
        let bytes = output.len();
        (&mut &*self.stream).write_all(output)?;
        self.side.sent(bytes);
        Ok(())
    }

    /// Lets the reason of a refusal arrive: closing while the peer's bytes are unread would discard it.
    fn part(&mut self) -> io::Result<()> {
        self.flush()?;
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(PARTING))?;
        let (start, mut bytes) = (Instant::now(), [0; 4096]);
        while start.elapsed() < PARTING && (&mut &*self.stream).read(&mut bytes)? > 0 {}
        Ok(())
    }

    /// Answers what has come; deliveries that came together are acknowledged together.
    fn answer_all(&mut self) -> Result<(), String> {
        let mut acknowledge = None;
        while let Some(request) = self.side.next_request().map_err(|error| error.to_string())? {
            match (request, self.rank) {
                (
                    Request::Admit {
                        rank,
                        incarnation,
                        acknowledged,
                    },
                    _,
                ) => self.admit(rank, incarnation, acknowledged)?,
                (Request::Log { first_rclock, records }, Some((rank, incarnation))) => {
                    let stored = lock(&self.shared.logger).log(rank, incarnation, first_rclock, &records);
                    acknowledge = Some(stored.map_err(|error| error.to_string())?.rclock);
                }
                (Request::Query { above_rclock }, Some((rank, _))) => self.query(rank, above_rclock)?,
                (_, None) => return Err("not admitted".into()),
            }
        }
        if let Some(rclock) = acknowledge {
            self.side.ack(rclock);
        }
        Ok(())
    }

    fn admit(&mut self, rank: Rank, incarnation: u64, acknowledged: Option<u64>) -> Result<(), String> {
        // One lock over both steps: the connection that replaces is that of the life that was admitted last.
        let mut connections = lock(&self.shared.connections);
        let mut logger = lock(&self.shared.logger);
        logger
            .admit(rank, incarnation, acknowledged)
            .map_err(|error| error.to_string())?;
        let stored = logger.stable_clocks().nth(rank as usize).unwrap_or(0);
        let replaced = connections.of_rank.insert(rank, self.id);
        if let Some(stream) = replaced.and_then(|id| connections.open.get(&id)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.rank = Some((rank, incarnation));
        self.side.welcome(stored);
        // A rank may compute for days between two messages.
        self.stream.set_read_timeout(None).map_err(|error| error.to_string())
    }

    /// Gives back the deliveries part by part, so that no more than one part is ever kept for a slow reader.
    fn query(&mut self, rank: Rank, above_rclock: u64) -> Result<(), String> {
        let mut above_rclock = above_rclock;
        loop {
            let part = {
                let logger = lock(&self.shared.logger);
                logger.query(rank, above_rclock).map(|records| {
                    let part = records.len().min(MAX_RECORDS);
                    (records[..part].to_vec(), records.len() > part)
                })
            };
            match part {
                Ok((records, more)) => {
                    let first_rclock = above_rclock + 1;
                    above_rclock += records.len() as u64;
                    self.side.answer(first_rclock, more, records);
                    self.flush().map_err(|error| error.to_string())?;
                    if !more {
                        return Ok(());
                    }
                }
                Err(resurgo_protocol::event_logger::Error::NotWhole { stored, .. }) => {
                    self.side.not_whole(stored);
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests;

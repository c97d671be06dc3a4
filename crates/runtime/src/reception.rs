//! Connections to a server of the job (an event logger, a channel memory), before and after they prove the job's key.
//!
//! Any process on the machine can connect. A stranger gets a place for a short time; there are enough for all ranks at
//! once, and some more. When all are taken, a stranger that has sent nothing goes first, then one that has not sent a
//! whole first word, then the oldest. Nobody goes before its first words have been read: a peer sends them at once, and
//! would otherwise have to go for strangers who came before it. Peers with the key and strangers do not take each
//! other's places.

mod clock;
mod stranger;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_protocol::Rank;

use crate::stream::{Stream, Tls};
pub use clock::Clock;
pub use stranger::{Admitted, Framing, Stranger};

/// Time for a peer to prove itself. A rank answers at once: it waits for the handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(2);
/// Longest time that the server reads from a refused peer.
const PARTING: Duration = Duration::from_secs(1);
/// Strangers beside one for each rank.
const STRANGERS: usize = 64;
/// Connections accepted before other work has its turn.
const AT_ONCE: usize = 64;
/// Pause after a connection could not be accepted (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The socket of one connection, and its peer.
pub struct Line {
    stream: Stream,
    /// Rank and incarnation, once admitted.
    who: Option<(Rank, u64)>,
    /// Until when it must have proved the key, or have read why it was refused.
    deadline: Option<Instant>,
    refused: bool,
    /// Its first word was one that is answered.
    answered: bool,
    /// The turn of the reception in which it came.
    came_in: u64,
    clock: Clock,
}

impl Line {
    fn new(stream: Stream, came_in: u64, clock: Clock) -> io::Result<Line> {
        stream.socket().set_nonblocking(true)?;
        stream.socket().set_nodelay(true)?;
        Ok(Line {
            stream,
            who: None,
            deadline: Some(clock.now() + HANDSHAKE),
            refused: false,
            answered: false,
            came_in,
            clock,
        })
    }

    /// `sends`: something waits to be sent.
    pub fn poll(&self, sends: bool) -> PollFd<'_> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, sends || self.stream.owes());
        PollFd::new(self.stream.as_fd(), flags)
    }

    pub fn who(&self) -> Option<(Rank, u64)> {
        self.who
    }

    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// It has proved the key. A rank may compute for days between two messages.
    pub fn admit(&mut self, who: (Rank, u64)) {
        (self.who, self.deadline) = (Some(who), None);
    }

    /// The socket of a connection that moves elsewhere.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The connection ends after this, and the peer gets time to read the reason.
    pub fn refuse(&mut self) {
        (self.who, self.refused) = (None, true);
        self.deadline = Some(self.clock.now() + PARTING);
    }

    /// The refused peer has got all output.
    pub fn hang_up(&self) {
        let _ = self.stream.socket().shutdown(Shutdown::Write);
    }

    /// Reads input. `Ok(0)`: the other side has closed, `None`: there is nothing more now. Sends output that waits in
    /// the stream.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        if self.stream.owes() {
            self.write(&[])?;
        }
        loop {
            match self.stream.read(bytes) {
                Ok(came) => return Ok(Some(came)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends some of it; 0: the socket takes nothing now.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answered |= !bytes.is_empty();
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                sent => return sent,
            }
        }
    }
}

/// A connection, as a server sees it.
pub trait Guest {
    fn line(&self) -> &Line;
}

/// What a server has waited for.
pub struct Happened {
    /// The dispatcher has closed its socket.
    pub is_over: bool,
    /// Somebody waits at the door.
    pub calls: bool,
    /// The connections that are ready.
    pub speaking: Vec<u64>,
}

/// The connections of a server for `size` ranks.
pub struct Reception<C> {
    size: usize,
    tls: Option<Tls>,
    connections: BTreeMap<u64, C>,
    next: u64,
    /// Calls of [`Self::accept`].
    turn: u64,
    clock: Clock,
}

impl<C: Guest> Reception<C> {
    pub fn new(size: usize) -> Reception<C> {
        Reception {
            size,
            tls: None,
            connections: BTreeMap::new(),
            next: 0,
            turn: 0,
            clock: Clock::new(),
        }
    }

    /// The same with encryption.
    pub fn encrypted(mut self, tls: Option<Tls>) -> Reception<C> {
        self.tls = tls;
        self
    }

    /// Accepts waiting connections. The server reads from each connection between two calls, if it has input.
    pub fn accept(&mut self, listener: &TcpListener, mut make: impl FnMut(Line) -> io::Result<C>) {
        self.turn += 1;
        for _ in 0..AT_ONCE {
            match listener.accept() {
                Ok((stream, _)) => {
                    let line = Stream::called(stream, self.tls.as_ref());
                    let line = line.and_then(|stream| Line::new(stream, self.turn, self.clock.clone()));
                    if let Ok(connection) = line.and_then(&mut make) {
                        self.next += 1;
                        self.connections.insert(self.next, connection);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    break;
                }
            }
        }
        self.make_room();
    }

    /// Those whose first words may be unread take no places: they are few, and would push out others who have spoken.
    fn make_room(&mut self) {
        // What was accepted in the turn before may have been ready, and not yet read, when this turn began.
        let was_read = |line: &Line| line.came_in + 1 < self.turn;
        let mut go: Vec<_> = self
            .connections
            .iter()
            .map(|(id, guest)| (guest.line(), *id))
            .filter(|(line, _)| line.who.is_none() && was_read(line))
            .map(|(line, id)| (line.answered && !line.refused, line.stream.has_spoken(), id))
            .collect();
        let too_many = go.len().saturating_sub(self.size + STRANGERS);
        if too_many > 0 {
            go.sort_unstable();
            go.iter().take(too_many).for_each(|(.., id)| {
                self.connections.remove(id);
            });
        }
    }

    /// Cuts off late peers.
    pub fn cut_late(&mut self) {
        let now = self.clock.now();
        let is_late = |guest: &C| guest.line().deadline.is_some_and(|deadline| now > deadline);
        self.connections.retain(|_, guest| !is_late(guest));
    }

    /// The clock by which it cuts off late peers.
    #[cfg(test)]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Some peer has a deadline.
    pub fn has_deadlines(&self) -> bool {
        self.connections.values().any(|guest| guest.line().deadline.is_some())
    }

    /// Waits until the dispatcher closes `control`, somebody calls, or a connection, of which `watch` says what it waits
    /// for, or one of `others` is ready.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait<'a>(
        &'a self,
        control: &'a UnixStream,
        listener: &'a TcpListener,
        watch: impl Fn(&'a C) -> PollFd<'a>,
        others: impl Iterator<Item = PollFd<'a>>,
        timeout: PollTimeout,
    ) -> io::Result<Happened> {
        let mut ready = vec![
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        ready.extend(self.connections.values().map(watch));
        ready.extend(others);
        // Its socket does not show what has been deciphered and not read.
        let holds = |guest: &C| guest.line().stream.holds();
        let timeout = match self.connections.values().any(holds) {
            true => PollTimeout::ZERO,
            false => timeout,
        };
        match poll(&mut ready, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = ready.iter().map(|fd| fd.any().unwrap_or(true));
        let (is_over, calls) = (ready.next().unwrap_or(true), ready.next().unwrap_or(true));
        let speaks = self.connections.iter().zip(ready);
        let speaks = speaks.filter(|((_, guest), ready)| *ready || holds(guest));
        Ok(Happened {
            is_over,
            calls,
            speaking: speaks.map(|((id, _), _)| *id).collect(),
        })
    }

    /// The number of the connection accepted last.
    pub fn newest(&self) -> u64 {
        self.next
    }

    pub fn ids(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &C)> {
        self.connections.iter().map(|(id, guest)| (*id, guest))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.connections.values_mut()
    }

    /// Takes a connection out, to be put back if it goes on.
    pub fn take(&mut self, id: u64) -> Option<C> {
        self.connections.remove(&id)
    }

    pub fn put_back(&mut self, id: u64, guest: C) {
        self.connections.insert(id, guest);
    }

    /// Takes out the connections of a rank.
    pub fn take_of(&mut self, rank: Rank) -> Vec<C> {
        let of_it = |guest: &C| guest.line().who.is_some_and(|(other, _)| other == rank);
        self.connections
            .extract_if(.., |_, guest| of_it(guest))
            .map(|(_, guest)| guest)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::PATIENCE;
    use std::net::TcpStream;

    struct Plain(Line);

    impl Guest for Plain {
        fn line(&self) -> &Line {
            &self.0
        }
    }

    /// Accepts until so many connections have come since the beginning, and then for some turns more.
    fn accept(reception: &mut Reception<Plain>, listener: &TcpListener, count: u64) {
        let mut turn = || {
            reception.accept(listener, |line| Ok(Plain(line)));
            reception.newest() == count
        };
        until(&mut turn);
        (0..20).for_each(|_| assert!(turn()));
    }

    /// Looks until it is so.
    fn until(mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "it does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn strangers_never_take_the_places_of_others() {
        let listener = crate::server_process::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let mut reception = Reception::new(2);
        let proved = connect();
        accept(&mut reception, &listener, 1);
        reception.values_mut().for_each(|guest| guest.0.admit((1, 1)));
        // A stranger that has begun the handshake stays while silent ones come.
        let mut speaks = connect();
        speaks.write_all(b"hello").unwrap();
        accept(&mut reception, &listener, 2);
        let mut hears = |guest: &mut Plain| matches!(guest.0.read(&mut [0; 8]), Ok(Some(5)));
        until(|| reception.values_mut().any(&mut hears));
        let mut strangers = Vec::new();
        for round in 1..=10 {
            strangers.extend((0..100).map(|_| connect()));
            accept(&mut reception, &listener, 2 + 100 * round);
        }
        assert_eq!(reception.ids().len(), 1 + 2 + STRANGERS);
        assert_eq!(reception.ids()[..2], [1, 2]);
        assert!(reception.has_deadlines());
        reception.clock().put_forward(HANDSHAKE);
        reception.cut_late();
        assert_eq!(reception.ids().len(), 1 + 2 + STRANGERS, "their time is just not over");
        reception.clock().put_forward(Duration::from_millis(1));
        reception.cut_late();
        assert_eq!(reception.ids(), [1]);
        assert!(!reception.has_deadlines());
        assert_eq!(reception.take_of(1).len(), 1);
        drop(proved);
    }

    /// Strangers come all the time, each with one byte, so that all places are taken by some who have spoken.
    #[test]
    fn a_peer_is_let_in_among_strangers_that_speak() {
        let listener = crate::server_process::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut reception = Reception::new(2);
        let (mut strangers, mut all) = (Vec::new(), 1);
        let mut come = |reception: &mut Reception<Plain>, peer: &mut Option<TcpStream>| {
            for number in 0..3 * AT_ONCE {
                if number == AT_ONCE + 1 && peer.is_none() {
                    let mut caller = TcpStream::connect(address).unwrap();
                    caller.write_all(b"hello").unwrap();
                    *peer = Some(caller);
                    all += 1;
                }
                let mut stranger = TcpStream::connect(address).unwrap();
                stranger.write_all(b"?").unwrap();
                strangers.push(stranger);
                all += 1;
            }
            let mut turns = 0..3;
            until(|| {
                let is_last = turns.next().is_none();
                reception.accept(&listener, |line| Ok(Plain(line)));
                for guest in reception.values_mut() {
                    let mut said = [0; 8];
                    // The first word of a peer is answered.
                    if let Ok(Some(5)) = guest.0.read(&mut said) {
                        guest.0.write(b"who?").unwrap();
                    }
                }
                is_last && reception.newest() == all
            });
        };
        come(&mut reception, &mut Some(TcpStream::connect(address).unwrap()));
        let mut peer = None;
        for _ in 0..3 {
            come(&mut reception, &mut peer);
        }
        let mut peer = peer.unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 4];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"who?");
        assert!(reception.iter().any(|(_, guest)| guest.line().answered));
        assert!(reception.ids().len() <= 2 + STRANGERS + 2 * AT_ONCE);
    }
}

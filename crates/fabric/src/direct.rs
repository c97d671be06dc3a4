//! Connections of this rank's own to ranks of other nodes: messages then pass no mover ([`resurgo_wire::direct`]).
//!
//! Each channel has a connection, which its sender makes. The sender writes its log to it, as it does for every receiver, and sends
//! what stands there. The receiver writes that into its node's copy of the log, and reads it there, as it reads every log. Which of a
//! channel's bytes are taken from where is the affair of the movers; whatever goes wrong here, they carry the channel.
//!
//! Connections are no part of an image.

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

use crate::clock::{monotonic_ns, timespec};
use crate::node::Node;
use crate::socket::{self, Socket};
use incoming::{Incoming, Took};
use resurgo_wire::direct::{Word, from_words};
use resurgo_wire::handshake::{Doorkeeper, Heard, Server};
use resurgo_wire::mesh::{Frame, LONGEST_PAUSE, TCP_RTO_MAX_MS, TRIES};
use resurgo_wire::node_memory::{arena, control};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

pub use outgoing::Outgoing;

/// Accepted connections whose peers have not proved who they are: of more, the rank closes the oldest.
const MOST_STRANGERS: usize = 64;
/// A caller must prove within this time who it is.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Reads of open connections between two checks for new callers.
const LOOKS: u32 = 64;
/// Up to this number, the rank reads each connection to find new data; of more, it asks the kernel which have some.
const FEW: usize = 2;
/// Events that the rank takes from the kernel at a time.
const EVENTS: usize = 64;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const STRANGER: u64 = 1 << 32;
/// The kernel takes more of what this rank sends.
const ROOM: u64 = 1 << 33;

fn last_error() -> io::Error {
    io::Error::last_os_error()
}

/// Without this, small messages wait for one another. One congestion control of the kernel's makes each connection slow where the
/// network is near: the usual one does not. After a cut, what was on its way arrives within a second (Linux 6.15).
fn make_fast(socket: &Socket) {
    let (on, pause, tries) = (1i32, LONGEST_PAUSE, TRIES);
    let mut name = [0u8; 16];
    let mut length = name.len() as libc::socklen_t;
    let (fd, tcp) = (socket.descriptor(), libc::IPPROTO_TCP);
    // SAFETY: options of the own socket, read from and written to memory of the given lengths. Failing changes nothing.
    unsafe {
        libc::setsockopt(fd, tcp, libc::TCP_NODELAY, (&raw const on).cast(), 4);
        libc::getsockopt(fd, tcp, libc::TCP_CONGESTION, name.as_mut_ptr().cast(), &mut length);
        if name.starts_with(b"bbr") {
            libc::setsockopt(fd, tcp, libc::TCP_CONGESTION, b"cubic".as_ptr().cast(), 5);
        }
        if libc::setsockopt(fd, tcp, TCP_RTO_MAX_MS, (&raw const pause).cast(), 4) == 0 {
            libc::setsockopt(fd, tcp, libc::TCP_USER_TIMEOUT, (&raw const tries).cast(), 4);
        }
    }
}

/// An address as the kernel has it, and its length.
fn raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: plain numbers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            // SAFETY: room for every kind of address.
            let raw = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            raw.sin_family = libc::AF_INET as u16;
            raw.sin_port = address.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: room for every kind of address.
            let raw = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            raw.sin6_family = libc::AF_INET6 as u16;
            raw.sin6_port = address.port().to_be();
            raw.sin6_addr.s6_addr = address.ip().octets();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

/// A socket for such addresses that never blocks, out of the program's way.
fn tcp(address: IpAddr) -> io::Result<Socket> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a socket.
    let socket = Socket::made(unsafe { libc::socket(family, kind, 0) })?;
    socket.out_of_the_way().map_err(|_| last_error())
}

/// Where ranks of other nodes call, and the port.
fn listen(address: IpAddr) -> io::Result<(Socket, u16)> {
    let socket = tcp(address)?;
    let fd = socket.descriptor();
    let (mut name, mut length) = raw(SocketAddr::new(address, 0));
    // SAFETY: names of the given lengths; the kernel writes the own one to where there is room for it.
    let failed = unsafe {
        libc::bind(fd, (&raw const name).cast(), length) != 0
            || libc::listen(fd, 256) != 0
            || libc::getsockname(fd, (&raw mut name).cast(), &mut length) != 0
    };
    if failed {
        return Err(last_error());
    }
    // The port is at the same place in both kinds of names.
    // SAFETY: the kernel has written such a name.
    let port = unsafe { (*(&raw const name).cast::<libc::sockaddr_in>()).sin_port };
    Ok((socket, u16::from_be(port)))
}

/// A socket with a name of the kernel's choice, which wakes this rank: its five hexadecimal digits as a number.
fn bell() -> io::Result<(Socket, u64)> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a socket.
    let socket = Socket::made(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    let socket = socket.out_of_the_way().map_err(|_| last_error())?;
    // SAFETY: plain numbers.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    let mut length = size_of::<libc::sa_family_t>() as libc::socklen_t;
    // SAFETY: a name of the given length; the kernel writes the one that it has chosen to where there is room for it.
    let failed = unsafe {
        libc::bind(socket.descriptor(), (&raw const name).cast(), length) != 0 || {
            length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            libc::getsockname(socket.descriptor(), (&raw mut name).cast(), &mut length) != 0
        }
    };
    if failed {
        return Err(last_error());
    }
    let digits = name.sun_path[1..6].iter().map(|digit| *digit as u8 as char);
    let number = u64::from_str_radix(&digits.collect::<String>(), 16).map_err(io::Error::other)?;
    Ok((socket, number))
}

/// An accepted connection whose peer has not yet said who it is.
struct Stranger {
    number: u32,
    called_ns: u64,
    socket: Socket,
    doorkeeper: Doorkeeper,
    input: Vec<u8>,
}

/// The rank's connections, except those on which it sends: its logs have these.
pub struct Direct {
    epoll: Socket,
    bell: Socket,
    listener: Socket,
    strangers: Vec<Stranger>,
    next_stranger: u32,
    /// Per source, and those that there are.
    incoming: Vec<Option<Box<Incoming>>>,
    sources: Vec<u32>,
    looks: u32,
}

impl Direct {
    /// Begins to listen, if ranks of this job may have connections of their own and the system gives what that needs: without, the movers
    /// carry all.
    pub fn open(node: &Node) -> Option<Box<Direct>> {
        let direct = if node.is_direct() {
            Self::try_open(node)
        } else {
            return None;
        };
        let (direct, port, name) = direct.ok()?;
        node.bell.store(direct.bell.descriptor(), Ordering::Relaxed);
        node.control(node.rank, control::BELL).store(name, Ordering::SeqCst);
        node.own(arena::DOOR).store(port.into(), Ordering::SeqCst);
        (0..node.ranks())
            .filter(|rank| node.is_elsewhere(*rank))
            .for_each(|rank| crate::doorbell::show(node, rank));
        Some(Box::new(direct))
    }

    fn try_open(node: &Node) -> io::Result<(Direct, u16, u64)> {
        // SAFETY: makes a descriptor.
        let epoll = Socket::made(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let epoll = epoll.out_of_the_way().map_err(|_| last_error())?;
        let (bell, name) = bell()?;
        let (listener, port) = listen(from_words(node.address()))?;
        let direct = Direct {
            epoll,
            bell,
            listener,
            strangers: Vec::new(),
            next_stranger: 0,
            incoming: (0..node.size).map(|_| None).collect(),
            sources: Vec::new(),
            looks: 0,
        };
        direct.watch(&direct.bell, BELL, 0)?;
        direct.watch(&direct.listener, LISTENER, 0)?;
        Ok((direct, port, name))
    }

    /// The processor on which the kernel has dealt with what came last from `source`: where that runs on this machine, its own.
    pub fn processor_of(&self, source: usize) -> Option<u32> {
        self.incoming[source].as_ref()?.socket.incoming_processor()
    }

    fn watch(&self, socket: &Socket, token: u64, how: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | how) as u32,
            u64: token,
        };
        // SAFETY: two own descriptors.
        match unsafe {
            libc::epoll_ctl(
                self.epoll.descriptor(),
                libc::EPOLL_CTL_ADD,
                socket.descriptor(),
                &mut event,
            )
        } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// In a process that has woken up: these were the sockets of the one that its image is of.
    pub fn abandon(self) {
        [self.epoll, self.bell, self.listener]
            .into_iter()
            .for_each(Socket::abandon);
        self.strangers
            .into_iter()
            .for_each(|stranger| stranger.socket.abandon());
        let incoming = self.incoming.into_iter().flatten();
        incoming.for_each(|incoming| incoming.socket.abandon());
    }

    /// All its descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let strangers = self.strangers.iter().map(|stranger| stranger.socket.descriptor());
        let incoming = self.incoming.iter().flatten();
        [&self.epoll, &self.bell, &self.listener]
            .map(Socket::descriptor)
            .into_iter()
            .chain(strangers)
            .chain(incoming.map(|incoming| incoming.socket.descriptor()))
    }

    /// Takes what has come, without waiting; calls `news` with each source whose log goes on. True: there was something.
    #[inline]
    pub fn receive(&mut self, node: &Node, mut news: impl FnMut(usize)) -> bool {
        self.looks += 1;
        if self.sources.len() > FEW || self.looks >= LOOKS {
            self.looks = 0;
            self.hear(node, 0);
        }
        let mut moved = false;
        let mut place = 0;
        while let Some(source) = self.sources.get(place) {
            let source = *source as usize;
            place += 1;
            let Some(incoming) = &mut self.incoming[source] else {
                continue;
            };
            if !incoming.may_have && self.sources.len() > FEW {
                continue;
            }
            match incoming.receive(node, source) {
                Took::Nothing => {}
                Took::Entries => {
                    moved = true;
                    news(source);
                }
                Took::End => {
                    // Something may have come before that.
                    news(source);
                    self.incoming[source] = None;
                    place -= 1;
                    self.sources.remove(place);
                }
            }
        }
        moved
    }

    /// Waits at most this long for something to read. Then it accepts callers and notes the connections with data.
    #[cold]
    fn hear(&mut self, node: &Node, nanoseconds: u64) {
        // SAFETY: plain numbers.
        let mut events: [libc::epoll_event; EVENTS] = unsafe { std::mem::zeroed() };
        let timeout = timespec(nanoseconds);
        // SAFETY: the kernel writes at most so many events.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.descriptor(),
                events.as_mut_ptr(),
                EVENTS,
                &timeout,
                0,
                0,
            )
        };
        for event in &events[..count.max(0) as usize] {
            let token = event.u64;
            match token {
                ROOM => {}
                LISTENER => self.accept(node),
                BELL => while matches!(self.bell.receive(&mut [0; 8]), Ok(Some(_))) {},
                STRANGER.. => self.greet(node, token as u32),
                _ => {
                    if let Some(incoming) = &mut self.incoming[token as usize] {
                        incoming.may_have = true;
                    }
                }
            }
        }
        if !self.strangers.is_empty() {
            // What they have said so far has been heard, however long this rank had not looked.
            let now = monotonic_ns();
            self.strangers.retain(|stranger| now - stranger.called_ns < PATIENCE_NS);
        }
    }

    /// Wakes this rank once when the kernel takes more on a connection on which it sends.
    pub fn wake_for_room(&self, socket: i32) {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLOUT | libc::EPOLLONESHOT) as u32,
            u64: ROOM,
        };
        // SAFETY: two own descriptors.
        unsafe {
            let mut control = |what| libc::epoll_ctl(self.epoll.descriptor(), what, socket, &mut event);
            if control(libc::EPOLL_CTL_MOD) != 0 {
                // It is new. Where that fails the rank wakes up by itself.
                control(libc::EPOLL_CTL_ADD);
            }
        }
    }

    /// Sleeps until another rank rings, something comes, `nanoseconds` have passed, or `ready` says after the announcement that there is
    /// something to do after all.
    pub fn sleep(&mut self, node: &Node, nanoseconds: u64, ready: impl FnOnce() -> bool) {
        crate::doorbell::sleep_at_sockets(node, ready, |node| self.hear(node, nanoseconds));
    }

    fn accept(&mut self, node: &Node) {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: nobody wants to know the address.
        while let Ok(socket) = Socket::made(unsafe {
            libc::accept4(
                self.listener.descriptor(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        }) {
            let (Ok(socket), Ok(nonce)) = (socket.out_of_the_way(), socket::nonce()) else {
                return;
            };
            make_fast(&socket);
            let number = self.next_stranger;
            self.next_stranger = number.wrapping_add(1);
            if self.watch(&socket, STRANGER | u64::from(number), 0).is_err() {
                continue;
            }
            if self.strangers.len() >= MOST_STRANGERS {
                self.strangers.remove(0);
            }
            self.strangers.push(Stranger {
                number,
                called_ns: monotonic_ns(),
                socket,
                doorkeeper: Doorkeeper::new(Server::Rank, node.size as u32, 0, node.job_key, nonce),
                input: Vec::new(),
            });
        }
    }

    /// A peer that has not proved who it is says something. Silent peers are left alone.
    fn greet(&mut self, node: &Node, number: u32) {
        let Some(place) = self.strangers.iter().position(|stranger| stranger.number == number) else {
            return;
        };
        let mut stranger = self.strangers.remove(place);
        match stranger.hear() {
            Ok(None) => self.strangers.push(stranger),
            Ok(Some(source)) => {
                let source = source as usize;
                if source < node.ranks() && node.is_elsewhere(source) && node.make_writable(source) {
                    let _ = self.admit(source, stranger);
                }
            }
            Err(()) => {}
        }
    }

    fn admit(&mut self, source: usize, stranger: Stranger) -> io::Result<()> {
        let mut none = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: two own descriptors.
        unsafe {
            libc::epoll_ctl(
                self.epoll.descriptor(),
                libc::EPOLL_CTL_DEL,
                stranger.socket.descriptor(),
                &mut none,
            )
        };
        self.watch(&stranger.socket, source as u64, libc::EPOLLET)?;
        if self.incoming[source].is_none() {
            self.sources.push(source as u32);
        }
        // A sender that makes another connection has given up the one before.
        self.incoming[source] = Some(Box::new(Incoming::new(stranger.socket, &stranger.input)));
        Ok(())
    }
}

impl Stranger {
    /// Which rank it is, once that is proved.
    fn hear(&mut self) -> Result<Option<u32>, ()> {
        let mut bytes = [0u8; 512];
        let Some(got) = self.socket.receive(&mut bytes).map_err(|_| ())? else {
            return Ok(None);
        };
        self.input.extend_from_slice(&bytes[..got]);
        let Some((frame, used)) = Frame::decode(&self.input).map_err(|_| ())? else {
            return Ok(None);
        };
        let Frame::Handshake(word) = frame else { return Err(()) };
        let heard = self.doorkeeper.hear(word).map_err(|_| ())?;
        self.input.drain(..used);
        match heard {
            Heard::Stranger(word) => {
                let mut answer = Vec::new();
                Frame::Handshake(word).encode(&mut answer);
                // So few bytes always find room.
                let sent = self.socket.send(&answer).map_err(|_| ())?;
                (sent == Some(answer.len())).then_some(None).ok_or(())
            }
            Heard::Proved(visitor) => Ok(Some(visitor.rank)),
        }
    }
}

/// This rank has no connections, whatever a former life has said of its own.
pub fn begin_life(node: &Node) {
    if node.is_direct() {
        for other in (0..node.ranks()).filter(|other| node.is_elsewhere(*other)) {
            node.direct(other, Word::Offer).store(0, Ordering::SeqCst);
        }
    }
}

/// Numbers that no connection of this rank has had before.
fn next_offer() -> u64 {
    monotonic_ns()
}

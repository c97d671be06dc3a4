//! Ranks of an encrypted job and its servers on other machines: a rank connects to a socket of its own machine, and a thread of the agent
//! carries what it says on, encrypted.
//!
//! Ranks and servers prove themselves to each other through the tunnel, as they do without one. What breaks at one end breaks at the other.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::services::{Service, Services};

use crate::server_process::listen;
use crate::stream::{Stream, Tls, is_passing};

/// Bytes of one direction that are on their way at most.
const ROOM: usize = 64 << 10;
/// Pause after a connection could not be accepted or made (out of file descriptors).
const PAUSE: Duration = Duration::from_millis(50);

/// Opens a tunnel to each server. The servers as ranks of this node reach them; the tunnels last as long as the process.
///
/// # Errors
/// A socket or the thread cannot be made.
pub fn open(services: &Services, tls: Tls) -> io::Result<Services> {
    let mut doors = Vec::new();
    let mut near = Services::default();
    for service in services.iter() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into())?;
        near.push(Service {
            address: listener.local_addr()?,
            is_tunnel: true,
            ..*service
        });
        doors.push((listener, service.address));
    }
    if !doors.is_empty() {
        let tunnels = Tunnels {
            doors,
            tls,
            pairs: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("tunnels".to_string());
        thread.spawn(|| tunnels.run())?;
    }
    Ok(near)
}

struct Tunnels {
    /// Where ranks connect, each with the server to which it leads.
    doors: Vec<(TcpListener, SocketAddr)>,
    tls: Tls,
    pairs: Vec<Pair>,
}

impl Tunnels {
    fn run(mut self) {
        loop {
            let doors = self.doors.iter();
            let mut ready: Vec<PollFd> = doors
                .map(|(door, _)| PollFd::new(door.as_fd(), PollFlags::POLLIN))
                .collect();
            ready.extend(self.pairs.iter().flat_map(Pair::polls));
            if let Err(error) = poll(&mut ready, PollTimeout::NONE)
                && error != nix::errno::Errno::EINTR
            {
                std::thread::sleep(PAUSE);
                continue;
            }
            let is_ready: Vec<bool> = ready.iter().map(|ready| ready.any().unwrap_or(true)).collect();
            let (doors, pairs) = is_ready.split_at(self.doors.len());
            let mut pairs = pairs.chunks(2).map(|ends| ends.iter().any(|ready| *ready));
            self.pairs
                .retain_mut(|pair| !pairs.next().unwrap_or(true) || pair.exchange().unwrap_or(false));
            for (door, is_ready) in doors.iter().enumerate() {
                if *is_ready && self.accept(door).is_err() {
                    // Who waits there is let in later.
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Lets in all who wait at a door.
    fn accept(&mut self, door: usize) -> io::Result<()> {
        let (listener, server) = &self.doors[door];
        loop {
            match listener.accept() {
                Ok((near, _)) => self.pairs.push(Pair::new(near, *server, &self.tls)?),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The two connections of one tunnel.
struct Pair {
    near: Stream,
    far: Stream,
    out: Flow,
    back: Flow,
}

impl Pair {
    fn new(near: TcpStream, server: SocketAddr, tls: &Tls) -> io::Result<Pair> {
        near.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        Ok(Pair {
            near: Stream::called(near, None)?,
            far: Stream::call(server, Some(tls))?,
            out: Flow::default(),
            back: Flow::default(),
        })
    }

    fn polls(&self) -> [PollFd<'_>; 2] {
        let flags = |stream: &Stream, comes: &Flow, goes: &Flow| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, comes.takes());
            flags.set(PollFlags::POLLOUT, goes.has() || stream.owes());
            flags
        };
        [
            PollFd::new(self.near.as_fd(), flags(&self.near, &self.out, &self.back)),
            PollFd::new(self.far.as_fd(), flags(&self.far, &self.back, &self.out)),
        ]
    }

    /// Carries on what there is, both ways. False: one end has closed, and everything that it had said is at the other.
    fn exchange(&mut self) -> io::Result<bool> {
        while self.out.carry(&mut self.near, &mut self.far)? | self.back.carry(&mut self.far, &mut self.near)? {}
        Ok(!(self.out.is_over(&self.far) || self.back.is_over(&self.near)))
    }
}

/// What goes one way.
#[derive(Default)]
struct Flow {
    bytes: Vec<u8>,
    sent: usize,
    /// The side that speaks has closed.
    has_ended: bool,
}

impl Flow {
    fn has(&self) -> bool {
        self.sent < self.bytes.len()
    }

    fn takes(&self) -> bool {
        !self.has() && !self.has_ended
    }

    fn is_over(&self, to: &Stream) -> bool {
        self.has_ended && !self.has() && !to.owes()
    }

    /// Takes what the one side has said, and hands over what the other takes. Whether that was anything.
    fn carry(&mut self, from: &mut Stream, to: &mut Stream) -> io::Result<bool> {
        let mut has_moved = false;
        if self.takes() {
            self.bytes.resize(ROOM, 0);
            let came = now(from.read(&mut self.bytes))?;
            self.bytes.truncate(came.unwrap_or(0));
            self.sent = 0;
            self.has_ended = came == Some(0);
            has_moved |= came.is_some();
        }
        if self.has()
            && let Some(sent) = now(to.write(&self.bytes[self.sent..]))?
        {
            self.sent += sent;
            has_moved |= sent > 0;
        }
        if to.owes() {
            now(to.flush())?;
        }
        Ok(has_moved)
    }
}

/// None: not now.
fn now<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;

    use resurgo_wire::handshake::Server;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    /// A tunnel, and the socket that listens at its other end.
    fn tunnel(key: [u8; 32]) -> (SocketAddr, TcpListener) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut services = Services::default();
        services.add(Server::EventLogger, server.local_addr().unwrap());
        let near = open(&services, Tls::of(&key).unwrap()).unwrap();
        let service = *near.iter().next().unwrap();
        assert!(service.is_tunnel && service.kind == Server::EventLogger);
        (service.address, server)
    }

    #[test]
    fn bytes_come_out_as_they_went_in_and_so_do_ends() {
        let (near, server) = tunnel(KEY);
        let sent: Vec<u8> = (0..2_000_000u32).flat_map(u32::to_le_bytes).collect();
        let expected = sent.clone();
        let echo = thread::spawn(move || {
            for _ in 0..2 {
                let (socket, _) = server.accept().unwrap();
                let mut stream = Stream::called(socket, Some(&Tls::of(&KEY).unwrap())).unwrap();
                let mut came = vec![0; expected.len()];
                stream.read_exact(&mut came).unwrap();
                assert!(came == expected);
                stream.write_all(&came).unwrap();
                stream.flush().unwrap();
                assert_eq!(
                    stream.read(&mut [0]).unwrap(),
                    0,
                    "the end of the one is the end of the other"
                );
            }
        });
        for _ in 0..2 {
            let mut socket = TcpStream::connect(near).unwrap();
            socket.write_all(&sent).unwrap();
            let mut came = vec![0; sent.len()];
            socket.read_exact(&mut came).unwrap();
            assert!(came == sent);
            socket.shutdown(Shutdown::Both).unwrap();
        }
        echo.join().unwrap();
    }

    #[test]
    fn a_server_that_is_not_there_or_has_another_key_ends_the_connection() {
        let (near, server) = tunnel(KEY);
        let other = thread::spawn(move || {
            let (socket, _) = server.accept().unwrap();
            let mut stream = Stream::called(socket, Some(&Tls::of(&[8; 32]).unwrap())).unwrap();
            stream.read(&mut [0; 8]).is_err()
        });
        for _ in 0..2 {
            let mut socket = TcpStream::connect(near).unwrap();
            socket.write_all(b"hello").unwrap();
            assert_eq!(socket.read(&mut [0; 8]).unwrap_or(0), 0);
        }
        assert!(other.join().unwrap());
    }
}

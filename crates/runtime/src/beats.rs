//! The sockets of [heartbeats as datagrams](resurgo_wire::beats). Where a firewall lets no datagrams pass, or a socket
//! cannot be made, there are only the heartbeats on the agents' connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use resurgo_wire::beats::{BYTES, Beat, NAME_BYTES, Side};
use resurgo_wire::handshake::KEY_BYTES;

/// Datagrams read before other work has its turn.
const AT_ONCE: usize = 256;

/// The dispatcher's socket.
pub struct Heard {
    socket: UdpSocket,
    key: [u8; KEY_BYTES],
}

impl Heard {
    /// Listens at a free port for agents that know this machine by one of these addresses.
    pub fn listen(addresses: &[IpAddr], key: [u8; KEY_BYTES]) -> io::Result<Heard> {
        let socket = match addresses.first() {
            Some(own) if addresses.iter().all(IpAddr::is_loopback) => UdpSocket::bind((*own, 0))?,
            _ => {
                UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Heard { socket, key })
    }

    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The heartbeats that have come, and from where.
    pub fn all(&self) -> Vec<(Beat, SocketAddr)> {
        let beats = (0..AT_ONCE).map_while(|_| receive(&self.socket));
        beats
            .filter_map(|(datagram, from)| Some((Beat::open(&datagram, Side::Agent, &self.key)?, from)))
            .collect()
    }

    pub fn answer(&self, beat: Beat, to: SocketAddr) {
        // What is lost is sent again, as a later one.
        let _ = self.socket.send_to(&beat.sealed(Side::Dispatcher, &self.key), to);
    }
}

/// An agent's socket.
pub struct Sent {
    socket: UdpSocket,
    to: SocketAddr,
    of: [u8; NAME_BYTES],
    key: [u8; KEY_BYTES],
}

impl Sent {
    /// Those of the agent with this name, to the dispatcher.
    pub fn to(to: SocketAddr, of: [u8; NAME_BYTES], key: [u8; KEY_BYTES]) -> io::Result<Sent> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_nonblocking(true)?;
        Ok(Sent { socket, to, of, key })
    }

    pub fn send(&self, number: u64) {
        let beat = Beat { of: self.of, number };
        let _ = self.socket.send_to(&beat.sealed(Side::Agent, &self.key), self.to);
    }

    /// The numbers of those that have been answered. The answers may come from any address of the dispatcher.
    pub fn answered(&self) -> Vec<u64> {
        let answers = (0..AT_ONCE).map_while(|_| receive(&self.socket));
        answers
            .filter_map(|(datagram, _)| Beat::open(&datagram, Side::Dispatcher, &self.key))
            .filter(|beat| beat.of == self.of)
            .map(|beat| beat.number)
            .collect()
    }
}

/// The next datagram; None: there is none now.
fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    // One byte more than there may be, so that a longer datagram shows.
    let mut bytes = [0; BYTES + 1];
    loop {
        match socket.recv_from(&mut bytes) {
            Ok((length, from)) => return Some((bytes[..length].to_vec(), from)),
            // An earlier one found nobody, or a signal came.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => return None,
        }
    }
}

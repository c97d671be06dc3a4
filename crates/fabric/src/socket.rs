//! A connection of this rank to a server of the job.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::IntoRawFd;

/// File descriptors from here on are used, so that the program's own numbers do not depend on how many there are.
const LOWEST_FD: i32 = 64;

/// A rank stands still for an image no longer than this until the servers that it speaks to have all that it has said.
pub const STANDSTILL_NS: u64 = 500_000_000;

/// Closed when it is dropped.
pub struct Socket(i32);

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: the own socket.
        unsafe { libc::close(self.0) };
    }
}

impl Socket {
    /// Its number.
    pub fn descriptor(&self) -> i32 {
        self.0
    }

    /// In a process that has woken up from an image: the socket was that of the process that the image is of, and whatever has
    /// the number now is something else.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// To a server, under any number. It listens as long as the job lasts, so this does not wait.
    pub fn connect(to: SocketAddr) -> io::Result<Socket> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        Ok(Socket(stream.into_raw_fd()))
    }

    /// The same under a number that is out of the program's way; itself where the limit of open files is too low for that.
    pub fn out_of_the_way(self) -> Result<Socket, Socket> {
        // SAFETY: makes a descriptor.
        match unsafe { libc::fcntl(self.0, libc::F_DUPFD_CLOEXEC, LOWEST_FD) } {
            socket if socket < 0 => Err(self),
            socket => Ok(Socket(socket)),
        }
    }

    /// Hands bytes to the kernel; how many it took. None: none now.
    pub fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: sends from the slice.
            let sent = unsafe { libc::send(self.0, bytes.as_ptr().cast(), bytes.len(), flags) };
            if sent >= 0 {
                return Ok(Some(sent as usize));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }

    /// Bytes that the kernel has taken and not transmitted. They are lost with the process when there is something that it has not
    /// received: its end then resets the connection. What is transmitted is at the other end, on this machine.
    pub fn untransmitted(&self) -> usize {
        const SIOCOUTQNSD: libc::Ioctl = 0x894b;
        let mut bytes: i32 = 0;
        // SAFETY: writes the number.
        match unsafe { libc::ioctl(self.0, SIOCOUTQNSD, &raw mut bytes) } {
            0 => bytes as usize,
            _ => 0,
        }
    }

    /// Waits for `nanoseconds`. False: at once, as the connection is broken.
    pub fn lasts(&self, nanoseconds: u64) -> bool {
        self.poll(nanoseconds, 0) & (libc::POLLERR | libc::POLLHUP) == 0
    }

    /// Takes what has come; how many bytes. None: none now. An error too when the other side has closed it.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: receives into the slice.
        match unsafe { libc::recv(self.0, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) } {
            0 => Err(io::Error::other("it closed the connection")),
            got if got > 0 => Ok(Some(got as usize)),
            _ => {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    /// Waits until there is something to read, or room to write if that is wanted; at most so long.
    pub fn wait(&self, nanoseconds: u64, writes: bool) {
        self.poll(nanoseconds, if writes { libc::POLLOUT } else { libc::POLLIN });
    }

    fn poll(&self, nanoseconds: u64, events: i16) -> i16 {
        let mut waiting = libc::pollfd {
            fd: self.0,
            events,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        };
        // SAFETY: polls one descriptor.
        unsafe { libc::ppoll(&mut waiting, 1, &timeout, std::ptr::null()) };
        waiting.revents
    }
}

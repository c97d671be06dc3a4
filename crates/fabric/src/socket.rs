//! A connection of this rank to a server of the job.

use crate::clock::timespec;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::IntoRawFd;

/// File descriptors begin here: the program's own numbers do not depend on how many there are.
const LOWEST_FD: i32 = 64;

/// Sending neither waits nor ends the process.
const HOW: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// How long a rank stands still for an image, at most, until its servers have all that it has sent.
pub const STANDSTILL_NS: u64 = 500_000_000;

/// An unpredictable number for a handshake.
pub fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0u8; 32];
    // SAFETY: fills the array.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        32 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The bytes that the kernel has taken. None: nothing now. A signal makes it `give` again.
#[inline]
fn hand_over(give: impl Fn() -> isize) -> io::Result<Option<usize>> {
    loop {
        let sent = give();
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

/// The meaning of `got`, the kernel's answer to a receive. None: nothing has come.
#[inline]
fn taken(got: isize) -> io::Result<Option<usize>> {
    match got {
        0 => Err(io::Error::other("it closed the connection")),
        1.. => Ok(Some(got as usize)),
        _ => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            }
        }
    }
}

/// Why a connection to a server is of no use any more.
pub enum Broken {
    /// It may be made anew.
    Gone(String),
    /// The server refuses this rank.
    Refused(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Gone(error.to_string())
    }
}

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

    /// In a woken process: the socket belonged to the process of the image, and its number may mean something else now.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// To a server, under any number. It listens as long as the job lasts, so this does not wait.
    pub fn connect(to: SocketAddr) -> io::Result<Socket> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        Ok(Socket(stream.into_raw_fd()))
    }

    /// The same under a number out of the program's way; itself where the limit of open files is too low for that.
    pub fn out_of_the_way(self) -> Result<Socket, Socket> {
        // SAFETY: makes a descriptor.
        match unsafe { libc::fcntl(self.0, libc::F_DUPFD_CLOEXEC, LOWEST_FD) } {
            socket if socket < 0 => Err(self),
            socket => Ok(Socket(socket)),
        }
    }

    /// Hands bytes to the kernel; returns how many it took. None: none now.
    pub fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        // SAFETY: sends from the slice.
        hand_over(|| unsafe { libc::send(self.0, bytes.as_ptr().cast(), bytes.len(), HOW) })
    }

    /// An existing socket.
    pub fn made(descriptor: i32) -> io::Result<Socket> {
        match descriptor {
            0.. => Ok(Socket(descriptor)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Bytes that the kernel has taken and not transmitted. If input is unread when the process ends, they are lost:
    /// the end resets the connection. Transmitted bytes are at the other end, on this machine.
    pub fn untransmitted(&self) -> usize {
        const SIOCOUTQNSD: libc::Ioctl = 0x894b;
        let mut bytes: i32 = 0;
        // SAFETY: writes the number.
        match unsafe { libc::ioctl(self.0, SIOCOUTQNSD, &raw mut bytes) } {
            0 => bytes as usize,
            _ => 0,
        }
    }

    /// Waits for `nanoseconds`. False: returns at once, because the connection is broken.
    pub fn lasts(&self, nanoseconds: u64) -> bool {
        self.poll(nanoseconds, 0) & (libc::POLLERR | libc::POLLHUP) == 0
    }

    /// The other side has closed the connection, or it is broken, and nothing is left to read.
    pub fn has_ended(&self) -> bool {
        let mut byte = 0u8;
        let how = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: looks at one byte.
        let got = unsafe { libc::recv(self.0, (&raw mut byte).cast(), 1, how) };
        got == 0 || got < 0 && io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
    }

    /// The processor on which the kernel has dealt with what came last.
    pub fn incoming_processor(&self) -> Option<u32> {
        let (mut processor, mut length) = (-1i32, size_of::<i32>() as libc::socklen_t);
        let (to, length) = ((&raw mut processor).cast(), &mut length);
        // SAFETY: the kernel writes a number.
        match unsafe { libc::getsockopt(self.0, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, to, length) } {
            0 => u32::try_from(processor).ok(),
            _ => None,
        }
    }

    /// Receives bytes; returns how many. None: none now. Also an error when the other side has closed the connection.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: receives into the slice.
        taken(unsafe { libc::recv(self.0, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) })
    }

    /// Receives bytes into the one place and then the other; returns how many. None: none now. Also an error when the
    /// other side has closed the connection.
    ///
    /// # Safety
    /// There is room for as many bytes at both places.
    #[inline]
    pub unsafe fn receive_at(&self, places: [(*mut u8, usize); 2]) -> io::Result<Option<usize>> {
        let places = places.map(|(base, bytes)| libc::iovec {
            iov_base: base.cast(),
            iov_len: bytes,
        });
        let from = usize::from(places[0].iov_len == 0);
        // SAFETY: an empty message header, whose pieces are set below.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = places[from..].as_ptr().cast_mut();
        message.msg_iovlen = places.len() - from;
        // SAFETY: receives to where the caller says.
        taken(unsafe { libc::recvmsg(self.0, &mut message, libc::MSG_DONTWAIT) })
    }

    /// Hands pieces to the kernel; returns how many bytes it took. None: none now.
    pub fn send_pieces(&self, pieces: &[libc::iovec]) -> io::Result<Option<usize>> {
        // SAFETY: an empty message header, whose pieces are set below.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len();
        // SAFETY: sends from the pieces.
        hand_over(|| unsafe { libc::sendmsg(self.0, &message, HOW) })
    }

    /// Waits for input, or for room to write if that is wanted; at most so long.
    pub fn wait(&self, nanoseconds: u64, writes: bool) {
        self.poll(nanoseconds, if writes { libc::POLLOUT } else { libc::POLLIN });
    }

    fn poll(&self, nanoseconds: u64, events: i16) -> i16 {
        let mut waiting = libc::pollfd {
            fd: self.0,
            events,
            revents: 0,
        };
        let timeout = timespec(nanoseconds);
        // SAFETY: polls one descriptor.
        unsafe { libc::ppoll(&mut waiting, 1, &timeout, std::ptr::null()) };
        waiting.revents
    }
}

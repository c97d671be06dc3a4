//! Datagrams and descriptors to and from the agent.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use resurgo_wire::image::{BYTES, Datagram, Kind, TEXT};
use resurgo_wire::node_memory::IMAGE_FD;

use crate::signal;
use crate::sys::{self, Errno, call};

/// The most descriptors beside one datagram.
pub const DESCRIPTORS: usize = 5;

/// Room for the control message of [`DESCRIPTORS`] descriptors: a header of 16 bytes, and the numbers.
#[repr(C, align(8))]
struct Ancillary {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; DESCRIPTORS + 1],
}

const HEADER: usize = 16;

/// A text without allocation; it cuts what does not fit.
pub struct Text {
    bytes: [u8; TEXT],
    length: usize,
}

impl Text {
    pub fn of(arguments: std::fmt::Arguments) -> Text {
        let mut text = Text {
            bytes: [0; TEXT],
            length: 0,
        };
        let _ = text.write_fmt(arguments);
        text
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("?")
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        let mut take = more.len().min(TEXT - self.length);
        while !more.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.length..self.length + take].copy_from_slice(&more.as_bytes()[..take]);
        self.length += take;
        Ok(())
    }
}

/// Sends one datagram, with descriptors beside it.
pub fn send(socket: i32, datagram: &Datagram, descriptors: &[i32]) -> Result<(), Errno> {
    assert!(
        descriptors.len() <= DESCRIPTORS,
        "at most {DESCRIPTORS} descriptors travel together"
    );
    let (mut bytes, length) = datagram.encode();
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    };
    let mut beside = Ancillary {
        length: HEADER + 4 * descriptors.len(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptors: [-1; DESCRIPTORS + 1],
    };
    beside.descriptors[..descriptors.len()].copy_from_slice(descriptors);
    // SAFETY: an all-zero msghdr is valid; what it points to outlives the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = (&raw mut beside).cast();
            message.msg_controllen = (beside.length + 7) & !7;
        }
        call!(libc::SYS_sendmsg, socket, &raw const message, libc::MSG_NOSIGNAL).map(|_| ())
    }
}

/// One datagram and the descriptors that came with it.
pub struct Received {
    pub datagram: Datagram,
    pub descriptors: [i32; DESCRIPTORS],
    pub count: usize,
}

impl Received {
    /// Closes the descriptors that came with it.
    pub fn close(&self) {
        self.descriptors[..self.count].iter().for_each(|fd| sys::close(*fd));
    }
}

/// Waits for a datagram (or not, with MSG_DONTWAIT in `flags`). None: the other side is gone, or said something that is
/// not in our language.
pub fn receive(socket: i32, flags: i32) -> Result<Option<Received>, Errno> {
    let mut bytes = [0u8; BYTES];
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: BYTES,
    };
    let mut beside = Ancillary {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; DESCRIPTORS + 1],
    };
    // SAFETY: as above.
    let length = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut beside).cast();
        message.msg_controllen = size_of::<Ancillary>();
        loop {
            match call!(
                libc::SYS_recvmsg,
                socket,
                &raw mut message,
                flags | libc::MSG_CMSG_CLOEXEC
            ) {
                Err(libc::EINTR) => {}
                other => break other?,
            }
        }
    };
    let mut descriptors = [-1; DESCRIPTORS];
    let mut count = 0;
    if beside.kind == libc::SCM_RIGHTS && beside.length > HEADER {
        count = ((beside.length - HEADER) / 4).min(DESCRIPTORS);
        descriptors[..count].copy_from_slice(&beside.descriptors[..count]);
    }
    match Datagram::decode(&bytes[..length]) {
        Some(datagram) => Ok(Some(Received {
            datagram,
            descriptors,
            count,
        })),
        None => {
            descriptors[..count].iter().for_each(|fd| sys::close(*fd));
            Ok(None)
        }
    }
}

/// Two ends of a socket for datagrams.
pub fn pair() -> Result<(i32, i32), Errno> {
    let mut ends = [-1i32; 2];
    // SAFETY: writes two numbers.
    unsafe {
        call!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr()
        )?
    };
    Ok((ends[0], ends[1]))
}

/// The agent's end of a socket to a rank or a snapshot. It never blocks.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Two ends; the second is for the other process.
    pub fn pair() -> io::Result<(Socket, OwnedFd)> {
        let (ours, theirs) = pair().map_err(io::Error::from_raw_os_error)?;
        // SAFETY: just made, and nobody else's.
        unsafe { Ok((Socket(OwnedFd::from_raw_fd(ours)), OwnedFd::from_raw_fd(theirs))) }
    }

    /// The socket that this process was given with number `fd`; nothing else here may use it.
    pub fn inherited(fd: i32) -> Socket {
        // SAFETY: a number that does not belong to a socket makes all calls fail.
        unsafe { Socket(OwnedFd::from_raw_fd(fd)) }
    }

    pub fn send(&self, datagram: &Datagram, beside: &[BorrowedFd]) -> io::Result<()> {
        let mut descriptors = [-1; DESCRIPTORS];
        for (place, fd) in descriptors.iter_mut().zip(beside) {
            *place = fd.as_raw_fd();
        }
        send(self.0.as_raw_fd(), datagram, &descriptors[..beside.len()]).map_err(io::Error::from_raw_os_error)
    }

    /// The next datagram and the descriptors beside it. WouldBlock: there is none; UnexpectedEof: the other side is
    /// gone.
    pub fn receive(&self) -> io::Result<(Datagram, Vec<OwnedFd>)> {
        let received = receive(self.0.as_raw_fd(), libc::MSG_DONTWAIT).map_err(io::Error::from_raw_os_error)?;
        let Some(received) = received else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let beside = received.descriptors[..received.count].iter();
        // SAFETY: the kernel has just put them into this process's table.
        let beside = beside.map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
        Ok((received.datagram, beside.collect()))
    }
}

/// A socket that another process made.
impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Socket {
        Socket(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tells the agent that this rank's message log has grown by so many bytes, and whether room `is_scarce`. Images of the
/// job's ranks would let the log forget.
pub fn log_grows(bytes: u64, is_scarce: bool) {
    let _ = send(
        IMAGE_FD,
        &Datagram::new(Kind::LogGrows, bytes, u64::from(is_scarce), 0),
        &[],
    );
}

/// Tells the agent that an image of this process is wanted now.
pub fn wants_image() {
    let _ = send(IMAGE_FD, &Datagram::new(Kind::WantsImage, 0, 0, 0), &[]);
}

/// Tells the agent to keep off the node what this rank has noted of files. `asked`: which of the rank's times it waits
/// for that; 0: it does not. The error number says why it does not hear that.
pub fn keep_notes(asked: u64) -> Result<(), i32> {
    send(IMAGE_FD, &Datagram::new(Kind::Notes, asked, 0, 0), &[])
}

/// The agent's side: asks process `pid` for an image. It sends `request` together with what the main thread is doing,
/// and then the signal.
pub fn ask(pid: i32, socket: &Socket, request: Datagram, beside: &[BorrowedFd]) -> io::Result<()> {
    // A wrapper, whose child is the program, would never answer: it does not catch the signal.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if caught.is_some_and(|mask| mask >> (crate::SIGNAL - 1) & 1 == 0) {
        return Err(io::Error::other(
            "the process that was started is a wrapper, and the program its child",
        ));
    }
    // With this, the process can start an interrupted system call again.
    let doing = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    socket.send(&request.with_text(doing.trim_end()), beside)?;
    signal::send(pid, pid).map_err(|errno| {
        // The process finds the request with the next signal, and must not take it for that signal's.
        if request.kind == Kind::Checkpoint {
            let _ = socket.send(&Datagram::new(Kind::Abandon, request.a, 0, 0), &[]);
        }
        io::Error::from_raw_os_error(errno)
    })
}

/// What the agent says about image `number`.
pub fn receive_answer(number: u64) -> Option<Kind> {
    loop {
        let answer = receive(IMAGE_FD, 0).ok()??;
        if answer.datagram.a == number {
            return Some(answer.datagram.kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_and_descriptors_arrive() {
        let (a, b) = pair().unwrap();
        let said = Datagram::new(Kind::Taken, 1, 2, 3).with_text("hello");
        send(a, &said, &[]).unwrap();
        send(a, &said, &[0]).unwrap();
        let first = receive(b, 0).unwrap().unwrap();
        assert!(first.datagram == said && first.count == 0);
        let second = receive(b, 0).unwrap().unwrap();
        assert!(second.datagram == said && second.count == 1 && second.descriptors[0] > 2);
        sys::close(second.descriptors[0]);
        assert_eq!(receive(b, libc::MSG_DONTWAIT).err(), Some(libc::EAGAIN));
        sys::close(a);
        assert!(receive(b, 0).unwrap().is_none());
        sys::close(b);
    }
}

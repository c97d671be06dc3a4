//! Datagrams and descriptors to and from the agent.

use resurgo_wire::image::{BYTES, Datagram};

use crate::sys::{self, Errno, call};

/// Most descriptors beside one datagram.
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

/// Sends one datagram, with a descriptor beside it.
pub fn send(socket: i32, datagram: &Datagram, descriptor: Option<i32>) -> Result<(), Errno> {
    let (mut bytes, length) = datagram.encode();
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    };
    let mut beside = Ancillary {
        length: HEADER + 4,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptors: [descriptor.unwrap_or(-1); DESCRIPTORS + 1],
    };
    // SAFETY: an all-zero msghdr is valid; what it points to outlives the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if descriptor.is_some() {
            message.msg_control = (&raw mut beside).cast();
            message.msg_controllen = HEADER + 8;
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

/// Waits for a datagram (or not, with MSG_DONTWAIT in `flags`). None: the other side is gone, or has said something that
/// is none of ours.
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

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::image::Kind;

    #[test]
    fn datagrams_and_descriptors_arrive() {
        let (a, b) = pair().unwrap();
        let said = Datagram::new(Kind::Taken, 1, 2, 3).with_text("hello");
        send(a, &said, None).unwrap();
        send(a, &said, Some(0)).unwrap();
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

//! The pace at which images are sent.
//!
//! The kernel spaces the packets of a connection (SO_MAX_PACING_RATE, which needs no rights). Otherwise a stream fills
//! the queue of a slow link, and the program's messages wait behind it. On 1 Gbit, two processes that compute 0.5 ms
//! and exchange 16 KiB are 2.8 times as slow beside a stream. Beside a stream with half the link they are as fast as
//! without one. On a fast link the stream costs processor time instead: 200 MB/s take less than a tenth of a core on
//! either side.

use std::fs::read_to_string;
use std::net::{IpAddr, TcpStream};

use nix::libc;
use nix::sys::socket::SetSockOpt;
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

use crate::interfaces;

sockopt_impl!(MaxPacingRate, Both, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, usize);

/// Bytes in a second, where the link is fast.
const MOST: usize = 200_000_000;
/// Where the link's speed is unknown: half of 1 Gbit/s.
const UNKNOWN: usize = 60_000_000;
/// No limit.
const FREE: usize = usize::MAX;

/// The most a stream may use of the link, in bytes per second: half of its speed.
fn of_link(own: IpAddr) -> usize {
    if own.is_loopback() {
        return MOST;
    }
    let interface = interfaces::all()
        .into_iter()
        .flatten()
        .find(|interface| interface.ip == own);
    let speed = interface.and_then(|interface| {
        let path = format!("/sys/class/net/{}/speed", interface.name);
        read_to_string(path).ok()?.trim().parse::<i64>().ok()
    });
    from_speed(speed)
}

/// `speed`: in Mbit/s, from the kernel; below 1: unknown.
fn from_speed(speed: Option<i64>) -> usize {
    match speed {
        Some(speed @ 1..) => (speed as usize * 1_000_000 / 8 / 2).min(MOST),
        _ => UNKNOWN,
    }
}

/// Sets the pace of one of so many streams while images of `waiting` later numbers wait: each of them doubles it. With
/// more than two, images come faster than the stream can send them, and there is no limit. `wanted`: what the user has
/// given to all of them together, which they never exceed.
pub fn set(stream: &TcpStream, wanted: Option<usize>, waiting: usize, streams: usize) {
    let usual = || stream.local_addr().map_or(UNKNOWN, |address| of_link(address.ip()));
    let rate = match (wanted, waiting) {
        (Some(wanted), _) => (wanted / streams.max(1)).max(1),
        (None, 0..=2) => (usual() / streams.max(1)) << waiting,
        (None, _) => FREE,
    };
    // If the kernel refuses, the stream is too fast.
    let _ = MaxPacingRate.set(stream, &rate);
}

/// An image that a life waits for has no limit.
pub fn set_free(stream: &TcpStream) {
    let _ = MaxPacingRate.set(stream, &FREE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use nix::sys::socket::GetSockOpt;

    #[test]
    fn a_stream_takes_half_of_its_link() {
        assert_eq!(from_speed(Some(1000)), 62_500_000);
        assert_eq!(from_speed(Some(100_000)), MOST);
        assert_eq!((from_speed(Some(-1)), from_speed(None)), (UNKNOWN, UNKNOWN));
        assert_eq!(of_link([127, 0, 0, 1].into()), MOST);
        assert_eq!(of_link([203, 0, 113, 1].into()), UNKNOWN, "an address of nobody here");
    }

    // `struct tcp_info` of the kernel, as far as its pacing rate and the limit to it.
    sockopt_impl!(Info, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, [u64; 15]);

    #[test]
    fn the_kernel_keeps_to_the_pace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        // The pace while 2 MB pass, and its limit.
        let paces = || {
            std::thread::scope(|scope| {
                scope.spawn(|| (&other).read_exact(&mut vec![0; 2_000_000]).unwrap());
                (&one).write_all(&vec![1; 2_000_000]).unwrap();
            });
            let info = Info.get(&one).unwrap();
            (info[13], info[14])
        };
        let free = paces();
        for (wanted, waiting, streams, rate) in [
            (None, 0, 8, MOST / 8),
            (None, 1, 8, MOST / 4),
            (None, 2, 8, MOST / 2),
            (None, 0, 50, MOST / 50),
            (Some(MOST / 4), 3, 2, MOST / 8),
        ] {
            set(&one, wanted, waiting, streams);
            assert_eq!(MaxPacingRate.get(&one).unwrap(), rate);
            let (pace, limit) = paces();
            assert!(
                pace <= rate as u64 && limit == rate as u64,
                "{pace} and {limit} where {rate} is the most"
            );
        }
        set(&one, None, 3, 1);
        assert_eq!(paces().1, u64::MAX);
        set(&one, None, 0, 1);
        set_free(&one);
        assert_eq!((free.1, paces().1), (u64::MAX, u64::MAX));
    }
}

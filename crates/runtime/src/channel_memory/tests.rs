use std::io::{Read, Write};
use std::net::TcpStream;

use resurgo_protocol::channel_memory::Admission;
use resurgo_wire::channel_memory::{Envelope, Frame, Greeting, Identity, Input, Output};
use resurgo_wire::handshake::Word;

use super::*;
use crate::sys::PATIENCE;

pub(crate) const KEY: [u8; 32] = [42; 32];

/// A channel memory in a thread of this process.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    control: UnixStream,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

impl Running {
    pub(crate) fn start(bound: u64) -> Running {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (control, theirs) = UnixStream::pair().unwrap();
        let settings = Settings {
            size: 4,
            key: KEY,
            is_encrypted: false,
            acknowledges: true,
            bound,
            spills: false,
        };
        let mut server = Server {
            store: Store::new(bound, None),
            settings,
            listener,
            connections: Reception::new(4),
        };
        let thread = Some(std::thread::spawn(move || server.serve(&theirs)));
        Running {
            address,
            control,
            thread,
        }
    }

    pub(crate) fn end(&mut self) -> Result<(), String> {
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    input: Input,
}

impl Peer {
    fn connect(server: &Running) -> Peer {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer {
            stream,
            input: Input::default(),
        }
    }

    fn join(server: &Running, rank: Rank, incarnation: u64, key: [u8; 32]) -> Result<(Peer, Admission), String> {
        Peer::join_behind(server, rank, incarnation, 0, key)
    }

    /// Joins as a life that begins from an image with so many deliveries.
    fn join_behind(
        server: &Running,
        rank: Rank,
        incarnation: u64,
        delivered: u64,
        key: [u8; 32],
    ) -> Result<(Peer, Admission), String> {
        let mut peer = Peer::connect(server);
        let mut output = Output::default();
        let identity = Identity {
            rank,
            size: 4,
            incarnation,
            delivered,
            key,
            nonce: [7; 32],
        };
        let greeting = Greeting::begin(identity, &mut output);
        loop {
            peer.stream
                .write_all(output.bytes())
                .map_err(|error| error.to_string())?;
            output.sent(output.bytes().len());
            let admission =
                peer.hear(|frame| greeting.hear(frame, &mut output).map_err(|error| error.to_string()))??;
            if let Some(admission) = admission {
                return Ok((peer, admission));
            }
        }
    }

    pub(crate) fn joined(server: &Running, rank: Rank, incarnation: u64) -> (Peer, Admission) {
        Peer::join(server, rank, incarnation, KEY).unwrap()
    }

    pub(crate) fn say(&mut self, frames: &[Frame]) {
        let mut output = Output::default();
        frames.iter().for_each(|frame| output.push(frame));
        self.stream.write_all(output.bytes()).unwrap();
    }

    /// Hands the next frame to `with`.
    pub(crate) fn hear<T>(&mut self, with: impl FnOnce(Frame) -> T) -> Result<T, String> {
        loop {
            // Look twice: the borrowed frame must not be kept across the read.
            if self.input.peek().map_err(|error| error.to_string())? {
                let frame = self.input.frame().map_err(|error| error.to_string())?;
                return Ok(with(frame.unwrap()));
            }
            let came = self
                .stream
                .read(self.input.room(4096))
                .map_err(|error| error.to_string())?;
            if came == 0 {
                return Err("closed".to_string());
            }
            self.input.came(came);
        }
    }

    fn served(&mut self) -> (Rank, Option<u64>, Vec<u8>) {
        self.hear(|frame| match frame {
            Frame::Served {
                source, polls, bytes, ..
            } => (source, polls, bytes.to_vec()),
            frame => panic!("a {} frame", frame.name()),
        })
        .unwrap()
    }
}

fn message(destination: Rank, ssn: u64, bytes: &[u8]) -> Frame<'_> {
    Frame::Message {
        destination,
        ssn,
        envelope: Envelope {
            kind: 1,
            flags: 0,
            tag: 0,
            data: 0,
            total: bytes.len() as u64,
        },
        unset: Default::default(),
        bytes,
    }
}

#[test]
fn a_later_life_is_served_again_and_hears_what_the_former_one_said_last() {
    let server = Running::start(1 << 20);
    let (mut first, admission) = Peer::joined(&server, 1, 1);
    assert_eq!((admission.reported, admission.received), (0, vec![]));
    let (mut other, _) = Peer::joined(&server, 0, 1);
    first.say(&[message(0, 1, b"one"), message(0, 2, b"two")]);
    assert_eq!(other.served(), (1, None, b"one".to_vec()));
    assert_eq!(other.served(), (1, None, b"two".to_vec()));
    other.say(&[Frame::Report { rclock: 1, polls: 9 }]);
    let reported = other.hear(|frame| matches!(frame, Frame::Reported { rclock: 1 }));
    assert_eq!(reported, Ok(true));
    // Said at the last moment; then the process is dead.
    other.say(&[Frame::Report { rclock: 2, polls: 4 }, message(1, 1, b"three")]);
    drop(other);
    let (mut again, admission) = Peer::joined(&server, 0, 2);
    assert_eq!((admission.reported, admission.received), (2, vec![(1, 1)]));
    assert_eq!(again.served(), (1, Some(9), b"one".to_vec()));
    assert_eq!(again.served(), (1, Some(4), b"two".to_vec()));
    assert_eq!(first.served(), (0, None, b"three".to_vec()));
    again.say(&[message(1, 1, b"threw"), Frame::Sync]);
    let differs = again.hear(|frame| match frame {
        Frame::Differs { difference, ssn, .. } => format!("{ssn} {difference:?}"),
        frame => frame.name().to_string(),
    });
    assert_eq!(differs.as_deref(), Ok("1 Content(4)"));
    assert_eq!(again.hear(|frame| frame.name()), Ok("Synced"));
}

#[test]
fn a_life_that_begins_from_an_image_is_served_what_comes_after_it() {
    let server = Running::start(1 << 20);
    let (mut sender, _) = Peer::joined(&server, 1, 1);
    let (mut first, _) = Peer::joined(&server, 0, 1);
    for (ssn, text) in (1..).zip([b"one", b"two", b"six"]) {
        sender.say(&[message(0, ssn, text)]);
        first.served();
    }
    first.say(&[1, 2, 3].map(|rclock| Frame::Report { rclock, polls: rclock }));
    first.say(&[Frame::Forget { rclock: 1 }]);
    drop(first);
    let (mut again, admission) = Peer::join_behind(&server, 0, 2, 2, KEY).unwrap();
    assert_eq!(admission.reported, 3);
    assert_eq!(again.served(), (1, Some(3), b"six".to_vec()));
    // A life cannot begin from what is forgotten, and a rank cannot forget what it has not been served.
    let beginning = Peer::join(&server, 0, 3, KEY).map(|_| ()).unwrap_err();
    assert!(beginning.contains("1 of its deliveries are forgotten"), "{beginning}");
    let (mut third, _) = Peer::join_behind(&server, 0, 4, 1, KEY).unwrap();
    assert_eq!(third.served(), (1, Some(2), b"two".to_vec()));
    assert_eq!(third.served(), (1, Some(3), b"six".to_vec()));
    third.say(&[Frame::Forget { rclock: 4 }]);
    let reason = third.hear(|frame| match frame {
        Frame::Handshake(Word::Refused { reason }) => reason,
        frame => frame.name().to_string(),
    });
    assert!(reason.is_ok_and(|reason| reason.contains("first 4 deliveries")));
}

#[test]
fn one_that_does_not_read_stops_nobody() {
    let server = Running::start(1 << 30);
    let (_slow, _) = Peer::joined(&server, 2, 1);
    let (mut sender, _) = Peer::joined(&server, 0, 1);
    let (mut other, _) = Peer::joined(&server, 1, 1);
    let much = vec![7; 100_000];
    for ssn in 1..=300 {
        sender.say(&[message(2, ssn, &much)]);
        sender.say(&[message(1, ssn, &ssn.to_le_bytes())]);
        assert_eq!(other.served(), (0, None, ssn.to_le_bytes().to_vec()));
    }
}

#[test]
fn strangers_and_nonsense_disturb_nobody() {
    let server = Running::start(1 << 20);
    let (mut one, _) = Peer::joined(&server, 0, 3);
    assert!(Peer::join(&server, 1, 1, [1; 32]).is_err(), "another key");
    assert!(Peer::join(&server, 4, 1, KEY).is_err(), "no rank of this job");
    let superseded = Peer::join(&server, 0, 3, KEY).map(|_| ()).unwrap_err();
    assert!(superseded.contains("after life 3"), "{superseded}");
    let mut stranger = Peer::connect(&server);
    stranger.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(stranger.hear(|_| ()).is_ok(), "it is told why");
    let (mut bad, _) = Peer::joined(&server, 1, 1);
    bad.say(&[message(0, 5, b"too early")]);
    let reason = bad.hear(|frame| match frame {
        Frame::Handshake(Word::Refused { reason }) => reason,
        frame => frame.name().to_string(),
    });
    assert!(reason.is_ok_and(|reason| reason.contains("message 5")));
    // No life has replaced the one that is left of rank 0.
    let (mut two, _) = Peer::joined(&server, 2, 1);
    two.say(&[message(0, 1, b"still here")]);
    assert_eq!(one.served(), (2, None, b"still here".to_vec()));
}

#[test]
fn one_that_is_full_ends_with_the_reason() {
    let mut server = Running::start(1 << 20);
    let (mut sender, _) = Peer::joined(&server, 0, 1);
    let much = vec![7; 100_000];
    (1..=11).for_each(|ssn| sender.say(&[message(1, ssn, &much)]));
    let end = server.thread.take().unwrap().join().unwrap();
    assert!(end.is_err_and(|reason| reason.contains("it is full (1 MiB")));
}

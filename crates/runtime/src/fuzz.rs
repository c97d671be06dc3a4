//! Every protocol with bytes that are nearly right: valid ones, changed, cut off, repeated and appended to one another.
//! No process panics or asks for memory without bound, and servers keep serving honest clients.
//!
//! `FUZZ=N SEED=N cargo test -p resurgo-runtime fuzz` makes N inputs for each of them; a few without.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use resurgo_pmi::{LineBuffer, MAX_LINE, Server};
use resurgo_wire::channel_memory as memory;
use resurgo_wire::console::{Reply, Request};
use resurgo_wire::control::{FrameBuffer, Message, Stream, ToAgent, ToDispatcher};
use resurgo_wire::event_logger as logger;
use resurgo_wire::handshake::Word;
use resurgo_wire::image::{Datagram, Kind};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

struct Random(u64);

impl Random {
    fn of(what: u64) -> Random {
        Random(number("SEED", 7) << 8 | what)
    }

    fn next(&mut self) -> u64 {
        resurgo_protocol::random::splitmix(&mut self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Some of `valid`, in any order, changed in a few places or not at all.
    fn input(&mut self, valid: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..=self.below(4) {
            bytes.extend_from_slice(&valid[self.below(valid.len())]);
        }
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            match self.below(7) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 if at + 8 <= bytes.len() => {
                    let word = [u64::MAX, u64::from(u32::MAX), 1 << 63, 1 << 31, self.next()][self.below(5)];
                    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                4 => bytes.extend_from_within(at..),
                5 => (0..self.below(64)).for_each(|_| bytes.push(self.0 as u8 ^ bytes.len() as u8)),
                _ => drop(bytes.drain(..at)),
            }
        }
        bytes
    }
}

fn framed<M: Message>(messages: &[M]) -> Vec<Vec<u8>> {
    let each = |message: &M| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    messages.iter().map(each).collect()
}

/// Reads all messages of a connection until it is refused.
fn hear<M: Message>(input: &[u8]) {
    let mut buffer = FrameBuffer::default();
    buffer.extend(input);
    while let Ok(Some(_)) = buffer.next_message::<M>() {}
}

fn logger_frames() -> Vec<Vec<u8>> {
    let frames = [
        logger::Frame::Handshake(Word::Refused {
            reason: "why".to_string(),
        }),
        logger::Frame::Ack { rclock: 7 },
    ];
    let each = |frame: &logger::Frame| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    };
    let mut all: Vec<Vec<u8>> = frames.iter().map(each).collect();
    // Of every kind, with any fields.
    all.extend((0u8..24).flat_map(|kind| {
        [0usize, 8, 12, 40, 100].map(|fields| {
            let mut bytes = (1 + fields as u32).to_le_bytes().to_vec();
            bytes.push(kind);
            bytes.resize(5 + fields, kind);
            bytes
        })
    }));
    all
}

fn memory_frames() -> Vec<Vec<u8>> {
    let envelope = memory::Envelope {
        kind: 1,
        flags: 0,
        tag: 7,
        data: 0,
        total: 4,
    };
    let message = |ssn, total| memory::Frame::Message {
        destination: 2,
        ssn,
        envelope: memory::Envelope { total, ..envelope },
        unset: Default::default(),
        bytes: b"abcd",
    };
    let frames = [
        message(1, 4),
        message(2, 4),
        message(3, u64::MAX),
        memory::Frame::Piece { bytes: b"more" },
        memory::Frame::Report { rclock: 1, polls: 3 },
        memory::Frame::Forget { rclock: 1 },
        memory::Frame::Sync,
        memory::Frame::Reported { rclock: 9 },
    ];
    let each = |frame: &memory::Frame| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    };
    frames.iter().map(each).collect()
}

#[test]
fn fuzz_frames_of_every_protocol() {
    let mut random = Random::of(1);
    let (rank, life) = (1, 2);
    let agent = framed(&[
        ToAgent::Stdin {
            life,
            bytes: b"text".to_vec(),
        },
        ToAgent::Answer {
            rank,
            life,
            lines: b"cmd=maxes\n".to_vec(),
        },
        ToAgent::Do(resurgo_protocol::Command::Halt),
    ]);
    let dispatcher = framed(&[
        ToDispatcher::StdinWanted { life },
        ToDispatcher::Failed {
            reason: "why".to_string(),
        },
        ToDispatcher::Said {
            rank,
            life,
            lines: b"cmd=init\n".to_vec(),
        },
        ToDispatcher::Output {
            rank,
            life,
            stream: Stream::Stderr,
            repeated: true,
            bytes: b"text".to_vec(),
        },
    ]);
    let console = framed(&[
        Request::Status,
        Request::Losses,
        Request::Output { after: 7 },
        Request::Checkpoint,
        Request::Suspend,
        Request::Kill,
    ]);
    let replies = framed(&[Reply::Done("x".to_string()), Reply::Refused("\u{1b}[2J".to_string())]);
    let datagrams: Vec<Vec<u8>> = [Kind::Checkpoint, Kind::Stopped, Kind::Go]
        .map(|kind| {
            let (bytes, length) = Datagram::new(kind, 1, 2, 3).with_text("text").encode();
            bytes[..length].to_vec()
        })
        .into();
    let (logger_frames, memory_frames) = (logger_frames(), memory_frames());
    for _ in 0..number("FUZZ", 20_000) {
        hear::<ToAgent>(&random.input(&agent));
        hear::<ToDispatcher>(&random.input(&dispatcher));
        hear::<Request>(&random.input(&console));
        hear::<Reply>(&random.input(&replies));
        if let Some(datagram) = Datagram::decode(&random.input(&datagrams)) {
            assert!(datagram.text().len() <= resurgo_wire::image::TEXT);
        }
        let input = random.input(&logger_frames);
        let mut rest = &input[..];
        while let Ok(Some((_, used))) = logger::Frame::decode(rest) {
            rest = &rest[used..];
        }
        let input = random.input(&memory_frames);
        let mut rest = &input[..];
        while let Ok(Some((_, used))) = memory::Frame::decode(rest) {
            rest = &rest[used..];
        }
    }
}

#[test]
fn fuzz_lines_of_pmi() {
    let mut random = Random::of(2);
    let valid: Vec<Vec<u8>> = [
        "cmd=init pmi_version=1 pmi_subversion=1\n",
        "cmd=get_maxes\n",
        "cmd=put kvsname=k key=a value=b\n",
        "cmd=get kvsname=k key=a\n",
        "cmd=barrier_in\n",
        "cmd=publish_name service=s port=p\n",
        "cmd=unpublish_name service=s\n",
        "cmd=abort exitcode=3\n",
        "mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=1\nspawnssofar=1\nargcnt=0\npreput_num=0\ninfo_num=0\nendcmd\n",
        "cmd=finalize\n",
    ]
    .map(|line| line.as_bytes().to_vec())
    .into();
    for _ in 0..number("FUZZ", 5_000) {
        let mut server = Server::new("job", vec![0, 0]);
        let mut lines = LineBuffer::default();
        lines.extend(&random.input(&valid));
        while let Some(command) = lines.next_command() {
            let (answers, _) = match &command {
                Ok(command) => server.command(0, command),
                Err(error) => server.malformed(0, error),
            };
            assert!(answers.iter().all(|answer| answer.line.len() < 2 * MAX_LINE));
        }
    }
}

/// A stranger sends `input` and reads the answers.
fn stranger(address: SocketAddr, input: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let _ = stream.write_all(input);
    let _ = stream.read(&mut [0; 256]);
}

#[test]
fn fuzz_an_event_logger() {
    use crate::event_logger::EventLoggerServer;
    use crate::event_logger::tests::{ANY_PORT, KEY, Peer, identity, records};
    let server = EventLoggerServer::start(ANY_PORT, 4, KEY).unwrap();
    let address = (std::net::Ipv4Addr::LOCALHOST, server.port()).into();
    let (mut random, valid) = (Random::of(3), logger_frames());
    let mut honest = Peer::admitted(&server, identity(1, 1, Some(0)));
    let mut logged = 0;
    for round in 0..number("FUZZ", 300) {
        stranger(address, &random.input(&valid));
        // A rank with the key that sends nonsense.
        let mut mad = Peer::admitted(&server, identity(2, round + 1, None));
        let _ = mad.stream.write_all(&random.input(&valid));
        if round % 16 == 0 {
            assert_eq!(honest.log(logged + 1, &records(1)), Ok(logged + 1));
            logged += 1;
        }
    }
    drop(honest);
    let mut next = Peer::admitted(&server, identity(1, 2, None));
    assert_eq!(next.query().map(|records| records.len() as u64), Ok(logged));
}

#[test]
fn fuzz_a_channel_memory() {
    use crate::channel_memory::tests::{Peer, Running};
    let mut server = Running::start(1 << 20);
    let (mut random, valid) = (Random::of(4), memory_frames());
    let (mut honest, _) = Peer::joined(&server, 1, 1);
    for round in 0..number("FUZZ", 300) {
        stranger(server.address, &random.input(&valid));
        let (mut mad, _) = Peer::joined(&server, 3, round + 1);
        let _ = mad.stream.write_all(&random.input(&valid));
        if round % 16 == 0 {
            honest.say(&[memory::Frame::Sync]);
            // Such ranks may have sent it messages.
            while honest.hear(|frame| frame.name().to_string()).unwrap() != "Synced" {}
        }
    }
    assert_eq!(server.end(), Ok(()));
}

//! The control connection between the dispatcher and an agent: what is said. How it is framed is in `frames.rs`.
//!
//! The connection keeps the order of messages. [`ToDispatcher::Began`] and [`ToDispatcher::AtImage`] are marks in it: what a
//! life prints and says comes behind the first, and what it had printed and said by an image before the second.

mod frames;
mod job;
pub mod join;
mod link;
mod nodes;

use std::ffi::OsString;
use std::net::SocketAddr;

use resurgo_protocol::coordinator::Former;
pub use resurgo_protocol::policy::End;
use resurgo_protocol::{Command, Fact};
use serde::{Deserialize, Serialize};

use crate::counters::{Cost, Costs, Sizes};
use crate::replica::Offer;
use frames::frame;
pub use frames::{FrameBuffer, FrameError, MAX_FRAME, Message, first_message};
pub(crate) use frames::{from_json, json};
pub use job::{Addresses, Grouping, ImageFiles, Job, Program, Stdin, WantedProgram, appnums, protocol_number};
pub use link::{AGENT, Alike, Arrival, INVITED, Invitation, JobDirectory, KEPT, LONGEST_INVITATION, Preemption, Sight};
pub use nodes::{MOST_NODES, Nodes};

/// Which of a rank's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        }
    }
}

/// Counters of one life of a rank, as it left them in the node memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LifeStatistics {
    pub phase: u32,
    pub deliveries: u64,
    pub delivered_bytes: u64,
    pub replay_deliveries: u64,
    /// Nanoseconds since the agent was told to begin the life, 0: not yet. So are the next three.
    pub first_delivery_ns: u64,
    pub caught_up_ns: u64,
    pub replayed_ns: u64,
    pub collected_ns: u64,
    /// How long it took to find out what it has to repeat.
    pub collecting_ns: u64,
    /// What it has sent.
    pub sizes: Sizes,
    /// Of all lives.
    pub costs: Costs,
}

impl LifeStatistics {
    /// Messages sent.
    pub fn sends(&self) -> u64 {
        self.sizes.iter().map(|[messages, _]| messages).sum()
    }

    /// Payload bytes sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sizes.iter().map(|[_, bytes]| bytes).sum()
    }

    pub fn cost(&self, cost: Cost) -> u64 {
        self.costs[cost as usize]
    }
}

/// The end of one life of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub rank: usize,
    pub life: u64,
    /// The coordinator's number of the life.
    pub asked: u64,
    /// The coordinator has ended it.
    pub by_order: bool,
    /// As programs should, and not by order.
    pub orderly: bool,
    pub pid: i32,
    pub end: End,
    /// It had spoken to PMI (`init`) in this life.
    pub initialised: bool,
    /// It had said `finalize` in this life.
    pub finalised: bool,
    /// There is no MPI in its program.
    pub is_plain: bool,
    pub statistics: LifeStatistics,
    /// Why it ended itself, when it exited with [`crate::node_memory::EXIT_REPORT`] or
    /// [`crate::node_memory::EXIT_DIVERGED`].
    pub report: Option<String>,
    /// As far as is known, every rank can be replayed.
    pub repeats: bool,
    /// Nanoseconds from the injected fault that struck it until the agent saw its end; none: it died of something else, and nobody
    /// knows when.
    pub unnoticed_ns: Option<u64>,
    /// Nanoseconds from then until nothing was left of the life, and this was said.
    pub ending_ns: u64,
}

impl Ended {
    /// As shells have it.
    pub fn exit_code(&self) -> i32 {
        self.end.exit_code()
    }

    /// It has found that it does not repeat what a former life did.
    pub fn diverged(&self) -> bool {
        self.end == End::Exited(crate::node_memory::EXIT_DIVERGED) && self.report.is_some()
    }
}

/// Dispatcher to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// This is the job. Its ranks begin by commands.
    Launch(Box<Job>),
    /// The coordinator wants this to be done. What doing it shows is told ([`ToDispatcher::Fact`]).
    Do(Command),
    /// The next life of the rank kills itself after so many sends and deliveries; 0: it does not.
    FaultAt { rank: usize, messages: u64 },
    /// Tell how much log each rank's image would free; answered by [`ToDispatcher::LogsMeasured`].
    MeasureLogs,
    /// Kill a rank (fault injection).
    Kill { rank: usize },
    /// Rank `by` has spawned these programs: they are a world of their own, with the next free numbers. Their ranks begin by commands.
    Spawn {
        by: usize,
        programs: Vec<Program>,
        /// As [`Job::message_faults`].
        message_faults: Vec<(usize, u64)>,
    },
    /// All ranks have been halted: write everything that they need to go on into a file. `about` is the dispatcher's part of
    /// it, and `input` leads to the standard input so far. Answered by [`ToDispatcher::Suspended`] or
    /// [`ToDispatcher::NotSuspended`].
    Suspend {
        about: serde_json::Value,
        input: Option<OsString>,
    },
    /// Answers [`ToDispatcher::WaveInFiles`]: `about` is the dispatcher's part of what is written down of the wave, and `input` leads
    /// to the standard input, of which so many bytes belong to it. Answered by [`ToDispatcher::Recorded`] or
    /// [`ToDispatcher::NotRecorded`].
    Record {
        about: serde_json::Value,
        input: Option<(OsString, u64)>,
    },
    /// Instead of [`ToAgent::Launch`]: go on with the job whose file `id` lies in `directory`. The standard input so far is put into
    /// `input`.
    Resume {
        job: Box<Job>,
        directory: OsString,
        id: String,
        input: Option<OsString>,
    },
    /// The same for an agent of one of several nodes: `ranks` is what the agents had told of them ([`ToDispatcher::State`]).
    GoOn { job: Box<Job>, ranks: serde_json::Value },
    /// All ranks have been halted: tell what is to be written down of those of this node. Answered by [`ToDispatcher::State`].
    TellState,
    /// The dispatcher of several nodes has written down this wave, or could not. If it has, files since wave `oldest` stay.
    RecordEnded { number: u64, oldest: u64, is_written: bool },
    /// Another node has written this image where all nodes see it.
    Shared(Offer),
    /// Send a signal to all ranks that run.
    Signal { number: i32 },
    /// End everything: SIGKILL to what has not ended after the grace period; answered by [`ToDispatcher::Stopped`].
    End {
        grace_ms: u64,
        /// The program has come to its end, good or bad: nothing is left that could be resumed.
        finished: bool,
    },
    /// Standard input for this life of rank 0.
    #[serde(skip)]
    Stdin { life: u64, bytes: Vec<u8> },
    /// There is no more of it.
    StdinEnd { life: u64 },
    /// What PMI answers to this life of a rank: whole lines.
    #[serde(skip)]
    Answer { rank: usize, life: u64, lines: Vec<u8> },
    /// A piece of what was in transit in the wave, before the command to put it into the memory.
    #[serde(skip)]
    InTransit { number: u64, is_last: bool, bytes: Vec<u8> },
    /// So many bytes of output have been taken off the dispatcher's hands; the agent may send as many more.
    OutputTaken {
        bytes: u64,
        /// The same for what was counted as repeated.
        repeated: u64,
    },
    /// A node is lost: ranks will be in these places. None runs, and the memories of all nodes are emptied next.
    Places(Nodes),
    /// The job does not take this node: why.
    Refused { reason: String },
    /// These are the nodes of the job now: one has come. Where ranks are stays as it is.
    Known {
        mesh: Vec<Vec<SocketAddr>>,
        copies: Vec<u16>,
    },
    /// Tell which of these nodes can be reached, each at one of its addresses. Answered by [`ToDispatcher::Reached`], before there is a job.
    Reach { nodes: Vec<Vec<SocketAddr>> },
    /// Answers [`ToDispatcher::Beat`] of this number.
    Beat { number: u64 },
    /// An injected fault: all of the node ends at once, as if its machine were lost.
    Fall,
    /// Whether this life has yet to print again what former ones printed, on each stream. Told after [`ToDispatcher::Began`] of
    /// every life but the first, and when it changes.
    Repeats { rank: usize, life: u64, output: [bool; 2] },
    /// Answers [`ToDispatcher::AtImage`]: the image counts, and `account` is what its file says of where the rank was; or without one, the
    /// rank was in the middle of a command to PMI, and no life can begin from the image.
    Accounted {
        rank: usize,
        image: u64,
        account: Option<serde_json::Value>,
    },
}

impl ToAgent {
    /// The rank that it is about, where its node alone has to know.
    pub fn rank(&self) -> Option<usize> {
        match self {
            ToAgent::FaultAt { rank, .. }
            | ToAgent::Kill { rank }
            | ToAgent::Answer { rank, .. }
            | ToAgent::Repeats { rank, .. }
            | ToAgent::Accounted { rank, .. } => Some(*rank),
            ToAgent::Stdin { .. } | ToAgent::StdinEnd { .. } => Some(0),
            _ => None,
        }
    }
}

/// Agent to dispatcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToDispatcher {
    /// An agent of another node is there, and is like this one or not.
    Arrived(Arrival),
    /// The machine of this node is about to be taken away.
    Preempted {
        reason: String,
    },
    /// Answers [`ToAgent::Reach`]: why a node cannot be reached, of each that cannot.
    Reached {
        why_not: Vec<Option<String>>,
    },
    /// The agent of another node lives. Answered by [`ToAgent::Beat`].
    Beat {
        number: u64,
    },
    /// A life begins from image `image`, 0: the beginning of its program. All that former lives printed and said has been sent.
    Began {
        rank: usize,
        life: u64,
        image: u64,
        /// It repeats the messages of former lives.
        repeats: bool,
    },
    /// Something has happened, or been done, that the coordinator has to know.
    Fact(Fact),
    /// What a life of a rank says to PMI: whole lines.
    #[serde(skip)]
    Said {
        rank: usize,
        life: u64,
        lines: Vec<u8>,
    },
    /// The rank stands still for image `image`. All that it has printed and said has been sent. Answered by
    /// [`ToAgent::Accounted`].
    AtImage {
        rank: usize,
        life: u64,
        image: u64,
        /// Bytes of standard input that the life has read.
        read: u64,
        /// Bytes of PMI's answers that have been given to the life; none: it is in the middle of a line.
        heard: Option<u64>,
        /// The images of the rank that a life may still begin from.
        kept: Vec<u64>,
    },
    /// The life is live, and for some time has printed nothing although it waits for its output to have been repeated.
    OutputAwaited {
        rank: usize,
        life: u64,
    },
    Started {
        rank: usize,
        life: u64,
        pid: i32,
        /// The image it has begun from, 0: the beginning of its program.
        image: u64,
        /// The image was a file, not a sleeping process.
        from_file: bool,
        /// It begins together with all of its unit.
        together: bool,
        /// Nanoseconds from when the agent was told to begin it until it could run, and this was said.
        beginning_ns: u64,
    },
    /// The job cannot be run on this node; nothing is left running.
    Failed {
        reason: String,
    },
    /// A life could not be started, and the agent starts no other.
    NotStarted {
        rank: usize,
        reason: String,
    },
    /// The suspended job is ours. Of each rank, what the coordinator has to know; and the waves of which what was in transit is in a file.
    Resumed {
        ranks: Vec<Former>,
        transit: Vec<u64>,
    },
    /// Somebody else has resumed the suspended job before us; nothing has been done.
    ResumedElsewhere {
        reason: String,
    },
    Ended(Ended),
    /// A later life of the rank has repeated all it could and makes new deliveries.
    CaughtUp {
        rank: usize,
        life: u64,
        statistics: LifeStatistics,
    },
    /// The message log of the rank has grown by so many bytes: images of all ranks would let it forget.
    LogGrows {
        rank: usize,
        bytes: u64,
        is_scarce: bool,
    },
    /// Of each rank, about how many bytes of log others keep for it that an image taken now would not need.
    LogsMeasured {
        bytes: Vec<u64>,
    },
    /// The rank has made as many messages as it was to have an image at.
    ImageWanted {
        rank: usize,
    },
    /// An image of the rank is in a file of `bytes` bytes, of which `written` had to be written.
    ImageWritten {
        rank: usize,
        number: u64,
        bytes: u64,
        written: u64,
        write_ns: u64,
    },
    /// All ranks have their images of this wave in files, and what the agent knows of it is noted. What they printed up to the moment
    /// for which the wave is written down has been sent before.
    WaveInFiles {
        number: u64,
    },
    /// On one of several nodes: what is to be written down of its ranks, of this wave or of a suspension. What they printed up to then
    /// has been sent before.
    State {
        wave: Option<u64>,
        ranks: Vec<(usize, serde_json::Value)>,
    },
    /// The image is in a file that all nodes see.
    Shared(Offer),
    /// If this run is lost, the job can be resumed from this wave.
    Recorded {
        number: u64,
        directory: OsString,
        bytes: u64,
    },
    /// It cannot: `reason`. What was written of an earlier wave stands.
    NotRecorded {
        number: u64,
        reason: String,
    },
    /// No rank has a process, and all output has been sent.
    Halted,
    /// The job can be resumed from its files. Nothing of it runs.
    Suspended {
        directory: OsString,
        bytes: u64,
    },
    /// The job could not be suspended.
    NotSuspended {
        reason: String,
    },
    /// A rank that ran before has all of its memory from the file of image `number`.
    MemoryRead {
        rank: usize,
        number: u64,
    },
    /// The name of the rank's program leads to another file than when the job began; that one is executed again.
    ProgramReplaced {
        rank: usize,
        path: OsString,
    },
    /// A rank that is coming to a bad end could not do what a former life had done: what, and why.
    Undone {
        rank: usize,
        text: String,
    },
    /// The rank has an MPI library that does without our provider: which, and what follows.
    Bypassed {
        rank: usize,
        text: String,
    },
    /// A piece of what was in transit in the wave to ranks of this node, if it is one of several.
    #[serde(skip)]
    InTransit {
        number: u64,
        is_last: bool,
        bytes: Vec<u8>,
    },
    /// What a life of a rank has printed.
    #[serde(skip)]
    Output {
        rank: usize,
        life: u64,
        stream: Stream,
        /// It is counted with what is printed again, see [`OUTPUT_WINDOW`].
        repeated: bool,
        bytes: Vec<u8>,
    },
    /// All output of a rank that does not run has been sent.
    OutputEnd {
        rank: usize,
        /// The rank has finished.
        finished: bool,
    },
    /// This life of rank 0 has room for more standard input.
    StdinWanted {
        life: u64,
    },
    /// Nothing of the job is running any more.
    Stopped {
        statistics: Vec<LifeStatistics>,
    },
}

/// Most bytes of output that an agent sends ahead of [`ToAgent::OutputTaken`]; and as many more of streams that repeat what former
/// lives printed. The dispatcher drops those at once, so that no replay waits for a slow reader.
pub const OUTPUT_WINDOW: u64 = 4 << 20;

/// The bits of the stream's byte in a frame of kind 1.
const STREAM: u8 = 1;
const REPEATED: u8 = 2;

/// Takes rank and life off the front of a frame.
fn of_life(frame: &[u8]) -> Option<(usize, u64, &[u8])> {
    let (rank, rest) = frame.split_first_chunk::<4>()?;
    let (life, rest) = rest.split_first_chunk::<8>()?;
    Some((u32::from_le_bytes(*rank) as usize, u64::from_le_bytes(*life), rest))
}

/// Most bytes of what was in transit that are sent at once.
const PIECE: usize = 1 << 20;

/// What was in transit, in pieces of which each can be sent: with whether it is the last.
pub fn pieces(part: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    let last = part.len().div_ceil(PIECE);
    let pieces = part.chunks(PIECE).zip(1..);
    pieces.map(move |(piece, number)| (piece, number == last))
}

/// The frame of what was in transit, and what is in it.
fn in_transit(out: &mut Vec<u8>, number: u64, is_last: bool, bytes: &[u8]) {
    frame(out, 4, &[&number.to_le_bytes(), &[is_last.into()], bytes]);
}

fn of_transit(frame: &[u8]) -> Option<(u64, bool, Vec<u8>)> {
    let (number, rest) = frame.split_first_chunk::<8>()?;
    let (is_last, bytes) = rest.split_first()?;
    Some((u64::from_le_bytes(*number), *is_last != 0, bytes.to_vec()))
}

fn too_short() -> FrameError {
    FrameError::Malformed("it is too short".to_string())
}

impl Message for ToAgent {
    /// A job that is suspended may have much to say about itself.
    const LONGEST: usize = u32::MAX as usize;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ToAgent::Stdin { life, bytes } => frame(out, 2, &[&life.to_le_bytes(), bytes]),
            ToAgent::Answer { rank, life, lines } => {
                frame(out, 3, &[&(*rank as u32).to_le_bytes(), &life.to_le_bytes(), lines]);
            }
            ToAgent::InTransit { number, is_last, bytes } => in_transit(out, *number, *is_last, bytes),
            other => json(out, other),
        }
    }

    fn decode(frame: &[u8]) -> Result<ToAgent, FrameError> {
        match frame.split_first() {
            Some((4, rest)) => {
                let (number, is_last, bytes) = of_transit(rest).ok_or_else(too_short)?;
                Ok(ToAgent::InTransit { number, is_last, bytes })
            }
            Some((2, rest)) => {
                let (life, bytes) = rest.split_first_chunk::<8>().ok_or_else(too_short)?;
                Ok(ToAgent::Stdin {
                    life: u64::from_le_bytes(*life),
                    bytes: bytes.to_vec(),
                })
            }
            Some((3, rest)) => {
                let (rank, life, lines) = of_life(rest).ok_or_else(too_short)?;
                Ok(ToAgent::Answer {
                    rank,
                    life,
                    lines: lines.to_vec(),
                })
            }
            _ => from_json(frame),
        }
    }
}

impl Message for ToDispatcher {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ToDispatcher::Output {
                rank,
                life,
                stream,
                repeated,
                bytes,
            } => {
                let how = *stream as u8 | if *repeated { REPEATED } else { 0 };
                frame(
                    out,
                    1,
                    &[&(*rank as u32).to_le_bytes(), &life.to_le_bytes(), &[how], bytes],
                );
            }
            ToDispatcher::Said { rank, life, lines } => {
                frame(out, 3, &[&(*rank as u32).to_le_bytes(), &life.to_le_bytes(), lines]);
            }
            ToDispatcher::InTransit { number, is_last, bytes } => in_transit(out, *number, *is_last, bytes),
            other => json(out, other),
        }
    }

    fn decode(frame: &[u8]) -> Result<ToDispatcher, FrameError> {
        match frame.split_first() {
            Some((4, rest)) => {
                let (number, is_last, bytes) = of_transit(rest).ok_or_else(too_short)?;
                Ok(ToDispatcher::InTransit { number, is_last, bytes })
            }
            Some((1, rest)) => {
                let (rank, life, rest) = of_life(rest).ok_or_else(too_short)?;
                let (how, bytes) = rest.split_first().ok_or_else(too_short)?;
                Ok(ToDispatcher::Output {
                    rank,
                    life,
                    stream: Stream::ALL[usize::from(how & STREAM)],
                    repeated: how & REPEATED != 0,
                    bytes: bytes.to_vec(),
                })
            }
            Some((3, rest)) => {
                let (rank, life, lines) = of_life(rest).ok_or_else(too_short)?;
                Ok(ToDispatcher::Said {
                    rank,
                    life,
                    lines: lines.to_vec(),
                })
            }
            _ => from_json(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_in_any_pieces() {
        let sent = vec![
            ToDispatcher::Started {
                rank: 3,
                life: 2,
                pid: 77,
                image: 4,
                from_file: true,
                together: false,
                beginning_ns: u64::MAX,
            },
            ToDispatcher::Output {
                rank: 70000,
                life: 1 << 40,
                stream: Stream::Stderr,
                repeated: true,
                bytes: vec![0, 255, 10],
            },
            ToDispatcher::Said {
                rank: 1,
                life: 2,
                lines: b"cmd=init\n".to_vec(),
            },
            ToDispatcher::Output {
                rank: 0,
                life: 1,
                stream: Stream::Stdout,
                repeated: false,
                bytes: Vec::new(),
            },
            ToDispatcher::Fact(Fact::Copied {
                rank: 3,
                number: 2,
                sleeps: true,
                stood: std::time::Duration::from_nanos(1_000_000_001),
            }),
            ToDispatcher::Stopped {
                statistics: vec![LifeStatistics::default()],
            },
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|message| message.encode(&mut bytes));
        for piece in [1, 7, bytes.len()] {
            let mut buffer = FrameBuffer::default();
            let mut got = Vec::new();
            for part in bytes.chunks(piece) {
                buffer.extend(part);
                while let Some(message) = buffer.next_message::<ToDispatcher>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut buffer = FrameBuffer::default();
        buffer.extend(&[255, 255, 255, 255, 0]);
        let message = buffer.next_message::<ToDispatcher>();
        assert!(matches!(message, Err(FrameError::TooLong(_))));
        let mut buffer = FrameBuffer::default();
        buffer.extend(&[3, 0, 0, 0, 0, b'{', b'x']);
        assert!(matches!(
            buffer.next_message::<ToAgent>(),
            Err(FrameError::Malformed(_))
        ));
        for frame in [&[0, 0, 0, 0][..], &[3, 0, 0, 0, 1, 0, 0], &[3, 0, 0, 0, 3, 0, 0]] {
            let mut buffer = FrameBuffer::default();
            buffer.extend(frame);
            assert!(buffer.next_message::<ToDispatcher>().is_err(), "{frame:?}");
            let mut buffer = FrameBuffer::default();
            buffer.extend(frame);
            assert!(buffer.next_message::<ToAgent>().is_err(), "{frame:?}");
        }
    }
}

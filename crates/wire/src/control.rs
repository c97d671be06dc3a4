//! The messages on the control connection between the dispatcher and an agent. `frames.rs` has their frames.
//!
//! The connection keeps the order of messages. [`ToDispatcher::Began`] and [`ToDispatcher::AtImage`] are marks in it.
//! What a life prints and says comes behind the first; what it printed and said before an image comes before the
//! second.

mod frames;
mod job;
pub mod join;
mod link;
mod lives;
mod nodes;

use std::ffi::OsString;
use std::net::SocketAddr;

use resurgo_protocol::coordinator::Former;
pub use resurgo_protocol::policy::End;
use resurgo_protocol::survivors::{News, Said};
use resurgo_protocol::{Command, Fact};
use serde::{Deserialize, Serialize};

use crate::node_memory::EVENT_BYTES;
use crate::replica::Offer;
use crate::trace::Piece as TracePiece;
use frames::frame;
pub use frames::{FrameBuffer, FrameError, MAX_FRAME, Message, first_message};
pub(crate) use frames::{from_json, json};
pub use job::{
    Addresses, Flush, Grouping, ImageFiles, Job, Program, Secret, Stdin, Trace, WantedProgram, appnums, protocol_number,
};
pub use link::{
    AGENT, Alike, Arrival, Errand, HELPER, INVITED, Invitation, JobDirectory, KEPT, LONGEST_INVITATION, Limit, Piece,
    Preemption, STORE_SERVER, Serve, Sight, StoreErrand, StoreTold, Told,
};
pub use lives::{Ended, FileNotes, LifeStatistics, LongestTurns, Seen, Undo};
pub use nodes::{MOST_NODES, Nodes};

/// Most deliveries in one message.
pub const MOST_DELIVERIES: usize = 4096;

/// One of a rank's streams.
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

/// Dispatcher to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The job. Its ranks begin by commands.
    Launch(Box<Job>),
    /// Do what the coordinator wants. The agent tells the result as a fact ([`ToDispatcher::Fact`]).
    Do(Command),
    /// The next life of the rank kills itself after so many sends and deliveries; 0: it does not.
    FaultAt { rank: usize, messages: u64 },
    /// Tell how much log each rank's image would free; answered by [`ToDispatcher::LogsMeasured`].
    MeasureLogs,
    /// Kill a rank (fault injection).
    Kill { rank: usize },
    /// Rank `by` has spawned these programs: they are a world of their own, with the next free numbers. Their ranks
    /// begin by commands.
    Spawn {
        by: usize,
        programs: Vec<Program>,
        /// The node of each of their ranks, where there are several.
        nodes: Vec<u32>,
        /// The failed ranks in whose places these are, one for each; none: they are others.
        replaced: Vec<u32>,
        /// As [`Job::message_faults`].
        message_faults: Vec<(usize, u64)>,
    },
    /// All ranks are halted: write everything that they need to go on into a file. `about` is the dispatcher's part of
    /// it; `input` leads to the standard input so far. Answered by [`ToDispatcher::Suspended`] or
    /// [`ToDispatcher::NotSuspended`].
    Suspend {
        about: serde_json::Value,
        input: Option<OsString>,
    },
    /// Answers [`ToDispatcher::WaveInFiles`]. `about` is the dispatcher's part of the wave's record. `input` leads to
    /// the standard input, and says how many bytes of it belong to the wave. Answered by [`ToDispatcher::Recorded`] or
    /// [`ToDispatcher::NotRecorded`].
    Record {
        about: serde_json::Value,
        input: Option<(OsString, u64)>,
    },
    /// Instead of [`ToAgent::Launch`]: go on with the job whose file `id` lies in `directory`. Put the standard input
    /// so far into `input`.
    Resume {
        job: Box<Job>,
        directory: OsString,
        id: String,
        input: Option<OsString>,
    },
    /// The same for an agent of one of several nodes. `ranks` is what the agents told about them
    /// ([`ToDispatcher::State`]).
    GoOn { job: Box<Job>, ranks: serde_json::Value },
    /// All ranks are halted: tell the state of this node's ranks. Answered by [`ToDispatcher::State`].
    TellState,
    /// Tell what the ranks of this node do now. Answered by [`ToDispatcher::Looked`].
    Look { number: u64 },
    /// The dispatcher of several nodes has written down this wave, or could not. If it has, keep files since wave
    /// `oldest`.
    RecordEnded { number: u64, oldest: u64, is_written: bool },
    /// Another node has written this image into a directory that all nodes see.
    Shared(Offer),
    /// What this rank had noted of files on a node that it has left. Told before any life of it begins here.
    FileNotes { rank: usize, notes: FileNotes },
    /// Answers [`ToDispatcher::FileNotes`].
    FileNotesKept { rank: usize, asked: u64 },
    /// Copy files of recorded waves into a place of the job. Answered by [`ToDispatcher::Flushed`].
    Flush(Flush),
    /// Bring this image back from the places of the job. The result is a fact.
    Fetch(Offer),
    /// Send a signal to all ranks that run.
    Signal { number: i32 },
    /// End everything: after the grace period, send SIGKILL to all processes that still run. Answered by
    /// [`ToDispatcher::Stopped`].
    End {
        grace_ms: u64,
        /// The program has ended, well or badly: nothing is left to resume.
        finished: bool,
    },
    /// Standard input for this life of rank 0.
    #[serde(skip)]
    Stdin { life: u64, bytes: Vec<u8> },
    /// Standard input has ended.
    StdinEnd { life: u64 },
    /// PMI's answers to this life of a rank: whole lines.
    #[serde(skip)]
    Answer { rank: usize, life: u64, lines: Vec<u8> },
    /// A piece of the messages in transit in the wave. The command to put them into the memory follows.
    #[serde(skip)]
    InTransit { number: u64, is_last: bool, bytes: Vec<u8> },
    /// The dispatcher has passed on so many bytes of output; the agent may send as many more.
    OutputTaken {
        bytes: u64,
        /// The same for output that was counted as repeated.
        repeated: u64,
    },
    /// Deliveries on which what ranks have printed depends. [`ToAgent::Places`] follows.
    Deliveries { events: Vec<[u64; EVENT_BYTES / 8]> },
    /// A node is lost: ranks will run in these places. None runs now, and next all nodes' memories are emptied.
    Places(Nodes),
    /// The job does not take this node; the reason.
    Refused { reason: String },
    /// The job's nodes now: one has come. Where ranks run stays as it is.
    Known {
        mesh: Vec<Vec<SocketAddr>>,
        copies: Vec<u16>,
    },
    /// Tell which of these nodes can be reached, each at one of its addresses. Answered by [`ToDispatcher::Reached`],
    /// before there is a job.
    Reach { nodes: Vec<Vec<SocketAddr>> },
    /// Ranks that deal with failures themselves must know this.
    Failures(News),
    /// These ranks have finished, and need not begin again: of those of other nodes a node knows it only from this.
    Ends { ranks: Vec<usize> },
    /// This node is lost with its ranks, and nothing waits for it. Where they begin again, [`ToAgent::Places`] follows.
    NodeLost { node: u32 },
    /// Answers the [`ToDispatcher::Beat`] of this number.
    Beat { number: u64 },
    /// The node leaves the job: its ranks end at once, and then the agent.
    Leave,
    /// All that the agent has said has come, [`ToDispatcher::Stopped`] included: it may end. Only in a traced job: an end
    /// with something unread resets the connection, and what was on its way is lost.
    Farewell,
    /// An injected fault: everything on the node ends at once, as if its machine were lost.
    Fall,
    /// Send what is new of the traces of ranks. Answered by [`ToDispatcher::TraceTime`], behind it.
    Trace {
        /// The dispatcher's CLOCK_MONOTONIC, in nanoseconds.
        asked_ns: u64,
    },
    /// Whether this life still has to repeat output of former lives, on each stream. Told after
    /// [`ToDispatcher::Began`] of every life but the first, and when it changes.
    Repeats { rank: usize, life: u64, output: [bool; 2] },
    /// Answers [`ToDispatcher::AtImage`]. The image counts, and its file says with `account` where the rank was.
    /// Without an account, the rank was in the middle of a command to PMI, and no life can begin from the image.
    Accounted {
        rank: usize,
        image: u64,
        account: Option<serde_json::Value>,
    },
}

impl ToAgent {
    /// The rank that the message is about, if only its node has to know.
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
    /// The agent of another node is there; says what must be alike.
    Arrived(Arrival),
    /// The machine of this node will soon be taken away.
    Preempted {
        reason: String,
    },
    /// Answers [`ToAgent::Reach`]: for each node that cannot be reached, why not.
    Reached {
        why_not: Vec<Option<String>>,
    },
    /// A server on this node says so, or has ended ([`Serve`]).
    Served {
        server: usize,
        reports: Vec<serde_json::Value>,
        end: Option<End>,
    },
    /// The agent of another node lives. Answered by [`ToAgent::Beat`].
    Beat {
        number: u64,
    },
    /// A life begins from image `image`, 0: the beginning of its program. All output and PMI commands of former lives
    /// have been sent.
    Began {
        rank: usize,
        life: u64,
        image: u64,
        /// It repeats the messages of former lives.
        repeats: bool,
    },
    /// Something has happened, or been done, that the coordinator must know.
    Fact(Fact),
    /// Lines of a life of a rank to PMI, whole.
    #[serde(skip)]
    Said {
        rank: usize,
        life: u64,
        lines: Vec<u8>,
    },
    /// A rank says something about failures.
    Survivor {
        rank: usize,
        said: Said,
    },
    /// All ranks here know the news about failures of this round.
    Knows {
        round: u64,
    },
    /// The rank stands still for image `image`. Everything that it printed and said has been sent. Answered by
    /// [`ToAgent::Accounted`].
    AtImage {
        rank: usize,
        life: u64,
        image: u64,
        /// Bytes of standard input that the life has read.
        read: u64,
        /// Bytes of PMI's answers that the life got. None: it is in the middle of a line.
        heard: Option<u64>,
    },
    /// The life is live, and has printed nothing for some time although its output is still to be repeated.
    OutputAwaited {
        rank: usize,
        life: u64,
    },
    Started {
        rank: usize,
        life: u64,
        pid: i32,
        /// The image that it began from, 0: the beginning of its program.
        image: u64,
        /// The image was a file, not a sleeping process.
        from_file: bool,
        /// It begins together with its whole unit.
        together: bool,
        /// Nanoseconds from the agent's order to begin it until it could run, and this was said.
        beginning_ns: u64,
    },
    /// The job cannot run on this node; nothing of it runs.
    Failed {
        reason: String,
    },
    /// A life could not be started, and the agent starts no other.
    NotStarted {
        rank: usize,
        reason: String,
    },
    /// This run has the suspended job. For each rank, what the coordinator must know; and the waves whose messages in
    /// transit are in a file.
    Resumed {
        ranks: Vec<Former>,
        transit: Vec<u64>,
    },
    /// Another run has resumed the suspended job before this one; nothing was done.
    ResumedElsewhere {
        reason: String,
    },
    Ended(Ended),
    /// A later life of the rank has repeated all that it could, and makes new deliveries.
    CaughtUp {
        rank: usize,
        life: u64,
        statistics: LifeStatistics,
    },
    /// The rank's message log has grown by so many bytes: images of all ranks would let it forget.
    LogGrows {
        rank: usize,
        bytes: u64,
        is_scarce: bool,
    },
    /// For each rank, about how many bytes of others' logs an image taken now would free.
    LogsMeasured {
        bytes: Vec<u64>,
    },
    /// The rank has made as many messages as an image was asked for.
    ImageWanted {
        rank: usize,
    },
    /// What the rank has noted of files since the last such message. It waits if `asked` is not 0.
    FileNotes {
        rank: usize,
        asked: u64,
        notes: FileNotes,
    },
    /// An image of the rank is in a file of `bytes` bytes, of which `written` had to be written.
    ImageWritten {
        rank: usize,
        number: u64,
        bytes: u64,
        written: u64,
        write_ns: u64,
    },
    /// All ranks have their images of this wave in files, and the agent has noted what it knows of the wave. The agent
    /// has already sent their output up to the moment of the wave's record.
    WaveInFiles {
        number: u64,
    },
    /// On one of several nodes: the state of its ranks for this wave, or for a suspension. The agent has already sent
    /// their output up to then.
    State {
        wave: Option<u64>,
        ranks: Vec<(usize, serde_json::Value)>,
    },
    /// Answers the [`ToAgent::Look`] of this number.
    Looked {
        number: u64,
        ranks: Vec<Seen>,
    },
    /// The image is in a file that all nodes see.
    Shared(Offer),
    /// If this run is lost, the job can be resumed from this wave.
    Recorded {
        number: u64,
        directory: OsString,
        bytes: u64,
    },
    /// The wave could not be recorded: `reason`. The record of an earlier wave stands.
    NotRecorded {
        number: u64,
        reason: String,
    },
    /// The node's part of the generation is in the place, or why not.
    Flushed {
        place: usize,
        generation: String,
        sent: Result<serde_json::Value, String>,
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
    /// A rank that already runs now has all of its memory from the file of image `number`.
    MemoryRead {
        rank: usize,
        number: u64,
    },
    /// The node has made the pieces of parity of a set, which have so many bytes together.
    SetEncoded {
        set: u64,
        bytes: u64,
        encode_ns: u64,
    },
    /// The node now holds so many bytes for others: in copies of images, and in pieces of parity.
    Holds {
        images: u64,
        pieces: u64,
    },
    /// The rank's program name leads to another file than when the job began; the old file is executed again.
    ProgramReplaced {
        rank: usize,
        path: OsString,
    },
    /// A rank is failing because it could not repeat what a former life did: what, and why.
    Undone {
        rank: usize,
        text: String,
    },
    /// The user should know this of the rank's MPI library, or of the way in which the rank uses it.
    MpiTrouble {
        rank: usize,
        text: String,
    },
    /// A piece of the messages in transit in the wave to ranks of this node, if it is one of several.
    #[serde(skip)]
    InTransit {
        number: u64,
        is_last: bool,
        bytes: Vec<u8>,
    },
    /// Output of a life of a rank.
    #[serde(skip)]
    Output {
        rank: usize,
        life: u64,
        stream: Stream,
        /// It counts as output that is printed again, see [`OUTPUT_WINDOW`].
        repeated: bool,
        bytes: Vec<u8>,
    },
    /// Deliveries on which depends what follows of what ranks print, as in [`crate::node_memory::event_words`]; and of
    /// some ranks, how many are stable.
    Deliveries {
        /// Of the node's memory: how often all have begun anew, or ranks have changed nodes.
        epoch: u64,
        events: Vec<[u64; EVENT_BYTES / 8]>,
        stable: Vec<(u32, u64)>,
    },
    /// A part of the trace of a rank on this node.
    #[serde(skip)]
    Traced(TracePiece),
    /// Answers [`ToAgent::Trace`], with this node's CLOCK_MONOTONIC.
    TraceTime {
        asked_ns: u64,
        own_ns: u64,
    },
    /// All output of a rank that is not running has been sent.
    OutputEnd {
        rank: usize,
        /// The rank has finished.
        finished: bool,
    },
    /// This life of rank 0 has room for more standard input.
    StdinWanted {
        life: u64,
    },
    /// Nothing of the job runs any more.
    Stopped {
        statistics: Vec<LifeStatistics>,
        turns: LongestTurns,
    },
}

/// The most bytes of output that an agent sends ahead of [`ToAgent::OutputTaken`]. It sends as many more of streams
/// that repeat what former lives printed. The dispatcher drops those at once, so that no replay waits for a slow
/// reader.
pub const OUTPUT_WINDOW: u64 = 4 << 20;

/// Bits of the stream's byte in a frame of kind 1.
const STREAM: u8 = 1;
const REPEATED: u8 = 2;

/// Takes rank and life off the front of a frame.
fn of_life(frame: &[u8]) -> Option<(usize, u64, &[u8])> {
    let (rank, rest) = frame.split_first_chunk::<4>()?;
    let (life, rest) = rest.split_first_chunk::<8>()?;
    Some((u32::from_le_bytes(*rank) as usize, u64::from_le_bytes(*life), rest))
}

/// The most bytes of messages in transit that are sent at once.
const PIECE: usize = 1 << 20;

/// Cuts the messages in transit into pieces that can be sent, each with whether it is the last.
pub fn pieces(part: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    let last = part.len().div_ceil(PIECE);
    let pieces = part.chunks(PIECE).zip(1..);
    pieces.map(move |(piece, number)| (piece, number == last))
}

/// The frame of messages in transit, and its content.
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
    /// A suspended job may have a long description.
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
            ToDispatcher::Traced(piece) => frame(out, 5, &[&piece.head(), &piece.records]),
            other => json(out, other),
        }
    }

    fn decode(frame: &[u8]) -> Result<ToDispatcher, FrameError> {
        match frame.split_first() {
            Some((4, rest)) => {
                let (number, is_last, bytes) = of_transit(rest).ok_or_else(too_short)?;
                Ok(ToDispatcher::InTransit { number, is_last, bytes })
            }
            Some((5, rest)) => TracePiece::of(rest).map(ToDispatcher::Traced).ok_or_else(too_short),
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
            ToDispatcher::Traced(TracePiece {
                rank: 70000,
                first: 1 << 40,
                records: vec![0, 255],
                ..TracePiece::default()
            }),
            ToDispatcher::Stopped {
                statistics: vec![LifeStatistics::default()],
                turns: LongestTurns {
                    agent_ns: 12_000_000,
                    mover_ns: 3,
                },
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

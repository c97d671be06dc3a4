//! The control connection between the dispatcher and an agent: what is said, and how it is framed.
//!
//! ```text
//! u32   bytes that follow, little-endian
//! u8    kind: 0 JSON, 1 output of a rank, 2 standard input for rank 0
//! …     kind 0: the message; kind 1: u32 rank, u8 stream, bytes; kind 2: bytes
//! ```
//!
//! Bytes of the program's own streams are kept out of the JSON: they are the bulk.

use std::ffi::OsString;

use resurgo_protocol::group::Groups;
use resurgo_protocol::{Protocol, kinds};
use serde::{Deserialize, Serialize};

use crate::counters::{Cost, Costs, Sizes};
use crate::node_memory;

/// Longest frame accepted between processes of one job, in bytes.
pub const MAX_FRAME: usize = 64 << 20;

/// Everything an agent has to know about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the key-value space, different for every job on the machine.
    pub name: String,
    /// The programs that are launched; those that ranks spawn follow when it comes to that.
    pub programs: Vec<Program>,
    /// Most ranks the job can ever have.
    pub most_ranks: usize,
    #[serde(with = "protocol_number")]
    pub protocol: Protocol,
    pub tolerate_node: bool,
    /// Most segments of log a rank holds in memory.
    pub log_segments: usize,
    pub prefault_segments: u32,
    pub spin_ns: u64,
    /// Directory where full segments go when the log memory is used up; nowhere when absent.
    pub spill_directory: Option<OsString>,
    /// TCP ports of the event loggers; none where there are none.
    #[serde(default)]
    pub event_logger_ports: Vec<u16>,
    /// How piggybacks are kept small (causal): [`crate::node_memory::REDUCTIONS`] by number.
    #[serde(default)]
    pub reduction: u32,
    /// How stable clocks spread where there are several event loggers: [`crate::node_memory::CLOCK_SPREADS`] by number.
    #[serde(default)]
    pub clock_spread: u32,
    /// IPv4 address of the event loggers as ranks reach it, first number in the high byte.
    pub event_logger_address: u32,
    /// TCP ports of the channel memories; none where there are none.
    #[serde(default)]
    pub channel_memory_ports: Vec<u16>,
    /// IPv4 address of the channel memories as ranks reach it, first number in the high byte.
    #[serde(default)]
    pub channel_memory_address: u32,
    pub key: [u8; 32],
    pub stdin: Stdin,
    /// Images of ranks may be asked for.
    pub images: bool,
    /// Directory below which image files are written; nowhere when absent.
    pub checkpoint_directory: Option<OsString>,
    /// Level of zstd at which image files are compressed; absent: they are not.
    pub checkpoint_compress: Option<u8>,
    /// Image files stay when the job has ended well.
    pub checkpoint_keep: bool,
    /// Images stay in memory beside their files, so that only a rank that has lost its own reads one (MPICH-V/CL's copies on
    /// local disks; Bouteiller 2006, §III.E). Without files they always do.
    #[serde(default = "yes")]
    pub local_copies: bool,
    /// The processors of ranks, which take them in turn; none: ranks run where this process may.
    #[serde(default)]
    pub cpus: Vec<Vec<u32>>,
    /// Soft and hard limit of open files that ranks get.
    pub open_files: (u64, u64),
    /// How ranks are put into groups that are copied one after the other (group).
    #[serde(default)]
    pub groups: Grouping,
    /// Most groups that write their images at the same time.
    #[serde(default)]
    pub groups_at_once: u32,
    /// Switch address randomisation off, so that a new life has the memory layout of the last. Under coordinated protocols, where
    /// all begin anew together, it is a courtesy.
    pub fixed_addresses: bool,
    /// Where ranks map the node memory.
    pub place: usize,
    /// Soft limit of the stack (`u64::MAX`: none), and whether the legacy layout is asked for. Both decide where the kernel places a
    /// program's memory, so a job that goes on has them as they were.
    pub stack_limit: u64,
    pub legacy_layout: bool,
    /// (rank, messages): the rank's first life kills itself after so many sends and deliveries.
    pub message_faults: Vec<(usize, u64)>,
    /// (rank, messages): an image of the rank is taken after so many sends and deliveries.
    pub image_at_messages: Vec<(usize, u64)>,
}

fn yes() -> bool {
    true
}

/// A protocol in messages and files: its number.
pub mod protocol_number {
    use resurgo_protocol::Protocol;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(protocol.number())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
        let number = u32::deserialize(deserializer)?;
        Protocol::numbered(number).ok_or_else(|| D::Error::custom(format!("there is no protocol {number}")))
    }
}

impl Job {
    /// The processors of a rank, as the kernel writes lists; none when it is not bound.
    pub fn cpus_of(&self, rank: usize) -> Option<String> {
        let cpus = self.cpus.get(rank.checked_rem(self.cpus.len())?)?;
        let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
        Some(numbers.join(","))
    }

    /// Determinants are piggybacked, so what a rank has delivered may be known to others only.
    pub fn piggybacks(&self) -> bool {
        self.protocol.piggybacks(self.tolerate_node)
    }

    /// Of the node memory, with room for `ranks` ranks, or as many as there may be.
    pub fn layout(&self, ranks: usize) -> node_memory::Layout {
        node_memory::Layout {
            size: self.most_ranks.max(ranks),
            log_segments: self.log_segments,
            spills: self.spill_directory.is_some(),
            piggybacks: self.piggybacks(),
        }
    }

    /// The ranks of a job of so many that have their waves, or each their images, together.
    pub fn units(&self, ranks: usize) -> Groups {
        match self.protocol.waves() {
            kinds::Waves::OfEachGroup => self.groups.lasting(ranks),
            _ => Groups::one(ranks),
        }
    }
}

/// How groups are formed (Gao 2007, §4.1).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Grouping {
    /// All ranks are one.
    #[default]
    One,
    /// So many ranks each, in their order.
    Static { size: usize },
    /// Of ranks that talk to one another, measured before each wave; where all do, as [`Grouping::Static`].
    Dynamic { size: usize },
    /// Each rank's group, from 1.
    Listed(Vec<u32>),
}

impl Grouping {
    /// Those of a job of `ranks` ranks that do not change; one of all where they would.
    pub fn lasting(&self, ranks: usize) -> Groups {
        match self {
            Grouping::Static { size } => Groups::consecutive(ranks, *size),
            Grouping::Listed(of) => Groups::new(of.clone()),
            Grouping::One | Grouping::Dynamic { .. } => Groups::one(ranks),
        }
    }
}

/// A program of the job and the ranks that run it, in rank order after those of the programs before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub ranks: usize,
    /// The file to execute.
    pub path: OsString,
    pub arguments: Vec<OsString>,
    /// Environment of its ranks, in order, without what differs from rank to rank.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: OsString,
    /// There is no MPI in it.
    #[serde(default)]
    pub is_plain: bool,
}

/// A program that a rank wants to spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedProgram {
    pub ranks: usize,
    /// As the caller wrote it: a path, or a name to be searched for.
    pub name: String,
    pub arguments: Vec<String>,
    /// The caller's info keys and values.
    pub info: Vec<(String, String)>,
}

/// Where rank 0 gets its standard input from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    Nothing,
    /// A regular file that every life opens again, and the offset at which it starts.
    File(OsString, u64),
    /// The dispatcher sends it ([`ToAgent::Stdin`]) and the agent keeps it for later lives.
    Stream,
}

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

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Exited(i32),
    Signalled(i32),
}

/// Counters of one life of a rank, as it left them in the node memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LifeStatistics {
    pub phase: u32,
    pub deliveries: u64,
    pub delivered_bytes: u64,
    pub replay_deliveries: u64,
    /// CLOCK_MONOTONIC nanoseconds, 0: not yet. So are the next four.
    pub first_delivery_ns: u64,
    pub caught_up_ns: u64,
    pub killed_ns: u64,
    pub replayed_ns: u64,
    pub collected_ns: u64,
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
    /// CLOCK_MONOTONIC nanoseconds at which the agent saw that it had ended, and at which an injected fault had struck it (0:
    /// it died of something else, and nobody knows when).
    pub noticed_ns: u64,
    pub killed_ns: u64,
}

impl Ended {
    /// As shells have it.
    pub fn exit_code(&self) -> i32 {
        match self.end {
            End::Exited(code) => code,
            End::Signalled(signal) => 128 + signal,
        }
    }

    /// It has found that it does not repeat what a former life did.
    pub fn diverged(&self) -> bool {
        self.end == End::Exited(crate::node_memory::EXIT_DIVERGED) && self.report.is_some()
    }
}

/// Dispatcher to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Start all ranks.
    Launch(Box<Job>),
    /// There are no waves any more: ranks have images alone. If one cannot recover alone then, [`ToAgent::WavesAgain`] follows, unless
    /// ranks have been spawned or the job was resumed.
    OnlyLogs,
    /// There are waves again, none so far: the images that ranks have are forgotten. All return next.
    WavesAgain,
    /// Start a rank again, whose end the agent has reported.
    Restart {
        rank: usize,
        fault_at_messages: u64,
    },
    /// Take an image of a rank; answered by [`ToDispatcher::Checkpointed`] or [`ToDispatcher::NotCheckpointed`].
    Checkpoint {
        rank: usize,
    },
    /// Tell how much log each rank's image would free; answered by [`ToDispatcher::LogsMeasured`].
    MeasureLogs,
    /// Take a wave: images of all ranks of a unit at one moment; answered by
    /// [`ToDispatcher::WaveComplete`] or [`ToDispatcher::NotCheckpointed`].
    Wave {
        /// The number of a group less 1; 0 where all ranks are one unit.
        unit: usize,
    },
    /// Rank `rank` has failed: return all ranks, or all of its group, to the last complete wave; answered by [`ToDispatcher::Returned`]. The ends of
    /// processes are not reported meanwhile.
    Return {
        rank: usize,
        fault_at_messages: u64,
    },
    /// Kill a rank (fault injection).
    Kill {
        rank: usize,
    },
    /// Answers [`ToDispatcher::SpawnWanted`]: start these programs, as a world of their own, with the next free numbers.
    Spawn {
        by: usize,
        programs: Vec<Program>,
        /// As [`Job::message_faults`].
        message_faults: Vec<(usize, u64)>,
    },
    /// Answers [`ToDispatcher::SpawnWanted`]: the rank is told that it cannot be done.
    SpawnRefused {
        by: usize,
    },
    /// End the processes of all ranks, whose logs and images stay; answered by [`ToDispatcher::Halted`].
    Halt,
    /// All ranks have been halted: they go on.
    GoOn,
    /// All ranks have been halted: write everything that they need to go on into a file. `about` is the dispatcher's part of
    /// it. Answered by [`ToDispatcher::Suspended`] or [`ToDispatcher::NotSuspended`].
    Suspend {
        about: serde_json::Value,
    },
    /// Answers [`ToDispatcher::WaveInFiles`]: `about` is the dispatcher's part of what is written down of the wave. Answered by
    /// [`ToDispatcher::Recorded`] or [`ToDispatcher::NotRecorded`].
    Record {
        about: serde_json::Value,
    },
    /// Instead of [`ToAgent::Launch`]: go on with the job whose file `id` lies in `directory`.
    Resume {
        job: Box<Job>,
        directory: OsString,
        id: String,
    },
    /// Send a signal to all ranks that run.
    Signal {
        number: i32,
    },
    /// End everything: SIGKILL to what has not ended after the grace period; answered by [`ToDispatcher::Stopped`].
    End {
        grace_ms: u64,
        /// The program has come to its end, good or bad: nothing is left that could be resumed.
        finished: bool,
    },
    #[serde(skip)]
    Stdin(Vec<u8>),
    StdinEnd,
    /// So many bytes of output have been taken off the dispatcher's hands; the agent may send as many more.
    OutputTaken {
        bytes: u64,
    },
}

/// Agent to dispatcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToDispatcher {
    Started {
        rank: usize,
        life: u64,
        pid: i32,
        /// The image it has begun from, 0: the beginning of its program.
        image: u64,
        /// The image was a file, not a sleeping process.
        from_file: bool,
        /// CLOCK_MONOTONIC nanoseconds at which the agent was told to start it, and at which it could run.
        asked_ns: u64,
        runs_ns: u64,
    },
    /// The job cannot be run on this node; nothing is left running.
    Failed {
        reason: String,
    },
    /// The suspended job is ours, and goes on.
    Resumed,
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
    /// There is an image of the rank.
    Checkpointed {
        rank: usize,
        /// Of the rank's images, from 1.
        number: u64,
        /// How long its threads stood still.
        stall_ns: u64,
        /// It can be recovered from; else only once it is in its file.
        is_snapshot: bool,
    },
    /// All ranks, or those of a group, can return to this wave.
    WaveComplete {
        /// Any rank of those that the wave is of.
        rank: usize,
        /// From 1.
        number: u64,
        /// From the request to the last rank's copy: the total checkpoint time.
        total_ns: u64,
        /// The longest time that a rank stood still: the individual checkpoint time.
        longest_stall_ns: u64,
        /// How long the ranks stood still, all together.
        all_stalls_ns: u64,
        /// Each rank's group, from 1, in the order in which they were copied.
        groups: Vec<u32>,
        /// Groups were to be formed by communication, and it is global.
        is_global: bool,
    },
    /// All ranks, or those of a group, go on from this wave, 0: the beginning.
    Returned {
        /// Any rank of those that the wave is of.
        rank: usize,
        wave: u64,
    },
    /// Rank `rank`, which was to start again, cannot recover alone: its images are lost, and others have forgotten what it would need.
    /// Answered by [`ToAgent::Return`] where there are waves as well as logs.
    CannotRecoverAlone {
        rank: usize,
        fault_at_messages: u64,
        reason: String,
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
    /// There is no new image of the rank; earlier ones stand.
    NotCheckpointed {
        rank: usize,
        reason: String,
    },
    /// An image of the rank is in a file of `bytes` bytes, of which `written` had to be written.
    ImageWritten {
        rank: usize,
        number: u64,
        bytes: u64,
        written: u64,
        write_ns: u64,
    },
    /// An image of the rank could not be written into a file; files written before stand, and so does its snapshot.
    ImageNotWritten {
        rank: usize,
        number: u64,
        reason: String,
    },
    /// All ranks have their images of this wave in files. What they printed up to the moment for which the wave is written down
    /// has been sent before.
    WaveInFiles {
        number: u64,
    },
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
    /// The job could not be suspended; its ranks go on.
    NotSuspended {
        reason: String,
    },
    /// A snapshot or an image file of the rank cannot be used.
    ImageLost {
        rank: usize,
        number: u64,
        reason: String,
    },
    /// A rank that ran before has all of its memory from the file of image `number`.
    MemoryRead {
        rank: usize,
        number: u64,
    },
    Aborted {
        rank: usize,
        code: i32,
    },
    /// The rank has called MPI_Comm_spawn or MPI_Comm_spawn_multiple.
    SpawnWanted {
        rank: usize,
        programs: Vec<WantedProgram>,
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
    /// The rank sent something that is not PMI.
    PmiTrouble {
        rank: usize,
        text: String,
    },
    /// A later life printed something else than an earlier one.
    OutputDiffers {
        rank: usize,
        stream: Stream,
        /// Bytes before the line that differs.
        offset: u64,
        /// It is passed on from there; otherwise what was printed first stands.
        anew: bool,
    },
    /// A later life is live but has not printed so many bytes again.
    OutputMissing {
        rank: usize,
        bytes: u64,
    },
    #[serde(skip)]
    Output {
        rank: usize,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// All of a finished rank's output has been sent.
    OutputEnd {
        rank: usize,
    },
    /// The agent has room for more standard input.
    StdinWanted,
    /// Nothing of the job is running any more.
    Stopped {
        statistics: Vec<LifeStatistics>,
    },
}

/// Most bytes of output that an agent sends ahead of [`ToAgent::OutputTaken`].
pub const OUTPUT_WINDOW: u64 = 4 << 20;

/// Why a connection's bytes are no frames.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameError {
    TooLong(usize),
    Malformed(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong(bytes) => write!(f, "a control frame of {bytes} bytes"),
            FrameError::Malformed(why) => write!(f, "a malformed control frame: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// A message that can be put into a frame and taken out of one.
pub trait Message: Sized {
    /// Longest frame of this kind that is accepted, in bytes.
    const LONGEST: usize = MAX_FRAME;

    /// Appends the frame of `self` to `out`.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what follows the length.
    fn decode(frame: &[u8]) -> Result<Self, FrameError>;
}

fn frame(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
}

pub(crate) fn json<T: Serialize>(out: &mut Vec<u8>, message: &T) {
    let text = match serde_json::to_vec(message) {
        Ok(text) => text,
        // Strings, numbers and paths given by this process; paths are kept as OsString or were UTF-8 on the command line.
        Err(error) => unreachable!("a message of this process has no JSON: {error}"),
    };
    frame(out, 0, &[&text]);
}

pub(crate) fn from_json<T: for<'a> Deserialize<'a>>(frame: &[u8]) -> Result<T, FrameError> {
    match frame.split_first() {
        Some((0, text)) => serde_json::from_slice(text).map_err(|error| FrameError::Malformed(error.to_string())),
        Some((kind, _)) => Err(FrameError::Malformed(format!("kind {kind}"))),
        None => Err(FrameError::Malformed("no kind".to_string())),
    }
}

impl Message for ToAgent {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ToAgent::Stdin(bytes) => frame(out, 2, &[bytes]),
            other => json(out, other),
        }
    }

    fn decode(frame: &[u8]) -> Result<ToAgent, FrameError> {
        match frame.split_first() {
            Some((2, bytes)) => Ok(ToAgent::Stdin(bytes.to_vec())),
            _ => from_json(frame),
        }
    }
}

impl Message for ToDispatcher {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ToDispatcher::Output { rank, stream, bytes } => {
                frame(out, 1, &[&(*rank as u32).to_le_bytes(), &[*stream as u8], bytes]);
            }
            other => json(out, other),
        }
    }

    fn decode(frame: &[u8]) -> Result<ToDispatcher, FrameError> {
        match frame {
            [1, a, b, c, d, stream @ (0 | 1), bytes @ ..] => Ok(ToDispatcher::Output {
                rank: u32::from_le_bytes([*a, *b, *c, *d]) as usize,
                stream: Stream::ALL[*stream as usize],
                bytes: bytes.to_vec(),
            }),
            _ => from_json(frame),
        }
    }
}

/// Collects the bytes of a connection into messages.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message, if there is one.
    pub fn next_message<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > M::LONGEST {
            return Err(FrameError::TooLong(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = M::decode(&rest[..length])?;
        self.start += 4 + length;
        Ok(Some(message))
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
                asked_ns: 1,
                runs_ns: u64::MAX,
            },
            ToDispatcher::Output {
                rank: 70000,
                stream: Stream::Stderr,
                bytes: vec![0, 255, 10],
            },
            ToDispatcher::Output {
                rank: 0,
                stream: Stream::Stdout,
                bytes: Vec::new(),
            },
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
        assert!(matches!(buffer.next_message::<ToAgent>(), Err(FrameError::TooLong(_))));
        let mut buffer = FrameBuffer::default();
        buffer.extend(&[3, 0, 0, 0, 0, b'{', b'x']);
        assert!(matches!(
            buffer.next_message::<ToAgent>(),
            Err(FrameError::Malformed(_))
        ));
        let mut buffer = FrameBuffer::default();
        buffer.extend(&[0, 0, 0, 0]);
        assert!(buffer.next_message::<ToAgent>().is_err());
    }
}

//! The dispatcher's reports to people and programs: one [`Event`] for each thing that happens, which every [`Sink`]
//! gets.
//!
//! An event carries all that its sinks need: no sink asks the dispatcher or another sink. Programs (`--json-events`,
//! docs/reference/options.md) read the event itself: its name and its fields, as serde has them. Fields for people or
//! figures only are skipped there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use resurgo_wire::control::{End, Ended, LifeStatistics, Stream};
use resurgo_wire::counters::Cost;
use serde::{Serialize, Serializer};

use super::ends::{describe, how_ended};
use super::node::NodeFigures;
use crate::channel_memory::Held;

/// An event. `rank` is the rank that it concerns.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    JobStarted {
        ranks: usize,
        protocol: &'a str,
        unix_time: f64,
        /// All ranks return when one fails.
        #[serde(skip)]
        coordinated: bool,
    },
    /// The job goes on from `directory`, and has the number `job` from now on.
    Resumed {
        #[serde(serialize_with = "lossy")]
        directory: &'a Path,
        #[serde(skip)]
        ranks: usize,
        #[serde(skip)]
        job: u32,
    },
    /// `path` gets the output of a resumed job, and lacks lines that it had.
    #[serde(skip)]
    OutputFileDiffers {
        path: &'a Path,
    },
    /// `name`: by which the job is resumed; `took`: since the request.
    Suspended {
        #[serde(serialize_with = "lossy")]
        directory: &'a Path,
        bytes: u64,
        #[serde(skip)]
        name: &'a str,
        #[serde(skip)]
        took: Duration,
    },
    NotSuspended {
        reason: &'a str,
    },
    /// This run of the job ends before the program does, and the files that it began from are still in `directory`.
    /// `is_damaged`: an unusable image has ended it.
    #[serde(skip)]
    StaysSuspended {
        directory: &'a Path,
        is_damaged: bool,
    },
    /// This run of the job ends before the program does; by this name the job can be resumed from the wave.
    #[serde(skip)]
    CanBeResumed {
        wave: u64,
        name: &'a str,
    },
    /// The job ends early.
    Error {
        reason: &'a str,
    },
    /// Nobody listens where the journal of systemd should.
    #[serde(skip)]
    NoJournal {
        reason: &'a str,
    },
    /// The journal has not taken so many entries.
    #[serde(skip)]
    JournalMissed {
        entries: u64,
        reason: &'a str,
    },
    /// Figures of several nodes, and the node of each rank; the longest turn of the dispatcher's loop.
    #[serde(skip)]
    NodesWere {
        nodes: &'a [NodeFigures],
        of_rank: &'a [usize],
        turn: Duration,
    },
    /// What each channel memory held; none where it gives no report.
    #[serde(skip)]
    ChannelMemoriesHeld {
        held: &'a [Option<Held>],
    },
    /// The counters of every rank's last life; none if the agent could not tell them.
    #[serde(skip)]
    LastCounters {
        statistics: &'a [LifeStatistics],
    },
    JobEnded {
        exit_code: i32,
        #[serde(rename = "wall_seconds", serialize_with = "seconds")]
        wall: Duration,
        #[serde(flatten)]
        summary: &'a Summary,
        /// The counters of the ranks' last lives are in it.
        #[serde(skip)]
        is_complete: bool,
    },
    /// The table of `--stats`, line by line.
    #[serde(skip)]
    Table {
        lines: &'a [String],
    },
    /// How each of so many ranks has ended.
    #[serde(skip)]
    ExitCodes {
        ranks: usize,
        codes: &'a BTreeMap<usize, i32>,
    },

    /// A life runs.
    Started {
        rank: usize,
        life: u64,
        pid: i32,
        /// The name of its node, where there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<&'a str>,
        /// That it begins from; 0: the beginning of the program.
        image: u64,
        /// The image had to be read from a file.
        from_file: bool,
        /// All ranks begin from theirs.
        #[serde(skip)]
        together: bool,
        /// From the order to start it until it could run.
        #[serde(skip)]
        beginning: Duration,
        /// The processors that it runs on, where ranks have some of their own.
        #[serde(skip)]
        processors: Option<&'a str>,
    },
    Finished {
        rank: usize,
        life: u64,
        exit_code: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        piggybacks: Option<Piggybacks>,
        #[serde(skip)]
        ended: &'a Ended,
    },
    Failed {
        rank: usize,
        life: u64,
        pid: i32,
        cause: String,
        deliveries: u64,
        sends: u64,
        #[serde(skip)]
        ended: &'a Ended,
        /// In words; none when the [`Event::Error`] that follows has them.
        #[serde(skip)]
        words: Option<&'a str>,
    },
    /// It has failed, and starts again.
    #[serde(skip)]
    Restarting {
        rank: usize,
    },
    /// It has failed, and so many others go on without it.
    Lost {
        rank: usize,
        left: usize,
        /// Why it could not recover by itself, if it has said so.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    CaughtUp {
        rank: usize,
        life: u64,
        deliveries: u64,
        #[serde(rename = "replay_seconds", serialize_with = "seconds")]
        replay: Duration,
        /// Since the failure; none: no failure preceded the life.
        #[serde(rename = "lost_seconds", serialize_with = "seconds_or_none")]
        lost: Option<Duration>,
        #[serde(skip)]
        statistics: &'a LifeStatistics,
    },
    FaultInjected {
        rank: usize,
    },
    NodeFaultInjected {
        node: usize,
    },
    LogFills {
        rank: usize,
    },
    /// `anew`: it takes another course than before, so the differing output and all that follows is shown.
    OutputDiffers {
        rank: usize,
        #[serde(serialize_with = "stream_name")]
        stream: Stream,
        offset: u64,
        anew: bool,
    },
    OutputMissing {
        rank: usize,
        bytes: u64,
    },
    ProgramReplaced {
        rank: usize,
        #[serde(serialize_with = "lossy")]
        path: &'a Path,
    },
    /// What ends it badly.
    Undone {
        rank: usize,
        text: &'a str,
    },
    PmiTrouble {
        rank: usize,
        text: &'a str,
    },
    Aborted {
        rank: usize,
        exit_code: i32,
    },
    /// `rank` has spawned `ranks`.
    Spawned {
        rank: usize,
        ranks: &'a [usize],
        programs: &'a [&'a str],
    },
    /// `ranks` are started in the places of `replaced`, which have failed. `places`: the first rank in each of them.
    Replaced {
        ranks: &'a [usize],
        replaced: &'a [u32],
        places: &'a [u32],
    },
    SpawnFailed {
        rank: usize,
        reason: &'a str,
    },

    /// An image of the rank is asked for now.
    #[serde(skip)]
    ImageAsked {
        rank: usize,
    },
    Checkpointed {
        rank: usize,
        image: u64,
        #[serde(rename = "stall_seconds", serialize_with = "seconds")]
        stall: Duration,
        copy: ImageCopy,
    },
    /// Images come less often than `every`, to take no more than this share of the time.
    ImagesHeldBack {
        share: f64,
        #[serde(skip)]
        every: Duration,
    },
    /// Gao 2007, §5: total and individual checkpoint time.
    WaveComplete {
        wave: u64,
        /// From the request to the last rank.
        #[serde(rename = "total_seconds", serialize_with = "seconds")]
        total: Duration,
        /// The longest standstill of a rank.
        #[serde(rename = "stall_seconds", serialize_with = "seconds")]
        longest: Duration,
        #[serde(rename = "mean_stall_seconds", serialize_with = "seconds")]
        mean: Duration,
        /// The ranks of each group, where groups took their images one after the other.
        #[serde(skip_serializing_if = "Option::is_none")]
        groups: Option<Vec<Vec<usize>>>,
        /// Groups were to be formed by communication, and it is global.
        #[serde(skip_serializing_if = "Option::is_none")]
        communication_is_global: Option<bool>,
        /// It is a wave of these ranks alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        ranks: Option<&'a [usize]>,
    },
    NotCheckpointed {
        rank: usize,
        reason: &'a str,
        /// This has lasted, and people have no report of it yet.
        #[serde(skip)]
        is_news: bool,
    },
    ImageWritten {
        rank: usize,
        image: u64,
        bytes: u64,
        #[serde(rename = "written_bytes")]
        written: u64,
        #[serde(rename = "write_seconds", serialize_with = "seconds")]
        time: Duration,
    },
    ImageNotWritten {
        rank: usize,
        image: u64,
        reason: &'a str,
    },
    /// Another node has the image, too. `anew`: after one was lost that had it.
    ImageReplicated {
        rank: usize,
        image: u64,
        node: u32,
        #[serde(rename = "anew")]
        is_anew: bool,
    },
    /// The images of these ranks of a wave have their pieces of parity, on these nodes. The pieces have so many bytes
    /// together; making them took so long.
    SetEncoded {
        wave: u64,
        set: u64,
        ranks: &'a [u32],
        nodes: &'a [u32],
        bytes: u64,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        time: Duration,
    },
    /// The node's piece is gone or damaged.
    PieceLost {
        wave: u64,
        set: u64,
        node: u32,
        reason: &'a str,
    },
    /// It was lost with its nodes, and is made anew from its set.
    ImageRebuilt {
        rank: usize,
        image: u64,
        node: u32,
    },
    /// Images have fewer replicas than they are to have, or some share a rack; or the same of parity.
    FewReplicas {
        reason: &'a str,
    },
    /// If this run is lost, the next one repeats all output from here on.
    OutputNotKept {
        reason: &'a str,
    },
    /// If this run is lost, the job can be resumed from the wave.
    WaveRecorded {
        wave: u64,
        bytes: u64,
    },
    /// The job can be resumed only from an earlier wave, if there is one.
    WaveNotRecorded {
        wave: u64,
        reason: &'a str,
    },
    /// Where recovery looks for images, the nearest first, and the failures that this level survives.
    ImageLevel {
        level: usize,
        what: &'a str,
        survives: &'a str,
        /// The user has said where images go.
        #[serde(skip)]
        is_asked: bool,
    },
    /// All files of a recorded wave, of so many bytes, are in `place`. `put`: bytes that had to go there; `took`: since
    /// it began.
    WaveFlushed {
        wave: u64,
        place: &'a str,
        bytes: u64,
        put: u64,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        took: Duration,
    },
    /// The place keeps what it had.
    WaveNotFlushed {
        wave: u64,
        place: &'a str,
        reason: &'a str,
    },
    /// The job is suspended, and its places do not get its files.
    SuspensionNotFlushed {
        reason: &'a str,
    },
    /// The program has come to its end, and what it has in a place could not be removed.
    PlaceKeeps {
        reason: &'a str,
    },
    /// No node has all of the wave any more, and nothing newer: what is missing comes from the job's places.
    WaveComes {
        wave: u64,
        places: &'a str,
    },
    /// It cannot be reached when the job begins. Waves go there once it can.
    PlaceAway {
        place: &'a str,
        reason: &'a str,
    },
    /// A wave was to go to `place` while another was on its way, which has begun so long ago.
    PlaceBehind {
        place: &'a str,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        since: Duration,
    },
    ImageLost {
        rank: usize,
        image: u64,
        reason: &'a str,
    },
    /// Its memory was read from the file of the image.
    MemoryRead {
        rank: usize,
        image: u64,
    },
    /// All ranks, or `ranks`, go on from `wave`, 0: the beginning.
    Returned {
        wave: u64,
        /// The ranks of a group, which repeat their work since.
        #[serde(skip_serializing_if = "Option::is_none")]
        ranks: Option<&'a [usize]>,
        /// Where all ranks return: the time whose work is lost.
        #[serde(
            rename = "lost_seconds",
            serialize_with = "seconds_or_none",
            skip_serializing_if = "Option::is_none"
        )]
        lost: Option<Duration>,
    },
    /// The others take images alone while this rank can have none. `nodes`: the job is on several.
    WavesGivenUp {
        rank: usize,
        reason: &'a str,
        #[serde(skip)]
        nodes: bool,
    },
    /// The logs are full, and the rank has no images: what they have for it is forgotten.
    LogsLetGo {
        rank: usize,
        reason: &'a str,
    },
    /// The rank has finished, others have not, and there are no waves any more.
    WavesOver {
        rank: usize,
    },
    /// The rank can have images again, or has `finished`, and there are waves again.
    WavesBack {
        rank: usize,
        #[serde(skip)]
        finished: bool,
    },
    /// From now on all ranks return when one fails: the program does not repeat its work, or the rank has lost what it
    /// could recover from alone.
    ReturnsTogether {
        rank: usize,
        reason: &'a str,
    },
    /// The job begins without it.
    NodeMissing {
        name: &'a str,
        reason: &'a str,
    },
    /// A node has joined the running job.
    NodeCame {
        node: usize,
        name: &'a str,
        slots: u32,
    },
    /// Its machine is about to be taken away: its ranks go on elsewhere.
    NodeLeaves {
        node: usize,
        name: &'a str,
        reason: &'a str,
    },
    /// Its ranks run elsewhere.
    NodeLeft {
        node: usize,
        name: &'a str,
    },
    /// Its ranks cannot leave, at least for now.
    NodeStays {
        node: usize,
        name: &'a str,
        reason: &'a str,
    },
    /// With its ranks; the job goes on without it. `reason` is `cause` as a sentence, with the name of the node.
    NodeLost {
        node: usize,
        reason: &'a str,
        cause: &'a str,
        /// Its ranks begin again.
        #[serde(skip)]
        restarts: bool,
    },

    #[serde(rename = "event_logger_started")]
    LoggerStarted {
        logger: usize,
        pid: Option<u32>,
        epoch: u64,
        /// Deliveries that it has from the one that was lost.
        deliveries: u64,
        /// It has taken the place of the lost one.
        #[serde(skip)]
        again: bool,
    },
    #[serde(rename = "event_logger_lost")]
    LoggerLost {
        logger: usize,
        #[serde(serialize_with = "how_it_ended")]
        end: End,
        /// Ranks send nothing until it is there again.
        #[serde(skip)]
        waits: bool,
    },
    #[serde(rename = "event_logger_without_journal")]
    LoggerWithoutJournal {
        logger: usize,
        reason: &'a str,
    },
    #[serde(rename = "event_logger_failed")]
    LoggerFailed {
        logger: usize,
        reason: &'a str,
    },
    /// A checkpoint server that the job has started serves.
    #[serde(rename = "checkpoint_server_started")]
    StoreServerStarted {
        server: &'a str,
        pid: u32,
        /// It has taken the place of one that was lost.
        #[serde(skip)]
        again: bool,
    },
    #[serde(rename = "checkpoint_server_lost")]
    StoreServerLost {
        server: &'a str,
        reason: &'a str,
    },
    /// It cannot be started again for now: what it has is of no use.
    #[serde(rename = "checkpoint_server_away")]
    StoreServerAway {
        server: &'a str,
        reason: &'a str,
    },
    /// What the job has stored stays on these hosts, in these directories: it has not come to its end, or they cannot be
    /// removed.
    #[serde(skip)]
    StoreServersKeep {
        kept: &'a [(String, PathBuf)],
    },
    ChannelMemoryStarted {
        memory: usize,
        pid: Option<u32>,
    },
    ChannelMemoryFills {
        memory: usize,
    },
    ChannelMemoryLost {
        memory: usize,
        end: Option<End>,
    },
}

/// A summary of the job, for the event of its end.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub failures: u64,
    pub restarts: u64,
    #[serde(rename = "lost_seconds", serialize_with = "seconds")]
    pub lost: Duration,
    #[serde(rename = "replay_seconds", serialize_with = "seconds")]
    pub replay: Duration,
    pub replayed_deliveries: u64,
    /// Messages that ranks have sent, and their bytes.
    pub messages: u64,
    pub logged_bytes: u64,
    pub images: u64,
    pub waves: u64,
    pub image_bytes: u64,
    #[serde(rename = "longest_stall_seconds", serialize_with = "seconds")]
    pub longest_stall: Duration,
    pub individual_checkpoint_seconds: Option<f64>,
    /// None without waves.
    pub total_checkpoint_seconds: Option<f64>,
    #[serde(rename = "effective_delay_seconds", serialize_with = "seconds")]
    pub effective_delay: Duration,
    pub spilled_segments: u64,
}

/// What a rank's messages carried beside their payload.
#[derive(Debug, Clone, Serialize)]
pub struct Piggybacks {
    messages: u64,
    messages_with_none: u64,
    bytes: u64,
    events: u64,
    largest_graph: u64,
}

/// How an image was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageCopy {
    /// There is a sleeping process.
    Forked,
    /// It counts when its file is complete.
    WarmBuffer,
}

impl<'a> Event<'a> {
    pub fn finished(ended: &'a Ended) -> Event<'a> {
        let cost = |cost| ended.statistics.cost(cost);
        let piggybacks = Piggybacks {
            messages: cost(Cost::Piggybacks),
            messages_with_none: cost(Cost::EmptyPiggybacks),
            bytes: cost(Cost::PiggybackBytes),
            events: cost(Cost::PiggybackEvents),
            largest_graph: cost(Cost::LargestGraph),
        };
        Event::Finished {
            rank: ended.rank,
            life: ended.life,
            exit_code: ended.exit_code(),
            piggybacks: Some(piggybacks).filter(|piggybacks| piggybacks.messages > 0),
            ended,
        }
    }

    pub fn failed(ended: &'a Ended, words: Option<&'a str>) -> Event<'a> {
        Event::Failed {
            rank: ended.rank,
            life: ended.life,
            pid: ended.pid,
            cause: describe(ended),
            deliveries: ended.statistics.deliveries,
            sends: ended.statistics.sends(),
            ended,
            words,
        }
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn seconds_or_none<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    seconds(&time.unwrap_or_default(), serializer)
}

fn lossy<S: Serializer>(path: &&Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn stream_name<S: Serializer>(stream: &Stream, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stream.name())
}

fn how_it_ended<S: Serializer>(end: &End, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&how_ended(*end))
}

/// A receiver of events.
pub trait Sink {
    fn take(&mut self, event: &Event, now: Instant);
}

impl<S: Sink> Sink for Option<S> {
    fn take(&mut self, event: &Event, now: Instant) {
        if let Some(sink) = self {
            sink.take(event, now);
        }
    }
}

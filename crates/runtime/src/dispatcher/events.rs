//! What the dispatcher tells people and programs: an [`Event`] for each thing that happens, taken by every [`Sink`].
//!
//! An event carries all that its sinks need, so that none of them asks the dispatcher or another sink. What programs read
//! (`--json-events`, docs/reference/options.md) is the event itself: its name and its fields, as serde has them. What is only for people
//! or for the figures is skipped there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use resurgo_wire::control::{End, Ended, LifeStatistics, Stream};
use resurgo_wire::counters::Cost;
use serde::{Serialize, Serializer};

use super::ends::{describe, how_ended};
use super::node::NodeFigures;
use crate::channel_memory::Held;

/// Something that has happened. `rank` is the rank that it has happened to.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    JobStarted {
        ranks: usize,
        protocol: &'a str,
        unix_time: f64,
        /// All ranks return when one has failed.
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
    /// This run of the job is over before the program's end, and what it has begun from is still in `directory`. `is_damaged`: an image
    /// that could not be used has ended it.
    #[serde(skip)]
    StaysSuspended {
        directory: &'a Path,
        is_damaged: bool,
    },
    /// This run of the job is over before the program's end, and the job can be resumed from the wave, by this name.
    #[serde(skip)]
    CanBeResumed {
        wave: u64,
        name: &'a str,
    },
    /// The job ends early.
    Error {
        reason: &'a str,
    },
    /// What several nodes have been like; and which each rank is on.
    #[serde(skip)]
    NodesWere {
        nodes: &'a [NodeFigures],
        of_rank: &'a [usize],
    },
    /// What each channel memory has had; none where it does not say.
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
        /// From when it was asked for until it could run.
        #[serde(skip)]
        beginning: Duration,
        /// That it runs on, where ranks have some of their own.
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
    /// It has failed, and is started again.
    #[serde(skip)]
    Restarting {
        rank: usize,
    },
    CaughtUp {
        rank: usize,
        life: u64,
        deliveries: u64,
        #[serde(rename = "replay_seconds", serialize_with = "seconds")]
        replay: Duration,
        /// Since the failure; none: the life has followed none.
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
    /// `anew`: it goes another way than before, so that what differs is shown, and what follows it.
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
    /// It ends badly because of this.
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
    /// Images come less often than `every`, so that they take no more than this share of the time.
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
        /// The ranks of each group, where groups have had their images one after the other.
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
        /// It has been so for long, and people have not been told.
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
    /// If this run is lost, what is printed from here on is printed again by the next.
    OutputNotKept {
        reason: &'a str,
    },
    /// If this run is lost, the job can be resumed from the wave.
    WaveRecorded {
        wave: u64,
        bytes: u64,
    },
    /// It cannot; from an earlier wave, if there is one.
    WaveNotRecorded {
        wave: u64,
        reason: &'a str,
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
        /// The ranks of a group, which repeat what they have done since.
        #[serde(skip_serializing_if = "Option::is_none")]
        ranks: Option<&'a [usize]>,
        /// Where all ranks return: the work of which time is lost.
        #[serde(
            rename = "lost_seconds",
            serialize_with = "seconds_or_none",
            skip_serializing_if = "Option::is_none"
        )]
        lost: Option<Duration>,
    },
    /// From now on all ranks return when one has failed: the program has turned out not to repeat what it does, or the rank has lost what
    /// it could recover from alone.
    ReturnsTogether {
        rank: usize,
        reason: &'a str,
    },
    /// The job begins without it.
    NodeMissing {
        name: &'a str,
        reason: &'a str,
    },
    /// It has come while the job runs.
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
    /// They do.
    NodeLeft {
        node: usize,
        name: &'a str,
    },
    /// They cannot, at least for now.
    NodeStays {
        node: usize,
        name: &'a str,
        reason: &'a str,
    },
    /// With its ranks; the job goes on without it.
    NodeLost {
        node: usize,
        reason: &'a str,
    },

    #[serde(rename = "event_logger_started")]
    LoggerStarted {
        logger: usize,
        pid: Option<u32>,
        epoch: u64,
        /// That it has from the one that was lost.
        deliveries: u64,
        /// It has taken the place of that one.
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

/// What the job was, for the event of its end.
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

/// What a rank's messages have carried beside their payload.
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

/// Something that events are told to.
pub trait Sink {
    fn take(&mut self, event: &Event, now: Instant);
}

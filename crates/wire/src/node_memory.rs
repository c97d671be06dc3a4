//! The node memory: one memfd per node, created and held by the agent, mapped by every rank of the node.
//!
//! ```text
//! 0                 node header            one page, written by the agent before any rank starts
//! CONTROL_BASE      rank controls          CONTROL_STRIDE bytes a rank; other ranks may write to its first page
//! arena_base        arenas                 arena_stride bytes a rank; written by its own rank only
//! ```
//!
//! Every rank maps it at the same address, far from everything that the kernel places by itself. So mapping it never
//! moves the program's own mappings. The launcher chooses the address ([`crate::places`]).
//!
//! The agent keeps the memfd open, so all of it outlives any rank. A recovering rank finds its logged messages and its
//! recorded deliveries in its own arena. The agent reads and writes single fields with `pread` and `pwrite`; the
//! provider and the mover map the memory.
//!
//! All integers are little-endian (the processes share one machine). Offsets are in bytes. A [`Field`] says what lies
//! there, who writes it, and how long it counts. This decides which fields are cleared when a life of a rank begins.

mod field;
mod pages;
pub mod ready;

use resurgo_protocol::Recorded;
use resurgo_protocol::causal::Event;

use crate::handshake::Server;
use field::fields;
pub use field::{Arena, Content, Control, Declared, Field, Header, Lifetime, Owner, Text, Word};
pub use pages::Pages;

/// First eight bytes of a node memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RESURGO1");
/// Changes whenever the meaning of any byte below changes.
pub const VERSION: u32 = 32;

/// File descriptor of the PMI socket in every rank (also given as `PMI_FD`).
pub const PMI_FD: i32 = 30;
/// File descriptor of the node memory in every rank.
pub const NODE_MEMORY_FD: i32 = 31;
/// File descriptor of the node's spill file in every rank, when there is one.
pub const SPILL_FD: i32 = 32;
/// File descriptor of the socket on which the agent asks for process images ([`crate::image`]), when it may.
pub const IMAGE_FD: i32 = 33;
/// File descriptor of the program's own file in a rank's process before it becomes the program.
pub const PROGRAM_FD: i32 = 34;
/// File descriptor of the eventfd in every rank that wakes the mover of messages to other nodes, when there are any.
pub const NET_FD: i32 = 35;

/// File descriptor of the socket on which a rank speaks to the agent about failures ([`crate::survivors`]), where the
/// program deals with them.
pub const SURVIVOR_FD: i32 = 36;

/// The descriptors that any rank may have from its agent, but [`SURVIVOR_FD`], which no rank with images has.
pub const RANK_FDS: [i32; 5] = [PMI_FD, NODE_MEMORY_FD, SPILL_FD, IMAGE_FD, NET_FD];

/// Environment variable with the rank's number in the job.
pub const ENV_RANK: &str = "RESURGO_RANK";

/// Most ranks one node memory can hold: those that are launched and those that they spawn.
pub const MAX_RANKS: usize = 4096;

/// Bytes of one log segment.
pub const SEGMENT: usize = 64 << 10;
/// Bytes of a large page.
pub const LARGE_PAGE: usize = 2 << 20;
/// Segments that share a large page: the first of each arena begins with one.
pub const BLOCK: usize = LARGE_PAGE / SEGMENT;

/// Fields of the node header.
pub mod header {
    use crate::services::Service;

    /// Bytes of the header.
    pub const BYTES: usize = 4096;

    super::fields! { Header:
        /// [`super::MAGIC`].
        Agent Memory MAGIC: u64 = 0;
        /// [`super::VERSION`].
        Agent Memory VERSION: u32 = 8;
        /// Number of ranks that there is room for.
        Agent Memory SIZE: u32 = 12;
        /// Number of the protocol ([`resurgo_protocol::Protocol`]).
        Agent Memory PROTOCOL: u32 = 16;
        /// 0: the loss of a process is tolerated; 1: of a node; [`super::OF_SEVERAL`].
        Agent Memory TOLERATE_NODE: u32 = 20;
        /// Offset of the first arena.
        Agent Memory ARENA_BASE: u64 = 24;
        /// Bytes from one arena to the next.
        Agent Memory ARENA_STRIDE: u64 = 32;
        /// Most segments a rank may hold in memory (the bound `--log-memory`).
        Agent Memory LOG_SEGMENTS: u64 = 40;
        /// 1: full segments are written to the file [`super::SPILL_FD`] when the bound is reached.
        Agent Memory SPILL: u32 = 48;
        /// Segments that every rank touches when it starts, so that logging into them later costs no page faults.
        Agent Memory PREFAULT_SEGMENTS: u32 = 52;
        /// Nanoseconds a waiting rank polls before it sleeps.
        Agent Memory SPIN_NS: u64 = 56;
        /// Next free segment of the spill file; ranks take from it with an atomic add.
        Peers Memory SPILL_NEXT: u64 = 64;
        /// The job's key.
        Agent Memory JOB_KEY: [u8; 32] = 80;
        /// Number of ranks that the job has had so far; grows when ranks spawn others, before those start. Nothing
        /// beyond them has been used.
        Agent Memory RANKS: u32 = 112;
        /// The last wave that ranks have been asked for (chandy-lamport), written before any of them is asked.
        Agent Memory WAVES_ASKED: u64 = 120;
        /// The last wave that is complete or dropped: it no longer needs the logs.
        Agent Memory WAVES_OVER: u64 = 128;
        /// How piggybacks are kept small (causal): [`super::REDUCTIONS`] by number.
        Agent Memory REDUCTION: u32 = 136;
        /// How stable clocks spread (causal, several event loggers): [`super::CLOCK_SPREADS`] by number.
        Agent Memory CLOCK_SPREAD: u32 = 140;
        /// Address at which all ranks map the node memory, a multiple of [`super::LARGE_PAGE`].
        Agent Memory PLACE: u64 = 144;
        /// Until when ranks may say something to ranks of other nodes, by CLOCK_BOOTTIME in nanoseconds; 0: for ever.
        /// The agent moves it on while it has its lease. An agent that stands still cannot end its ranks, so ranks look
        /// here.
        Agent Memory VALID_UNTIL: u64 = 152;
        /// How far a wave of groups has come ([`resurgo_protocol::group::Turn`] as a word; group). It has a cache line
        /// of its own, as every send reads it.
        Agent Memory TURN: u64 = 192;
        /// The servers of the job, each as in [`Service::to_words`], up to the first empty place. Rank r's event
        /// logger, or channel memory, is number r modulo their count.
        Agent Memory SERVICES: [u64; super::MAX_SERVICES * Service::WORDS] = 256;
        /// Bit d: some channel to rank d, which is on another node, may have news.
        Peers Memory NEWS: [u64; 64] = SERVICES.at + super::MAX_SERVICES * Service::WORDS * 8;
        /// 1 while the agent's mover sleeps or is about to. The mover receives all messages to ranks of other nodes. A
        /// rank with news for it then writes to [`super::NET_FD`].
        Agent Memory MOVER_SLEEPS: u32 = NEWS.at + 64 * 8;
        /// 1: ranks may have connections of their own to ranks of other nodes ([`crate::direct`]).
        Agent Memory DIRECT: u32 = MOVER_SLEEPS.at + 4;
        /// The address of this node that others call, as [`crate::direct::to_words`] has it.
        Agent Memory ADDRESS: [u64; 2] = DIRECT.at + 4;
        /// Not 0: the program deals with failures itself, by ULFM's rules ([`resurgo_protocol::modes::ULFM`]) or by
        /// FT-MPI's ([`resurgo_protocol::modes::Modes::word`]).
        Agent Memory SURVIVORS: u64 = ADDRESS.at + 16;
        /// How often failures and revocations have been told. It grows after their words in the controls of ranks, and
        /// before ranks are woken.
        Agent Memory NEWS_OF_FAILURES: u64 = SURVIVORS.at + 8;
        /// Records that the ring of each rank has room for; 0: there are no rings ([`crate::trace`]).
        Agent Memory TRACE_RECORDS: u64 = NEWS_OF_FAILURES.at + 8;
        /// 1: each rank has an undo log ([`crate::undo`]).
        Agent Memory UNDOES: u32 = TRACE_RECORDS.at + 8;
        /// 1: each rank has a read log ([`crate::undo`]).
        Agent Memory REREADS: u32 = UNDOES.at + 4;
        /// Not 0: a rank whose last image was taken while this had the same value makes, removes, and opens for writing
        /// no file by its name. It waits until the value is another.
        Agent Memory FILES_WAIT: u64 = REREADS.at + 4;
        /// Nanoseconds since 1970 (CLOCK_REALTIME) at which the job, or its first run, was started.
        Agent Memory JOB_BEGAN_NS: u64 = FILES_WAIT.at + 8;
        /// 1: what ranks note of files is kept off the node, too ([`super::control::NOTES_ASKED`]).
        Agent Memory KEEPS_NOTES: u32 = JOB_BEGAN_NS.at + 8;
    }
}

/// Names of the ways to keep piggybacks small, by number.
pub const REDUCTIONS: [&str; 3] = ["vcausal", "manetho", "logon"];
/// Names of the ways in which ranks learn what event loggers other than their own have, by number.
pub const CLOCK_SPREADS: [&str; 3] = ["multicast", "broadcast", "piggyback"];
pub const SPREAD_MULTICAST: u32 = 0;
pub const SPREAD_BROADCAST: u32 = 1;
pub const SPREAD_PIGGYBACK: u32 = 2;
/// Most servers of one kind in a job, and of all kinds.
pub const MAX_SERVERS: usize = 64;
pub const MAX_SERVICES: usize = MAX_SERVERS * Server::ALL.len();

/// Revocations that are told to a rank at a time.
pub const REVOCATIONS: usize = 128;

/// Offset of the first rank control.
pub const CONTROL_BASE: usize = header::BYTES;
/// Bytes of a rank control.
pub const CONTROL_STRIDE: usize = 8192;

/// Fields of a rank control, relative to its start.
pub mod control {
    use crate::counters::{Costs, Sizes};

    pub const REPORT_BYTES: usize = 3000;

    super::fields! { Control:
        /// The rank's incarnation, from 1.
        Agent Life INCARNATION: u64 = 0;
        /// The rank kills itself (SIGKILL) when it has made this many sends and deliveries in this life; 0: never.
        Agent Life FAULT_AT_MESSAGES: u64 = 8;
        /// The rank asks the agent for an image of itself when it has made this many sends and deliveries; 0: never.
        Agent Memory IMAGE_AT_MESSAGES: u64 = 16;
        /// 1: this life begins together with those of all other ranks (of its group), which return to a wave; 0: alone.
        Agent Life TOGETHER: u64 = 24;
        /// Futex word the rank sleeps on.
        Peers Memory DOORBELL: u32 = 64;
        /// 1 while the rank sleeps or is about to. [`super::ELSEWHERE`]: it is on another node, where the mover takes
        /// its news. [`super::AT_SOCKETS`]: a datagram to [`BELL`] wakes it.
        Rank Memory SLEEPING: u32 = 68;
        /// 1 + the number of the processor on which the rank was when it last waited; 0: unknown.
        Rank Life PROCESSOR: u32 = 72;
        /// Bit w: word w of [`READY`] may be non-zero.
        Peers Memory READY_SUMMARY: u64 = 128;
        /// Bit s: the channel from rank s may have news.
        Peers Memory READY: [u64; 64] = 192;
        /// See [`super::PHASE_START`] and following.
        Rank Life PHASE: u32 = 768;
        /// Threads that have called the provider: 0 or 1, or 2 when MPI went from one to another.
        /// [`super::MANY_THREADS`]: several call MPI all the time, in an order that no replay can repeat.
        Rank Life THREADS: u32 = 772;
        /// Deliveries, with those before the image that this life began from (the rank's rclock).
        Rank Life DELIVERIES: u64 = 776;
        /// Payload bytes of the messages delivered, counted like them.
        Rank Life DELIVERED_BYTES: u64 = 784;
        /// CLOCK_MONOTONIC nanoseconds at which the injected fault [`FAULT_AT_MESSAGES`] struck.
        Rank Life KILLED_NS: u64 = 792;
        /// Deliveries that this life repeats from the record.
        Rank Life REPLAY_DELIVERIES: u64 = 800;
        /// CLOCK_MONOTONIC nanoseconds of the life's first delivery (or its first live one when nothing is replayed).
        Rank Life FIRST_DELIVERY_NS: u64 = 808;
        /// CLOCK_MONOTONIC nanoseconds at which the replay had caught up.
        Rank Life CAUGHT_UP_NS: u64 = 816;
        /// CLOCK_MONOTONIC nanoseconds at which the last delivery of the record had been repeated, 0: there is none.
        Rank Life REPLAYED_NS: u64 = 824;
        /// CLOCK_MONOTONIC nanoseconds at which the life knew what it has to repeat.
        Rank Life COLLECTED_NS: u64 = 832;
        /// Nanoseconds that it took to find that out: own logs, record, and event logger.
        Rank Life COLLECTING_NS: u64 = 840;
        /// Deferred messages in the rank's buffer (group).
        Rank Life BUFFERED: u64 = 848;
        /// The message that the rank waits for in its replay; 0: it waits for none. The low 16 bits are 1 + its source.
        /// The next 24 bits say how often it has looked for it, the highest 24 which wait this is.
        Rank Life WAITS_FOR: u64 = 856;
        /// 1 when the life would have made a new delivery, and [`OUTPUT_BEHIND`] was not 0.
        Rank Life OUTPUT_AWAITED: u64 = 864;
        /// Nanoseconds since 1970 (CLOCK_REALTIME) at which the life was begun.
        Agent Life BEGAN_NS: u64 = 872;
        /// Not 0 while the rank holds sends until the event logger has its deliveries. Then it is 1 + the sends that
        /// this life had held before the oldest of them.
        Rank Life HELD: u64 = 880;
        /// Number of the process that opened the provider in this life, as the process itself sees it; 0: none did.
        Rank Life ATTACHED: u64 = 888;
        /// 1 while the life has yet to repeat standard output of earlier lives, as the dispatcher says. The rank makes
        /// no new delivery before it is 0.
        Agent Life OUTPUT_BEHIND: u64 = 896;
        /// Deliveries that the outside depends on, as the agent passed on their output or words to PMI. Others have
        /// seen their effect, whatever happens to the rank. Only with piggybacked determinants.
        Agent Memory PASSED_ON: u64 = 904;
        /// The rank's group, from 1. In the last wave, written by the agent before the turn of the first group (group);
        /// or always the same, written before any rank starts (hierarchical).
        Agent Run GROUP: u64 = 912;
        /// 1 + the reads from the last delivery to the last new send of any life, 0: there was none. A new life
        /// finds what the former ones left.
        Rank Memory READS_AT_SEND: u64 = 920;
        /// 1 + deliveries that the rank does not need; 0: the rank comes from no lost node. Else only its event logger
        /// has its record. The rank writes the rest of the record here and then stores a 0.
        Agent Memory RECORD_LOST: u64 = 928;
        /// The abstract socket that wakes the rank when it sleeps at its sockets: its name's five hexadecimal digits,
        /// as a number.
        Rank Life BELL: u64 = 936;
        /// 1 while the rank checks whether it may write to the copies of logs of ranks of other nodes, and writes to
        /// them.
        Rank Life WRITES: u64 = 944;
        /// Deliveries that the rank's event logger has, as far as it has said so to this life. Under causal, where nodes
        /// are lost with their ranks' knowledge.
        Rank Life STABLE: u64 = 952;
        /// The wait, as in [`WAITS_FOR`] without the looks, whose message will not come; 0: none is known. Between nodes
        /// the coordinator finds that.
        Agent Life IN_VAIN: u64 = 960;
        /// The number of the rank's failure, from 1; 0: it has not failed. Where the program deals with failures.
        Agent Memory FAILED: u64 = 968;
        /// When that was known, by CLOCK_REALTIME in nanoseconds, and the exit code of the process as shells have it.
        Agent Memory FAILED_AT: u64 = 976;
        Agent Memory FAILED_BY: u64 = 984;
        /// 1: all nodes know that the rank has failed, and have all that it sent. Receives that can get no message end.
        Agent Memory BURIED: u64 = 992;
        /// 1 + the rank that has spawned this one; 0: it was launched. Where the program deals with failures.
        Agent Memory SPAWNED_BY: u64 = 1000;
        /// 1 + the failed rank in whose place this one is; 0: in none. By FT-MPI's rules.
        Agent Memory REPLACES: u64 = 1008;
        /// 1: MPI_Finalize has failed in this life and left the endpoint open, which the end of the process has closed.
        Rank Life FINALIZE_FAILED: u64 = 1016;
        /// Length and then UTF-8 text: why the rank ended itself; at most [`REPORT_BYTES`] bytes. A rank that writes a
        /// report exits with [`super::EXIT_REPORT`].
        Rank Life REPORT: super::Text<REPORT_BYTES> = 1024;
        /// The code with which the rank ends itself after a report; 0: it has not. A wrapper above it may end with
        /// another code.
        Rank Life REPORT_CODE: u64 = 4032;
        /// When the rank last went to sleep outside of a replay: 1 + the rank that its oldest receive was from; 0: from
        /// any, or it had none.
        Rank Life AWAITS: u64 = 4040;
        /// 1 + the last image (by its number; 0 is the beginning) after which the rank has read by MPI-IO what it has overwritten
        /// since; 0: there is none such. Lives that begin from it, or before, would read something else, unless the agent
        /// has undone what was written.
        Rank Run LOST_READS: u64 = 4048;
        /// How often any life of the rank has wanted an answer about failures ([`crate::survivors`]): the most of all
        /// lives. Where ranks recover, and the program deals with other failures.
        Rank Memory WISHES: u64 = 4056;
        /// Nanoseconds since 1970 (CLOCK_REALTIME) at which former lives here had come to rest: the last one had ended,
        /// and what was to be undone in files had been. 0: there was none.
        Agent Life RESTED_NS: u64 = 4064;
        /// 1: other ranks have gone on since the last life ended; 0: all have ended.
        Agent Life GONE_ON: u64 = 4072;
        /// Nanoseconds since 1970 (CLOCK_REALTIME) until when former lives were on another node, or in a run, that is lost,
        /// with what they had noted of files ([`super::deeds`]); 0: all notes are here.
        Agent Life NOTES_LOST_NS: u64 = 4080;
        /// [`crate::counters::Sizes`]: `u64` messages and `u64` bytes of each class, as far as this life has come.
        Rank Life SIZES: Sizes = 4096;
        /// [`crate::counters::Costs`]: a `u64` each, over all lives of the rank in this run of the job.
        Rank Run COSTS: Costs = SIZES.at + size_of::<Sizes>();
        /// How often the rank has waited until what it has noted of files ([`super::deeds`], [`crate::undo`]) was off the
        /// node; and which of these times that is so.
        Rank Run NOTES_ASKED: u64 = COSTS.at + size_of::<Costs>();
        Agent Run NOTES_KEPT: u64 = NOTES_ASKED.at + 8;
        /// Keys ([`crate::survivors::key`]) of revoked communicators of which the rank is a member. A newer one takes the
        /// place of one long ago; the rank remembers those that it has seen.
        Agent Memory REVOKED: [u64; super::REVOCATIONS] = 7168;
        /// The same once all nodes know it: receives end.
        Agent Memory CLOSED: [u64; super::REVOCATIONS] = 6144;
    }
}

/// Exit code of a rank that ended itself and left a report in [`control::REPORT`]: it is not restarted, the job ends.
pub const EXIT_REPORT: i32 = 119;

/// Exit code of a rank that finds in its replay that the program does not repeat itself; with a report as with
/// [`EXIT_REPORT`]. Where there are waves all ranks can return to the last one, else the job ends.
pub const EXIT_DIVERGED: i32 = 120;

/// See [`header::TOLERATE_NODE`]: the loss of a node is tolerated in a job that has several, with records and logs.
pub const OF_SEVERAL: u32 = 2;

/// See [`control::SLEEPING`].
pub const ELSEWHERE: u32 = 2;

/// See [`control::SLEEPING`].
pub const AT_SOCKETS: u32 = 3;

/// See [`control::WAITS_FOR`]: its parts, from the lowest bits on.
pub const WAIT_SOURCE_BITS: u32 = 16;
pub const WAIT_LOOKS_BITS: u32 = 24;
pub const WAIT_LOOKS: u64 = ((1 << WAIT_LOOKS_BITS) - 1) << WAIT_SOURCE_BITS;

/// See [`control::THREADS`].
pub const MANY_THREADS: u32 = 3;

/// The provider has not been opened yet, by a life that repeats nothing.
pub const PHASE_START: u32 = 0;
/// Deliveries come from the record. Written by the agent when such a life begins.
pub const PHASE_REPLAY: u32 = 1;
/// Deliveries are new.
pub const PHASE_LIVE: u32 = 2;
/// The endpoint was closed (MPI_Finalize).
pub const PHASE_CLOSED: u32 = 3;

/// How far a rank had come when it copied itself for a wave that stops nobody; one `u64` a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutTable {
    /// Per source, the segment that was being read, as a reference; 0: nothing had been read.
    Reading = 0,
    /// Per source, the offset of the next entry in it.
    ReadingAt = 1,
    /// Per destination, the segment that was being written; 0: nothing had been sent. After a return: the last segment
    /// of the messages in transit.
    Writing = 2,
    /// Per destination, the offset behind the last entry in it.
    WritingAt = 3,
}

impl CutTable {
    pub const ALL: [CutTable; 4] = [
        CutTable::Reading,
        CutTable::ReadingAt,
        CutTable::Writing,
        CutTable::WritingAt,
    ];
}

/// Size and place of every part for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that have room here. It is address space only: most of it is for ranks that may be spawned one day.
    pub size: usize,
    /// Most segments a rank may hold in memory.
    pub log_segments: usize,
    /// There is a spill file: an arena has a spill table.
    pub spills: bool,
    /// Determinants are piggybacked: an arena has room for what its rank knows.
    pub piggybacks: bool,
    /// Records in the ring of each rank's trace; 0: the job is not traced.
    pub trace_records: usize,
    /// All ranks can return to a wave: an arena has an undo log.
    pub undoes: bool,
    /// A rank repeats alone what it did: an arena has a read log.
    pub rereads: bool,
}

/// Offsets inside one arena. The owner writes; everyone reads.
///
/// ```text
/// 0             arena header (one page)
/// CHANNELS      channel table: per destination a `u64`: reference of the channel's first kept segment, 0: none yet.
/// When
///               a group begins again from the beginning, the agent writes a 0 inside it (hierarchical)
/// consumed      per source a `u64`:
///               segments of that channel this rank has read to their end (protocol none);
///               where its next message stands, see `Reader::reached` (causal);
///               inside a group the serial of the segment that is being read (hierarchical);
///               1 + the source's messages that this life has found in the record, 0: not known yet (pessimistic and causal,
///               where nodes are lost with records and logs)
/// cursors       IMAGE_SLOTS times, per source a `u64`: serial of the segment of that channel that this rank was
/// reading
///               when the image in that slot was taken; the image needs nothing before it.
///               Under chandy-lamport the first four are instead the tables of the rank's last cut; under group the
///               first has the messages sent so far, per destination
/// announced     per destination a `u64`: messages sent on that channel, written when a wave has stopped this rank, or
///               has made it look whose turn it is (group); inside a group, of any life (hierarchical)
/// image counts  IMAGE_SLOTS times, per destination a `u64`: messages sent to it by the image in that slot; then as
/// many
///               times, per source a `u64`: messages delivered from it by then
/// direct        per other rank eight `u64`: who carries the channels to it and from it, see [`crate::direct`]
/// serials       per slot a `u64`: 1 + serial of the segment that lies there, 0: free
/// spill table   per serial a `u32`: 1 + segment number in the spill file, 0: not spilled; only with such a file
/// knowledge     twice [`KNOWLEDGE_EVENTS`] × [`EVENT_BYTES`]: events that this rank knows, in one half (causal)
/// deeds         what this rank has made and removed in the file system: see [`deeds`]
/// undo          what this rank's MPI library has overwritten in files: see [`crate::undo`]
/// reads         what it has read from them: see there
/// trace         the ring of what this rank does, if the job is traced: see [`crate::trace`]
/// segments      log_segments × SEGMENT bytes
/// ```
///
/// A segment has a *serial* (its number in the life of the log, for ever) and a *slot* (where it lies in memory).
/// A *reference* names both in one word, so that it is published by one store: see [`reference`].
pub mod arena {
    /// Images whose cursors are kept. At most four are useful at once (two files, the snapshot, the one being taken).
    /// The others keep a slot from being used again while a rank still reads its cursors.
    pub const IMAGE_SLOTS: usize = 8;
    pub const CHANNELS: usize = 4096;
    /// Entries of the spill table: 16 TiB of log a rank.
    pub const SPILL_ENTRIES: usize = 1 << 28;

    super::fields! { Arena:
        /// Serials handed out so far.
        Rank Memory NEXT_SERIAL: u64 = 0;
        /// Reference of the first determinant segment, 0: none yet.
        Rank Memory DETERMINANTS: u64 = 8;
        /// Slots taken so far; slots are taken in order and then reused.
        Rank Memory SLOTS_TAKEN: u64 = 16;
        /// 1 + slot of the oldest image that a recovery may begin from, 0: the beginning of the program. This rank and
        /// senders to it may forget all that this image does not need.
        Agent Memory OLDEST_IMAGE: u32 = 24;
        /// Reference of the record's segment that the image in that slot goes on in, 0: its first.
        Rank Image RECORD_CURSORS: [u64; IMAGE_SLOTS] = 32;
        /// Generation in the high half, number of events in the low. The generation's last bit says which half of the
        /// knowledge counts, the number how much of it.
        Rank Memory KNOWLEDGE: u64 = 128;
        /// Whose knowledge it is: the life, and in the low 16 bits how often that life published its knowledge before
        /// it began.
        Rank Memory KNOWLEDGE_LIFE: u64 = 136;
        /// Of each half of the knowledge: so many of its first events were known when the last image was taken.
        Rank Memory KNOWN_TO_IMAGE: [u64; 2] = 144;
        /// How many deliveries the image in that slot covers.
        Rank Image IMAGE_CLOCKS: [u64; IMAGE_SLOTS] = 160;
        /// The number of the image in that slot, written behind its cursors (auto).
        Rank Image IMAGE_NUMBERS: [u64; IMAGE_SLOTS] = 224;
        /// The last wave that this rank has copied itself for (chandy-lamport). Before that the rank writes how far it
        /// had come in its channels. This goes into four tables where other protocols have cursors (see
        /// [`super::Layout::cut`]).
        Rank Memory CUT: u64 = 96;
        /// Number of the oldest wave that a recovery may begin from, 0: none (hierarchical).
        Agent Memory OLDEST_WAVE: u64 = 104;
        /// The port at which ranks of other nodes call this one, 0: nowhere ([`crate::direct`]). For a rank of another
        /// node the mover writes it, after the address.
        Rank Memory DOOR: u64 = 112;
        Agent Memory DOOR_ADDRESS: [u64; 2] = 288;
    }
}

/// What a rank has made and removed in the file system, over all lives. It stays when the node memory is emptied.
pub mod deeds {
    /// `u64` how many have been noted.
    pub const COUNT: usize = 0;
    /// `u32` length and then UTF-8 text, at most [`TEXT_BYTES`]: what this life could not do because a former one had
    /// done it. The agent empties it when a life begins.
    pub const TEXT: usize = 64;
    pub const TEXT_BYTES: usize = 1000;
    /// [`MOST`] times two words, used in turn. The first is a hash of the call and its paths. The second has 15 low
    /// bits for the outcome, then one for a removal, 16 for the number and 32 for a hash of the path.
    pub const NOTES: usize = 4096;
    pub const MOST: usize = 4096;
    pub const BYTES: usize = NOTES + MOST * 16;
}

/// The most unstable events that a rank may know.
pub const KNOWLEDGE_EVENTS: usize = 1 << 23;
/// Bytes of an event in the knowledge: `u32` receiver, `u32` source, `u64` rclock, `u64` polls, `u64` antecedent.
pub const EVENT_BYTES: usize = 32;

/// An event as it lies there.
pub fn event_words(event: &Event) -> [u64; EVENT_BYTES / 8] {
    let named = u64::from(event.receiver) | u64::from(event.record.source) << 32;
    [named, event.rclock, event.record.polls, event.antecedent]
}

/// The event that lies there.
pub fn event_of([named, rclock, polls, antecedent]: [u64; EVENT_BYTES / 8]) -> Event {
    let record = Recorded {
        source: (named >> 32) as u32,
        polls,
    };
    Event {
        receiver: named as u32,
        rclock,
        record,
        antecedent,
    }
}

/// The events that lie in these bytes, one behind the other; none of what is not whole.
pub fn events_of(bytes: &[u8]) -> impl Iterator<Item = Event> {
    bytes.as_chunks::<EVENT_BYTES>().0.iter().map(|event| {
        let (words, _) = event.as_chunks::<8>();
        event_of([words[0], words[1], words[2], words[3]].map(u64::from_le_bytes))
    })
}

/// As [`events_of`] reads it.
pub fn event_bytes(event: &Event) -> [u8; EVENT_BYTES] {
    let mut bytes = [0; EVENT_BYTES];
    let (chunks, _) = bytes.as_chunks_mut::<8>();
    for (chunk, word) in chunks.iter_mut().zip(event_words(event)) {
        *chunk = word.to_le_bytes();
    }
    bytes
}

/// The half of the knowledge that counts, and how many events are there, as [`arena::KNOWLEDGE`] says.
pub const fn knowledge_of(word: u64) -> (usize, usize) {
    ((word >> 32) as usize & 1, word as u32 as usize)
}

/// Most segments a rank may hold in memory (64 GiB).
pub const MAX_LOG_SEGMENTS: usize = 1 << 20;

/// One word that names a segment: its serial and its slot. Never 0.
pub const fn reference(serial: u64, slot: usize) -> u64 {
    ((serial << 20) | slot as u64) + 1
}

/// Serial and slot of a reference.
pub const fn dereference(reference: u64) -> (u64, usize) {
    let word = reference - 1;
    (word >> 20, (word & 0xf_ffff) as usize)
}

const fn page_up(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

const fn block_up(bytes: usize) -> usize {
    bytes.next_multiple_of(LARGE_PAGE)
}

impl Layout {
    /// The same with as much room for further ranks as fits into `most` bytes.
    pub fn with_room(self, most: usize) -> Layout {
        let ranks = self.size;
        let mut layout = Layout {
            size: MAX_RANKS.max(ranks),
            ..self
        };
        // Fewer ranks have smaller tables, too, so that this is a little less than would fit.
        layout.size = layout
            .size
            .min(most.saturating_sub(layout.arena_base()) / layout.arena_stride());
        layout.size = layout.size.max(ranks);
        layout
    }

    /// Offset of the consumed table in an arena.
    pub const fn consumed(&self) -> usize {
        arena::CHANNELS + page_up(self.size * 8)
    }
    /// Offset of the cursors of the images in `slot` in an arena.
    pub const fn cursors(&self, slot: usize) -> usize {
        self.consumed() + page_up(self.size * 8) * (1 + slot)
    }
    /// Offset of one of the tables of the last cut in an arena.
    pub const fn cut(&self, table: CutTable) -> usize {
        self.cursors(table as usize)
    }
    /// Offset of the table of messages sent so far in an arena (group).
    pub const fn sent(&self) -> usize {
        self.cursors(0)
    }
    /// Offset of the announced table in an arena.
    pub const fn announced(&self) -> usize {
        self.cursors(arena::IMAGE_SLOTS)
    }
    /// Offset of the table of messages that had been sent by the image in `slot`, per destination, in an arena.
    pub const fn image_sent(&self, slot: usize) -> usize {
        self.announced() + page_up(self.size * 8) * (1 + slot)
    }
    /// Offset of the table of messages that had been delivered by the image in `slot`, per source, in an arena.
    pub const fn image_delivered(&self, slot: usize) -> usize {
        self.image_sent(arena::IMAGE_SLOTS + slot)
    }
    /// Offset in an arena of the agreement about the channels to and from `other`.
    pub const fn direct(&self, other: usize) -> usize {
        self.image_delivered(arena::IMAGE_SLOTS) + other * crate::direct::BYTES
    }
    /// Offset of the serial table in an arena.
    pub const fn serials(&self) -> usize {
        self.direct(0) + page_up(self.size * crate::direct::BYTES)
    }
    /// Offset of the spill table in an arena.
    pub const fn spill_table(&self) -> usize {
        self.serials() + page_up(self.log_segments * 8)
    }
    /// Offset of a half of the knowledge in an arena.
    pub const fn knowledge(&self, half: usize) -> usize {
        let table = if self.spills { arena::SPILL_ENTRIES * 4 } else { 0 };
        let events = if self.piggybacks { KNOWLEDGE_EVENTS } else { 0 };
        self.spill_table() + table + half * events * EVENT_BYTES
    }
    /// Offset of [`deeds`] in an arena.
    pub const fn deeds(&self) -> usize {
        self.knowledge(2)
    }
    /// Offset of the undo log in an arena, a multiple of a page.
    pub const fn undo(&self) -> usize {
        page_up(self.deeds() + deeds::BYTES)
    }
    /// Offset of the read log in an arena, a multiple of a page.
    pub const fn reads(&self) -> usize {
        self.undo() + if self.undoes { crate::undo::BYTES } else { 0 }
    }
    /// Offset of the ring of the trace in an arena, a multiple of a page.
    pub const fn trace(&self) -> usize {
        self.reads() + if self.rereads { crate::undo::BYTES } else { 0 }
    }
    /// Offset of the segments in an arena, a multiple of a [`BLOCK`].
    pub const fn segments(&self) -> usize {
        block_up(self.trace() + crate::trace::ring_bytes(self.trace_records))
    }
    /// Bytes from one arena to the next, a multiple of a [`BLOCK`].
    pub const fn arena_stride(&self) -> usize {
        self.segments() + block_up(self.log_segments * SEGMENT)
    }
    /// Offset of the control of `rank`.
    pub const fn control(&self, rank: usize) -> usize {
        CONTROL_BASE + rank * CONTROL_STRIDE
    }
    /// Offset of the first arena, a multiple of a [`BLOCK`].
    pub const fn arena_base(&self) -> usize {
        block_up(CONTROL_BASE + self.size * CONTROL_STRIDE)
    }
    /// Offset of the arena of `rank`.
    pub const fn arena(&self, rank: usize) -> usize {
        self.arena_base() + rank * self.arena_stride()
    }
    /// Bytes of the whole node memory; nearly all of it is never touched.
    pub const fn total(&self) -> usize {
        self.arena(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_name_serial_and_slot() {
        assert_eq!(dereference(reference(0, 0)), (0, 0));
        assert_eq!(
            dereference(reference(1 << 40, MAX_LOG_SEGMENTS - 1)),
            (1 << 40, MAX_LOG_SEGMENTS - 1)
        );
    }

    #[test]
    fn there_is_room_for_more_ranks_as_far_as_there_are_addresses() {
        let of = |size, log_segments, most| with_everything(size, log_segments).with_room(most);
        assert_eq!(of(4, 1 << 14, usize::MAX).size, MAX_RANKS);
        let large = of(4, MAX_LOG_SEGMENTS, 1 << 46);
        assert!((500..MAX_RANKS).contains(&large.size) && large.total() <= 1 << 46);
        let tight = of(4, 1 << 14, 20 << 30);
        assert!((5..12).contains(&tight.size) && tight.total() <= 20 << 30);
        assert_eq!(of(4, 1 << 14, 1 << 20).size, 4);
        assert_eq!(of(4096, MAX_LOG_SEGMENTS, usize::MAX).size, 4096);
    }

    #[test]
    fn nothing_is_set_aside_for_what_a_job_has_not() {
        let all = with_everything(4, 16);
        let plain = Layout {
            spills: false,
            piggybacks: false,
            undoes: false,
            rereads: false,
            ..all
        };
        assert!(all.total() > 4 * (3 << 29));
        assert!(plain.total() < 4 * (5 << 20));
    }

    fn with_everything(size: usize, log_segments: usize) -> Layout {
        Layout {
            size,
            log_segments,
            spills: true,
            piggybacks: true,
            trace_records: 0,
            undoes: true,
            rereads: true,
        }
    }

    #[test]
    fn parts_do_not_overlap() {
        let layout = with_everything(7, 1000);
        assert!(layout.control(7) <= layout.arena_base());
        assert!(arena::CHANNELS + 7 * 8 <= layout.consumed() && layout.consumed() + 7 * 8 <= layout.serials());
        assert!(layout.serials() + 8000 <= layout.spill_table());
        assert!(layout.segments().is_multiple_of(LARGE_PAGE) && layout.arena(3).is_multiple_of(LARGE_PAGE));
        const { assert!(control::SIZES.at.is_multiple_of(64) && control::COSTS.at.is_multiple_of(64)) };
    }

    #[test]
    fn fields_do_not_overlap_and_lie_in_their_part() {
        for (fields, end) in [
            (header::ALL, header::BYTES),
            (control::ALL, CONTROL_STRIDE),
            (arena::ALL, arena::CHANNELS),
        ] {
            let mut fields = fields.to_vec();
            fields.sort_by_key(|field| field.at);
            for (field, next) in fields.iter().zip(fields[1..].iter().map(|next| next.at).chain([end])) {
                assert!(field.at + field.bytes <= next, "{} goes beyond {next}", field.name);
                let alignment = field.bytes.min(8);
                assert!(
                    field.at.is_multiple_of(alignment) || field.name == "REPORT",
                    "{}",
                    field.name
                );
                assert!(field.cleared <= field.bytes, "{}", field.name);
            }
        }
        // Every send reads it: it has a cache line of its own.
        let others = header::ALL.iter().filter(|field| field.name != "TURN");
        let line = header::TURN.at..header::TURN.at + 64;
        assert!(line.start.is_multiple_of(64));
        assert!(
            others
                .into_iter()
                .all(|field| field.at + field.bytes <= line.start || field.at >= line.end)
        );
    }

    #[test]
    fn a_life_clears_what_the_rank_said_of_itself_and_nothing_else() {
        let cleared = control::ALL.iter().filter(|field| field.is_cleared_before_a_life());
        let names: Vec<&str> = cleared.map(|field| field.name).collect();
        let all = "PROCESSOR PHASE THREADS DELIVERIES DELIVERED_BYTES KILLED_NS REPLAY_DELIVERIES FIRST_DELIVERY_NS CAUGHT_UP_NS REPLAYED_NS \
                   COLLECTED_NS COLLECTING_NS BUFFERED WAITS_FOR OUTPUT_AWAITED HELD ATTACHED BELL WRITES STABLE FINALIZE_FAILED \
                   REPORT REPORT_CODE AWAITS SIZES";
        assert_eq!(names, all.split_whitespace().collect::<Vec<_>>());
        let per_rank = control::ALL.iter().filter(|field| field.lifetime == Lifetime::Run);
        assert_eq!(
            per_rank.map(|field| field.name).collect::<Vec<_>>(),
            ["GROUP", "LOST_READS", "COSTS", "NOTES_ASKED", "NOTES_KEPT"]
        );
    }
}

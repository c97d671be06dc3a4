//! The node memory: one memfd per node, created and held by the agent, mapped by every rank of the node.
//!
//! ```text
//! 0                 node header            one page, written by the agent before any rank starts
//! CONTROL_BASE      rank controls          CONTROL_STRIDE bytes a rank; other ranks may write to the first page of one
//! arena_base        arenas                 arena_stride bytes a rank; written by its own rank only
//! ```
//!
//! Every rank maps it at the same address, which is far from everything that the kernel places by itself: so mapping it never moves the
//! program's own mappings. The launcher chooses it ([`crate::places`]).
//!
//! The agent keeps the memfd open, so all of it outlives any rank: a recovering rank finds in its own
//! arena every message it had logged and every delivery it had recorded. The agent itself reads and
//! writes single fields with `pread` and `pwrite`; the provider maps the memory, and so does what moves messages to other nodes.
//!
//! All integers are little-endian (the processes share one machine). Offsets are in bytes. A [`Field`] says what lies there, who writes
//! it, and how long it counts; from that follows what is cleared when a life of a rank begins.

mod field;
pub mod ready;

use crate::handshake::Server;
use field::fields;
pub use field::{Arena, Content, Control, Declared, Field, Header, Lifetime, Owner, Text, Word};

/// First eight bytes of a node memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RESURGO1");
/// Changes whenever the meaning of any byte below changes.
pub const VERSION: u32 = 19;

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
/// File descriptor of the eventfd in every rank that wakes what moves messages to other nodes, when there are any.
pub const NET_FD: i32 = 35;

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
        /// 0: the loss of a process is tolerated; 1: of a node.
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
        /// The last wave that is complete or has been dropped: nothing of the logs is needed for it any more.
        Agent Memory WAVES_OVER: u64 = 128;
        /// How piggybacks are kept small (causal): [`super::REDUCTIONS`] by number.
        Agent Memory REDUCTION: u32 = 136;
        /// How stable clocks spread (causal, several event loggers): [`super::CLOCK_SPREADS`] by number.
        Agent Memory CLOCK_SPREAD: u32 = 140;
        /// Address at which all ranks map the node memory, a multiple of [`super::LARGE_PAGE`].
        Agent Memory PLACE: u64 = 144;
        /// Until when ranks may say something to ranks of other nodes, by CLOCK_BOOTTIME in nanoseconds; 0: for ever. The agent puts it
        /// off as long as it has its lease. An agent that stands still cannot end its ranks: they look.
        Agent Memory VALID_UNTIL: u64 = 152;
        /// How far a wave of groups has come ([`resurgo_protocol::group::Turn`] as a word; group). In a cache line of its own:
        /// every send reads it.
        Agent Memory TURN: u64 = 192;
        /// The servers of the job, each as [`Service::to_words`] has it, up to the first place that has none. Rank r's event logger, or
        /// channel memory, is the one whose number is r modulo their count.
        Agent Memory SERVICES: [u64; super::MAX_SERVICES * Service::WORDS] = 256;
        /// Bit d: some channel to rank d, which is on another node, may have news.
        Peers Memory NEWS: [u64; 64] = SERVICES.at + super::MAX_SERVICES * Service::WORDS * 8;
        /// 1 while the agent's mover, which is the receiver of all that goes to ranks of other nodes, sleeps or is about to: who has
        /// news for it writes to [`super::NET_FD`].
        Agent Memory MOVER_SLEEPS: u32 = NEWS.at + 64 * 8;
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
        /// 1 while the rank sleeps or is about to; [`super::ELSEWHERE`]: it is on another node, where the mover takes its news.
        Rank Memory SLEEPING: u32 = 68;
        /// Bit w: word w of [`READY`] may be non-zero.
        Peers Memory READY_SUMMARY: u64 = 128;
        /// Bit s: the channel from rank s may have news.
        Peers Memory READY: [u64; 64] = 192;
        /// See [`super::PHASE_START`] and following.
        Rank Life PHASE: u32 = 768;
        /// Threads that have called the provider: 0 or 1, 2 when MPI has been handed from one to another, and
        /// [`super::MANY_THREADS`] when several call MPI all the time, in an order that cannot be replayed.
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
        /// While the rank waits in its replay for a message, 0 otherwise: 1 + its source in the low 16 bits; above, 24 bits how often
        /// it has looked for it; above, 24 bits the number of the wait.
        Rank Life WAITS_FOR: u64 = 856;
        /// 1 when the life would have made a new delivery, and [`OUTPUT_BEHIND`] was not 0.
        Rank Life OUTPUT_AWAITED: u64 = 864;
        /// Nanoseconds since 1970 (CLOCK_REALTIME) at which the life was begun.
        Agent Life BEGAN_NS: u64 = 872;
        /// While the rank holds sends until the event logger has its deliveries, 0 otherwise: how many this life had held before the
        /// oldest of them, plus 1.
        Rank Life HELD: u64 = 880;
        /// Number of the process that has opened the provider in this life, as it sees it; 0: none has.
        Rank Life ATTACHED: u64 = 888;
        /// 1 while the life has yet to print again some of the standard output that earlier lives printed, as the dispatcher says: the
        /// rank makes no new delivery before it is 0.
        Agent Life OUTPUT_BEHIND: u64 = 896;
        /// Deliveries on which something depends that the agent has passed on (output, words to PMI): whoever has it knows
        /// them, whatever becomes of the rank. Where determinants are piggybacked.
        Agent Memory PASSED_ON: u64 = 904;
        /// The rank's group, from 1. Of the last wave that has been begun, written by the agent before the turn of the first
        /// group (group); always the same, written before any rank starts (hierarchical).
        Agent Memory GROUP: u64 = 912;
        /// 1 + the reads from the last delivery to the last new send of any life, 0: there was none. A new life
        /// finds what the former ones left.
        Rank Memory READS_AT_SEND: u64 = 920;
        /// Length and then UTF-8 text: why the rank ended itself; at most [`REPORT_BYTES`] bytes. A rank that writes a
        /// report exits with [`super::EXIT_REPORT`].
        Rank Life REPORT: super::Text<REPORT_BYTES> = 1024;
        /// [`crate::counters::Sizes`]: `u64` messages and `u64` bytes of each class, as far as this life has come.
        Rank Life SIZES: Sizes = 4096;
        /// [`crate::counters::Costs`]: a `u64` each, over all lives of the rank in this run of the job.
        Rank Run COSTS: Costs = SIZES.at + size_of::<Sizes>();
    }
}

/// Exit code of a rank that ended itself and left a report in [`control::REPORT`]: it is not restarted, the job ends.
pub const EXIT_REPORT: i32 = 119;

/// Exit code of a rank that has found, in its replay, that the program does not repeat what it did; with a report as with
/// [`EXIT_REPORT`]. Where there are waves all ranks can return to the last one, else the job ends.
pub const EXIT_DIVERGED: i32 = 120;

/// See [`control::SLEEPING`].
pub const ELSEWHERE: u32 = 2;

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
    /// of what was in transit.
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

/// Size and place of every part for a job, from what the agent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that there is room for. It is address space only: most of it is for ranks that may be spawned one day.
    pub size: usize,
    /// Most segments a rank may hold in memory.
    pub log_segments: usize,
    /// There is a spill file: an arena has a spill table.
    pub spills: bool,
    /// Determinants are piggybacked: an arena has room for what its rank knows.
    pub piggybacks: bool,
}

/// Offsets inside one arena. The owner writes; everyone reads.
///
/// ```text
/// 0             arena header (one page)
/// CHANNELS      channel table: one `u64` a destination: reference of the channel's first segment that is kept, 0: none yet;
///               inside a group that begins again from the beginning the agent writes a 0 (hierarchical)
/// consumed      per source a `u64`: segments of that channel this rank has read to their end (protocol none); where its next
///               message stands, what is before it has been delivered (causal): see `Reader::reached`; inside a group the serial
///               of the segment that is being read (hierarchical)
/// cursors       IMAGE_SLOTS times, per source a `u64`: serial of the segment of that channel that this rank was reading
///               when the image in that slot was taken; everything before it is not needed by that image
///               Under chandy-lamport the first four are instead the tables of the rank's last cut; under group the first
///               is per destination how many messages have been sent on that channel so far
/// announced     per destination a `u64`: messages sent on that channel, written when a wave has stopped this rank, or
///               has made it look whose turn it is (group); inside a group, what any life has sent (hierarchical)
/// image counts  IMAGE_SLOTS times, per destination a `u64`: messages sent to it by the image in that slot; then as many times, per
///               source a `u64`: messages delivered from it by then
/// serials       per slot a `u64`: 1 + serial of the segment that lies there, 0: free
/// spill table   per serial a `u32`: 1 + segment number in the spill file, 0: not spilled; only where there is such a file
/// knowledge     twice [`KNOWLEDGE_EVENTS`] × [`EVENT_BYTES`]: events that this rank knows, in one half (causal)
/// deeds         what this rank has made and removed in the file system: see [`deeds`]
/// segments      log_segments × SEGMENT bytes
/// ```
///
/// A segment has a *serial* (its number in the life of the log, for ever) and a *slot* (where it lies in memory).
/// A *reference* names both in one word, so that it is published by one store: see [`reference`].
pub mod arena {
    /// Images whose cursors are kept. At most four are of use at once (two files, the snapshot, the one being taken); the
    /// others keep a slot from being used again while somebody still reads its cursors.
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
        /// 1 + slot of the oldest image that a recovery may begin from, 0: the beginning of the program. What that image
        /// does not need may be forgotten, here and by senders to this rank.
        Agent Memory OLDEST_IMAGE: u32 = 24;
        /// Reference of the record's segment that the image in that slot goes on in, 0: its first.
        Rank Image RECORD_CURSORS: [u64; IMAGE_SLOTS] = 32;
        /// Generation in the high half, number of events in the low: which half of the knowledge counts (the generation's
        /// last bit), and how much of it.
        Rank Memory KNOWLEDGE: u64 = 128;
        /// Whose knowledge it is: the life, and in the low 16 bits how often that has said what it knows before it began.
        Rank Memory KNOWLEDGE_LIFE: u64 = 136;
        /// Of each half of the knowledge: so many of its first events were known when the last image was taken.
        Rank Memory KNOWN_TO_IMAGE: [u64; 2] = 144;
        /// How many deliveries the image in that slot covers.
        Rank Image IMAGE_CLOCKS: [u64; IMAGE_SLOTS] = 160;
        /// The number of the image in that slot, written behind its cursors (auto).
        Rank Image IMAGE_NUMBERS: [u64; IMAGE_SLOTS] = 224;
        /// The last wave that this rank has copied itself for (chandy-lamport). How far it had come in its channels then is
        /// written before, into four tables that lie where other protocols have cursors (see [`super::Layout::cut`]).
        Rank Memory CUT: u64 = 96;
        /// Number of the oldest wave that a recovery may begin from, 0: none (hierarchical).
        Agent Memory OLDEST_WAVE: u64 = 104;
    }
}

/// What a rank has made and removed in the file system, over all lives. It stays also when the node memory is emptied.
pub mod deeds {
    /// `u64` how many have been noted.
    pub const COUNT: usize = 0;
    /// `u32` length and then UTF-8 text: what this life could not do because a former one had done it, at most [`TEXT_BYTES`].
    /// The agent empties it when a life begins.
    pub const TEXT: usize = 64;
    pub const TEXT_BYTES: usize = 1000;
    /// [`MOST`] times two words, used in turn: a hash of the call and its paths; and, from the low bits, 15 how it went, one whether it
    /// removes, 16 of its number, 32 of a hash of the path.
    pub const NOTES: usize = 4096;
    pub const MOST: usize = 4096;
    pub const BYTES: usize = NOTES + MOST * 16;
}

/// Most events that a rank may know and that are not stable.
pub const KNOWLEDGE_EVENTS: usize = 1 << 23;
/// Bytes of an event in the knowledge: `u32` receiver, `u32` source, `u64` rclock, `u64` polls, `u64` antecedent.
pub const EVENT_BYTES: usize = 32;

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
    /// The same with as much room for further ranks as can be had within `most` bytes.
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
    /// Offset of the serial table in an arena.
    pub const fn serials(&self) -> usize {
        self.image_delivered(arena::IMAGE_SLOTS)
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
    /// Offset of the segments in an arena, a multiple of a [`BLOCK`].
    pub const fn segments(&self) -> usize {
        block_up(self.deeds() + deeds::BYTES)
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
        let all = "PHASE THREADS DELIVERIES DELIVERED_BYTES KILLED_NS REPLAY_DELIVERIES FIRST_DELIVERY_NS CAUGHT_UP_NS REPLAYED_NS \
                   COLLECTED_NS COLLECTING_NS BUFFERED WAITS_FOR OUTPUT_AWAITED HELD ATTACHED REPORT SIZES";
        assert_eq!(names, all.split_whitespace().collect::<Vec<_>>());
        let per_rank = control::ALL.iter().filter(|field| field.lifetime == Lifetime::Run);
        assert_eq!(per_rank.map(|field| field.name).collect::<Vec<_>>(), ["COSTS"]);
    }
}

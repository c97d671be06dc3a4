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
//! writes single fields with `pread` and `pwrite`; only the provider maps the memory.
//!
//! All integers are little-endian (the processes share one machine). Offsets are in bytes.

/// First eight bytes of a node memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RESURGO1");
/// Changes whenever the meaning of any byte below changes.
pub const VERSION: u32 = 16;

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
    /// `u64` [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// `u32` [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// `u32` number of ranks that there is room for.
    pub const SIZE: usize = 12;
    /// `u32` number of the protocol ([`resurgo_protocol::Protocol`]).
    pub const PROTOCOL: usize = 16;
    /// `u32` 0: the loss of a process is tolerated; 1: of a node.
    pub const TOLERATE_NODE: usize = 20;
    /// `u64` offset of the first arena.
    pub const ARENA_BASE: usize = 24;
    /// `u64` bytes from one arena to the next.
    pub const ARENA_STRIDE: usize = 32;
    /// `u64` most segments a rank may hold in memory (the bound `--log-memory`).
    pub const LOG_SEGMENTS: usize = 40;
    /// `u32` 1: full segments are written to the file [`super::SPILL_FD`] when the bound is reached.
    pub const SPILL: usize = 48;
    /// `u32` segments that every rank touches when it starts, so that logging into them later costs no page faults.
    pub const PREFAULT_SEGMENTS: usize = 52;
    /// `u64` nanoseconds a waiting rank polls before it sleeps.
    pub const SPIN_NS: usize = 56;
    /// `u64` next free segment of the spill file; ranks take from it with an atomic add.
    pub const SPILL_NEXT: usize = 64;
    /// `u32` number of event loggers. Rank r logs to number r modulo this.
    pub const EVENT_LOGGERS: usize = 72;
    /// `u32` IPv4 address of the event loggers, first number in the high byte.
    pub const EVENT_LOGGER_ADDRESS: usize = 76;
    /// 32 bytes: the job's key.
    pub const JOB_KEY: usize = 80;
    /// `u32` number of ranks that the job has had so far; grows when ranks spawn others, before those start. Nothing
    /// beyond them has been used.
    pub const RANKS: usize = 112;
    /// `u64` the last wave that ranks have been asked for (chandy-lamport), written before any of them is asked.
    pub const WAVES_ASKED: usize = 120;
    /// `u64` the last wave that is complete or has been dropped: nothing of the logs is needed for it any more.
    pub const WAVES_OVER: usize = 128;
    /// `u32` how piggybacks are kept small (causal): [`super::REDUCTIONS`] by number.
    pub const REDUCTION: usize = 136;
    /// `u32` how stable clocks spread (causal, several event loggers): [`super::CLOCK_SPREADS`] by number.
    pub const CLOCK_SPREAD: usize = 140;
    /// `u32` × [`super::MAX_EVENT_LOGGERS`] TCP ports of the event loggers.
    pub const EVENT_LOGGER_PORTS: usize = 144;
    /// `u32` number of channel memories. Rank r's is number r modulo this.
    pub const CHANNEL_MEMORIES: usize = EVENT_LOGGER_PORTS + super::MAX_EVENT_LOGGERS * 4;
    /// `u32` IPv4 address of the channel memories, first number in the high byte.
    pub const CHANNEL_MEMORY_ADDRESS: usize = CHANNEL_MEMORIES + 4;
    /// `u32` × [`super::MAX_CHANNEL_MEMORIES`] TCP ports of the channel memories.
    pub const CHANNEL_MEMORY_PORTS: usize = CHANNEL_MEMORY_ADDRESS + 4;
    /// `u64` address at which all ranks map the node memory, a multiple of [`super::LARGE_PAGE`].
    pub const PLACE: usize = CHANNEL_MEMORY_PORTS + super::MAX_CHANNEL_MEMORIES * 4;
    /// `u64` how far a wave of groups has come ([`resurgo_protocol::group::Turn`] as a word; group). In a cache line of its own:
    /// every send reads it.
    pub const TURN: usize = 1024;
    /// Bytes of the header.
    pub const BYTES: usize = 4096;
}

/// Names of the ways to keep piggybacks small, by number.
pub const REDUCTIONS: [&str; 3] = ["vcausal", "manetho", "logon"];
/// Names of the ways in which ranks learn what event loggers other than their own have, by number.
pub const CLOCK_SPREADS: [&str; 3] = ["multicast", "broadcast", "piggyback"];
pub const SPREAD_MULTICAST: u32 = 0;
pub const SPREAD_BROADCAST: u32 = 1;
pub const SPREAD_PIGGYBACK: u32 = 2;
/// Most event loggers of a job.
pub const MAX_EVENT_LOGGERS: usize = 64;
/// Most channel memories of a job.
pub const MAX_CHANNEL_MEMORIES: usize = 64;

/// Offset of the first rank control.
pub const CONTROL_BASE: usize = header::BYTES;
/// Bytes of a rank control.
pub const CONTROL_STRIDE: usize = 8192;

/// Fields of a rank control, relative to its start.
pub mod control {
    use crate::counters::Sizes;

    // Written by the agent before each start of the rank.

    /// `u64` the rank's incarnation, from 1.
    pub const INCARNATION: usize = 0;
    /// `u64` the rank kills itself (SIGKILL) when it has made this many sends and deliveries in this life; 0: never.
    pub const FAULT_AT_MESSAGES: usize = 8;
    /// `u64` the rank asks the agent for an image of itself when it has made this many sends and deliveries; 0: never.
    pub const IMAGE_AT_MESSAGES: usize = 16;

    /// `u64` 1: this life begins together with those of all other ranks (of its group), which return to a wave; 0: alone.
    pub const TOGETHER: usize = 24;

    // Written by other ranks.

    /// `u32` futex word the rank sleeps on.
    pub const DOORBELL: usize = 64;
    /// `u32` 1 while the rank sleeps or is about to.
    pub const SLEEPING: usize = 68;
    /// `u64` bit w: word w of [`READY`] may be non-zero.
    pub const READY_SUMMARY: usize = 128;
    /// `u64` × 64: bit s: the channel from rank s may have news.
    pub const READY: usize = 192;

    // Written by the rank itself, read by the agent.

    /// `u32` see [`super::PHASE_START`] and following.
    pub const PHASE: usize = 768;
    /// `u32` threads that have called the provider: 0 or 1, 2 when MPI has been handed from one to another, and
    /// [`super::MANY_THREADS`] when several call MPI all the time, in an order that cannot be replayed.
    pub const THREADS: usize = 772;
    /// `u64` deliveries, with those before the image that this life began from (the rank's rclock).
    pub const DELIVERIES: usize = 776;
    /// `u64` payload bytes of the messages delivered, counted like them.
    pub const DELIVERED_BYTES: usize = 784;
    /// `u64` CLOCK_MONOTONIC nanoseconds at which the injected fault [`FAULT_AT_MESSAGES`] struck.
    pub const KILLED_NS: usize = 792;
    /// `u64` deliveries that this life repeats from the record.
    pub const REPLAY_DELIVERIES: usize = 800;
    /// `u64` CLOCK_MONOTONIC nanoseconds of the life's first delivery (or its first live one when nothing is replayed).
    pub const FIRST_DELIVERY_NS: usize = 808;
    /// `u64` CLOCK_MONOTONIC nanoseconds at which the replay had caught up.
    pub const CAUGHT_UP_NS: usize = 816;
    /// `u64` CLOCK_MONOTONIC nanoseconds at which the last delivery of the record had been repeated, 0: there is none.
    pub const REPLAYED_NS: usize = 824;
    /// `u64` CLOCK_MONOTONIC nanoseconds at which the life knew what it has to repeat.
    pub const COLLECTED_NS: usize = 832;
    /// `u64` nanoseconds that it took to find that out: own logs, record, and event logger.
    pub const COLLECTING_NS: usize = 840;
    /// `u64` deferred messages in the rank's buffer (group).
    pub const BUFFERED: usize = 848;
    /// `u64` while the rank waits in its replay for a message, 0 otherwise: 1 + its source in the low 16 bits; above, 24 bits how often
    /// it has looked for it; above, 24 bits the number of the wait.
    pub const WAITS_FOR: usize = 856;
    /// `u64` 1 when the life would have made a new delivery, and [`OUTPUT_BEHIND`] was not 0.
    pub const OUTPUT_AWAITED: usize = 864;
    /// `u64` nanoseconds since 1970 (CLOCK_REALTIME) at which the life was begun. Written by the agent.
    pub const BEGAN_NS: usize = 872;

    /// `u64` while the rank holds sends until the event logger has its deliveries, 0 otherwise: how many this life had held before the
    /// oldest of them, plus 1.
    pub const HELD: usize = 880;
    /// `u64` number of the process that has opened the provider in this life, as it sees it; 0: none has.
    pub const ATTACHED: usize = 888;

    /// `u64` what the agent has forwarded of the rank's standard output in earlier lives and not yet seen again in this one,
    /// in bytes: the rank makes no new delivery before it is 0. Written by the agent.
    pub const OUTPUT_BEHIND: usize = 896;
    /// `u64` deliveries on which something depends that the agent has passed on (output, words to PMI): whoever has it knows
    /// them, whatever becomes of the rank. Written by the agent, where determinants are piggybacked.
    pub const PASSED_ON: usize = 904;
    /// `u64` the rank's group, from 1. Of the last wave that has been begun, written by the agent before the turn of the first
    /// group (group); always the same, written before any rank starts (hierarchical).
    pub const GROUP: usize = 912;
    /// `u64` 1 + the reads from the last delivery to the last new send of any life, 0: there was none. Written by the rank; a new life
    /// finds what the former ones left.
    pub const READS_AT_SEND: usize = 920;

    /// `u32` length and then UTF-8 text: why the rank ended itself; at most [`REPORT_BYTES`] bytes. A rank that writes a
    /// report exits with [`super::EXIT_REPORT`].
    pub const REPORT: usize = 1024;
    pub const REPORT_BYTES: usize = 3000;

    // Counters, on a page of their own: written by the rank only, read by the agent. See [`crate::counters`].

    /// [`crate::counters::Sizes`]: `u64` messages and `u64` bytes of each class, as far as this life has come.
    pub const SIZES: usize = 4096;
    /// [`crate::counters::Costs`]: a `u64` each, over all lives of the rank in this run of the job.
    pub const COSTS: usize = SIZES + size_of::<Sizes>();
}

/// Exit code of a rank that ended itself and left a report in [`control::REPORT`]: it is not restarted, the job ends.
pub const EXIT_REPORT: i32 = 119;

/// Exit code of a rank that has found, in its replay, that the program does not repeat what it did; with a report as with
/// [`EXIT_REPORT`]. Where there are waves all ranks can return to the last one, else the job ends.
pub const EXIT_DIVERGED: i32 = 120;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// `u64` serials handed out so far.
    pub const NEXT_SERIAL: usize = 0;
    /// `u64` reference of the first determinant segment, 0: none yet.
    pub const DETERMINANTS: usize = 8;
    /// `u64` slots taken so far; slots are taken in order and then reused.
    pub const SLOTS_TAKEN: usize = 16;
    /// `u32` 1 + slot of the oldest image that a recovery may begin from, 0: the beginning of the program. What that image
    /// does not need may be forgotten, here and by senders to this rank. Written by the agent.
    pub const OLDEST_IMAGE: usize = 24;
    /// `u64` × [`IMAGE_SLOTS`]: reference of the record's segment that the image in that slot goes on in, 0: its first.
    pub const RECORD_CURSORS: usize = 32;
    /// `u64` generation in the high half, number of events in the low: which half of the knowledge counts (the generation's
    /// last bit), and how much of it.
    pub const KNOWLEDGE: usize = 128;
    /// `u64` whose knowledge it is: the life, and in the low 16 bits how often that has said what it knows before it began.
    pub const KNOWLEDGE_LIFE: usize = 136;
    /// `u64` × 2, of each half of the knowledge: so many of its first events were known when the last image was taken.
    pub const KNOWN_TO_IMAGE: usize = 144;
    /// `u64` × [`IMAGE_SLOTS`]: how many deliveries the image in that slot covers.
    pub const IMAGE_CLOCKS: usize = 160;
    /// Images whose cursors are kept. At most four are of use at once (two files, the snapshot, the one being taken); the
    /// others keep a slot from being used again while somebody still reads its cursors.
    pub const IMAGE_SLOTS: usize = 8;
    /// `u64` the last wave that this rank has copied itself for (chandy-lamport). How far it had come in its channels then is
    /// written before, into four tables that lie where other protocols have cursors (see [`super::Layout::cut`]).
    pub const CUT: usize = 96;
    /// `u64` number of the oldest wave that a recovery may begin from, 0: none. Written by the agent (hierarchical).
    pub const OLDEST_WAVE: usize = 104;
    pub const CHANNELS: usize = 4096;
    /// Entries of the spill table: 16 TiB of log a rank.
    pub const SPILL_ENTRIES: usize = 1 << 28;
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
    /// Offset of the serial table in an arena.
    pub const fn serials(&self) -> usize {
        self.announced() + page_up(self.size * 8)
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
        const { assert!(control::READY + 512 <= control::PHASE) };
        const { assert!(control::REPORT + 4 + control::REPORT_BYTES <= control::SIZES) };
        const { assert!(control::SIZES.is_multiple_of(64) && control::COSTS.is_multiple_of(64)) };
        const { assert!(control::COSTS + size_of::<crate::counters::Costs>() <= CONTROL_STRIDE) };
        const { assert!(arena::RECORD_CURSORS + arena::IMAGE_SLOTS * 8 <= arena::CUT) };
        const { assert!(arena::IMAGE_CLOCKS + arena::IMAGE_SLOTS * 8 <= arena::CHANNELS) };
        const { assert!(header::PLACE + 8 <= header::TURN && header::PLACE.is_multiple_of(8)) };
        const { assert!(header::TURN + 64 <= header::BYTES && header::TURN.is_multiple_of(64)) };
        const { assert!(control::GROUP + 8 <= control::REPORT && control::HELD + 8 <= control::OUTPUT_BEHIND) };
    }
}

//! The owner's side of an arena: where segments come from.
//!
//! Without retention (`none`) segments are used again when their receiver has read them, and many take turns. A segment
//! that was just read is in another processor's cache and would have to be taken from there; one that was read long ago
//! is not. With retention every segment is kept until the bound of the log memory. Then the oldest full ones go to the
//! spill file, if there is one.

use crate::claim;
use crate::clock::monotonic_ns;
use crate::node::{Large, Node};
use resurgo_wire::counters::Cost;
use resurgo_wire::node_memory::{self as nm, BLOCK, SEGMENT, arena};
use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

/// Segments that only the record may take: it goes on when the log is full and waits for images.
const RESERVED: usize = 2;
/// How much the log grows between two messages about it to the agent (16 MiB). When the log is half full, it is never
/// more than a sixteenth of the log's bound.
const STEP: usize = 256;
/// With so much at hand (256 MiB) the agent is told nothing.
const PLENTY: usize = 4096;
/// The least time between two calls for images by a rank that waits for room.
const CALL_AGAIN_NS: u64 = 20_000_000;

/// Said of a rank whose log is full, where a wrapper has started the program.
const WRAPPED: &str = "; such ranks have no images, as a wrapper has started the program as its child: run the program itself, or with \
                       exec in the wrapper";

pub struct Arena {
    retains: bool,
    serial: u64,
    taken: usize,
    populated: usize,
    large: Large,
    /// Segments that hold nothing any more, the one free for longest first.
    free: VecDeque<usize>,
    /// The mark of every entry written from now on: see [`resurgo_protocol::chandy_lamport`].
    pub mark: u16,
    /// Full segments in memory, oldest first: serial and slot. Kept only when there is a spill file.
    full: VecDeque<(u64, usize)>,
    /// Segments taken since the agent was last told that the log grows, and when that was.
    grown: usize,
    told_ns: u64,
}

impl Arena {
    /// The most unread segments that a channel may have in memory (without retention) when the arena's ample ones are
    /// in use.
    pub const WINDOW: usize = 8;
    /// So many segments take turns (4 MiB): what was read that long ago has left the inner caches of the processor that
    /// read it. Most of it is still in the outer one.
    const AMPLE: usize = 64;

    /// An arena that this rank has not read yet.
    pub fn untouched(node: &Node) -> Self {
        Arena {
            retains: node.logs,
            serial: 0,
            taken: 0,
            populated: 0,
            large: Large::default(),
            free: VecDeque::new(),
            mark: 0,
            full: VecDeque::new(),
            grown: 0,
            told_ns: 0,
        }
    }

    /// Takes over the own arena, as a former life may have left it.
    pub fn new(node: &Node) -> Self {
        let taken = node.own(arena::SLOTS_TAKEN).load(Ordering::Acquire) as usize;
        let mut arena = Arena {
            serial: node.own(arena::NEXT_SERIAL).load(Ordering::Acquire),
            taken,
            ..Arena::untouched(node)
        };
        let ahead = taken + node.prefault_segments;
        node.populate(taken, ahead, &mut arena.large);
        arena.populated = ahead.min(node.layout.log_segments);
        arena.count(node);
        arena
    }

    /// Publishes how much memory the log holds.
    #[inline]
    fn count(&self, node: &Node) {
        let bytes = ((self.taken - self.free.len()) * SEGMENT) as u64;
        node.put(Cost::LogBytes, bytes);
        node.most(Cost::MostLogBytes, bytes);
    }

    /// The process has returned to a wave: the arena is empty. No thread of the program runs yet, so this must not call
    /// the C library.
    pub fn restart(&mut self) {
        (self.serial, self.taken, self.populated) = (0, 0, 0);
        (self.grown, self.told_ns) = (0, 0);
        self.free.clear();
        self.full.clear();
    }

    /// After [`Arena::restart`]: takes over the segments that the agent put into it.
    pub fn find(&mut self, node: &Node) {
        self.serial = node.own(arena::NEXT_SERIAL).load(Ordering::Acquire);
        self.taken = node.own(arena::SLOTS_TAKEN).load(Ordering::Acquire) as usize;
        self.populated = self.taken;
        self.count(node);
    }

    /// True when segments are kept for receivers that may ask again.
    #[inline]
    pub fn retains(&self) -> bool {
        self.retains
    }

    /// Whether a channel with so many segments may have one more.
    #[inline]
    pub fn admits(&self, node: &Node, outstanding: usize) -> bool {
        self.retains || outstanding < Self::WINDOW || self.taken - self.free.len() < Self::ample(node)
    }

    /// Leaves half of a small memory for channels that have no segment yet.
    fn ample(node: &Node) -> usize {
        Self::AMPLE.min(node.layout.log_segments / 2)
    }

    /// A segment for the log: its reference and slot. None: every segment is in use.
    pub fn take(&mut self, node: &Node) -> Option<(u64, usize)> {
        let free = self.unused(node);
        if self.retains && !node.spill && free <= RESERVED {
            return None;
        }
        self.grown += 1;
        let bound = node.layout.log_segments;
        let is_scarce = !node.spill && free * 2 < bound;
        let step = if is_scarce { STEP.min(bound / 16) } else { STEP };
        // Memory that was used before, or requested at the start, costs nothing more; images take a while.
        let at_hand = self.free.len() + self.populated.saturating_sub(self.taken);
        if self.retains && self.grown >= step && (is_scarce || at_hand < PLENTY) {
            self.tell_of_growth(is_scarce);
        }
        self.take_any(node)
    }

    /// Tells the agent that the log has grown: images of the receivers let it forget. The agent decides whether they
    /// are worth it. When the log `is_scarce`, the agent takes them in any case.
    fn tell_of_growth(&mut self, is_scarce: bool) {
        if resurgo_image::is_enabled() {
            resurgo_image::log_grows((self.grown * SEGMENT) as u64, is_scarce);
        }
        self.grown = 0;
        self.told_ns = monotonic_ns();
    }

    /// Asks for images: until they exist there is no room.
    pub fn call_for_images(&mut self) {
        if monotonic_ns() - self.told_ns > CALL_AGAIN_NS {
            self.tell_of_growth(true);
        }
    }

    /// The same for the record, from the reserve if need be.
    pub fn take_any(&mut self, node: &Node) -> Option<(u64, usize)> {
        let slot = if let Some(slot) = self.next_free(node) {
            self.free.pop_front();
            slot
        } else if self.taken < node.layout.log_segments {
            let slot = self.taken;
            if slot >= self.populated {
                self.populated = (slot + 1).next_multiple_of(BLOCK);
                node.populate(slot, self.populated, &mut self.large);
            }
            self.taken += 1;
            node.own(arena::SLOTS_TAKEN).store(self.taken as u64, Ordering::Release);
            slot
        } else if self.retains && node.spill {
            self.spill_oldest(node)
        } else {
            return None;
        };
        let serial = self.serial;
        self.serial += 1;
        node.own(arena::NEXT_SERIAL).store(self.serial, Ordering::Release);
        node.serial_in(node.rank, slot).store(serial + 1, Ordering::Release);
        self.count(node);
        Some((nm::reference(serial, slot), slot))
    }

    /// Ends the job, as the log cannot go on.
    pub fn report_full(node: &Node) -> ! {
        let mib = (node.layout.log_segments * SEGMENT) >> 20;
        node.report(&format!(
            "the message log of rank {} is full ({mib} MiB), and no images of the ranks it sends to have let it forget: give \
             it more with --log-memory, or let it spill to a file with --spill-dir{}",
            node.rank,
            if claim::is_below_wrapper() { WRAPPED } else { "" }
        ));
    }

    /// A receiver has read the segment in `slot` to its end and nothing is retained.
    pub fn free(&mut self, node: &Node, slot: usize) {
        self.free.push_back(slot);
        self.count(node);
    }

    /// Frees the slot of segment `serial`, which no receiver can need again, unless the segment was spilled.
    pub fn forget(&mut self, node: &Node, serial: u64, slot: usize) {
        let lies_in = node.serial_in(node.rank, slot);
        if lies_in.load(Ordering::Relaxed) == serial + 1 {
            lies_in.store(0, Ordering::SeqCst);
            // As in `spill_oldest`.
            fence(Ordering::SeqCst);
            self.free(node, slot);
        }
    }

    /// The same for a segment that was kept for a short time only: the log has not grown.
    pub fn give_back(&mut self, node: &Node, serial: u64, slot: usize) {
        self.grown = self.grown.saturating_sub(1);
        self.forget(node, serial, slot);
    }

    /// The slot that the next segment will probably get, if its memory exists already.
    #[inline]
    pub fn next_slot(&self, node: &Node) -> Option<usize> {
        match self.next_free(node) {
            None => (self.taken < self.populated).then_some(self.taken),
            slot => slot,
        }
    }

    /// The slot that is used again next. None: a new one is taken.
    #[inline]
    fn next_free(&self, node: &Node) -> Option<usize> {
        let is_enough = self.taken >= Self::ample(node);
        self.free.front().copied().filter(|_| is_enough)
    }

    /// Whether so many segments can ever be free at once.
    pub fn could_have(node: &Node, segments: usize) -> bool {
        segments + RESERVED <= node.layout.log_segments
    }

    /// Whether the log has room for so many more segments.
    #[inline]
    pub fn has(&self, node: &Node, segments: usize) -> bool {
        !self.retains || node.spill || self.unused(node) >= segments + RESERVED
    }

    /// Segments that hold nothing.
    #[inline]
    pub fn unused(&self, node: &Node) -> usize {
        self.free.len() + node.layout.log_segments - self.taken
    }

    /// The segment at `start` is full: it may be spilled from now on.
    pub fn closed(&mut self, node: &Node, start: *mut u8) {
        if self.retains && node.spill {
            let slot = (start as usize - node.segment(node.rank, 0) as usize) / SEGMENT;
            self.full
                .push_back((node.serial_in(node.rank, slot).load(Ordering::Relaxed) - 1, slot));
        }
    }

    /// After a restart: full segments that a former life left in memory, in any order.
    pub fn adopt(&mut self, mut full: Vec<(u64, usize)>) {
        full.sort_unstable();
        self.full = full.into();
    }

    fn spill_oldest(&mut self, node: &Node) -> usize {
        // Some may have been forgotten since they were closed.
        let oldest = std::iter::from_fn(|| self.full.pop_front())
            .find(|(serial, slot)| node.serial_in(node.rank, *slot).load(Ordering::Relaxed) == serial + 1);
        let Some((serial, slot)) = oldest else {
            node.report(&format!(
                "the message log of rank {} is full of segments still being written: give it more with --log-memory",
                node.rank
            ));
        };
        if serial as usize >= arena::SPILL_ENTRIES {
            node.report("a message log cannot grow beyond 16 TiB");
        }
        let number = node.spill_next().fetch_add(1, Ordering::Relaxed);
        // SAFETY: an own segment, nobody writes to it any more.
        let bytes = unsafe { std::slice::from_raw_parts(node.segment(node.rank, slot), SEGMENT) };
        if let Err(error) = write_spilled(number as u32, bytes) {
            node.report(&format!(
                "cannot write the message log of rank {} to the spill file: {error}: free space in --spill-dir or name \
                 another folder",
                node.rank
            ));
        }
        node.add(Cost::SpilledBytes, SEGMENT as u64);
        node.spilled_to(node.rank, serial)
            .store(number as u32 + 1, Ordering::Release);
        node.serial_in(node.rank, slot).store(0, Ordering::SeqCst);
        // Readers copy and then look at the serial: it must be gone before the bytes change.
        fence(Ordering::SeqCst);
        slot
    }
}

fn write_spilled(number: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = number as i64 * SEGMENT as i64 + done as i64;
        // SAFETY: writes from the slice.
        let got = unsafe { libc::pwrite(nm::SPILL_FD, bytes[done..].as_ptr().cast(), bytes.len() - done, at) };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        } else {
            done += got as usize;
        }
    }
    Ok(())
}

/// Reads segment `number` of the spill file.
pub fn read_spilled(number: u32, bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = number as i64 * SEGMENT as i64 + done as i64;
        // SAFETY: reads into the slice.
        let got = unsafe { libc::pread(nm::SPILL_FD, bytes[done..].as_mut_ptr().cast(), bytes.len() - done, at) };
        match got {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            got if got < 0 => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            got => done += got as usize,
        }
    }
    Ok(())
}

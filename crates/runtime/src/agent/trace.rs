//! The traces of the ranks here: the rings in the node memory, and what of them goes to the dispatcher.
//!
//! Now and then the dispatcher asks for what is new. It gets the newest part, which is all that is left of a trace if
//! this node is lost. When the agent ends in order it sends all that the rings hold.

use std::io;
use std::iter::once;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::control::{ToAgent, ToDispatcher};
use resurgo_wire::trace::{Clock, HEAD, Part, Piece, RECORD, Times, head, ring_bytes};

use super::Agent;
use super::node::NodeMemory;

/// The newest records that may still be written.
const UNFINISHED: u64 = 64;
/// Most records of a rank that the dispatcher gets when it asks (256 KiB).
const AT_ONCE: u64 = 4096;
/// The longest that an ending agent waits until the dispatcher has heard all.
const FAREWELL: Duration = Duration::from_secs(10);
/// Records of a piece, at most (2 MiB).
const PIECE: u64 = 32 << 10;

impl NodeMemory {
    fn ring_at(&self, rank: usize) -> usize {
        self.layout.arena(rank) + self.layout.trace()
    }

    /// The bytes of the ring of `rank`, if there is one.
    pub(super) fn ring(&self, rank: usize) -> Option<Range<u64>> {
        let bytes = ring_bytes(self.layout.trace_records);
        let start = self.ring_at(rank);
        (bytes > 0).then_some(start as u64..(start + bytes) as u64)
    }

    /// A life of `rank` begins: its ring says whether it is used.
    pub(super) fn begin_trace(&self, rank: usize) -> io::Result<()> {
        match self.layout.trace_records {
            0 => Ok(()),
            _ => self.write_u64(self.ring_at(rank) + head::CLOCK, self.clock as u64),
        }
    }

    /// Empties the whole memory, but the rings of these ranks.
    pub(super) fn empty(&self, ranks: usize) -> io::Result<()> {
        let total = self.layout.total() as u64;
        if self.layout.trace_records == 0 {
            self.file().set_len(0)?;
            return self.file().set_len(total);
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let mut from = 0;
        for ring in (0..ranks).filter_map(|rank| self.ring(rank)).chain(once(total..total)) {
            fallocate(self.file(), hole, from as i64, (ring.start - from) as i64)?;
            from = ring.end;
        }
        Ok(())
    }

    /// Records that `rank` has begun, both its clocks, and the call that runs.
    fn trace_head(&self, rank: usize) -> io::Result<(u64, Times, [u64; 2])> {
        let mut bytes = [0; head::BYTES];
        self.read(&mut bytes, self.ring_at(rank))?;
        let word = |at: usize| {
            let word = bytes[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let times = Times {
            first: head::FIRST.map(word),
            last: head::LAST.map(word),
            rate: word(head::RATE),
            is_ticks: word(head::CLOCK) == Clock::Ticks as u64,
        };
        Ok((word(head::BEGUN), times, [head::CALL, head::CALL_BEGAN].map(word)))
    }

    /// These records of `rank`, one behind the other.
    fn trace_records(&self, rank: usize, which: Range<u64>) -> io::Result<Vec<u8>> {
        let room = self.layout.trace_records as u64;
        let mut bytes = vec![0; (which.end - which.start) as usize * RECORD];
        let mut to = &mut bytes[..];
        let mut from = which.start;
        while from < which.end {
            let run = (which.end - from).min(room - from % room);
            let (part, rest) = to.split_at_mut(run as usize * RECORD);
            self.read(part, self.ring_at(rank) + HEAD + (from % room) as usize * RECORD)?;
            (to, from) = (rest, from + run);
        }
        Ok(bytes)
    }
}

impl Agent {
    /// Sends the newest of what the dispatcher has not got.
    pub(super) fn send_new_traces(&mut self, asked_ns: u64) -> io::Result<()> {
        if self.work.memory.layout.trace_records > 0 {
            for rank in 0..self.work.ranks.len() {
                let (begun, times, call) = self.work.memory.trace_head(rank)?;
                let end = begun.saturating_sub(UNFINISHED);
                let told = self.work.traced.insert(rank, end).unwrap_or(0).min(end);
                let most = AT_ONCE.min(self.work.memory.layout.trace_records as u64 / 2);
                let first = told.max(end.saturating_sub(most));
                if first < end {
                    let records = self.work.memory.trace_records(rank, first..end)?;
                    self.control.queue(&ToDispatcher::Traced(Piece {
                        rank: rank as u32,
                        part: Part::News,
                        first,
                        times,
                        call,
                        records,
                    }));
                }
            }
        }
        let own_ns = crate::monotonic_ns();
        self.send(&ToDispatcher::TraceTime { asked_ns, own_ns })
    }

    fn is_traced(&self) -> bool {
        self.work.memory.layout.trace_records > 0 && self.work.memory.clock != Clock::Off
    }

    /// Waits until the dispatcher has all, if there was much to say.
    pub(super) fn await_farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        while self.is_traced() {
            match self.control.receive::<ToAgent>() {
                Ok(heard) if heard.closed || heard.messages.contains(&ToAgent::Farewell) => return,
                Ok(_) => {}
                Err(_) => return,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut ready = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
    }

    /// No rank runs any more: sends all that the rings hold.
    pub(super) fn send_all_traces(&mut self) -> io::Result<()> {
        let room = self.work.memory.layout.trace_records as u64;
        if !self.is_traced() {
            return Ok(());
        }
        for rank in 0..self.work.ranks.len() {
            let (begun, times, call) = self.work.memory.trace_head(rank)?;
            let mut first = begun.saturating_sub(room);
            while first < begun {
                let end = begun.min(first + PIECE);
                let records = self.work.memory.trace_records(rank, first..end)?;
                self.send(&ToDispatcher::Traced(Piece {
                    rank: rank as u32,
                    part: if end == begun { Part::WholeEnds } else { Part::Whole },
                    first,
                    times,
                    call,
                    records,
                }))?;
                // The memory of this node may have no room for all of it again.
                self.control.flush_all();
                self.keep_up()?;
                first = end;
            }
        }
        Ok(())
    }
}

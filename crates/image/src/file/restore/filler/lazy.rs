//! Fills the memory of a process that already runs. A page comes when the program, or the kernel for it, first touches
//! it; the others come meanwhile.
//!
//! For this the userfaultfd must answer to system calls too, and tell when the program gives memory back, moves it, or
//! copies itself. The kernel requires CAP_SYS_PTRACE for that.
//!
//! One thread reads an event of the kernel, then brings one piece, and so on. When the program changes its mappings, it
//! waits until this thread reads the event; meanwhile the kernel takes no piece (EAGAIN). So no piece lands in a
//! mapping that is no longer the image's. Another thread reads and verifies pieces ahead.
//!
//! If this process ended early, the kernel would give zeros for what is missing. So the agent holds the userfaultfd
//! too, and ends the rank first. The agent also does that when the file turns out to be damaged.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, RANK_FDS};

use super::memory::{copy_some, failed, find, rename};
use crate::changes::userfaultfd;
use crate::file::format::Extent;
use crate::file::reader::{Defect, Image};
use crate::locks::Renamed;
use crate::pages::PAGE;
use crate::sys::{self, Errno, call};
use crate::talk;

/// Below so many bytes the program waits until all are there: that takes less than a tenth of a second.
pub const LEAST: u64 = 128 << 20;
/// Events: copies of the process, moved memory, memory given back (MADV_DONTNEED), unmapped memory.
pub const FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// Bytes that come at once: around a page that a thread waits for, and otherwise.
const NEAR: u64 = 64 << 10;
const AT_ONCE: u64 = 256 << 10;
/// How many pieces of [`AT_ONCE`] are read ahead, and how many bytes are requested from the disk.
const AHEAD: usize = 4;
const FROM_DISK: u64 = 8 << 20;
/// Longest time between two looks for waiting threads, while a disk is slow.
const PAUSE: Duration = Duration::from_micros(200);
const ONE: u64 = PAGE as u64;
const UFFDIO_WAKE: u32 = 0x8010_aa02;

/// Whether the kernel lets the restorer have such a userfaultfd.
pub fn is_possible() -> bool {
    const NO_ROOT: i32 = 1;
    // SAFETY: reads numbers.
    let is_root = unsafe { libc::geteuid() == 0 && libc::prctl(libc::PR_GET_SECUREBITS) & NO_ROOT == 0 };
    // Other users lose their rights when they execute the restorer.
    is_root && userfaultfd(0, FEATURES).map(sys::close).is_ok()
}

/// Lets the process behind `restorer` run, and fills its memory meanwhile.
pub fn fill(
    image: &Image,
    ranges: &[Range<u64>],
    renamed: Renamed,
    memory: i32,
    restorer: OwnedFd,
) -> Result<(), Errno> {
    let extents = image.extents.iter().copied();
    let (missing, read): (Vec<Extent>, Vec<Extent>) =
        extents.partition(|extent| find(ranges, extent.address).is_some());
    // Verify here what the restorer itself read: nobody does so later.
    let verified = image
        .sums()
        .and_then(|sums| image.each_share_of(&read, &sums, &|_, _| Ok(())).map(|()| sums));
    let sums = match verified {
        Ok(sums) => sums,
        Err(defect) => return talk::send(IMAGE_FD, &failed(&defect), &[]),
    };
    let (agent, theirs) = talk::pair()?;
    talk::send(IMAGE_FD, &Datagram::new(Kind::Filling, 0, 0, 0), &[theirs, memory])?;
    // Signals to the rank's group must not end this process. And if the rank ends first, nobody must wait for the ends
    // of its pipes and sockets.
    sys::block_signals();
    for fd in [theirs, 0, 1, 2].into_iter().chain(RANK_FDS) {
        sys::close(fd);
    }
    talk::send(restorer.as_raw_fd(), &Datagram::new(Kind::Ready, 0, 0, 0), &[])?;
    drop(restorer);
    let source = Source { image, sums, renamed };
    let mut filling = Filling {
        source: &source,
        agent,
        copies: vec![Copy {
            memory,
            missing: Missing::of(&missing),
        }],
        waited_for: VecDeque::new(),
        last: 0..0,
        buffer: Vec::new(),
    };
    let filled = std::thread::scope(|scope| {
        let (sender, pieces) = sync_channel(AHEAD);
        // Without this thread the other one does everything.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || source.read_ahead(&missing, sender));
        filling.run(pieces)
    });
    let said = match filled {
        Ok(()) => Datagram::new(Kind::Filled, 0, 0, 0),
        Err(defect) => failed(&defect),
    };
    talk::send(agent, &said, &[])
}

/// Where the memory comes from.
struct Source<'a> {
    image: &'a Image,
    sums: Vec<u8>,
    renamed: Renamed,
}

/// What the process had at an address, or why that cannot be read.
type Piece = Result<(u64, Vec<u8>), Defect>;

impl Source<'_> {
    /// What the process had at `origin`.
    fn read(&self, origin: u64, bytes: &mut [u8]) -> Result<(), Defect> {
        let place = self.image.place(origin).unwrap_or(0);
        self.image.read_checked(place, &self.sums, bytes)?;
        rename(self.image, origin, bytes, self.renamed)
    }

    /// Reads all pieces, until their receiver is gone.
    fn read_ahead(&self, extents: &[Extent], sender: SyncSender<Piece>) {
        for extent in extents {
            for at in (0..extent.length).step_by(AT_ONCE as usize) {
                if at % FROM_DISK == 0 {
                    self.image
                        .expect(extent.offset + at..extent.offset + extent.length.min(at + 2 * FROM_DISK));
                }
                let mut bytes = vec![0; AT_ONCE.min(extent.length - at) as usize];
                let origin = extent.address + at;
                let piece = self.read(origin, &mut bytes).map(|()| (origin, bytes));
                if sender.send(piece).is_err() {
                    return;
                }
            }
        }
    }
}

/// The missing ranges by their present start: their present end, and where they began in the image.
#[derive(Clone, Default)]
struct Missing(BTreeMap<u64, (u64, u64)>);

impl Missing {
    fn of(extents: &[Extent]) -> Missing {
        let of = |extent: &Extent| (extent.address, (extent.address + extent.length, extent.address));
        Missing(extents.iter().map(of).collect())
    }

    fn first(&self) -> Option<Range<u64>> {
        self.0.first_key_value().map(|(start, (end, _))| *start..*end)
    }

    /// The whole missing range that contains `address`.
    fn around(&self, address: u64) -> Option<Range<u64>> {
        let (start, (end, _)) = self.0.range(..=address).next_back()?;
        (address < *end).then_some(*start..*end)
    }

    /// Takes the missing parts of `range` out. Returns them: where each is now, and where it began in the image.
    fn take(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        for cut in [range.start, range.end] {
            if let Some(whole) = self.around(cut).filter(|whole| whole.start < cut)
                && let Some((end, origin)) = self.0.get_mut(&whole.start)
            {
                let behind = (*end, *origin + (cut - whole.start));
                *end = cut;
                self.0.insert(cut, behind);
            }
        }
        let starts: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        let taken = starts
            .into_iter()
            .filter_map(|start| self.0.remove(&start).map(|(end, origin)| (start..end, origin)));
        taken.collect()
    }

    fn put(&mut self, range: Range<u64>, origin: u64) {
        self.0.insert(range.start, (range.end, origin));
    }
}

/// A process with this memory: the rank, or a copy that the rank made of itself.
struct Copy {
    memory: i32,
    missing: Missing,
}

struct Filling<'a> {
    source: &'a Source<'a>,
    agent: i32,
    copies: Vec<Copy>,
    /// The memory and the address of each page that a thread waits for.
    waited_for: VecDeque<(i32, u64)>,
    /// The last piece that a thread waited for.
    last: Range<u64>,
    buffer: Vec<u8>,
}

/// How bringing a piece ended.
#[derive(Clone, Copy, PartialEq)]
enum Brought {
    All,
    /// The program changed the memory: the kernel's event must be read first.
    Changed,
    /// The process has ended, or executes another program.
    Gone,
}

impl Filling<'_> {
    fn run(&mut self, pieces: Receiver<Piece>) -> Result<(), Defect> {
        while let Some((memory, whole)) = self.rest() {
            self.listen();
            let (memory, brought) = if let Some((memory, page)) = self.waited_for.pop_front() {
                let wanted = self.near(memory, page);
                let brought = self.bring(memory, &wanted)?;
                if brought == Brought::Changed {
                    self.waited_for.push_back((memory, page));
                }
                (memory, brought)
            } else {
                match pieces.recv_timeout(PAUSE) {
                    Ok(piece) => {
                        let (origin, bytes) = piece?;
                        (memory, self.bring_unmoved(memory, origin, &bytes)?)
                    }
                    Err(RecvTimeoutError::Timeout) => continue,
                    // The rest: moved memory, and copies of the process.
                    Err(RecvTimeoutError::Disconnected) => {
                        let most = whole.start..whole.end.min(whole.start + AT_ONCE);
                        (memory, self.bring(memory, &most)?)
                    }
                }
            };
            if brought == Brought::Gone {
                self.leave(memory);
            }
        }
        Ok(())
    }

    /// The first missing range of any memory.
    fn rest(&self) -> Option<(i32, Range<u64>)> {
        let mut copies = self.copies.iter();
        copies.find_map(|copy| Some((copy.memory, copy.missing.first()?)))
    }

    fn copy(&mut self, memory: i32) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|copy| copy.memory == memory)
    }

    fn leave(&mut self, memory: i32) {
        self.copies.retain(|copy| copy.memory != memory);
        self.waited_for.retain(|(of, _)| *of != memory);
        sys::close(memory);
    }

    /// The page, and what is missing around it.
    fn near(&mut self, memory: i32, page: u64) -> Range<u64> {
        let whole = self.copy(memory).and_then(|copy| copy.missing.around(page));
        let whole = whole.unwrap_or(page..page + ONE);
        let start = page - page % NEAR;
        // A program that reads on where the last piece ended will do so again.
        let length = match page == self.last.end {
            true => (2 * (self.last.end - self.last.start)).clamp(NEAR, AT_ONCE),
            false => NEAR,
        };
        self.last = start.max(whole.start)..(start + length).min(whole.end);
        self.last.clone()
    }

    /// Reads every event that the kernel has.
    fn listen(&mut self) {
        let mut index = 0;
        while let Some(memory) = self.copies.get(index).map(|copy| copy.memory) {
            let mut event = [0u64; 4];
            // SAFETY: writes one message, or none.
            while let Ok(32) = unsafe { call!(libc::SYS_read, memory, event.as_mut_ptr(), 32) } {
                self.heed(memory, event);
            }
            index += 1;
        }
    }

    /// Acts on a `struct uffd_msg`.
    fn heed(&mut self, memory: i32, [kind, a, b, c]: [u64; 4]) {
        let Some(copy) = self.copy(memory) else { return };
        match kind & 0xff {
            // A fault: flags, address.
            0x12 => self.waited_for.push_back((memory, b & !(ONE - 1))),
            // A copy of the process: a descriptor for its memory.
            0x13 => {
                let memory = a as u32 as i32;
                let missing = copy.missing.clone();
                let _ = talk::send(self.agent, &Datagram::new(Kind::Filling, 0, 0, 0), &[memory]);
                self.copies.push(Copy { memory, missing });
            }
            // Moved: from, to, length.
            0x14 => {
                for (range, origin) in copy.missing.take(&(a..a + c)) {
                    copy.missing.put(range.start - a + b..range.end - a + b, origin);
                }
            }
            // Given back or unmapped: start, end. New memory there begins with zeros.
            0x15 | 0x16 => drop(copy.missing.take(&(a..b))),
            _ => {}
        }
    }

    /// Brings what is missing in `range`, or zeros where nothing is: the process uses that memory for the first time.
    fn bring(&mut self, memory: i32, range: &Range<u64>) -> Result<Brought, Defect> {
        let taken = self.copy(memory).map(|copy| copy.missing.take(range));
        let taken = taken.unwrap_or_default();
        if taken.is_empty() {
            let zeros = vec![0; (range.end - range.start) as usize];
            return self.give(memory, range.start, &zeros).map(|(brought, _)| brought);
        }
        let mut result = Brought::All;
        let mut bytes = std::mem::take(&mut self.buffer);
        for (range, origin) in taken {
            bytes.resize((range.end - range.start) as usize, 0);
            if result == Brought::All {
                self.source.read(origin, &mut bytes)?;
            }
            result = self.give_or_miss(memory, range, origin, &bytes, result)?;
        }
        self.buffer = bytes;
        Ok(result)
    }

    /// Brings what belongs to `origin`, as far as it is missing and still where it was in the image.
    fn bring_unmoved(&mut self, memory: i32, origin: u64, bytes: &[u8]) -> Result<Brought, Defect> {
        let taken = self
            .copy(memory)
            .map(|copy| copy.missing.take(&(origin..origin + bytes.len() as u64)));
        let mut result = Brought::All;
        for (range, from) in taken.unwrap_or_default() {
            if from == range.start {
                let part = &bytes[(range.start - origin) as usize..(range.end - origin) as usize];
                result = self.give_or_miss(memory, range, from, part, result)?;
            } else if let Some(copy) = self.copy(memory) {
                copy.missing.put(range, from);
            }
        }
        Ok(result)
    }

    /// Gives the pages of `range`, unless the pages before them could not be given (`before`). Pages that cannot be
    /// given stay missing.
    fn give_or_miss(
        &mut self,
        memory: i32,
        range: Range<u64>,
        origin: u64,
        bytes: &[u8],
        before: Brought,
    ) -> Result<Brought, Defect> {
        let (result, given) = match before {
            Brought::All => self.give(memory, range.start, bytes)?,
            _ => (before, 0),
        };
        if result != Brought::All
            && let Some(copy) = self.copy(memory)
        {
            copy.missing.put(range.start + given..range.end, origin + given);
        }
        Ok(result)
    }

    /// Makes pages, and wakes the threads that wait for them. Returns the number of bytes that need nothing more.
    fn give(&self, memory: i32, address: u64, bytes: &[u8]) -> Result<(Brought, u64), Defect> {
        let (mut done, mut most) = (0, bytes.len());
        while done < bytes.len() {
            let rest = &bytes[done..bytes.len().min(done + most)];
            let at = address + done as u64;
            match copy_some(memory, at, rest, 0) {
                Ok(copied) => done += copied,
                Err(libc::EAGAIN) => return Ok((Brought::Changed, done as u64)),
                Err(libc::ESRCH) => return Ok((Brought::Gone, done as u64)),
                // The program has split the mapping into several.
                Err(libc::ENOENT) if rest.len() > PAGE => most = PAGE,
                // A page is there already, or none may be there any more.
                Err(libc::EEXIST | libc::ENOENT) => {
                    let mut wake = [at, ONE];
                    // SAFETY: about threads that wait.
                    let _ = unsafe { call!(libc::SYS_ioctl, memory, UFFDIO_WAKE, wake.as_mut_ptr()) };
                    done += PAGE;
                }
                Err(errno) => return Err(self.source.image.not_filled(errno)),
            }
        }
        Ok((Brought::All, done as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(start: u64, end: u64) -> Range<u64> {
        start * ONE..end * ONE
    }

    #[test]
    fn a_part_is_taken_and_what_is_around_it_stays() {
        let mut missing = Missing::default();
        missing.put(pages(10, 20), 10 * ONE);
        missing.put(pages(30, 40), 30 * ONE);
        assert_eq!(missing.take(&pages(12, 14)), [(pages(12, 14), 12 * ONE)]);
        assert_eq!(missing.take(&pages(0, 12)), [(pages(10, 12), 10 * ONE)]);
        assert_eq!(missing.around(13 * ONE), None);
        assert_eq!(missing.around(14 * ONE), Some(pages(14, 20)));
        assert_eq!(
            missing.take(&pages(19, 35)),
            [(pages(19, 20), 19 * ONE), (pages(30, 35), 30 * ONE)]
        );
        assert_eq!(missing.first(), Some(pages(14, 19)));
        assert_eq!(missing.take(&pages(20, 30)), []);
    }

    #[test]
    fn what_has_moved_is_known_by_where_it_was() {
        let mut missing = Missing::default();
        missing.put(pages(10, 20), 10 * ONE);
        for (range, origin) in missing.take(&pages(15, 25)) {
            missing.put(range.start + 100 * ONE..range.end + 100 * ONE, origin);
        }
        assert_eq!(missing.take(&pages(117, 200)), [(pages(117, 120), 17 * ONE)]);
        assert_eq!(missing.take(&pages(0, 100)), [(pages(10, 15), 10 * ONE)]);
        assert_eq!(missing.first(), Some(pages(115, 117)));
    }
}

//! What an event logger has stored, in a file that outlives it. The logger appends to it before it acknowledges
//! anything, tells others of it, or gives it to a later life.
//!
//! The file belongs to the dispatcher and has no name. It needs no syncing: it is for the case that the logger's
//! process dies. If the machine goes down, dispatcher and file go with it. A logger that cannot write the file, as the
//! disk is full, empties it and goes on without. If it dies then, an empty logger takes its place, and ranks log again
//! what they have.
//!
//! Images let the logger forget. When most of the file is about forgotten deliveries, the logger appends everything
//! that it knows once more. The file begins there from then on, and the room before is given back.
//!
//! ```text
//! u64      epoch
//! u64      where the first entry is
//! entries  u32 length of what follows, 8 bytes of its BLAKE3, u32 rank, u64 incarnation, a Log or a Forget frame. With no
//!          deliveries the rank has been admitted, and its first rclock is 1 + what was acknowledged to it, 0: it did not know.
//!          Deliveries wait for nothing
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FallocateFlags, fallocate};
use resurgo_protocol::{EventLogger, Rank, Recorded};
use resurgo_wire::event_logger::{DELIVERY_BYTES, Frame, MAX_FRAME, MAX_RECORDS};

/// Bytes before the first entry of a new file.
const FIRST: u64 = 16;
/// Bytes before the frame, after the length.
const HEAD: usize = 8 + 4 + 8;
/// So few bytes of entries that fewer are not worth the work.
const LEAST: u64 = 16 << 20;

/// The file of a running event logger.
pub struct Journal {
    file: File,
    /// Where the entries begin and end.
    start: u64,
    end: u64,
    /// From so many bytes of entries on, it is worth checking whether there can be fewer.
    least: u64,
    pending: Vec<u8>,
    /// Per rank, how many deliveries are in it, with pending ones.
    stored: Vec<u64>,
    /// Ranks beyond this have never been admitted.
    ranks: usize,
}

impl Journal {
    fn new(file: File, (start, end): (u64, u64), logger: &EventLogger, ranks: usize) -> Journal {
        let size = logger.size() as Rank;
        Journal {
            file,
            start,
            end,
            least: LEAST,
            pending: Vec::new(),
            stored: (0..size).map(|rank| stored(logger, rank).0).collect(),
            ranks,
        }
    }

    /// Begins an empty journal.
    pub fn begin(file: File, logger: &EventLogger) -> io::Result<Journal> {
        file.set_len(0)?;
        file.write_all_at(&logger.epoch().to_le_bytes(), 0)?;
        file.write_all_at(&FIRST.to_le_bytes(), 8)?;
        Ok(Journal::new(file, (FIRST, FIRST), logger, 0))
    }

    /// Goes on with what a logger left: the same logger again. `None`: the file is unreadable. An incomplete entry at
    /// the end was never acknowledged.
    pub fn recover(file: File, size: usize) -> io::Result<Option<(Journal, EventLogger)>> {
        let length = file.metadata()?.len();
        if length < FIRST {
            return Ok(None);
        }
        let (mut epoch, mut start) = ([0; 8], [0; 8]);
        file.read_exact_at(&mut epoch, 0)?;
        file.read_exact_at(&mut start, 8)?;
        let start = u64::from_le_bytes(start);
        if start < FIRST || start > length {
            return Ok(None);
        }
        let mut bytes = vec![0; (length - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        let mut rest = bytes.as_slice();
        let mut logger = match u64::from_le_bytes(epoch) {
            0 => return Ok(None),
            1 => EventLogger::new(size),
            epoch => EventLogger::replacement(size, epoch),
        };
        let mut ranks = 0;
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > HEAD + 4 + MAX_FRAME {
                return Ok(None);
            }
            let Some((entry, after)) = after.split_at_checked(length) else {
                break;
            };
            let Some(rank) = apply(&mut logger, entry) else {
                return Ok(None);
            };
            ranks = ranks.max(rank as usize + 1);
            rest = after;
        }
        let end = length - rest.len() as u64;
        file.set_len(end)?;
        give_back(&file, start);
        Ok(Some((Journal::new(file, (start, end), &logger, ranks), logger)))
    }

    /// Empties the file: a later logger finds nothing in it.
    pub fn give_up(self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Notes that earlier lives of `rank` are not heard any more.
    pub fn admit(&mut self, rank: Rank, incarnation: u64, acknowledged: Option<u64>) {
        self.ranks = self.ranks.max(rank as usize + 1);
        self.push(
            rank,
            incarnation,
            acknowledged.map_or(0, |acknowledged| acknowledged + 1),
            &[],
        );
    }

    /// Notes that images cover the first `rclock` deliveries of `rank`.
    pub fn forget(&mut self, rank: Rank, rclock: u64) {
        self.push_frame(rank, 0, &Frame::Forget { rclock });
    }

    fn push_all(&mut self, rank: Rank, incarnation: u64, first_rclock: u64, records: &[Recorded]) {
        for (part, records) in records.chunks(MAX_RECORDS).enumerate() {
            self.push(rank, incarnation, first_rclock + (part * MAX_RECORDS) as u64, records);
        }
    }

    fn push(&mut self, rank: Rank, incarnation: u64, first_rclock: u64, records: &[Recorded]) {
        let frame = Frame::Log {
            first_rclock,
            deliveries: records.iter().map(|record| (*record, 0)).collect(),
        };
        self.push_frame(rank, incarnation, &frame);
    }

    fn push_frame(&mut self, rank: Rank, incarnation: u64, frame: &Frame) {
        let mut entry = Vec::new();
        entry.extend_from_slice(&rank.to_le_bytes());
        entry.extend_from_slice(&incarnation.to_le_bytes());
        frame.encode(&mut entry);
        self.pending.extend_from_slice(&(entry.len() as u32 + 8).to_le_bytes());
        self.pending.extend_from_slice(&blake3::hash(&entry).as_bytes()[..8]);
        self.pending.extend_from_slice(&entry);
    }

    /// Appends what was stored since the last call.
    pub fn write(&mut self, logger: &EventLogger) -> io::Result<()> {
        for rank in 0..self.ranks {
            let (now, records) = stored(logger, rank as Rank);
            // Deliveries forgotten since then have an entry that says so.
            let before = self.stored[rank].max(now - records.len() as u64);
            self.stored[rank] = before;
            if now == before {
                continue;
            }
            let incarnation = logger.incarnation(rank as Rank).unwrap_or(0);
            let new = &records[records.len() - (now - before) as usize..];
            self.push_all(rank as Rank, incarnation, before + 1, new);
            self.stored[rank] = now;
        }
        self.append()?;
        self.shorten(logger)
    }

    fn append(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.end)?;
        self.end += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Begins the file anew with everything that the logger knows, if that is at most half of the file.
    fn shorten(&mut self, logger: &EventLogger) -> io::Result<()> {
        let used = self.end - self.start;
        if used < self.least {
            return Ok(());
        }
        let histories = (0..self.ranks as Rank).map(|rank| (rank, stored(logger, rank)));
        let kept: usize = histories.clone().map(|(_, (_, records))| records.len()).sum();
        if used < 2 * (kept * DELIVERY_BYTES) as u64 {
            return Ok(());
        }
        for (rank, (now, records)) in histories {
            let forgotten = now - records.len() as u64;
            let incarnation = logger.incarnation(rank).unwrap_or(0);
            self.forget(rank, forgotten);
            self.admit(rank, incarnation, logger.required(rank).unwrap_or_default());
            self.push_all(rank, incarnation, forgotten + 1, records);
        }
        let start = self.end;
        if let Err(error) = self.append() {
            // The disk is full: leave the file as it is, for a while.
            self.pending.clear();
            self.file.set_len(self.end)?;
            self.least = 2 * used;
            return if error.kind() == io::ErrorKind::StorageFull {
                Ok(())
            } else {
                Err(error)
            };
        }
        // Entries that are done again, even only some of them, change nothing: the logger may die here.
        self.file.write_all_at(&start.to_le_bytes(), 8)?;
        (self.start, self.least) = (start, LEAST);
        give_back(&self.file, start);
        Ok(())
    }
}

/// Gives back the room before the first entry, where the file system can do that.
fn give_back(file: &File, start: u64) {
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    if start > FIRST {
        let _ = fallocate(file, hole, FIRST as i64, (start - FIRST) as i64);
    }
}

fn stored(logger: &EventLogger, rank: Rank) -> (u64, &[Recorded]) {
    let (dropped, records) = logger.stored(rank).unwrap_or_default();
    (dropped + records.len() as u64, records)
}

/// Does again what an entry says; returns the entry's rank, or None if the entry is damaged.
fn apply(logger: &mut EventLogger, entry: &[u8]) -> Option<Rank> {
    let (sum, entry) = entry.split_first_chunk::<8>()?;
    if blake3::hash(entry).as_bytes()[..8] != sum[..] {
        return None;
    }
    let (rank, entry) = entry.split_first_chunk::<4>()?;
    let (incarnation, entry) = entry.split_first_chunk::<8>()?;
    let (rank, incarnation) = (Rank::from_le_bytes(*rank), u64::from_le_bytes(*incarnation));
    match Frame::decode(entry).ok()??.0 {
        Frame::Log {
            first_rclock,
            deliveries,
        } if deliveries.is_empty() => logger.admit(rank, incarnation, first_rclock.checked_sub(1)).ok()?,
        Frame::Log {
            first_rclock,
            deliveries,
        } => super::log(logger, rank, incarnation, first_rclock, &deliveries).ok()?,
        Frame::Forget { rclock } => logger.forget(rank, rclock).map(|_| ()).ok()?,
        _ => return None,
    }
    Some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    fn file() -> File {
        crate::sys::open_nameless(std::env::temp_dir().as_os_str()).unwrap()
    }

    fn records(count: u64) -> Vec<(Recorded, u64)> {
        let record = |polls| (Recorded { source: 0, polls }, 0);
        (0..count).map(record).collect()
    }

    fn written(file: &File) -> EventLogger {
        let mut logger = EventLogger::new(3);
        let mut journal = Journal::begin(file.try_clone().unwrap(), &logger).unwrap();
        logger.admit(1, 4, Some(0)).unwrap();
        journal.admit(1, 4, Some(0));
        super::super::log(&mut logger, 1, 4, 1, &records(10_000)).unwrap();
        // It waits for a delivery of rank 0.
        let waits = [(Recorded { source: 0, polls: 1 }, 7)];
        super::super::log(&mut logger, 1, 4, 10_001, &waits).unwrap();
        journal.write(&logger).unwrap();
        logger
    }

    #[test]
    fn a_logger_goes_on_with_what_it_had_stored() {
        let file = file();
        let before = written(&file);
        // The logger died while it was writing the last entry.
        let mut end = file.try_clone().unwrap();
        end.seek(SeekFrom::End(0)).unwrap();
        end.write_all(&[200, 0, 0, 0, 1, 2, 3]).unwrap();
        let (mut journal, mut after) = Journal::recover(file.try_clone().unwrap(), 3).unwrap().unwrap();
        assert_eq!((after.epoch(), after.incarnation(1)), (1, Ok(4)));
        assert_eq!(after.query(1, 0), before.query(1, 0));
        assert_eq!(after.query(1, 0).map(<[Recorded]>::len), Ok(10_000));
        super::super::log(&mut after, 1, 4, 10_001, &records(3)).unwrap();
        journal.write(&after).unwrap();
        let (_, again) = Journal::recover(file, 3).unwrap().unwrap();
        assert_eq!(again.query(1, 0).map(<[Recorded]>::len), Ok(10_003));
    }

    #[test]
    fn what_images_cover_is_forgotten_again() {
        let file = file();
        let mut logger = EventLogger::new(3);
        let mut journal = Journal::begin(file.try_clone().unwrap(), &logger).unwrap();
        logger.admit(1, 4, Some(0)).unwrap();
        journal.admit(1, 4, Some(0));
        super::super::log(&mut logger, 1, 4, 1, &records(100)).unwrap();
        journal.write(&logger).unwrap();
        // More than the file has, and in the end more than the logger has.
        super::super::log(&mut logger, 1, 4, 101, &records(100)).unwrap();
        for covered in [150, 260] {
            logger.forget(1, covered).unwrap();
            journal.forget(1, covered);
            journal.write(&logger).unwrap();
            let (_, after) = Journal::recover(file.try_clone().unwrap(), 3).unwrap().unwrap();
            assert_eq!(after.stored(1), logger.stored(1));
            assert!(after.query(1, covered - 1).is_err());
        }
        super::super::log(&mut logger, 1, 4, 261, &records(5)).unwrap();
        journal.write(&logger).unwrap();
        let (_, after) = Journal::recover(file, 3).unwrap().unwrap();
        assert_eq!(after.query(1, 260).map(<[Recorded]>::len), Ok(5));
    }

    #[test]
    fn what_has_been_forgotten_takes_no_room() {
        let file = file();
        let mut logger = EventLogger::new(3);
        let mut journal = Journal::begin(file.try_clone().unwrap(), &logger).unwrap();
        journal.least = 100_000;
        logger.admit(0, 2, None).unwrap();
        journal.admit(0, 2, None);
        logger.admit(1, 4, Some(0)).unwrap();
        journal.admit(1, 4, Some(0));
        for round in 0..100 {
            super::super::log(&mut logger, 1, 4, round * 10_000 + 1, &records(10_000)).unwrap();
            logger.forget(1, round * 10_000 + 7_000).unwrap();
            journal.forget(1, round * 10_000 + 7_000);
            journal.write(&logger).unwrap();
            journal.least = 100_000;
            let (_, after) = Journal::recover(file.try_clone().unwrap(), 3).unwrap().unwrap();
            for rank in 0..3 {
                assert_eq!(after.stored(rank), logger.stored(rank));
                assert_eq!(after.incarnation(rank), logger.incarnation(rank));
                assert_eq!(after.required(rank), logger.required(rank));
            }
        }
        let metadata = file.metadata().unwrap();
        assert!(journal.start > FIRST && metadata.len() - journal.start < 1_000_000);
        let room = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
        assert!(room < 1_000_000, "{room} bytes");
    }

    #[test]
    fn a_new_beginning_that_was_not_finished_changes_nothing() {
        let file = file();
        let mut logger = EventLogger::replacement(3, 2);
        let mut journal = Journal::begin(file.try_clone().unwrap(), &logger).unwrap();
        for rank in [0, 2] {
            logger.admit(rank, 4, Some(9)).unwrap();
            journal.admit(rank, 4, Some(9));
            super::super::log(&mut logger, rank, 4, 1, &records(9000)).unwrap();
        }
        journal.write(&logger).unwrap();
        logger.forget(2, 6000).unwrap();
        journal.forget(2, 6000);
        journal.write(&logger).unwrap();
        let mut before = vec![0; journal.end as usize];
        file.read_exact_at(&mut before, 0).unwrap();
        journal.least = 0;
        logger.forget(0, 5000).unwrap();
        journal.shorten(&logger).unwrap();
        assert_eq!(journal.start as usize, before.len());
        let mut entries = vec![0; (journal.end - journal.start) as usize];
        file.read_exact_at(&mut entries, journal.start).unwrap();
        for written in [0, 3, 100, 90_000, entries.len()] {
            file.set_len(0).unwrap();
            file.write_all_at(&before, 0).unwrap();
            file.write_all_at(&entries[..written], before.len() as u64).unwrap();
            let (_, after) = Journal::recover(file.try_clone().unwrap(), 3).unwrap().unwrap();
            assert_eq!(after.query(0, 5000), logger.query(0, 5000));
            assert_eq!(after.stored(2), logger.stored(2));
            assert_eq!((after.incarnation(2), after.required(2)), (Ok(4), Ok(Some(9))));
        }
    }

    #[test]
    fn a_damaged_one_is_not_believed() {
        let file = file();
        written(&file);
        let mut middle = file.try_clone().unwrap();
        middle.seek(SeekFrom::Start(5000)).unwrap();
        middle.write_all(&[1, 2, 3]).unwrap();
        assert!(Journal::recover(file.try_clone().unwrap(), 3).unwrap().is_none());
        file.set_len(0).unwrap();
        assert!(Journal::recover(file, 3).unwrap().is_none());
    }
}

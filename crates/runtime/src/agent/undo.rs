//! Files as they were in a wave: before all ranks begin from it, the agent writes back what their MPI libraries have
//! overwritten since, from the undo logs in the node memory ([`resurgo_wire::undo`]). The newest goes first. What was
//! written behind the end of a file is cut off.
//!
//! Each agent has the logs of its own ranks, and of those that come to it from lost nodes. Where ranks of several nodes
//! overwrite the same place in turn, old bytes stay unknown.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use resurgo_wire::control::Undo;
use resurgo_wire::node_memory::control;
use resurgo_wire::undo::{self, HALF, HEAD, Inode, Record, What};

use super::Work;
use super::node::NodeMemory;
use crate::unix_ns;

impl Work {
    /// All ranks return to image `number` of theirs, or to the beginning (0), and none has a process.
    pub(super) fn undo(&mut self, number: u64) -> io::Result<()> {
        // Ranks of lost nodes come here later; their notes have come.
        let is_here = |rank: &usize| self.is_here(*rank) || self.is_handed_over(*rank);
        let ranks: Vec<usize> = (0..self.ranks.len()).filter(is_here).collect();
        self.memory.undo(&ranks, number, self.job.nodes.is_none())?;
        let rested = self.ranks.iter_mut().filter(|rank| rank.rested_ns != 0);
        rested.for_each(|rank| rank.rested_ns = unix_ns());
        Ok(())
    }

    /// Whether the files are such that `rank` can begin from its image `number` with all other ranks. The beginning of
    /// the program makes its files anew.
    pub(super) fn is_undone(&self, rank: usize, number: u64) -> io::Result<()> {
        match number > 0 && self.memory.control(rank, control::LOST_READS)? > number {
            true => Err(io::Error::other(undo::lost_reads(rank))),
            false => Ok(()),
        }
    }
}

impl NodeMemory {
    /// Undoes what these ranks have overwritten in files since their image `number`. Their logs keep what was before.
    /// `are_all`: there are no ranks elsewhere.
    fn undo(&self, ranks: &[usize], number: u64, are_all: bool) -> io::Result<()> {
        ranks.iter().try_for_each(|rank| self.forget_reads(*rank, number))?;
        if !self.layout.undoes {
            return Ok(());
        }
        let mut logs = Vec::new();
        let mut whole = Vec::new();
        for rank in ranks {
            let at = self.layout.arena(*rank) + self.layout.undo();
            whole.push(self.read_u64(at + undo::SINCE)? <= number);
            logs.push(self.log_at(at)?);
        }
        let are_whole = write_back(&logs, number, are_all) && whole.iter().all(|is_whole| *is_whole);
        for ((rank, log), is_whole) in ranks.iter().zip(&logs).zip(whole) {
            let at = self.layout.arena(*rank) + self.layout.undo();
            // A rank may not be able to begin from this image: then all return to an earlier one.
            let former = undo::records(log).filter(|(_, record)| record.image < number);
            let former: Vec<u8> = former.flat_map(|(whole, _)| whole).copied().collect();
            let used = if is_whole { former.len() } else { 0 };
            self.write(&former[..used], at + HEAD)?;
            self.write_u64(at + undo::STATE, undo::state(0, used))?;
            if !is_whole {
                self.write_u64(at + undo::SINCE, number)?;
            }
            if are_whole {
                let lost = self.control(*rank, control::LOST_READS)?;
                self.set_control(*rank, control::LOST_READS, lost.min(number))?;
            }
        }
        Ok(())
    }

    /// The undo log of `rank`, with the places of its parts; empty if there is none.
    pub(super) fn undo_log(&self, rank: usize) -> io::Result<Vec<(usize, Vec<u8>)>> {
        if !self.layout.undoes {
            return Ok(Vec::new());
        }
        let at = self.layout.arena(rank) + self.layout.undo();
        let mut head = vec![0; HEAD];
        self.read(&mut head, at)?;
        let (half, _) = undo::of_state(self.read_u64(at + undo::STATE)?);
        Ok(vec![(at, head), (at + HEAD + half * HALF, self.log_at(at)?)])
    }

    /// [`undo::SINCE`] of the undo log of `rank`, the half that counts, and how many bytes of it; None: there is no such log.
    pub(super) fn undo_state(&self, rank: usize) -> io::Result<Option<(u64, usize, usize)>> {
        if !self.layout.undoes {
            return Ok(None);
        }
        let at = self.layout.arena(rank) + self.layout.undo();
        let (half, used) = undo::of_state(self.read_u64(at + undo::STATE)?);
        Ok(Some((self.read_u64(at + undo::SINCE)?, half, used.min(HALF))))
    }

    /// These words of a half of it.
    pub(super) fn undo_words(&self, rank: usize, half: usize, which: Range<usize>) -> io::Result<Vec<u64>> {
        let begin = self.layout.arena(rank) + self.layout.undo() + HEAD + half * HALF;
        self.table(begin + 8 * which.start, which.len())
    }

    /// The undo log of `rank` becomes this.
    pub(super) fn set_undo(&self, rank: usize, log: &Undo) -> io::Result<()> {
        let bytes: Vec<u8> = log.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !self.layout.undoes || bytes.len() > HALF {
            return Ok(());
        }
        let at = self.layout.arena(rank) + self.layout.undo();
        self.write(&bytes, at + HEAD)?;
        self.write_u64(at + undo::SINCE, log.since)?;
        self.write_u64(at + undo::STATE, undo::state(0, bytes.len()))
    }

    /// What counts of the undo log or read log that begins there.
    fn log_at(&self, at: usize) -> io::Result<Vec<u8>> {
        let (half, used) = undo::of_state(self.read_u64(at + undo::STATE)?);
        let mut bytes = vec![0; used.min(HALF)];
        self.read(&mut bytes, at + HEAD + half * HALF)?;
        Ok(bytes)
    }

    /// The rank comes from another node, which has what it has read and done since its image.
    pub(super) fn reads_are_elsewhere(&self, rank: usize) -> io::Result<()> {
        if !self.layout.rereads {
            return Ok(());
        }
        let at = self.layout.arena(rank) + self.layout.reads();
        self.write_u64(at + undo::STATE, 0)?;
        self.write_u64(at + undo::SINCE, undo::ELSEWHERE)
    }

    /// The rank begins anew behind its image `number`: what it has read since need not come again.
    pub(super) fn forget_reads(&self, rank: usize, number: u64) -> io::Result<()> {
        if !self.layout.rereads {
            return Ok(());
        }
        let at = self.layout.arena(rank) + self.layout.reads();
        let log = self.log_at(at)?;
        let before = undo::records(&log).take_while(|(_, record)| record.image < number);
        let used = before.map(|(whole, _)| whole.len()).sum();
        let (half, _) = undo::of_state(self.read_u64(at + undo::STATE)?);
        self.write_u64(at + undo::STATE, undo::state(half, used))?;
        let since = self.read_u64(at + undo::SINCE)?;
        self.write_u64(at + undo::SINCE, since.min(number))
    }
}

/// What the logs say of one file.
#[derive(Default)]
struct Story<'a> {
    /// In the order in which it happened.
    records: Vec<Record<'a>>,
    /// What ranks wrote before an image that is later than the first of these. It stays.
    kept: Vec<(u64, u64)>,
}

/// Writes back what has been overwritten since image `number`. False: some of it is not possible, or others have
/// overwritten it in turn.
fn write_back(logs: &[Vec<u8>], number: u64, are_all: bool) -> bool {
    let mut files: BTreeMap<(Inode, &[u8]), Story> = BTreeMap::new();
    let mut former = Vec::new();
    for log in logs {
        // A later file may have the number of a former one.
        let mut paths: BTreeMap<Inode, &[u8]> = BTreeMap::new();
        for (_, record) in undo::records(log) {
            match record.what {
                What::Path(path) => _ = paths.insert(record.file, path),
                _ if record.image >= number => {
                    let path = paths.get(&record.file).copied().unwrap_or_default();
                    files.entry((record.file, path)).or_default().records.push(record);
                }
                _ => former.push(record),
            }
        }
    }
    let mut all = true;
    for ((inode, path), mut story) in files {
        story.records.sort_by_key(|record| record.time);
        let begin = story.records.first().map_or(0, |record| record.time);
        let kept = former
            .iter()
            .filter(|record| record.file == inode && record.time > begin);
        let written = kept.filter_map(|record| match record.what {
            What::Changed(from, to, _) | What::Longer(from, to, _) => Some((from, to)),
            _ => None,
        });
        story.kept = written.collect();
        let is_done = story
            .write_back(Path::new(std::ffi::OsStr::from_bytes(path)), inode, are_all)
            .is_ok();
        all &= is_done && (are_all || !undo::holds_pointer(path));
    }
    all
}

impl Story<'_> {
    /// The file was empty, or not there.
    fn is_new(&self) -> bool {
        self.records
            .first()
            .is_some_and(|record| matches!(record.what, What::Longer(.., 0)))
    }

    fn write_back(&self, path: &Path, inode: Inode, are_all: bool) -> io::Result<()> {
        let file = match open(path, inode) {
            // It has been removed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_new() => return Ok(()),
            opened => opened?,
        };
        for record in self.records.iter().rev() {
            if let What::Changed(.., places) = record.what {
                undo::runs(places).try_for_each(|(at, old)| file.write_all_at(old, at))?;
            }
        }
        let length = file.metadata()?.len();
        let end = match are_all {
            true => self.length_before(),
            false => self.end_of_others(&file, length)?,
        };
        match end < length {
            true => file.set_len(end),
            false => Ok(()),
        }
    }

    /// The length that the file had, with what stays of it, where the logs of all ranks are here. Until the first of them
    /// makes it longer, each record tells how long it was at least; and that one tells how long it was.
    fn length_before(&self) -> u64 {
        let mut length = self.kept.iter().map(|(_, to)| *to).max().unwrap_or(0);
        for record in &self.records {
            match record.what {
                What::Changed(_, to, _) => length = length.max(to),
                What::Longer(.., before) => return length.max(before),
                What::Path(_) | What::Read(..) | What::Glanced(..) => {}
            }
        }
        u64::MAX
    }

    /// The end of a file of `length` bytes without what these ranks have added to it. Some of it may have been added by
    /// ranks that do not undo it here: their image is later, or they are elsewhere.
    fn end_of_others(&self, file: &File, length: u64) -> io::Result<u64> {
        let mut added: Vec<(u64, u64)> = Vec::new();
        // Between the file's end and what was written behind it. What is written there later is added, too.
        let mut holes: Vec<(u64, u64)> = Vec::new();
        // The file had at least so many bytes.
        let mut least = 0;
        for record in &self.records {
            match record.what {
                What::Changed(from, to, places) => {
                    for (start, end) in &holes {
                        add(&mut added, from.max(*start), to.min(*end));
                    }
                    for (at, old) in undo::runs(places) {
                        least = least.max(end_without(&added, at, at + old.len() as u64));
                    }
                }
                What::Longer(from, to, before) => {
                    add(&mut added, from.max(least), to);
                    add(&mut holes, before.max(least), from);
                }
                What::Path(_) | What::Read(..) | What::Glanced(..) => {}
            }
        }
        let mut end = length;
        let begin_of = |ranges: &[(u64, u64)], end: u64| {
            let mut touching = ranges.iter().filter(|(from, to)| *from < end && end <= *to);
            touching.next().map(|(from, _)| *from)
        };
        loop {
            if let Some(begin) = begin_of(&added, end) {
                end = begin;
            } else if let Some(begin) = begin_of(&holes, end) {
                // As far as nobody has written anything that goes.
                let goes = added.iter().map(|(_, to)| *to).filter(|to| *to < end).max();
                let begin = begin.max(goes.unwrap_or(0));
                let kept = self
                    .kept
                    .iter()
                    .filter(|(from, _)| *from < end)
                    .map(|(_, to)| *to)
                    .max();
                let kept = kept.unwrap_or(0).max(last_written(file, begin, end)?);
                end = end.min(kept.max(begin));
                if end > begin {
                    break;
                }
            } else {
                break;
            }
        }
        Ok(end)
    }
}

/// The file that had this path, if it still has.
fn open(path: &Path, inode: Inode) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let about = file.metadata()?;
    match (about.dev(), about.ino()) == inode && about.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "another file has this name now",
        )),
    }
}

/// The end of what is there and not zero, in a part of the file.
fn last_written(file: &File, from: u64, to: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 64 << 10];
    let (mut at, mut last) = (from, from);
    while at < to {
        at = match lseek(file, at as i64, Whence::SeekData) {
            Ok(data) => data as u64,
            // There is nothing but a hole.
            Err(Errno::ENXIO) => return Ok(last),
            Err(error) => return Err(error.into()),
        };
        let wanted = buffer.len().min(to.saturating_sub(at) as usize);
        let found = match wanted {
            0 => 0,
            _ => file.read_at(&mut buffer[..wanted], at)?,
        };
        if found == 0 {
            break;
        }
        if let Some(place) = buffer[..found].iter().rposition(|byte| *byte != 0) {
            last = at + place as u64 + 1;
        }
        at += found as u64;
    }
    Ok(last)
}

/// The end of what a range has in none of these, which do not touch one another; 0: it has nothing else.
fn end_without(ranges: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let touching = ranges.iter().find(|(start, end)| *start < to && to <= *end);
    match touching.map_or(to, |(start, _)| *start) {
        end if end > from => end,
        _ => 0,
    }
}

/// Adds a range to some that do not touch one another.
fn add(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    if from < to {
        let touching = ranges.extract_if(.., |(start, end)| *start <= to && from <= *end);
        let all = touching.fold((from, to), |all, (start, end)| (all.0.min(start), all.1.max(end)));
        ranges.push(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as a rank writes it: what is done to the file is done, too.
    struct Writer<'a> {
        file: &'a File,
        inode: Inode,
        log: Vec<u8>,
    }

    impl<'a> Writer<'a> {
        fn new(file: &'a File, path: &Path) -> Writer<'a> {
            let about = file.metadata().unwrap();
            let mut writer = Writer {
                file,
                inode: (about.dev(), about.ino()),
                log: Vec::new(),
            };
            writer.note(
                0,
                0,
                What::Path(path.as_os_str().as_bytes()),
                path.as_os_str().as_bytes(),
            );
            writer
        }

        fn note(&mut self, image: u64, time: u64, what: What, behind: &[u8]) {
            let record = Record {
                file: self.inode,
                image,
                time,
                what,
            };
            self.log.extend(record.head(undo::padded(behind.len())));
            self.log.extend(behind);
            self.log.resize(undo::padded(self.log.len()), 0);
        }

        fn cut(&mut self, image: u64, time: u64, to: u64) {
            let length = self.file.metadata().unwrap().len();
            let mut old = vec![0; (length - to) as usize];
            self.file.read_exact_at(&mut old, to).unwrap();
            let run = [&to.to_le_bytes(), &(old.len() as u64).to_le_bytes(), &old[..]].concat();
            self.note(image, time, What::Changed(to, length, b""), &run);
            self.file.set_len(to).unwrap();
        }

        fn write(&mut self, image: u64, time: u64, at: u64, bytes: &[u8]) {
            let length = self.file.metadata().unwrap().len();
            let mut old = vec![0; bytes.len().min(length.saturating_sub(at) as usize)];
            self.file.read_exact_at(&mut old, at).unwrap();
            if !old.is_empty() {
                let run = [&at.to_le_bytes(), &(old.len() as u64).to_le_bytes(), &old[..]].concat();
                let what = What::Changed(at, at + old.len() as u64, b"");
                self.note(image, time, what, &run);
            }
            let end = at + bytes.len() as u64;
            if end > length {
                let what = What::Longer(at.max(length), end, length);
                self.note(image, time, what, &length.to_le_bytes());
            }
            self.file.write_all_at(bytes, at).unwrap();
        }
    }

    /// A directory that goes with the test.
    struct Directory(std::path::PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn file(name: &str, content: &[u8]) -> (Directory, std::path::PathBuf, File) {
        let directory = std::env::temp_dir().join(format!("resurgo-undo-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("file");
        std::fs::write(&path, content).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        (Directory(directory), path, file)
    }

    #[test]
    fn the_oldest_bytes_come_back_whoever_wrote_last() {
        let (_directory, path, file) = file("oldest", b"0123456789");
        let (mut one, mut two) = (Writer::new(&file, &path), Writer::new(&file, &path));
        one.write(0, 1, 0, b"ab");
        one.write(1, 2, 1, b"XX");
        two.write(1, 3, 2, b"YY");
        one.write(1, 4, 2, b"ZZ");
        assert!(write_back(&[one.log.clone(), two.log.clone()], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"ab23456789");
        assert!(write_back(&[one.log, two.log], 0, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
    }

    #[test]
    fn what_was_added_is_cut_off_unless_others_keep_what_is_behind() {
        let (_directory, path, file) = file("added", b"0123");
        let (mut one, mut two) = (Writer::new(&file, &path), Writer::new(&file, &path));
        one.write(1, 1, 2, b"abcd");
        two.write(1, 2, 5, b"fgh");
        assert!(write_back(&[one.log.clone(), two.log.clone()], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123");
        one.write(2, 3, 4, b"xx");
        two.write(1, 4, 6, b"yy");
        assert!(write_back(&[one.log, two.log], 2, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123xxyy", "rank two keeps its bytes");
    }

    #[test]
    fn a_place_that_nobody_has_written_goes_with_what_was_added_behind() {
        let (_directory, path, file) = file("holes", b"0123");
        let mut one = Writer::new(&file, &path);
        for (time, at) in [(1, 8196), (2, 20000), (3, 100), (4, 12000)] {
            one.write(1, time, at, b"new");
        }
        assert!(write_back(&[one.log], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123");
    }

    #[test]
    fn of_two_that_write_at_once_one_finds_the_end_before_what_the_other_adds() {
        let (_directory, path, file) = file("at-once", b"");
        let (mut one, mut two) = (Writer::new(&file, &path), Writer::new(&file, &path));
        one.write(1, 1, 0, b"aaaa");
        two.write(1, 2, 8, b"bbbb");
        let end = two.log.len() - 8;
        two.log[end..].copy_from_slice(&0u64.to_le_bytes());
        assert!(write_back(&[one.log, two.log], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn what_others_keep_in_such_a_place_stays() {
        for (name, bytes) in [("kept", b"kept"), ("zeros", &[0; 4])] {
            let (_directory, path, file) = file(name, b"0123");
            let (mut one, mut two) = (Writer::new(&file, &path), Writer::new(&file, &path));
            one.write(1, 1, 8196, b"new");
            two.write(0, 2, 100, bytes);
            assert!(write_back(&[one.log, two.log], 1, true));
            let content = std::fs::read(&path).unwrap();
            assert_eq!((content.len(), &content[100..]), (104, &bytes[..]));
        }
    }

    #[test]
    fn a_new_file_that_was_removed_again_needs_nothing() {
        let (_directory, path, file) = file("removed", b"");
        let mut one = Writer::new(&file, &path);
        one.write(1, 1, 0, b"abcd");
        std::fs::remove_file(&path).unwrap();
        assert!(write_back(&[one.log.clone()], 1, true));
        std::fs::write(&path, b"other").unwrap();
        assert!(write_back(&[one.log], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
    }

    #[test]
    fn a_hole_that_others_have_filled_is_cut_off_unless_they_keep_it() {
        let (_directory, path, file) = file("hole", b"0123");
        let (mut one, mut two) = (Writer::new(&file, &path), Writer::new(&file, &path));
        one.write(1, 1, 12, b"last");
        two.write(1, 2, 8, b"2\0\0\0");
        two.write(1, 3, 4, b"1\0\0\0");
        assert!(write_back(&[one.log.clone(), two.log.clone()], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123");
        one.write(2, 4, 12, b"last");
        two.write(1, 5, 8, b"2\0\0\0");
        one.write(2, 6, 4, b"1\0\0\0");
        assert!(write_back(&[one.log, two.log], 2, true));
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"0123\0\0\0\x002\0\0\0",
            "rank two keeps its bytes"
        );
    }

    #[test]
    fn a_file_that_was_cut_off_and_written_anew_is_the_old_one_again() {
        let (_directory, path, file) = file("cut", b"0123456789");
        let mut one = Writer::new(&file, &path);
        one.cut(3, 1, 4);
        one.write(3, 2, 4, b"new content that is longer");
        assert!(write_back(&[one.log], 3, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
    }

    #[test]
    fn a_file_that_was_made_longer_then_cut_off_and_made_longer_again_has_its_length_again() {
        for are_all in [true, false] {
            let (_directory, path, file) = file("longer", b"0123456789");
            let mut one = Writer::new(&file, &path);
            one.write(3, 1, 10, b"abcd");
            one.cut(3, 2, 4);
            one.write(3, 3, 4, b"another content");
            assert!(write_back(&[one.log], 3, are_all));
            assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
        }
    }

    #[test]
    fn another_file_of_that_name_stays_as_it_is() {
        let (_directory, path, file) = file("other", b"0123");
        let mut one = Writer::new(&file, &path);
        one.write(1, 1, 0, b"abcd");
        assert!(write_back(&[one.log.clone()], 2, true), "nothing to undo");
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert!(!write_back(&[one.log], 1, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
    }
}

//! Contents of files that the program changes in place, such as a small database. When the rank goes back to an image,
//! such a file would be newer than the program. So each image has a copy of it, in memory of the process. A file is
//! kept if the program can both read it and write anywhere in it; all such files together have at most [`MOST`] bytes.
//! A file that the program only writes, or appends to, is not kept: the program will write it once more. `sharing.rs`
//! says what happens to appended bytes.
//!
//! A file that others write to is left as it is: its new content may be theirs.

use crate::captured::Captured;
use crate::descriptors::Descriptor;
use crate::pages::PAGE;
use crate::sharing::Inode;
use crate::sys::{self, Errno, call};
use crate::{mappings, proc};

/// Bytes of all files. They are copied while the program stands still.
const MOST: usize = 16 << 20;
const MOST_FILES: usize = 64;

/// Where the copies are: below the restorer, so that it leaves them alone, and next to nothing else (see
/// [`resurgo_wire::places`]).
const PLACE: usize = 0x1f0_0000_0000;
/// Bytes that are read and compared at once.
const STEP: usize = 64 << 10;

/// Whether copies of files may lie at this address.
pub fn has_copies_at(address: u64) -> bool {
    (PLACE..PLACE + MOST).contains(&(address as usize))
}

/// Nanoseconds after which another change has another time: clocks of file systems tick every 10 ms at least.
const TICK: u64 = 50_000_000;

#[derive(Clone, Copy)]
struct Content {
    inode: Inode,
    /// Offset from [`PLACE`], and length.
    at: usize,
    length: usize,
    /// The file's time of change in seconds and nanoseconds, by the file system's clock.
    changed: (i64, i64),
    /// When this time was first seen, and when the content was copied, by this machine's clock.
    seen: u64,
    copied: u64,
}

impl Content {
    fn end(&self) -> usize {
        self.at + self.length.next_multiple_of(PAGE)
    }

    fn bytes(&self) -> &'static [u8] {
        // SAFETY: mapped and filled when it was noted.
        unsafe { std::slice::from_raw_parts((PLACE + self.at) as *const u8, self.length) }
    }
}

struct State {
    contents: [Content; MOST_FILES],
    count: usize,
    mapped: usize,
}

const NOTHING: State = State {
    contents: [Content {
        inode: (0, 0),
        at: 0,
        length: 0,
        changed: (0, 0),
        seen: 0,
        copied: 0,
    }; MOST_FILES],
    count: 0,
    mapped: 0,
};

impl State {
    fn contents(&self) -> &[Content] {
        &self.contents[..self.count]
    }

    /// Maps or unmaps memory so that it ends at `end`.
    fn map(&mut self, end: usize) -> Result<(), Errno> {
        let from = PLACE + self.mapped;
        if end > self.mapped {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: nobody else has memory there, else it is refused.
            unsafe { call!(libc::SYS_mmap, from, end - self.mapped, protection, flags, -1i32, 0) }?;
        } else if end < self.mapped {
            // SAFETY: memory of this module only; it uses nothing behind `end`.
            unsafe { call!(libc::SYS_munmap, PLACE + end, self.mapped - end) }?;
        }
        self.mapped = end;
        Ok(())
    }
}

static STATE: Captured<State> = Captured::new(NOTHING);

fn state() -> &'static mut State {
    // SAFETY: see [`Captured`].
    unsafe { STATE.get() }
}

/// If `entry` can write anywhere in its file, and a descriptor reads that file: the reader and `entry` itself.
fn ends(entries: &[Descriptor], entry: &Descriptor) -> Option<(i32, i32)> {
    let reads =
        |entry: &Descriptor| entry.status & libc::O_ACCMODE != libc::O_WRONLY && entry.status & libc::O_PATH == 0;
    if !entry.is_written() || entry.others_write || entry.status & libc::O_APPEND != 0 {
        return None;
    }
    if reads(entry) {
        return Some((entry.fd, entry.fd));
    }
    let reader = entries.iter().find(|other| other.inode == entry.inode && reads(other));
    reader.map(|reader| (reader.fd, entry.fd))
}

/// Copies what the files hold, except those that have not changed since the last image. All threads stand still.
pub fn note(entries: &[Descriptor]) {
    let state = state();
    let former = state.contents;
    let former = &former[..state.count];
    state.count = 0;
    let mut end = 0;
    for entry in entries {
        let Some((reader, _)) = ends(entries, entry) else {
            continue;
        };
        let is_known = state.contents().iter().any(|content| content.inode == entry.inode);
        let length = entry.length as usize;
        if is_known || state.count == MOST_FILES || end + length > MOST {
            continue;
        }
        if mappings::is_of_library(proc::link(reader, &mut [0; 64]).as_bytes()) {
            continue;
        }
        let Ok(stat) = sys::stat(reader) else { continue };
        let now = sys::now_ns();
        let mut content = Content {
            inode: entry.inode,
            at: end,
            length,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            seen: now,
            copied: now,
        };
        let same = |old: &&Content| (old.inode, old.changed, old.length) == (content.inode, content.changed, length);
        let old = former.iter().find(same);
        content.seen = old.map_or(now, |old| old.seen);
        match old.filter(|old| old.at == content.at && old.copied - old.seen >= TICK) {
            Some(old) => content.copied = old.copied,
            None if copy(state, &content, reader).is_err() => continue,
            None => {}
        }
        end = content.end();
        state.contents[state.count] = content;
        state.count += 1;
    }
    let _ = state.map(end);
}

fn copy(state: &mut State, content: &Content, reader: i32) -> Result<(), Errno> {
    let is_new = content.at >= state.mapped;
    if content.end() > state.mapped {
        state.map(content.end())?;
    }
    // SAFETY: the memory just mapped, which nobody else uses.
    let to = unsafe { std::slice::from_raw_parts_mut((PLACE + content.at) as *mut u8, content.length) };
    let mut length = 0;
    if is_new {
        length = sys::read_at(reader, to, 0)?;
    } else {
        // The last image's snapshot shares these pages: write only those that differ. Writing to a page takes several
        // times as long as reading it.
        let mut now = [0u8; STEP];
        for (index, to) in to.chunks_mut(STEP).enumerate() {
            length += sys::read_at(reader, &mut now[..to.len()], (index * STEP) as u64)?;
            for (now, to) in now.chunks(PAGE).zip(to.chunks_mut(PAGE)) {
                if now[..to.len()] != *to {
                    to.copy_from_slice(&now[..to.len()]);
                }
            }
        }
    }
    if length == content.length {
        Ok(())
    } else {
        Err(libc::EIO)
    }
}

/// In a copy that becomes the rank, or in a rebuilt process: files that changed since the image get their content of
/// then. Afterwards the copies are given up. The error names the descriptor.
pub fn bring_back(entries: &[Descriptor]) -> Result<(), (i32, Errno)> {
    let state = state();
    for content in state.contents() {
        let of_file = entries.iter().filter(|entry| entry.inode == content.inode);
        if let Some((reader, writer)) = of_file.clone().find_map(|entry| ends(entries, entry)) {
            let is_shared = || of_file.clone().any(Descriptor::is_written_by_others);
            put_back(content, reader, writer, is_shared).map_err(|errno| (writer, errno))?;
        }
    }
    let _ = state.map(0);
    state.count = 0;
    Ok(())
}

/// Calls `is_shared` only if there is anything to write.
fn put_back(content: &Content, reader: i32, writer: i32, is_shared: impl Fn() -> bool) -> Result<(), Errno> {
    let mut now = [0u8; STEP];
    let mut is_allowed = false;
    let mut may_write = || {
        is_allowed = is_allowed || !is_shared();
        is_allowed
    };
    for (index, then) in content.bytes().chunks(STEP).enumerate() {
        let offset = index * STEP;
        let length = sys::read_at(reader, &mut now[..then.len()], offset as u64)?;
        if &now[..length] == then {
            continue;
        }
        if !may_write() {
            return Ok(());
        }
        let mut done = 0;
        while done < then.len() {
            let rest = &then[done..];
            // SAFETY: reads the copy.
            done += unsafe { call!(libc::SYS_pwrite64, writer, rest.as_ptr(), rest.len(), offset + done) }?;
        }
    }
    if sys::stat(writer)?.st_size as usize > content.length && may_write() {
        // SAFETY: changes the length of a file.
        unsafe { call!(libc::SYS_ftruncate, writer, content.length) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::PathBuf;
    use std::sync::{Mutex, MutexGuard};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::descriptors;

    /// Only one test at a time may use the copies.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        note(&[]);
        assert!(state().contents().is_empty() && state().mapped == 0);
        guard
    }

    struct Removed(PathBuf);

    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn file(name: &str, content: &[u8]) -> (Removed, File) {
        let path = std::env::temp_dir().join(format!("resurgo-contents-{name}-{}", std::process::id()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(content).unwrap();
        (Removed(path), file)
    }

    fn described(files: &[&File]) -> Vec<Descriptor> {
        let described = files
            .iter()
            .map(|file| descriptors::describe(file.as_raw_fd(), &[(0, 0); 3], &[]));
        described.map(Result::unwrap).collect()
    }

    fn kept() -> Vec<Vec<u8>> {
        state()
            .contents()
            .iter()
            .map(|content| content.bytes().to_vec())
            .collect()
    }

    fn put_back_first(file: &File, is_shared: bool) {
        let number = file.as_raw_fd();
        put_back(&state().contents()[0], number, number, || is_shared).unwrap();
    }

    #[test]
    fn what_can_be_read_and_written_anywhere_is_kept() {
        let _alone = alone();
        let (path, both) = file("ways", b"abc");
        let open = |options: &mut std::fs::OpenOptions| options.open(&path.0).unwrap();
        let read = open(File::options().read(true));
        let write = open(File::options().write(true));
        let append = open(File::options().read(true).append(true));
        let only_path = open(File::options().read(true).custom_flags(libc::O_PATH));
        for (files, expected) in [
            (&[&both][..], 1),
            (&[&read], 0),
            (&[&write], 0),
            (&[&append], 0),
            (&[&append, &read], 0),
            (&[&only_path, &write], 0),
            (&[&read, &write], 1),
            (&[&write, &append], 1),
            (&[&both, &read, &write, &both], 1),
        ] {
            note(&described(files));
            assert_eq!(kept(), vec![b"abc".to_vec(); expected]);
        }
    }

    #[test]
    fn a_file_holds_what_it_held_unless_others_write_to_it() {
        let _alone = alone();
        let content: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        let (path, file) = file("back", &content);
        let now = || std::fs::read(&path.0).unwrap();
        note(&described(&[&file]));
        let written = file.metadata().unwrap().modified().unwrap();
        put_back_first(&file, false);
        assert_eq!(
            file.metadata().unwrap().modified().unwrap(),
            written,
            "nothing was to be done"
        );
        for change in [
            |file: &File| file.write_all_at(b"changed", 0).unwrap(),
            |file: &File| file.write_all_at(b"changed", 99_990).unwrap(),
            |file: &File| file.write_all_at(b"longer", 100_000).unwrap(),
            |file: &File| file.set_len(50_000).unwrap(),
            |file: &File| file.set_len(0).unwrap(),
        ] {
            change(&file);
            let changed = now();
            assert_ne!(changed, content);
            put_back_first(&file, true);
            assert_eq!(now(), changed);
            put_back_first(&file, false);
            assert_eq!(now(), content);
        }
    }

    #[test]
    fn what_is_too_long_is_left_out_and_the_rest_is_kept() {
        let _alone = alone();
        let (_first, first) = file("first", b"first");
        let (_long, long) = file("long", b"");
        long.set_len(MOST as u64).unwrap();
        let (_second, second) = file("second", &[7; 5000]);
        note(&described(&[&first, &long, &second]));
        assert_eq!(kept(), [b"first".to_vec(), vec![7; 5000]]);
        assert_eq!(state().mapped, 3 * PAGE);
        note(&described(&[&long]));
        assert_eq!(kept(), [vec![0; MOST]]);
        note(&described(&[&second]));
        assert_eq!((kept(), state().mapped), (vec![vec![7; 5000]], 2 * PAGE));
    }

    #[test]
    fn a_file_is_copied_again_when_it_may_have_changed() {
        let _alone = alone();
        let (_path, file) = file("again", b"once");
        let copied = || {
            note(&described(&[&file]));
            (kept().remove(0), state().contents()[0].copied)
        };
        let first = copied();
        // Perhaps with the same time of change.
        file.write_all_at(b"Once", 0).unwrap();
        assert_eq!(copied().0, b"Once");
        thread::sleep(Duration::from_nanos(2 * TICK));
        let settled = copied();
        assert!(settled.1 > first.1);
        assert_eq!(copied(), settled);
        file.write_all_at(b"twice", 0).unwrap();
        assert_eq!(copied().0, b"twice");
        // At the place in the copies where another file was before.
        let (_other, other) = self::file("other", b"other");
        thread::sleep(Duration::from_nanos(2 * TICK));
        copied();
        note(&described(&[&other, &file]));
        assert_eq!(kept(), [b"other".to_vec(), b"twice".to_vec()]);
    }
}

//! Files that grow while a rank runs, and other processes that write to them. When the rank goes back to an image, such
//! a file would hold bytes twice, or old bytes behind the rank's new ones. So the rank cuts the file to the length that
//! it had at the image. It does not if another process has the file open for writing: bytes behind that length may be
//! the other's.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use resurgo_wire::node_memory::{ENV_RANK, NODE_MEMORY_FD};

use crate::talk::Text;
use crate::{proc, sys};

/// Device and inode.
pub type Inode = (u64, u64);

/// Whether this descriptor can write to a regular file.
pub fn is_written(mode: u32, status: i32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG && status & libc::O_ACCMODE != libc::O_RDONLY && status & libc::O_PATH == 0
}

/// Whether this descriptor adds to its file: it appends, or is at the end.
pub fn grows(mode: u32, status: i32, offset: i64, length: i64) -> bool {
    is_written(mode, status) && (status & libc::O_APPEND != 0 || offset == length)
}

/// Calls `each` with the number of every process.
pub fn for_each_process(each: impl FnMut(i32)) {
    if let Ok(processes) = directory("/proc\0") {
        let _ = sys::numbers_in(processes, each);
        sys::close(processes);
    }
}

/// Calls `each` with every process that may be looked at, and each of its descriptors.
fn for_each_descriptor(mut each: impl FnMut(i32, i32)) {
    for_each_process(|process| {
        if let Ok(files) = directory(Text::of(format_args!("/proc/{process}/fd\0")).as_str()) {
            let _ = sys::numbers_in(files, |file| each(process, file));
            sys::close(files);
        }
    });
}

fn directory(path: &str) -> Result<i32, sys::Errno> {
    sys::open(path.as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)
}

/// Which descriptors are looked for.
#[derive(Clone, Copy, PartialEq)]
pub enum Opened {
    /// Those by which a file can be written to.
    ForWriting,
    /// Those of files that have lost their name.
    Nameless,
}

/// Calls `each` for every such descriptor of any process, with the file's number and a question: which file is it?
/// There is no answer if the process has ended, or is a life or a copy of this rank. Processes that may not be looked
/// at are those of other users.
///
/// Files are only looked at when `each` asks: the server of a file that this rank does not use may be out of reach.
pub fn for_each_open(which: Opened, mut each: impl FnMut(u64, &dyn Fn() -> Option<Inode>)) {
    for_each_descriptor(|process, file| {
        if which == Opened::Nameless && !has_no_name(process, file) {
            return;
        }
        if let Some(number) = number(process, file, which) {
            // Check this last: a process that ends meanwhile may look like another's before.
            let is_other = |_: &Inode| !is_of_this_rank(process) && !has_ended(process);
            each(number, &|| target(process, file).filter(is_other));
        }
    });
}

/// Calls `each` with a path, under /proc, of every descriptor of any process, this one too, whose file has lost its name.
pub fn for_each_nameless(mut each: impl FnMut(&str)) {
    for_each_descriptor(|process, file| {
        if has_no_name(process, file) {
            each(Text::of(format_args!("/proc/{process}/fd/{file}")).as_str());
        }
    });
}

/// Calls `each` for every descriptor of another process that can write to a file: see [`for_each_open`].
pub fn for_each_writer(each: impl FnMut(u64, &dyn Fn() -> Option<Inode>)) {
    for_each_open(Opened::ForWriting, each);
}

/// Calls `visit` with a function that answers whether others write to a file. `visit` asks about every file that
/// matters. If it asks about none, no process is looked at.
pub fn find_shared(mut visit: impl FnMut(&mut dyn FnMut(Inode) -> bool)) {
    let mut asks = false;
    visit(&mut |_| {
        asks = true;
        false
    });
    if asks {
        for_each_writer(|number, other| visit(&mut |file| file.1 == number && other() == Some(file)));
    }
}

/// Whether a process that is not of this rank has `file` open for writing.
pub fn is_written_by_others(file: Inode) -> bool {
    let mut found = false;
    for_each_writer(|number, other| found = found || number == file.1 && other() == Some(file));
    found
}

fn has_no_name(process: i32, file: i32) -> bool {
    let mut link = [0u8; 4096];
    let path = Text::of(format_args!("/proc/{process}/fd/{file}\0"));
    sys::readlink(path.as_str().as_bytes(), &mut link).is_ok_and(|link| link.ends_with(b" (deleted)"))
}

/// The number of a file, if the descriptor is of that kind.
fn number(process: i32, file: i32, which: Opened) -> Option<u64> {
    let (mut writes, mut number) = (false, None);
    let path = Text::of(format_args!("/proc/{process}/fdinfo/{file}\0"));
    let read = proc::for_each_fact_in(path.as_str().as_bytes(), |label, value| {
        match label {
            "flags" => {
                let flags = i32::from_str_radix(value, 8).ok()?;
                writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
            }
            "ino" => number = value.parse().ok(),
            _ => {}
        }
        Some(())
    });
    if read.is_err() || which == Opened::ForWriting && !writes {
        return None;
    }
    // Kernels before 5.14 do not say it.
    number.or_else(|| target(process, file).map(|(_, number)| number))
}

fn target(process: i32, file: i32) -> Option<Inode> {
    let stat = sys::stat_path(Text::of(format_args!("/proc/{process}/fd/{file}")).as_str()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// [`NOBODY`], or this rank.
static OWN_RANK: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

/// Finds out which rank this is. Call once, in ordinary circumstances: in a process that is being rebuilt, the kernel
/// does not find the environment until its page is filled.
pub fn find_own() {
    OWN_RANK.store(rank_of(sys::getpid()).unwrap_or(NOBODY), Ordering::Relaxed);
}

/// True for this process, or a copy that sleeps or writes an image. In doubt, as when the program has overwritten its
/// environment, false.
fn is_of_this_rank(process: i32) -> bool {
    let (own, rank) = (sys::getpid(), OWN_RANK.load(Ordering::Relaxed));
    let same_job = || target(own, NODE_MEMORY_FD).is_some_and(|memory| target(process, NODE_MEMORY_FD) == Some(memory));
    process == own || rank != NOBODY && same_job() && rank_of(process) == Some(rank)
}

/// Whether a process has ended. A killed process loses its memory, and with it its environment, before its files.
fn has_ended(process: i32) -> bool {
    let path = Text::of(format_args!("/proc/{process}/statm\0"));
    let Ok(file) = sys::open(path.as_str().as_bytes(), libc::O_RDONLY | libc::O_CLOEXEC) else {
        return true;
    };
    let mut size = [0u8; 2];
    let read = sys::read(file, &mut size);
    sys::close(file);
    read.is_err() || size == *b"0 "
}

/// The rank in the environment that the agent gave to a process.
fn rank_of(process: i32) -> Option<u32> {
    let path = Text::of(format_args!("/proc/{process}/environ\0"));
    let file = sys::open(path.as_str().as_bytes(), libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let mut search = Search::default();
    let mut bytes = [0u8; 1024];
    while let Ok(length @ 1..) = sys::read(file, &mut bytes) {
        bytes[..length].iter().for_each(|byte| search.take(*byte));
    }
    sys::close(file);
    search.found
}

/// Finds the number in `RESURGO_RANK=number` among variables with a zero behind each.
#[derive(Default)]
struct Search {
    /// How many bytes of the name and of `=` have been seen; none: this is another variable.
    seen: Option<usize>,
    number: u32,
    /// At least one byte of this variable was read.
    inside: bool,
    found: Option<u32>,
}

impl Search {
    fn take(&mut self, byte: u8) {
        const NAME: usize = ENV_RANK.len();
        if byte == 0 {
            if self.seen > Some(NAME + 1) {
                self.found = Some(self.number);
            }
            (self.inside, self.number) = (false, 0);
            return;
        }
        if !std::mem::replace(&mut self.inside, true) {
            self.seen = Some(0);
        }
        let Some(seen) = self.seen else { return };
        let fits = match ENV_RANK.as_bytes().get(seen) {
            Some(expected) => byte == *expected,
            None if seen == NAME => byte == b'=',
            None => byte.is_ascii_digit(),
        };
        if fits && seen > NAME {
            self.number = self.number.wrapping_mul(10) + u32::from(byte - b'0');
        }
        self.seen = fits.then_some(seen + 1);
    }
}

/// A file that the MPI library opened to write to it.
struct MpiFile {
    device: AtomicU64,
    inode: AtomicU64,
}

impl MpiFile {
    fn is(&self, inode: Inode) -> bool {
        (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed)) == inode
    }
}

/// The last such files; the next one goes to place [`NEXT`].
static MPI_FILES: [MpiFile; 256] = [const {
    MpiFile {
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; 256];

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Notes that the MPI library opened this file (device and inode) to write to it. Mostly other ranks do so, too. They
/// may not have it open yet when the image is taken, and may have closed it when this rank goes back.
pub fn note_mpi_file(inode: Inode) {
    if !is_mpi_file(inode) {
        let file = &MPI_FILES[NEXT.fetch_add(1, Ordering::Relaxed) % MPI_FILES.len()];
        file.device.store(inode.0, Ordering::Relaxed);
        file.inode.store(inode.1, Ordering::Relaxed);
    }
}

/// Whether the MPI library opened this file to write to it: then it never gets back its content of an image.
pub fn is_mpi_file(inode: Inode) -> bool {
    MPI_FILES.iter().any(|file| file.is(inode))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_appends_or_is_at_the_end_grows() {
        const FILE: u32 = libc::S_IFREG | 0o600;
        for (mode, status, offset, length, expected) in [
            (FILE, libc::O_WRONLY, 7, 7, true),
            (FILE, libc::O_RDWR, 0, 0, true),
            (FILE, libc::O_WRONLY | libc::O_APPEND, 0, 7, true),
            (FILE, libc::O_WRONLY, 3, 7, false),
            (FILE, libc::O_RDONLY, 7, 7, false),
            (FILE, libc::O_RDONLY | libc::O_APPEND, 7, 7, false),
            (FILE, libc::O_PATH | libc::O_RDWR, 7, 7, false),
            (libc::S_IFDIR | 0o700, libc::O_RDWR, 0, 0, false),
        ] {
            assert_eq!(
                grows(mode, status, offset, length),
                expected,
                "{mode:o} {status:o} {offset} {length}"
            );
        }
    }

    #[test]
    fn the_rank_is_found_in_an_environment() {
        for (environment, rank) in [
            ("A=1\0RESURGO_RANK=12\0B=2\0", Some(12)),
            ("RESURGO_RANK=0\0", Some(0)),
            (
                "RESURGO_RANKS=4\0XRESURGO_RANK=5\0RESURGO_RANK\0RESURGO_RANK=\0RESURGO_RANK=x\0\0",
                None,
            ),
            ("RESURGO_RANK=3\0RESURGO_RAN=4\0", Some(3)),
        ] {
            let mut search = Search::default();
            environment.bytes().for_each(|byte| search.take(byte));
            assert_eq!(search.found, rank, "{environment:?}");
        }
    }

    #[test]
    fn another_process_that_writes_is_seen_and_one_that_reads_is_not() {
        let _alone = crate::tests::alone();
        let path = std::env::temp_dir().join(format!("resurgo-sharing-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let inode = (metadata.dev(), metadata.ino());
        let seen = || {
            let mut count = 0;
            for_each_writer(|number, other| count += u32::from(number == inode.1 && other() == Some(inode)));
            assert_eq!(target(sys::getpid(), file.as_raw_fd()), Some(inode));
            assert_eq!(is_written_by_others(inode), count > 0);
            count
        };
        assert_eq!(seen(), 0);
        let sleeper = |file: File| {
            let mut command = Command::new("sleep");
            command.arg("3600").stdin(Stdio::from(file)).spawn().unwrap()
        };
        let mut reader = sleeper(File::open(&path).unwrap());
        assert_eq!(seen(), 0);
        let mut writer = sleeper(File::options().append(true).open(&path).unwrap());
        assert_eq!(seen(), 1);
        for child in [&mut reader, &mut writer] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(seen(), 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_has_been_killed_has_ended_before_anyone_waits_for_it() {
        let _alone = crate::tests::alone();
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let process = child.id() as i32;
        assert!(!has_ended(sys::getpid()) && !has_ended(process));
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !has_ended(process) {
            assert!(std::time::Instant::now() < end);
        }
        child.wait().unwrap();
        assert!(has_ended(process));
    }
}

//! Open descriptors: what each is, found while the threads stand still.

use resurgo_wire::node_memory::RANK_FDS;

use crate::captured::Captured;
use crate::eventfds::{self, Object};
use crate::sys::{self, Errno, call};
use crate::trouble::Refusal;
use crate::{proc, sharing};

/// Most open descriptors of a rank.
const MOST: usize = 4096;

/// What a descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The rank's own standard output or error (1 or 2): a life has its own.
    Output(i32),
    /// The pipe or file that standard input comes from.
    Input,
    /// Regular file or directory, with an offset.
    File,
    /// A device without a state, or one of the node's own files: the copy may share it.
    Shared,
    /// Anything else whose state is in the kernel.
    Object(Object),
}

#[derive(Clone, Copy)]
pub struct Descriptor {
    pub fd: i32,
    pub kind: Kind,
    /// F_GETFL and F_GETFD.
    pub status: i32,
    pub flags: i32,
    pub offset: i64,
    /// Length of a regular file.
    pub length: i64,
    /// The lock on the whole file (flock), 0: none.
    pub lock: i32,
    /// The first descriptor with the same open file, if there is one.
    pub same_as: Option<i32>,
    /// Device and inode.
    pub inode: (u64, u64),
    /// A digest of when it was made; 0: unknown.
    pub birth: u32,
    pub mode: u32,
    /// A file of the process itself in /proc. The next life has its own by that name.
    pub of_process: bool,
    /// The wrapper above the program may have the same open file, with its offset: all lives keep it.
    pub of_wrapper: bool,
    /// Others had the file open for writing when the image was taken, or may have it open at any time.
    pub others_write: bool,
}

impl Descriptor {
    /// Whether the program can write to a regular file by it.
    pub fn is_written(&self) -> bool {
        self.kind == Kind::File && sharing::is_written(self.mode, self.status)
    }

    pub fn is_written_by_others(&self) -> bool {
        self.others_write || sharing::is_written_by_others(self.inode)
    }

    pub fn object(&self) -> Option<Object> {
        match self.kind {
            Kind::Object(object) => Some(object),
            _ => None,
        }
    }
}

struct Table {
    entries: [Descriptor; MOST],
    count: usize,
    /// Device and inode of this life's standard input, output and error.
    standard: [(u64, u64); 3],
    /// The same of the files that the program shares with its wrapper.
    of_wrapper: [(u64, u64); u64::BITS as usize],
}

const NOTHING: Descriptor = Descriptor {
    fd: -1,
    kind: Kind::Shared,
    status: 0,
    flags: 0,
    offset: 0,
    lock: 0,
    length: 0,
    same_as: None,
    inode: (0, 0),
    birth: 0,
    mode: 0,
    of_process: false,
    of_wrapper: false,
    others_write: false,
};

static TABLE: Captured<Table> = Captured::new(Table {
    entries: [NOTHING; MOST],
    count: 0,
    standard: [(0, 0); 3],
    of_wrapper: [(0, 0); u64::BITS as usize],
});

fn table() -> &'static mut Table {
    // SAFETY: see [`Captured`].
    unsafe { TABLE.get() }
}

/// Notes which pipes lead to the agent. Call once, before the first image.
pub fn find_standard(standard: [i32; 3]) {
    table().standard = standard.map(|fd| sys::stat(fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino)));
}

/// The program parts from its wrapper, and the two may share the open files of these descriptors: one bit for each.
pub fn find_of_wrapper(descriptors: u64) {
    for (fd, inode) in (0..).zip(&mut table().of_wrapper) {
        let is_shared = descriptors >> fd & 1 != 0;
        *inode = match sys::stat(fd) {
            Ok(stat) if is_shared => (stat.st_dev, stat.st_ino),
            _ => (0, 0),
        };
    }
}

/// True when two descriptors share one open file, as dup makes them.
fn same_file(one: i32, other: i32) -> bool {
    let own = sys::getpid();
    // SAFETY: compares numbers (KCMP_FILE = 0).
    match unsafe { call!(libc::SYS_kcmp, own, own, 0, one, other) } {
        Ok(order) => order == 0,
        // On a kernel without kcmp, the same file at the same offset counts as the same open file.
        Err(_) => {
            let offset = sys::lseek(one, 0, libc::SEEK_CUR);
            offset.is_ok()
                && offset == sys::lseek(other, 0, libc::SEEK_CUR)
                && sys::fcntl(one, libc::F_GETFL, 0) == sys::fcntl(other, libc::F_GETFL, 0)
        }
    }
}

/// Notes every open descriptor except the library's own. The error names what cannot be part of an image.
pub fn note(is_own: impl Fn(i32) -> bool) -> Result<(), Refusal> {
    let table = table();
    table.count = 0;
    let directory = sys::open(b"/proc/self/fd\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)
        .map_err(|_| Refusal::new("its open files cannot be listed", -1))?;
    let mut refused = None;
    let listed = sys::numbers_in(directory, |fd| {
        if fd == directory || refused.is_some() || is_own(fd) {
            return;
        }
        match describe(fd, &table.standard, &table.entries[..table.count]) {
            Ok(_) if table.count == MOST => refused = Some(Refusal::new("it has more than 4096 open files", -1)),
            Ok(mut descriptor) => {
                descriptor.of_wrapper = descriptor.kind == Kind::File && table.of_wrapper.contains(&descriptor.inode);
                table.entries[table.count] = descriptor;
                table.count += 1;
            }
            Err(why) => refused = Some(Refusal::new(why, fd)),
        }
    });
    sys::close(directory);
    listed.map_err(|_| Refusal::new("its open files cannot be listed", -1))?;
    refused.map_or(Ok(()), Err)?;
    Ok(())
}

/// What was noted.
pub(crate) fn noted() -> &'static [Descriptor] {
    let table = table();
    &table.entries[..table.count]
}

/// In a process rebuilt from a file: marks these descriptors, whose files others also had open for writing.
pub(crate) fn note_shared(shared: &[u64]) {
    let table = table();
    for entry in &mut table.entries[..table.count] {
        entry.others_write = shared.contains(&(entry.fd as u64));
    }
}

pub(crate) fn describe(fd: i32, standard: &[(u64, u64); 3], before: &[Descriptor]) -> Result<Descriptor, &'static str> {
    let stat = sys::stat(fd).map_err(|_| "an open file cannot be looked at")?;
    let inode = (stat.st_dev, stat.st_ino);
    let kind = match (fd, stat.st_mode & libc::S_IFMT) {
        (fd, _) if RANK_FDS.contains(&fd) => Kind::Shared,
        (_, libc::S_IFIFO) if inode == standard[0] => Kind::Input,
        (_, libc::S_IFIFO) if inode == standard[1] => Kind::Output(1),
        (_, libc::S_IFIFO) if inode == standard[2] => Kind::Output(2),
        (_, libc::S_IFREG | libc::S_IFDIR) => Kind::File,
        (_, libc::S_IFCHR) if is_stateless(libc::major(stat.st_rdev)) => Kind::Shared,
        (_, libc::S_IFCHR | libc::S_IFBLK) => return Err("it has an open device"),
        (_, libc::S_IFSOCK) => return Err("it has an open socket"),
        _ => Kind::Object(eventfds::describe(fd)?),
    };
    let of_process = kind == Kind::File && is_of_process(fd)?;
    let same_as = before
        .iter()
        .find(|entry| entry.same_as.is_none() && entry.inode == inode && same_file(entry.fd, fd))
        .map(|entry| entry.fd);
    let status = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32;
    let is_open = kind == Kind::File && status & libc::O_PATH == 0;
    Ok(Descriptor {
        fd,
        kind,
        status,
        flags: sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as i32,
        offset: if is_open {
            sys::lseek(fd, 0, libc::SEEK_CUR).unwrap_or(0)
        } else {
            0
        },
        length: stat.st_size,
        lock: if is_open { lock_of(fd)? } else { 0 },
        same_as,
        inode,
        birth: if kind == Kind::File { sys::birth(fd) } else { 0 },
        mode: stat.st_mode,
        of_process,
        of_wrapper: false,
        others_write: sharing::is_mpi_file(inode),
    })
}

/// Whether what looks like a file is one of this process in /proc. The error names it if it cannot be opened again.
fn is_of_process(fd: i32) -> Result<bool, &'static str> {
    const PROC: i64 = 0x9fa0;
    const MESSAGE_QUEUES: i64 = 0x1980_0202;
    match sys::file_system(fd) {
        MESSAGE_QUEUES => return Err("it has an open message queue"),
        PROC => {}
        _ => return Ok(false),
    }
    let mut target = [0; 256];
    let Some((process, name)) = place_in_proc(fd, &mut target) else {
        return Ok(false);
    };
    // A thread has another number in the next life.
    match process == sys::getpid() && !name.starts_with(b"/task/") {
        true => Ok(true),
        false => Err("it has an open file of another process or of a thread in /proc"),
    }
}

/// For a file in a process's directory in /proc: the process's number, and the rest of the path.
fn place_in_proc(fd: i32, target: &mut [u8; 256]) -> Option<(i32, &[u8])> {
    let mut link = [0; 64];
    let path = sys::readlink(sys::path(&mut link, "/proc/self/fd/", fd, ""), target).ok()?;
    let rest = path.strip_prefix(b"/proc/")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, name) = rest.split_at(digits);
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, name))
}

/// The name under which such a file is opened anew, ended by a zero.
pub(crate) fn name_of_own(fd: i32, path: &mut [u8; 256]) -> Result<&[u8], Errno> {
    let mut target = [0; 256];
    let (_, name) = place_in_proc(fd, &mut target).ok_or(libc::ENOENT)?;
    let mut length = 0;
    for part in [b"/proc/self", name, b"\0"] {
        let place = path.get_mut(length..length + part.len()).ok_or(libc::ENAMETOOLONG)?;
        place.copy_from_slice(part);
        length += part.len();
    }
    Ok(&path[..length])
}

/// Memory devices such as /dev/null (1), and terminals.
fn is_stateless(major: u32) -> bool {
    matches!(major, 1 | 4 | 5 | 136..=143)
}

/// The lock by flock on an open file, 0: none.
fn lock_of(fd: i32) -> Result<i32, &'static str> {
    let mut lock = 0;
    let mut other = false;
    proc::for_each_fact(fd, |label, value| {
        // "1: FLOCK  ADVISORY  WRITE 1234 00:1c:99 0 EOF"
        if label == "lock" {
            let mut words = value.split_whitespace().skip(1);
            match (words.next(), words.nth(1)) {
                (Some("FLOCK"), Some("WRITE")) => lock = libc::LOCK_EX,
                (Some("FLOCK"), _) => lock = libc::LOCK_SH,
                _ => other = true,
            }
        }
        Some(())
    })?;
    if other {
        return Err("it holds a lock on a part of a file");
    }
    Ok(lock)
}

pub fn replace(new: i32, old: i32, flags: i32) -> Result<(), Errno> {
    if new == old {
        return Ok(());
    }
    let cloexec = if flags & libc::FD_CLOEXEC != 0 {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: replaces a descriptor of the process being rebuilt.
    unsafe { call!(libc::SYS_dup3, new, old, cloexec) }.map(|_| ())
}

/// In a copy: marks files that others also write to. The others may have closed them by the time this rank returns;
/// what they wrote is theirs.
pub fn note_sharing() {
    let table = table();
    sharing::find_shared(|is_shared| {
        let mut entries = table.entries[..table.count].iter_mut();
        while let Some(entry) = entries.find(|entry| entry.is_written() && !entry.others_write) {
            entry.others_write = is_shared(entry.inode);
        }
    });
}

/// In a process rebuilt from a file: finds the pipes that lead to the agent by what was noted.
pub fn find_standard_again() {
    let table = table();
    for entry in &table.entries[..table.count] {
        let standard = match entry.kind {
            Kind::Input => 0,
            Kind::Output(which) => which as usize,
            _ => continue,
        };
        table.standard[standard] = sys::stat(entry.fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    }
}

//! Open files: what each descriptor is, found while the threads stand still, and how the copy of a process gets offsets of
//! its own.
//!
//! A copied process shares the offset of every open file with the original, which goes on. So the copy opens each regular
//! file and directory anew, through /proc/self/fd (also when its name is gone), and goes to the offset it had.

use std::cell::UnsafeCell;

use resurgo_wire::node_memory::{IMAGE_FD, NODE_MEMORY_FD, PMI_FD, SPILL_FD};

use crate::sys::{self, Errno, call};

/// Most open descriptors of a rank.
const MOST: usize = 4096;

/// What a descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The rank's own standard output or error (1 or 2): a life has its own.
    Output(i32),
    /// The pipe or file that standard input comes from.
    Input,
    /// Regular file or directory, with an offset.
    File,
    /// A character device, or one of the node's own files: the copy may share it.
    Shared,
}

#[derive(Clone, Copy)]
struct Descriptor {
    fd: i32,
    kind: Kind,
    /// F_GETFL and F_GETFD.
    status: i32,
    flags: i32,
    offset: i64,
    /// The first descriptor with the same open file, if there is one.
    same_as: Option<i32>,
    inode: (u64, u64),
}

struct Table {
    entries: [Descriptor; MOST],
    count: usize,
}

const NOTHING: Descriptor = Descriptor {
    fd: -1,
    kind: Kind::Shared,
    status: 0,
    flags: 0,
    offset: 0,
    same_as: None,
    inode: (0, 0),
};

struct Place(UnsafeCell<Table>);
// SAFETY: only the capturing thread uses it, and in a copy the only thread there is.
unsafe impl Sync for Place {}

static TABLE: Place = Place(UnsafeCell::new(Table {
    entries: [NOTHING; MOST],
    count: 0,
}));

fn table() -> &'static mut Table {
    // SAFETY: see `Place`.
    unsafe { &mut *TABLE.0.get() }
}

fn stat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: an all-zero stat is valid, and the kernel fills it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        call!(libc::SYS_fstat, fd, &raw mut stat)?;
        Ok(stat)
    }
}

/// True when two descriptors share one open file, as dup makes them.
fn same_file(one: i32, other: i32) -> bool {
    let own = sys::getpid();
    // SAFETY: compares numbers (KCMP_FILE = 0).
    match unsafe { call!(libc::SYS_kcmp, own, own, 0, one, other) } {
        Ok(order) => order == 0,
        // A kernel without it: the same file at the same offset is taken for the same.
        Err(_) => {
            sys::lseek(one, 0, libc::SEEK_CUR) == sys::lseek(other, 0, libc::SEEK_CUR)
                && sys::fcntl(one, libc::F_GETFL, 0) == sys::fcntl(other, libc::F_GETFL, 0)
        }
    }
}

/// Notes every open descriptor but `own`. The error names what cannot be part of an image.
pub fn note(own: &[i32]) -> Result<(), Refusal> {
    let table = table();
    table.count = 0;
    let directory = sys::open(b"/proc/self/fd\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)
        .map_err(|_| Refusal::new("its open files cannot be listed", -1))?;
    let mut refused = None;
    let listed = sys::numbers_in(directory, |fd| {
        if fd == directory || own.contains(&fd) || refused.is_some() {
            return;
        }
        match describe(fd, &table.entries[..table.count]) {
            Ok(_) if table.count == MOST => refused = Some(Refusal::new("it has more than 4096 open files", -1)),
            Ok(descriptor) => {
                table.entries[table.count] = descriptor;
                table.count += 1;
            }
            Err(why) => refused = Some(Refusal::new(why, fd)),
        }
    });
    sys::close(directory);
    listed.map_err(|_| Refusal::new("its open files cannot be listed", -1))?;
    refused.map_or(Ok(()), Err)
}

/// Why there can be no image now, and the descriptor it is about (-1: none).
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    pub why: &'static str,
    pub fd: i32,
}

impl Refusal {
    pub fn new(why: &'static str, fd: i32) -> Refusal {
        Refusal { why, fd }
    }
}

fn describe(fd: i32, before: &[Descriptor]) -> Result<Descriptor, &'static str> {
    let stat = stat(fd).map_err(|_| "an open file cannot be looked at")?;
    let inode = (stat.st_dev, stat.st_ino);
    let output = before
        .iter()
        .find(|entry| matches!(entry.kind, Kind::Output(_)) && entry.inode == inode);
    let kind = match (fd, stat.st_mode & libc::S_IFMT) {
        (1 | 2, libc::S_IFIFO) => Kind::Output(fd),
        (_, libc::S_IFIFO) if output.is_some() => output.map_or(Kind::Shared, |entry| entry.kind),
        (0, libc::S_IFIFO) => Kind::Input,
        (PMI_FD | NODE_MEMORY_FD | SPILL_FD | IMAGE_FD, _) => Kind::Shared,
        (_, libc::S_IFREG | libc::S_IFDIR) => Kind::File,
        (_, libc::S_IFCHR) => Kind::Shared,
        (_, libc::S_IFIFO) => return Err("it has an open pipe"),
        (_, libc::S_IFSOCK) => return Err("it has an open socket"),
        _ => return Err("it has an open descriptor that is no file (epoll, eventfd, timerfd or the like)"),
    };
    let same_as = before
        .iter()
        .find(|entry| entry.same_as.is_none() && entry.inode == inode && same_file(entry.fd, fd))
        .map(|entry| entry.fd);
    Ok(Descriptor {
        fd,
        kind,
        status: sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32,
        flags: sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as i32,
        offset: if kind == Kind::File {
            sys::lseek(fd, 0, libc::SEEK_CUR).unwrap_or(0)
        } else {
            0
        },
        same_as,
        inode,
    })
}

/// What a new life is given by the agent.
pub struct Given {
    pub stdout: i32,
    pub stderr: i32,
    pub pmi: i32,
    pub image: i32,
    /// -1: standard input is no pipe.
    pub stdin: i32,
}

fn replace(new: i32, old: i32, flags: i32) -> Result<(), Errno> {
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

/// In a copy: gives every noted descriptor an open file of its own again. The error names the descriptor.
pub fn rebuild(given: &Given) -> Result<(), (i32, Errno)> {
    let table = table();
    for entry in &table.entries[..table.count] {
        let at = |errno| (entry.fd, errno);
        match entry.kind {
            Kind::Output(which) => {
                let new = if which == 1 { given.stdout } else { given.stderr };
                replace(new, entry.fd, entry.flags).map_err(at)?;
                let _ = sys::fcntl(entry.fd, libc::F_SETFL, entry.status as usize);
            }
            Kind::Input if given.stdin >= 0 => replace(given.stdin, entry.fd, entry.flags).map_err(at)?,
            Kind::Input | Kind::Shared => {}
            Kind::File => match entry.same_as {
                Some(first) => replace(first, entry.fd, entry.flags).map_err(at)?,
                None => reopen(entry).map_err(at)?,
            },
        }
    }
    replace(given.pmi, PMI_FD, 0).map_err(|errno| (PMI_FD, errno))?;
    replace(given.image, IMAGE_FD, libc::FD_CLOEXEC).map_err(|errno| (IMAGE_FD, errno))?;
    for fd in [given.stdin, given.stdout, given.stderr, given.pmi, given.image] {
        if fd > 2 && ![PMI_FD, IMAGE_FD].contains(&fd) && !table.entries[..table.count].iter().any(|e| e.fd == fd) {
            sys::close(fd);
        }
    }
    Ok(())
}

fn reopen(entry: &Descriptor) -> Result<(), Errno> {
    let mut name = [0u8; 64];
    // What is opened is a link, whatever the program had opened.
    let only_once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let flags = entry.status & !only_once | libc::O_CLOEXEC;
    let new = sys::open(sys::path(&mut name, "/proc/self/fd/", entry.fd, ""), flags)?;
    sys::lseek(new, entry.offset, libc::SEEK_SET)?;
    let result = replace(new, entry.fd, entry.flags);
    sys::close(new);
    result
}

//! Open files: how the copy of a process gets offsets, locks and contents of its own.
//!
//! A copied process shares the offset of every open file with the original, which goes on. So the copy opens each
//! regular file and directory again, through /proc/self/fd (even when its name is gone), at the old offset. It does so
//! at once: then a lock that the original releases is free, and failure to open a file shows early.

use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::descriptors::{self, Descriptor, Kind, replace};
use crate::eventfds::{self, Object};
use crate::sys::{self, Errno, call};
use crate::trouble::Refusal;
use crate::{contents, pipes, sharing, watches};

/// Notes every open descriptor except the library's own, and what belongs to each. The error names what cannot be part
/// of an image.
pub fn note(is_own: impl Fn(i32) -> bool) -> Result<(), Refusal> {
    descriptors::note(is_own)?;
    let entries = descriptors::noted();
    pipes::note(entries)?;
    watches::note(entries)?;
    contents::note(entries);
    Ok(())
}

/// In a copy of the process: gives it its own of everything that is no file. The error names the descriptor.
fn renew(table: &[Descriptor]) -> Result<(), (i32, Errno)> {
    pipes::renew(table)?;
    for entry in table {
        let at = |errno| (entry.fd, errno);
        let Some(object) = entry.object().filter(|object| *object != Object::Pipe) else {
            continue;
        };
        match entry.same_as {
            Some(first) => replace(first, entry.fd, entry.flags).map_err(at)?,
            None => {
                let new = eventfds::make(object).map_err(at)?;
                let replaced = replace(new, entry.fd, entry.flags);
                sys::close(new);
                replaced.map_err(at)?;
                let _ = sys::fcntl(entry.fd, libc::F_SETFL, entry.status as usize);
            }
        }
    }
    watches::renew()
}

/// In a process rebuilt from a file, with its descriptors: brings back what else belongs to them. The error names a
/// descriptor, and what cannot be done.
pub fn complete() -> Result<(), (i32, Errno, &'static str)> {
    let entries = descriptors::noted();
    for entry in entries {
        let _ = sys::fcntl(entry.fd, libc::F_SETFD, entry.flags as usize);
    }
    descriptors::find_standard_again();
    roll_back(entries).map_err(|(fd, errno)| (fd, errno, "a file that was written to cannot be what it was"))?;
    pipes::forget_copies();
    let renewed = renew(entries);
    renewed.map_err(|(fd, errno)| {
        (
            fd,
            errno,
            "a pipe, an epoll descriptor or the like cannot be made again",
        )
    })?;
    lock_again(entries).map_err(|(fd, errno)| (fd, errno, "a file that was locked cannot be locked again"))
}

fn lock_again(entries: &[Descriptor]) -> Result<(), (i32, Errno)> {
    for entry in entries.iter().filter(|entry| entry.lock != 0) {
        // SAFETY: locks a file for the process being rebuilt; the process that held the lock is dead.
        unsafe { call!(libc::SYS_flock, entry.fd, entry.lock | libc::LOCK_NB) }.map_err(|errno| (entry.fd, errno))?;
    }
    Ok(())
}

/// What the agent gives a new life.
pub struct Given {
    pub stdout: i32,
    pub stderr: i32,
    pub pmi: i32,
    pub image: i32,
    /// -1: standard input is no pipe.
    pub stdin: i32,
}

/// In a copy: gives every noted descriptor an open file of its own again. The error names the descriptor.
pub fn rebuild(given: &Given) -> Result<(), (i32, Errno)> {
    descriptors::find_standard([given.stdin, given.stdout, given.stderr]);
    let entries = descriptors::noted();
    for entry in entries {
        let at = |errno| (entry.fd, errno);
        match entry.kind {
            Kind::Output(which) => {
                let new = if which == 1 { given.stdout } else { given.stderr };
                replace(new, entry.fd, entry.flags).map_err(at)?;
                let _ = sys::fcntl(entry.fd, libc::F_SETFL, entry.status as usize);
            }
            Kind::Input if given.stdin >= 0 => replace(given.stdin, entry.fd, entry.flags).map_err(at)?,
            Kind::Input | Kind::Shared | Kind::File | Kind::Object(_) => {}
        }
    }
    roll_back(entries)?;
    part(entries)?;
    for entry in entries.iter().filter(|entry| entry.of_wrapper) {
        // The life that had it before has gone, and the wrapper waits.
        sys::lseek(entry.fd, entry.offset, libc::SEEK_SET).map_err(|errno| (entry.fd, errno))?;
    }
    lock_again(entries)?;
    replace(given.pmi, PMI_FD, 0).map_err(|errno| (PMI_FD, errno))?;
    replace(given.image, IMAGE_FD, libc::FD_CLOEXEC).map_err(|errno| (IMAGE_FD, errno))?;
    for fd in [given.stdin, given.stdout, given.stderr, given.pmi, given.image] {
        if fd > 2 && ![PMI_FD, IMAGE_FD].contains(&fd) && !entries.iter().any(|e| e.fd == fd) {
            sys::close(fd);
        }
    }
    Ok(())
}

/// Removes what the rank wrote to its files since the image, as it will write that again.
fn roll_back(entries: &[Descriptor]) -> Result<(), (i32, Errno)> {
    contents::bring_back(entries)?;
    for entry in entries {
        let grows = entry.kind == Kind::File && sharing::grows(entry.mode, entry.status, entry.offset, entry.length);
        let is_longer = |stat: libc::stat| stat.st_size > entry.length && stat.st_nlink > 0;
        if grows && sys::stat(entry.fd).is_ok_and(is_longer) && !entry.is_written_by_others() {
            // SAFETY: changes the length of a file.
            unsafe { call!(libc::SYS_ftruncate, entry.fd, entry.length) }.map_err(|errno| (entry.fd, errno))?;
        }
    }
    Ok(())
}

/// In a copy: ends all sharing of anything that has a state with the original. The error names the descriptor.
pub fn leave_original() -> Result<(), (i32, Errno)> {
    part(descriptors::noted())
}

fn part(entries: &[Descriptor]) -> Result<(), (i32, Errno)> {
    let own = |entry: &&Descriptor| entry.kind == Kind::File && !entry.of_wrapper;
    for entry in entries.iter().filter(own) {
        match entry.same_as {
            Some(first) => replace(first, entry.fd, entry.flags),
            None => reopen(entry),
        }
        .map_err(|errno| (entry.fd, errno))?;
    }
    renew(entries)
}

fn reopen(entry: &Descriptor) -> Result<(), Errno> {
    let mut name = [0u8; 64];
    // The path is a link, so leave out flags that forbid links or make files.
    let only_once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let flags = entry.status & !only_once | libc::O_CLOEXEC;
    let mut own = [0; 256];
    let path = match entry.of_process {
        true => descriptors::name_of_own(entry.fd, &mut own)?,
        false => sys::path(&mut name, "/proc/self/fd/", entry.fd, ""),
    };
    let new = sys::open(path, flags)?;
    if entry.status & libc::O_PATH == 0 {
        if entry.mode & libc::S_IFMT == libc::S_IFDIR && entry.offset != 0 {
            sys::begin_to_read(new)?;
        }
        sys::lseek(new, entry.offset, libc::SEEK_SET)?;
    }
    let result = replace(new, entry.fd, entry.flags);
    sys::close(new);
    result
}

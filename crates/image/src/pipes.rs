//! Pipes inside of the process.
//!
//! A copied process shares them with the original. So they are copied while all threads stand still, and the copy of
//! the process uses these copies at once. A pipe that a sleeping snapshot held open would never end for the original's
//! readers.

use crate::captured::Captured;
use crate::descriptors::{Descriptor, replace};
use crate::eventfds::Object;
use crate::sys::{self, Errno, call};
use crate::trouble::{Refusal, Trouble};

#[derive(Clone, Copy)]
struct Pipe {
    inode: (u64, u64),
    bytes: usize,
    /// A descriptor of each end, -1: that end is closed.
    read: i32,
    write: i32,
    /// A pipe of our own with the same content.
    copy: [i32; 2],
}

const MOST_PIPES: usize = 64;

const NO_PIPE: Pipe = Pipe {
    inode: (0, 0),
    bytes: 0,
    read: -1,
    write: -1,
    copy: [-1; 2],
};

struct Noted {
    pipes: [Pipe; MOST_PIPES],
    count: usize,
}

static NOTED: Captured<Noted> = Captured::new(Noted {
    pipes: [NO_PIPE; MOST_PIPES],
    count: 0,
});

fn noted() -> &'static mut Noted {
    // SAFETY: see [`Captured`].
    unsafe { NOTED.get() }
}

impl Noted {
    fn all(&mut self) -> &mut [Pipe] {
        &mut self.pipes[..self.count]
    }
}

/// Notes and copies the pipes of `table`.
pub fn note(table: &[Descriptor]) -> Result<(), Refusal> {
    let noted = noted();
    forget();
    for entry in table.iter().filter(|entry| entry.object() == Some(Object::Pipe)) {
        note_pipe_end(noted, entry)?;
    }
    for pipe in noted.all() {
        copy_pipe(pipe).map_err(|why| Refusal::new(why, pipe.read.max(pipe.write)))?;
    }
    Ok(())
}

/// In a copy of the process: gives it its own of every pipe. The error names the descriptor.
pub fn renew(table: &[Descriptor]) -> Result<(), (i32, Errno)> {
    for pipe in noted().all() {
        renew_pipe(pipe, table).map_err(|errno| (pipe.read.max(pipe.write), errno))?;
    }
    Ok(())
}

fn note_pipe_end(noted: &mut Noted, entry: &Descriptor) -> Result<(), Refusal> {
    let known = noted.all().iter().position(|pipe| pipe.inode == entry.inode);
    let index = match known {
        Some(index) => index,
        None if noted.count == MOST_PIPES => return Err(Refusal::new("it has more than 64 pipes", entry.fd)),
        None => {
            noted.pipes[noted.count] = Pipe {
                inode: entry.inode,
                bytes: sys::fcntl(entry.fd, libc::F_GETPIPE_SZ, 0).unwrap_or(65536),
                read: -1,
                write: -1,
                copy: [-1; 2],
            };
            noted.count += 1;
            noted.count - 1
        }
    };
    let pipe = &mut noted.pipes[index];
    match entry.status & libc::O_ACCMODE {
        libc::O_RDONLY => pipe.read = entry.fd,
        _ => pipe.write = entry.fd,
    }
    Ok(())
}

fn make_pipe(bytes: usize) -> Result<[i32; 2], Errno> {
    let ends = sys::pipe()?;
    let _ = sys::fcntl(ends[1], libc::F_SETPIPE_SZ, bytes);
    Ok(ends)
}

/// Makes a pipe with what waits in the one whose reading end is `from` (-1: it has none).
fn duplicate(from: i32, bytes: usize) -> Result<[i32; 2], Errno> {
    let ends = make_pipe(bytes)?;
    let waiting = if from >= 0 { sys::readable_bytes(from) } else { 0 };
    if waiting > 0 {
        // SAFETY: copies references to what is in the pipe, which stays there.
        let copied = unsafe { call!(libc::SYS_tee, from, ends[1], waiting, libc::SPLICE_F_NONBLOCK) };
        if copied != Ok(waiting) {
            ends.iter().for_each(|end| sys::close(*end));
            return Err(libc::EIO);
        }
    }
    Ok(ends)
}

fn copy_pipe(pipe: &mut Pipe) -> Result<(), &'static str> {
    // If only one end is here, the other must not exist anywhere: the kernel tells.
    if pipe.read < 0 || pipe.write < 0 {
        let mut ask = libc::pollfd {
            fd: pipe.read.max(pipe.write),
            events: 0,
            revents: 0,
        };
        // SAFETY: writes what it finds.
        let _ = unsafe { call!(libc::SYS_poll, &raw mut ask, 1, 0) };
        if ask.revents & (libc::POLLHUP | libc::POLLERR) == 0 {
            return Err("it has a pipe to another process");
        }
    }
    pipe.copy = duplicate(pipe.read, pipe.bytes).map_err(|_| "a pipe of its own cannot be copied")?;
    Ok(())
}

/// Calls `each` with the bytes that wait in the pipe, part by part, if `entry` is its reading end.
pub fn content(entry: &Descriptor, each: &mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Trouble> {
    let pipes = noted().all();
    let Some(pipe) = pipes.iter().find(|pipe| pipe.read == entry.fd) else {
        return Ok(());
    };
    let unreadable = |errno| Trouble::new("a pipe of its own cannot be copied", errno);
    let ends = duplicate(pipe.read, pipe.bytes).map_err(unreadable)?;
    sys::close(ends[1]);
    let mut bytes = [0; 4096];
    let result = loop {
        match sys::read(ends[0], &mut bytes) {
            Ok(0) => break Ok(()),
            Ok(_) if entry.status & libc::O_DIRECT != 0 => {
                break Err(Trouble::new(
                    "a pipe of its own holds packets, whose ends no file can hold",
                    0,
                ));
            }
            Ok(length) => {
                if let Err(errno) = each(&bytes[..length]) {
                    break Err(Trouble::memory(errno));
                }
            }
            Err(errno) => break Err(unreadable(errno)),
        }
    };
    sys::close(ends[0]);
    result
}

/// In a process rebuilt from a file, where the pipes with their content exist already and the copies do not.
pub fn forget_copies() {
    let noted = noted();
    for pipe in noted.all() {
        pipe.copy = [-1; 2];
    }
}

/// In the original, which no longer needs its copies of pipes.
pub fn forget() {
    let noted = noted();
    for pipe in noted.all() {
        pipe.copy
            .iter()
            .filter(|end| **end >= 0)
            .for_each(|end| sys::close(*end));
    }
    noted.count = 0;
}

fn renew_pipe(pipe: &mut Pipe, table: &[Descriptor]) -> Result<(), Errno> {
    // In a snapshot, the copies have the numbers of the program's pipes.
    let new = match pipe.copy {
        [-1, -1] => duplicate(pipe.read, pipe.bytes)?,
        copy => copy,
    };
    pipe.copy = [-1; 2];
    for entry in table
        .iter()
        .filter(|entry| entry.object() == Some(Object::Pipe) && entry.inode == pipe.inode)
    {
        let end = new[usize::from(entry.status & libc::O_ACCMODE != libc::O_RDONLY)];
        replace(end, entry.fd, entry.flags)?;
        let _ = sys::fcntl(entry.fd, libc::F_SETFL, entry.status as usize);
    }
    new.iter().for_each(|end| sys::close(*end));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_copied_with_what_waits_in_it() {
        let ends = make_pipe(65536).unwrap();
        // SAFETY: writes from a literal.
        unsafe { libc::write(ends[1], b"hello".as_ptr().cast(), 5) };
        let copy = duplicate(ends[0], 65536).unwrap();
        for end in [ends[0], copy[0]] {
            let mut bytes = [0; 8];
            assert_eq!(sys::read(end, &mut bytes), Ok(5));
            assert_eq!(&bytes[..5], b"hello");
        }
        ends.iter().chain(&copy).for_each(|end| sys::close(*end));
    }
}

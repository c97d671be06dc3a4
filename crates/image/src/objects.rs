//! Descriptors that are no files: pipes inside of the process, eventfd, timerfd, signalfd, epoll.
//!
//! A copied process shares them with the original. So their state is noted while all threads stand still, and the copy
//! makes new ones at once: a pipe that a sleeping snapshot held open would never end for the original's readers.

use std::cell::UnsafeCell;

use crate::descriptors::{Descriptor, replace};
use crate::proc;
use crate::sys::{self, Errno, call};
use crate::trouble::{Refusal, Trouble};

const MOST_PIPES: usize = 64;
const MOST_WATCHES: usize = 1024;

/// What a descriptor that is no file stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    Pipe,
    Event {
        count: u64,
        semaphore: bool,
    },
    Timer {
        clock: i32,
        has_run_out: bool,
        /// Interval and time left, in nanoseconds.
        interval: u64,
        left: u64,
    },
    Signals(u64),
    Epoll,
}

#[derive(Clone, Copy)]
struct Pipe {
    inode: (u64, u64),
    bytes: usize,
    /// Some descriptor of each end, -1: that end is closed.
    read: i32,
    write: i32,
    /// A pipe of our own with the same content.
    copy: [i32; 2],
}

#[derive(Clone, Copy)]
struct Watch {
    epoll: i32,
    fd: i32,
    events: u32,
    data: u64,
}

struct Noted {
    pipes: [Pipe; MOST_PIPES],
    pipe_count: usize,
    watches: [Watch; MOST_WATCHES],
    watch_count: usize,
}

struct Place(UnsafeCell<Noted>);
// SAFETY: only the capturing thread uses it, and in a copy the only thread there is.
unsafe impl Sync for Place {}
static NOTED: Place = Place(UnsafeCell::new(Noted {
    pipes: [Pipe {
        inode: (0, 0),
        bytes: 0,
        read: -1,
        write: -1,
        copy: [-1; 2],
    }; MOST_PIPES],
    pipe_count: 0,
    watches: [Watch {
        epoll: -1,
        fd: -1,
        events: 0,
        data: 0,
    }; MOST_WATCHES],
    watch_count: 0,
}));

fn noted() -> &'static mut Noted {
    // SAFETY: see `Place`.
    unsafe { &mut *NOTED.0.get() }
}

/// What `fd` stands for, which is neither file nor socket nor device. The error says what cannot be part of an image.
pub fn describe(fd: i32) -> Result<Object, &'static str> {
    let mut place = [0u8; 64];
    match proc::link(fd, &mut place) {
        "anon_inode:[eventfd]" => event(fd),
        "anon_inode:[timerfd]" => timer(fd),
        "anon_inode:[signalfd]" => {
            let mut mask = None;
            proc::for_each_fact(fd, |label, value| {
                if label == "sigmask" {
                    mask = Some(u64::from_str_radix(value, 16).ok()?);
                }
                Some(())
            })?;
            mask.map(Object::Signals).ok_or(proc::UNREADABLE)
        }
        "anon_inode:[eventpoll]" => Ok(Object::Epoll),
        "anon_inode:inotify" => Err("it watches files (inotify)"),
        "anon_inode:[io_uring]" => Err("it uses io_uring"),
        name if name.starts_with("pipe:[") => Ok(Object::Pipe),
        _ => Err("it has an open descriptor of an unknown kind"),
    }
}

fn event(fd: i32) -> Result<Object, &'static str> {
    let (mut count, mut semaphore) = (None, None);
    proc::for_each_fact(fd, |label, value| {
        match label {
            "eventfd-count" => count = Some(u64::from_str_radix(value, 16).ok()?),
            "eventfd-semaphore" => semaphore = Some(value != "0"),
            _ => {}
        }
        Some(())
    })?;
    match (count, semaphore) {
        (Some(count), Some(semaphore)) => Ok(Object::Event { count, semaphore }),
        _ => Err("it has an eventfd of which this kernel does not tell the kind"),
    }
}

fn timer(fd: i32) -> Result<Object, &'static str> {
    let (mut clock, mut ticks, mut left, mut interval, mut flags) = (None, 0u64, None, None, 0);
    // "(seconds, nanoseconds)"
    let time = |text: &str| {
        let (seconds, rest) = text.trim_matches(['(', ')']).split_once(", ")?;
        Some(seconds.parse::<u64>().ok()?.saturating_mul(1_000_000_000) + rest.parse::<u64>().ok()?)
    };
    proc::for_each_fact(fd, |label, value| {
        match label {
            "clockid" => clock = Some(value.parse().ok()?),
            "ticks" => ticks = value.parse().ok()?,
            "settime flags" => flags = i32::from_str_radix(value, 8).ok()?,
            "it_value" => left = Some(time(value)?),
            "it_interval" => interval = Some(time(value)?),
            _ => {}
        }
        Some(())
    })?;
    if flags & libc::TFD_TIMER_CANCEL_ON_SET != 0 {
        return Err("it has a timerfd that ends when the clock is set");
    }
    match (clock, left, interval) {
        (Some(clock), Some(left), Some(interval)) => Ok(Object::Timer {
            clock,
            has_run_out: ticks > 0,
            interval,
            left,
        }),
        _ => Err(proc::UNREADABLE),
    }
}

/// Notes what the descriptors of `table` hold that are no files: pipes are copied, and epoll sets listed.
pub fn note(table: &[Descriptor]) -> Result<(), Refusal> {
    let noted = noted();
    forget();
    noted.watch_count = 0;
    for entry in table {
        match entry.object() {
            Some(Object::Pipe) => note_pipe_end(noted, entry)?,
            Some(Object::Epoll) if entry.same_as.is_none() => note_watches(noted, entry, table)?,
            _ => {}
        }
    }
    for pipe in &mut noted.pipes[..noted.pipe_count] {
        copy_pipe(pipe).map_err(|why| Refusal::new(why, pipe.read.max(pipe.write)))?;
    }
    Ok(())
}

fn note_pipe_end(noted: &mut Noted, entry: &Descriptor) -> Result<(), Refusal> {
    let known = noted.pipes[..noted.pipe_count]
        .iter()
        .position(|pipe| pipe.inode == entry.inode);
    let index = match known {
        Some(index) => index,
        None if noted.pipe_count == MOST_PIPES => return Err(Refusal::new("it has more than 64 pipes", entry.fd)),
        None => {
            noted.pipes[noted.pipe_count] = Pipe {
                inode: entry.inode,
                bytes: sys::fcntl(entry.fd, libc::F_GETPIPE_SZ, 0).unwrap_or(65536),
                read: -1,
                write: -1,
                copy: [-1; 2],
            };
            noted.pipe_count += 1;
            noted.pipe_count - 1
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

/// A new pipe with what waits in the one whose reading end is `from` (-1: it has none).
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
    // With one end here only, the other must not be anywhere: the kernel says so.
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

/// "tfd: 3 events: 19 data: 3 pos:0 ino:414 sdev:10"; the first label is gone.
fn parse_watch(epoll: i32, value: &str) -> Option<(Watch, u64)> {
    let mut words = value.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let events = words.nth(1).and_then(|word| u32::from_str_radix(word, 16).ok())?;
    let data = words.nth(1).and_then(|word| u64::from_str_radix(word, 16).ok())?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
    let watch = Watch {
        epoll,
        fd,
        events,
        data,
    };
    Some((watch, u64::from_str_radix(inode, 16).ok()?))
}

fn note_watches(noted: &mut Noted, entry: &Descriptor, table: &[Descriptor]) -> Result<(), Refusal> {
    let mut refused = None;
    let read = proc::for_each_fact(entry.fd, |label, value| {
        if label != "tfd" {
            return Some(());
        }
        let (watch, inode) = parse_watch(entry.fd, value)?;
        if !table.iter().any(|other| other.fd == watch.fd && other.inode.1 == inode) {
            refused = Some("an epoll set watches something that has been closed");
        } else if noted.watch_count == MOST_WATCHES {
            refused = Some("it watches more than 1024 descriptors");
        } else {
            noted.watches[noted.watch_count] = watch;
            noted.watch_count += 1;
        }
        Some(())
    });
    match read.err().or(refused) {
        None => Ok(()),
        Some(why) => Err(Refusal::new(why, entry.fd)),
    }
}

/// Calls `each` with what waits in the pipe of which `entry` is an end, part by part: for one of its ends only.
pub fn content(entry: &Descriptor, each: &mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Trouble> {
    let pipes = &noted().pipes[..noted().pipe_count];
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

/// In a process that was rebuilt from a file: pipes are there, with what was in them, and nothing else.
pub fn forget_copies() {
    let noted = noted();
    for pipe in &mut noted.pipes[..noted.pipe_count] {
        pipe.copy = [-1; 2];
    }
}

/// The original needs its copies of pipes no more.
pub fn forget() {
    let noted = noted();
    for pipe in &mut noted.pipes[..noted.pipe_count] {
        pipe.copy
            .iter()
            .filter(|end| **end >= 0)
            .for_each(|end| sys::close(*end));
    }
    noted.pipe_count = 0;
}

/// In a copy of the process: every object becomes one of its own. The error names the descriptor.
pub fn renew(table: &[Descriptor]) -> Result<(), (i32, Errno)> {
    let noted = noted();
    for pipe in &mut noted.pipes[..noted.pipe_count] {
        renew_pipe(pipe, table).map_err(|errno| (pipe.read.max(pipe.write), errno))?;
    }
    for entry in table {
        let at = |errno| (entry.fd, errno);
        let Some(object) = entry.object().filter(|object| *object != Object::Pipe) else {
            continue;
        };
        match entry.same_as {
            Some(first) => replace(first, entry.fd, entry.flags).map_err(at)?,
            None => {
                let new = make(object).map_err(at)?;
                let replaced = replace(new, entry.fd, entry.flags);
                sys::close(new);
                replaced.map_err(at)?;
                let _ = sys::fcntl(entry.fd, libc::F_SETFL, entry.status as usize);
            }
        }
    }
    for watch in &noted.watches[..noted.watch_count] {
        let mut event = libc::epoll_event {
            events: watch.events,
            u64: watch.data,
        };
        // SAFETY: reads the event.
        unsafe {
            call!(
                libc::SYS_epoll_ctl,
                watch.epoll,
                libc::EPOLL_CTL_ADD,
                watch.fd,
                &raw mut event
            )
        }
        .map_err(|errno| (watch.fd, errno))?;
    }
    Ok(())
}

fn renew_pipe(pipe: &mut Pipe, table: &[Descriptor]) -> Result<(), Errno> {
    // A snapshot's copies have the numbers of the program's pipes.
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

fn make(object: Object) -> Result<i32, Errno> {
    // SAFETY: all of them make a descriptor out of numbers, or of memory that outlives the call.
    let fd = unsafe {
        match object {
            Object::Event { count, semaphore } => {
                let fd = call!(libc::SYS_eventfd2, 0, if semaphore { libc::EFD_SEMAPHORE } else { 0 })?;
                if count > 0 {
                    call!(libc::SYS_write, fd, &raw const count, 8)?;
                }
                fd
            }
            Object::Timer {
                clock,
                has_run_out,
                interval,
                left,
            } => {
                let time = |ns: u64| libc::timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as i64,
                };
                let fd = call!(libc::SYS_timerfd_create, clock, 0)?;
                // One that has run out unread stands still until it is read: it runs out again at once.
                let setting = libc::itimerspec {
                    it_interval: time(interval),
                    it_value: time(if has_run_out { 1 } else { left }),
                };
                call!(libc::SYS_timerfd_settime, fd, 0, &raw const setting, 0)?;
                fd
            }
            Object::Signals(mask) => call!(libc::SYS_signalfd4, -1i64, &raw const mask, 8, 0)?,
            Object::Epoll | Object::Pipe => call!(libc::SYS_epoll_create1, 0)?,
        }
    };
    Ok(fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_watch_is_understood() {
        let (watch, inode) = parse_watch(
            9,
            "       3 events:       19 data:               ff  pos:0 ino:414 sdev:10",
        )
        .unwrap();
        assert_eq!(
            (watch.epoll, watch.fd, watch.events, watch.data, inode),
            (9, 3, 0x19, 0xff, 0x414)
        );
    }

    #[test]
    fn objects_are_recognised_and_made_again() {
        // SAFETY: descriptors of this test's own.
        unsafe {
            let event = libc::eventfd(5, libc::EFD_SEMAPHORE);
            let seen = describe(event).unwrap();
            assert_eq!(
                seen,
                Object::Event {
                    count: 5,
                    semaphore: true
                }
            );
            let again = make(seen).unwrap();
            assert_eq!(describe(again).unwrap(), seen);
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, 0);
            let mut setting: libc::itimerspec = std::mem::zeroed();
            setting.it_value.tv_sec = 100;
            setting.it_interval.tv_nsec = 7;
            libc::timerfd_settime(timer, 0, &raw const setting, std::ptr::null_mut());
            let Object::Timer { left, interval, .. } = describe(timer).unwrap() else {
                panic!()
            };
            assert!(interval == 7 && left > 99_000_000_000 && left <= 100_000_000_000);
            for fd in [event, again, timer] {
                libc::close(fd);
            }
        }
    }

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

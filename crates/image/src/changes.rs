//! Which memory the process wrote to between its images, so that a file needs to receive only that.
//!
//! The kernel keeps track (userfaultfd in its asynchronous write-protecting mode, Linux 6.7). Each page is protected
//! when an image is taken. The first write to it takes the protection away, in the kernel, unseen by the program.
//! PAGEMAP_SCAN lists the pages without protection and protects them again. Memory that was mapped or moved since is
//! not tracked yet and counts as written. A copy of the process inherits the lists but not the tracking.
//!
//! Where the kernel lacks this, or a container forbids it, nothing is known and all of the memory is written.

use std::ops::Range;

use crate::captured::Captured;
use crate::pages::{self, AT_ONCE, IS_FILE, IS_PRESENT, IS_SWAPPED, IS_WRITTEN, Scan};
use crate::proc::{Lines, MapsLine};
use crate::shared;
use crate::sys::{self, Errno, call};
use crate::zone::{self, Area};

/// How many lists of earlier images are kept. The file to write over is usually that of the third image before.
const KEPT: usize = 4;
/// The first of their areas.
const AREA: usize = zone::LISTS.start;
const _: () = assert!(zone::LISTS.end - zone::LISTS.start == KEPT);

/// What was written to between two images.
struct Changes {
    /// The later image, and the earlier one (0: all memory from before counts as written). 0 and 0: nothing is known.
    number: u64,
    since: u64,
    /// Addresses in ascending order: pairs of start and end.
    ranges: Area,
}

struct State {
    /// The userfaultfd, -1: none.
    fd: i32,
    /// The kernel refuses to track.
    impossible: bool,
    /// Names the tracking. Each life has its own name, and tracking that begins again gets a new one. 0: none.
    name: u64,
    changes: [Changes; KEPT],
    /// This library's own memory: a copy of the process writes there, too.
    own: Range<usize>,
}

static STATE: Captured<State> = Captured::new(State {
    fd: -1,
    impossible: false,
    name: 0,
    changes: UNKNOWN,
    own: 0..0,
});

const UNKNOWN: [Changes; KEPT] = [unknown(0), unknown(1), unknown(2), unknown(3)];

const fn unknown(index: usize) -> Changes {
    Changes {
        number: 0,
        since: 0,
        ranges: Area::new(AREA + index),
    }
}

fn state() -> &'static mut State {
    // SAFETY: see [`Captured`].
    unsafe { STATE.get() }
}

/// Finds out where this library has its variables. Call once, in ordinary circumstances.
pub fn find_own() {
    unsafe extern "C" fn look(about: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> i32 {
        // SAFETY: the loader's description of an object, and `find_own`'s variable.
        let (about, found) = unsafe { (&*about, &mut *found.cast::<Range<usize>>()) };
        // SAFETY: so many headers are there.
        let headers = unsafe { std::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum.into()) };
        let here = &raw const STATE as usize;
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let start = about.dlpi_addr as usize + header.p_vaddr as usize;
            let end = start + header.p_memsz as usize;
            if (start..end).contains(&here) {
                *found = start & !4095..(end + 4095) & !4095;
                return 1;
            }
        }
        0
    }
    let mut found = 0..0;
    // SAFETY: calls `look` for every object, with the variable.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    state().own = found;
}

/// Whether some of this memory is this library's own, which changes while a copy of the process is being written.
pub fn is_own(memory: Range<usize>) -> bool {
    let own = &state().own;
    own.start < memory.end && memory.start < own.end
}

/// The descriptor that the tracking needs; it is not the program's.
pub fn descriptor() -> i32 {
    state().fd
}

/// The name of the tracking, 0: there is none.
pub fn name() -> u64 {
    state().name
}

/// Lists the memory that the process wrote to since the last image, for image `number`. Between this and the copy only
/// this library may write, and only to its own memory. All threads stand still.
pub fn note(number: u64) {
    let state = state();
    if state.impossible {
        return;
    }
    if !is_userfaultfd(state.fd) && begin(state).is_err() {
        return give_up(state);
    }
    let since = state.changes.iter().map(|changes| changes.number).max().unwrap_or(0);
    let Some(oldest) = state.changes.iter_mut().min_by_key(|changes| changes.number) else {
        return;
    };
    oldest.ranges.clear();
    (oldest.number, oldest.since) = (number, since);
    if note_all(state.fd, &mut oldest.ranges).is_err() {
        // Some pages may be protected again without being on the list.
        give_up(state);
    }
}

/// In a copy of the process, whose zone is empty: nothing is tracked, and nothing is known any more.
pub fn forget() {
    let state = state();
    (state.fd, state.impossible, state.name) = (-1, false, 0);
    state.changes = UNKNOWN;
}

/// In a copy of the process: the tracking is the original's.
pub fn leave() {
    leave_tracking(state());
}

fn leave_tracking(state: &mut State) {
    if state.fd >= 0 {
        sys::close(state.fd);
        state.fd = -1;
    }
}

fn reset(state: &mut State) {
    state.name = 0;
    for changes in &mut state.changes {
        (changes.number, changes.since) = (0, 0);
        changes.ranges.clear();
    }
}

/// Gives up tracking for the rest of this life.
fn give_up(state: &mut State) {
    leave_tracking(state);
    reset(state);
    state.impossible = true;
}

fn is_userfaultfd(fd: i32) -> bool {
    let mut name = [0u8; 64];
    let mut target = [0u8; 64];
    fd >= 0
        && sys::readlink(sys::path(&mut name, "/proc/self/fd/", fd, ""), &mut target)
            .is_ok_and(|target| target == b"anon_inode:[userfaultfd]")
}

pub const USER_MODE_ONLY: i32 = 1;
pub const API: u64 = 0xaa;
const WP_ASYNC: u64 = 1 << 15;
const WP_UNPOPULATED: u64 = 1 << 13;
pub const UFFDIO_API: u32 = 0xc018_aa3f;
pub const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const REGISTER_WP: u64 = 2;
/// Out of the way of the program's descriptors: the program must get the same numbers in every life.
const HIGH: usize = 1000;

/// A new userfaultfd; `mode`: flags of the call.
pub fn userfaultfd(mode: i32, features: u64) -> Result<i32, Errno> {
    let mut api = [API, features, 0];
    // SAFETY: makes a descriptor and asks what it can do.
    unsafe {
        let fd = call!(libc::SYS_userfaultfd, libc::O_CLOEXEC | mode)? as i32;
        let agreed = call!(libc::SYS_ioctl, fd, UFFDIO_API, api.as_mut_ptr());
        agreed.map(|_| fd).inspect_err(|_| sys::close(fd))
    }
}

/// Begins to track, from nothing.
fn begin(state: &mut State) -> Result<(), Errno> {
    reset(state);
    let low = userfaultfd(USER_MODE_ONLY, WP_ASYNC | WP_UNPOPULATED)?;
    let high = sys::fcntl(low, libc::F_DUPFD_CLOEXEC, HIGH);
    sys::close(low);
    state.fd = high? as i32;
    // SAFETY: writes the name.
    unsafe {
        let name = call!(libc::SYS_getrandom, &raw mut state.name, 8, 0);
        if name == Ok(8) && state.name != 0 {
            Ok(())
        } else {
            Err(libc::EIO)
        }
    }
}

/// Adds all private memory that the process wrote to, and protects it.
fn note_all(fd: i32, ranges: &mut Area) -> Result<(), Errno> {
    let maps = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let pages = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC);
    let result = pages.and_then(|pages| {
        let mut lines = Lines::new(maps);
        let result = loop {
            match lines.next_line() {
                Ok(Some(line)) => {
                    let noted = match MapsLine::parse(line) {
                        // Each image gets a new twin of it.
                        Some(mapping) if shared::has(&mapping) => add(ranges, mapping.start, mapping.end),
                        Some(mapping) if is_tracked(&mapping) => note_mapping(fd, pages, &mapping, ranges),
                        _ => Ok(()),
                    };
                    if let Err(errno) = noted {
                        break Err(errno);
                    }
                }
                Ok(None) => break Ok(()),
                Err(errno) => break Err(errno),
            }
        };
        sys::close(pages);
        result
    });
    sys::close(maps);
    result
}

/// The kernel's own pages are no memory of the process.
fn is_tracked(mapping: &MapsLine) -> bool {
    !mapping.shared && !mapping.path.starts_with("[v") && !(zone::ZONE..zone::ZONE_END).contains(&mapping.start)
}

fn note_mapping(fd: i32, pages: i32, mapping: &MapsLine, ranges: &mut Area) -> Result<(), Errno> {
    let mut note = |start, end| add(ranges, start, end);
    match protect(pages, mapping, &mut note) {
        Err(libc::EPERM) => {}
        done => return done,
    }
    // Not tracked so far.
    note(mapping.start, mapping.end)?;
    let mut register = [
        mapping.start as u64,
        (mapping.end - mapping.start) as u64,
        REGISTER_WP,
        0,
    ];
    // SAFETY: only has the kernel keep track.
    match unsafe { call!(libc::SYS_ioctl, fd, UFFDIO_REGISTER, register.as_mut_ptr()) } {
        Ok(_) => protect(pages, mapping, &mut |_, _| Ok(())),
        // Memory of a kind that cannot be tracked is written each time.
        Err(_) => Ok(()),
    }
}

/// Protects the pages that have been written to, and calls `each` for their ranges. EPERM: they are not tracked.
fn protect(
    pages: i32,
    mapping: &MapsLine,
    each: &mut dyn FnMut(usize, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let of_file = if mapping.inode != 0 { IS_FILE } else { 0 };
    let mut scan = Scan::new((mapping.start, mapping.end));
    scan.flags = pages::PROTECT | pages::ONLY_TRACKED;
    scan.all_of = IS_WRITTEN | of_file;
    scan.any_of = IS_PRESENT | IS_SWAPPED;
    scan.inverted = of_file;
    scan.returned = IS_WRITTEN;
    let mut found = [pages::Range::NONE; AT_ONCE];
    while let Some(ranges) = scan.next(pages, &mut found)? {
        for range in ranges {
            each(range.start as usize, range.end as usize)?;
        }
    }
    Ok(())
}

fn add(ranges: &mut Area, start: usize, end: usize) -> Result<(), Errno> {
    let words = ranges.words_mut();
    if let Some(last) = words.last_mut()
        && *last == start as u64
    {
        *last = end as u64;
        return Ok(());
    }
    ranges.push(&(start as u64).to_ne_bytes())?;
    ranges.push(&(end as u64).to_ne_bytes())
}

/// Bytes on the list for image `number`, plus this library's own: an upper bound.
pub fn bytes(number: u64) -> u64 {
    let state = state();
    let listed = state.changes.iter().filter(|changes| changes.number == number);
    let words = listed.flat_map(|changes| changes.ranges.words().chunks_exact(2));
    words.map(|range| range[1] - range[0]).sum::<u64>() + state.own.len() as u64
}

/// Answers before which image a page was last written to. Ask in ascending order of addresses.
pub struct Latest {
    /// The newest first: images, their lists, and the position in each.
    lists: [(u64, &'static [u64], usize); KEPT],
    own: Range<usize>,
}

impl Latest {
    pub fn new() -> Latest {
        let state = state();
        let mut lists = state
            .changes
            .each_ref()
            .map(|changes| (changes.number, changes.ranges.words(), 0));
        lists.sort_unstable_by_key(|list| u64::MAX - list.0);
        Latest {
            lists,
            own: state.own.clone(),
        }
    }

    /// The newest image that has the page at `start` on its list (0: none), and up to where, at most `end`, that is so.
    pub fn look(&mut self, start: usize, end: usize) -> (u64, usize) {
        if self.own.contains(&start) {
            return (self.lists[0].0, end.min(self.own.end));
        }
        let mut end = if self.own.start > start {
            end.min(self.own.start)
        } else {
            end
        };
        for (number, list, at) in &mut self.lists {
            while list.get(*at + 1).is_some_and(|to| *to as usize <= start) {
                *at += 2;
            }
            match list.get(*at..*at + 2) {
                Some([from, to]) if *from as usize <= start => return (*number, end.min(*to as usize)),
                Some([from, _]) => end = end.min(*from as usize),
                _ => {}
            }
        }
        (0, end)
    }
}

/// The memory that the process wrote to between two images. Ask in ascending order of addresses.
pub struct Since {
    /// The lists, and the position in each.
    lists: [(&'static [u64], usize); KEPT],
    own: Range<usize>,
}

impl Since {
    /// From image `from` to image `to`, by the tracking named `name`. None: not known.
    pub fn new(name: u64, from: u64, to: u64) -> Option<Since> {
        let state = state();
        if state.name == 0 || state.name != name || from == 0 {
            return None;
        }
        let mut lists = [(&[][..], 0); KEPT];
        let mut number = to;
        for list in &mut lists {
            if number == from {
                break;
            }
            let changes = state.changes.iter().find(|changes| changes.number == number)?;
            list.0 = changes.ranges.words();
            number = changes.since;
        }
        (number == from).then(|| Since {
            lists,
            own: state.own.clone(),
        })
    }

    /// Whether the process wrote to the page at `start`, and up to where, at most `end`, that is so.
    pub fn look(&mut self, start: usize, end: usize) -> (bool, usize) {
        let mut changed = None;
        let mut next = end;
        let mut ask = |from: usize, to: usize| {
            if to <= start {
            } else if from <= start {
                changed = changed.max(Some(to));
            } else {
                next = next.min(from);
            }
        };
        ask(self.own.start, self.own.end);
        for (list, at) in &mut self.lists {
            while list.get(*at + 1).is_some_and(|to| *to as usize <= start) {
                *at += 2;
            }
            if let Some([from, to]) = list.get(*at..*at + 2) {
                ask(*from as usize, *to as usize);
            }
        }
        match changed {
            Some(to) => (true, to.min(end)),
            None => (false, next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_list_that_has_a_page_is_found() {
        let mut latest = Latest {
            lists: [
                (9, &[20, 30, 50, 60], 0),
                (8, &[10, 40, 55, 70], 0),
                (6, &[0, 15, 90, 95], 0),
                (0, &[], 0),
            ],
            own: 75..80,
        };
        let mut found = Vec::new();
        let mut at = 0;
        while at < 100 {
            let (number, to) = latest.look(at, 100);
            assert!(to > at, "{at}");
            found.push((at, number));
            at = to;
        }
        let expected = [
            (0, 6),
            (10, 8),
            (20, 9),
            (30, 8),
            (40, 0),
            (50, 9),
            (60, 8),
            (70, 0),
            (75, 9),
            (80, 0),
            (90, 6),
            (95, 0),
        ];
        assert_eq!(found, expected);
    }
}

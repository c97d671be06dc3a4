//! Warm-buffer images. If the program wrote to few pages since the last image, they are copied into a buffer while the
//! threads stand still. A process that shares the memory writes the file from there. Nothing is forked: that would copy
//! the tables of all pages. Such an image is no snapshot; it counts when its file is complete.
//!
//! The writer writes over a file that is three images old. The other pages that it needs lie in the buffers of the two
//! images before.

use std::sync::atomic::{AtomicU32, Ordering};

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::NODE_MEMORY_FD;

use super::format::Header;
use super::layout::Former;
use super::piece::Piece;
use super::tables::Tables;
use super::writer::{self, About, Sources};
use super::{answers, scan};
use crate::captured::Captured;
use crate::changes::{self, Latest};
use crate::sys::{self, Errno};
use crate::trouble::Trouble;
use crate::zone::{self, Area};
use crate::{clones, talk};

/// A shorter fork disturbs nobody, nanoseconds.
const WORTH: u64 = 1_000_000;
/// The time to copy a MiB until it has been measured, nanoseconds.
const USUAL_COPY: u64 = 250_000;
const MIB: u64 = 1 << 20;

/// Pages as they were at image `number`, 0: none.
struct Buffer {
    number: u64,
    /// Three words for each range: its start, its end, and where its copy is.
    index: Area,
    data: Area,
    /// Bytes for which memory is at hand.
    ready: usize,
}

const BUFFERS: usize = 3;

/// The last times that something took, nanoseconds, the newest first; 0: not known. The least counts: a longer time may
/// be waiting for file systems and for a processor. A virtual machine that its host makes wait takes ten times as long
/// now and then.
struct Measured([u64; 4]);

impl Measured {
    fn note(&mut self, nanoseconds: u64) {
        self.0.rotate_right(1);
        self.0[0] = nanoseconds;
    }

    /// Disturbed measurements must not keep it from ever being tried again.
    fn bring_towards(&mut self, usual: u64) {
        self.0 = self.0.map(|nanoseconds| (7 * nanoseconds + usual) / 8);
    }

    fn least(&self) -> Option<u64> {
        self.0.into_iter().filter(|nanoseconds| *nanoseconds > 0).min()
    }
}

struct State {
    /// Processor time of the last fork, nanoseconds; 0: not known. (A fork waits for nothing but a processor.)
    fork: u64,
    /// What finding the pages took.
    find: Measured,
    /// Processor time of copying a MiB.
    copy: Measured,
    buffers: [Buffer; BUFFERS],
    /// [`Shared`].
    shared: Area,
}

const UNKNOWN: State = State {
    fork: 0,
    find: Measured([0; 4]),
    copy: Measured([USUAL_COPY; 4]),
    buffers: [buffer(0), buffer(1), buffer(2)],
    shared: Area::new(zone::WARM.start),
};

const fn buffer(index: usize) -> Buffer {
    Buffer {
        number: 0,
        index: Area::new(zone::WARM.start + 1 + index),
        data: Area::new(zone::WARM.start + 1 + BUFFERS + index),
        ready: 0,
    }
}

static STATE: Captured<State> = Captured::new(UNKNOWN);

fn state() -> &'static mut State {
    // SAFETY: see [`Captured`].
    unsafe { STATE.get() }
}

const STACK: usize = 128 << 10;

/// What the writing process uses, in an area of its own.
#[repr(C, align(4096))]
struct Shared {
    /// The thread control block: its own address first, and at 16.
    control_block: [usize; 8],
    /// Its number; the kernel clears it when it has left its stack.
    running: AtomicU32,
    stack: [u8; STACK],
}

/// An image whose pages have been copied.
pub struct Copied {
    number: u64,
    /// Device and inode of the file to write over.
    file: (u64, u64),
    header: Header,
    tables: Tables,
    former: Former,
    /// See [`Sources::Buffers`].
    parts: Area,
}

/// What the writing process is given.
struct Task {
    copied: Copied,
    socket: i32,
    agent: i32,
}

/// In a copy of the process, whose zone is empty: there are no buffers and no measurements.
pub fn forget() {
    *state() = UNKNOWN;
}

/// A fork took this long: there is no buffer of this image.
pub fn forked(nanoseconds: u64) {
    let state = state();
    state.fork = nanoseconds;
    state.find.bring_towards(usual_find(nanoseconds));
    state.copy.bring_towards(USUAL_COPY);
    for buffer in &mut state.buffers {
        buffer.number = 0;
        buffer.index.release();
        buffer.data.release();
        buffer.ready = 0;
    }
}

/// The time to find the pages until it has been measured, nanoseconds: finding reads what a fork copies. (Rather too
/// little, here and for copying: a try measures it.)
fn usual_find(fork: u64) -> u64 {
    fork / 8
}

impl State {
    /// The expected time of an image for which so many bytes are copied, nanoseconds.
    fn expected(&self, bytes: u64) -> u64 {
        let find = self.find.least().unwrap_or(usual_find(self.fork));
        let copy = self.copy.least().unwrap_or(USUAL_COPY);
        find + (u128::from(bytes) * u128::from(copy) / u128::from(MIB)) as u64
    }

    /// Cheaper by a clear margin: docs/internals/image.md says what a warm-buffer image costs when the rank fails.
    fn is_cheaper(&self, bytes: u64) -> bool {
        self.fork >= WORTH && 3 * self.expected(bytes) <= 2 * self.fork
    }

    /// The buffer that is needed least.
    fn next(&self) -> usize {
        let oldest = (0..BUFFERS).min_by_key(|index| self.buffers[*index].number);
        oldest.unwrap_or(0)
    }

    fn is_writing(&self) -> bool {
        // SAFETY: mapped as long as the area is that long.
        !self.shared.bytes().is_empty() && unsafe { (*self.shared()).running.load(Ordering::SeqCst) } != 0
    }

    fn shared(&self) -> *mut Shared {
        self.shared.bytes().as_ptr() as *mut Shared
    }
}

impl Buffer {
    fn make_room(&mut self, bytes: usize) -> Result<(), Errno> {
        if bytes > self.ready {
            self.data.clear();
            self.data.reserve(bytes)?;
            self.ready = bytes;
        }
        Ok(())
    }
}

/// Where buffers have pages; asked for in ascending order of addresses.
struct Held<'a> {
    buffers: &'a [Buffer; BUFFERS],
    /// How far the index of each has been looked at.
    at: [usize; BUFFERS],
    /// A buffer that must not be used.
    next: usize,
}

impl Held<'_> {
    /// The place of a copy of the page at `start` that is unchanged since image `number`; and up to where, at most
    /// `end`, that holds.
    fn look(&mut self, number: u64, start: usize, mut end: usize) -> (Option<u64>, usize) {
        for (index, (buffer, at)) in self.buffers.iter().zip(&mut self.at).enumerate() {
            if index == self.next || buffer.number < number {
                continue;
            }
            let words = buffer.index.words();
            while words.get(*at + 1).is_some_and(|to| *to as usize <= start) {
                *at += 3;
            }
            match words.get(*at..*at + 3) {
                Some([from, to, copy]) if *from as usize <= start => {
                    return (Some(copy + start as u64 - from), end.min(*to as usize));
                }
                Some([from, ..]) => end = end.min(*from as usize),
                _ => {}
            }
        }
        (None, end)
    }
}

/// Copies what image `about.number` needs for a file that is written over `file`, if that will probably take clearly
/// less time than a fork. All threads stand still, and the list of changes is made.
pub fn copy(about: &About, file: i32) -> Option<Copied> {
    let state = state();
    if state.is_writing() {
        return None;
    }
    // A writing process that was killed leaves it.
    zone::clear_scratch();
    if !state.is_cheaper(changes::bytes(about.number)) {
        return None;
    }
    let start = sys::now_ns();
    let former = Former::find(file, about.number)?;
    let stat = sys::stat(file).ok()?;
    let mut tables = Tables::new();
    let mut former = Some(former);
    let header = writer::collect(about, &mut tables, &mut former, true, &mut || ());
    let parts = header
        .as_ref()
        .ok()
        .and_then(|_| copy_pages(state, &tables, about.number, start).ok()?);
    scan::protect_again(&tables);
    let (Ok(header), Some(former), Some(parts)) = (header, former, parts) else {
        zone::clear_scratch();
        return None;
    };
    Some(Copied {
        number: about.number,
        file: (stat.st_dev, stat.st_ino),
        header,
        tables,
        former,
        parts,
    })
}

/// Copies the pages that no buffer has; returns where all pages are. None: they are too many. `start`: when the search
/// for them began.
fn copy_pages(state: &mut State, tables: &Tables, number: u64, start: u64) -> Result<Option<Area>, Errno> {
    let next = state.next();
    let (mut parts, bytes) = find_pages(state, tables, number)?;
    let found = sys::now_ns();
    // The first time there are no buffers of earlier images.
    if state.expected(bytes) > state.fork {
        return Ok(None);
    }
    let buffer = &mut state.buffers[next];
    buffer.number = 0;
    buffer.index.clear();
    buffer.make_room(bytes as usize)?;
    buffer.data.clear();
    buffer.data.resize(bytes as usize)?;
    let begin = sys::spent_ns();
    let mut to = buffer.data.bytes().as_ptr() as u64;
    for part in parts.words_mut().chunks_exact_mut(2) {
        let (from, bytes) = (part[0], part[1]);
        if (zone::ZONE..zone::ZONE_END).contains(&(from as usize)) {
            continue;
        }
        // SAFETY: readable memory of the program, which stands still, and room for all such parts.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize) };
        for word in [from, from + bytes, to] {
            buffer.index.push(&word.to_ne_bytes())?;
        }
        part[0] = to;
        to += bytes;
    }
    buffer.number = number;
    state.find.note(found - start);
    if bytes >= MIB / 4 {
        state.copy.note((sys::spent_ns() - begin) * MIB / bytes);
    }
    Ok(Some(parts))
}

/// Where the pages of all pieces are, in pairs of address and length: in buffers of earlier images, or only in the
/// program. Also how many bytes are only there.
fn find_pages(state: &State, tables: &Tables, number: u64) -> Result<(Area, u64), Errno> {
    let mut parts = Area::new(19);
    let mut bytes = 0;
    let mut latest = Latest::new();
    let mut held = Held {
        buffers: &state.buffers,
        at: [0; BUFFERS],
        next: state.next(),
    };
    for piece in tables.all_pieces().filter(|piece| piece.has(Piece::WRITE)) {
        let mut from = piece.address as usize;
        let end = from + piece.length as usize;
        while from < end {
            let (written, to) = match piece.has(Piece::UNKNOWN) {
                true => (0, end),
                false => latest.look(from, end),
            };
            let (copy, to) = match written {
                written if written == 0 || written == number => (None, to),
                written => held.look(written, from, to),
            };
            bytes += if copy.is_none() { (to - from) as u64 } else { 0 };
            for word in [copy.unwrap_or(from as u64), (to - from) as u64] {
                parts.push(&word.to_ne_bytes())?;
            }
            from = to;
        }
    }
    Ok((parts, bytes))
}

/// With the threads running: prepares memory for the next image, if a buffer may hold that.
pub fn make_room(number: u64) {
    let state = state();
    let bytes = changes::bytes(number);
    if state.is_cheaper(bytes) {
        let next = state.next();
        // The first buffer also receives what was written before the two images before. Without memory at hand, copying
        // takes longer.
        let images = match state.buffers.iter().all(|buffer| buffer.number == 0) {
            true => BUFFERS,
            false => 1,
        };
        let _ = state.buffers[next].make_room(images * (bytes + bytes / 4) as usize);
    }
}

/// Starts the process that writes the file. Its parent is the agent; `others` is its socket to the agent.
pub fn start(copied: Copied, others: i32) -> Result<i32, Errno> {
    let state = state();
    if state.shared.bytes().is_empty() {
        state.shared.reserve(size_of::<Shared>())?;
        state.shared.resize(size_of::<Shared>())?;
    }
    let mut place = Area::new(20);
    place.resize(size_of::<Task>())?;
    let task = place.words_mut().as_mut_ptr().cast::<Task>();
    let agent = sys::getppid();
    let shared = state.shared();
    // SAFETY: areas begin with a page and are long enough; nobody uses them: the last such process has left.
    unsafe {
        task.write(Task {
            copied,
            socket: others,
            agent,
        });
        let control_block = (&raw mut (*shared).control_block).cast::<usize>();
        *control_block = control_block as usize;
        *control_block.add(2) = control_block as usize;
        let stack = (&raw mut (*shared).stack) as usize + STACK;
        clones::start_process(stack, control_block as usize, &(*shared).running, run, task as usize)
    }
}

/// The writing process. It shares only the memory with the program, which goes on. It writes to its own stack and to
/// the writer's areas; of the rest it reads only what does not change.
extern "C" fn run(task: usize) -> ! {
    // SAFETY: `start` has put it there for this process.
    let task = unsafe { (task as *const Task).read() };
    let socket = task.socket;
    clones::become_independent(task.agent);
    clones::name_image();
    if close_others(socket).is_err() {
        sys::exit(1);
    }
    let mut copied = Some(task.copied);
    if talk::send(socket, &Datagram::new(Kind::Ready, 0, 0, 0), &[]).is_err() {
        sys::exit(1);
    }
    loop {
        let Ok(Some(request)) = talk::receive(socket, 0) else {
            sys::exit(0)
        };
        match (request.datagram.kind, copied.take()) {
            (Kind::Write, Some(copied)) if request.count > 0 => write(copied, request.descriptors[0], socket),
            (_, kept) => {
                copied = kept;
                answers::sync(socket, &request);
            }
        }
        request.close();
    }
}

/// Closes what the process has open: pipes would not end for others, and locks would stay. The node memory stays open:
/// it shows others that this process is one of the rank's (`sharing.rs`).
fn close_others(socket: i32) -> Result<(), Errno> {
    let directory = sys::open(b"/proc/self/fd\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
    let closed = sys::numbers_in(directory, |fd| {
        if ![socket, directory, NODE_MEMORY_FD].contains(&fd) {
            sys::close(fd);
        }
    });
    sys::close(directory);
    closed
}

fn write(mut copied: Copied, file: i32, socket: i32) {
    let start = sys::now_ns();
    let mut look = || {
        // The agent closes the socket when nobody wants the image any more.
        if let Ok(None) = talk::receive(socket, libc::MSG_DONTWAIT) {
            sys::exit(0);
        }
    };
    let same = sys::stat(file).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == copied.file);
    let whole = same && copied.former.read_sums(file).is_some();
    let written = if whole {
        let sources = Sources::Buffers(copied.parts, 0, 0);
        let former = Some(copied.former);
        writer::put(
            (file, None),
            copied.header,
            &mut copied.tables,
            former,
            (sources, 0),
            &mut look,
        )
    } else {
        Err(Trouble::new("the file that is to be written over has changed", 0))
    };
    zone::clear_scratch();
    answers::say_written(socket, copied.number, written, start);
}

/// In a copy of the process: removes everything of the writer's, which may have been writing.
pub fn forget_all() {
    zone::clear();
    changes::forget();
    forget();
}

//! One image, from the signal to the answer: the capturing thread.
//!
//! It exists only while an image is taken. The signal's handler starts it, on a stack of its own, unknown to glibc, with
//! all signals blocked.

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use resurgo_wire::image::{Datagram, IN_WAVE, Kind, TRACKED};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::file::warm;
use crate::shared::{self, Twins};
use crate::sys::{self, Errno, call};
use crate::talk::{self, Received, Socket, Text};
use crate::trouble::Refusal;
use crate::{changes, descriptors, gate, locks, mappings, objects, sharing, snapshot, stop, threads, timers};

/// What the provider has to say about an image.
#[derive(Clone)]
pub struct Hooks {
    /// Where its own objects are, and nothing of the program's.
    pub own_memory: fn() -> Range<usize>,
    /// Calls with the descriptor of each connection of its own: they are no part of the image, and whoever wakes up makes new ones.
    pub connections: fn(each: &mut dyn FnMut(i32)),
    /// Why there can be none now, if so. All threads stand still, outside of every [`crate::Guard`].
    pub refuses: fn() -> Option<&'static str>,
    /// Note the cursors of image `number` in this slot of the rank's arena.
    pub note_cursors: fn(number: u64, slot: u64),
    /// Say how many messages have been sent on each channel (waves only that stop all, as the next two).
    pub announce: fn(),
    /// Take what the channels to this rank hold; how many messages or parts of them that were.
    pub drain: fn() -> u64,
    /// As many messages have been taken as were announced.
    pub is_drained: fn() -> bool,
    /// Look whose turn it is in a wave of groups: hold back what must not pass now, let go what may, and say how many messages
    /// have been sent on each channel. All threads stand still, outside of every [`crate::Guard`].
    pub notice: fn(),
    /// This process has woken up; no thread of the program runs yet. True when all ranks return to a wave: then it waits for
    /// them.
    pub woken: fn() -> bool,
}

struct Place<T>(UnsafeCell<T>);
// SAFETY: written by `enable` before the signal is in use, or used by the one capturing thread.
unsafe impl<T> Sync for Place<T> {}

static HOOKS: Place<Option<Hooks>> = Place(UnsafeCell::new(None));

const STACK: usize = 256 << 10;

/// Stack and thread pointer of a capturing thread. There are two: a woken copy of a snapshot still stands on the first when
/// the next image may already be asked for.
#[repr(C, align(4096))]
struct Area {
    stack: [u8; STACK],
    /// What lies below a thread pointer: glibc's errno, should anything ever write it.
    below: [u8; 8192],
    /// The thread control block: its own address first, and at 16.
    control_block: [usize; 512],
}

static AREAS: [Place<Area>; 2] = [const {
    Place(UnsafeCell::new(Area {
        stack: [0; STACK],
        below: [0; 8192],
        control_block: [0; 512],
    }))
}; 2];
static NEXT_AREA: AtomicU32 = AtomicU32::new(0);

/// Lowest address, end, and thread pointer of the stack that the last capturing thread had, and which the snapshot that it
/// made is on.
pub fn stack() -> (usize, usize, usize) {
    let area = AREAS[(NEXT_AREA.load(Ordering::SeqCst).wrapping_sub(1) % 2) as usize]
        .0
        .get();
    // SAFETY: addresses only.
    let (stack, control_block) = unsafe { (&raw const (*area).stack, &raw const (*area).control_block) };
    (stack as usize, stack as usize + STACK, control_block as usize)
}
/// The thread id of the capturing thread; the kernel clears it when it has left its stack.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Lets the agent take images of this process from now on, if it has given the process a socket for that.
pub fn enable(hooks: Hooks) {
    if sys::fcntl(IMAGE_FD, libc::F_GETFD, 0).is_err() {
        return;
    }
    let _ = sys::fcntl(IMAGE_FD, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    // SAFETY: nobody reads it before the handler is installed.
    unsafe { *HOOKS.0.get() = Some(hooks) };
    threads::find_rseq();
    descriptors::find_standard([0, 1, 2]);
    changes::find_own();
    sharing::find_own();
    stay_loaded();
    gate::enable();
    stop::install();
}

/// The endpoint is open again.
pub fn enable_again() {
    if hooks().is_some() {
        gate::enable();
    }
}

/// Whether images can be taken of this process at all.
pub fn is_enabled() -> bool {
    hooks().is_some() && !gate::is_disabled()
}

/// Tells the agent that this rank's message log has grown by so many bytes, and whether it `is_scarce`: images of the job's
/// ranks would let it forget.
pub fn log_grows(bytes: u64, is_scarce: bool) {
    let _ = talk::send(
        IMAGE_FD,
        &Datagram::new(Kind::LogGrows, bytes, u64::from(is_scarce), 0),
        &[],
    );
}

/// Tells the agent that an image of this process is wanted now.
pub fn wants_image() {
    let _ = talk::send(IMAGE_FD, &Datagram::new(Kind::WantsImage, 0, 0, 0), &[]);
}

/// The agent's side: asks process `pid` for an image by the datagram that `request` makes of what the main thread is
/// doing, and then by the signal.
pub fn ask(pid: i32, socket: &Socket, request: Datagram, beside: &[BorrowedFd]) -> io::Result<()> {
    // A wrapper, whose child is the program, would never answer.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if caught.is_some_and(|mask| mask >> (crate::SIGNAL - 1) & 1 == 0) {
        return Err(io::Error::other(
            "the process that was started is a wrapper, and the program its child",
        ));
    }
    // So that a system call which the signal breaks off can be started again.
    let doing = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    socket.send(&request.with_text(doing.trim_end()), beside)?;
    stop::signal(pid, pid).map_err(|errno| {
        // It finds the request with the next signal, and must not take it for that one's.
        if request.kind == Kind::Checkpoint {
            let _ = socket.send(&Datagram::new(Kind::Abandon, request.a, 0, 0), &[]);
        }
        io::Error::from_raw_os_error(errno)
    })
}

/// The MPI library may unload the provider when it ends, and the signal's handler with it.
fn stay_loaded() {
    // SAFETY: asks the loader about this very function.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(enable as *const libc::c_void, &raw mut about) != 0 && !about.dli_fname.is_null() {
            libc::dlopen(
                about.dli_fname,
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            );
        }
    }
}

/// In the signal handler: starts the capturing thread. Answers the epoch that ends when threads are let go.
pub fn start() -> Result<u32, Errno> {
    // The last one may be about to leave, or wait for its copy, which waits for a file server.
    let deadline = sys::now_ns() + stop::PATIENCE_NS;
    loop {
        match RUNNING.load(Ordering::SeqCst) {
            0 => break,
            _ if sys::now_ns() > deadline => return Err(libc::EBUSY),
            tid => sys::futex_wait(&RUNNING, tid, Some(1_000_000)),
        }
    }
    // The last one lets nobody go any more, and this one has nobody to let go yet.
    let epoch = stop::epoch();
    let area = AREAS[(NEXT_AREA.fetch_add(1, Ordering::SeqCst) % 2) as usize].0.get();
    // SAFETY: nobody else uses the area: the thread that had it before last has left.
    unsafe {
        let control_block = (&raw mut (*area).control_block).cast::<usize>();
        *control_block = control_block as usize;
        *control_block.add(2) = control_block as usize;
        let stack = (&raw mut (*area).stack) as usize + STACK;
        // Signals stay blocked in the new thread: it inherits the mask of the handler.
        threads::start_service(stack, control_block as usize, &RUNNING, run, 0)?;
    }
    Ok(epoch)
}

/// In the signal handler: there is no capturing thread that could answer.
#[cold]
#[inline(never)]
pub fn cannot_start(errno: Errno) {
    let why = match errno {
        libc::EAGAIN => "there is no thread to be had to take it (see ulimit -u, and the control group's pids.max)",
        libc::EBUSY => "the copy for its last image has not answered",
        _ => "there is not enough memory for a thread to take it",
    };
    if let Some((request, kind)) = next_request() {
        snapshot::close_all(&request);
        say_no(&request, kind, &refuse(why));
    }
}

/// What the agent has asked for, and how it is refused. None: a signal from nowhere.
fn next_request() -> Option<(Received, Kind)> {
    while let Ok(Some(request)) = talk::receive(IMAGE_FD, libc::MSG_DONTWAIT) {
        match request.datagram.kind {
            Kind::Checkpoint if !is_abandoned(request.datagram.a) => return Some((request, Kind::Refused)),
            Kind::Notice => return Some((request, Kind::Noticed)),
            // Others are late answers about an image that was refused.
            _ => snapshot::close_all(&request),
        }
    }
    None
}

/// Whether the agent has given up image `number` before this process has heard of it.
fn is_abandoned(number: u64) -> bool {
    let Ok(Some(next)) = talk::receive(IMAGE_FD, libc::MSG_DONTWAIT | libc::MSG_PEEK) else {
        return false;
    };
    snapshot::close_all(&next);
    next.datagram.kind == Kind::Abandon && next.datagram.a == number
}

fn say_no(request: &Received, kind: Kind, refusal: &Refusal) {
    let text = match refusal.fd {
        -1 => Text::of(format_args!("{}", refusal.why)),
        fd => Text::of(format_args!("{}: descriptor {fd}", refusal.why)),
    };
    let answer = Datagram::new(kind, request.datagram.a, 0, 0).with_text(text.as_str());
    let _ = talk::send(IMAGE_FD, &answer, &[]);
}

/// In a copy of the process: the capturing thread is not running there.
pub fn reset() {
    RUNNING.store(0, Ordering::SeqCst);
}

extern "C" fn run(_: usize) -> ! {
    let mut refusal = None;
    let mut taken = false;
    if let Some((request, kind)) = next_request() {
        let done = match kind {
            Kind::Refused => take(&request).inspect(|()| taken = true),
            _ => notice(&request),
        };
        refusal = done.err().map(|why| (request, kind, why));
    }
    // Threads that are on their way to stop for nothing find the epoch changed or start an empty capture. Who has been copied
    // has been let go, and may be about to stop for the next request already.
    if !taken {
        stop::release();
    }
    if let Some((request, kind, refusal)) = refusal {
        say_no(&request, kind, &refusal);
    }
    leave()
}

/// Has the provider see whose turn it is in a wave of groups. On success the answer has been sent.
fn notice(request: &Received) -> Result<(), Refusal> {
    let first = stop::parse_call(request.datagram.text().as_bytes()).unwrap_or((-1, 0));
    stop::all(sys::gettid(), first).map_err(refuse)?;
    let hooks = hooks()
        .filter(|_| !gate::is_disabled())
        .ok_or(refuse("it has left MPI"))?;
    (hooks.notice)();
    // What is asked for next comes after this.
    let noticed = Datagram::new(Kind::Noticed, request.datagram.a, 0, 0);
    talk::send(IMAGE_FD, &noticed, &[]).map_err(|_| refuse("the agent does not listen"))
}

fn leave() -> ! {
    loop {
        // SAFETY: ends this thread only; the kernel clears RUNNING behind it.
        let _ = unsafe { call!(libc::SYS_exit, 0) };
    }
}

fn refuse(why: &'static str) -> Refusal {
    Refusal::new(why, -1)
}

/// The file that will be written over. It is not the program's: closed before the process is copied.
struct Former(i32);

impl Drop for Former {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Takes the image. On success the answer has been sent.
fn take(request: &Received) -> Result<(), Refusal> {
    let number = request.datagram.a;
    // What the agent saw of the main thread, to whom the signal went.
    let first = stop::parse_call(request.datagram.text().as_bytes()).unwrap_or((-1, 0));
    let start = sys::now_ns();
    let file = (request.count > 0).then(|| Former(request.descriptors[0]));
    let may_copy = file.is_some();
    let stopped = stop::all(sys::gettid(), first).map_err(refuse);
    let copied = stopped.and_then(|()| copy(&request.datagram, file));
    objects::forget();
    let (pid, socket, fork) = copied?;
    stop::release();
    let stall = sys::now_ns() - start;
    let kind = if fork.is_some() { Kind::Taken } else { Kind::Copied };
    // Until it has left the rank's process group, whoever kills the rank kills the snapshot.
    let ready = talk::receive(socket, 0);
    if matches!(&ready, Ok(Some(ready)) if ready.datagram.kind == Kind::Ready) {
        let _ = talk::send(IMAGE_FD, &Datagram::new(kind, number, pid as u64, stall), &[socket]);
    }
    sys::close(socket);
    if let Some(fork) = fork {
        warm::forked(fork);
    }
    if may_copy {
        warm::make_room(number);
    }
    match ready {
        Ok(Some(ready)) if ready.datagram.kind == Kind::Ready => Ok(()),
        Ok(Some(failed)) if failed.datagram.c == 0 => Err(refuse(match failed.datagram.b {
            snapshot::IS_OF_OTHERS => shared::IS_OF_OTHERS,
            _ => "some of its memory is not copied (MADV_DONTFORK)",
        })),
        Ok(Some(failed)) => Err(Refusal::new(
            "an open file cannot be opened again",
            failed.datagram.b as i32,
        )),
        _ => Err(refuse("its copy has died")),
    }
}

/// With all threads standing still: copies the process, or, if that is cheaper, what has changed since `file` was written.
/// Returns the number of the new process, this end of its socket, and the processor time of a fork, in nanoseconds.
fn copy(request: &Datagram, file: Option<Former>) -> Result<(i32, i32, Option<u64>), Refusal> {
    let (number, slot, in_wave) = (request.a, request.b, request.c & IN_WAVE != 0);
    let hooks = hooks().ok_or(refuse("it has left MPI"))?;
    if gate::is_disabled() {
        return Err(refuse("it has left MPI"));
    }
    if let Some(why) = (hooks.refuses)() {
        return Err(refuse(why));
    }
    if has_children() {
        return Err(refuse("it has started other processes that still run"));
    }
    if sys::readable_bytes(PMI_FD) > 0 {
        return Err(refuse("it is talking to the process manager"));
    }
    if !threads::parked().iter().any(|thread| thread.is_main) {
        return Err(refuse("its main thread has ended"));
    }
    if let Some(why) = locks::refuses().or_else(threads::refuses) {
        return Err(refuse(why));
    }
    timers::note().map_err(refuse)?;
    snapshot::note_inherited();
    mappings::survey().map_err(refuse)?;
    let own = file.as_ref().map_or(-1, |file| file.0);
    let is_own = |fd| {
        let mut is_own = fd == own || fd == changes::descriptor();
        (hooks.connections)(&mut |connection| is_own |= fd == connection);
        is_own
    };
    descriptors::note(is_own)?;
    if let Some(why) = shared::refuses() {
        return Err(refuse(why));
    }
    let (own, others) = talk::pair().map_err(|_| refuse("it has no descriptor left for a socket"))?;
    let give_up = |why: &'static str| {
        sys::close(own);
        sys::close(others);
        refuse(why)
    };
    if in_wave {
        (hooks.announce)();
    }
    talk::send(IMAGE_FD, &Datagram::new(Kind::Stopped, number, 0, 0), &[])
        .map_err(|_| give_up("the agent does not listen"))?;
    if in_wave {
        drain(number, &hooks).map_err(give_up)?;
    }
    (hooks.note_cursors)(number, slot);
    if request.c & TRACKED != 0 {
        changes::note(number);
    }
    let mut fork = None;
    // What the channels held may have come into it.
    let twins = Twins::new().map_err(give_up)?;
    // A process that shares the memory would find none of them.
    let pages = file
        .as_ref()
        .filter(|_| !shared::is_any())
        .and_then(|file| warm::copy(&snapshot::about(number, 0), file.0));
    drop(file);
    let copied = match pages {
        Some(copied) => warm::start(copied, others),
        None => {
            let start = sys::spent_ns();
            let copied = snapshot::fork(number, own, others);
            fork = Some(sys::spent_ns() - start);
            copied
        }
    };
    drop(twins);
    // Where nobody waits for others it is copied while the agent accounts for what the rank has printed.
    let go = in_wave || receive_answer(number) == Some(Kind::Go);
    let pid = copied.map_err(|_| give_up("there is not enough memory or not enough processes for a copy of it"))?;
    // An answer that came since the first look is not in the image, and the agent would not give it again.
    if !go || sys::readable_bytes(PMI_FD) > 0 {
        // SAFETY: the process just made; the agent, its parent, reaps it.
        let _ = unsafe { call!(libc::SYS_kill, pid, libc::SIGKILL) };
        return Err(give_up("it is talking to the process manager"));
    }
    sys::close(others);
    Ok((pid, own, fork))
}

/// What the agent says about image `number`.
fn receive_answer(number: u64) -> Option<Kind> {
    loop {
        let answer = talk::receive(IMAGE_FD, 0).ok()??;
        if answer.datagram.a == number {
            return Some(answer.datagram.kind);
        }
    }
}

/// In a wave: empties the channels in as many rounds as the agent wants.
fn drain(number: u64, hooks: &Hooks) -> Result<(), &'static str> {
    loop {
        match receive_answer(number) {
            Some(Kind::Drain) => {
                let drained = Datagram::new(Kind::Drained, number, (hooks.drain)(), 0);
                talk::send(IMAGE_FD, &drained, &[]).map_err(|_| "the agent does not listen")?;
            }
            Some(Kind::Go) if (hooks.is_drained)() => return Ok(()),
            Some(Kind::Go) => return Err("fewer messages have come than were announced"),
            _ => return Err("the wave was given up"),
        }
    }
}

/// The provider's hooks. Only after [`enable`].
pub fn hooks() -> Option<Hooks> {
    // SAFETY: written before the first signal.
    unsafe { (*HOOKS.0.get()).clone() }
}

/// True when the program has child processes, running or not waited for.
fn has_children() -> bool {
    let options = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: looks, and takes nothing away. The capturing thread has no children of its own.
    let asked = unsafe { call!(libc::SYS_waitid, libc::P_ALL, 0, 0, options, 0) };
    asked != Err(libc::ECHILD)
}

//! A snapshot: a copy of the process that sleeps until the rank has failed, and then lets a copy of itself go on in the
//! rank's place.
//!
//! The copy is a child of the agent, not of the rank (CLONE_PARENT): the program's own wait never sees it, and the agent
//! learns of its end as of any rank's. It shares memory with the original until either writes.

use std::cell::UnsafeCell;

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::descriptors::{self, Given};
use crate::file::digest::Digest;
use crate::file::helper::Pipe;
use crate::file::writer::About;
use crate::proc::read_file;
use crate::sys::{self, Errno, call};
use crate::talk::{self, Received, Text};
use crate::trouble::Trouble;
use crate::{calls, changes, gate, locks, mappings, shared, stop, threads, timers};

const SIGNALS: usize = 64;
const LIMITS: usize = 16;

/// What a process that is rebuilt from a file does not inherit: what is done with signals, limits, and how soon it is killed when
/// memory is used up (which a snapshot changes).
struct Inherited {
    /// As the kernel writes it.
    oom_score: [u8; 8],
    oom_score_length: usize,
    actions: [stop::KernelAction; SIGNALS],
    limits: [libc::rlimit; LIMITS],
}

const UNLIMITED: libc::rlimit = libc::rlimit {
    rlim_cur: libc::RLIM_INFINITY,
    rlim_max: libc::RLIM_INFINITY,
};

struct Place(UnsafeCell<Inherited>);
// SAFETY: only the capturing thread uses it.
unsafe impl Sync for Place {}
static INHERITED: Place = Place(UnsafeCell::new(Inherited {
    oom_score: [0; 8],
    oom_score_length: 0,
    actions: [stop::KernelAction::DEFAULT; SIGNALS],
    limits: [UNLIMITED; LIMITS],
}));

pub fn note_inherited() {
    // SAFETY: see `Place`.
    let noted = unsafe { &mut *INHERITED.0.get() };
    noted.oom_score_length = read_file(OOM_SCORE, &mut noted.oom_score).unwrap_or(0);
    for (index, action) in noted.actions.iter_mut().enumerate() {
        // SAFETY: writes to the place for this signal.
        let _ = unsafe { call!(libc::SYS_rt_sigaction, index + 1, 0, &raw mut *action, 8) };
    }
    for (index, limit) in noted.limits.iter_mut().enumerate() {
        // SAFETY: writes to the place for this limit.
        let _ = unsafe { call!(libc::SYS_prlimit64, 0, index, 0, &raw mut *limit) };
    }
}

pub fn set_inherited() {
    set_own_oom_score();
    // SAFETY: see `Place`.
    let noted = unsafe { &*INHERITED.0.get() };
    for (index, action) in noted.actions.iter().enumerate() {
        // SAFETY: reads what was noted. SIGKILL and SIGSTOP are refused, rightly.
        let _ = unsafe { call!(libc::SYS_rt_sigaction, index + 1, &raw const *action, 0, 8) };
    }
    for (index, limit) in noted.limits.iter().enumerate() {
        let mut now = UNLIMITED;
        // SAFETY: reads what was noted, and writes what there is.
        unsafe {
            let set = call!(libc::SYS_prlimit64, 0, index, &raw const *limit, &raw mut now);
            // More than is allowed here: what is.
            if set == Err(libc::EPERM) && call!(libc::SYS_prlimit64, 0, index, 0, &raw mut now).is_ok() {
                let most = libc::rlimit {
                    rlim_cur: limit.rlim_cur.min(now.rlim_max),
                    rlim_max: limit.rlim_max.min(now.rlim_max),
                };
                let _ = call!(libc::SYS_prlimit64, 0, index, &raw const most, 0);
            }
        }
    }
}

const OOM_SCORE: &[u8] = b"/proc/self/oom_score_adj\0";

/// How soon the kernel kills this process when memory is used up; 1000: first. An image that is lost costs less than a rank.
fn set_oom_score(text: &[u8]) {
    if let Ok(file) = sys::open(OOM_SCORE, libc::O_WRONLY | libc::O_CLOEXEC) {
        // SAFETY: reads the text. Nobody needs rights to go back to what was before.
        let _ = unsafe { call!(libc::SYS_write, file, text.as_ptr(), text.len()) };
        sys::close(file);
    }
}

fn set_own_oom_score() {
    // SAFETY: see `Place`.
    let noted = unsafe { &*INHERITED.0.get() };
    if noted.oom_score_length > 0 {
        set_oom_score(&noted.oom_score[..noted.oom_score_length]);
    }
}

/// Dies with the agent, and belongs to no group of the rank's.
pub fn become_independent(agent: i32) {
    // SAFETY: about the calling process only.
    unsafe {
        let _ = call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let _ = call!(libc::SYS_setpgid, 0, 0);
    }
    if sys::getppid() != agent {
        sys::exit(1);
    }
}

/// Nobody wants the image any more. To give back what only this process has takes 0.1 s of a processor for a GiB, which the rank,
/// and who writes the next image to a file, need more: so it takes a low priority first.
fn end() -> ! {
    const NICE: i64 = 10;
    // SAFETY: about the calling process only. The kernel tells 20 less the nice value.
    unsafe {
        if call!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0).is_ok_and(|told| 20 - (told as i64) < NICE) {
            let _ = call!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, NICE);
        }
    }
    sys::exit(0)
}

/// In place of a descriptor: others have memory that was taken for the process's alone.
pub const IS_OF_OTHERS: u64 = 1 << 32;

/// Copies the process for image `number`: the copy sleeps. `own` and `others` are the ends of its socket: the first stays
/// with the original, which gives it to the agent.
pub fn fork(number: u64, own: i32, others: i32) -> Result<i32, Errno> {
    let (agent, original) = (sys::getppid(), sys::getpid());
    let mappings = mappings::checksum();
    match threads::copy_process(None)? {
        0 => {}
        pid => return Ok(pid),
    }
    become_independent(agent);
    // The original's sockets must not stay open here: whoever talks to it has to see its end.
    for fd in [own, IMAGE_FD, PMI_FD] {
        sys::close(fd);
    }
    if let Some(hooks) = crate::capture::hooks() {
        (hooks.connections)(&mut sys::close);
    }
    changes::leave();
    stop::reset();
    crate::capture::reset();
    set_oom_score(b"1000");
    name();
    let whole = mappings == mappings::checksum();
    let parted = descriptors::leave_original().map_err(|(fd, errno)| (fd as u64, errno));
    let has_own = shared::take_places().map_err(|errno| (u64::MAX, errno));
    let done = match whole {
        true => parted.and(has_own),
        false => Err((u64::MAX, 0)),
    };
    let is_alone = || (!shared::is_of_others(original)).then_some(()).ok_or((IS_OF_OTHERS, 0));
    if let Err((what, errno)) = done.and_then(|()| is_alone()) {
        let _ = talk::send(others, &Datagram::new(Kind::Failed, number, what, errno as u64), &[]);
        sys::exit(1);
    }
    if talk::send(others, &Datagram::new(Kind::Ready, number, 0, 0), &[]).is_err() {
        sys::exit(1);
    }
    descriptors::note_sharing();
    sleep(others, agent)
}

/// Names the process for whoever lists processes.
pub fn name() {
    // SAFETY: reads the text.
    let _ = unsafe { call!(libc::SYS_prctl, libc::PR_SET_NAME, c"resurgo-image".as_ptr()) };
}

/// Makes what has been renamed in a directory last, if that is what is asked for.
pub fn sync(socket: i32, request: &Received) {
    if request.datagram.kind == Kind::Sync && request.count > 0 {
        // SAFETY: about the directory just received.
        let _ = unsafe { call!(libc::SYS_fsync, request.descriptors[0]) };
        let _ = talk::send(socket, &Datagram::new(Kind::Synced, request.datagram.a, 0, 0), &[]);
    }
}

/// Does what the agent asks for, until it closes the socket.
fn sleep(socket: i32, agent: i32) -> ! {
    loop {
        let Ok(Some(request)) = talk::receive(socket, 0) else {
            end()
        };
        match request.datagram.kind {
            Kind::Write if request.count > 0 => write(socket, agent, &request),
            Kind::Sync => sync(socket, &request),
            _ => answer(socket, agent, &request, &[]),
        }
        close_all(&request);
    }
}

/// Tells the agent that this rank has returned to the wave, and waits until all have.
fn others_are_ready() -> bool {
    let ready = Datagram::new(Kind::Ready, 0, 0, 0);
    talk::send(IMAGE_FD, &ready, &[]).is_ok()
        && matches!(talk::receive(IMAGE_FD, 0), Ok(Some(answer)) if answer.datagram.kind == Kind::Go)
}

pub fn close_all(request: &Received) {
    request.descriptors[..request.count]
        .iter()
        .for_each(|fd| sys::close(*fd));
}

/// Wakes up, if that is what is asked for. `own` descriptors are not the program's.
fn answer(socket: i32, agent: i32, request: &Received, own: &[i32]) {
    if request.datagram.kind != Kind::Wake || request.count < 4 {
        return;
    }
    let main = threads::parked().iter().find(|thread| thread.is_main);
    match threads::copy_process(main.map(|main| main.tid)) {
        Ok(0) => {
            own.iter().for_each(|fd| sys::close(*fd));
            crate::file::writer::forget();
            wake(socket, agent, request)
        }
        Ok(pid) => {
            let _ = talk::send(socket, &Datagram::new(Kind::Woken, pid as u64, 0, 0), &[]);
        }
        Err(errno) => {
            let failed = Datagram::new(Kind::Failed, errno as u64, 0, 0);
            let _ = talk::send(socket, &failed.with_text("cannot make a process"), &[]);
        }
    }
}

/// Writes the image into the file beside the request. A life can be asked for meanwhile.
fn write(socket: i32, agent: i32, request: &Received) {
    let start = sys::now_ns();
    let file = request.descriptors[0];
    let number = request.datagram.a;
    let pipe = Pipe::open();
    let own = pipe.map_or([file, -1, -1], |pipe| [file, pipe.from, pipe.to]);
    let mut look = || match talk::receive(socket, libc::MSG_DONTWAIT) {
        Ok(Some(request)) => {
            answer(socket, agent, &request, &own);
            close_all(&request);
        }
        Ok(None) => end(),
        Err(_) => {}
    };
    let about = about(number, request.datagram.b as u8);
    let written = crate::file::writer::write(file, pipe, &about, &mut look);
    if let Some(pipe) = pipe {
        pipe.close();
    }
    say_written(socket, number, written, start);
}

/// What a file of image `number` says of the process besides its memory.
pub fn about(number: u64, level: u8) -> About {
    let (low, stack, thread_pointer) = crate::capture::stack();
    About {
        number,
        entry: crate::file::resume::resume as *const () as usize,
        stack,
        thread_pointer,
        level,
        hole: (low, stack),
    }
}

/// Tells the agent what has become of the file of image `number`, begun at `start`.
pub fn say_written(socket: i32, number: u64, written: Result<(u64, Digest), Trouble>, start: u64) {
    let said = match written {
        Ok((bytes, digest)) => {
            let written = Datagram::new(Kind::Written, number, bytes, sys::now_ns() - start);
            written.with_text(std::str::from_utf8(&digest).unwrap_or_default())
        }
        Err(trouble) => Datagram::new(Kind::WriteFailed, number, trouble.errno as u64, 0).with_text(trouble.what),
    };
    let _ = talk::send(socket, &said, &[]);
}

/// In the copy of a snapshot: becomes the rank.
fn wake(socket: i32, agent: i32, request: &Received) -> ! {
    become_independent(agent);
    set_own_oom_score();
    let [stdout, stderr, pmi, image, stdin] = request.descriptors;
    let given = Given {
        stdout,
        stderr,
        pmi,
        image,
        stdin: if request.count > 4 { stdin } else { -1 },
    };
    let rebuilt = with_any_descriptor(|| descriptors::rebuild(&given));
    if let Err((fd, errno)) = rebuilt {
        let text = Text::of(format_args!("descriptor {fd} cannot be opened again (error {errno})"));
        let failed = Datagram::new(Kind::Failed, errno as u64, fd as u64, 0);
        let _ = talk::send(socket, &failed.with_text(text.as_str()), &[]);
        sys::exit(1);
    }
    become_rank(Some(socket), false)
}

/// The program may have less than the numbers of descriptors that it was given (`ulimit -n`): they were there before its limit was.
fn with_any_descriptor<T>(action: impl FnOnce() -> T) -> T {
    let files = libc::RLIMIT_NOFILE;
    let mut limit = UNLIMITED;
    // SAFETY: reads and sets a limit of this process, which has no other threads yet.
    unsafe {
        let _ = call!(libc::SYS_prlimit64, 0, files, 0, &raw mut limit);
        let most = libc::rlimit {
            rlim_cur: limit.rlim_max,
            ..limit
        };
        let _ = call!(libc::SYS_prlimit64, 0, files, &raw const most, 0);
        let result = action();
        let _ = call!(libc::SYS_prlimit64, 0, files, &raw const limit, 0);
        result
    }
}

/// In a process that has the memory and the descriptors of an image: goes on where its threads stopped. `socket` is the
/// snapshot's. `main_renamed`: the main thread has its new number in all locks but those in files' memory.
pub fn become_rank(socket: Option<i32>, main_renamed: bool) -> ! {
    gate::set_restored();
    let with_others = crate::capture::hooks().is_some_and(|hooks| (hooks.woken)());
    // The agent takes the end of this socket for the end of all that was done to the node memory.
    if let Some(socket) = socket {
        sys::close(socket);
    }
    if with_others && !others_are_ready() {
        sys::exit(1);
    }
    calls::go_on_from_now();
    match go_on(main_renamed) {
        // SAFETY: the memory is the image's, and each thread is revived once.
        Ok(main) => unsafe { threads::become_thread(main) },
        Err(_) => sys::exit(1),
    }
}

/// Makes the threads of the image, but the main one, whose entry it returns.
fn go_on(main_renamed: bool) -> Result<usize, Errno> {
    let parked = threads::parked();
    let mut renamed = [(0, 0); threads::MOST];
    let mut main = None;
    threads::expect(parked.len());
    for (index, thread) in parked.iter().enumerate() {
        let tid = if thread.is_main {
            main = Some(index);
            sys::getpid()
        } else {
            // SAFETY: the memory is the image's, and each thread is revived once.
            unsafe { threads::revive(index) }?
        };
        renamed[index] = (thread.tid, tid);
        if thread.tid_address != 0 {
            // glibc's copy of the number, by which any thread may send this one a signal.
            // SAFETY: the word belongs to the thread that is made, and the program does not run.
            unsafe { *(thread.tid_address as *mut i32) = tid };
        }
    }
    let renamed = &renamed[..parked.len()];
    let mut others = renamed.iter().enumerate().filter(|(index, _)| Some(*index) != main);
    let memory = if main_renamed && others.all(|(_, (old, new))| old == new) {
        locks::Where::Files
    } else {
        locks::Where::Without(crate::capture::hooks().map_or(0..0, |hooks| (hooks.own_memory)()))
    };
    locks::rename(renamed, &memory)?;
    shared::share_again()?;
    timers::set(|tid| renamed.iter().find(|(old, _)| *old == tid).map_or(tid, |(_, new)| *new))?;
    main.ok_or(libc::ESRCH)
}

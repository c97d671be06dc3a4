//! One image, from the signal to the answer: the capturing thread.
//!
//! It exists only while an image is taken. The signal's handler starts it, on a stack of its own, unknown to glibc,
//! with all signals blocked.

use resurgo_wire::image::{Datagram, IN_WAVE, Kind, TRACKED};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::file::{resume, warm};
use crate::hooks::{self, Hooks};
use crate::shared::{self, Twins};
use crate::sys::{self, Errno, call};
use crate::talk::{self, Received, Text};
use crate::trouble::Refusal;
use crate::{
    capturing_thread, changes, gate, inherited, locks, mappings, open_files, parting, pipes, snapshot, stop, threads,
    timers,
};

/// Answers the agent from the signal handler when no capturing thread could be started.
#[cold]
#[inline(never)]
pub fn cannot_start(errno: Errno) {
    let why = match errno {
        libc::EAGAIN => "there is no thread to be had to take it (see ulimit -u, and the control group's pids.max)",
        libc::EBUSY => "the copy for its last image has not answered",
        _ => "there is not enough memory for a thread to take it",
    };
    if let Some((request, kind)) = next_request() {
        request.close();
        say_no(&request, kind, &refuse(why));
    }
}

/// The agent's next request, and the kind of answer that refuses it. None: the signal did not come from the agent.
fn next_request() -> Option<(Received, Kind)> {
    while let Ok(Some(request)) = talk::receive(IMAGE_FD, libc::MSG_DONTWAIT) {
        match request.datagram.kind {
            Kind::Checkpoint if !is_abandoned(request.datagram.a) => return Some((request, Kind::Refused)),
            Kind::Part if request.count == 2 => return Some((request, Kind::Parted)),
            Kind::Notice => return Some((request, Kind::Noticed)),
            Kind::Note => return Some((request, Kind::Noted)),
            // Others are late answers about an image that was refused.
            _ => request.close(),
        }
    }
    None
}

/// Whether the agent has given up image `number` before this process has heard of it.
fn is_abandoned(number: u64) -> bool {
    let Ok(Some(next)) = talk::receive(IMAGE_FD, libc::MSG_DONTWAIT | libc::MSG_PEEK) else {
        return false;
    };
    next.close();
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

extern "C" fn run(_: usize) -> ! {
    let mut refusal = None;
    let mut taken = false;
    if let Some((request, kind)) = next_request() {
        let done = match kind {
            Kind::Refused => take(&request).inspect(|()| taken = true),
            Kind::Parted => Err(part(&request)),
            kind => look(&request, kind),
        };
        let kind = if kind == Kind::Parted { Kind::Refused } else { kind };
        refusal = done.err().map(|why| (request, kind, why));
    }
    // A thread that stops for nothing finds the epoch changed, or starts an empty capture. Copied threads are already
    // released and may be stopping for the next request.
    if !taken {
        stop::release();
    }
    if let Some((request, kind, refusal)) = refusal {
        say_no(&request, kind, &refusal);
    }
    capturing_thread::leave()
}

/// Leaves the wrapper: returns only if that is impossible, with the reason.
fn part(request: &Received) -> Refusal {
    let first = stop::parse_call(request.datagram.text().as_bytes()).unwrap_or((-1, 0));
    let parted = stop::all(sys::gettid(), first).map_err(refuse).and_then(|()| {
        let hooks = hooks::hooks().ok_or(refuse("it has left MPI"))?;
        look_around(&hooks).map_err(refuse)?;
        note_state(&hooks, &request.descriptors[..request.count])?;
        parting::part(request).map_err(refuse)
    });
    request.close();
    pipes::forget();
    match parted {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    }
}

/// Without an image: lets the provider see whose turn it is in a wave of groups, or note the rank's cursors. On success
/// it has sent the answer, of this kind.
fn look(request: &Received, kind: Kind) -> Result<(), Refusal> {
    let first = stop::parse_call(request.datagram.text().as_bytes()).unwrap_or((-1, 0));
    stop::all(sys::gettid(), first).map_err(refuse)?;
    let hooks = hooks::hooks()
        .filter(|_| !gate::is_disabled())
        .ok_or(refuse("it has left MPI"))?;
    match kind {
        Kind::Noted => (hooks.note_alone)(request.datagram.a).map_err(refuse)?,
        _ => (hooks.notice)(),
    }
    // Answer only now: the agent's next request must come after this one.
    let answer = Datagram::new(kind, request.datagram.a, 0, 0);
    talk::send(IMAGE_FD, &answer, &[]).map_err(|_| refuse("the agent does not listen"))
}

fn refuse(why: &'static str) -> Refusal {
    Refusal::new(why, -1)
}

/// The file to write over. It is not the program's, so it is closed before the process is copied.
struct Former(i32);

impl Drop for Former {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Takes the image. On success it has sent the answer.
fn take(request: &Received) -> Result<(), Refusal> {
    let number = request.datagram.a;
    // What the agent saw of the main thread, which gets the signal.
    let first = stop::parse_call(request.datagram.text().as_bytes()).unwrap_or((-1, 0));
    let start = sys::now_ns();
    let file = (request.count > 0).then(|| Former(request.descriptors[0]));
    let may_copy = file.is_some();
    let stopped = stop::all(sys::gettid(), first).map_err(refuse);
    let copied = stopped.and_then(|()| copy(&request.datagram, file));
    pipes::forget();
    let (pid, socket, fork) = copied?;
    stop::release();
    let stall = sys::now_ns() - start;
    let kind = if fork.is_some() { Kind::Taken } else { Kind::Copied };
    // Until the snapshot leaves the rank's process group, a signal that kills the rank kills it, too.
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

/// Whether the process is in a state that can be copied; the error says why not. Nothing has been noted yet.
fn look_around(hooks: &Hooks) -> Result<(), &'static str> {
    if gate::is_disabled() {
        return Err("it has left MPI");
    }
    if let Some(why) = (hooks.refuses)() {
        return Err(why);
    }
    if has_children() {
        return Err("it has started other processes that still run");
    }
    if sys::readable_bytes(PMI_FD) > 0 {
        return Err("it is talking to the process manager");
    }
    if !threads::parked().iter().any(|thread| thread.is_main) {
        return Err("its main thread has ended");
    }
    locks::refuses().or_else(threads::refuses).map_or(Ok(()), Err)
}

/// Notes the state that a copy of the process does not get from the kernel. `own` are not the program's.
fn note_state(hooks: &Hooks, own: &[i32]) -> Result<(), Refusal> {
    timers::note().map_err(refuse)?;
    inherited::note();
    mappings::survey().map_err(refuse)?;
    open_files::note(|fd| {
        let mut is_own = own.contains(&fd) || fd == changes::descriptor();
        (hooks.connections)(&mut |connection| is_own |= fd == connection);
        is_own
    })?;
    shared::refuses().map_or(Ok(()), |why| Err(refuse(why)))
}

/// Copies the process while all threads stand still, or only what changed since `file` was written if that is cheaper.
/// Returns the number of the new process, this end of its socket, and the processor time of a fork, in nanoseconds.
fn copy(request: &Datagram, file: Option<Former>) -> Result<(i32, i32, Option<u64>), Refusal> {
    let (number, slot, in_wave) = (request.a, request.b, request.c & IN_WAVE != 0);
    let hooks = hooks::hooks().ok_or(refuse("it has left MPI"))?;
    look_around(&hooks).map_err(refuse)?;
    note_state(&hooks, file.as_ref().map_or(&[], |file| std::slice::from_ref(&file.0)))?;
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
    // Only now: draining the channels may have written to shared memory.
    let twins = Twins::new().map_err(give_up)?;
    // A warm-buffer process shares this memory, and would find no twins: they are dropped below.
    let pages = file
        .as_ref()
        .filter(|_| !shared::is_any())
        .and_then(|file| warm::copy(&resume::about(number, 0), file.0));
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
    // Outside a wave, the process is copied while the agent still accounts for what the rank has printed.
    let go = in_wave || talk::receive_answer(number) == Some(Kind::Go);
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

/// In a wave: empties the channels in as many rounds as the agent wants.
fn drain(number: u64, hooks: &Hooks) -> Result<(), &'static str> {
    loop {
        match talk::receive_answer(number) {
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

/// True when the program has child processes, running or not waited for.
fn has_children() -> bool {
    let options = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: looks, and takes nothing away. The capturing thread has no children of its own.
    let asked = unsafe { call!(libc::SYS_waitid, libc::P_ALL, 0, 0, options, 0) };
    asked != Err(libc::ECHILD)
}

/// In the signal handler: starts the thread that takes the image. Returns the epoch that ends when threads are
/// released.
pub fn start() -> Result<u32, Errno> {
    capturing_thread::start(run)
}

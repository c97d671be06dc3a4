//! A program below a wrapper becomes a child of the agent, so that images of it are possible: docs/internals/wrappers.md.
//!
//! All threads stand still. A copy of the process, with the same descriptors, makes the threads again and waits. The
//! process itself becomes the *place holder*: it executes `resurgo rank-hold`, and so keeps its number and its parent.
//! Only when the agent has heard from the place holder does it let the copy go on. Until then the process can go on as
//! before.

use std::convert::Infallible;
use std::ffi::CStr;

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::shared::{self, Twins};
use crate::sys::{self, Errno, call};
use crate::talk::{self, Received};
use crate::{calls, capturing_thread, changes, clones, descriptors, mappings, pipes, revive, stop, timers, wake};

/// What the copy says of itself: `b` of [`Kind::Failed`].
const NOT_ADOPTED: u64 = 1;
const NOT_WHOLE: u64 = 2;
const SHARES: u64 = 3;
const NO_THREADS: u64 = 4;

/// Parts the program from its wrapper, as [`Kind::Part`] says; its state is noted. Returns only if that is impossible.
pub fn part(request: &Received) -> Result<Infallible, &'static str> {
    let (number, agent) = (request.datagram.a, request.datagram.b as i32);
    let (own, others) = talk::pair().map_err(|_| "it has no descriptor left for a socket")?;
    let twins = Twins::new().inspect_err(|_| [own, others].into_iter().for_each(sys::close))?;
    let (original, mappings) = (sys::getpid(), mappings::checksum());
    let copied = clones::copy_process_to_reaper();
    if clones::is_copy_of(original) {
        descriptors::find_of_wrapper(request.datagram.c);
        request.close();
        sys::close(own);
        go_on((number, agent, original), mappings, others);
    }
    drop(twins);
    sys::close(others);
    let said = copied.map(|()| talk::receive(own, 0));
    sys::close(own);
    let said = match said {
        Ok(Ok(Some(said))) => said.datagram,
        Ok(_) => return Err("its copy has died"),
        Err(_) => return Err("there is not enough memory or not enough processes for a copy of it"),
    };
    if said.kind != Kind::Ready {
        return Err(match said.b {
            NOT_ADOPTED => "another process than its agent takes the orphans below its wrapper",
            SHARES => shared::IS_OF_OTHERS,
            NOT_WHOLE => "some of its memory is not copied (MADV_DONTFORK)",
            _ => "there are not enough threads for a copy of it",
        });
    }
    let parted = Datagram::new(Kind::Parted, number, said.a, 0);
    let told = talk::send(IMAGE_FD, &parted, &[]);
    let _: Result<Infallible, Errno> = told.and_then(|()| hold(agent, request.descriptors[0], request.descriptors[1]));
    // SAFETY: the process just made, which waits; the agent reaps it.
    let _ = unsafe { call!(libc::SYS_kill, said.a, libc::SIGKILL) };
    Err("its process cannot execute resurgo")
}

/// In the copy: becomes the rank as soon as the agent says so. `mappings`: as they were before.
fn go_on((number, agent, original): (u64, i32, i32), mappings: Option<u64>, others: i32) -> ! {
    let fail = |what: u64| -> ! {
        let _ = talk::send(others, &Datagram::new(Kind::Failed, number, what, 0), &[]);
        sys::exit(1)
    };
    if !clones::has_come_to(agent) {
        fail(NOT_ADOPTED);
    }
    clones::become_independent(agent);
    changes::leave();
    stop::reset();
    capturing_thread::reset();
    pipes::forget();
    if shared::is_of_others(original) {
        fail(SHARES);
    }
    if mappings != mappings::checksum() || shared::take_places().is_err() {
        fail(NOT_WHOLE);
    }
    let Ok(main) = wake::go_on(false) else { fail(NO_THREADS) };
    let ready = Datagram::new(Kind::Ready, sys::getpid() as u64, 0, 0);
    // The agent closes its end if the life ends meanwhile.
    if talk::send(others, &ready, &[]).is_err() || talk::receive_answer(number) != Some(Kind::Go) {
        sys::exit(1);
    }
    sys::close(others);
    calls::go_on_from_now();
    // SAFETY: the memory is the original's, and each thread is revived once.
    unsafe { revive::become_thread(main) }
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// The variables by which the processes of a job are known. Others could lead the place holder to other libraries.
fn own_variables() -> [*const libc::c_char; 16] {
    let mut found = [std::ptr::null(); 16];
    // SAFETY: the environment as C has it: texts, then null. Nobody changes it, as all threads stand still.
    unsafe {
        if environ.is_null() {
            return found;
        }
        let texts = (0..).map(|at| *environ.add(at)).take_while(|text| !text.is_null());
        let own = texts.filter(|text| CStr::from_ptr(*text).to_bytes().starts_with(b"RESURGO_"));
        // The last place stays null.
        found[..15].iter_mut().zip(own).for_each(|(place, text)| *place = text);
    }
    found
}

/// Executes `resurgo rank-hold` from the open file `binary`. Its arguments: the process id of the agent, the place
/// holder's socket, and the signals (as a mask) that already wait for the program, so that the copy has them.
fn hold(agent: i32, binary: i32, socket: i32) -> Result<Infallible, Errno> {
    let kept = [socket, PMI_FD, IMAGE_FD];
    for fd in kept {
        sys::fcntl(fd, libc::F_SETFD, 0)?;
    }
    let (mut first, mut second, mut third) = ([0; 64], [0; 64], [0; 64]);
    let arguments = [
        c"resurgo".as_ptr(),
        c"rank-hold".as_ptr(),
        sys::path(&mut first, "", agent, "").as_ptr().cast(),
        sys::path(&mut second, "", socket, "").as_ptr().cast(),
        sys::path(&mut third, "", timers::pending(), "").as_ptr().cast(),
        std::ptr::null(),
    ];
    let environment = own_variables();
    // SAFETY: texts and lists that end as they must; on success nothing of this process is left.
    let executed = unsafe {
        call!(
            libc::SYS_execveat,
            binary,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH
        )
    };
    for fd in kept {
        let _ = sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    }
    Err(executed.err().unwrap_or(libc::ENOEXEC))
}

//! Lets a process that has the memory and the descriptors of an image go on as the rank.

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::IMAGE_FD;

use crate::sys::{self, Errno};
use crate::{calls, gate, hooks, locks, revive, shared, talk, threads, timers};

/// Tells the agent that this rank has returned to the wave, and waits until all have.
fn others_are_ready() -> bool {
    let ready = Datagram::new(Kind::Ready, 0, 0, 0);
    talk::send(IMAGE_FD, &ready, &[]).is_ok()
        && matches!(talk::receive(IMAGE_FD, 0), Ok(Some(answer)) if answer.datagram.kind == Kind::Go)
}

/// In a process that has the memory and the descriptors of an image: goes on where its threads stopped. `socket` is the
/// snapshot's. `main_renamed`: all locks except those in files' memory already have the main thread's new number.
pub fn become_rank(socket: Option<i32>, main_renamed: bool) -> ! {
    gate::set_restored();
    let with_others = hooks::hooks().is_some_and(|hooks| (hooks.woken)());
    // When this socket ends, the agent knows that all writing to the node memory is done.
    if let Some(socket) = socket {
        sys::close(socket);
    }
    if with_others && !others_are_ready() {
        sys::exit(1);
    }
    calls::go_on_from_now();
    match go_on(main_renamed) {
        // SAFETY: the memory is the image's, and each thread is revived once.
        Ok(main) => unsafe { revive::become_thread(main) },
        Err(_) => sys::exit(1),
    }
}

/// Makes the image's threads except the main one, which wait for that; returns the main thread's entry.
pub fn go_on(main_renamed: bool) -> Result<usize, Errno> {
    let parked = threads::parked();
    let mut renamed = [(0, 0); threads::MOST];
    let mut main = None;
    revive::expect(parked.len());
    for (index, thread) in parked.iter().enumerate() {
        let tid = if thread.is_main {
            main = Some(index);
            sys::getpid()
        } else {
            // SAFETY: the memory is the image's, and each thread is revived once.
            unsafe { revive::revive(index) }?
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
        locks::Where::Without(hooks::hooks().map_or(0..0, |hooks| (hooks.own_memory)()))
    };
    locks::rename(renamed, &memory)?;
    shared::share_again()?;
    timers::set(|tid| renamed.iter().find(|(old, _)| *old == tid).map_or(tid, |(_, new)| *new))?;
    main.ok_or(libc::ESRCH)
}

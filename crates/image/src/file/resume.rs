//! Where a process that was rebuilt from a file begins: in the image's own code, which is mapped again where it was.

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::IMAGE_FD;

use super::plan::EXIT_NOT_RESTORED;
use super::warm;
use super::writer::About;
use crate::sys::{self, call};
use crate::{capturing_thread, changes, clones, descriptors, inherited, open_files, stop, talk, wake};

/// The restorer jumps here, on the stack and with the thread pointer of the header. `restorer` and `bytes`: its own
/// memory, which holds the words of `told`. The first is 1 if locks in anonymous memory have the main thread's new
/// number, else 0. The second is how many descriptors follow: those of files that others had open for writing, too.
pub extern "C" fn resume(restorer: usize, bytes: usize, told: *const u64) -> ! {
    // Until the threads are as they were, signals stay blocked.
    sys::block_signals();
    // SAFETY: the restorer has put so many words there for this process.
    let (locks_renamed, shared) = unsafe {
        let count = *told.add(1) as usize;
        (*told == 1, std::slice::from_raw_parts(told.add(2), count))
    };
    descriptors::note_shared(shared);
    // SAFETY: the restorer is not needed any more; nobody else runs.
    let _ = unsafe { call!(libc::SYS_munmap, restorer, bytes) };
    changes::forget();
    warm::forget();
    // The memory is from a process that was taking an image of itself.
    stop::reset();
    capturing_thread::reset();
    clones::become_independent(sys::getppid());
    if let Err((fd, errno, what)) = open_files::complete() {
        let failed = Datagram::new(Kind::Failed, 0, errno as u64, fd as u64);
        let _ = talk::send(IMAGE_FD, &failed.with_text(what), &[]);
        sys::exit(EXIT_NOT_RESTORED);
    }
    inherited::set();
    let _ = talk::send(IMAGE_FD, &Datagram::new(Kind::Restored, 0, 0, 0), &[]);
    wake::become_rank(None, locks_renamed)
}

/// What a file of image `number` says about the process besides its memory.
pub fn about(number: u64, level: u8) -> About {
    let (low, stack, thread_pointer) = capturing_thread::stack();
    About {
        number,
        entry: resume as *const () as usize,
        stack,
        thread_pointer,
        level,
        hole: (low, stack),
    }
}

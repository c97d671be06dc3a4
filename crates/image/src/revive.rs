//! Threads of an image, made again in a process that has its memory.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{self, Errno, call};
use crate::{calls, clones, threads, timers};

/// Makes the calling thread, new and unknown to glibc, the one of entry `index`: it goes on where that one stopped.
///
/// # Safety
/// The memory is that of the image, and no other thread has become this one.
pub unsafe fn become_thread(index: usize) -> ! {
    let thread = threads::parked()[index];
    // SAFETY: as required: these areas belong to the thread that this one becomes.
    unsafe {
        let _ = call!(libc::SYS_set_tid_address, thread.tid_address);
        let _ = call!(libc::SYS_set_robust_list, thread.robust_list, thread.robust_length);
        let _ = call!(libc::SYS_arch_prctl, 0x1002, thread.fs); // ARCH_SET_FS
        if let Some((area, size)) = threads::rseq(thread.fs) {
            // cpu_id_start, cpu_id and rseq_cs are the kernel's to fill.
            std::ptr::write_bytes(area as *mut u8, 0, 16);
            let _ = call!(libc::SYS_rseq, area, size, 0, threads::RSEQ_SIGNATURE);
        }
        let _ = call!(libc::SYS_prctl, libc::PR_SET_NAME, thread.name.as_ptr());
        let _ = call!(
            libc::SYS_sched_setaffinity,
            0,
            thread.affinity_bytes,
            thread.affinity.as_ptr()
        );
        let _ = call!(libc::SYS_sched_setattr, 0, &raw const thread.scheduling, 0);
        timers::raise_own(index);
        // The first thread that goes on may be asked for the next image, which uses the tables again.
        wait_for_all();
        calls::heed_signals(thread.context);
        go_on(thread.context)
    }
}

/// Returns from the signal whose frame lies at `context`.
#[unsafe(naked)]
unsafe extern "C" fn go_on(context: usize) -> ! {
    naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

/// How many threads have not yet become those of the table.
static MISSING: AtomicU32 = AtomicU32::new(0);

/// `count` threads are about to become those of the table: none goes on before all have become so.
pub fn expect(count: usize) {
    MISSING.store(count as u32, Ordering::SeqCst);
}

/// Counts the calling thread, which no longer needs the tables, and waits for the others.
fn wait_for_all() {
    let mut missing = MISSING.fetch_sub(1, Ordering::SeqCst) - 1;
    if missing == 0 {
        sys::futex_wake(&MISSING);
    }
    while missing != 0 {
        sys::futex_wait(&MISSING, missing, None);
        missing = MISSING.load(Ordering::SeqCst);
    }
}

/// Starts a thread that becomes the one of entry `index`, and returns its number. It begins on that thread's own stack,
/// below its frame.
///
/// # Safety
/// As for [`become_thread`].
pub unsafe fn revive(index: usize) -> Result<i32, Errno> {
    extern "C" fn begin(index: usize) -> ! {
        // SAFETY: `revive` gave the number of an entry of the table.
        unsafe { become_thread(index) }
    }
    let parked = threads::parked();
    // The handler's own frames below the context are no longer needed.
    let stack = (parked[index].context - 512) & !15;
    // SAFETY: as required by this function.
    unsafe { clones::start_thread(stack, parked[index].tid, begin, index) }
}

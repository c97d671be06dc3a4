//! The threads of the program: what each must keep besides its memory, and how it is brought back.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, call, thread_pointer};

/// The most threads of a rank.
pub const MOST: usize = 1024;

/// A thread that stands still in its signal handler. Registers, vector state, signal mask and alternate stack lie in
/// the frame that the kernel put on its stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    pub tid: i32,
    /// Whether the thread's number is the process's.
    pub is_main: bool,
    /// The frame: an address of a `ucontext_t`.
    pub context: usize,
    pub fs: usize,
    /// Where the kernel writes 0 and wakes when the thread ends: glibc's copy of the thread id.
    pub tid_address: usize,
    pub robust_list: usize,
    pub robust_length: usize,
    pub name: [u8; 16],
    pub affinity: [u64; 16],
    pub affinity_bytes: usize,
    pub scheduling: Scheduling,
}

/// struct sched_attr of the kernel, as far as all kernels have it: size and policy, flags, nice and priority,
/// deadlines.
pub type Scheduling = [u64; 6];
const SCHEDULING: usize = size_of::<Scheduling>();

impl Thread {
    /// The instruction that it executes next.
    pub fn stopped_at(&self) -> usize {
        // SAFETY: the frame lies on the thread's stack until it goes on.
        unsafe { (*(self.context as *const libc::ucontext_t)).uc_mcontext.gregs[libc::REG_RIP as usize] as usize }
    }
}

/// Why copies of the threads could not go on from their frames, if so.
pub fn refuses() -> Option<&'static str> {
    let uses_tiles = parked().iter().any(|thread| {
        // SAFETY: the frame lies on the thread's stack until it goes on.
        unsafe { uses_tiles(thread.context as *const libc::ucontext_t) }
    });
    uses_tiles.then_some("a thread uses the tiles of its processor (AMX)")
}

/// Whether the kernel has ever given the thread room for tiles. It does so at their first use. A thread without that
/// room that returns from a frame with it gets the registers of 1999 (SSE) alone, and no error.
///
/// # Safety
/// The kernel made the frame, or it is like one of the kernel's.
unsafe fn uses_tiles(context: *const libc::ucontext_t) -> bool {
    const SOFTWARE: usize = 464; // struct _fpx_sw_bytes: magic, length, features
    const MAGIC: u32 = 0x4650_5853;
    const TILES: u64 = 1 << 18;
    // SAFETY: as required: the kernel's 48 bytes are at the end of the first 512.
    unsafe {
        let about = (*context).uc_mcontext.fpregs.cast::<u8>().add(SOFTWARE);
        about.cast::<u32>().read() == MAGIC && about.add(8).cast::<u64>().read() & TILES != 0
    }
}

const NOBODY: Thread = Thread {
    tid: 0,
    is_main: false,
    context: 0,
    fs: 0,
    tid_address: 0,
    robust_list: 0,
    robust_length: 0,
    name: [0; 16],
    affinity: [0; 16],
    affinity_bytes: 0,
    scheduling: [0; 6],
};

struct Table(UnsafeCell<[Thread; MOST]>);
// SAFETY: every stopping thread writes the entry whose index it alone has drawn; others read after it has said so.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([NOBODY; MOST]));
/// Entries drawn.
static DRAWN: AtomicU32 = AtomicU32::new(0);
/// Entries written.
pub(crate) static PARKED: AtomicU32 = AtomicU32::new(0);
/// Offset of the restartable-sequence area from the thread pointer, and 1 + its size; 0: glibc does not use it.
static RSEQ: AtomicU64 = AtomicU64::new(0);

/// The signature that the kernel and glibc agree on for restartable sequences.
pub const RSEQ_SIGNATURE: u32 = 0x5305_3053;

/// Finds out where glibc has its restartable-sequence area. Call once, in ordinary circumstances.
pub fn find_rseq() {
    // SAFETY: looks up two constants of glibc 2.35 and later.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        if !offset.is_null() && !size.is_null() && *size > 0 {
            RSEQ.store((*offset as u32 as u64) << 32 | (1 + *size as u64), Ordering::Relaxed);
        }
    }
}

/// The restartable-sequence area of the thread with this thread pointer, and its size.
pub fn rseq(thread_pointer: usize) -> Option<(usize, u32)> {
    let rseq = RSEQ.load(Ordering::Relaxed);
    let area = thread_pointer.wrapping_add_signed((rseq >> 32) as u32 as i32 as isize);
    (rseq != 0).then_some((area, ((rseq as u32).wrapping_sub(1)).max(32)))
}

/// From here on the kernel writes nothing to the memory of the calling thread, as if the thread were unknown to glibc.
#[cfg(test)]
pub fn leave_rseq() {
    const UNREGISTER: usize = 1;
    find_rseq();
    let thread_pointer: usize;
    // SAFETY: glibc has the thread pointer there; the area is the thread's own.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer);
        let (area, size) = rseq(thread_pointer).unwrap();
        call!(libc::SYS_rseq, area, size, UNREGISTER, RSEQ_SIGNATURE).unwrap();
    }
}

/// Forgets all entries.
pub fn clear() {
    DRAWN.store(0, Ordering::SeqCst);
    PARKED.store(0, Ordering::SeqCst);
}

/// The stopped threads.
pub fn parked() -> &'static [Thread] {
    let count = (PARKED.load(Ordering::SeqCst) as usize).min(MOST);
    // SAFETY: entries are written before they are counted in PARKED, and only the capturing thread asks.
    unsafe { std::slice::from_raw_parts(TABLE.0.get().cast::<Thread>(), count) }
}

/// There are too many threads for the table: the others go on and the image is refused.
pub fn overflowed() -> bool {
    DRAWN.load(Ordering::SeqCst) as usize > MOST
}

/// In the signal handler: notes the calling thread.
pub fn park(context: usize) {
    let index = DRAWN.fetch_add(1, Ordering::SeqCst) as usize;
    if index >= MOST {
        return;
    }
    let mut thread = NOBODY;
    thread.tid = sys::gettid();
    thread.is_main = thread.tid == sys::getpid();
    thread.context = context;
    thread.fs = thread_pointer();
    // SAFETY: each call writes to the place it is given, which is long enough.
    unsafe {
        let _ = call!(libc::SYS_prctl, libc::PR_GET_TID_ADDRESS, &raw mut thread.tid_address);
        let _ = call!(
            libc::SYS_get_robust_list,
            0,
            &raw mut thread.robust_list,
            &raw mut thread.robust_length
        );
        let _ = call!(libc::SYS_prctl, libc::PR_GET_NAME, thread.name.as_mut_ptr());
        thread.affinity_bytes = sys::affinity(&mut thread.affinity);
        let scheduling = &raw mut thread.scheduling;
        let _ = call!(libc::SYS_sched_getattr, 0, scheduling, SCHEDULING, 0);
        TABLE.0.get().cast::<Thread>().add(index).write(thread);
    }
    // Entries become visible in order, so that PARKED says how many from the first are whole.
    while PARKED.load(Ordering::SeqCst) as usize != index {
        // SAFETY: yields the processor.
        let _ = unsafe { call!(libc::SYS_sched_yield) };
    }
    PARKED.store(index as u32 + 1, Ordering::SeqCst);
    sys::futex_wake(&PARKED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_seen_in_a_frame() {
        // SAFETY: plain numbers.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let mut registers = [0u64; 64];
        context.uc_mcontext.fpregs = registers.as_mut_ptr().cast();
        // Without the magic number there are none of the newer registers. With it: x87 to AVX-512, and with tiles.
        let seen = [(0, 0x600e7), (0x4650_5853, 0xe7), (0x4650_5853, 0x600e7)].map(|(magic, features)| {
            registers[58..60].copy_from_slice(&[magic, features]);
            // SAFETY: `registers` are as long as the kernel's.
            unsafe { uses_tiles(&raw const context) }
        });
        assert_eq!(seen, [false, false, true]);
    }
}

//! The threads of the program: what of each must be kept besides its memory, and how it is brought back.

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, Errno, call, thread_pointer};
use crate::{calls, mappings, timers};

/// Most threads of a rank.
pub const MOST: usize = 1024;

/// A thread that stands still in its signal handler. Registers, vector state, signal mask and alternate stack lie in the
/// frame that the kernel has put on its stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    pub tid: i32,
    /// The thread whose number is the process's.
    pub is_main: bool,
    /// The frame: an address of a `ucontext_t`.
    pub context: usize,
    pub fs: usize,
    /// Where the kernel writes 0 and wakes when the thread ends: glibc's copy of the thread id.
    pub tid_address: usize,
    pub robust_list: usize,
    robust_length: usize,
    pub name: [u8; 16],
    affinity: [u64; 16],
    affinity_bytes: usize,
    scheduling: Scheduling,
}

/// struct sched_attr of the kernel, as far as all kernels have it: size and policy, flags, nice and priority, deadlines.
type Scheduling = [u64; 6];
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

/// Whether the kernel has ever given the thread room for them. It does so when they are first used, and from a frame with that room
/// a thread without it is given the registers of 1999 (SSE) alone, and no error.
///
/// # Safety
/// A frame that the kernel has made, or one like it.
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

/// What the kernel and glibc agree on for restartable sequences.
const RSEQ_SIGNATURE: u32 = 0x5305_3053;

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
fn rseq(thread_pointer: usize) -> Option<(usize, u32)> {
    let rseq = RSEQ.load(Ordering::Relaxed);
    let area = thread_pointer.wrapping_add_signed((rseq >> 32) as u32 as i32 as isize);
    (rseq != 0).then_some((area, ((rseq as u32).wrapping_sub(1)).max(32)))
}

/// The kernel writes nothing to the memory of the calling thread any more, as if it were unknown to glibc.
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

/// The threads that stand still.
pub fn parked() -> &'static [Thread] {
    let count = (PARKED.load(Ordering::SeqCst) as usize).min(MOST);
    // SAFETY: entries are written before they are counted in PARKED, and only the capturing thread asks.
    unsafe { std::slice::from_raw_parts(TABLE.0.get().cast::<Thread>(), count) }
}

/// Too many threads for the table: the others go on and the image is refused.
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
        // SAFETY: gives the core away.
        let _ = unsafe { call!(libc::SYS_sched_yield) };
    }
    PARKED.store(index as u32 + 1, Ordering::SeqCst);
    sys::futex_wake(&PARKED);
}

/// Makes the calling thread, new and unknown to glibc, the one of entry `index`: it goes on where that stopped.
///
/// # Safety
/// The memory is that of the image, and no other thread has become this one.
pub unsafe fn become_thread(index: usize) -> ! {
    let thread = parked()[index];
    // SAFETY: as required: these areas belong to the thread that this one becomes.
    unsafe {
        let _ = call!(libc::SYS_set_tid_address, thread.tid_address);
        let _ = call!(libc::SYS_set_robust_list, thread.robust_list, thread.robust_length);
        let _ = call!(libc::SYS_arch_prctl, 0x1002, thread.fs); // ARCH_SET_FS
        if let Some((area, size)) = rseq(thread.fs) {
            // cpu_id_start, cpu_id and rseq_cs are the kernel's to fill.
            std::ptr::write_bytes(area as *mut u8, 0, 16);
            let _ = call!(libc::SYS_rseq, area, size, 0, RSEQ_SIGNATURE);
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
        // The first that goes on may be asked for the next image, which needs the tables anew.
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

const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;

/// Threads that have still to become those of the table.
static MISSING: AtomicU32 = AtomicU32::new(0);

/// `count` threads are about to become those of the table: none goes on before all have.
pub fn expect(count: usize) {
    MISSING.store(count as u32, Ordering::SeqCst);
}

/// Counts the calling thread, which needs the tables no more, and waits for the others.
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
    // The handler's own frames below the context are of no more use.
    let stack = (parked()[index].context - 512) & !15;
    let number = parked()[index].tid;
    let arguments = CloneArguments {
        flags: THREAD_FLAGS as u64,
        // The whole of it need not be there: the kernel only adds the two.
        stack: stack as u64 - 16,
        stack_size: 16,
        set_tid: &raw const number as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    // SAFETY: as required by this function.
    unsafe {
        // With its old number where that is allowed and free, else with a new one.
        let with_number = NewThread {
            number: libc::SYS_clone3,
            arguments: [&raw const arguments as usize, size_of::<CloneArguments>(), 0, 0, 0],
            run: begin,
            argument: index,
        };
        match make(&raw const with_number) {
            tid if tid > 0 => Ok(tid as i32),
            _ => start(THREAD_FLAGS, stack, begin, index, None),
        }
    }
}

/// struct clone_args of the kernel.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A copy of this process, alone in its copy of the memory, whose parent is this one's parent; 0: this is the copy. It gets
/// number `wanted` where that is allowed (CAP_CHECKPOINT_RESTORE) and free, else any.
pub fn copy_process(wanted: Option<i32>) -> Result<i32, Errno> {
    let joined = mappings::join();
    let copied = clone_process(wanted);
    mappings::part(&joined);
    copied
}

fn clone_process(wanted: Option<i32>) -> Result<i32, Errno> {
    if let Some(number) = wanted.filter(|_| may_choose_numbers())
        // SAFETY: no new stack: the copy goes on here.
        && let Ok(pid) = unsafe { clone_with_number(libc::CLONE_PARENT, number) }
    {
        return Ok(pid as i32);
    }
    // SAFETY: as above.
    unsafe { call!(libc::SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0) }.map(|pid| pid as i32)
}

/// Whether new processes may be given numbers: the kernel says no only when it has copied all the memory. So a number is asked for that is
/// taken, for a process that would share the memory.
fn may_choose_numbers() -> bool {
    // SAFETY: it makes none; and if it did, this process would wait until that had ended.
    match unsafe { clone_with_number(libc::CLONE_VM | libc::CLONE_VFORK, sys::getpid()) } {
        Ok(0) => crate::sys::exit(0),
        result => result == Err(libc::EEXIST),
    }
}

unsafe fn clone_with_number(flags: i32, number: i32) -> Result<usize, Errno> {
    let arguments = CloneArguments {
        flags: flags as u64,
        set_tid: &raw const number as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    // SAFETY: the caller answers for what the new process does.
    unsafe { call!(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) }
}

/// Starts a thread that shares everything and runs `run(argument)` on the stack that ends at `stack`, with `tls` as its
/// thread pointer; `ended` becomes 0 when it has left its stack.
///
/// # Safety
/// The stack is nobody else's; `run` does without glibc's thread-local storage.
pub unsafe fn start_service(
    stack: usize,
    tls: usize,
    ended: &AtomicU32,
    run: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<i32, Errno> {
    let flags = THREAD_FLAGS | libc::CLONE_SETTLS | libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID;
    // SAFETY: as required.
    unsafe { start(flags, stack, run, argument, Some((tls, ended.as_ptr() as usize))) }
}

/// Starts a process that shares nothing but the memory, and whose parent is this one's parent; else as [`start_service`].
///
/// # Safety
/// As there.
pub unsafe fn start_process(
    stack: usize,
    tls: usize,
    ended: &AtomicU32,
    run: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<i32, Errno> {
    let share = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
    let flags = share | libc::CLONE_SETTLS | libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID;
    // SAFETY: as required.
    unsafe { start(flags, stack, run, argument, Some((tls, ended.as_ptr() as usize))) }
}

unsafe fn start(
    flags: i32,
    stack: usize,
    run: extern "C" fn(usize) -> !,
    argument: usize,
    extra: Option<(usize, usize)>,
) -> Result<i32, Errno> {
    let (tls, tid) = extra.unwrap_or((0, 0));
    let thread = NewThread {
        number: libc::SYS_clone,
        // Where the number goes, in the parent and in the child.
        arguments: [flags as usize, stack, tid, tid, tls],
        run,
        argument,
    };
    // SAFETY: the caller answers for stack and function.
    let result = unsafe { make(&raw const thread) };
    if result < 0 {
        Err(-result as Errno)
    } else {
        Ok(result as i32)
    }
}

/// A system call that makes a thread, and what the new thread does: `run(argument)`.
#[repr(C)]
struct NewThread {
    number: i64,
    arguments: [usize; 5],
    run: extern "C" fn(usize) -> !,
    argument: usize,
}

/// Makes the call; returns in the calling thread only.
#[unsafe(naked)]
unsafe extern "C" fn make(thread: *const NewThread) -> isize {
    naked_asm!(
        "push r12",
        "push r13",
        "mov r12, [rdi + 48]",
        "mov r13, [rdi + 56]",
        "mov rax, [rdi]",
        "mov rsi, [rdi + 16]",
        "mov rdx, [rdi + 24]",
        "mov r10, [rdi + 32]",
        "mov r8, [rdi + 40]",
        "mov rdi, [rdi + 8]",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop r13",
        "pop r12",
        "ret",
        "2:",
        "xor ebp, ebp",
        "mov rdi, r13",
        "and rsp, -16",
        "call r12",
        "ud2",
    )
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

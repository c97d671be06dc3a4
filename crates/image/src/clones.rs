//! New threads and new processes, made without glibc.

use std::arch::naked_asm;
use std::sync::atomic::AtomicU32;

use crate::mappings;
use crate::sys::{self, Errno, call};

const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;

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

/// Starts a thread of the program on the stack that ends at `stack`. It gets number `number` if that is allowed and
/// free, else a new one. Returns its number.
///
/// # Safety
/// The stack is nobody else's; `run(argument)` does without glibc's thread-local storage until it has one.
pub unsafe fn start_thread(
    stack: usize,
    number: i32,
    run: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<i32, Errno> {
    let arguments = CloneArguments {
        flags: THREAD_FLAGS as u64,
        // Need not be the whole stack: the kernel only adds the two.
        stack: stack as u64 - 16,
        stack_size: 16,
        set_tid: &raw const number as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    let with_number = NewThread {
        number: libc::SYS_clone3,
        arguments: [&raw const arguments as usize, size_of::<CloneArguments>(), 0, 0, 0],
        run,
        argument,
    };
    // SAFETY: as required by this function.
    unsafe {
        match make(&raw const with_number) {
            tid if tid > 0 => Ok(tid as i32),
            _ => start(THREAD_FLAGS, stack, run, argument, None),
        }
    }
}

/// Copies this process: the copy is alone in its copy of the memory, and has this one's parent. Returns 0 in the copy.
/// The copy gets number `wanted` where that is allowed (CAP_CHECKPOINT_RESTORE) and free, else any.
pub fn copy_process(wanted: Option<i32>) -> Result<i32, Errno> {
    let joined = mappings::join();
    let copied = clone_process(wanted);
    mappings::part(&joined);
    copied
}

/// As [`copy_process`], but the copy becomes a child of the next subreaper above this process, whatever is between the
/// two. It is made by another copy, which ends at once; only then does this return, here.
pub fn copy_process_to_reaper() -> Result<(), Errno> {
    let joined = mappings::join();
    let copied = clone_twice();
    mappings::part(&joined);
    match copied? {
        0 => Ok(()),
        between => wait_for(between),
    }
}

/// Whether this is the copy that [`copy_process_to_reaper`] has made of process `original`.
pub fn is_copy_of(original: i32) -> bool {
    sys::getpid() != original
}

/// 0: in the last copy. Else the number of the process between.
fn clone_twice() -> Result<i32, Errno> {
    // Without a signal at its end, so that the program does not hear of it.
    // SAFETY: no new stack: the copy goes on here.
    let between = unsafe { call!(libc::SYS_clone, 0, 0, 0, 0, 0) }?;
    if between > 0 {
        return Ok(between as i32);
    }
    // SAFETY: as above.
    match unsafe { call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        Ok(0) => Ok(0),
        Ok(_) => sys::exit(0),
        Err(errno) => sys::exit(errno),
    }
}

/// Waits for the end of a child that no other thread waits for. Its exit code is an error number.
fn wait_for(child: i32) -> Result<(), Errno> {
    let mut status = 0;
    // SAFETY: writes the status.
    unsafe { call!(libc::SYS_wait4, child, &raw mut status, libc::__WCLONE, 0) }?;
    match libc::WIFEXITED(status) {
        true if libc::WEXITSTATUS(status) == 0 => Ok(()),
        true => Err(libc::WEXITSTATUS(status)),
        false => Err(libc::ECHILD),
    }
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

/// Whether new processes may be given numbers. When they may not, the kernel says so only after it has copied all the
/// memory. So this asks for a number that is taken, for a process that would share the memory.
fn may_choose_numbers() -> bool {
    // SAFETY: the kernel makes no process here; if it did, this process would wait until that one had ended.
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

/// Starts a process that shares nothing but the memory, and whose parent is this one's parent; else as
/// [`start_service`].
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

/// In a copy for [`copy_process_to_reaper`]: waits until this process is a child of `reaper`. False: it is another's.
pub fn has_come_to(reaper: i32) -> bool {
    const PATIENCE_NS: u64 = 2_000_000_000;
    let deadline = sys::now_ns() + PATIENCE_NS;
    while sys::getppid() != reaper {
        if sys::now_ns() > deadline {
            return false;
        }
        sys::futex_wait(&AtomicU32::new(0), 0, Some(100_000));
    }
    true
}

/// Makes this process die with the agent, and belong to no group of the rank's.
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

/// Names the process, as `ps` shows it.
pub fn name_image() {
    // SAFETY: reads the text.
    let _ = unsafe { call!(libc::SYS_prctl, libc::PR_SET_NAME, c"resurgo-image".as_ptr()) };
}

//! The signal's handler: the first thread that gets the signal starts the capturing thread, and every thread stands
//! still.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::signal::{Information, KernelAction};
use crate::sys::call;
use crate::{SIGNAL, calls, capture, gate, stop, threads};

#[unsafe(naked)]
unsafe extern "C" fn restorer() -> ! {
    std::arch::naked_asm!("mov eax, 15", "syscall", "ud2")
}

const SA_RESTORER: u64 = 0x0400_0000;

/// glibc's own handler of [`SIGNAL`], 0: none.
static OF_GLIBC: AtomicUsize = AtomicUsize::new(0);

/// Makes [`SIGNAL`] stop threads.
pub fn install() {
    // glibc sets its own handler when the first thread is made. After that, ours stays.
    let _ = std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join());
    let own = on_signal as *const () as usize;
    let action = KernelAction {
        handler: own,
        flags: (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK) as u64 | SA_RESTORER,
        restorer: restorer as *const () as usize,
        mask: u64::MAX,
    };
    let mut before = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: the structs are the kernel's own; glibc refuses this signal's number to programs.
    let _ = unsafe { call!(libc::SYS_rt_sigaction, SIGNAL, &raw const action, &raw mut before, 8) };
    if before.handler != own {
        OF_GLIBC.store(before.handler, Ordering::SeqCst);
    }
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

extern "C" fn on_signal(number: i32, information: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's siginfo, of 128 bytes.
    let said = unsafe { &*information.cast::<Information>() };
    if !said.is_ours() {
        let handler = OF_GLIBC.load(Ordering::SeqCst);
        if handler > libc::SIG_IGN {
            // SAFETY: what the kernel would have called.
            unsafe { std::mem::transmute::<usize, Handler>(handler)(number, information, context) };
        }
        return;
    }
    if gate::must_go_on() {
        return;
    }
    let epoch = if stop::begin() {
        threads::clear();
        match capture::start() {
            Ok(epoch) => epoch,
            Err(errno) => {
                stop::cancel();
                return capture::cannot_start(errno);
            }
        }
    } else {
        stop::epoch()
    };
    threads::park(context as usize);
    stop::wait_beyond(epoch);
    calls::heed_signals(context as usize);
}

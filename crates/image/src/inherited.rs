//! State that a copy inherits, and that a process rebuilt from a file does not: signal handlers, limits, and how soon
//! the kernel kills it when memory is used up. A snapshot changes the last.

use crate::captured::Captured;
use crate::proc::read_file;
use crate::signal::KernelAction;
use crate::sys::{self, call};

const SIGNALS: usize = 64;

const LIMITS: usize = 16;

/// All of it, as it was when the threads stopped.
struct Inherited {
    /// As the kernel prints it.
    oom_score: [u8; 8],
    oom_score_length: usize,
    actions: [KernelAction; SIGNALS],
    limits: [libc::rlimit; LIMITS],
}

const UNLIMITED: libc::rlimit = libc::rlimit {
    rlim_cur: libc::RLIM_INFINITY,
    rlim_max: libc::RLIM_INFINITY,
};

static INHERITED: Captured<Inherited> = Captured::new(Inherited {
    oom_score: [0; 8],
    oom_score_length: 0,
    actions: [KernelAction::DEFAULT; SIGNALS],
    limits: [UNLIMITED; LIMITS],
});

pub fn note() {
    // SAFETY: see [`Captured`].
    let noted = unsafe { INHERITED.get() };
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

pub fn set() {
    set_own_oom_score();
    // SAFETY: see [`Captured`].
    let noted = unsafe { INHERITED.get() };
    for (index, action) in noted.actions.iter().enumerate() {
        // SAFETY: reads what was noted. SIGKILL and SIGSTOP are refused, rightly.
        let _ = unsafe { call!(libc::SYS_rt_sigaction, index + 1, &raw const *action, 0, 8) };
    }
    for (index, limit) in noted.limits.iter().enumerate() {
        let mut now = UNLIMITED;
        // SAFETY: reads what was noted, and writes what there is.
        unsafe {
            let set = call!(libc::SYS_prlimit64, 0, index, &raw const *limit, &raw mut now);
            // The limit is more than this machine allows: set as much as it does.
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

/// How soon the kernel kills this process when memory is used up; 1000: first. Losing an image costs less than losing a
/// rank.
pub fn set_oom_score(text: &[u8]) {
    if let Ok(file) = sys::open(OOM_SCORE, libc::O_WRONLY | libc::O_CLOEXEC) {
        // SAFETY: reads the text. Going back to the former value needs no rights.
        let _ = unsafe { call!(libc::SYS_write, file, text.as_ptr(), text.len()) };
        sys::close(file);
    }
}

pub fn set_own_oom_score() {
    // SAFETY: see [`Captured`].
    let noted = unsafe { INHERITED.get() };
    if noted.oom_score_length > 0 {
        set_oom_score(&noted.oom_score[..noted.oom_score_length]);
    }
}

/// The program's limit on descriptors (`ulimit -n`) may be below the numbers that it was given: they were there before
/// its limit was.
pub fn with_any_descriptor<T>(action: impl FnOnce() -> T) -> T {
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

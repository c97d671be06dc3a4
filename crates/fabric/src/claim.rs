//! Which process is the rank, and what others of its family may see.
//!
//! A rank's process gets descriptors and variables that lead to the job. They must pass through everything before the
//! program: shells, wrappers. A process that has opened the provider is the rank. What it executes from then on finds
//! neither descriptors nor variables: an MPI program or another `mpiexec` started there is a job of its own.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use resurgo_wire::node_memory::{self as nm, MAGIC};

/// Variables that lead an MPI library here, how the values begin that they have from us, and whether they come back.
/// Those come back, when MPI has been finalised, that the MPI library reads again at its next initialisation; libfabric
/// reads its own once.
const OURS: [(&[u8], &[u8], bool); 7] = [
    (b"PMI_FD", b"30", true),
    (b"MPIR_CVAR_CH4_NETMOD", b"ofi", true),
    (b"MPIR_CVAR_NOLOCAL", b"1", true),
    (b"I_MPI_FABRICS", b"ofi", true),
    (b"I_MPI_OFI_PROVIDER", b"resurgo", false),
    (b"FI_PROVIDER", b"resurgo", false),
    (b"FI_PROVIDER_PATH", b"/", false),
];

/// The whole texts, `NAME=value`, of the hidden variables.
static HIDDEN: [AtomicPtr<c_char>; OURS.len()] = [const { AtomicPtr::new(null_mut()) }; OURS.len()];

/// The number of the process that has taken the place.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Whether this process has, or may get, a rank's place: an agent started it, perhaps through others, and no other
/// launcher has since. `Err` says why not, where there are signs of a job.
pub fn is_rank() -> Result<bool, String> {
    if HIDDEN.iter().any(|hidden| !hidden.load(Ordering::Relaxed).is_null()) {
        return Ok(true);
    }
    let Some(rank) = std::env::var_os(nm::ENV_RANK) else {
        return Ok(false);
    };
    let mut word = [0u8; 8];
    // SAFETY: eight bytes into eight bytes; the descriptor may be any or none.
    let got = unsafe { libc::pread(nm::NODE_MEMORY_FD, word.as_mut_ptr().cast(), word.len(), 0) };
    let has_memory = got == 8 && u64::from_le_bytes(word) == MAGIC;
    let has_pmi = std::env::var("PMI_FD").is_ok_and(|fd| fd == nm::PMI_FD.to_string());
    if has_memory && has_pmi {
        return Ok(true);
    }
    Err(format!(
        "process {} was started inside rank {} of a job and is not that rank, but has its variables; to run MPI of its own there, \
         start it with `env -u FI_PROVIDER -u FI_PROVIDER_PATH -u MPIR_CVAR_CH4_NETMOD -u MPIR_CVAR_NOLOCAL`",
        std::process::id(),
        rank.display()
    ))
}

/// Takes the rank's place for this process, unless another living process has it.
pub fn take(attached: &AtomicU64) -> Result<(), String> {
    let own = u64::from(std::process::id());
    TAKEN.store(own, Ordering::Relaxed);
    let mut seen = attached.load(Ordering::Acquire);
    loop {
        if seen != 0 && seen != own && lives(seen) {
            return Err(format!(
                "process {seen} is this rank and has initialised MPI; process {own}, started beside it, cannot be the same rank"
            ));
        }
        match attached.compare_exchange(seen, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Whether this process is the rank, and not one that the rank has forked. A life from an image has a number of its own,
/// and leads its process group.
pub fn is_this_process() -> bool {
    TAKEN.load(Ordering::Relaxed) == u64::from(std::process::id()) || leads_its_group()
}

/// Whether the process that the agent started is another one, above this one: the rank's first process leads its group.
pub fn is_below_wrapper() -> bool {
    !leads_its_group()
}

fn leads_its_group() -> bool {
    // SAFETY: asks for a number.
    let group = unsafe { libc::getpgrp() };
    group as u32 == std::process::id()
}

/// Whether the process runs: one that has ended and waits for its parent does not.
fn lives(process: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| !rest.starts_with(['Z', 'X']))
}

/// MPI is initialised: hides the job from what this process executes.
pub fn hide() {
    for fd in nm::RANK_FDS.into_iter().chain([nm::SURVIVOR_FD]) {
        // SAFETY: a flag of the rank's own descriptor; there may be none of that number.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: the environment as C has it: texts, then null. A text stays where it is, and so does every pointer to it.
    // One store exchanges a pointer for another, as another thread may be looking for a name.
    unsafe {
        if environ.is_null() {
            return;
        }
        let slots = || (0..).map(|n| environ.add(n)).take_while(|slot| !(**slot).is_null());
        let Some(rank) = slots().find_map(|slot| value_of(*slot, nm::ENV_RANK.as_bytes()).map(|_| *slot)) else {
            return;
        };
        for slot in slots() {
            for ((name, ours, _), hidden) in OURS.iter().zip(&HIDDEN) {
                if value_of(*slot, name).is_some_and(|value| value.starts_with(ours)) {
                    hidden.store(*slot, Ordering::Relaxed);
                    // The rank's number is there twice then, which does no harm.
                    slot.write(rank);
                }
            }
        }
    }
}

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The text behind `name` and `=`, if it begins with these.
///
/// # Safety
/// A C string that lives while the answer is used.
unsafe fn value_of<'a>(text: *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: as required above.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    text.strip_prefix(name)?.strip_prefix(b"=")
}

/// MPI has been finalised: brings back what it needs if it is initialised again.
pub fn show() {
    for ((_, _, is_read_again), hidden) in OURS.iter().zip(&HIDDEN) {
        let text = hidden.swap(null_mut(), Ordering::Relaxed);
        if *is_read_again && !text.is_null() {
            // SAFETY: the whole text as the environment had it, which nobody has freed.
            unsafe { libc::putenv(text) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_from_the_dead_only() {
        let own = u64::from(std::process::id());
        let place = AtomicU64::new(0);
        take(&place).unwrap();
        take(&place).unwrap();
        assert_eq!(place.load(Ordering::Relaxed), own);
        let mut child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        let place = AtomicU64::new(u64::from(child.id()));
        assert!(take(&place).unwrap_err().contains("cannot be the same rank"));
        child.kill().unwrap();
        // It has ended, and has not been waited for.
        while lives(u64::from(child.id())) {
            std::thread::yield_now();
        }
        take(&place).unwrap();
        child.wait().unwrap();
    }
}

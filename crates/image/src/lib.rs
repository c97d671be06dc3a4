//! Images of a running process, taken from inside, without privileges: docs/internals/image.md has the algorithm.
//!
//! The provider calls [`enable`] once and holds a [`Guard`] wherever its private state and the memory it shares with
//! other ranks disagree for a moment. Everything else happens when the agent sends [`SIGNAL`].

mod calls;
mod capture;
mod captured;
mod capturing_thread;
mod changes;
mod clones;
mod contents;
mod descriptors;
mod enable;
mod eventfds;
pub mod file;
mod gate;
mod handler;
mod hooks;
mod inherited;
mod locks;
mod mappings;
mod open_files;
mod pages;
mod parting;
mod pipes;
mod proc;
mod revive;
mod shared;
mod sharing;
mod signal;
mod snapshot;
mod stop;
mod sys;
mod talk;
mod threads;
mod timers;
mod trouble;
mod wake;
mod watches;
mod zone;

pub use enable::{enable, enable_again, is_enabled};
pub use gate::{Guard, disable, is_restored, take_restored};
pub use hooks::Hooks;
pub use sharing::{for_each_nameless, is_mpi_file, note_mpi_file};
pub use sys::{make_large_pages, thread_pointer};
pub use talk::{Socket, ask, keep_notes, log_grows, wants_image};

/// Bytes that wait in a pipe; either of its ends tells.
pub fn readable_bytes(pipe: &impl std::os::fd::AsRawFd) -> u64 {
    sys::readable_bytes(pipe.as_raw_fd()) as u64
}

/// Makes this process, and the programs that it starts, learn how children end. A parent may have made it ignore
/// SIGCHLD; then the kernel forgets children at once.
pub fn hear_of_children() {
    // SAFETY: sets what the kernel does with a signal; there is no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// The signal that stops threads. It is glibc's own SIGSETXID: no program can block it by way of glibc. glibc uses it
/// only when a process with several threads changes its user.
pub const SIGNAL: i32 = 33;

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    static ALONE: Mutex<()> = Mutex::new(());

    /// Held by a test while it copies this process, or looks at what the whole process has: descriptors, mappings. A
    /// copy has all descriptors, and the state of the other tests as it is at that moment.
    pub type Alone = MutexGuard<'static, ()>;

    pub fn alone() -> Alone {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

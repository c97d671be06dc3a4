//! When images can be taken of this process.

use resurgo_wire::node_memory::IMAGE_FD;

use crate::hooks::{self, Hooks};
use crate::{changes, descriptors, gate, handler, sharing, sys, threads};

/// Lets the agent take images of this process from now on, if it gave the process a socket for that.
pub fn enable(hooks: Hooks) {
    if sys::fcntl(IMAGE_FD, libc::F_GETFD, 0).is_err() {
        return;
    }
    let _ = sys::fcntl(IMAGE_FD, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    // SAFETY: the handler is installed below.
    unsafe { hooks::set(hooks) };
    threads::find_rseq();
    descriptors::find_standard([0, 1, 2]);
    changes::find_own();
    sharing::find_own();
    stay_loaded();
    gate::enable();
    handler::install();
}

/// Allows images again: the endpoint is open again.
pub fn enable_again() {
    if hooks::hooks().is_some() {
        gate::enable();
    }
}

/// Whether images can be taken of this process at all.
pub fn is_enabled() -> bool {
    hooks::hooks().is_some() && !gate::is_disabled()
}

/// The MPI library may unload the provider when it ends, and the signal's handler with it.
fn stay_loaded() {
    // SAFETY: asks the loader about this very function.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(enable as *const libc::c_void, &raw mut about) != 0 && !about.dli_fname.is_null() {
            libc::dlopen(
                about.dli_fname,
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            );
        }
    }
}

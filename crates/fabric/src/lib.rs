//! `libresurgo-fi.so`: a libfabric provider under an unmodified MPI library.
//!
//! libfabric loads it (FI_PROVIDER_PATH) and calls [`fi_prov_ini`]. Messages between ranks of a node go through channel
//! logs in the node memory; see docs/internals/data-path.md.

mod about;
mod arena;
mod channel_memories;
mod claim;
mod clock;
mod completion;
mod deeds;
mod direct;
mod doorbell;
mod engine;
mod event_logger;
mod file_notes;
mod files;
mod heap;
mod imports;
mod info;
mod knowledge;
mod leaving;
mod log;
mod lost_reads;
mod matching;
mod message;
mod node;
mod ofi;
mod padding;
mod read_log;
mod record;
mod rma;
mod socket;
mod survivors;
mod trace;
mod under_lock;
mod undo;

use ofi::{Call, FiProvider};
use std::cell::UnsafeCell;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

struct Provider(UnsafeCell<FiProvider>);
// SAFETY: see `FiProvider`.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(FiProvider {
    version: ofi::fi_version(0, 1),
    fi_version: ofi::fi_version(1, 14),
    context: [std::ptr::null_mut(); 4],
    name: c"resurgo".as_ptr(),
    getinfo: Call(info::getinfo as *const ()),
    fabric: Call(ofi::fabric::open_fabric as *const ()),
    cleanup: ofi::OK,
}));

/// Entry point that libfabric looks up.
///
/// # Safety
/// Called by libfabric, once, while it loads providers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut FiProvider {
    // libfabric drops a provider that speaks an older interface than the MPI library asks for: claim the host's own
    // version. What is used of the interface has kept its layout since 1.14.
    // A library that Python loaded is not in the global scope: ask for it by name, then for any library with the
    // symbol.
    // SAFETY: looks up a function of the library that is calling.
    unsafe {
        let loaded = libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let scope = if loaded.is_null() { libc::RTLD_DEFAULT } else { loaded };
        let host = libc::dlsym(scope, c"fi_version".as_ptr());
        if !host.is_null() {
            let host: extern "C" fn() -> u32 = std::mem::transmute(host);
            (*PROVIDER.0.get()).fi_version = host();
        }
    }
    PROVIDER.0.get()
}

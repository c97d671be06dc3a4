//! Loaded libraries.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

struct Wanted<'a> {
    start: &'a str,
    symbol: &'a CStr,
    found: *mut c_void,
}

/// The symbol in a loaded library whose file's name begins so; null: there is none.
///
/// # Safety
/// Nothing unloads that library.
pub unsafe fn in_library(start: &str, symbol: &CStr) -> *mut c_void {
    let mut wanted = Wanted {
        start,
        symbol,
        found: null_mut(),
    };
    // SAFETY: the callback gets what is handed over here.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.found
}

/// The name of a loaded library's file, without its directory.
///
/// # Safety
/// `info` is the loader's description of it, which lasts.
pub unsafe fn file_name<'a>(info: *const libc::dl_phdr_info) -> &'a [u8] {
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr((*info).dlpi_name) };
    path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a library, and what `in_library` has handed over.
    unsafe {
        let wanted = &mut *wanted.cast::<Wanted>();
        if file_name(info).starts_with(wanted.start.as_bytes()) {
            let handle = libc::dlopen((*info).dlpi_name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if !handle.is_null() {
                wanted.found = libc::dlsym(handle, wanted.symbol.as_ptr());
                libc::dlclose(handle);
            }
        }
        c_int::from(!wanted.found.is_null())
    }
}

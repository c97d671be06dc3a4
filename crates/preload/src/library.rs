//! Loaded libraries.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of another library, once it was found.
pub struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    pub const fn new(name: &'static CStr) -> Function {
        Function {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    /// It, if it was found.
    #[inline]
    pub fn known(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }

    /// The next function of MPI by this name behind the library that asks. Without one the process ends: it says which
    /// library asked, and what to do.
    #[inline]
    pub fn of_mpi(&self, asks: &str, what_to_do: &str) -> *mut c_void {
        self.known().unwrap_or_else(|| self.find_in_mpi(asks, what_to_do))
    }

    #[cold]
    fn find_in_mpi(&self, asks: &str, what_to_do: &str) -> *mut c_void {
        // SAFETY: looks up a name. MPI is never unloaded.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // Python loads MPI for itself alone, so it may be in no global scope.
            found = self.find_in("libmpi");
        }
        if found.is_null() {
            let name = self.name.to_string_lossy();
            eprintln!("resurgo: {asks} found no {name} in this process: {what_to_do}");
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// Looks for it in a loaded library whose file's name begins so, and which nothing unloads; null: it is not there.
    pub fn find_in(&self, start: &str) -> *mut c_void {
        // SAFETY: nothing unloads that library.
        let found = unsafe { in_library(start, self.name) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

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

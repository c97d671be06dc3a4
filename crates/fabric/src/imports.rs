//! What the MPI library itself asks the system for and puts into messages: the time of day and its process id.
//!
//! ROMIO, inside the MPI library, names the file of a shared file pointer after both (`MPL_create_pathname`) and
//! broadcasts the name at every MPI_File_open. A later life has another process id and another time, and would send
//! another name. So the MPI library's own imports of `time` and `getpid` are pointed to functions that answer the same
//! in every life of a rank. Its imports that change files are pointed to the functions in [`files`]. In the program
//! and all other libraries only the imports that make and remove things are pointed elsewhere: to [`deeds`].

use crate::deeds;
use crate::files;
use crate::node::Node;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

static TIME: AtomicI64 = AtomicI64::new(0);
static PID: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn fixed_time(place: *mut libc::time_t) -> libc::time_t {
    let time = TIME.load(Ordering::Relaxed);
    if !place.is_null() {
        // SAFETY: time(2)'s contract.
        unsafe { *place = time };
    }
    time
}

extern "C" fn fixed_pid() -> libc::pid_t {
    PID.load(Ordering::Relaxed) as libc::pid_t
}

/// Objects whose imports stay as they are: the C library and its parts, the loader, and what is below the MPI library.
const STAY: [&[u8]; 9] = [
    b"libc.so",
    b"ld-linux",
    b"linux-vdso",
    b"libpthread.so",
    b"libdl.so",
    b"librt.so",
    b"libm.so",
    b"libfabric",
    b"libresurgo-fi",
];
const MPI: [&[u8]; 3] = [b"libmpi.so", b"libmpi_abi.so", b"libmpich.so"];

/// Addresses of objects whose imports have been pointed, and how often the loader had added objects by then.
static PATCHED: [AtomicUsize; 4096] = [const { AtomicUsize::new(0) }; 4096];
static ADDED: AtomicU64 = AtomicU64::new(0);
static REPLAYS: AtomicBool = AtomicBool::new(false);
/// What the MPI library does to files is looked at.
static WATCHES: AtomicBool = AtomicBool::new(false);
static PATCHING: AtomicBool = AtomicBool::new(false);

/// Points the MPI library's imports of `time` and `getpid` to constants: a time of the job's own and a number per rank.
/// Its imports that change files go to [`files`]. All other objects' imports that make and remove files go to
/// [`deeds`].
pub fn redirect(node: &Node) {
    let job = u32::from_le_bytes(node.job_key[..4].try_into().expect("four bytes"));
    TIME.store(job as i64, Ordering::Relaxed);
    PID.store(node.rank as i64 + 1, Ordering::Relaxed);
    REPLAYS.store(node.replays(), Ordering::Relaxed);
    WATCHES.store(node.replays() || node.undo().is_some(), Ordering::Relaxed);
    if WATCHES.load(Ordering::Relaxed) {
        files::watch(node);
    }
    deeds::watch(node);
    stay_loaded();
    look_for_new();
}

/// Keeps this library loaded: it must not go before libraries whose imports lead here.
fn stay_loaded() {
    // SAFETY: an all-zero Dl_info is valid, and the loader fills it; the name stays as long as the library.
    unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(redirect as *const () as *const c_void, &mut own) != 0 {
            libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// Points the imports of objects that were loaded since.
pub fn look_for_new() {
    let mut added = 0u64;
    // SAFETY: the callbacks look only at what the loader hands them, and the loader keeps it in place meanwhile.
    unsafe {
        libc::dl_iterate_phdr(Some(count), std::ptr::from_mut(&mut added).cast());
        if ADDED.load(Ordering::Relaxed) != added && !PATCHING.swap(true, Ordering::Acquire) {
            libc::dl_iterate_phdr(Some(patch_if_new), std::ptr::null_mut());
            ADDED.store(added, Ordering::Relaxed);
            PATCHING.store(false, Ordering::Release);
        }
    }
}

unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _size: usize, added: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one loaded object, and the word of the caller above.
    unsafe { *added.cast::<u64>() = (*info).dlpi_adds };
    1
}

unsafe extern "C" fn patch_if_new(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one loaded object.
    unsafe {
        let info = &*info;
        // The program itself may lie at 0.
        let place = info.dlpi_phdr as usize;
        let known = PATCHED.iter().take_while(|known| known.load(Ordering::Relaxed) != 0);
        let count = known.clone().count();
        if count == PATCHED.len() || known.clone().any(|known| known.load(Ordering::Relaxed) == place) {
            return 0;
        }
        PATCHED[count].store(place, Ordering::Relaxed);
        let file = file_name(info);
        if is_mpi(file) {
            let (replays, watches) = (REPLAYS.load(Ordering::Relaxed), WATCHES.load(Ordering::Relaxed));
            patch(info, |import| match import.to_bytes() {
                // A rank that repeats no messages may send others.
                b"time" if replays => Some(fixed_time as *const () as usize),
                b"getpid" if replays => Some(fixed_pid as *const () as usize),
                _ if replays => files::replacement(import),
                _ if watches => files::replacement(import).or_else(|| deeds::replacement(import)),
                _ => deeds::replacement(import),
            });
        } else if !STAY.iter().any(|stays| file.starts_with(stays)) {
            patch(info, deeds::replacement);
        }
    }
    0
}

/// MPI_Finalize has been called, whatever it returned.
pub fn mpi_is_finalised() -> bool {
    let mut finalised: Option<MpiFinalized> = None;
    // SAFETY: the callback gets the place of the caller; MPI permits this question at any time.
    unsafe {
        libc::dl_iterate_phdr(Some(find_finalized), std::ptr::from_mut(&mut finalised).cast());
        let mut flag: c_int = 0;
        finalised.is_some_and(|finalised| finalised(&mut flag) == 0) && flag != 0
    }
}

type MpiFinalized = unsafe extern "C" fn(*mut c_int) -> c_int;

unsafe extern "C" fn find_finalized(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one loaded object, and the place of the caller above. Python loads MPI for
    // itself alone, so the function is looked up in the library and in no scope. The library stays loaded.
    unsafe {
        if !is_mpi(file_name(&*info)) {
            return 0;
        }
        let library = libc::dlopen((*info).dlpi_name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return 0;
        }
        let function = libc::dlsym(library, c"PMPI_Finalized".as_ptr());
        *found.cast::<Option<MpiFinalized>>() = std::mem::transmute::<*mut c_void, Option<MpiFinalized>>(function);
        c_int::from(!function.is_null())
    }
}

/// The name of a loaded object's file, without its directory.
///
/// # Safety
/// The description is the loader's.
unsafe fn file_name(info: &libc::dl_phdr_info) -> &[u8] {
    // SAFETY: the loader's text stays as long as the object.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    name.rsplit(|&byte| byte == b'/').next().unwrap_or(name)
}

fn is_mpi(file: &[u8]) -> bool {
    MPI.iter().any(|mpi| file.starts_with(mpi))
}

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;

/// # Safety
/// `info` describes an object that is loaded and relocated.
unsafe fn patch(info: &libc::dl_phdr_info, replacement: impl Fn(&CStr) -> Option<usize>) {
    let entry = |tag: i64| -> usize {
        for index in 0..info.dlpi_phnum as usize {
            // SAFETY: one of the object's program headers, and its dynamic section, which ends with a zero tag.
            unsafe {
                let header = &*info.dlpi_phdr.add(index);
                if header.p_type != libc::PT_DYNAMIC {
                    continue;
                }
                let mut dynamic = (info.dlpi_addr + header.p_vaddr) as *const [i64; 2];
                while (*dynamic)[0] != 0 {
                    if (*dynamic)[0] == tag {
                        return (*dynamic)[1] as usize;
                    }
                    dynamic = dynamic.add(1);
                }
            }
        }
        0
    };
    let (strings, symbols) = (entry(DT_STRTAB), entry(DT_SYMTAB));
    let base = info.dlpi_addr as usize;
    // The loader has made addresses of them, except in an object of the kernel's.
    if strings <= base || symbols <= base {
        return;
    }
    for (table, bytes) in [
        (entry(DT_JMPREL), entry(DT_PLTRELSZ)),
        (entry(DT_RELA), entry(DT_RELASZ)),
    ] {
        if table == 0 {
            continue;
        }
        for index in 0..bytes / std::mem::size_of::<libc::Elf64_Rela>() {
            // SAFETY: inside the object's relocation table; symbol and name are the object's own.
            unsafe {
                let relocation = &*(table as *const libc::Elf64_Rela).add(index);
                let kind = relocation.r_info & 0xffff_ffff;
                if kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT {
                    continue;
                }
                let symbol = &*(symbols as *const libc::Elf64_Sym).add((relocation.r_info >> 32) as usize);
                let name = CStr::from_ptr((strings + symbol.st_name as usize) as *const _);
                let Some(target) = replacement(name).filter(|_| symbol.st_shndx == 0) else {
                    continue;
                };
                write_slot((info.dlpi_addr + relocation.r_offset) as *mut usize, target);
            }
        }
    }
}

/// # Safety
/// `slot` is an entry of a loaded object's table of imports.
unsafe fn write_slot(slot: *mut usize, target: usize) {
    let page = slot as usize & !4095;
    // SAFETY: the page belongs to the object's data; the loader may have made it read-only after relocation.
    unsafe {
        if libc::mprotect(page as *mut c_void, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            *slot = target;
        }
    }
}

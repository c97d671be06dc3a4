//! Fortran. MPICH's Fortran library calls many C functions by their other names (PMPI), which pass by this library. So
//! each such place in its table of functions gets the function of the first name.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use crate::library::file_name;

/// Files with these names are MPICH's, and Debian's.
const LIBRARIES: [&str; 2] = ["libmpifort.so", "libmpichfort.so"];

/// Calls from MPICH's Fortran library go to the functions that the program sees by their first names. Call it when the
/// process has loaded its libraries, before any function of MPI.
pub extern "C" fn redirect() {
    // SAFETY: the callback keeps nothing of what it gets.
    unsafe { libc::dl_iterate_phdr(Some(look), null_mut()) };
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a library, and the program headers in memory to which it points.
    unsafe {
        let file = file_name(info);
        if !LIBRARIES.iter().any(|name| file.starts_with(name.as_bytes())) {
            return 0;
        }
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        if let Some(dynamic) = dynamic {
            let base = (*info).dlpi_addr as usize;
            Tables::read(base, base + dynamic.p_vaddr as usize).redirect();
        }
    }
    0
}

/// Where a loaded library has what the loader binds.
#[derive(Default)]
struct Tables {
    base: usize,
    symbols: usize,
    names: usize,
    /// Address and bytes of entries that name a function, and the place of its address.
    bound: [(usize, usize); 2],
}

impl Tables {
    const ENTRY: usize = size_of::<libc::Elf64_Rela>();

    /// # Safety
    /// `dynamic` is the address of the dynamic section of the library that begins at `base`.
    unsafe fn read(base: usize, mut dynamic: usize) -> Tables {
        let mut tables = Tables {
            base,
            ..Tables::default()
        };
        loop {
            // SAFETY: pairs of a tag and a value, up to tag 0. glibc has made addresses of the offsets.
            let [tag, value] = unsafe { *(dynamic as *const [usize; 2]) };
            match tag {
                0 => return tables,
                2 => tables.bound[0].1 = value,  // DT_PLTRELSZ
                5 => tables.names = value,       // DT_STRTAB
                6 => tables.symbols = value,     // DT_SYMTAB
                7 => tables.bound[1].0 = value,  // DT_RELA
                8 => tables.bound[1].1 = value,  // DT_RELASZ
                23 => tables.bound[0].0 = value, // DT_JMPREL
                _ => {}
            }
            dynamic += size_of::<[usize; 2]>();
        }
    }

    /// # Safety
    /// These are the tables of a loaded library.
    unsafe fn redirect(&self) {
        // R_X86_64_GLOB_DAT and R_X86_64_JUMP_SLOT.
        const BOUND: [u32; 2] = [6, 7];
        for (from, bytes) in self.bound {
            for at in (from..from + bytes).step_by(Self::ENTRY) {
                // SAFETY: an entry, the symbol that it names, and that symbol's name.
                let (entry, name) = unsafe {
                    let entry = &*(at as *const libc::Elf64_Rela);
                    let symbol = self.symbols + (entry.r_info >> 32) as usize * size_of::<libc::Elf64_Sym>();
                    let name = self.names + (*(symbol as *const libc::Elf64_Sym)).st_name as usize;
                    (entry, CStr::from_ptr(name as *const _))
                };
                if BOUND.contains(&(entry.r_info as u32)) && name.to_bytes().starts_with(b"PMPI") {
                    // SAFETY: the name without its first letter is still one, with its end. Addresses are written
                    // where the loader wrote them, or will.
                    unsafe {
                        let first = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().add(1));
                        if !first.is_null() {
                            store(self.base + entry.r_offset as usize, first);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// `place` holds the address of a function of the same kind. The loader may have made it read-only.
unsafe fn store(place: usize, function: *mut c_void) {
    // SAFETY: as the caller promises. No other thread runs yet.
    unsafe {
        let page = place & !(libc::sysconf(libc::_SC_PAGESIZE) as usize - 1);
        let length = place + size_of::<usize>() - page;
        if libc::mprotect(page as *mut c_void, length, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            *(place as *mut *mut c_void) = function;
        }
    }
}

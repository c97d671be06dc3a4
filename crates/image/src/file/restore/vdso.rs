//! The kernel's own code in a process (vDSO), under another kernel than the image was taken under.
//!
//! glibc asked for the addresses of its functions when the program began, so they stay where they were. Their code
//! cannot stay: it reads data of the kernel whose layout belongs to that code. Each function becomes the system call
//! that it otherwise saves. An unknown function finds pages of zeros in place of that data.

const CALLS: [(&[u8], i64); 6] = [
    (b"clock_gettime", libc::SYS_clock_gettime),
    (b"clock_getres", libc::SYS_clock_getres),
    (b"gettimeofday", libc::SYS_gettimeofday),
    (b"time", libc::SYS_time),
    (b"getcpu", libc::SYS_getcpu),
    // The function takes a state, too; the system call ignores it.
    (b"getrandom", libc::SYS_getrandom),
];

/// Bytes of a function that are replaced.
pub const STUB: usize = 8;

/// `code`, a whole vDSO, with system calls for functions. None: it cannot be understood, or lacks a function.
pub fn with_system_calls(code: &[u8]) -> Option<Vec<u8>> {
    let mut copy = code.to_vec();
    for (_, call, at) in functions(code)? {
        // mov eax, CALL; syscall; ret. The arguments are where a system call has its own.
        let [a, b, c, d] = (call as u32).to_le_bytes();
        let stub: [u8; STUB] = [0xb8, a, b, c, d, 0x0f, 0x05, 0xc3];
        copy.get_mut(at..)?.first_chunk_mut().map(|place| *place = stub)?;
    }
    Some(copy)
}

/// The functions of a vDSO that have system calls: name, system call, and place. At least the clock's is among them.
pub fn functions(code: &[u8]) -> Option<Vec<(&'static [u8], i64, usize)>> {
    let word = |at: usize| {
        let bytes = *code.get(at..)?.first_chunk()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*code.get(at..)?.first_chunk()?)));
    let number = |at: usize| Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?) as usize);
    if !code.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    const PT_DYNAMIC: usize = 2;
    let (table, size, count) = (word(32)?, half(54)?, half(56)?);
    let header = |index: usize| table.checked_add(index * size);
    let dynamic = (0..count)
        .filter_map(header)
        .find(|at| number(*at) == Some(PT_DYNAMIC))?;
    let (begin, end) = (word(dynamic + 8)?, word(dynamic + 8)?.checked_add(word(dynamic + 32)?)?);
    let entry = |tag: usize| {
        let at = (begin..end).step_by(16).find(|at| word(*at) == Some(tag))?;
        word(at + 8)
    };
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    let (strings, symbols) = (entry(DT_STRTAB)?, entry(DT_SYMTAB)?);
    // The linker puts the strings right behind the symbols.
    const SYMBOL: usize = 24;
    let mut found = Vec::new();
    for at in (symbols..strings).step_by(SYMBOL) {
        let name = code.get(strings.checked_add(number(at)?)?..)?;
        let name = name.strip_prefix(b"__vdso_").unwrap_or(name);
        let is =
            |(known, _): &&(&'static [u8], i64)| name.strip_prefix(*known).is_some_and(|rest| rest.first() == Some(&0));
        let place = word(at + 8)?;
        if let Some((known, call)) = CALLS.iter().find(is)
            && place > 0
        {
            found.push((*known, *call, place));
        }
    }
    found
        .iter()
        .any(|(_, call, _)| *call == libc::SYS_clock_gettime)
        .then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::PAGE;

    fn own() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with("[vdso]"))
            .expect("this kernel has one");
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        // SAFETY: mapped and readable in every process.
        unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }.to_vec()
    }

    /// Places the code where nothing of the kernel is near: a function that looked for its data would find none.
    fn placed(code: &[u8]) -> *const u8 {
        assert!(code.len().is_multiple_of(PAGE));
        let (write, execute) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
        let room = code.len() + (1 << 20);
        // SAFETY: new memory; the code is copied into its end.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let at = start.byte_add(1 << 20);
            assert_eq!(libc::mprotect(at, code.len(), write), 0);
            std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), code.len());
            assert_eq!(libc::mprotect(at, code.len(), execute), 0);
            at.cast()
        }
    }

    #[test]
    fn every_function_answers_what_the_kernel_answers() {
        let code = own();
        let found = functions(&code).unwrap();
        let place = placed(&with_system_calls(&code).unwrap());
        for (name, _, _) in CALLS.iter().map(|(name, call)| (*name, *call, 0)) {
            // Older kernels have no getrandom.
            assert!(name == b"getrandom" || found.iter().any(|(other, ..)| *other == name));
        }
        type Function = extern "C" fn(u64, u64, u64, u64, u64) -> i64;
        for (name, _, at) in found {
            // SAFETY: a function of the copy.
            let function: Function = unsafe { std::mem::transmute(place.add(at)) };
            let mut room = [0u64; 4];
            let to = room.as_mut_ptr() as u64;
            let now = || {
                std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_secs()
            };
            let before = now();
            match name {
                b"clock_gettime" => assert_eq!(function(0, to, 0, 0, 0), 0),
                b"gettimeofday" => assert_eq!(function(to, 0, 0, 0, 0), 0),
                b"time" => room[0] = function(0, 0, 0, 0, 0) as u64,
                b"clock_getres" => {
                    assert_eq!(function(1, to, 0, 0, 0), 0);
                    assert_eq!(room[0], 0, "less than a second");
                    assert!(room[1] > 0);
                    continue;
                }
                b"getcpu" => {
                    assert_eq!(function(to, 0, 0, 0, 0), 0);
                    assert!(room[0] < 1 << 16);
                    continue;
                }
                _ => {
                    assert_eq!(function(to, 32, 0, 0, 0), 32);
                    assert!(room.iter().all(|word| *word != 0));
                    continue;
                }
            }
            assert!((before..=now()).contains(&room[0]), "{name:?}");
        }
    }

    #[test]
    fn what_is_no_vdso_is_refused() {
        let code = own();
        for length in [0, 4, 63, 64, 200, 600] {
            assert!(with_system_calls(&code[..length]).is_none());
        }
        let mut other = code.clone();
        other[4] = 1;
        assert!(with_system_calls(&other).is_none());
        for at in 0..0x600.min(code.len()) {
            let mut other = code.clone();
            other[at] ^= 0xff;
            // The test only has to end without reading outside.
            let _ = with_system_calls(&other);
        }
    }
}

//! Shared memory that only this process has: anonymous memory, memfds, and nameless files of a memory file system, such
//! as removed named semaphores.
//!
//! The program may share it with child processes later, so it stays as it is. A copy of the process would go on sharing
//! it with the original. So the copy gets *twins*: private memory with the same content. The capturing thread makes
//! them just before it copies the process; the copy moves them to the same places. A copy that becomes the rank makes
//! shared memory of them again.

use crate::captured::Captured;
use crate::descriptors;
use crate::pages::{self, PAGE};
use crate::proc::{Lines, MapsLine};
use crate::sharing::{self, Inode, Opened};
use crate::sys::{self, Errno, call};
use crate::talk::Text;

/// The most such areas of a rank.
const MOST: usize = 64;
/// Why there is no image with memory that others have.
pub const IS_OF_OTHERS: &str = "it shares writable memory with a file, a device or other processes";

#[derive(Clone, Copy)]
struct SharedArea {
    start: usize,
    end: usize,
    protection: i32,
    /// Areas of the same file are the same memory.
    file: Inode,
    offset: u64,
    /// The address of its twin, in the process that is being copied.
    twin: usize,
}

struct State {
    areas: [SharedArea; MOST],
    count: usize,
}

impl State {
    fn areas(&self) -> &[SharedArea] {
        &self.areas[..self.count]
    }
}

static STATE: Captured<State> = Captured::new(State {
    areas: [SharedArea {
        start: 0,
        end: 0,
        protection: 0,
        file: (0, 0),
        offset: 0,
        twin: 0,
    }; MOST],
    count: 0,
});

fn state() -> &'static mut State {
    // SAFETY: see [`Captured`].
    unsafe { STATE.get() }
}

/// Forgets all areas: the next survey lists them.
pub fn clear() {
    state().count = 0;
}

/// Whether there are any.
pub fn is_any() -> bool {
    state().count > 0
}

/// Whether this mapping is one of them.
pub fn has(mapping: &MapsLine) -> bool {
    state().areas().iter().any(|area| area.start == mapping.start)
}

/// Notes a shared mapping. The error says why there can be no image with it. (Whether other processes have it, the copy
/// asks with [`is_of_others`].)
pub fn add(mapping: &MapsLine) -> Result<(), &'static str> {
    let state = state();
    if state.count == MOST {
        return Err("it has more than 64 shared memory areas");
    }
    state.areas[state.count] = SharedArea {
        start: mapping.start,
        end: mapping.end,
        protection: mapping.protection,
        file: (mapping.device, mapping.inode),
        offset: mapping.offset,
        twin: 0,
    };
    state.count += 1;
    Ok(())
}

/// Whether a shared mapping is of memory only, and no process can reach it through a name. `of_kernel`: the device of
/// memory that never has names.
pub fn is_nameless(mapping: &MapsLine, of_kernel: u64) -> bool {
    let Some(path) = mapping.path.strip_suffix(" (deleted)") else {
        return false;
    };
    if mapping.device == of_kernel {
        return path == "/dev/zero" || path.starts_with("/memfd:");
    }
    let Some((directory, _)) = path.rsplit_once('/') else {
        return false;
    };
    let mut name = [0u8; 4096];
    let Some(place) = name.get_mut(..directory.len() + 1) else {
        return false;
    };
    place[..directory.len()].copy_from_slice(directory.as_bytes());
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let Ok(directory) = sys::open(place, flags) else {
        return false;
    };
    const MEMORY: i64 = 0x0102_1994;
    let is_of_memory =
        sys::file_system(directory) == MEMORY && sys::stat(directory).is_ok_and(|stat| stat.st_dev == mapping.device);
    // A file may have lost one of two names: sem_open gives each file its second name first.
    let mut has_name = false;
    let listed = sys::entries_in(directory, |inode, _| has_name |= inode == mapping.inode);
    sys::close(directory);
    is_of_memory && listed.is_ok() && !has_name
}

/// Why an area of a file that the program has open could not be shared memory of that file again, if so. The
/// descriptors are noted.
pub fn refuses() -> Option<&'static str> {
    const F_GET_SEALS: i32 = 1034;
    const NO_MORE_WRITING: usize = 0x8 | 0x10;
    let is_fit = |area: &SharedArea| {
        let mut noted = descriptors::noted().iter();
        match descriptor(area) {
            None => !noted.any(|entry| entry.inode == area.file),
            Some(fd) => {
                let seals = sys::fcntl(fd, F_GET_SEALS, 0).unwrap_or(0);
                seals & NO_MORE_WRITING == 0 && sys::stat(fd).is_ok_and(|stat| stat.st_nlink == 0)
            }
        }
    };
    (!state().areas().iter().all(is_fit)).then_some(IS_OF_OTHERS)
}

/// The descriptor by which the program has an area's file open, to read it and to write to it.
fn descriptor(area: &SharedArea) -> Option<i32> {
    let mut entries = descriptors::noted().iter();
    let is_of = |entry: &&descriptors::Descriptor| {
        entry.inode == area.file && entry.status & libc::O_ACCMODE == libc::O_RDWR && entry.status & libc::O_PATH == 0
    };
    entries.find(is_of).map(|entry| entry.fd)
}

/// Twins of all areas, until this is dropped.
pub struct Twins(());

impl Twins {
    /// All threads stand still, and the process is about to be copied.
    pub fn new() -> Result<Twins, &'static str> {
        let twins = Twins(());
        let state = state();
        state.areas.iter_mut().for_each(|area| area.twin = 0);
        for area in &mut state.areas[..state.count] {
            // SAFETY: a mapping of the program, which does not run.
            area.twin = unsafe { twin(area) }?;
        }
        Ok(twins)
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        for area in state().areas().iter().filter(|area| area.twin != 0) {
            // SAFETY: memory of this module only.
            let _ = unsafe { call!(libc::SYS_munmap, area.twin, area.end - area.start) };
        }
    }
}

unsafe fn twin(area: &SharedArea) -> Result<usize, &'static str> {
    let (start, bytes) = (area.start, area.end - area.start);
    // SAFETY: as the caller says; pages that were never touched read as zero and stay so.
    unsafe {
        readable(area).map_err(|_| "its shared memory cannot be read")?;
        // A plain read beyond the end of the file would end the process.
        let read = pages::read_in((start, area.end));
        let twin = match read {
            Ok(()) | Err(libc::EINVAL) => new_memory(bytes).inspect(|twin| copy(start, *twin, bytes)),
            Err(errno) => Err(errno),
        };
        let _ = call!(libc::SYS_mprotect, start, bytes, area.protection);
        twin.map_err(|errno| match errno {
            libc::EFAULT => "it has mapped more than there is of a file in memory",
            _ => "there is not enough memory to copy its shared memory",
        })
    }
}

unsafe fn readable(area: &SharedArea) -> Result<(), Errno> {
    if area.protection & libc::PROT_READ != 0 {
        return Ok(());
    }
    let protection = area.protection | libc::PROT_READ;
    // SAFETY: memory of the program, which does not run, and gets its rights back.
    unsafe { call!(libc::SYS_mprotect, area.start, area.end - area.start, protection) }.map(|_| ())
}

/// Private memory that is unused.
pub fn new_memory(bytes: usize) -> Result<usize, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: at a place of the kernel's choice.
    unsafe { call!(libc::SYS_mmap, 0, bytes, protection, flags, -1i64, 0) }
}

/// Copies pages that differ.
///
/// # Safety
/// Both have `bytes` bytes. `from` can be read, `to` written to, and nobody else uses `to`.
pub unsafe fn copy(from: usize, to: usize, bytes: usize) {
    let (from, to) = (from as *const u64, to as *mut u64);
    for page in (0..bytes / 8).step_by(PAGE / 8) {
        // SAFETY: as required.
        unsafe {
            let words = std::slice::from_raw_parts(from.add(page), PAGE / 8);
            let there = std::slice::from_raw_parts(to.add(page), PAGE / 8);
            if words != there {
                std::ptr::copy_nonoverlapping(words.as_ptr(), to.add(page), PAGE / 8);
            }
        }
    }
}

/// Puts memory in the place of other memory of the same length.
///
/// # Safety
/// It has the same content, and nobody runs.
pub unsafe fn move_to(from: usize, (start, end): (usize, usize), protection: i32) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let bytes = end - start;
    // SAFETY: as required.
    unsafe {
        call!(libc::SYS_mprotect, from, bytes, protection)?;
        call!(libc::SYS_mremap, from, bytes, bytes, flags, start).map(|_| ())
    }
}

/// In the copy: moves the twins to the places of their originals.
pub fn take_places() -> Result<(), Errno> {
    // SAFETY: nobody runs, and each twin is as long as its area.
    let mut areas = state().areas().iter();
    areas.try_for_each(|area| unsafe { move_to(area.twin, (area.start, area.end), area.protection) })
}

/// In the copy, while the original, process `original`, goes on: whether another process has any of the areas.
pub fn is_of_others(original: i32) -> bool {
    let areas = state().areas();
    let is_one = |file: Inode| areas.iter().any(|area| area.file == file);
    let own = sys::getpid();
    let mut found = false;
    if areas.is_empty() {
        return false;
    }
    sharing::for_each_process(|process| {
        if found || process == own || process == original {
            return;
        }
        let Ok(file) = sys::open(
            Text::of(format_args!("/proc/{process}/maps\0")).as_str().as_bytes(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        ) else {
            return;
        };
        let mut lines = Lines::new(file);
        while let Ok(Some(line)) = lines.next_line() {
            let is_ours = |mapping: MapsLine| mapping.inode != 0 && is_one((mapping.device, mapping.inode));
            found |= MapsLine::parse(line).is_some_and(is_ours);
        }
        sys::close(file);
    });
    if !found {
        sharing::for_each_open(Opened::Nameless, |number, other| {
            let is_number = areas.iter().any(|area| area.file.1 == number);
            found = found || is_number && other().is_some_and(is_one);
        });
    }
    found
}

/// In the process that becomes the rank, before its threads go on. Makes the areas shared memory again: of the files
/// that the program has open, or of new ones.
pub fn share_again() -> Result<(), Errno> {
    let areas = state().areas();
    for (index, area) in areas.iter().enumerate() {
        if areas[..index].iter().any(|before| before.file == area.file) {
            continue;
        }
        let parts = || areas.iter().filter(|other| other.file == area.file);
        let open = descriptor(area);
        let file = match open {
            Some(file) => file,
            None => new_file(parts().map(|part| part.offset + (part.end - part.start) as u64).max())?,
        };
        // SAFETY: nobody runs, and the places hold what the file is to hold.
        let shared = parts().try_for_each(|part| unsafe { share(part, file) });
        if open.is_none() {
            sys::close(file);
        }
        shared?;
    }
    Ok(())
}

fn new_file(bytes: Option<u64>) -> Result<i32, Errno> {
    // SAFETY: makes a file, and gives it a length.
    unsafe {
        let name = c"resurgo-shared";
        let file = call!(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC)? as i32;
        let sized = call!(libc::SYS_ftruncate, file, bytes.unwrap_or(0));
        sized.map(|_| file).inspect_err(|_| sys::close(file))
    }
}

unsafe fn share(area: &SharedArea, file: i32) -> Result<(), Errno> {
    let bytes = area.end - area.start;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as the caller says.
    unsafe {
        let new = call!(
            libc::SYS_mmap,
            0,
            bytes,
            protection,
            libc::MAP_SHARED,
            file,
            area.offset
        )?;
        readable(area)?;
        copy(area.start, new, bytes);
        move_to(new, (area.start, area.end), area.protection)
    }
}

/// The device of memory that never has names; 0: it cannot be found.
pub fn device_of_kernel() -> u64 {
    new_file(None).map_or(0, |file| {
        let device = sys::stat(file).map_or(0, |stat| stat.st_dev);
        sys::close(file);
        device
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_child(act: impl FnOnce() -> bool) -> bool {
        let mut status = 0;
        // SAFETY: the child makes system calls only, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(!act()));
            }
            libc::waitpid(child, &raw mut status, 0);
        }
        status == 0
    }

    #[test]
    fn a_copy_has_its_own_memory_and_shares_it_with_its_children() {
        let _alone = crate::tests::alone();
        const BYTES: usize = 1 << 20;
        // SAFETY: a mapping of this test's own.
        let bytes = unsafe {
            let (protection, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            );
            let place = libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0);
            std::slice::from_raw_parts_mut(place.cast::<u8>(), BYTES)
        };
        (bytes[5000], bytes[BYTES - 1]) = (7, 9);
        crate::mappings::survey().unwrap();
        assert!(is_any());
        let twins = Twins::new().unwrap();
        assert!(in_child(|| {
            let taken = take_places().is_ok() && bytes[5000] == 7 && bytes[BYTES - 1] == 9 && bytes[0] == 0;
            bytes[5000] = 1;
            let shared = share_again().is_ok() && bytes[5000] == 1;
            taken
                && shared
                && in_child(|| {
                    bytes[6000] = 2;
                    true
                })
                && bytes[6000] == 2
        }));
        drop(twins);
        assert_eq!((bytes[5000], bytes[6000]), (7, 0));
        assert!(in_child(|| {
            bytes[5000] = 3;
            true
        }));
        assert_eq!(bytes[5000], 3, "the original shares it as before");
        // SAFETY: see above.
        unsafe { libc::munmap(bytes.as_mut_ptr().cast(), BYTES) };
    }
}

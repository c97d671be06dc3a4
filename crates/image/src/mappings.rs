//! Shared mappings. A copied process would go on sharing them with the original.

use resurgo_wire::node_memory::{NODE_MEMORY_FD, SPILL_FD};

use crate::pages::{self, AT_ONCE, IS_GUARD, IS_PRESENT, IS_SWAPPED, Scan};
use crate::proc::{Lines, MapsLine};
use crate::sys::{self, Errno, call};
use crate::{shared, zone};

/// Where MPI libraries keep memory that they share with ranks of the same node. Every rank is told that it is alone on
/// its node, so no other process has it.
const OF_ONE_RANK: [&str; 3] = ["/dev/shm/mpich_", "/dev/shm/Intel_MPI_", "/dev/shm/impi_"];
/// What /proc says of the memory files that `file/restore/open.rs` makes.
const LEFTOVER: &[u8] = b"/memfd:resurgo-leftover";

/// Lists the shared memory that only this process has ([`shared`]), and turns the MPI library's share of it into
/// private memory with the same content. The error says what prevents an image. Threads must stand still.
pub fn survey() -> Result<(), &'static str> {
    const UNREADABLE: &str = "its memory map cannot be read";
    let file = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC).map_err(|_| UNREADABLE)?;
    let of_node = [NODE_MEMORY_FD, SPILL_FD].map(inode_of);
    let mut found = [(0usize, 0usize, 0i32); 64];
    let mut count = 0;
    let mut of_kernel = None;
    let mut lines = Lines::new(file);
    let mut result = Ok(());
    shared::clear();
    while let Some(line) = lines.next_line().map_err(|_| UNREADABLE)? {
        let Some(mapping) = MapsLine::parse(line) else { continue };
        if !mapping.shared || of_node.contains(&Some(mapping.inode)) {
            continue;
        }
        if is_of_one_rank(mapping.path) {
            if count == found.len() {
                result = Err("it has more than 64 shared memory areas");
                break;
            }
            found[count] = (mapping.start, mapping.end, mapping.protection);
            count += 1;
        } else if shared::is_nameless(&mapping, *of_kernel.get_or_insert_with(shared::device_of_kernel)) {
            result = match has_guards(mapping.start, mapping.end) {
                true => Err("it has guard pages in shared memory (MADV_GUARD_INSTALL)"),
                false => shared::add(&mapping),
            };
        } else if mapping.protection & libc::PROT_WRITE != 0 {
            result = Err(shared::IS_OF_OTHERS);
        }
        if result.is_err() {
            break;
        }
    }
    sys::close(file);
    result?;
    for &(start, end, protection) in &found[..count] {
        // SAFETY: the mapping was just listed, and nobody runs.
        unsafe { privatise(start, end, protection) }
            .map_err(|_| "there is not enough memory to copy its shared memory")?;
    }
    Ok(())
}

/// Whether there are guards; in shared memory there are none before Linux 6.15.
fn has_guards(start: usize, end: usize) -> bool {
    let Ok(pages) = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC) else {
        return false;
    };
    let has = has_pages(pages, (start, end), IS_GUARD);
    sys::close(pages);
    has
}

/// Whether there are pages of any of these categories.
fn has_pages(pages: i32, range: (usize, usize), categories: u64) -> bool {
    let mut scan = Scan::new(range);
    scan.most_pages = 1;
    scan.any_of = categories;
    scan.returned = categories;
    let mut found = [pages::Range::NONE; AT_ONCE];
    let found = scan.next(pages, &mut found);
    found.is_ok_and(|found| found.is_some_and(|found| !found.is_empty()))
}

fn inode_of(fd: i32) -> Option<u64> {
    sys::stat(fd).ok().map(|stat| stat.st_ino)
}

/// A number that stands for all mappings, their places and rights. A copied process has the same, unless the program
/// asked the kernel not to copy some memory (MADV_DONTFORK).
pub fn checksum() -> Option<u64> {
    let file = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let mut lines = Lines::new(file);
    let mut sum = Some(0u64);
    loop {
        match lines.next_line() {
            Ok(Some(line)) => {
                let Some(mapping) = MapsLine::parse(line) else { continue };
                // Not copied, and the copy does not need it.
                if (zone::ZONE..zone::ZONE_END).contains(&mapping.start) {
                    continue;
                }
                for number in [mapping.start, mapping.end, mapping.protection as usize] {
                    sum = sum.map(|sum| (sum ^ number as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(17));
                }
            }
            Ok(None) => break,
            Err(_) => {
                sum = None;
                break;
            }
        }
    }
    sys::close(file);
    sum
}

/// Parts of mappings that have other rights for a moment: start, bytes, and their former rights.
pub struct Joined {
    parts: [(usize, usize, i32); 64],
    count: usize,
}

/// Gives parts of one mapping the same rights, so that it is one mapping when the process is copied. The kernel gives
/// each mapping of a copy a past of its own (anon_vma), and never joins two of them again, even with equal rights. No
/// thread runs.
pub fn join() -> Joined {
    let mut joined = Joined {
        parts: [(0, 0, 0); 64],
        count: 0,
    };
    let maps = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC);
    let pages = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC);
    if let (Ok(maps), Ok(pages)) = (maps, pages) {
        let mut lines = Lines::new(maps);
        let mut last = (0, 0, 0);
        while let Ok(Some(line)) = lines.next_line() {
            let anonymous = |mapping: &MapsLine| mapping.inode == 0 && !mapping.shared && mapping.path.is_empty();
            let Some(mapping) = MapsLine::parse(line).filter(anonymous) else {
                continue;
            };
            let this = (mapping.start, mapping.end - mapping.start, mapping.protection);
            if last.0 + last.1 == this.0 && last.2 != this.2 {
                joined.open_up(last, pages);
                joined.open_up(this, pages);
            }
            last = this;
        }
    }
    for file in [maps, pages].into_iter().flatten() {
        sys::close(file);
    }
    joined
}

/// Gives the parts their rights again, here or in a copy of the process.
pub fn part(joined: &Joined) {
    for &(start, bytes, protection) in &joined.parts[..joined.count] {
        // SAFETY: what the program had asked for.
        let _ = unsafe { call!(libc::SYS_mprotect, start, bytes, protection) };
    }
}

impl Joined {
    /// Leaves out parts that were never used: they have no past, and may be larger than the machine's memory.
    fn open_up(&mut self, part: (usize, usize, i32), pages: i32) {
        const ALL: i32 = libc::PROT_READ | libc::PROT_WRITE;
        let (start, bytes, protection) = part;
        let known = self.parts[..self.count].last() == Some(&part);
        if known || self.count == self.parts.len() || protection | ALL != ALL || protection == ALL {
            return;
        }
        let is_used = has_pages(pages, (start, start + bytes), IS_PRESENT | IS_SWAPPED);
        // SAFETY: memory of the program, which does not run.
        if is_used && unsafe { call!(libc::SYS_mprotect, start, bytes, ALL) }.is_ok() {
            self.parts[self.count] = part;
            self.count += 1;
        }
    }
}

unsafe fn privatise(start: usize, end: usize, protection: i32) -> Result<(), Errno> {
    let bytes = end - start;
    // SAFETY: new memory, filled and then moved over the old mapping, which is as long. Pages that were never touched
    // read as zero and stay so.
    unsafe {
        let new = shared::new_memory(bytes)?;
        shared::copy(start, new, bytes);
        shared::move_to(new, (start, end), protection)
    }
}

/// True for files with memory that only this rank uses.
fn is_of_one_rank(path: &str) -> bool {
    OF_ONE_RANK.iter().any(|prefix| path.starts_with(prefix))
}

/// True for such an open file, or its substitute in a process that was rebuilt.
pub(crate) fn is_of_library(path: &[u8]) -> bool {
    path.starts_with(LEFTOVER) || std::str::from_utf8(path).is_ok_and(is_of_one_rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_mpi_library_is_known_by_its_name() {
        assert!(is_of_one_rank("/dev/shm/mpich_shm_744293fe_0"));
        assert!(!is_of_one_rank("/dev/shm/other"));
        assert!(is_of_library(b"/memfd:resurgo-leftover (deleted)"));
    }
}

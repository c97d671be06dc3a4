//! Shared mappings, which a copied process would go on sharing with the original.

use resurgo_wire::node_memory::{NODE_MEMORY_FD, SPILL_FD};

use crate::descriptors;
use crate::file::pages::{self, AT_ONCE, IS_GUARD, IS_PRESENT, IS_SWAPPED, Scan};
use crate::file::work;
use crate::shared;
use crate::sys::{self, Errno, call};

/// Where MPI libraries keep memory that they share with ranks of the same node. Every rank is told that it is alone on
/// its node, so nobody else has it.
const OF_ONE_RANK: [&str; 3] = ["/dev/shm/mpich_", "/dev/shm/Intel_MPI_", "/dev/shm/impi_"];
/// What /proc says of the memory files that `file/restore/open.rs` makes.
const LEFTOVER: &[u8] = b"/memfd:resurgo-leftover";

/// Lists the shared memory that only this process has ([`shared`]), and turns what the MPI library has of it into private memory with the
/// same content. The error says what stands in the way of an image. Threads must stand still.
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
        let Some(mapping) = Mapping::parse(line) else { continue };
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

/// There are none in shared memory before Linux 6.15.
fn has_guards(start: usize, end: usize) -> bool {
    let Ok(pages) = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC) else {
        return false;
    };
    let has = has_pages(pages, (start, end), IS_GUARD);
    sys::close(pages);
    has
}

/// Whether there are such pages of any of these categories.
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
    descriptors::stat(fd).ok().map(|stat| stat.st_ino)
}

/// A number that stands for all mappings, their places and rights. A copied process has the same, unless the program has
/// asked that some memory is not copied (MADV_DONTFORK).
pub fn checksum() -> Option<u64> {
    let file = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let mut lines = Lines::new(file);
    let mut sum = Some(0u64);
    loop {
        match lines.next_line() {
            Ok(Some(line)) => {
                let Some(mapping) = Mapping::parse(line) else { continue };
                // Not copied, and nobody's loss.
                if (work::ZONE..work::ZONE_END).contains(&mapping.start) {
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

/// Rights of parts of mappings that have been given others for a moment: start, bytes, and what they were.
pub struct Joined {
    parts: [(usize, usize, i32); 64],
    count: usize,
}

/// Gives parts of one mapping that have different rights the same, so that it is one when the process is copied: the kernel gives each
/// mapping of a copy a past of its own (anon_vma), and takes two of them for one never again, whatever rights they have. Nobody runs.
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
            let anonymous = |mapping: &Mapping| mapping.inode == 0 && !mapping.shared && mapping.path.is_empty();
            let Some(mapping) = Mapping::parse(line).filter(anonymous) else {
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

/// Gives them their rights again, here or in a copy of the process.
pub fn part(joined: &Joined) {
    for &(start, bytes, protection) in &joined.parts[..joined.count] {
        // SAFETY: what the program had asked for.
        let _ = unsafe { call!(libc::SYS_mprotect, start, bytes, protection) };
    }
}

impl Joined {
    /// Those that have never been used have no past, and their size may be more than the machine has.
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
    // SAFETY: new memory, filled and then moved over the old mapping, which is as long; pages that were never touched read as zero and
    // stay so.
    unsafe {
        let new = shared::new_memory(bytes)?;
        shared::copy(start, new, bytes);
        shared::move_to(new, (start, end), protection)
    }
}

/// True for files that hold memory which only this rank uses.
fn is_of_one_rank(path: &str) -> bool {
    OF_ONE_RANK.iter().any(|prefix| path.starts_with(prefix))
}

/// True for such an open file, or what stands for it in a process that was rebuilt.
pub(crate) fn is_of_library(path: &[u8]) -> bool {
    path.starts_with(LEFTOVER) || std::str::from_utf8(path).is_ok_and(is_of_one_rank)
}

/// A line of /proc/self/maps.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    pub start: usize,
    pub end: usize,
    pub protection: i32,
    pub shared: bool,
    pub offset: u64,
    /// As in the struct of stat.
    pub device: u64,
    pub inode: u64,
    pub path: &'a str,
}

impl<'a> Mapping<'a> {
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        let device = libc::makedev(number(major)?, number(minor)?);
        let inode = words.next()?.parse().ok()?;
        let path = words.next().unwrap_or("").trim_start();
        let mut protection = 0;
        for (letter, bit) in [
            (b'r', libc::PROT_READ),
            (b'w', libc::PROT_WRITE),
            (b'x', libc::PROT_EXEC),
        ] {
            if rights.contains(&letter) {
                protection |= bit;
            }
        }
        Some(Mapping {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            protection,
            shared: rights.get(3) == Some(&b's'),
            offset: u64::from_str_radix(offset, 16).ok()?,
            device,
            inode,
            path,
        })
    }
}

/// Reads a file line by line, without allocating. Longer lines are cut.
pub struct Lines {
    file: i32,
    buffer: [u8; 8192],
    from: usize,
    to: usize,
}

impl Lines {
    pub fn new(file: i32) -> Lines {
        Lines {
            file,
            buffer: [0; 8192],
            from: 0,
            to: 0,
        }
    }

    pub fn next_line(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            let end = self.buffer[self.from..self.to].iter().position(|byte| *byte == b'\n');
            if let Some(length) = end {
                let line = self.from..self.from + length;
                self.from += length + 1;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.copy_within(self.from..self.to, 0);
            self.to -= self.from;
            self.from = 0;
            if self.to == self.buffer.len() {
                return Err(libc::E2BIG);
            }
            match sys::read(self.file, &mut self.buffer[self.to..])? {
                0 => return Ok(None),
                length => self.to += length,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_map_are_understood() {
        let line =
            b"7ffff5410000-7ffff5514000 rw-s 00000000 00:1a 39367                      /dev/shm/mpich_shm_744293fe_0";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7ffff5410000, 0x7ffff5514000));
        assert_eq!(mapping.protection, libc::PROT_READ | libc::PROT_WRITE);
        assert!(mapping.shared && is_of_one_rank(mapping.path) && mapping.device == libc::makedev(0, 0x1a));
        let heap = Mapping::parse(b"55555555a000-5555555be000 rw-p 00000000 00:00 0      [heap]").unwrap();
        assert!(!heap.shared && heap.path == "[heap]");
        let nameless = Mapping::parse(b"80000000000-90000000000 rw-p 00000000 00:00 0").unwrap();
        assert!(nameless.path.is_empty());
        assert_eq!(mapping.inode, 39367);
    }
}

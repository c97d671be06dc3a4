//! What the kernel says in /proc, read without allocating.

use crate::sys::{self, Errno, call};

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

/// Reads as much of a file in /proc as fits.
pub fn read_file(path: &[u8], to: &mut [u8]) -> Result<usize, Errno> {
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let mut length = 0;
    let result = loop {
        match sys::read(file, &mut to[length..]) {
            Ok(0) => break Ok(length),
            Ok(more) => length += more,
            Err(errno) => break Err(errno),
        }
    };
    sys::close(file);
    result
}

/// A line of /proc/self/maps.
#[derive(Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    pub start: usize,
    pub end: usize,
    pub protection: i32,
    pub shared: bool,
    pub offset: u64,
    /// As in `struct stat`.
    pub device: u64,
    pub inode: u64,
    pub path: &'a str,
}

impl<'a> MapsLine<'a> {
    pub fn parse(line: &'a [u8]) -> Option<MapsLine<'a>> {
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
        Some(MapsLine {
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

pub const UNREADABLE: &str = "an open descriptor cannot be looked at";

/// The text of link /proc/self/fd/`fd`, cut to what fits.
pub fn link(fd: i32, to: &mut [u8; 64]) -> &str {
    let mut name = [0u8; 64];
    let path = sys::path(&mut name, "/proc/self/fd/", fd, "");
    // SAFETY: the path ends with a zero, and the buffer is as long as said.
    let length =
        unsafe { call!(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), to.as_mut_ptr(), 64) }.unwrap_or(0);
    std::str::from_utf8(&to[..length]).unwrap_or("")
}

/// Calls `each` with every line of the kernel about `fd`, cut at the first colon.
pub fn for_each_fact(fd: i32, each: impl FnMut(&str, &str) -> Option<()>) -> Result<(), &'static str> {
    let mut name = [0u8; 64];
    for_each_fact_in(sys::path(&mut name, "/proc/self/fdinfo/", fd, ""), each)
}

/// The same for such a file, whose path ends with a zero.
pub fn for_each_fact_in(path: &[u8], mut each: impl FnMut(&str, &str) -> Option<()>) -> Result<(), &'static str> {
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC).map_err(|_| UNREADABLE)?;
    let mut lines = Lines::new(file);
    let result = loop {
        match lines.next_line() {
            Ok(None) => break Ok(()),
            Ok(Some(line)) => {
                let line = std::str::from_utf8(line).unwrap_or("");
                let (label, value) = line.split_once(':').unwrap_or((line, ""));
                if each(label, value.trim()).is_none() {
                    break Err(UNREADABLE);
                }
            }
            Err(_) => break Err(UNREADABLE),
        }
    };
    sys::close(file);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_map_are_understood() {
        let line =
            b"7ffff5410000-7ffff5514000 rw-s 00000000 00:1a 39367                      /dev/shm/mpich_shm_744293fe_0";
        let mapping = MapsLine::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7ffff5410000, 0x7ffff5514000));
        assert_eq!(mapping.protection, libc::PROT_READ | libc::PROT_WRITE);
        assert!(mapping.shared && mapping.device == libc::makedev(0, 0x1a));
        let heap = MapsLine::parse(b"55555555a000-5555555be000 rw-p 00000000 00:00 0      [heap]").unwrap();
        assert!(!heap.shared && heap.path == "[heap]");
        let nameless = MapsLine::parse(b"80000000000-90000000000 rw-p 00000000 00:00 0").unwrap();
        assert!(nameless.path.is_empty());
        assert_eq!(mapping.inode, 39367);
    }
}

//! System calls without libc: no errno, no thread-local storage, no cancellation points.
//!
//! The code of this crate runs in signal handlers, and in a thread that glibc does not know. It also runs in a process
//! whose other threads vanished while they held locks.

use std::arch::asm;
use std::sync::atomic::AtomicU32;

use resurgo_wire::node_memory::LARGE_PAGE;

/// A system call that failed, as the positive error number.
pub type Errno = i32;

/// # Safety
/// As the system call itself.
#[inline]
pub unsafe fn syscall(number: i64, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller answers for what the call does; the kernel clobbers only rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) {
        Err(-result as Errno)
    } else {
        Ok(result as usize)
    }
}

/// A system call with its arguments; missing ones are 0.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        let given = [$($argument as usize),*];
        let mut all = [0usize; 6];
        all[..given.len()].copy_from_slice(&given);
        $crate::sys::syscall($number, all)
    }};
}
pub(crate) use call;

pub fn gettid() -> i32 {
    // SAFETY: reads a number.
    unsafe { call!(libc::SYS_gettid) }.unwrap_or(0) as i32
}

pub fn getpid() -> i32 {
    // SAFETY: reads a number.
    unsafe { call!(libc::SYS_getpid) }.unwrap_or(0) as i32
}

pub fn getppid() -> i32 {
    // SAFETY: reads a number.
    unsafe { call!(libc::SYS_getppid) }.unwrap_or(0) as i32
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The processors that this thread may run on, as a mask. Returns its bytes; 0: there are more than fit.
pub fn affinity(mask: &mut [u64; 16]) -> usize {
    // SAFETY: writes at most the mask.
    unsafe { call!(libc::SYS_sched_getaffinity, 0, size_of_val(mask), mask.as_mut_ptr()) }.unwrap_or(0)
}

/// If a large page took longer than this, it was not at hand: a virtual machine then gets it from its host, page by
/// page. Small pages, some of them freed a moment ago, take a fourth of the time.
const AT_HAND_NS: u64 = 1_500_000;

/// Makes large pages of writable shared memory from `start` on. `start` and `bytes` are multiples of [`LARGE_PAGE`];
/// the content stays. The kernel does that without special rights (MADV_COLLAPSE, Linux 6.1), but not where there is no
/// page at all: so this makes one small page first. An error: the kernel has none, the file system is full, or nothing
/// is mapped there. False: they exist now, but small pages would have been quicker.
pub fn make_large_pages(start: usize, bytes: usize) -> Result<bool, Errno> {
    let began = spent_ns();
    // SAFETY: changes nothing that a program could read, wherever that is.
    let advise = |from: usize, bytes: usize, advice: i32| unsafe { call!(libc::SYS_madvise, from, bytes, advice) };
    for page in (start..start + bytes).step_by(LARGE_PAGE) {
        advise(page, 1, libc::MADV_POPULATE_WRITE)?;
    }
    advise(start, bytes, libc::MADV_COLLAPSE)?;
    Ok(spent_ns() - began < AT_HAND_NS * (bytes / LARGE_PAGE) as u64)
}

/// A pipe: its reading end and its writing end.
pub fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [-1i32; 2];
    // SAFETY: writes two numbers.
    unsafe { call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }.map(|_| ends)
}

/// Whether this thread may run on more than one processor.
pub fn has_several_processors() -> bool {
    let mut mask = [0; 16];
    affinity(&mut mask) == 0 || mask.iter().map(|word| word.count_ones()).sum::<u32>() > 1
}

/// Processor time of the calling thread, in nanoseconds.
pub fn spent_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct.
    let _ = unsafe { call!(libc::SYS_clock_gettime, clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits until `word` is not `expected`, another thread wakes this one, or the time is over.
pub fn futex_wait(word: &AtomicU32, expected: u32, nanoseconds: Option<u64>) {
    let timeout = nanoseconds.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |time| time as *const _);
    // SAFETY: reads the word and the time. Callers look at the word again after any answer.
    let _ = unsafe {
        call!(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout
        )
    };
}

pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: wakes the threads that wait there.
    let _ = unsafe {
        call!(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX
        )
    };
}

/// Blocks all signals that can be blocked.
pub fn block_signals() {
    let all = u64::MAX;
    // SAFETY: reads the mask.
    let _ = unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8) };
}

pub fn close(fd: i32) {
    // SAFETY: callers own the descriptor.
    let _ = unsafe { call!(libc::SYS_close, fd) };
}

/// Opens `path` (with its terminating zero).
pub fn open(path: &[u8], flags: i32) -> Result<i32, Errno> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with a zero");
    // SAFETY: the path is terminated.
    unsafe { call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.map(|fd| fd as i32)
}

/// Looks at a file by its path, which has less than 4096 bytes.
pub fn stat_path(path: &str) -> Result<libc::stat, Errno> {
    let mut terminated = [0u8; 4096];
    terminated.get_mut(..path.len() + 1).ok_or(libc::ENAMETOOLONG)?[..path.len()].copy_from_slice(path.as_bytes());
    // SAFETY: an all-zero stat is valid, and the kernel fills it; the path is terminated.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        call!(
            libc::SYS_newfstatat,
            libc::AT_FDCWD,
            terminated.as_ptr(),
            &raw mut stat,
            0
        )?;
        Ok(stat)
    }
}

/// The target of a symbolic link, in `to`.
pub fn readlink<'a>(path: &[u8], to: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with a zero");
    // SAFETY: writes to the slice.
    let length = unsafe { call!(libc::SYS_readlink, path.as_ptr(), to.as_mut_ptr(), to.len()) }?;
    Ok(&to[..length])
}

/// The kernel's number for the file system of an open file; 0: it does not say.
pub fn file_system(fd: i32) -> i64 {
    // SAFETY: an all-zero statfs is valid, and the kernel fills it.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        call!(libc::SYS_fstatfs, fd, &raw mut about).map_or(0, |_| about.f_type)
    }
}

/// Reads what fits, from the descriptor's own offset.
pub fn read(fd: i32, to: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: writes to the slice.
    unsafe { call!(libc::SYS_read, fd, to.as_mut_ptr(), to.len()) }
}

/// Reads what there is from `offset` on, at most what fits.
pub fn read_at(fd: i32, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        let from = offset + done as u64;
        // SAFETY: writes to the slice.
        match unsafe { call!(libc::SYS_pread64, fd, rest.as_mut_ptr(), rest.len(), from) } {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

pub fn fcntl(fd: i32, what: i32, argument: usize) -> Result<usize, Errno> {
    // SAFETY: only used with commands that take numbers.
    unsafe { call!(libc::SYS_fcntl, fd, what, argument) }
}

pub fn lseek(fd: i32, offset: i64, whence: i32) -> Result<i64, Errno> {
    // SAFETY: moves an offset.
    unsafe { call!(libc::SYS_lseek, fd, offset, whence) }.map(|offset| offset as i64)
}

/// Bytes that can be read from a pipe or socket now.
pub fn readable_bytes(fd: i32) -> usize {
    let mut bytes = 0i32;
    // SAFETY: writes the number.
    let _ = unsafe { call!(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut bytes) };
    bytes as usize
}

/// `prefix`, a number in decimal, `suffix`, and a zero, in `buffer`.
pub fn path<'a>(buffer: &'a mut [u8; 64], prefix: &str, number: i32, suffix: &str) -> &'a [u8] {
    let mut length = 0;
    let mut push = |bytes: &[u8]| {
        buffer[length..length + bytes.len()].copy_from_slice(bytes);
        length += bytes.len();
    };
    push(prefix.as_bytes());
    let mut digits = [0u8; 10];
    let mut from = digits.len();
    let mut rest = number as u32;
    loop {
        from -= 1;
        digits[from] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    push(&digits[from..]);
    push(suffix.as_bytes());
    push(b"\0");
    &buffer[..length]
}

/// Calls `each` with every number that names an entry of an open directory such as /proc/self/task.
pub fn numbers_in(directory: i32, mut each: impl FnMut(i32)) -> Result<(), Errno> {
    entries_in(directory, |_, name| {
        let mut number = None;
        for byte in name {
            number = match (byte, number) {
                (b'0'..=b'9', number) => Some(number.unwrap_or(0) * 10 + i32::from(byte - b'0')),
                _ => break,
            };
        }
        if let Some(number) = number {
            each(number);
        }
    })
}

/// Reads some of a directory that was just opened, before another offset is set. Some file systems (ext4) find nothing
/// from the beginning on in one that was first read at its end.
pub fn begin_to_read(directory: i32) -> Result<(), Errno> {
    let mut names = [0u8; 1024];
    // SAFETY: the kernel writes at most so many bytes.
    unsafe { call!(libc::SYS_getdents64, directory, names.as_mut_ptr(), names.len()) }.map(|_| ())
}

/// Calls `each` with the inode and the name of every entry of an open directory.
pub fn entries_in(directory: i32, mut each: impl FnMut(u64, &[u8])) -> Result<(), Errno> {
    #[repr(align(8))]
    struct Buffer([u8; 4096]);
    let mut buffer = Buffer([0; 4096]);
    lseek(directory, 0, libc::SEEK_SET)?;
    loop {
        // SAFETY: writes to the buffer.
        let length = unsafe { call!(libc::SYS_getdents64, directory, buffer.0.as_mut_ptr(), buffer.0.len()) }?;
        if length == 0 {
            return Ok(());
        }
        let mut at = 0;
        while at < length {
            let entry = &buffer.0[at..length];
            // struct linux_dirent64: inode, offset, u16 length at 16, type, name from 19 on.
            let size = u16::from_le_bytes([entry[16], entry[17]]) as usize;
            let mut inode = [0; 8];
            inode.copy_from_slice(&entry[..8]);
            let name = &entry[19..size];
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            each(u64::from_le_bytes(inode), &name[..end]);
            at += size;
        }
    }
}

pub fn stat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: an all-zero stat is valid, and the kernel fills it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        call!(libc::SYS_fstat, fd, &raw mut stat)?;
        Ok(stat)
    }
}

/// A digest of when the file was made; 0: its file system does not say.
pub fn birth(fd: i32) -> u32 {
    // SAFETY: an all-zero statx is valid, and the kernel fills it; the path is empty and terminated.
    unsafe {
        let mut about: libc::statx = std::mem::zeroed();
        let found = call!(
            libc::SYS_statx,
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_BTIME,
            &raw mut about
        );
        let made = about.stx_btime;
        match found.is_ok() && about.stx_mask & libc::STATX_BTIME != 0 {
            true => (made.tv_sec as u32 ^ made.tv_nsec << 2).max(1),
            false => 0,
        }
    }
}

/// A value that tells the calling thread from others.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 Linux the first word of the thread control block is its own address.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { call!(libc::SYS_exit_group, code) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_as_numbers() {
        assert_eq!(open(b"/nowhere at all\0", libc::O_RDONLY), Err(libc::ENOENT));
        assert_eq!(fcntl(9999, libc::F_GETFD, 0), Err(libc::EBADF));
    }

    #[test]
    fn threads_are_listed() {
        let directory = open(b"/proc/self/task\0", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let mut found = Vec::new();
        numbers_in(directory, |number| found.push(number)).unwrap();
        close(directory);
        assert!(found.contains(&gettid()) && found.contains(&getpid()));
        let mut buffer = [0; 64];
        assert_eq!(path(&mut buffer, "/proc/", 1203, "/fd"), b"/proc/1203/fd\0");
        assert_eq!(path(&mut buffer, "", 0, ""), b"0\0");
    }
}

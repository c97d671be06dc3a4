//! Files that the MPI library opens, where all ranks return together. Others may have removed such a file since, and made
//! another one of that name. Then the name leads to a file of later steps, or nowhere, while ranks whose images have the
//! former one open go on with that. So each opening has a note of which file it was, and a life that finds another one,
//! which nobody has made again since the return, opens the former one by way of a process that still has it.

use std::ffi::CString;

use super::*;
use crate::about::{about, inode, is_regular};
use crate::clock::file_time;

/// Directories of the system's own files, and of the MPI library's shared memory.
const OTHERS: [&[u8]; 4] = [b"/dev/", b"/proc/", b"/sys/", b"/etc/"];
/// Set in a note of a file that was empty when it was opened.
const EMPTY_FILE: u32 = 1 << 31;

/// An opening by the MPI library.
pub struct Opening {
    path: Path,
    /// The number of its note, and how it went in a former life.
    noted: Option<(Table, u64, Deed, Option<Outcome>)>,
}

impl Opening {
    /// Call this before each opening, in every life: notes are found by their order.
    ///
    /// # Safety
    /// `path` ends with a zero, and outlives this.
    pub unsafe fn new(node: Option<&Node>, path: Place) -> Opening {
        let path = Path::here(path);
        let is_others = OTHERS.iter().any(|start| path.bytes().starts_with(start));
        let is_noted = !is_others && node.is_some_and(|node| node.undo().is_some());
        let noted = Table::of_this_rank().filter(|_| is_noted).and_then(|table| {
            let deed = makes("opened", path).deed;
            let known = with_life(|life| begin(life, table, deed, || true))?;
            Some((table, known.number, deed, known.outcome))
        });
        Opening { path, noted }
    }

    /// Which file a former life opened. Only to be asked before [`Opening::has_opened`].
    fn former(&self) -> Option<u32> {
        let (table, number, _, outcome) = self.noted?;
        let done = outcome.filter(|outcome| *outcome == Outcome::Done);
        done.and_then(|_| table.get(number)).map(|(deed, _)| deed.path)
    }

    /// Opens the file. `open`: as the library opens it, with flags and mode.
    pub fn open(&self, flags: c_int, mode: mode_t, open: impl Fn(c_int, mode_t) -> c_int) -> c_int {
        let makes = flags & libc::O_CREAT != 0;
        if !returned_together() || flags & libc::O_EXCL != 0 || self.is_of_this_life() {
            return open(flags, mode);
        }
        let former = self.former().filter(|_| IS_WOKEN.load(Ordering::Relaxed));
        match former.filter(|former| !self.leads_to(*former)) {
            Some(former) => {
                let fd = open_held(former, flags);
                if fd >= 0 {
                    return fd;
                }
                let more = libc::O_CREAT | self.cut_to_begin(former, flags);
                touched(open(flags | more, if makes { mode } else { 0o666 }))
            }
            None if makes => touched(open(flags, mode)),
            None => open(flags, mode),
        }
    }

    /// The library has got this.
    pub fn has_opened(&self, fd: c_int) {
        let Some((table, number, deed, outcome)) = self.noted else {
            return;
        };
        // A life that repeats alone may have got something that stands for the former file.
        if outcome.is_some() && !returned_together() {
            return;
        }
        let error = errno();
        match (0..).contains(&fd).then(|| which(fd, c"")).flatten() {
            Some(path) => table.put(number, Deed { path, ..deed }, Outcome::Done),
            None => table.put(number, deed, Outcome::Failed(libc::ENOENT)),
        }
        file_notes::keep(false);
        set_errno(error);
    }

    /// Whether this life, or another rank since the return, has made or changed what is there.
    fn is_of_this_life(&self) -> bool {
        let rested = shared(&RESTED).map_or(0, i128::from);
        self.path
            .times()
            .is_some_and(|(made, changed, put)| made.max(changed).max(put) > rested)
    }

    fn leads_to(&self, former: u32) -> bool {
        // SAFETY: the caller's path, as `new` says.
        let there = which(self.path.at, unsafe { CStr::from_ptr(self.path.text) });
        there.is_some_and(|there| is_same(there, former))
    }

    /// Nobody has the former file any more. If that was empty, another one can stand for it, with this flag: what has been
    /// made since the image is made again. Otherwise ends the rank.
    fn cut_to_begin(&self, former: u32, flags: c_int) -> c_int {
        let is_empty = self.path.about().is_none_or(|about| about.st_size == 0);
        let imaged = IMAGED_NS.load(Ordering::Relaxed).into();
        let is_later = self.path.times().is_some_and(|(made, _, _)| made > imaged);
        let can_cut = is_empty || is_later && flags & libc::O_ACCMODE != libc::O_RDONLY;
        if let Some(node) = images::node().filter(|_| former & EMPTY_FILE == 0 || !can_cut) {
            let name = String::from_utf8_lossy(self.path.bytes());
            node.report_and_exit(&undo::replaced(node.rank, &name), EXIT_REPORT);
        }
        if is_empty { 0 } else { libc::O_TRUNC }
    }
}

/// Whether all ranks have begun again together with this life.
fn returned_together() -> bool {
    life() > 1 && shared(&GONE_ON) == Some(0)
}

/// Others find that the file is of this life.
fn touched(fd: c_int) -> c_int {
    if fd >= 0 {
        let error = errno();
        // SAFETY: no times: now.
        unsafe { libc::futimens(fd, std::ptr::null()) };
        set_errno(error);
    }
    fd
}

/// A digest of which regular file it is, and whether it is empty. `name`: from `directory`, or, if empty, that descriptor.
fn which(directory: c_int, name: &CStr) -> Option<u32> {
    let known = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_BTIME;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: a path that ends with a zero.
    let about = unsafe { about(directory, name.as_ptr(), flags, known) }.filter(is_regular)?;
    let (made, (device, number)) = (file_time(about.stx_btime), inode(&about));
    let digest = hash(&made.to_le_bytes(), hash(&number.to_le_bytes(), EMPTY));
    let digest = hash(&device.to_le_bytes(), digest);
    let is_empty = if about.stx_size == 0 { EMPTY_FILE } else { 0 };
    Some((digest ^ (digest >> 32)) as u32 & !EMPTY_FILE | is_empty)
}

/// Whether two digests are of the same file.
fn is_same(one: u32, other: u32) -> bool {
    one & !EMPTY_FILE == other & !EMPTY_FILE
}

/// Opens the file of which this is the digest, if it has lost its name, and a process has it open. Otherwise -1.
fn open_held(former: u32, flags: c_int) -> c_int {
    let mut fd = -1;
    resurgo_image::for_each_nameless(|path| {
        if fd < 0
            && let Ok(path) = CString::new(path)
            && which(libc::AT_FDCWD, &path).is_some_and(|it| is_same(it, former))
        {
            let flags = flags & !(libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW);
            // SAFETY: a path that ends with a zero.
            fd = unsafe { libc::open(path.as_ptr(), flags) };
        }
    });
    fd
}

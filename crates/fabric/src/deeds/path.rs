//! Paths that calls name, and what is there.

use super::*;
use crate::about::about;
use crate::clock::{SECOND, file_time};

/// FNV-1a.
pub(super) fn hash(bytes: &[u8], mut state: u64) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}

pub(super) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// A path that a call names, from the directory `at`.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) at: c_int,
    pub(super) text: *const c_char,
}

impl Path {
    pub(super) fn new(at: c_int, text: *const c_char) -> Path {
        Path { at, text }
    }

    pub(super) fn here(text: *const c_char) -> Path {
        Path::new(libc::AT_FDCWD, text)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.text.is_null() {
            return b"";
        }
        // SAFETY: the caller's path, which ends with a zero.
        unsafe { CStr::from_ptr(self.text).to_bytes() }
    }

    pub(super) fn hash(&self, state: u64) -> u64 {
        let state = match self.bytes().first() {
            Some(b'/') => state,
            _ => hash(&self.at.to_le_bytes(), state),
        };
        hash(&[0], hash(self.bytes(), state))
    }

    pub(super) fn short(&self) -> u32 {
        let full = self.hash(EMPTY);
        (full ^ (full >> 32)) as u32
    }

    pub(super) fn about(&self) -> Option<libc::stat> {
        // SAFETY: an all-zero stat is valid, and the kernel fills it.
        unsafe {
            let mut about: libc::stat = zeroed();
            (libc::fstatat(self.at, self.text, &mut about, libc::AT_SYMLINK_NOFOLLOW) == 0).then_some(about)
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.about().is_some()
    }

    pub(super) fn is_regular(&self) -> bool {
        self.about()
            .is_some_and(|about| about.st_mode & libc::S_IFMT == libc::S_IFREG)
    }

    /// When what is there was made, and changed last, and when something about it (as its name) was: in nanoseconds since
    /// 1970.
    pub(super) fn times(&self) -> Option<(i128, i128, i128)> {
        let facts = libc::STATX_MTIME | libc::STATX_CTIME | libc::STATX_BTIME;
        // SAFETY: the caller's path, which ends with a zero.
        let about = unsafe { about(self.at, self.text, libc::AT_SYMLINK_NOFOLLOW, facts) }?;
        Some(
            [about.stx_btime, about.stx_mtime, about.stx_ctime]
                .map(file_time)
                .into(),
        )
    }

    /// Whether what is there, if anything is, is what former lives have left.
    pub(super) fn is_of_former_life(&self) -> bool {
        let rested = shared(&RESTED).map_or(0, i128::from);
        let Some((made, changed, _)) = self.times() else {
            return false;
        };
        if shared(&GONE_ON) == Some(1) {
            // Others may be changing it.
            return made <= rested;
        }
        // Some file systems only know whole seconds.
        let unknown = if changed % SECOND == 0 { SECOND - 1 } else { 0 };
        made.max(changed + unknown) <= rested
    }

    /// Whether what is there was made by lives whose notes are lost, since what this one began from. `has_opened`: perhaps
    /// this life has made it anew.
    pub(super) fn is_of_lost_life(&self, has_opened: bool) -> bool {
        let Some(lost) = shared(&NOTES_LOST).filter(|lost| *lost != 0) else {
            return false;
        };
        let Some((made, changed, _)) = self.times() else {
            return false;
        };
        // Others may make it again where all return, and else be writing to it.
        let is_left = changed <= i128::from(lost) || shared(&GONE_ON) == Some(1) && !has_opened;
        made > since_lost() && made <= i128::from(lost) && is_left
    }

    /// Whether what is there got its name, or was changed otherwise, by lives whose notes are lost.
    pub(super) fn is_put_by_lost_life(&self) -> bool {
        let lost = shared(&NOTES_LOST).map_or(0, i128::from);
        self.times()
            .is_some_and(|(_, _, put)| put > since_lost() && put <= lost)
    }

    /// A repeated call would have made the directory, or the like, that is there. (A file that it opens is cut.)
    pub(super) fn has_been_made(&self) {
        if !self.is_regular() {
            // SAFETY: a path of the caller's; no times: now.
            unsafe { libc::utimensat(self.at, self.text, std::ptr::null(), libc::AT_SYMLINK_NOFOLLOW) };
        }
    }
}

/// From when on notes are lost: in nanoseconds since 1970.
fn since_lost() -> i128 {
    let began = shared(&JOB_BEGAN).unwrap_or(0);
    began.max(LOST_SINCE.load(Ordering::Relaxed)).into()
}

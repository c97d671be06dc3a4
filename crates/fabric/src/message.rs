//! A message as a program gives it: its kind, its envelope and the pieces of memory that hold its bytes.

pub use resurgo_wire::entry::{KINDS, Kind};

/// The message carries remote data.
pub const HAS_DATA: u8 = 1;

/// What a message is besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    pub kind: Kind,
    pub flags: u8,
    pub tag: u64,
    pub data: u64,
}

/// A message to be sent.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub envelope: Envelope,
    pub iov: &'a [libc::iovec],
    /// Bytes in all of `iov`.
    pub total: usize,
    /// What the message carries of others' deliveries, as bytes; empty under most protocols.
    pub piggyback: &'a [u8],
}

/// Pieces of memory that make up one message.
pub struct Pieces<'a> {
    iov: &'a [libc::iovec],
    index: usize,
    offset: usize,
}

impl<'a> Pieces<'a> {
    pub fn new(iov: &'a [libc::iovec]) -> Self {
        Pieces {
            iov,
            index: 0,
            offset: 0,
        }
    }

    /// Steps over the next `bytes` bytes.
    pub fn skip(&mut self, bytes: usize) {
        self.take(bytes, |_, _| ());
    }

    /// Copies the next bytes to `to`, until that is full.
    pub fn copy_next(&mut self, to: &mut [u8]) {
        // SAFETY: the slice is the room.
        unsafe { self.copy_to(to.as_mut_ptr(), to.len()) };
    }

    /// Hands the next `bytes` bytes to `each`, run by run.
    fn take(&mut self, mut bytes: usize, mut each: impl FnMut(*const u8, usize)) {
        while bytes > 0 {
            let iov = &self.iov[self.index];
            let run = bytes.min(iov.iov_len - self.offset);
            // SAFETY: stays inside the piece the caller of the send gave.
            each(unsafe { iov.iov_base.cast::<u8>().add(self.offset) }, run);
            self.offset += run;
            bytes -= run;
            if self.offset == iov.iov_len {
                self.index += 1;
                self.offset = 0;
            }
        }
    }

    /// Copies the next `bytes` bytes to `to`.
    ///
    /// # Safety
    /// `to` has room for `bytes`.
    #[inline]
    pub unsafe fn copy_to(&mut self, to: *mut u8, bytes: usize) {
        let mut done = 0;
        self.take(bytes, |from, run| {
            // SAFETY: the caller gives room for `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(done), run) };
            done += run;
        });
    }

    /// Calls `differs` with the offset of every one of the next `bytes` bytes that is not as it is at `there`.
    ///
    /// # Safety
    /// `there` is readable for `bytes`.
    pub unsafe fn compare(&mut self, there: *const u8, bytes: usize, mut differs: impl FnMut(usize)) {
        let mut done = 0;
        self.take(bytes, |from, run| {
            // SAFETY: both sides are readable for `run` bytes.
            let (now, before) = unsafe {
                (
                    std::slice::from_raw_parts(from, run),
                    std::slice::from_raw_parts(there.add(done), run),
                )
            };
            if now != before {
                let unequal = now
                    .iter()
                    .zip(before)
                    .enumerate()
                    .filter(|(_, (now, before))| now != before);
                unequal.for_each(|(at, _)| differs(done + at));
            }
            done += run;
        });
    }
}

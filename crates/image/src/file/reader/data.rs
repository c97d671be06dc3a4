//! The memory pages of an image file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Defect, Image};
use crate::file::checksum::sum_of;
use crate::file::format::{DATA_OFFSET, Extent, PLAIN, record_at};
use crate::file::layout;
use crate::file::zstd::Decoder;
use crate::pages::PAGE;

/// Bytes read at once, and decompressed at once.
const READ: usize = 1 << 20;
/// The most bytes that a thread checks before it takes the next ones, and the most threads.
const SHARE: u64 = 4 << 20;
const MOST_THREADS: usize = 4;

impl Image {
    /// Checks the data.
    pub fn verify(&self) -> Result<(), Defect> {
        if self.header.compression == PLAIN {
            return self.each_share(&|_, _: &mut [u8]| Ok(()));
        }
        self.decompress(&self.sums()?, |_, _| Ok(()))
    }

    /// Checks the data, which is not compressed; calls `each` with verified bytes and the address that they belong to.
    /// It uses several threads: a failed rank waits for this, and others wait for the rank.
    pub fn each_share(&self, each: &(impl Fn(u64, &mut [u8]) -> Result<(), Defect> + Sync)) -> Result<(), Defect> {
        self.each_share_of(&self.extents, &self.sums()?, each)
    }

    /// As [`Image::each_share`], of some of the data only.
    pub fn each_share_of(
        &self,
        extents: &[Extent],
        sums: &[u8],
        each: &(impl Fn(u64, &mut [u8]) -> Result<(), Defect> + Sync),
    ) -> Result<(), Defect> {
        let shares: Vec<(u64, u64, u64)> = extents
            .iter()
            .flat_map(|extent| {
                (0..extent.length).step_by(SHARE as usize).map(move |at| {
                    let end = extent.length.min(at + SHARE);
                    (extent.address + at, extent.offset + at, extent.offset + end)
                })
            })
            .collect();
        let bytes: u64 = extents.iter().map(|extent| extent.length).sum();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((address, start, end)) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.each((*start, *end), sums, |at, bytes| each(address + (at - start), bytes))?;
            }
            Ok(())
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        std::thread::scope(|scope| {
            // If a thread cannot be made, the others do its work.
            let helpers: Vec<_> = (1..cores.min(MOST_THREADS))
                .filter(|number| *number as u64 * SHARE < bytes)
                .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mine = work();
            helpers.into_iter().fold(mine, |result, helper| match helper.join() {
                Ok(theirs) => result.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// The ranges of the file that belong to the image, in ascending order. The rest is as good as zeros: in a file
    /// that was written over, pages of earlier images may lie there.
    pub fn parts(&self) -> Vec<Range<u64>> {
        let data = DATA_OFFSET..DATA_OFFSET + self.header.data_length;
        let stored = |extent: &Extent| extent.offset..extent.offset + extent.length;
        let mut all: Vec<Range<u64>> = match self.header.compression {
            PLAIN => self.extents.iter().map(stored).collect(),
            _ => vec![data.clone()],
        };
        // The note may go on behind everything else.
        let end = self.file.metadata().map_or(self.header.length, |file| file.len());
        all.extend([0..data.start, data.end..end]);
        all.sort_by_key(|part| part.start);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for part in all.into_iter().filter(|part| !part.is_empty()) {
            match parts.last_mut() {
                Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
                _ => parts.push(part),
            }
        }
        parts
    }

    /// The file in which uncompressed data lies where the extents say.
    pub fn plain_data(&self) -> Result<File, Defect> {
        self.file.try_clone().map_err(|source| self.unreadable(source))
    }

    /// Checks the data. Returns the file in which it lies where the extents say; for compressed data a new one in
    /// memory.
    pub fn verified_data(&self) -> Result<File, Defect> {
        if self.header.compression == PLAIN {
            self.verify()?;
            return self.plain_data();
        }
        let no_room = |source| Defect::NoRoom {
            path: self.path.clone(),
            source,
        };
        let sums = self.sums()?;
        // SAFETY: the new descriptor is nobody else's.
        let file = unsafe {
            match libc::memfd_create(c"resurgo-image".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(no_room(io::Error::last_os_error())),
                fd => File::from_raw_fd(fd),
            }
        };
        self.decompress(&sums, |at, bytes| file.write_all_at(bytes, at).map_err(no_room))?;
        Ok(file)
    }

    /// There was no memory for the process that is being rebuilt.
    pub fn not_filled(&self, errno: i32) -> Defect {
        Defect::NotFilled {
            path: self.path.clone(),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    fn unreadable(&self, source: io::Error) -> Defect {
        Defect::Unreadable {
            path: self.path.clone(),
            source,
        }
    }

    /// Tells the kernel that this part of the file will be read soon.
    pub fn expect(&self, part: Range<u64>) {
        let length = part.end - part.start;
        // SAFETY: about a file; where it fails the disk is read later.
        unsafe {
            let fd = self.file.as_raw_fd();
            libc::posix_fadvise(fd, part.start as i64, length as i64, libc::POSIX_FADV_WILLNEED);
        }
    }

    /// Offset in the file of what the process has at `address`. None: it is not stored.
    pub fn place(&self, address: u64) -> Option<u64> {
        let before = self.extents.partition_point(|extent| extent.address <= address);
        let extent = self.extents[..before].last()?;
        (address < extent.address + extent.length).then(|| extent.offset + (address - extent.address))
    }

    /// Reads, without checking, what the process has at `address`; leaves `bytes` alone if that is not stored. `bytes` end
    /// with the page at the latest.
    pub fn read_at(&self, address: u64, bytes: &mut [u8]) -> Result<(), Defect> {
        let Some(place) = self.place(address) else {
            return Ok(());
        };
        let read = self.file.read_exact_at(bytes, place);
        read.map_err(|source| self.unreadable(source))
    }

    /// The checksums of all pages of data.
    pub fn sums(&self) -> Result<Vec<u8>, Defect> {
        let mut sums = vec![0u8; self.header.sums.length as usize];
        let read = self.file.read_exact_at(&mut sums, self.header.sums.offset);
        read.map_err(|source| self.unreadable(source))?;
        if sum_of(&sums) != self.header.sums.sum {
            return Err(Defect::Sum {
                path: self.path.clone(),
                part: "checksums",
                from: self.header.sums.offset,
                to: self.header.tables.offset,
            });
        }
        Ok(sums)
    }

    /// Reads and checks a part of the file's data; calls `each` with verified bytes and their place.
    fn each(
        &self,
        (start, end): (u64, u64),
        sums: &[u8],
        mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let mut buffer = vec![0u8; READ.min((end - start) as usize)];
        for at in (start..end).step_by(READ) {
            let bytes = &mut buffer[..READ.min((end - at) as usize)];
            self.read_checked(at, sums, bytes)?;
            each(at, bytes)?;
        }
        Ok(())
    }

    /// Reads whole pages of the file's data and checks them.
    pub fn read_checked(&self, at: u64, sums: &[u8], bytes: &mut [u8]) -> Result<(), Defect> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|source| self.unreadable(source))?;
        for (page, from) in bytes.chunks(PAGE).zip((at..).step_by(PAGE)) {
            if record_at(sums, layout::sum_at(from)) != Some(sum_of(page)) {
                return Err(Defect::Sum {
                    path: self.path.clone(),
                    part: "memory",
                    from,
                    to: from + PAGE as u64,
                });
            }
        }
        Ok(())
    }

    /// Checks and decompresses all data. Calls `each` with one piece after the other, and the offset that the piece
    /// would have in a file that is not compressed.
    fn decompress(&self, sums: &[u8], mut each: impl FnMut(u64, &[u8]) -> Result<(), Defect>) -> Result<(), Defect> {
        let wrong = |from: u64, why: &str| Defect::Compression {
            path: self.path.clone(),
            from,
            why: why.to_string(),
        };
        let (start, end) = (DATA_OFFSET, DATA_OFFSET + self.header.data_length);
        let plain_end = DATA_OFFSET + self.header.plain_length;
        let mut decoder = Decoder::new().map_err(|why| wrong(start, &why))?;
        let mut plain = vec![0u8; READ];
        let (mut at, mut ended) = (DATA_OFFSET, false);
        self.each((start, end), sums, |from, bytes| {
            let mut bytes: &[u8] = bytes;
            loop {
                if ended {
                    let padding = bytes.len() < PAGE && bytes.iter().all(|byte| *byte == 0);
                    return if padding {
                        Ok(())
                    } else {
                        Err(wrong(from, "something follows its end"))
                    };
                }
                let room = READ.min((plain_end - at) as usize);
                let step = decoder.step(bytes, &mut plain[..room]);
                let (took, gave, end) = step.map_err(|why| wrong(from, &why))?;
                each(at, &plain[..gave])?;
                (bytes, at, ended) = (&bytes[took..], at + gave as u64, end);
                // A full output may mean more output without further input.
                if !ended && bytes.is_empty() && gave < room {
                    return Ok(());
                }
                if !ended && took == 0 && gave == 0 {
                    return if bytes.is_empty() {
                        Ok(())
                    } else {
                        Err(wrong(from, "it is longer than it should be"))
                    };
                }
            }
        })?;
        if !ended || at != plain_end {
            return Err(wrong(end, "it ends early"));
        }
        Ok(())
    }
}

//! The node memory as the mover sees it: mapped, and read and written while ranks do.
//!
//! A page that nobody has touched gets memory when it is read, too, so only what ranks use anyway is looked at.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use resurgo_wire::node_memory::{Arena, BLOCK, Control, Field, Header, LARGE_PAGE, Layout, SEGMENT, control, ready};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// The mapping, and what lies where.
pub struct Mapped {
    region: MmapRegion,
    pub layout: Layout,
}

const INSIDE: &str = "a place in the memory";

impl Mapped {
    /// # Errors
    /// There are not so many addresses.
    pub fn new(file: &File, layout: Layout) -> io::Result<Mapped> {
        let file = FileOffset::new(file.try_clone()?, 0);
        let region = MmapRegion::from_file(file, layout.total()).map_err(io::Error::other)?;
        Ok(Mapped { region, layout })
    }

    /// An aligned word.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        self.region.get_atomic_ref(at).expect(INSIDE)
    }

    pub fn word32(&self, at: usize) -> &AtomicU32 {
        self.region.get_atomic_ref(at).expect(INSIDE)
    }

    pub fn header(&self, field: Field<Header, u64>) -> &AtomicU64 {
        self.word(field.at)
    }

    pub fn header32(&self, field: Field<Header, u32>) -> &AtomicU32 {
        self.word32(field.at)
    }

    pub fn control(&self, rank: usize, field: Field<Control, u64>) -> &AtomicU64 {
        self.word(self.layout.control(rank) + field.at)
    }

    pub fn control32(&self, rank: usize, field: Field<Control, u32>) -> &AtomicU32 {
        self.word32(self.layout.control(rank) + field.at)
    }

    pub fn arena32(&self, rank: usize, field: Field<Arena, u32>) -> &AtomicU32 {
        self.word32(self.layout.arena(rank) + field.at)
    }

    /// Offset of a segment of the arena of `rank`.
    pub fn segment(&self, rank: usize, slot: usize) -> usize {
        self.layout.arena(rank) + self.layout.segments() + slot * SEGMENT
    }

    /// Gives a block of segments of the arena of `rank` one large page: what will be written there costs no page faults. False: there is
    /// none at hand.
    pub fn make_large(&self, rank: usize, block: usize) -> bool {
        let at = self.segment(rank, block * BLOCK);
        let there = self.region.get_slice(at, LARGE_PAGE).expect(INSIDE);
        let address = there.ptr_guard_mut().as_ptr() as usize;
        resurgo_image::make_large_pages(address, LARGE_PAGE) == Ok(true)
    }

    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let there = self.region.get_slice(at, bytes.len()).expect(INSIDE);
        there.copy_to(bytes);
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let there = self.region.get_slice(at, bytes.len()).expect(INSIDE);
        there.copy_from(bytes);
    }

    /// Tells `destination`, a rank of this node, that the channel from `source` has something new. As `doorbell::ring` does in ranks.
    pub fn ring(&self, source: usize, destination: usize) {
        ready::say(source, |field| self.control(destination, field));
        self.wake(destination);
    }

    /// Wakes a rank of this node if it sleeps.
    pub fn wake(&self, rank: usize) {
        fence(Ordering::SeqCst);
        if self.control32(rank, control::SLEEPING).load(Ordering::Relaxed) == 1 {
            let bell = self.control32(rank, control::DOORBELL);
            bell.fetch_add(1, Ordering::SeqCst);
            // It fails for a wrong address only.
            let _ = rustix::thread::futex::wake(bell, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Takes what ranks of this node have said of their channels to `rank`, which is on another one.
    pub fn take_ready(&self, rank: usize, found: impl FnMut(usize)) {
        ready::take(|field| self.control(rank, field), found);
    }
}

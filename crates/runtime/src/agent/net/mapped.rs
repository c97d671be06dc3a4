//! The node memory as the mover sees it: mapped, and read and written while ranks do.
//!
//! Reading an untouched page gives it memory, so the mover reads only parts that ranks use anyway.

use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use resurgo_wire::direct::Word;
use resurgo_wire::node_memory::{
    AT_SOCKETS, Arena, BLOCK, Control, Field, Header, LARGE_PAGE, Layout, SEGMENT, control, ready,
};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// The mapping and its layout.
pub struct Mapped {
    region: MmapRegion,
    /// Wakes ranks that sleep at their sockets.
    bells: UnixDatagram,
    pub layout: Layout,
}

const INSIDE: &str = "a place in the memory";

impl Mapped {
    /// # Errors
    /// The address space is too small.
    pub fn new(file: &File, layout: Layout) -> io::Result<Mapped> {
        let file = FileOffset::new(file.try_clone()?, 0);
        let region = MmapRegion::from_file(file, layout.total()).map_err(io::Error::other)?;
        let bells = UnixDatagram::unbound()?;
        bells.set_nonblocking(true)?;
        Ok(Mapped { region, bells, layout })
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

    /// A word that `rank` and movers share about its channels to or from `other`.
    pub fn direct(&self, rank: usize, other: usize, word: Word) -> &AtomicU64 {
        self.word(self.layout.arena(rank) + self.layout.direct(other) + word as usize)
    }

    /// Offset of a segment of the arena of `rank`.
    pub fn segment(&self, rank: usize, slot: usize) -> usize {
        self.layout.arena(rank) + self.layout.segments() + slot * SEGMENT
    }

    /// Gives a block of segments of the arena of `rank` one large page: writing there costs no page faults. False:
    /// there is none available.
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

    /// Tells `destination`, a rank of this node, of news in the channel from `source`. As `doorbell::ring` does in
    /// ranks.
    pub fn ring(&self, source: usize, destination: usize) {
        ready::say(source, |field| self.control(destination, field));
        self.wake(destination);
    }

    /// Wakes a rank of this node if it sleeps.
    pub fn wake(&self, rank: usize) {
        fence(Ordering::SeqCst);
        match self.control32(rank, control::SLEEPING).load(Ordering::Relaxed) {
            1 => {
                let bell = self.control32(rank, control::DOORBELL);
                bell.fetch_add(1, Ordering::SeqCst);
                // It fails only for a wrong address.
                let _ = rustix::thread::futex::wake(bell, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
            }
            AT_SOCKETS => {
                let name = format!("{:05x}", self.control(rank, control::BELL).load(Ordering::SeqCst));
                // It fails where the socket is full, and then the rank is awake; or where the rank is gone.
                let _ = SocketAddr::from_abstract_name(name).and_then(|name| self.bells.send_to_addr(&[0], &name));
            }
            _ => {}
        }
    }

    /// Takes the news that ranks of this node have for `rank`, which is on another one.
    pub fn take_ready(&self, rank: usize, found: impl FnMut(usize)) {
        ready::take(|field| self.control(rank, field), found);
    }
}

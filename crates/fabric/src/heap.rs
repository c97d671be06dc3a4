//! Where the provider's own objects live: a region of its own at a fixed address.
//!
//! The program's malloc must hand out the same addresses in every life of a rank, or what it sends may differ. So the
//! provider, whose allocations depend on when messages arrive, never touches it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use resurgo_wire::places::HEAP;

const BASE: usize = HEAP.start;
/// Bytes mapped at once, as blocks are asked for: the user may have limited the address space (`ulimit -v`, `ulimit
/// -d`).
const STEP: usize = 2 << 20;
/// Freed blocks from this size on give their memory back to the kernel.
const RETURNED: usize = 4 << 20;
const SMALLEST: usize = 32;
const CLASSES: usize = 40;

/// Blocks in sizes of powers of two, each size with its list of freed blocks.
pub struct Heap {
    busy: AtomicBool,
    state: UnsafeCell<State>,
}

struct State {
    /// Where the next new block goes, and how far the region is mapped.
    next: usize,
    mapped: usize,
    free: [usize; CLASSES],
}

// SAFETY: `state` is only touched between taking and leaving `busy`.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn new() -> Self {
        Heap {
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                next: BASE,
                mapped: BASE,
                free: [0; CLASSES],
            }),
        }
    }

    /// The used part of the region. Call only while no thread allocates.
    pub fn used(&self) -> std::ops::Range<usize> {
        // SAFETY: a word, and the caller says that nobody changes it.
        BASE..unsafe { (*self.state.get()).next }
    }

    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        // A thread that is stopped for an image must not hold it: images need memory, too.
        let _guard = resurgo_image::Guard::new();
        // Threads of one process only: none can die while holding it without ending the whole process.
        while self.busy.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: `busy` is ours.
        let result = action(unsafe { &mut *self.state.get() });
        self.busy.store(false, Ordering::Release);
        result
    }
}

impl State {
    /// Maps the region up to `end` at least. False: there is no room, or no memory.
    fn map(&mut self, end: usize) -> bool {
        if end <= self.mapped {
            return true;
        }
        let (from, to) = (self.mapped, end.next_multiple_of(STEP));
        if to > HEAP.end {
            return false;
        }
        // Make the system calls directly. UCX replaces libc's functions, and libc may not know this thread, as in a
        // process that has just been rebuilt.
        // SAFETY: maps only address space nobody has (NOREPLACE).
        let got = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                from,
                to - from,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1i64,
                0i64,
            )
        };
        if got as usize != from {
            return false;
        }
        // SAFETY: the mapping just made. A core dump is about the program.
        unsafe { libc::syscall(libc::SYS_madvise, from, to - from, libc::MADV_DONTDUMP) };
        self.mapped = to;
        true
    }
}

fn class(layout: &Layout) -> usize {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (bytes / SMALLEST).trailing_zeros() as usize
}

// SAFETY: blocks are aligned to their own size, as the region starts at a multiple of every class. They never overlap,
// and come back only through `dealloc` with the layout they were asked with.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(&layout);
        if class >= CLASSES {
            return null_mut();
        }
        let bytes = SMALLEST << class;
        self.with(|state| {
            if state.free[class] != 0 {
                let block = state.free[class] as *mut usize;
                // SAFETY: a free block's first word is the next free block.
                state.free[class] = unsafe { *block };
                return block.cast();
            }
            let place = (state.next + bytes - 1) & !(bytes - 1);
            if !state.map(place + bytes) {
                return null_mut();
            }
            state.next = place + bytes;
            place as *mut u8
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = class(&layout);
        if (SMALLEST << class) >= RETURNED {
            // SAFETY: the block is page-aligned (its size is) and nobody uses it any more.
            unsafe { libc::syscall(libc::SYS_madvise, block, SMALLEST << class, libc::MADV_DONTNEED) };
        }
        self.with(|state| {
            // SAFETY: the block is ours again and at least a word long.
            unsafe { *(block as *mut usize) = state.free[class] };
            state.free[class] = block as usize;
        });
    }
}

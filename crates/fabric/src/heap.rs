//! Where the provider's own objects live: a region of its own at a fixed address.
//!
//! The program's malloc must hand out the same addresses in every life of a rank, or what it sends may differ. So the
//! provider, whose allocations depend on when messages arrive, never touches it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// Below the node memory and far from everything the kernel places by itself.
const BASE: usize = 0x0800_0000_0000;
/// Address space set aside; memory is used only as far as it is touched.
const BYTES: usize = 1 << 40;
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
    next: usize,
    free: [usize; CLASSES],
}

// SAFETY: `state` is only touched between taking and leaving `busy`.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn new() -> Self {
        Heap {
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                next: 0,
                free: [0; CLASSES],
            }),
        }
    }

    /// The part of the region that has been used. Only while nobody allocates.
    pub fn used(&self) -> std::ops::Range<usize> {
        // SAFETY: a word, and the caller says that nobody changes it.
        BASE..unsafe { (*self.state.get()).next }.max(BASE)
    }

    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        // A thread that is stopped for an image must not hold it: images need memory, too.
        let _guard = resurgo_image::Guard::new();
        // Threads of one process only: nobody can die while holding it without ending the whole process.
        while self.busy.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: `busy` is ours.
        let result = action(unsafe { &mut *self.state.get() });
        self.busy.store(false, Ordering::Release);
        result
    }
}

fn class(layout: &Layout) -> usize {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (bytes / SMALLEST).trailing_zeros() as usize
}

// SAFETY: blocks are aligned to their own size (the region starts at a multiple of every class), never overlap, and
// come back only through `dealloc` with the layout they were asked with.
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
            if state.next == 0 {
                // SAFETY: maps only address space nobody has (NOREPLACE).
                let got = unsafe {
                    libc::mmap(
                        BASE as *mut _,
                        BYTES,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                        -1,
                        0,
                    )
                };
                if got as usize != BASE {
                    return null_mut();
                }
                // SAFETY: the mapping just made. A core dump is about the program.
                unsafe { libc::madvise(BASE as *mut _, BYTES, libc::MADV_DONTDUMP) };
                state.next = BASE;
            }
            let place = (state.next + bytes - 1) & !(bytes - 1);
            if place + bytes > BASE + BYTES {
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

//! A thread that writes to the file while the next pages are copied or summed up. Like the capturing thread it is unknown to
//! glibc, and has its stack where the writer has its memory.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::tables::Trouble;
use super::work::Area;
use crate::sys::{self, Errno, call};
use crate::threads;

/// Bytes of memory that go to a place in a file.
#[derive(Clone, Copy)]
pub struct Batch {
    pub file: i32,
    pub from: usize,
    pub bytes: usize,
    pub offset: u64,
}

impl Batch {
    /// Writes all of it.
    pub fn write(mut self) -> Result<(), Errno> {
        while self.bytes > 0 {
            // SAFETY: memory of the writer's.
            match unsafe { call!(libc::SYS_pwrite64, self.file, self.from, self.bytes, self.offset) } {
                Ok(0) => return Err(libc::EIO),
                Ok(written) => {
                    self.offset += written as u64;
                    self.from += written;
                    self.bytes -= written;
                }
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

const IDLE: u32 = 0;
const BUSY: u32 = 1;
const LEAVE: u32 = 2;

const STACK: usize = 64 << 10;

/// What both use, and the thread's stack. Nothing of it may lie in memory that is being written to the file: it changes
/// meanwhile.
#[repr(C, align(4096))]
struct Shared {
    /// The thread control block: its own address first, and at 16.
    control_block: [usize; 8],
    state: AtomicU32,
    /// The thread's number; the kernel clears it when it has left its stack.
    running: AtomicU32,
    /// The thread's while the state is BUSY, else the writer's.
    task: UnsafeCell<(Batch, Result<(), Errno>)>,
    stack: [u8; STACK],
}

/// The thread, until it is dropped.
pub struct Helper {
    _memory: Area,
    shared: &'static Shared,
}

impl Helper {
    pub fn start() -> Result<Helper, Trouble> {
        let mut memory = Area::new(18);
        memory.resize(size_of::<Shared>()).map_err(Trouble::memory)?;
        let words = memory.words_mut();
        let own = words.as_ptr() as usize;
        (words[0], words[2]) = (own as u64, own as u64);
        // SAFETY: aligned and long enough; zeros are idle, and what is no number is written next. It stays mapped until the thread has left.
        let shared: &'static Shared = unsafe { &*(own as *const Shared) };
        // SAFETY: nobody else knows it yet.
        unsafe {
            shared.task.get().write((
                Batch {
                    file: -1,
                    from: 0,
                    bytes: 0,
                    offset: 0,
                },
                Ok(()),
            ))
        };
        let stack = &raw const shared.stack as usize + STACK;
        // SAFETY: the stack is its alone, and `run` makes system calls only.
        unsafe { threads::start_service(stack, own, &shared.running, run, own) }
            .map_err(|errno| Trouble::new("no thread can be made to write the file", errno))?;
        Ok(Helper {
            _memory: memory,
            shared,
        })
    }

    /// It has not done the last batch.
    pub fn is_busy(&self) -> bool {
        self.shared.state.load(Ordering::SeqCst) == BUSY
    }

    /// What has become of the last batch.
    pub fn wait(&self) -> Result<(), Errno> {
        while self.is_busy() {
            sys::futex_wait(&self.shared.state, BUSY, None);
        }
        // SAFETY: not busy. It is told once.
        unsafe { std::mem::replace(&mut (*self.shared.task.get()).1, Ok(())) }
    }

    /// Has it write a batch; it has done the last one.
    pub fn write(&self, batch: Batch) {
        // SAFETY: not busy.
        unsafe { *self.shared.task.get() = (batch, Ok(())) };
        self.tell(BUSY);
    }

    fn tell(&self, state: u32) {
        self.shared.state.store(state, Ordering::SeqCst);
        sys::futex_wake(&self.shared.state);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.wait();
        self.tell(LEAVE);
        loop {
            match self.shared.running.load(Ordering::SeqCst) {
                0 => break,
                number => sys::futex_wait(&self.shared.running, number, Some(1_000_000)),
            }
        }
    }
}

extern "C" fn run(own: usize) -> ! {
    // SAFETY: `start` gives the address, and it stays mapped until this thread has left.
    let shared = unsafe { &*(own as *const Shared) };
    loop {
        match shared.state.load(Ordering::SeqCst) {
            IDLE => sys::futex_wait(&shared.state, IDLE, None),
            BUSY => {
                // SAFETY: busy.
                let task = unsafe { &mut *shared.task.get() };
                task.1 = task.0.write();
                shared.state.store(IDLE, Ordering::SeqCst);
                sys::futex_wake(&shared.state);
            }
            _ => {
                // SAFETY: ends this thread only.
                let _ = unsafe { call!(libc::SYS_exit, 0) };
            }
        }
    }
}

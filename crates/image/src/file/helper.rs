//! A thread that shares the writing. On a disk it writes pages while the writer sums up the next ones. On a memory file
//! system it takes part in each step. Like the capturing thread it is unknown to glibc. Its stack is in the writer's
//! memory.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::checksum::{self, Sum};
use crate::clones;
use crate::pages::PAGE;
use crate::sys::{self, Errno, call};
use crate::trouble::Trouble;
use crate::zone::Area;

/// Memory in several parts, as the writer has it, and its place in a file.
#[derive(Clone, Copy)]
pub struct Batch {
    pub file: i32,
    pub parts: *const libc::iovec,
    pub count: usize,
    pub bytes: usize,
    pub offset: u64,
    /// The pipe through which it goes to the disk.
    pub pipe: Option<Pipe>,
}

impl Batch {
    pub fn of(file: i32, part: &libc::iovec, offset: u64) -> Batch {
        Batch {
            file,
            parts: part,
            count: 1,
            bytes: part.iov_len,
            offset,
            pipe: None,
        }
    }

    /// Writes all of it.
    ///
    /// # Safety
    /// The parts can be read, and together have `bytes` bytes.
    pub unsafe fn write(mut self) -> Result<(), Errno> {
        const AT_ONCE: usize = 64;
        let mut some = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; AT_ONCE];
        // Bytes of the first part that are written.
        let mut done = 0;
        while self.bytes > 0 {
            let count = self.count.min(AT_ONCE);
            // SAFETY: there are that many parts.
            some[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(self.parts, count) });
            some[0].iov_base = some[0].iov_base.wrapping_byte_add(done);
            some[0].iov_len -= done;
            let written = match self.pipe {
                // SAFETY: memory of the writer's.
                None => unsafe { call!(libc::SYS_pwritev, self.file, some.as_ptr(), count, self.offset) },
                Some(pipe) => pipe.write(&some[..count], self.file, self.offset),
            };
            match written {
                Ok(0) => return Err(libc::EIO),
                Ok(written) => {
                    self.offset += written as u64;
                    self.bytes -= written;
                    done += written;
                    // SAFETY: the first of those that are left.
                    while self.count > 0 && done >= unsafe { (*self.parts).iov_len } {
                        // SAFETY: as above.
                        done -= unsafe { (*self.parts).iov_len };
                        self.parts = self.parts.wrapping_add(1);
                        self.count -= 1;
                    }
                }
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A pipe through which pages go to a disk without being copied. With O_DIRECT from where they are, the kernel would
/// copy each page that the snapshot shares with the rank, and keep the copy.
#[derive(Clone, Copy)]
pub struct Pipe {
    pub from: i32,
    pub to: i32,
}

impl Pipe {
    /// None: no pipe can hold enough.
    pub fn open() -> Option<Pipe> {
        const MOST: usize = 1 << 20;
        const LEAST: usize = 256 << 10;
        let [from, to] = sys::pipe().ok()?;
        let pipe = Pipe { from, to };
        let mut bytes = MOST;
        // A user with many pipes gets only small ones.
        while sys::fcntl(to, libc::F_SETPIPE_SZ, bytes).is_err() {
            bytes /= 2;
            if bytes < LEAST {
                pipe.close();
                return None;
            }
        }
        Some(pipe)
    }

    pub fn close(self) {
        sys::close(self.from);
        sys::close(self.to);
    }

    /// Writes as much as the pipe holds at once.
    fn write(self, parts: &[libc::iovec], file: i32, mut offset: u64) -> Result<usize, Errno> {
        // SAFETY: memory of the writer's. Nobody else has the pipe; in the end it is empty again, or not used any more.
        unsafe {
            let all = call!(libc::SYS_vmsplice, self.to, parts.as_ptr(), parts.len(), 0)?;
            let mut left = all;
            while left > 0 {
                match call!(libc::SYS_splice, self.from, 0, file, &raw mut offset, left, 0) {
                    Ok(0) => return Err(libc::EIO),
                    Ok(moved) => left -= moved,
                    Err(libc::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Ok(all)
        }
    }
}

/// Pages to be summed up and written.
#[derive(Clone, Copy)]
pub struct Step {
    pub file: i32,
    pub from: *const u8,
    pub pages: usize,
    /// Their offset in the file.
    pub offset: u64,
    /// The address of that offset, if the file is mapped.
    pub mapped: Option<usize>,
    /// Receives the checksum of each page.
    pub sums: *mut Sum,
    /// End at the first page of zeros.
    pub skip_zeros: bool,
}

impl Step {
    /// The part of it that begins with page `at`.
    fn part(self, at: usize) -> Step {
        let before = at * PAGE;
        Step {
            from: self.from.wrapping_add(before),
            pages: (self.pages - at).min(PART),
            offset: self.offset + before as u64,
            mapped: self.mapped.map(|start| start + before),
            sums: self.sums.wrapping_add(at),
            ..self
        }
    }

    /// Sums up and writes the pages. Returns how many.
    ///
    /// # Safety
    /// The pages can be read and nobody writes there; nobody else has the memory that this writes to.
    pub unsafe fn take(self) -> Result<usize, Errno> {
        // SAFETY: as required.
        unsafe {
            let pages = self.sum();
            if self.mapped.is_none() {
                self.write(pages)?;
            }
            Ok(pages)
        }
    }

    /// Sums up the pages, and copies them to their place if it is mapped. Returns how many.
    ///
    /// # Safety
    /// As above.
    unsafe fn sum(self) -> usize {
        // SAFETY: as required.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(self.sums, self.pages);
            match self.mapped {
                Some(to) => checksum::stream_and_sum(self.from, to as *mut u8, sums, self.skip_zeros),
                None => checksum::sum_each(self.from, sums, self.skip_zeros, |_, _| ()),
            }
        }
    }

    /// Writes the first `pages`.
    ///
    /// # Safety
    /// As above.
    unsafe fn write(self, pages: usize) -> Result<(), Errno> {
        let part = part(self.from, pages * PAGE);
        // SAFETY: as required.
        unsafe { Batch::of(self.file, &part, self.offset).write() }
    }
}

pub fn part(from: *const u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: from.cast_mut().cast(),
        iov_len: bytes,
    }
}

/// What the writer gives the thread to do.
#[derive(Clone, Copy)]
enum Task {
    Write(Batch),
    /// Some parts of the step.
    Share(Step),
}

const IDLE: u32 = 0;
/// There is a task, which the thread has not seen yet.
const GIVEN: u32 = 1;
const BUSY: u32 = 2;
const LEAVE: u32 = 3;

/// Looks at the state before going to sleep, some 10 µs: the change is usually that near.
const LOOKS: u32 = 300;

const STACK: usize = 64 << 10;

/// Pages of a shared step that either thread takes at once.
const PART: usize = (256 << 10) / PAGE;
/// Pages that a shared step may have: a bit for each part.
pub const MOST_SHARED: usize = PART * u64::BITS as usize;

/// What both threads use, and the helper's stack. Nothing of it may lie in memory that is being written to the file: it
/// changes meanwhile.
#[repr(C, align(4096))]
struct Shared {
    /// The thread control block: its own address first, and at 16.
    control_block: [usize; 8],
    state: AtomicU32,
    /// The thread's number; the kernel clears it when it has left its stack.
    running: AtomicU32,
    /// The thread's while the state is BUSY, else the writer's.
    task: UnsafeCell<(Task, Result<(), Errno>)>,
    /// Of the shared step: neither thread has taken the pages from here on.
    next: AtomicUsize,
    /// The step ends here.
    end: AtomicUsize,
    /// Parts that are summed up but not written: a bit for each.
    summed: AtomicU64,
    /// One of the two threads is writing them.
    writing: AtomicBool,
    stack: [u8; STACK],
}

impl Shared {
    /// # Safety
    /// See [`Batch::write`] and [`Step::take`].
    unsafe fn run(&self, task: Task) -> Result<(), Errno> {
        // SAFETY: as required.
        unsafe {
            match task {
                Task::Write(batch) => batch.write(),
                Task::Share(step) => self.take_parts(step),
            }
        }
    }

    /// Takes one part after the other until there are none. Work on parts behind the first page of zeros is wasted.
    ///
    /// # Safety
    /// See [`Step::take`].
    unsafe fn take_parts(&self, step: Step) -> Result<(), Errno> {
        loop {
            let at = self.next.fetch_add(PART, Ordering::Relaxed);
            if at >= self.end.load(Ordering::Relaxed) {
                return Ok(());
            }
            let part = step.part(at);
            // SAFETY: as required; nobody else has this part.
            let taken = unsafe { part.sum() };
            if taken < part.pages {
                self.end.fetch_min(at + taken, Ordering::Relaxed);
            }
            if step.mapped.is_none() {
                self.summed.fetch_or(1 << (at / PART), Ordering::SeqCst);
                // SAFETY: as required.
                unsafe { self.write_summed(step)? };
            }
        }
    }

    /// Writes what either thread summed up, unless the other thread does. The kernel lets only one at a time write to a
    /// file, and the second would spend its processor waiting.
    ///
    /// # Safety
    /// See [`Step::take`].
    unsafe fn write_summed(&self, step: Step) -> Result<(), Errno> {
        // A thread that leaves a part to the other does so before the other looks for the last time.
        while self.summed.load(Ordering::SeqCst) != 0 && !self.writing.swap(true, Ordering::SeqCst) {
            let mut parts = self.summed.swap(0, Ordering::SeqCst);
            while parts != 0 {
                let at = parts.trailing_zeros() as usize * PART;
                parts &= parts - 1;
                let part = step.part(at);
                let pages = self.end.load(Ordering::Relaxed).saturating_sub(at).min(part.pages);
                // SAFETY: as required; nobody else writes this part.
                unsafe { part.write(pages)? };
            }
            self.writing.store(false, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The thread; it ends when this is dropped.
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
        // SAFETY: aligned and long enough. Zeros mean idle; the next statement writes the field that is no number. It
        // stays mapped until the thread has left.
        let shared: &'static Shared = unsafe { &*(own as *const Shared) };
        let nothing = Batch::of(-1, &part(std::ptr::null(), 0), 0);
        // SAFETY: nobody else knows it yet.
        unsafe { shared.task.get().write((Task::Write(nothing), Ok(()))) };
        let stack = &raw const shared.stack as usize + STACK;
        // SAFETY: the stack is its alone, and `run` makes system calls only.
        unsafe { clones::start_service(stack, own, &shared.running, run, own) }
            .map_err(|errno| Trouble::new("no thread can be made to write the file", errno))?;
        Ok(Helper {
            _memory: memory,
            shared,
        })
    }

    /// Waits for the last task and returns its result.
    pub fn wait(&self) -> Result<(), Errno> {
        let state = &self.shared.state;
        if state
            .compare_exchange(GIVEN, IDLE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            // The thread got no processor and has not begun: do its task here.
            // SAFETY: the writer has the task again. The caller that gave it promised the rest.
            return unsafe { self.shared.run((*self.shared.task.get()).0) };
        }
        await_change(state, BUSY);
        // SAFETY: not busy. The result is taken once.
        unsafe { std::mem::replace(&mut (*self.shared.task.get()).1, Ok(())) }
    }

    /// Gives the thread a batch to write; its last task is done.
    ///
    /// # Safety
    /// See [`Batch::write`]; this holds until the caller has waited.
    pub unsafe fn give(&self, batch: Batch) {
        // SAFETY: as required.
        unsafe { self.hand(Task::Write(batch)) };
    }

    /// Takes a step of at most [`MOST_SHARED`] pages together with the thread: whichever has time takes the next part.
    /// Returns how many pages. The thread has no other task.
    ///
    /// # Safety
    /// See [`Step::take`].
    pub unsafe fn share(&self, step: Step) -> Result<usize, Errno> {
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.end.store(step.pages, Ordering::Relaxed);
        self.shared.summed.store(0, Ordering::Relaxed);
        self.shared.writing.store(false, Ordering::Relaxed);
        // SAFETY: as required, and this waits for the thread.
        let (here, there) = unsafe {
            self.hand(Task::Share(step));
            (self.shared.take_parts(step), self.wait())
        };
        here.and(there)?;
        Ok(self.shared.end.load(Ordering::Relaxed))
    }

    /// See [`Shared::run`]; this holds until the caller has waited. The caller has waited for the last task.
    /// See [`Shared::run`]; until it has been waited for, as the last one has been.
    unsafe fn hand(&self, task: Task) {
        // SAFETY: not busy.
        unsafe { *self.shared.task.get() = (task, Ok(())) };
        self.tell(GIVEN);
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

/// Waits until the state is no longer `while_it_is`.
fn await_change(state: &AtomicU32, while_it_is: u32) {
    for _ in 0..LOOKS {
        if state.load(Ordering::SeqCst) != while_it_is {
            return;
        }
        std::hint::spin_loop();
    }
    while state.load(Ordering::SeqCst) == while_it_is {
        sys::futex_wait(state, while_it_is, None);
    }
}

extern "C" fn run(own: usize) -> ! {
    // SAFETY: `start` gives the address, and it stays mapped until this thread has left.
    let shared = unsafe { &*(own as *const Shared) };
    loop {
        match shared.state.load(Ordering::SeqCst) {
            IDLE => await_change(&shared.state, IDLE),
            GIVEN => {
                let (state, seen) = (&shared.state, Ordering::SeqCst);
                if state.compare_exchange(GIVEN, BUSY, seen, seen).is_ok() {
                    // SAFETY: busy. The caller that gave it promised the rest.
                    let task = unsafe { &mut *shared.task.get() };
                    // SAFETY: as above.
                    task.1 = unsafe { shared.run(task.0) };
                    state.store(IDLE, seen);
                    sys::futex_wake(state);
                }
            }
            _ => {
                // SAFETY: ends this thread only.
                let _ = unsafe { call!(libc::SYS_exit, 0) };
            }
        }
    }
}

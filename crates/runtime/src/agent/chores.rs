//! Work on logs that takes long: threads do it, as the agent has its lease to keep.
//!
//! They do one piece at a time, since each may need as much memory as a log. When the memory is about to begin anew, what
//! has been ordered before is [void](Chores::void), and the work under way ends first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::background;

/// How much lower than the agent's priority that of these threads is.
const NICE: i32 = 5;

/// What a thread has done.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// What an image needs of its rank's log lies beside it, or cannot be had.
    LogTaken {
        rank: u32,
        number: u64,
        result: Result<(), String>,
    },
    /// That is in the memory again.
    LogPut {
        rank: u32,
        number: u64,
        result: Result<(), String>,
    },
}

/// The common part of the loop and its threads.
#[derive(Default)]
struct Order {
    /// Held by the thread that works.
    turn: Mutex<()>,
    /// How often the memory has begun anew.
    anew: AtomicU64,
}

impl Order {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps threads from the logs.
#[derive(Clone)]
pub struct Quiet(Arc<Order>);

impl Quiet {
    /// Waits until no thread works on them.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}

/// The loop's end.
pub struct Chores {
    order: Arc<Order>,
    way: Sender<(u64, Done)>,
    done: Receiver<(u64, Done)>,
    bell: Arc<EventFd>,
}

impl Chores {
    pub fn new() -> io::Result<Chores> {
        let (way, done) = channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Chores {
            order: Arc::default(),
            way,
            done,
            bell: Arc::new(bell),
        })
    }

    /// Has a thread do this in its turn. `work` learns whether the memory has begun anew meanwhile.
    pub fn order(&self, work: impl FnOnce(bool) -> Done + Send + 'static) -> io::Result<()> {
        let (order, way, bell) = (self.order.clone(), self.way.clone(), self.bell.clone());
        let ordered = self.anew();
        let in_turn = move || {
            let turn = order.lock();
            let done = work(order.anew.load(Ordering::SeqCst) != ordered);
            drop(turn);
            // The agent is gone, or reads it.
            if way.send((ordered, done)).is_ok() {
                let _ = bell.write(1);
            }
        };
        background::spawn("chores", NICE, in_turn).map(|_| ())
    }

    /// The memory is about to begin anew: what has been ordered is void. With the answer one can wait until no thread
    /// works on logs.
    pub fn void(&self) -> Quiet {
        self.order.anew.fetch_add(1, Ordering::SeqCst);
        Quiet(self.order.clone())
    }

    /// How often the memory has begun anew.
    pub fn anew(&self) -> u64 {
        self.order.anew.load(Ordering::SeqCst)
    }

    /// What has been done since the last call, and whether it is void now.
    pub fn done(&self) -> Vec<(Done, bool)> {
        let _ = self.bell.read();
        let anew = self.anew();
        self.done
            .try_iter()
            .map(|(ordered, done)| (done, ordered != anew))
            .collect()
    }
}

/// Readable when something has been done.
impl AsFd for Chores {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(number: u64, is_void: bool) -> Done {
        Done::LogTaken {
            rank: 0,
            number,
            result: if is_void { Err("void".to_string()) } else { Ok(()) },
        }
    }

    fn wait_for(chores: &Chores, count: usize) -> Vec<(Done, bool)> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(chores.done());
            std::thread::yield_now();
        }
        all
    }

    #[test]
    fn nobody_waits_for_a_chore_and_what_was_ordered_before_a_new_beginning_is_void() {
        let chores = Chores::new().unwrap();
        let ((begun, begins), (go, goes)) = (channel(), channel::<()>());
        let first = move |is_void| {
            begun.send(()).unwrap();
            goes.recv().unwrap();
            taken(1, is_void)
        };
        chores.order(first).unwrap();
        begins.recv().unwrap();
        // The first one does not end, and this one waits for its turn; the loop for neither.
        chores.order(|is_void| taken(2, is_void)).unwrap();
        assert_eq!(chores.done(), []);
        let quiet = chores.void();
        assert!(quiet.0.turn.try_lock().is_err());
        go.send(()).unwrap();
        drop(quiet.hold());
        chores.order(|is_void| taken(3, is_void)).unwrap();
        let mut all = wait_for(&chores, 3);
        all.sort_by_key(|(done, _)| match done {
            Done::LogTaken { number, .. } | Done::LogPut { number, .. } => *number,
        });
        let expected = [(1, false, true), (2, true, true), (3, false, false)];
        assert_eq!(all, expected.map(|(number, was, is)| (taken(number, was), is)));
    }
}

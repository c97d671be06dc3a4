//! Ranks that wait for each other on one processor, while others are idle, move apart.
//!
//! A waiting rank gives its core away. So two ranks that take turns never look busy to the kernel, which leaves them on one
//! core, and each message costs a change of processes. With a core for each of them it costs a tenth.

use crate::clock::ticks;
use crate::node::Node;
use resurgo_wire::node_memory::control;
use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::Ordering;

/// Vain reads between two looks at where the other rank runs: between nodes that takes a system call.
const READS: u32 = 32;
/// So many looks in a row have found it on this rank's processor.
const LOOKS: u32 = 8;
/// Time between two moves: twice as long each time, unless the last one has lasted.
const FIRST_PAUSE_US: u64 = 2_000;
const LONGEST_PAUSE_US: u64 = 1_000_000;

#[derive(Default)]
pub struct Apart {
    reads: u32,
    together: u32,
    /// When this rank may move again, in ticks, and the pause before that.
    from: u64,
    pause_us: u64,
}

impl Apart {
    /// Of a read that has found nothing: whether to look where the other rank runs.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.reads = self.reads.wrapping_add(1);
        self.reads.is_multiple_of(READS)
    }

    /// The other rank runs on the processor `theirs`, this one on `own`. True: it is time to move.
    fn should_move(&mut self, own: u32, theirs: Option<u32>, now: u64, ticks_per_us: u64) -> bool {
        if theirs != Some(own) {
            self.together = 0;
            return false;
        }
        self.together += 1;
        if self.together < LOOKS || now < self.from {
            return false;
        }
        self.together = 0;
        let has_lasted = now - self.from > LONGEST_PAUSE_US * ticks_per_us;
        self.pause_us = match has_lasted {
            true => FIRST_PAUSE_US,
            false => (self.pause_us * 2).clamp(FIRST_PAUSE_US, LONGEST_PAUSE_US),
        };
        self.from = now + self.pause_us * ticks_per_us;
        true
    }

    /// This rank runs here, and waits for one that runs on the processor `theirs`. Moves if that is the same and the
    /// machine has a processor without ranks of this job.
    pub fn mind(&mut self, node: &Node, theirs: Option<u32>, ticks_per_us: u64) {
        let Some(own) = processor() else { return };
        publish(node, own);
        if self.should_move(own, theirs, ticks(), ticks_per_us)
            && move_away(node, own)
            && let Some(own) = processor()
        {
            publish(node, own);
        }
    }
}

/// The processor of a rank of this node, as it has said when it waited last.
pub fn processor_of(node: &Node, rank: usize) -> Option<u32> {
    let word = node.control(rank, control::PROCESSOR).load(Ordering::Relaxed);
    word.checked_sub(1)
}

fn publish(node: &Node, own: u32) {
    let word = node.control(node.rank, control::PROCESSOR);
    if word.load(Ordering::Relaxed) != own + 1 {
        word.store(own + 1, Ordering::Relaxed);
    }
}

fn processor() -> Option<u32> {
    // SAFETY: has no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Makes the kernel move this thread to a processor that it may use and no rank of this node has. It may move on at once:
/// what it may use stays the same. False: there is none.
fn move_away(node: &Node, own: u32) -> bool {
    let mut may = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most so many bytes.
    let may = unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), may.as_mut_ptr()) != 0 {
            return false;
        }
        may.assume_init()
    };
    let ranks = (0..node.ranks()).filter(|rank| *rank != node.rank && !node.is_elsewhere(*rank));
    let mut others = may;
    // SAFETY: changes bits inside of the set: the number is checked.
    let mut without = |processor: u32| unsafe {
        if (processor as usize) < 8 * size_of::<libc::cpu_set_t>() {
            libc::CPU_CLR(processor as usize, &mut others);
        }
    };
    without(own);
    ranks.filter_map(|rank| processor_of(node, rank)).for_each(&mut without);
    // SAFETY: reads the sets. Failing changes nothing.
    unsafe {
        if libc::CPU_COUNT(&others) == 0 || libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &others) != 0 {
            return false;
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &may);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// When it moves within so many looks, a microsecond each, and the other rank is always where it is.
    fn moves(apart: &mut Apart, from: u64, looks: u64) -> Vec<u64> {
        let times = from..from + looks;
        times.filter(|now| apart.should_move(3, Some(3), *now, 1)).collect()
    }

    #[test]
    fn a_rank_moves_away_from_the_one_that_it_waits_for_and_not_too_often() {
        let mut apart = Apart::default();
        let begin = 10 * SECOND;
        let first = moves(&mut apart, begin, 10_000);
        assert_eq!(first.len(), 3, "{first:?}");
        assert_eq!(first[0], begin + u64::from(LOOKS) - 1);
        assert!(moves(&mut apart, begin + 10_000, 9 * SECOND).len() < 20);
        // It has been alone for long.
        let later = begin + 30 * SECOND;
        assert_eq!(moves(&mut apart, later, 10_000).len(), 3);
    }

    #[test]
    fn a_rank_stays_while_the_other_is_elsewhere_or_only_passes_by() {
        let mut apart = Apart::default();
        for now in 0..1000 {
            let theirs = [Some(3), Some(3), None, Some(4)][now as usize % 4];
            assert!(!apart.should_move(3, theirs, now, 1));
        }
    }

    #[test]
    fn what_a_thread_may_use_stays_the_same() {
        let nodes = crate::node::tests::pair(1, true);
        let may = || {
            let mut may = MaybeUninit::<libc::cpu_set_t>::zeroed();
            // SAFETY: as above.
            unsafe {
                assert_eq!(
                    libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), may.as_mut_ptr()),
                    0
                );
                may.assume_init()
            }
        };
        let before = may();
        // SAFETY: reads the set.
        let count = unsafe { libc::CPU_COUNT(&before) };
        let own = processor().unwrap();
        assert_eq!(move_away(&nodes.0, own), count > 1);
        // SAFETY: reads the sets.
        assert!(unsafe { libc::CPU_EQUAL(&before, &may()) });
        // With both ranks there, only further processors are free.
        publish(&nodes.1, (own + 1) % 2);
        if count == 2 && own < 2 {
            assert!(!move_away(&nodes.0, own));
        }
    }
}

//! Where Resurgo's own memory lies in a rank's address space: beside the kernel's own placements, and at the same place
//! in every life.
//!
//! ```text
//! 0x01f0_0000_0000    copies of files (crates/image, contents.rs)
//! 0x0200_0000_0000    the restorer and its plan (file/plan.rs)
//! 0x0210_0000_0000    tables of the writer of image files (zone.rs)
//! 0x0300_0000_0000    the provider's heap
//! 0x0400_0000_0000    the node memory, somewhere up to
//! 0x5000_0000_0000    below the program (0x5555_5555_4000 and more) and its heap
//! ```
//!
//! The kernel places mappings in one of three ways:
//!
//! - With an ordinary limit of the stack it goes down from the stack's end, far above all of this.
//! - With an unlimited stack it goes down from a sixth of the address space (0x1555_5555_5000), with a very large limit
//!   from somewhere between.
//! - In the legacy layout (`setarch -L`, `vm.legacy_va_layout`) it goes up from a third (0x2aaa_aaaa_b000).
//!
//! With randomised addresses each may begin up to [`SPREAD`] lower, or in the legacy layout higher.

use std::ops::Range;

/// The provider's heap.
pub const HEAP: Range<usize> = 0x0300_0000_0000..0x0400_0000_0000;
/// Where the node memory may lie.
const MIDDLE: Range<usize> = HEAP.end..0x5000_0000_0000;
/// Where it lies if it may lie anywhere.
const USUAL: Range<usize> = 0x1000_0000_0000..MIDDLE.end;
/// The most by which randomisation moves a program's mappings: 32 bits of pages.
const SPREAD: usize = 1 << 44;
/// The least room that stays for the addresses of the program's mappings.
const FOR_THE_PROGRAM: usize = 1 << 42;
/// The node memory begins at a multiple of this, so that randomised addresses mostly leave its place unchanged.
const GRAIN: usize = 1 << 42;

/// Where the node memory has room in processes in which the kernel places new memory at `first` and then at `second`.
pub fn room_for_node_memory(first: usize, second: usize) -> Range<usize> {
    let (lowest, highest) = (first.saturating_sub(SPREAD), first.saturating_add(SPREAD));
    let program = if second < first {
        lowest.saturating_sub(FOR_THE_PROGRAM)..highest
    } else {
        lowest..highest.saturating_add(FOR_THE_PROGRAM)
    };
    if program.start >= USUAL.end {
        return USUAL;
    }
    let below = MIDDLE.start..program.start.max(MIDDLE.start);
    let above = program.end.next_multiple_of(GRAIN).min(MIDDLE.end)..MIDDLE.end;
    if below.len() > above.len() { below } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: usize = 0x7fff_ffff_f000;
    const FAR_DOWN: usize = 1 << 30;

    /// Where the kernel begins, by its rules for x86-64, with this limit of the stack, and `random` lower.
    fn top(stack: usize, random: usize) -> usize {
        TASK - stack.clamp(128 << 20, TASK / 6 * 5) - random
    }

    #[test]
    fn an_ordinary_stack_changes_nothing() {
        for stack in [0, 8 << 20, 64 << 30, 1 << 40] {
            for random in [0, 1 << 40, SPREAD] {
                let first = top(stack, random);
                assert_eq!(room_for_node_memory(first, first - FAR_DOWN), USUAL, "{first:x}");
            }
        }
    }

    /// For each way of placing: no random place of another process is in the way, whatever this process was given.
    #[test]
    fn the_program_keeps_its_place() {
        let draws = [0, 1 << 20, 1 << 40, 3 << 42, SPREAD];
        let stacks = (0..128).map(|tebibytes| tebibytes << 40).chain([usize::MAX]);
        for stack in stacks {
            for asked in draws {
                let room = room_for_node_memory(top(stack, asked), top(stack, asked) - FAR_DOWN);
                assert!(room.len() >= 20 << 40, "{stack:x} {asked:x}: {room:x?}");
                assert!(room.start >= MIDDLE.start && room.end <= MIDDLE.end);
                for drawn in draws {
                    let begin = top(stack, drawn);
                    let used = begin.saturating_sub(FOR_THE_PROGRAM).max(HEAP.end)..begin;
                    assert!(
                        used.end <= room.start || used.start >= room.end,
                        "{stack:x} {asked:x} {drawn:x}: {room:x?}"
                    );
                }
            }
        }
        for asked in draws {
            let bottom = TASK / 3 + asked;
            let room = room_for_node_memory(bottom, bottom + FAR_DOWN);
            assert!(room.len() >= 20 << 40, "{asked:x}: {room:x?}");
            for drawn in draws {
                let begin = TASK / 3 + drawn;
                assert!(room.end <= begin || begin + FOR_THE_PROGRAM <= room.start, "{room:x?}");
            }
        }
    }

    #[test]
    fn the_place_hardly_depends_on_what_was_drawn() {
        // 28 bits of pages, as most kernels have.
        let places = (0..256).map(|part| {
            let first = top(usize::MAX, part << 32);
            room_for_node_memory(first, first - FAR_DOWN).start
        });
        assert!(places.into_iter().all(|place| place == 0x2800_0000_0000));
    }
}

//! The ranks' address space under the user's limits: where the node memory goes, and how much of it there may be.

use std::ops::Range;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use resurgo_runtime::trampoline::{has_legacy_layout, set_legacy_layout};
use resurgo_runtime::units::readable_size;
use resurgo_wire::control::Job;
use resurgo_wire::node_memory::{BLOCK, LARGE_PAGE, Layout, SEGMENT};
use resurgo_wire::places;

use crate::check::Refusal;

/// About what a small MPI program takes beside the node memory (MPICH 5.0.2: 130 MiB).
const PROGRAM: u64 = 256 << 20;
/// A small number of ranks that a job may spawn even where addresses are few.
const FEW: usize = 8;
/// Log memory of a rank, at least and at most, if the user does not give an amount.
const LOG_MEMORY: Range<usize> = 1 << 20..8 << 30;

/// Where the node memory has room in the ranks. Ranks get their limits from this process, so the kernel places their
/// memory as it does here.
pub fn room() -> Range<usize> {
    // More than libc ever takes from its heap: each is a mapping of its own. Neither is touched.
    const BYTES: usize = 64 << 20;
    let [mut first, mut second] = [const { Vec::<u8>::new() }; 2];
    if [&mut first, &mut second]
        .into_iter()
        .any(|memory| memory.try_reserve_exact(BYTES).is_err())
    {
        // No program could run with so little. Answer as with ordinary limits; another check refuses what is too small.
        return places::room_for_node_memory(usize::MAX, 0);
    }
    let address = |memory: &Vec<u8>| std::hint::black_box(memory.as_ptr()) as usize;
    places::room_for_node_memory(address(&first), address(&second))
}

fn soft_limit(resource: Resource, what: &str) -> Result<u64, Refusal> {
    getrlimit(resource)
        .map(|(soft, _)| soft)
        .map_err(|error| Refusal::new(2, format!("cannot read the limit of {what}: {error}")))
}

/// What decides where the kernel places memory: the limit of the stack, and whether the user asks for the legacy
/// layout.
pub fn decided_by() -> Result<(u64, bool), Refusal> {
    Ok((soft_limit(Resource::RLIMIT_STACK, "the stack")?, has_legacy_layout()))
}

/// Gives this process, and so the ranks, the stack limit and the layout that the job was started with.
pub fn as_before(job: &Job) -> Result<(), Refusal> {
    let (stack, legacy) = decided_by()?;
    let refused = |error: nix::Error, what: &str| Refusal::new(1, format!("{what}: {error}"));
    if stack != job.addresses.stack_limit {
        let (_, hard) =
            getrlimit(Resource::RLIMIT_STACK).map_err(|error| refused(error, "cannot read the limit of the stack"))?;
        if job.addresses.stack_limit > hard {
            let shown = |limit| match limit {
                RLIM_INFINITY => "unlimited".to_string(),
                limit => readable_size(limit),
            };
            return Err(Refusal::new(
                1,
                format!(
                    "the job was started with a stack of {} (ulimit -s), and may have {} here: raise the hard limit (ulimit -Hs), or \
                     resume it where that is higher",
                    shown(job.addresses.stack_limit),
                    shown(hard)
                ),
            ));
        }
        setrlimit(Resource::RLIMIT_STACK, job.addresses.stack_limit, hard)
            .map_err(|error| refused(error, "cannot set the limit of the stack that the job was started with"))?;
    }
    if legacy != job.addresses.legacy_layout {
        set_legacy_layout(job.addresses.legacy_layout).map_err(|error| {
            refused(
                error,
                "cannot have the memory layout that the job was started with (setarch -L)",
            )
        })?;
    }
    Ok(())
}

/// How much the node memory may take of what the user's limits leave to each process: half, but nothing that a small
/// program needs. The node memory is a file, and is mapped.
fn share_of_limits() -> Result<usize, Refusal> {
    let files = soft_limit(Resource::RLIMIT_FSIZE, "file sizes")?;
    let addresses = soft_limit(Resource::RLIMIT_AS, "virtual memory")?;
    Ok((files / 2).min(addresses / 2).min(addresses.saturating_sub(PROGRAM)) as usize)
}

/// Makes room in `room` for ranks that may be spawned, but stays below every limit of the user.
pub fn with_spare_room(layout: Layout, room: &Range<usize>) -> Result<Layout, Refusal> {
    Ok(layout.with_room(room.len().min(share_of_limits()?)))
}

/// The most segments of log of a rank in `layout`, if the user does not give a number. All ranks together get half of
/// the available memory, at most 8 GiB each. A log must also fit into the rank's share of the user's limits. There it
/// leaves room for the ranks that may be spawned, or for [`FEW`] of them.
pub fn default_log_segments(layout: Layout, may_spawn: bool) -> Result<usize, Refusal> {
    let available = resurgo_runtime::memory::available().unwrap_or(1 << 30) as usize;
    let memory = available / 2 / layout.size;
    let further = if may_spawn { layout.size.max(FEW) } else { 0 };
    let roomy = Layout {
        size: layout.size + further,
        ..layout
    };
    Ok(log_segments(roomy, memory, share_of_limits()?))
}

/// `memory`: bytes for the log of each rank; `most`: bytes of addresses for the node memory.
fn log_segments(layout: Layout, memory: usize, most: usize) -> usize {
    let wanted = memory.clamp(LOG_MEMORY.start, LOG_MEMORY.end) / SEGMENT;
    let total = Layout {
        log_segments: wanted,
        ..layout
    }
    .total();
    // An arena consists of blocks.
    let blocks_too_many = total.saturating_sub(most).div_ceil(layout.size * LARGE_PAGE);
    wanted
        .saturating_sub(blocks_too_many * BLOCK)
        .max(LOG_MEMORY.start / SEGMENT)
}

/// Checks that there is room for a new job's node memory.
pub fn check(layout: &Layout, room: &Range<usize>) -> Result<(), Refusal> {
    if layout.total() > room.len() {
        return Err(Refusal::new(
            2,
            format!(
                "the node memory of this job is {}, and there are {} of addresses for it; lower --log-memory",
                readable_size(layout.total() as u64),
                readable_size(room.len() as u64)
            ),
        ));
    }
    check_limits(layout, ", start fewer ranks, or lower --log-memory")
}

/// Checks what the node memory needs: its pages come into being one by one, but its whole size counts at once.
/// `or_else`: what the user can do besides raising a limit.
pub fn check_limits(layout: &Layout, or_else: &str) -> Result<(), Refusal> {
    let bytes = layout.total() as u64;
    let size = readable_size(bytes);
    for (resource, option, what, needed) in [
        (Resource::RLIMIT_FSIZE, "-f", "file sizes", bytes),
        (Resource::RLIMIT_AS, "-v", "virtual memory", bytes + PROGRAM),
    ] {
        let limit = soft_limit(resource, what)?;
        if limit < needed {
            return Err(Refusal::new(
                2,
                format!(
                    "the limit of {what} (ulimit {option}) is {}, and a rank needs {}: the node memory of this job is a memory file of \
                     {size}, most of it never touched. Raise the limit (ulimit {option} {}){or_else}",
                    readable_size(limit),
                    readable_size(needed),
                    needed.div_ceil(1024),
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_take_what_memory_and_limits_allow() {
        for (size, spills, piggybacks) in [
            (1, false, false),
            (4, false, false),
            (7, true, false),
            (300, false, true),
        ] {
            let layout = Layout {
                size,
                log_segments: 0,
                spills,
                piggybacks,
                trace_records: size,
                undoes: spills,
                rereads: piggybacks,
            };
            assert_eq!(log_segments(layout, usize::MAX, usize::MAX), (8 << 30) / SEGMENT);
            assert_eq!(log_segments(layout, 1 << 27, usize::MAX), (1 << 27) / SEGMENT);
            assert_eq!(log_segments(layout, 0, usize::MAX), (1 << 20) / SEGMENT);
            let least = log_segments(layout, usize::MAX, 0);
            assert_eq!(least, (1 << 20) / SEGMENT);
            let total = |log_segments| Layout { log_segments, ..layout }.total();
            for more in [0, 5 << 20, 3 << 30] {
                let most = total(least) + size * more;
                let found = log_segments(layout, usize::MAX, most);
                assert!(
                    total(found) <= most && total(found + 2 * BLOCK) > most,
                    "{size} {more}: {found}"
                );
            }
        }
    }

    #[test]
    fn there_is_room_here() {
        assert!(room().len() >= 20 << 40);
    }
}

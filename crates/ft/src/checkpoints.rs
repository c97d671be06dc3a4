//! Checkpoints in the memory of ranks, for programs that deal with failures themselves (`resurgo_ft.h`). What counts,
//! and who keeps what, is decided by [`resurgo_protocol::diskless`].

mod calls;
mod finding;
mod memory;
mod region;
mod saving;
mod set;

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errors::{raise, returns_errors};
use crate::layer;
use crate::mpi::{ANY_SOURCE, COMM_WORLD, Comm, ERR_ARG, ERR_COMM, PROC_NULL, SUCCESS, pmpi};
use crate::provider;
use calls::{Members, Outcome};
use finding::{Found, Want};
use memory::Memory;
use region::Region;
use saving::Wanted;

/// RESURGO_FT_ALL, for an id.
const ALL: c_int = -1;
/// There is no checkpoint.
const NOTHING: c_int = 201;
/// More is lost of it than it covers.
const LOST: c_int = 202;

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Memory>> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call of all members of `comm`. Nothing is locked meanwhile, and the program's error handler is called at the end
/// only: it may leave by longjmp.
fn all_call(comm: Comm, call: impl FnOnce(Members, &mut Memory) -> Outcome<c_int>) -> c_int {
    match layer::with(comm, |known| known.remote.is_none()) {
        None => return raise(COMM_WORLD, ERR_COMM),
        Some(false) => return raise(comm, ERR_COMM),
        Some(true) => {}
    }
    let mut memory = lock().take().unwrap_or_default();
    let mut handler: c_int = 0;
    pmpi!(MPI_Comm_get_errhandler(comm => Comm, &mut handler => *mut c_int));
    returns_errors(comm);
    let outcome = call(Members::of(comm), &mut memory);
    pmpi!(MPI_Comm_set_errhandler(comm => Comm, handler => c_int));
    pmpi!(MPI_Errhandler_free(&mut handler => *mut c_int));
    *lock() = Some(memory);
    match outcome {
        Ok(code) => code,
        Err(class) => raise(comm, class),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_protect(id: c_int, address: usize, count: i64, datatype: c_int) -> c_int {
    let region = Region {
        address,
        count,
        datatype,
    };
    if id < 0 || region.bytes().is_none() {
        return raise(COMM_WORLD, ERR_ARG);
    }
    lock().get_or_insert_default().regions.insert(id, region);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_unprotect(id: c_int) -> c_int {
    let mut memory = lock();
    let regions = &mut memory.get_or_insert_default().regions;
    regions.retain(|known, _| id != ALL && *known != id);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_checkpoint(comm: Comm, version: c_int, scheme: c_int, losses: c_int) -> c_int {
    if !provider::is_there() {
        return SUCCESS;
    }
    let wanted = Wanted {
        version,
        scheme,
        losses,
    };
    all_call(comm, |members, memory| {
        saving::save(members, memory, wanted).map(|()| SUCCESS)
    })
}

/// # Safety
/// The program's place for the version.
unsafe fn found(found: Found, version: *mut c_int) -> c_int {
    match found {
        Found::Nothing => NOTHING,
        Found::Lost => LOST,
        Found::Version(number) => {
            // SAFETY: as the caller promises.
            unsafe { *version = number };
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_find(comm: Comm, version: *mut c_int) -> c_int {
    if !provider::is_there() {
        return NOTHING;
    }
    all_call(comm, |members, memory| {
        let what = finding::find(members, memory)?;
        // SAFETY: the program's place for it.
        Ok(unsafe { found(what, version) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_restore(comm: Comm, version: *mut c_int) -> c_int {
    if !provider::is_there() {
        return NOTHING;
    }
    all_call(comm, |members, memory| {
        let what = finding::find(members, memory)?;
        if let Found::Version(_) = &what {
            let wants = memory.regions.iter().map(|(id, to)| Want {
                label: None,
                id: *id,
                to: *to,
            });
            finding::fetch(members, memory.counts.as_ref(), &wants.collect::<Vec<_>>())?;
        }
        // SAFETY: the program's place for it.
        Ok(unsafe { found(what, version) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_read(
    comm: Comm,
    rank: c_int,
    id: c_int,
    address: usize,
    count: i64,
    datatype: c_int,
) -> c_int {
    if !provider::is_there() {
        return NOTHING;
    }
    all_call(comm, |members, memory| {
        let want = Want {
            label: label(rank),
            id,
            to: Region {
                address,
                count,
                datatype,
            },
        };
        let wants = if rank == PROC_NULL { vec![] } else { vec![want] };
        finding::fetch(members, memory.counts.as_ref(), &wants).map(|()| SUCCESS)
    })
}

fn label(rank: c_int) -> Option<c_int> {
    (rank != ANY_SOURCE).then_some(rank)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_size(rank: c_int, id: c_int, bytes: *mut i64) -> c_int {
    let memory = lock();
    let set = memory.as_ref().and_then(|memory| memory.counts.as_ref());
    let found = set.and_then(|set| {
        let place = set.find(label(rank), id)?;
        set.directory.regions.get(&(id, place))
    });
    // SAFETY: the program's place for it.
    unsafe { *bytes = found.map_or(-1, |(_, bytes)| *bytes as i64) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_inherited(most: c_int, ranks: *mut c_int, count: *mut c_int) -> c_int {
    let memory = lock();
    let inherited = memory.as_ref().map_or(Vec::new(), |memory| memory.inherited());
    // SAFETY: the program's places for so many.
    unsafe {
        for (at, rank) in inherited.iter().take(usize::try_from(most).unwrap_or(0)).enumerate() {
            *ranks.add(at) = *rank;
        }
        *count = inherited.len() as c_int;
    }
    SUCCESS
}

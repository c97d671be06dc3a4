//! Communicators with gaps (FT-MPI's mode BLANK): the program counts the places of failed ranks, MPI only the ranks that
//! live.

use std::ffi::c_int;

use crate::errors::was_ended;
use crate::layer;
use crate::mpi::{COMM_WORLD, Comm, ERR_RANK, Group, SUCCESS, Status, Word, is_ignored, pmpi};
use crate::rules::{Places, are_gaps};

#[cold]
fn places(comm: Comm) -> Option<Places> {
    layer::with(comm, |known| known.gaps.clone())?
}

/// The places of `comm`, if it has gaps.
#[inline]
pub fn of(comm: Comm) -> Option<Places> {
    match are_gaps() {
        true => places(comm),
        false => None,
    }
}

/// MPI's number for the rank that the program means; an error if it is a gap.
#[inline]
pub fn rank(comm: Comm, rank: c_int) -> Result<c_int, c_int> {
    match are_gaps() {
        true => rank_among(places(comm), rank),
        false => Ok(rank),
    }
}

/// MPI's number for the rank that the program means; a gap is an error.
macro_rules! peer {
    ($comm:expr, $rank:expr) => {
        match $crate::gaps::rank($comm, $rank) {
            Ok(rank) => rank,
            Err(class) => return $crate::errors::raise($comm, class),
        }
    };
}
pub(crate) use peer;

fn rank_among(places: Option<Places>, rank: c_int) -> Result<c_int, c_int> {
    match (places, usize::try_from(rank)) {
        (Some(places), Ok(at)) => places.live.get(at).copied().flatten().ok_or(ERR_RANK),
        _ => Ok(rank),
    }
}

/// The program sees this status of a message in `comm`.
#[inline]
pub fn show(comm: Comm, status: *mut Status) {
    if is_ignored(status) {
        return;
    }
    if let Some(places) = of(comm) {
        // SAFETY: the program's place for a status, which MPI has written.
        let status = unsafe { &mut *status };
        if status.source >= 0 && !was_ended(status) {
            status.source = places.place(status.source);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_rank(comm: Comm, rank: *mut c_int) -> c_int {
    let code = pmpi!(MPI_Comm_rank(comm => Comm, rank => *mut c_int));
    if let Some(places) = of(comm) {
        // SAFETY: the program's place, which MPI has written.
        unsafe { *rank = places.place(*rank) };
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_size(comm: Comm, size: *mut c_int) -> c_int {
    match of(comm) {
        Some(places) => {
            // SAFETY: the program's place.
            unsafe { *size = places.ranks.len() as c_int };
            SUCCESS
        }
        None => pmpi!(MPI_Comm_size(comm => Comm, size => *mut c_int)),
    }
}

/// The group has the failed ranks in their places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_group(comm: Comm, group: *mut Group) -> c_int {
    let Some(places) = of(comm) else {
        return pmpi!(MPI_Comm_group(comm => Comm, group => *mut Group));
    };
    let (mut world, ranks): (Group, Vec<c_int>) = (0, places.ranks.iter().map(|rank| *rank as c_int).collect());
    pmpi!(MPI_Comm_group(COMM_WORLD.0 => c_int, &mut world => *mut Group));
    let code = pmpi!(MPI_Group_incl(
        world => Group, ranks.len() as c_int => c_int, ranks.as_ptr() => *const c_int, group => *mut Group
    ));
    pmpi!(MPI_Group_free(&mut world => *mut Group));
    code
}

/// Where the blocks of each rank are in a buffer that has one for each place.
pub struct Blocks {
    pub counts: Vec<c_int>,
    pub starts: Vec<c_int>,
}

impl Blocks {
    /// Blocks of the same size.
    pub fn equal(places: &Places, count: c_int) -> Blocks {
        let taken = places.taken();
        Blocks {
            counts: vec![count; taken.len()],
            starts: taken.iter().map(|at| *at as c_int * count).collect(),
        }
    }
}

/// What MPI gets of an array that has an entry for each place.
///
/// # Safety
/// `all` is such an array, or null.
pub unsafe fn entries(places: &Places, all: Word) -> Vec<c_int> {
    match all {
        0 => vec![0; places.taken().len()],
        // SAFETY: as the caller promises.
        all => places
            .taken()
            .iter()
            .map(|at| unsafe { *(all as *const c_int).add(*at) })
            .collect(),
    }
}

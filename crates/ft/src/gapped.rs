//! Collective calls in communicators with gaps: MPI does them among the ranks that live. Blocks of gaps stay as they are.

use std::ffi::c_int;

use crate::gaps::{Blocks, entries, rank};
use crate::layer;
use crate::mpi::{Comm, ERR_UNSUPPORTED_OPERATION, IN_PLACE, Request, SUCCESS, Word, pmpi};
use crate::rules::Places;

/// Where a nonblocking call puts its request; none: the call blocks.
type Begun = Option<*mut Request>;

/// `either!(begun, MPI_Bcast MPI_Ibcast(…))` calls the first, or the second to begin it.
macro_rules! either {
    ($begun:expr, $blocking:ident $nonblocking:ident($($value:expr => $type:ty),* $(,)?)) => {
        match $begun {
            None => pmpi!($blocking($($value => $type),*)),
            Some(request) => pmpi!($nonblocking($($value => $type,)* request => *mut Request)),
        }
    };
}

/// MPI may read these until the call has ended.
fn keep<const N: usize>(begun: Begun, arrays: [Vec<c_int>; N], code: c_int) -> c_int {
    if let Some(request) = begun.filter(|_| code == SUCCESS) {
        // SAFETY: MPI has written it.
        layer::keep(unsafe { *request }, arrays.into());
    }
    code
}

fn is_root(comm: Comm, root: c_int) -> bool {
    let mut own = 0;
    pmpi!(MPI_Comm_rank(comm => Comm, &mut own => *mut c_int));
    own == root
}

/// # Safety
/// `all` has an entry for each place, if the call looks at it at all.
unsafe fn entries_if(looks: bool, places: &Places, all: Word) -> Vec<c_int> {
    match looks {
        // SAFETY: as the caller promises.
        true => unsafe { entries(places, all) },
        false => Vec::new(),
    }
}

/// # Safety
/// The program's arrays, which only the root has.
unsafe fn blocks_at(root: Word, places: &Places, counts: Word, starts: Word, comm: Comm) -> Blocks {
    let looks = rank(comm, root as c_int).is_ok_and(|root| is_root(comm, root));
    // SAFETY: as the caller promises.
    unsafe {
        Blocks {
            counts: entries_if(looks, places, counts),
            starts: entries_if(looks, places, starts),
        }
    }
}

pub unsafe fn bcast(_: &Places, [buffer, count, datatype, root]: [Word; 4], comm: Comm, begun: Begun) -> c_int {
    match rank(comm, root as c_int) {
        Ok(root) => either!(begun, MPI_Bcast MPI_Ibcast(
            buffer => Word, count => Word, datatype => Word, root => c_int, comm => Comm
        )),
        Err(class) => class,
    }
}

pub unsafe fn reduce(
    _: &Places,
    [from, to, count, datatype, operation, root]: [Word; 6],
    comm: Comm,
    begun: Begun,
) -> c_int {
    match rank(comm, root as c_int) {
        Ok(root) => either!(begun, MPI_Reduce MPI_Ireduce(
            from => Word, to => Word, count => Word, datatype => Word, operation => Word, root => c_int, comm => Comm
        )),
        Err(class) => class,
    }
}

pub unsafe fn gather(places: &Places, a: [Word; 7], comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, each, datatypes, root] = a;
    let blocks = Blocks::equal(places, each as c_int);
    gather_blocks([from, count, datatype, to, datatypes, root], blocks, comm, begun)
}

pub unsafe fn gatherv(places: &Places, a: [Word; 8], comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, counts, starts, datatypes, root] = a;
    // SAFETY: the program's arrays.
    let blocks = unsafe { blocks_at(root, places, counts, starts, comm) };
    gather_blocks([from, count, datatype, to, datatypes, root], blocks, comm, begun)
}

fn gather_blocks(a: [Word; 6], Blocks { counts, starts }: Blocks, comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, datatypes, root] = a;
    let root = match rank(comm, root as c_int) {
        Ok(root) => root,
        Err(class) => return class,
    };
    let code = either!(begun, MPI_Gatherv MPI_Igatherv(
        from => Word, count => Word, datatype => Word, to => Word, counts.as_ptr() => *const c_int,
        starts.as_ptr() => *const c_int, datatypes => Word, root => c_int, comm => Comm
    ));
    keep(begun, [counts, starts], code)
}

pub unsafe fn scatter(places: &Places, a: [Word; 7], comm: Comm, begun: Begun) -> c_int {
    let [from, each, datatypes, to, count, datatype, root] = a;
    let blocks = Blocks::equal(places, each as c_int);
    scatter_blocks([from, datatypes, to, count, datatype, root], blocks, comm, begun)
}

pub unsafe fn scatterv(places: &Places, a: [Word; 8], comm: Comm, begun: Begun) -> c_int {
    let [from, counts, starts, datatypes, to, count, datatype, root] = a;
    // SAFETY: the program's arrays.
    let blocks = unsafe { blocks_at(root, places, counts, starts, comm) };
    scatter_blocks([from, datatypes, to, count, datatype, root], blocks, comm, begun)
}

fn scatter_blocks(a: [Word; 6], Blocks { counts, starts }: Blocks, comm: Comm, begun: Begun) -> c_int {
    let [from, datatypes, to, count, datatype, root] = a;
    let root = match rank(comm, root as c_int) {
        Ok(root) => root,
        Err(class) => return class,
    };
    let code = either!(begun, MPI_Scatterv MPI_Iscatterv(
        from => Word, counts.as_ptr() => *const c_int, starts.as_ptr() => *const c_int, datatypes => Word, to => Word,
        count => Word, datatype => Word, root => c_int, comm => Comm
    ));
    keep(begun, [counts, starts], code)
}

pub unsafe fn allgather(places: &Places, a: [Word; 6], comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, each, datatypes] = a;
    let blocks = Blocks::equal(places, each as c_int);
    allgather_blocks([from, count, datatype, to, datatypes], blocks, comm, begun)
}

pub unsafe fn allgatherv(places: &Places, a: [Word; 7], comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, counts, starts, datatypes] = a;
    // SAFETY: the program's arrays.
    let blocks = unsafe {
        Blocks {
            counts: entries(places, counts),
            starts: entries(places, starts),
        }
    };
    allgather_blocks([from, count, datatype, to, datatypes], blocks, comm, begun)
}

fn allgather_blocks(a: [Word; 5], Blocks { counts, starts }: Blocks, comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, datatypes] = a;
    let code = either!(begun, MPI_Allgatherv MPI_Iallgatherv(
        from => Word, count => Word, datatype => Word, to => Word, counts.as_ptr() => *const c_int,
        starts.as_ptr() => *const c_int, datatypes => Word, comm => Comm
    ));
    keep(begun, [counts, starts], code)
}

pub unsafe fn alltoall(places: &Places, a: [Word; 6], comm: Comm, begun: Begun) -> c_int {
    let [from, count, datatype, to, each, datatypes] = a;
    let (sent, got) = (
        Blocks::equal(places, count as c_int),
        Blocks::equal(places, each as c_int),
    );
    let arrays = [sent.counts, sent.starts, got.counts, got.starts];
    alltoall_blocks([from, datatype, to, datatypes], arrays, comm, begun)
}

pub unsafe fn alltoallv(places: &Places, a: [Word; 8], comm: Comm, begun: Begun) -> c_int {
    let [from, counts, starts, datatype, to, each, from_where, datatypes] = a;
    let looks = from != IN_PLACE;
    // SAFETY: the program's arrays.
    let arrays = unsafe {
        [
            entries_if(looks, places, counts),
            entries_if(looks, places, starts),
            entries(places, each),
            entries(places, from_where),
        ]
    };
    alltoall_blocks([from, datatype, to, datatypes], arrays, comm, begun)
}

/// `arrays`: counts and starts of what is sent, and of what comes.
fn alltoall_blocks(a: [Word; 4], arrays: [Vec<c_int>; 4], comm: Comm, begun: Begun) -> c_int {
    let [from, datatype, to, datatypes] = a;
    let code = either!(begun, MPI_Alltoallv MPI_Ialltoallv(
        from => Word, arrays[0].as_ptr() => *const c_int, arrays[1].as_ptr() => *const c_int, datatype => Word,
        to => Word, arrays[2].as_ptr() => *const c_int, arrays[3].as_ptr() => *const c_int, datatypes => Word,
        comm => Comm
    ));
    keep(begun, arrays, code)
}

pub unsafe fn alltoallw(places: &Places, a: [Word; 8], comm: Comm, begun: Begun) -> c_int {
    let [from, counts, starts, sent_types, to, each, places_to, types] = a;
    let looks = from != IN_PLACE;
    // SAFETY: the program's arrays.
    let arrays = unsafe {
        [
            entries_if(looks, places, counts),
            entries_if(looks, places, starts),
            entries_if(looks, places, sent_types),
            entries(places, each),
            entries(places, places_to),
            entries(places, types),
        ]
    };
    let code = either!(begun, MPI_Alltoallw MPI_Ialltoallw(
        from => Word, arrays[0].as_ptr() => *const c_int, arrays[1].as_ptr() => *const c_int,
        arrays[2].as_ptr() => *const c_int, to => Word, arrays[3].as_ptr() => *const c_int,
        arrays[4].as_ptr() => *const c_int, arrays[5].as_ptr() => *const c_int, comm => Comm
    ));
    keep(begun, arrays, code)
}

pub unsafe fn reduce_scatter_block(places: &Places, a: [Word; 5], comm: Comm, begun: Begun) -> c_int {
    let [from, to, count, datatype, operation] = a;
    reduce_blocks(
        [from, to, datatype, operation],
        Blocks::equal(places, count as c_int),
        comm,
        begun,
    )
}

pub unsafe fn reduce_scatter(places: &Places, a: [Word; 5], comm: Comm, begun: Begun) -> c_int {
    let [from, to, counts, datatype, operation] = a;
    // SAFETY: the program's array, with a count for each place.
    let all = unsafe { std::slice::from_raw_parts(counts as *const c_int, places.ranks.len()) };
    let starts: Vec<c_int> = (0..all.len()).map(|at| all[..at].iter().sum()).collect();
    let blocks = Blocks {
        // SAFETY: as above; then our own array.
        counts: unsafe { entries(places, counts) },
        // SAFETY: as above.
        starts: unsafe { entries(places, starts.as_ptr() as Word) },
    };
    reduce_blocks([from, to, datatype, operation], blocks, comm, begun)
}

/// A reduction of its block for each rank.
fn reduce_blocks(a: [Word; 4], blocks: Blocks, comm: Comm, begun: Begun) -> c_int {
    let [from, to, datatype, operation] = a;
    if begun.is_some() || from == IN_PLACE {
        return ERR_UNSUPPORTED_OPERATION;
    }
    let (mut low, mut extent) = (0_i64, 0_i64);
    pmpi!(MPI_Type_get_extent(datatype => Word, &mut low => *mut i64, &mut extent => *mut i64));
    for (root, (count, start)) in blocks.counts.iter().zip(&blocks.starts).enumerate() {
        let block = from.wrapping_add_signed((i64::from(*start) * extent) as isize);
        let code = pmpi!(MPI_Reduce(
            block => Word, to => Word, *count => c_int, datatype => Word, operation => Word, root as c_int => c_int,
            comm => Comm
        ));
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

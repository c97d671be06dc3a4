//! Collective calls. The provider brings them back when a member has failed, with a result that means nothing.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::agreements;
use crate::errors::{raise, raise_revoked, raise_without_request, told};
use crate::gapped;
use crate::gaps;
use crate::layer::{self, About};
use crate::mpi::{Comm, ERR_OTHER, ERR_RANK, ERR_UNSUPPORTED_OPERATION, Request, SUCCESS, Word, pmpi};
use crate::requests::MPI_Wait;
use crate::rules::are_closed;

/// Calls MPI; or, in a communicator with gaps, for calls that name ranks or have something for each, does it otherwise.
macro_rules! call {
    ($call:expr; $comm:ident, $request:expr, [$($before:ident),*];) => {
        $call
    };
    ($call:expr; $comm:ident, $request:expr, [$($before:ident),*]; $gapped:ident) => {
        match gaps::of($comm) {
            None => $call,
            // SAFETY: the program's arguments.
            Some(places) => unsafe { gapped::$gapped(&places, [$($before),*], $comm, $request) },
        }
    };
}

/// A collective call: as it is, begun only (`$begins`), and started again and again (`$lasts`); then the same three with
/// large counts.
macro_rules! calls {
    ($($name:ident $begins:ident $lasts:ident ($($before:ident),*) $($gapped:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: Word,)* comm: Comm) -> c_int {
            if let Some(class) = layer::trouble(comm) {
                return raise(comm, class);
            }
            if agreements::are_under_way() && !are_closed() {
                // They go on meanwhile.
                let mut request = 0;
                // SAFETY: the same arguments, and a place for a request, which it has written.
                return unsafe {
                    let code = $begins($($before,)* comm, &mut request);
                    if code == SUCCESS { MPI_Wait(&mut request, null_mut()) } else { code }
                };
            }
            let code = call!(
                pmpi!($name($($before => Word,)* comm => Comm)); comm, None, [$($before),*]; $($gapped)?
            );
            if are_closed() && let Some(code) = close(comm, code) {
                return code;
            }
            match layer::trouble(comm) {
                Some(class) if code == SUCCESS => raise(comm, class),
                // MPI has called the handler with what it made of it.
                Some(class) => told(comm, class),
                None => raise_own(comm, code),
            }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $begins($($before: Word,)* comm: Comm, request: *mut Request) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let code = call!(
                pmpi!($begins($($before => Word,)* comm => Comm, request => *mut Request));
                comm, Some(request), [$($before),*]; $($gapped)?
            );
            if code == SUCCESS {
                // SAFETY: MPI has written it.
                layer::track(unsafe { *request }, About::Collective { comm });
            }
            raise_own(comm, code)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $lasts($($before: Word,)* comm: Comm, info: c_int, request: *mut Request) -> c_int {
            if let Some(class) = layer::trouble(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_without_request(comm, class, request) };
            }
            let code = pmpi!($lasts($($before => Word,)* comm => Comm, info => c_int, request => *mut Request));
            if code == SUCCESS {
                // SAFETY: MPI has written it.
                layer::track_lasting(unsafe { *request }, About::Collective { comm });
            }
            code
        }
    )*};
}

calls! {
    MPI_Barrier MPI_Ibarrier MPI_Barrier_init ();
    MPI_Bcast MPI_Ibcast MPI_Bcast_init (buffer, count, datatype, root) bcast;
    MPI_Gather MPI_Igather MPI_Gather_init (from, count, datatype, to, counts, datatypes, root) gather;
    MPI_Gatherv MPI_Igatherv MPI_Gatherv_init (from, count, datatype, to, counts, places, datatypes, root) gatherv;
    MPI_Scatter MPI_Iscatter MPI_Scatter_init (from, count, datatype, to, counts, datatypes, root) scatter;
    MPI_Scatterv MPI_Iscatterv MPI_Scatterv_init (from, counts, places, datatype, to, count, datatypes, root) scatterv;
    MPI_Allgather MPI_Iallgather MPI_Allgather_init (from, count, datatype, to, counts, datatypes) allgather;
    MPI_Allgatherv MPI_Iallgatherv MPI_Allgatherv_init (from, count, datatype, to, counts, places, datatypes) allgatherv;
    MPI_Alltoall MPI_Ialltoall MPI_Alltoall_init (from, count, datatype, to, counts, datatypes) alltoall;
    MPI_Alltoallv MPI_Ialltoallv MPI_Alltoallv_init (from, count, place, datatype, to, counts, places, datatypes) alltoallv;
    MPI_Alltoallw MPI_Ialltoallw MPI_Alltoallw_init (from, count, place, datatype, to, counts, places, datatypes) alltoallw;
    MPI_Reduce MPI_Ireduce MPI_Reduce_init (from, to, count, datatype, operation, root) reduce;
    MPI_Allreduce MPI_Iallreduce MPI_Allreduce_init (from, to, count, datatype, operation);
    MPI_Reduce_scatter MPI_Ireduce_scatter MPI_Reduce_scatter_init (from, to, count, datatype, operation) reduce_scatter;
    MPI_Reduce_scatter_block MPI_Ireduce_scatter_block MPI_Reduce_scatter_block_init (from, to, count, datatype, operation) reduce_scatter_block;
    MPI_Scan MPI_Iscan MPI_Scan_init (from, to, count, datatype, operation);
    MPI_Exscan MPI_Iexscan MPI_Exscan_init (from, to, count, datatype, operation);
    MPI_Neighbor_allgather MPI_Ineighbor_allgather MPI_Neighbor_allgather_init (from, count, datatype, to, counts, datatypes);
    MPI_Neighbor_allgatherv MPI_Ineighbor_allgatherv MPI_Neighbor_allgatherv_init (from, count, datatype, to, counts, places, datatypes);
    MPI_Neighbor_alltoall MPI_Ineighbor_alltoall MPI_Neighbor_alltoall_init (from, count, datatype, to, counts, datatypes);
    MPI_Neighbor_alltoallv MPI_Ineighbor_alltoallv MPI_Neighbor_alltoallv_init (from, count, place, datatype, to, counts, places, datatypes);
    MPI_Neighbor_alltoallw MPI_Ineighbor_alltoallw MPI_Neighbor_alltoallw_init (from, count, place, datatype, to, counts, places, datatypes);
    MPI_Bcast_c MPI_Ibcast_c MPI_Bcast_init_c (buffer, count, datatype, root);
    MPI_Gather_c MPI_Igather_c MPI_Gather_init_c (from, count, datatype, to, counts, datatypes, root);
    MPI_Gatherv_c MPI_Igatherv_c MPI_Gatherv_init_c (from, count, datatype, to, counts, places, datatypes, root);
    MPI_Scatter_c MPI_Iscatter_c MPI_Scatter_init_c (from, count, datatype, to, counts, datatypes, root);
    MPI_Scatterv_c MPI_Iscatterv_c MPI_Scatterv_init_c (from, counts, places, datatype, to, count, datatypes, root);
    MPI_Allgather_c MPI_Iallgather_c MPI_Allgather_init_c (from, count, datatype, to, counts, datatypes);
    MPI_Allgatherv_c MPI_Iallgatherv_c MPI_Allgatherv_init_c (from, count, datatype, to, counts, places, datatypes);
    MPI_Alltoall_c MPI_Ialltoall_c MPI_Alltoall_init_c (from, count, datatype, to, counts, datatypes);
    MPI_Alltoallv_c MPI_Ialltoallv_c MPI_Alltoallv_init_c (from, count, place, datatype, to, counts, places, datatypes);
    MPI_Alltoallw_c MPI_Ialltoallw_c MPI_Alltoallw_init_c (from, count, place, datatype, to, counts, places, datatypes);
    MPI_Reduce_c MPI_Ireduce_c MPI_Reduce_init_c (from, to, count, datatype, operation, root);
    MPI_Allreduce_c MPI_Iallreduce_c MPI_Allreduce_init_c (from, to, count, datatype, operation);
    MPI_Reduce_scatter_c MPI_Ireduce_scatter_c MPI_Reduce_scatter_init_c (from, to, count, datatype, operation);
    MPI_Reduce_scatter_block_c MPI_Ireduce_scatter_block_c MPI_Reduce_scatter_block_init_c (from, to, count, datatype, operation);
    MPI_Scan_c MPI_Iscan_c MPI_Scan_init_c (from, to, count, datatype, operation);
    MPI_Exscan_c MPI_Iexscan_c MPI_Exscan_init_c (from, to, count, datatype, operation);
    MPI_Neighbor_allgather_c MPI_Ineighbor_allgather_c MPI_Neighbor_allgather_init_c (from, count, datatype, to, counts, datatypes);
    MPI_Neighbor_allgatherv_c MPI_Ineighbor_allgatherv_c MPI_Neighbor_allgatherv_init_c (from, count, datatype, to, counts, places, datatypes);
    MPI_Neighbor_alltoall_c MPI_Ineighbor_alltoall_c MPI_Neighbor_alltoall_init_c (from, count, datatype, to, counts, datatypes);
    MPI_Neighbor_alltoallv_c MPI_Ineighbor_alltoallv_c MPI_Neighbor_alltoallv_init_c (from, count, place, datatype, to, counts, places, datatypes);
    MPI_Neighbor_alltoallw_c MPI_Ineighbor_alltoallw_c MPI_Neighbor_alltoallw_init_c (from, count, place, datatype, to, counts, places, datatypes);
}

/// The closing barrier of a call that has returned this code: what it returns to the program.
#[cold]
fn close(comm: Comm, code: c_int) -> Option<c_int> {
    let is_good = code == SUCCESS && layer::trouble(comm).is_none();
    let is_good_for_all = agreements::closed(comm, is_good)?;
    let class = layer::trouble(comm);
    Some(match (is_good_for_all, code) {
        (true, _) => SUCCESS,
        (false, SUCCESS) => raise(comm, class.unwrap_or(ERR_OTHER)),
        // MPI has called the handler with what it made of it.
        (false, code) => told(comm, class.unwrap_or(code)),
    })
}

/// MPI calls error handlers itself; this library's errors have the numbers of their classes.
fn raise_own(comm: Comm, code: c_int) -> c_int {
    match [ERR_RANK, ERR_UNSUPPORTED_OPERATION].contains(&code) {
        true => raise(comm, code),
        false => code,
    }
}

//! The functions of MPI that a trace names, as a table for macros.

/// Calls the macro `$with` with all functions: lists of names, and an identifier for each argument that they take. All
/// arguments are integers or pointers.
#[macro_export]
macro_rules! trace_calls {
    ($with:ident) => {
        $with! {
            // The process.
            [MPI_Finalize] ()
            [MPI_Session_finalize] (a)
            [MPI_Init MPI_Abort] (a b)
            [MPI_Session_init] (a b c)
            [MPI_Init_thread] (a b c d)
            // Point to point.
            [MPI_Start] (a)
            [MPI_Pready MPI_Startall] (a b)
            [MPI_Parrived] (a b c)
            [MPI_Probe] (a b c d)
            [MPI_Iprobe MPI_Mprobe MPI_Mrecv MPI_Mrecv_c MPI_Imrecv MPI_Imrecv_c] (a b c d e)
            [MPI_Send MPI_Send_c MPI_Ssend MPI_Ssend_c MPI_Rsend MPI_Rsend_c MPI_Bsend MPI_Bsend_c MPI_Improbe] (a b c d e f)
            [MPI_Isend MPI_Isend_c MPI_Issend MPI_Issend_c MPI_Irsend MPI_Irsend_c MPI_Ibsend MPI_Ibsend_c MPI_Recv
                MPI_Recv_c MPI_Irecv MPI_Irecv_c MPI_Send_init MPI_Send_init_c MPI_Ssend_init MPI_Ssend_init_c
                MPI_Rsend_init MPI_Rsend_init_c MPI_Bsend_init MPI_Bsend_init_c MPI_Recv_init MPI_Recv_init_c] (a b c d e f g)
            [MPI_Sendrecv_replace MPI_Sendrecv_replace_c MPI_Psend_init MPI_Precv_init] (a b c d e f g h i)
            [MPI_Isendrecv_replace MPI_Isendrecv_replace_c] (a b c d e f g h i j)
            [MPI_Sendrecv MPI_Sendrecv_c] (a b c d e f g h i j k l)
            [MPI_Isendrecv MPI_Isendrecv_c] (a b c d e f g h i j k l m)
            // Requests.
            [MPI_Cancel MPI_Request_free] (a)
            [MPI_Wait] (a b)
            [MPI_Waitall MPI_Test] (a b c)
            [MPI_Waitany MPI_Testall] (a b c d)
            [MPI_Waitsome MPI_Testany MPI_Testsome] (a b c d e)
            // Collectives.
            [MPI_Barrier] (a)
            [MPI_Ibarrier] (a b)
            [MPI_Bcast MPI_Bcast_c] (a b c d e)
            [MPI_Allreduce MPI_Allreduce_c MPI_Reduce_scatter MPI_Reduce_scatter_c MPI_Reduce_scatter_block
                MPI_Reduce_scatter_block_c MPI_Scan MPI_Scan_c MPI_Exscan MPI_Exscan_c MPI_Ibcast MPI_Ibcast_c] (a b c d e f)
            [MPI_Allgather MPI_Allgather_c MPI_Alltoall MPI_Alltoall_c MPI_Reduce MPI_Reduce_c MPI_Iallreduce
                MPI_Iallreduce_c MPI_Ireduce_scatter MPI_Ireduce_scatter_c MPI_Ireduce_scatter_block
                MPI_Ireduce_scatter_block_c MPI_Iscan MPI_Iscan_c MPI_Iexscan MPI_Iexscan_c MPI_Neighbor_allgather
                MPI_Neighbor_allgather_c MPI_Neighbor_alltoall MPI_Neighbor_alltoall_c] (a b c d e f g)
            [MPI_Gather MPI_Gather_c MPI_Scatter MPI_Scatter_c MPI_Allgatherv MPI_Allgatherv_c MPI_Iallgather
                MPI_Iallgather_c MPI_Ialltoall MPI_Ialltoall_c MPI_Ireduce MPI_Ireduce_c MPI_Neighbor_allgatherv
                MPI_Neighbor_allgatherv_c MPI_Ineighbor_allgather MPI_Ineighbor_allgather_c MPI_Ineighbor_alltoall
                MPI_Ineighbor_alltoall_c] (a b c d e f g h)
            [MPI_Gatherv MPI_Gatherv_c MPI_Scatterv MPI_Scatterv_c MPI_Alltoallv MPI_Alltoallv_c MPI_Alltoallw
                MPI_Alltoallw_c MPI_Igather MPI_Igather_c MPI_Iscatter MPI_Iscatter_c MPI_Iallgatherv
                MPI_Iallgatherv_c MPI_Neighbor_alltoallv MPI_Neighbor_alltoallv_c MPI_Neighbor_alltoallw
                MPI_Neighbor_alltoallw_c MPI_Ineighbor_allgatherv MPI_Ineighbor_allgatherv_c] (a b c d e f g h i)
            [MPI_Igatherv MPI_Igatherv_c MPI_Iscatterv MPI_Iscatterv_c MPI_Ialltoallv MPI_Ialltoallv_c MPI_Ialltoallw
                MPI_Ialltoallw_c MPI_Ineighbor_alltoallv MPI_Ineighbor_alltoallv_c MPI_Ineighbor_alltoallw
                MPI_Ineighbor_alltoallw_c] (a b c d e f g h i j)
            // Communicators.
            [MPI_Comm_free MPI_Comm_disconnect] (a)
            [MPI_Comm_dup] (a b)
            [MPI_Comm_dup_with_info MPI_Comm_idup MPI_Comm_create MPI_Intercomm_merge MPI_Cart_sub] (a b c)
            [MPI_Comm_create_group MPI_Comm_split] (a b c d)
            [MPI_Comm_create_from_group MPI_Comm_split_type MPI_Comm_accept MPI_Comm_connect] (a b c d e)
            [MPI_Intercomm_create MPI_Cart_create MPI_Graph_create] (a b c d e f)
            [MPI_Comm_spawn] (a b c d e f g h)
            [MPI_Comm_spawn_multiple MPI_Dist_graph_create] (a b c d e f g h i)
            [MPI_Dist_graph_create_adjacent] (a b c d e f g h i j)
            // One-sided.
            [MPI_Win_free MPI_Win_complete MPI_Win_wait MPI_Win_unlock_all MPI_Win_flush_all MPI_Win_flush_local_all] (a)
            [MPI_Win_fence MPI_Win_test MPI_Win_lock_all MPI_Win_unlock MPI_Win_flush MPI_Win_flush_local] (a b)
            [MPI_Win_create_dynamic MPI_Win_start MPI_Win_post] (a b c)
            [MPI_Win_lock] (a b c d)
            [MPI_Win_create MPI_Win_create_c MPI_Win_allocate MPI_Win_allocate_c MPI_Win_allocate_shared
                MPI_Win_allocate_shared_c] (a b c d e f)
            [MPI_Fetch_and_op MPI_Compare_and_swap] (a b c d e f g)
            [MPI_Put MPI_Put_c MPI_Get MPI_Get_c] (a b c d e f g h)
            [MPI_Accumulate MPI_Accumulate_c MPI_Rput MPI_Rput_c MPI_Rget MPI_Rget_c] (a b c d e f g h i)
            [MPI_Raccumulate MPI_Raccumulate_c] (a b c d e f g h i j)
            [MPI_Get_accumulate MPI_Get_accumulate_c] (a b c d e f g h i j k l)
            [MPI_Rget_accumulate MPI_Rget_accumulate_c] (a b c d e f g h i j k l m)
            // Files.
            [MPI_File_close MPI_File_sync] (a)
            [MPI_File_set_size MPI_File_preallocate] (a b)
            [MPI_File_seek] (a b c)
            [MPI_File_open MPI_File_read MPI_File_read_c MPI_File_read_all MPI_File_read_all_c MPI_File_read_shared
                MPI_File_read_shared_c MPI_File_read_ordered MPI_File_read_ordered_c MPI_File_write MPI_File_write_c
                MPI_File_write_all MPI_File_write_all_c MPI_File_write_shared MPI_File_write_shared_c
                MPI_File_write_ordered MPI_File_write_ordered_c MPI_File_iread MPI_File_iread_c MPI_File_iread_all
                MPI_File_iread_all_c MPI_File_iwrite MPI_File_iwrite_c MPI_File_iwrite_all MPI_File_iwrite_all_c] (a b c d e)
            [MPI_File_set_view MPI_File_read_at MPI_File_read_at_c MPI_File_read_at_all MPI_File_read_at_all_c
                MPI_File_write_at MPI_File_write_at_c MPI_File_write_at_all MPI_File_write_at_all_c MPI_File_iread_at
                MPI_File_iread_at_c MPI_File_iread_at_all MPI_File_iread_at_all_c MPI_File_iwrite_at
                MPI_File_iwrite_at_c MPI_File_iwrite_at_all MPI_File_iwrite_at_all_c] (a b c d e f)
        }
    };
}

macro_rules! names {
    ($([$($name:ident)*] ($($argument:ident)*))*) => {
        /// The names of the functions. Records have their numbers in this list.
        pub const CALLS: &[&str] = &[$($(stringify!($name),)*)*];
    };
}
trace_calls!(names);

/// The number of a function in the list; `CALLS.len()`: it is not there.
pub const fn call_number(name: &str) -> u16 {
    let mut number = 0;
    while number < CALLS.len() {
        if is_same(CALLS[number].as_bytes(), name.as_bytes()) {
            break;
        }
        number += 1;
    }
    number as u16
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_number() {
        for (number, name) in CALLS.iter().enumerate() {
            assert_eq!(call_number(name) as usize, number, "{name} is there twice");
        }
        assert_eq!(call_number("MPI_Wtime") as usize, CALLS.len());
    }
}

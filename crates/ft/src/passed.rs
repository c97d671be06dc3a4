//! Functions that take a communicator and need no more than that MPI gets its own handle for it: MPI_COMM_WORLD may mean
//! another communicator after a failure.

use std::ffi::c_int;

use crate::mpi::{Comm, Word, pmpi};

/// Functions with the same arguments stand together: those with large counts beside the others.
macro_rules! passes {
    ($([$($name:ident)+] $arguments:tt;)*) => {$($(pass! { $name $arguments })+)*};
}

macro_rules! pass {
    ($name:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int {
            pmpi!($name($($argument => $type),*))
        }
    };
}

passes! {
    [MPI_Comm_delete_attr](comm: Comm, comm_keyval: Word);
    [MPI_Attr_delete](comm: Comm, keyval: Word);
    [MPI_Comm_compare](comm1: Comm, comm2: Comm, result: Word);
    [MPI_Comm_get_info](comm: Comm, info_used: Word);
    [MPI_Comm_get_name](comm: Comm, comm_name: Word, resultlen: Word);
    [MPI_Comm_remote_group](comm: Comm, group: Word);
    [MPI_Comm_remote_size](comm: Comm, size: Word);
    [MPI_Comm_set_info](comm: Comm, info: Word);
    [MPI_Comm_set_name](comm: Comm, comm_name: Word);
    [MPI_Comm_test_inter](comm: Comm, flag: Word);
    [MPI_Pack MPI_Pack_c](
        inbuf: Word, incount: Word, datatype: Word, outbuf: Word, outsize: Word, position: Word, comm: Comm
    );
    [MPI_Pack_size MPI_Pack_size_c](incount: Word, datatype: Word, comm: Comm, size: Word);
    [MPI_Unpack MPI_Unpack_c](
        inbuf: Word, insize: Word, position: Word, outbuf: Word, outcount: Word, datatype: Word, comm: Comm
    );
    [MPI_Comm_call_errhandler](comm: Comm, errorcode: Word);
    [MPI_Comm_get_errhandler](comm: Comm, errhandler: Word);
    [MPI_Errhandler_get](comm: Comm, errhandler: Word);
    [MPI_Comm_attach_buffer MPI_Comm_attach_buffer_c](comm: Comm, buffer: Word, size: Word);
    [MPI_Comm_detach_buffer MPI_Comm_detach_buffer_c](comm: Comm, buffer_addr: Word, size: Word);
    [MPI_Comm_flush_buffer](comm: Comm);
    [MPI_Comm_iflush_buffer](comm: Comm, request: Word);
    [MPIX_Stream_comm_create](comm: Comm, stream: Word, newcomm: Word);
    [MPIX_Stream_comm_create_multiplex](comm: Comm, count: Word, array_of_streams: Word, newcomm: Word);
    [MPIX_Stream_send MPIX_Stream_send_c](
        buf: Word, count: Word, datatype: Word, dest: Word, tag: Word, comm: Comm, source_stream_index: Word,
        dest_stream_index: Word
    );
    [MPIX_Stream_isend MPIX_Stream_isend_c](
        buf: Word, count: Word, datatype: Word, dest: Word, tag: Word, comm: Comm, source_stream_index: Word,
        dest_stream_index: Word, request: Word
    );
    [MPIX_Stream_recv MPIX_Stream_recv_c](
        buf: Word, count: Word, datatype: Word, source: Word, tag: Word, comm: Comm, source_stream_index: Word,
        dest_stream_index: Word, status: Word
    );
    [MPIX_Stream_irecv MPIX_Stream_irecv_c](
        buf: Word, count: Word, datatype: Word, source: Word, tag: Word, comm: Comm, source_stream_index: Word,
        dest_stream_index: Word, request: Word
    );
    [MPIX_Send_enqueue MPIX_Send_enqueue_c](buf: Word, count: Word, datatype: Word, dest: Word, tag: Word, comm: Comm);
    [MPIX_Recv_enqueue MPIX_Recv_enqueue_c](
        buf: Word, count: Word, datatype: Word, source: Word, tag: Word, comm: Comm, status: Word
    );
    [MPIX_Isend_enqueue MPIX_Isend_enqueue_c](
        buf: Word, count: Word, datatype: Word, dest: Word, tag: Word, comm: Comm, request: Word
    );
    [MPIX_Irecv_enqueue MPIX_Irecv_enqueue_c](
        buf: Word, count: Word, datatype: Word, source: Word, tag: Word, comm: Comm, request: Word
    );
    [MPIX_Allreduce_enqueue MPIX_Allreduce_enqueue_c](
        sendbuf: Word, recvbuf: Word, count: Word, datatype: Word, op: Word, comm: Comm
    );
    [MPIX_Threadcomm_init](comm: Comm, num_threads: Word, newthreadcomm: Word);
    [MPIX_Threadcomm_start](threadcomm: Comm);
    [MPIX_Threadcomm_finish](threadcomm: Comm);
    [MPI_Cart_coords](comm: Comm, rank: Word, maxdims: Word, coords: Word);
    [MPI_Cart_get](comm: Comm, maxdims: Word, dims: Word, periods: Word, coords: Word);
    [MPI_Cart_map](comm: Comm, ndims: Word, dims: Word, periods: Word, newrank: Word);
    [MPI_Cart_rank](comm: Comm, coords: Word, rank: Word);
    [MPI_Cart_shift](comm: Comm, direction: Word, disp: Word, rank_source: Word, rank_dest: Word);
    [MPI_Cartdim_get](comm: Comm, ndims: Word);
    [MPI_Dist_graph_neighbors](
        comm: Comm, maxindegree: Word, sources: Word, sourceweights: Word, maxoutdegree: Word, destinations: Word,
        destweights: Word
    );
    [MPI_Dist_graph_neighbors_count](comm: Comm, indegree: Word, outdegree: Word, weighted: Word);
    [MPI_Graph_get](comm: Comm, maxindex: Word, maxedges: Word, indx: Word, edges: Word);
    [MPI_Graph_map](comm: Comm, nnodes: Word, indx: Word, edges: Word, newrank: Word);
    [MPI_Graph_neighbors](comm: Comm, rank: Word, maxneighbors: Word, neighbors: Word);
    [MPI_Graph_neighbors_count](comm: Comm, rank: Word, nneighbors: Word);
    [MPI_Graphdims_get](comm: Comm, nnodes: Word, nedges: Word);
    [MPI_Topo_test](comm: Comm, status: Word);
}

//! Windows. After a failure of a member no call on one goes on: what lies in it means nothing.

use std::ffi::c_int;

use crate::mpi::{Comm, Request, WIN_NULL, Word, pmpi};
use crate::objects::Object;
use crate::on_objects::{alone, begins, each, end, make, on};
use crate::provider::From;

macro_rules! makes {
    ($name:ident ($($before:ident),*; $($after:ident),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($before: Word,)* comm: Comm, $($after: Word,)* win: *mut c_int) -> c_int {
            let call = |comm| {
                pmpi!($name($($before => Word,)* comm => Comm, $($after => Word,)* win => *mut c_int))
            };
            // SAFETY: the program's place for it.
            unsafe { make(comm, None, From::Window, call, || Object::Window(*win), || *win = WIN_NULL) }
        }
    };
}

each! { makes;
    [MPI_Win_create MPI_Win_create_c](base, size, unit, info;);
    [MPI_Win_allocate MPI_Win_allocate_c MPI_Win_allocate_shared MPI_Win_allocate_shared_c](size, unit, info; base);
    [MPI_Win_create_dynamic](info;);
}

/// They wait for others.
macro_rules! waits {
    ($name:ident ($($before:ident),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: Word,)* win: c_int) -> c_int {
            on(Object::Window(win), || pmpi!($name($($before => Word,)* win => c_int)))
        }
    };
}

each! { waits;
    [MPI_Win_fence](assert);
    [MPI_Win_start MPI_Win_post](group, assert);
    [MPI_Win_complete MPI_Win_wait MPI_Win_unlock_all MPI_Win_flush_all MPI_Win_flush_local_all]();
    [MPI_Win_lock](kind, rank, assert);
    [MPI_Win_unlock MPI_Win_flush MPI_Win_flush_local](rank);
    [MPI_Win_lock_all](assert);
}

#[unsafe(no_mangle)]
pub extern "C" fn MPI_Win_test(win: c_int, is_done: Word) -> c_int {
    on(
        Object::Window(win),
        || pmpi!(MPI_Win_test(win => c_int, is_done => Word)),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn MPI_Win_set_info(win: c_int, info: Word) -> c_int {
    on(
        Object::Window(win),
        || pmpi!(MPI_Win_set_info(win => c_int, info => Word)),
    )
}

/// They return at once.
macro_rules! accesses {
    ($name:ident ($($before:ident),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: Word,)* win: c_int) -> c_int {
            alone(Object::Window(win), || pmpi!($name($($before => Word,)* win => c_int)))
        }
    };
}

each! { accesses;
    [MPI_Put MPI_Put_c MPI_Get MPI_Get_c](buffer, count, datatype, rank, place, counts, datatypes);
    [MPI_Accumulate MPI_Accumulate_c](buffer, count, datatype, rank, place, counts, datatypes, operation);
    [MPI_Get_accumulate MPI_Get_accumulate_c](
        buffer, count, datatype, result, results, result_type, rank, place, counts, datatypes, operation
    );
    [MPI_Fetch_and_op](buffer, result, datatype, rank, place, operation);
    [MPI_Compare_and_swap](buffer, compared, result, datatype, rank, place);
}

/// The same as requests.
macro_rules! requests {
    ($name:ident ($($before:ident),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($before: Word,)* win: c_int, request: *mut Request) -> c_int {
            let call = || pmpi!($name($($before => Word,)* win => c_int, request => *mut Request));
            // SAFETY: the program's place for it.
            unsafe { begins(Object::Window(win), request, call) }
        }
    };
}

each! { requests;
    [MPI_Rput MPI_Rput_c MPI_Rget MPI_Rget_c](buffer, count, datatype, rank, place, counts, datatypes);
    [MPI_Raccumulate MPI_Raccumulate_c](buffer, count, datatype, rank, place, counts, datatypes, operation);
    [MPI_Rget_accumulate MPI_Rget_accumulate_c](
        buffer, count, datatype, result, results, result_type, rank, place, counts, datatypes, operation
    );
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Win_free(win: *mut c_int) -> c_int {
    // SAFETY: the program's window.
    let win = unsafe { &mut *win };
    let object = Object::Window(*win);
    let place: *mut c_int = win;
    // SAFETY: as above.
    end(
        object,
        || pmpi!(MPI_Win_free(place => *mut c_int)),
        || unsafe { *place = WIN_NULL },
    )
}

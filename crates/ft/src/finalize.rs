//! The end of MPI. MPICH ends with an error if MPI_COMM_WORLD has messages that nobody has received. After a failure that
//! is no fault of the program: the receive may have been ended before the message came.
//!
//! MPI_Finalize first deletes what is attached to MPI_COMM_SELF. The function itself must not be here: a program that
//! finds all of its functions in this library is not linked with MPI.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::mpi::{ANY_SOURCE, ANY_TAG, BYTE, COMM_SELF, COMM_WORLD, Comm, Request, SUCCESS, Status, pmpi};
use crate::provider;

type Delete = extern "C" fn(Comm, c_int, *mut c_void, *mut c_void) -> c_int;

/// MPI has begun.
pub fn prepare() {
    let mut key = 0;
    pmpi!(MPI_Comm_create_keyval(
        null_mut() => *mut c_void,
        ends as Delete as *mut c_void => *mut c_void,
        &mut key => *mut c_int,
        null_mut() => *mut c_void,
    ));
    pmpi!(MPI_Comm_set_attr(COMM_SELF => Comm, key => c_int, null_mut() => *mut c_void));
}

extern "C" fn ends(_: Comm, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    if provider::news() != 0 {
        while drop_unreceived() {}
    }
    SUCCESS
}

/// Takes a message that has come. False: there is none.
fn drop_unreceived() -> bool {
    let (mut is_one, mut message, mut count) = (0, 0, 0);
    let mut status = Status::default();
    let code = pmpi!(MPI_Improbe(
        ANY_SOURCE => c_int,
        ANY_TAG => c_int,
        // As MPI has it, whatever it means to the program now.
        COMM_WORLD.0 => c_int,
        &mut is_one => *mut c_int,
        &mut message => *mut c_int,
        &mut status => *mut Status,
    ));
    if code != SUCCESS || is_one == 0 {
        return false;
    }
    pmpi!(MPI_Get_count(&status => *const Status, BYTE => c_int, &mut count => *mut c_int));
    // MPI may write there as long as the process lives.
    let place = vec![0_u8; usize::try_from(count).unwrap_or(0)].leak();
    let mut request: Request = 0;
    let code = pmpi!(MPI_Imrecv(
        place.as_mut_ptr() => *mut u8,
        count => c_int,
        BYTE => c_int,
        &mut message => *mut c_int,
        &mut request => *mut Request,
    ));
    code == SUCCESS && pmpi!(MPI_Request_free(&mut request => *mut Request)) == SUCCESS
}

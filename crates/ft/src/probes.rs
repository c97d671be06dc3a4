//! Probes: a message that cannot come is an error.

use std::ffi::{c_int, c_void};

use crate::errors::raise;
use crate::gaps;
use crate::layer;
use crate::mpi::{Comm, SUCCESS, Status, pmpi};
use crate::provider::is_there;

/// What to return from a look that has found a message, or none. `trouble`: why none can come, as known before.
fn looked(comm: Comm, trouble: Option<c_int>, code: c_int, found: c_int) -> c_int {
    match trouble {
        Some(class) if code == SUCCESS && found == 0 => raise(comm, class),
        _ => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Probe(from: c_int, tag: c_int, comm: Comm, status: *mut Status) -> c_int {
    if !is_there() {
        return pmpi!(MPI_Probe(from => c_int, tag => c_int, comm => Comm, status => *mut Status));
    }
    loop {
        let mut found = 0;
        // SAFETY: the same place for a status.
        let code = unsafe { MPI_Iprobe(from, tag, comm, &mut found, status) };
        if code != SUCCESS || found != 0 {
            return code;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Iprobe(
    from: c_int,
    tag: c_int,
    comm: Comm,
    found: *mut c_int,
    status: *mut Status,
) -> c_int {
    let from = match gaps::rank(comm, from) {
        Ok(from) => from,
        Err(class) => return raise(comm, class),
    };
    // Before the look: a message that came before the failure is found.
    let trouble = layer::trouble_with(comm, from);
    let code = pmpi!(MPI_Iprobe(
        from => c_int, tag => c_int, comm => Comm, found => *mut c_int, status => *mut Status
    ));
    // SAFETY: the program's place for it.
    let found = unsafe { *found };
    if found != 0 {
        gaps::show(comm, status);
    }
    looked(comm, trouble, code, found)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Mprobe(
    from: c_int,
    tag: c_int,
    comm: Comm,
    message: *mut c_void,
    status: *mut Status,
) -> c_int {
    if !is_there() {
        return pmpi!(MPI_Mprobe(
            from => c_int, tag => c_int, comm => Comm, message => *mut c_void, status => *mut Status
        ));
    }
    loop {
        let mut found = 0;
        // SAFETY: the same places.
        let code = unsafe { MPI_Improbe(from, tag, comm, &mut found, message, status) };
        if code != SUCCESS || found != 0 {
            return code;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Improbe(
    from: c_int,
    tag: c_int,
    comm: Comm,
    found: *mut c_int,
    message: *mut c_void,
    status: *mut Status,
) -> c_int {
    let from = match gaps::rank(comm, from) {
        Ok(from) => from,
        Err(class) => return raise(comm, class),
    };
    let trouble = layer::trouble_with(comm, from);
    let code = pmpi!(MPI_Improbe(
        from => c_int, tag => c_int, comm => Comm, found => *mut c_int, message => *mut c_void, status => *mut Status
    ));
    // SAFETY: the program's place for it.
    let found = unsafe { *found };
    if found != 0 {
        gaps::show(comm, status);
    }
    looked(comm, trouble, code, found)
}

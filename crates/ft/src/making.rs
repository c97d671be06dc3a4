//! Calls of MPI that make communicators.

use std::ffi::c_int;

use crate::errors::{raise, told};
use crate::layer;
use crate::mpi::{COMM_NULL, Comm, ERR_PROC_FAILED, INFO_NULL, SUCCESS, pmpi};
use crate::provider::{self, From};

/// Runs a call that makes a communicator.
pub fn making(made_from: &From, call: impl FnOnce() -> c_int) -> c_int {
    provider::runs(Some(made_from));
    let code = call();
    provider::runs(None);
    code
}

/// A communicator was made from `comm`. If there is trouble, the class of the error: there is no new one.
pub fn made(comm: Comm, new: &mut Comm) -> Option<c_int> {
    let of_parent = layer::trouble(comm);
    if of_parent.is_none() {
        layer::learn_from(*new, comm);
    }
    // Processes that were not in `comm` are in an intercommunicator. Others may have revoked it already.
    let class = of_parent.or_else(|| layer::has_failed_strangers(*new).then_some(ERR_PROC_FAILED));
    if class.is_some() {
        // It may differ from that of others. It stays where it is: its number must not be used again.
        layer::forget(*new);
        *new = COMM_NULL;
    }
    class
}

/// Together with processes that are not in the communicator of this context.
pub fn strangers(parent: Option<u32>) -> From {
    From::Strangers(parent, provider::ranks())
}

/// Makes a communicator for the program, which is told of an error.
pub fn make_and_tell(comm: Comm, new: &mut Comm, from: &From, call: &dyn Fn(Comm, *mut Comm) -> c_int) -> c_int {
    let code = making(from, || call(comm, new));
    if code != SUCCESS {
        // MPI has called the handler with what it made of it.
        return layer::trouble(comm).map_or(code, |class| told(comm, class));
    }
    match made(comm, new) {
        Some(class) => raise(comm, class),
        None => code,
    }
}

/// Makes a communicator that the program does not know, or says why there is none, as a class of errors. No error handler
/// is called.
pub fn make_quietly(comm: Comm, from: &From, call: impl FnOnce(Comm, *mut Comm) -> c_int) -> Result<Comm, c_int> {
    if let Some(class) = layer::trouble(comm) {
        return Err(class);
    }
    let mut new = COMM_NULL;
    let code = making(from, || call(comm, &mut new));
    match code {
        SUCCESS => made(comm, &mut new).map_or(Ok(new), Err),
        code => Err(layer::trouble(comm).unwrap_or(code)),
    }
}

/// A copy of `comm`, or the class of the error.
pub fn copy(comm: Comm, info: c_int, new: &mut Comm) -> Result<(), c_int> {
    let code = making(&From::Parent(layer::context(comm)), || match info {
        INFO_NULL => pmpi!(MPI_Comm_dup(comm => Comm, &mut *new => *mut Comm)),
        info => pmpi!(MPI_Comm_dup_with_info(comm => Comm, info => c_int, &mut *new => *mut Comm)),
    });
    let class = match code {
        SUCCESS => made(comm, new),
        code => Some(layer::trouble(comm).unwrap_or(code)),
    };
    class.map_or(Ok(()), Err)
}

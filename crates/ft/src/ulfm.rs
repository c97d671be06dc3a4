//! The functions of User-Level Failure Mitigation. MPICH has some of the same names, which end the program: none of
//! them is ever called.

use std::ffi::c_int;

use crate::agreements;
use crate::errors::raise;
use crate::layer::{self, Known};
use crate::mpi::{
    COMM_NULL, COMM_WORLD, Comm, ERR_ARG, ERR_COMM, ERR_OTHER, Group, REQUEST_NULL, Request, SUCCESS, Word,
};
use crate::objects::Object;
use crate::provider;

/// What is known of a communicator; none: it is none, or the job was not started with --ft.
fn known(comm: Comm) -> Option<Known> {
    layer::with(comm, |known| known.clone())
}

/// There is no such communicator, or nothing tells failures.
fn refuse(comm: Comm) -> c_int {
    if comm == COMM_NULL || provider::is_there() {
        return raise(COMM_WORLD, ERR_COMM);
    }
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| eprintln!("resurgo: the program deals with failures itself: start it with resurgo run --ft"));
    raise(comm, ERR_OTHER)
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Comm_revoke(comm: Comm) -> c_int {
    match layer::with(comm, Known::revoke) {
        Some(()) => SUCCESS,
        None => refuse(comm),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_is_revoked(comm: Comm, is_revoked: *mut c_int) -> c_int {
    let Some(mut known) = known(comm) else {
        return refuse(comm);
    };
    // SAFETY: the program's place for it.
    unsafe { *is_revoked = c_int::from(known.is_revoked()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Comm_failure_ack(comm: Comm) -> c_int {
    let Some(known) = known(comm) else {
        return refuse(comm);
    };
    let failed = known.failed();
    layer::with(comm, |known| known.acknowledged = failed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_failure_get_acked(comm: Comm, group: *mut Group) -> c_int {
    let Some(known) = known(comm) else {
        return refuse(comm);
    };
    // SAFETY: the program's place for it.
    unsafe { *group = layer::group_of(comm, &known, &known.acknowledged) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_get_failed(comm: Comm, group: *mut Group) -> c_int {
    let Some(known) = known(comm) else {
        return refuse(comm);
    };
    // SAFETY: the program's place for it.
    unsafe { *group = layer::group_of(comm, &known, &known.failed()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_ack_failed(comm: Comm, wanted: c_int, acknowledged: *mut c_int) -> c_int {
    let Some(known) = known(comm) else {
        return refuse(comm);
    };
    let Ok(wanted) = usize::try_from(wanted) else {
        return raise(comm, ERR_ARG);
    };
    let mut failed = known.failed();
    failed.truncate(wanted.max(known.acknowledged.len()));
    // SAFETY: the program's place for it.
    unsafe { *acknowledged = failed.len() as c_int };
    layer::with(comm, |known| known.acknowledged = failed);
    SUCCESS
}

/// What stands for a window or a file, and is no communicator of the program.
fn stands_for(object: Object) -> Comm {
    object.comm().unwrap_or(COMM_NULL)
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Win_revoke(win: c_int) -> c_int {
    MPIX_Comm_revoke(stands_for(Object::Window(win)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Win_get_failed(win: c_int, group: *mut Group) -> c_int {
    // SAFETY: the program's place for it.
    unsafe { MPIX_Comm_get_failed(stands_for(Object::Window(win)), group) }
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_File_revoke(file: Word) -> c_int {
    MPIX_Comm_revoke(stands_for(Object::File(file)))
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Comm_agree(comm: Comm, flag: *mut c_int) -> c_int {
    answer(comm, agreements::agree(comm, flag))
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Comm_shrink(comm: Comm, new: *mut Comm) -> c_int {
    answer(comm, agreements::shrink(comm, new))
}

fn answer(comm: Comm, outcome: Option<Result<(), c_int>>) -> c_int {
    match outcome {
        None => refuse(comm),
        Some(Ok(())) => SUCCESS,
        Some(Err(class)) => raise(comm, class),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_iagree(comm: Comm, flag: *mut c_int, request: *mut Request) -> c_int {
    // SAFETY: the program's place for it.
    unsafe { begun(comm, agreements::begin_agree(comm, flag), request) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIX_Comm_ishrink(comm: Comm, new: *mut Comm, request: *mut Request) -> c_int {
    // SAFETY: the program's place for it.
    unsafe { begun(comm, agreements::begin_shrink(comm, new), request) }
}

/// # Safety
/// `place` is the program's place for a request.
unsafe fn begun(comm: Comm, request: Option<Request>, place: *mut Request) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { *place = request.unwrap_or(REQUEST_NULL) };
    if request.is_none() { refuse(comm) } else { SUCCESS }
}

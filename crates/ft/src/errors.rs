//! Errors of this library go the way of MPI's: to the error handler of the communicator.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_protocol::modes::Becomes;
use resurgo_wire::survivors::ENDED;

use crate::layer::{self, Known};
use crate::mpi::{
    ANY_SOURCE, ANY_TAG, COMM_WORLD, Comm, ERR_OTHER, ERR_PROC_FAILED, ERR_REVOKED, ERRORS_ARE_FATAL, ERRORS_RETURN,
    Passed, REQUEST_NULL, Request, SUCCESS, Status, pmpi,
};
use crate::objects::{self, Object};
use crate::provider;
use crate::rules::{State, all_failed, shown};

/// Calls the error handler of `comm`, or of the object for which it stands: it returns, ends the job, or is the program's. Nothing of this library is locked
/// here, and MPI has returned, so it may also leave by longjmp.
pub fn raise(comm: Comm, class: c_int) -> c_int {
    raise_by(objects::of_comm(comm), comm, class)
}

/// Errors of calls on `comm` are returned, whatever its handler was.
pub fn returns_errors(comm: Comm) {
    pmpi!(MPI_Comm_set_errhandler(comm => Comm, ERRORS_RETURN => c_int));
}

/// Calls the error handler of `object`, or of `comm` if there is none.
pub fn raise_by(object: Option<Object>, comm: Comm, class: c_int) -> c_int {
    let class = told(comm, class);
    let mut handler: c_int = 0;
    match object {
        Some(object) => object.get_handler(&mut handler),
        None => {
            pmpi!(MPI_Comm_get_errhandler(comm => Comm, &mut handler => *mut c_int));
        }
    }
    if handler == ERRORS_ARE_FATAL {
        // MPI would end this rank only, and the others would go on without it.
        let (mut text, mut length) = ([0u8; 1024], 0);
        pmpi!(MPI_Error_string(class => c_int, text.as_mut_ptr() => *mut u8, &mut length => *mut c_int));
        let text = String::from_utf8_lossy(&text[..usize::try_from(length).unwrap_or(0)]);
        end_job(&format!("fatal error (MPI_ERRORS_ARE_FATAL): {text}"), class);
    }
    pmpi!(MPI_Errhandler_free(&mut handler => *mut c_int));
    match object {
        Some(object) => object.call_handler(class),
        // It gets the handle that the program has, also where MPI_COMM_WORLD means another communicator.
        None => {
            pmpi!(MPI_Comm_call_errhandler(comm.0 => c_int, class => c_int));
        }
    }
    class
}

macro_rules! sets_handler {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(comm: Comm, handler: c_int) -> c_int {
            if comm != comm.passed() {
                // As above.
                pmpi!($name(comm.0 => c_int, handler => c_int));
            }
            pmpi!($name(comm => Comm, handler => c_int))
        }
    )*};
}

sets_handler! {
    MPI_Comm_set_errhandler;
    MPI_Errhandler_set;
}

/// A communicator made of another has its error handler.
pub fn inherit_handler(from: Comm, to: Comm) {
    let mut handler: c_int = 0;
    pmpi!(MPI_Comm_get_errhandler(from => Comm, &mut handler => *mut c_int));
    pmpi!(MPI_Comm_set_errhandler(to => Comm, handler => c_int));
    pmpi!(MPI_Errhandler_free(&mut handler => *mut c_int));
}

/// `raise` for a call that begins something: there is no request.
///
/// # Safety
/// `request` is the program's place for one.
pub unsafe fn raise_without_request(comm: Comm, class: c_int, request: *mut Request) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { *request = REQUEST_NULL };
    raise(comm, class)
}

/// The same on a revoked communicator.
///
/// # Safety
/// As above.
pub unsafe fn raise_revoked(comm: Comm, request: *mut Request) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { raise_without_request(comm, ERR_REVOKED, request) }
}

/// The provider has ended this receive: there was no message.
#[inline]
pub fn was_ended(status: &Status) -> bool {
    status.tag == ENDED as c_int
}

/// The communicator and the class of the error of a receive that was ended. The status tells the program nothing else.
pub fn of_ended(status: &mut Status) -> (Comm, c_int) {
    let comm = layer::of_context(status.source as u32);
    let class = match layer::is_revoked(comm) {
        true => ERR_REVOKED,
        false => ERR_PROC_FAILED,
    };
    *status = Status {
        source: ANY_SOURCE,
        tag: ANY_TAG,
        error: shown(class),
        ..Status::default()
    };
    (comm, class)
}

/// What to return from a receive on `comm` that has returned `code`.
#[inline]
pub fn received(code: c_int, comm: Comm, status: &mut Status) -> c_int {
    if code != SUCCESS || !was_ended(status) {
        return code;
    }
    let (_, class) = of_ended(status);
    raise(comm, class)
}

/// Failures that the program has been told of, or that a rebuilding has dealt with.
static TOLD: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub fn ranks_told() -> MutexGuard<'static, BTreeSet<u32>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A class of errors as the program sees it, which gets it now.
pub fn told(comm: Comm, class: c_int) -> c_int {
    let shown = shown(class);
    if shown == class {
        return class;
    }
    ranks_told().extend(all_failed());
    layer::with(comm, |known| {
        known.acknowledged = known.failed();
        known.set_state(State::Detected);
    });
    abort_if_asked();
    shown
}

/// The program cannot go on after a failure in a communicator of the mode ABORT, whatever handler it has.
fn abort_if_asked() {
    let aborts = |known: &Known| {
        let modes = known.ftmpi.as_ref().map(|ftmpi| ftmpi.modes.becomes);
        modes == Some(Becomes::Abort) && known.members.len() > 1 && known.has_failures()
    };
    if layer::with_all(|comms| comms.values().any(aborts)) {
        end_job(
            "a rank has failed in a communicator of the mode abort; the job ends",
            ERR_OTHER,
        );
    }
}

fn end_job(why: &str, class: c_int) -> ! {
    eprintln!("resurgo: {why}");
    abort(class)
}

/// Ends the job, and this process before its program goes on.
fn abort(code: c_int) -> ! {
    pmpi!(MPI_Abort(COMM_WORLD.0 => c_int, code => c_int));
    // It returns before the job is over. Who ends first is a lost rank.
    // SAFETY: waits, and ends this process.
    unsafe {
        libc::sleep(10);
        libc::_exit(code)
    }
}

/// MPI has the launcher end the job where the communicator is MPI_COMM_WORLD. With another one it only ends this process,
/// which would be a lost rank.
#[unsafe(no_mangle)]
pub extern "C" fn MPI_Abort(comm: Comm, code: c_int) -> c_int {
    let has_others = |known: &mut Known| known.everyone().any(|rank| rank != provider::own_rank());
    if provider::is_there() && (comm == COMM_WORLD || layer::with(comm, has_others) == Some(true)) {
        abort(code);
    }
    pmpi!(MPI_Abort(comm.0 => c_int, code => c_int))
}

//! MPI as this library calls it: MPICH's types and numbers, and its functions by their other names.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// An argument of MPI: a number or a pointer. Each has a register, or eight bytes, of its own.
pub type Word = usize;
pub type Group = c_int;
pub type Request = c_int;

/// A communicator, by the handle that the program has.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Comm(pub c_int);

pub const SUCCESS: c_int = 0;
pub const ANY_SOURCE: c_int = -2;
pub const ANY_TAG: c_int = -1;
pub const PROC_NULL: c_int = -1;
pub const UNDEFINED: c_int = -32766;
pub const COMM_NULL: Comm = Comm(0x0400_0000);
pub const COMM_WORLD: Comm = Comm(0x4400_0000);
pub const COMM_SELF: Comm = Comm(0x4400_0001);
/// MPI_IN_PLACE.
pub const IN_PLACE: Word = Word::MAX;
pub const REQUEST_NULL: Request = 0x2c00_0000;
pub const INFO_NULL: c_int = 0x1c00_0000;
pub const BYTE: c_int = 0x4c00_010d;
pub const ERRORS_ARE_FATAL: c_int = 0x5400_0000;
pub const ERRORS_RETURN: c_int = 0x5400_0001;
pub const WIN_NULL: c_int = 0x2000_0000;
/// MPI_FILE_NULL.
pub const FILE_NULL: Word = 0;
pub const ERR_COMM: c_int = 5;
pub const ERR_RANK: c_int = 6;
pub const ERR_ARG: c_int = 12;
pub const ERR_TRUNCATE: c_int = 14;
pub const ERR_OTHER: c_int = 15;
pub const ERR_IN_STATUS: c_int = 17;
pub const ERR_PENDING: c_int = 18;
pub const ERR_SPAWN: c_int = 42;
pub const ERR_NO_MEM: c_int = 34;
pub const ERR_UNSUPPORTED_OPERATION: c_int = 44;
pub const ERR_PROC_FAILED: c_int = 101;
pub const ERR_PROC_FAILED_PENDING: c_int = 102;
pub const ERR_REVOKED: c_int = 103;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Status {
    pub count_lo: c_int,
    pub count_hi_and_cancelled: c_int,
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
}

/// MPI_STATUS_IGNORE and MPI_STATUSES_IGNORE.
pub fn is_ignored(status: *const Status) -> bool {
    status as usize == 1 || status.is_null()
}

/// The program's place for a status, or `own` if it gives none.
///
/// # Safety
/// `status` is such a place, or ignored.
pub unsafe fn place(status: *mut Status, own: &mut Status) -> &mut Status {
    match is_ignored(status) {
        true => own,
        // SAFETY: as the caller promises.
        false => unsafe { &mut *status },
    }
}

/// What MPI_COMM_WORLD means now, to MPI.
static WORLD: AtomicI32 = AtomicI32::new(COMM_WORLD.0);

/// From here on the program's MPI_COMM_WORLD is this communicator of MPI.
pub fn is_world(comm: Comm) {
    WORLD.store(comm.0, Ordering::Release);
}

/// This communicator of MPI, by the handle that the program has.
pub fn handle(comm: Comm) -> Comm {
    match comm.0 == WORLD.load(Ordering::Acquire) {
        true => COMM_WORLD,
        false => comm,
    }
}

/// An argument as MPI gets it.
pub trait Passed: Sized {
    #[inline]
    fn passed(self) -> Self {
        self
    }
}

impl Passed for Comm {
    #[inline]
    fn passed(self) -> Comm {
        match self == COMM_WORLD {
            true => Comm(WORLD.load(Ordering::Acquire)),
            false => self,
        }
    }
}

impl Passed for c_int {}
impl Passed for i64 {}
impl Passed for Word {}
impl<T> Passed for *const T {}
impl<T> Passed for *mut T {}

/// `pmpi!(MPI_Wait(request => *mut Request, status => *mut Status))` calls MPI's function by its other name, PMPI_Wait.
macro_rules! pmpi {
    ($name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        static FUNCTION: resurgo_preload::library::Function = resurgo_preload::library::Function::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!("P", stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero inside"),
            },
        );
        // SAFETY: MPI's function of this name has these parameters.
        unsafe {
            let function = FUNCTION.of_mpi("libresurgo-ft.so", "the program must use MPICH 5");
            let function: unsafe extern "C" fn($($type),*) -> std::ffi::c_int = std::mem::transmute(function);
            function($(<$type as $crate::mpi::Passed>::passed($value)),*)
        }
    }};
}
pub(crate) use pmpi;

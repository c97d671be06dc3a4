//! `libresurgo-pmpi.so`: names the calls of MPI in a trace (`resurgo run --trace`).
//!
//! It stands in for the usual functions of MPI. Each passes its arguments on to the next library that has the function:
//! MPI itself, or `libresurgo-ft.so`. Before and after that it tells the provider, which writes the record.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use resurgo_preload::library::Function;
use resurgo_wire::trace::call_number;

/// Runs when the process has loaded its libraries, before any function of MPI.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = resurgo_preload::fortran::redirect;

/// How the file's name of the provider begins. MPI never unloads it.
const PROVIDER: &str = "libresurgo";

static BEGINS: Function = Function::new(c"resurgo_trace_call_begins");
static ENDS: Function = Function::new(c"resurgo_trace_call_ends");

/// Calls that load the provider: MPI opens it in them.
const OPENS: [u16; 4] = [
    call_number("MPI_Init"),
    call_number("MPI_Init_thread"),
    call_number("MPI_Session_init"),
    call_number("MPI_Comm_create_from_group"),
];

static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// 1 + the number of this thread among those that have called MPI.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// This thread is in a call of MPI. What MPI calls inside is no call of the program.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn thread() -> u32 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        thread.get() - 1
    })
}

#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has this counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Makes a call of MPI, and tells of it.
#[inline]
fn traced(call: u16, makes: impl FnOnce() -> c_int) -> c_int {
    if IS_INSIDE.replace(true) {
        return makes();
    }
    let (thread, began) = (thread(), ticks());
    if thread == 0
        && let Some(begins) = BEGINS.known()
    {
        // SAFETY: the provider's function of this name has these parameters.
        unsafe {
            let begins: extern "C" fn(u16, u64) = std::mem::transmute(begins);
            begins(call, began);
        }
    }
    let answer = makes();
    if OPENS.contains(&call) && ENDS.known().is_none() {
        BEGINS.find_in(PROVIDER);
        ENDS.find_in(PROVIDER);
    }
    if let Some(ends) = ENDS.known() {
        // SAFETY: as above.
        unsafe {
            let ends: extern "C" fn(u16, u32, u64) = std::mem::transmute(ends);
            ends(call, thread, began);
        }
    }
    IS_INSIDE.set(false);
    answer
}

/// The type of an argument: an integer or a pointer, in a register or on the stack, takes one word.
macro_rules! word {
    ($argument:ident) => {
        usize
    };
}

macro_rules! functions {
    ($([$($name:ident)*] $arguments:tt)*) => {$($(function! { $name $arguments })*)*};
}

macro_rules! function {
    ($name:ident ($($argument:ident)*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: usize),*) -> c_int {
            const CALL: u16 = call_number(stringify!($name));
            static NEXT: Function = Function::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero inside"),
                },
            );
            traced(CALL, || {
                // SAFETY: MPI's function of this name takes as many words.
                unsafe {
                    let next = NEXT.of_mpi("libresurgo-pmpi.so", "run the program without --trace");
                    let next: extern "C" fn($(word!($argument)),*) -> c_int = std::mem::transmute(next);
                    next($($argument),*)
                }
            })
        }
    };
}

resurgo_wire::trace_calls!(functions);

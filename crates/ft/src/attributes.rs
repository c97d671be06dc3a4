//! FT-MPI's attributes of communicators, among MPI's own: modes, states and failures (`resurgo_ft.h`).

use std::ffi::{c_int, c_void};

use resurgo_protocol::modes::Becomes;

use crate::errors::raise;
use crate::layer::{self, Known};
use crate::mpi::{Comm, ERR_ARG, SUCCESS, pmpi};
use crate::provider;
use crate::rules::{self, Failure, State, is_on};

/// The keys are these and the following numbers. MPI's own keys have other highest bits.
const FIRST: c_int = 0x7f46_5400;
const COMM_MODE: c_int = FIRST;
const MSG_MODE: c_int = FIRST + 1;
const COMM_STATE: c_int = FIRST + 2;
const NUM_FAILED_PROCS: c_int = FIRST + 3;
const FAILED_PROCS: c_int = FIRST + 4;
const FAILED_AT: c_int = FIRST + 5;
const FAILED_CODES: c_int = FIRST + 6;
const PROC_STATES: c_int = FIRST + 7;
const COLL_MODE: c_int = FIRST + 8;
const LAST: c_int = COLL_MODE;

const PROC_OK: c_int = 0;
const PROC_UNAVAILABLE: c_int = 1;
const PROC_JOINING: c_int = 2;
const PROC_FAILED: c_int = 3;

fn is_ours(key: c_int) -> bool {
    (FIRST..=LAST).contains(&key) && is_on()
}

/// Failures of members: those that nobody has dealt with, or those that the last rebuilding has.
fn failures(known: &Known) -> Vec<Failure> {
    let now = known.places(&known.failed());
    match &known.ftmpi {
        Some(ftmpi) if now.is_empty() => ftmpi.last.clone(),
        _ => now,
    }
}

fn state(known: &Known) -> State {
    let state = known.ftmpi.as_ref().map_or(State::Whole, |ftmpi| ftmpi.state);
    match state {
        State::Whole | State::Recovered if known.has_failures() => State::Detected,
        state => state,
    }
}

/// The address of the value.
fn value(known: &mut Known, key: c_int) -> Option<*mut c_void> {
    let modes = known.ftmpi.as_ref()?.modes;
    let numbers = match key {
        COMM_MODE => vec![modes.becomes.number() as c_int],
        MSG_MODE => vec![c_int::from(modes.messages_go_on)],
        COLL_MODE => vec![c_int::from(modes.is_strict)],
        COMM_STATE => vec![state(known) as c_int],
        NUM_FAILED_PROCS => vec![failures(known).len() as c_int],
        FAILED_PROCS => failures(known).iter().map(|failure| failure.place).collect(),
        FAILED_CODES => {
            let failures = failures(known).into_iter();
            failures.map(|failure| provider::failed_by(failure.rank)).collect()
        }
        PROC_STATES => {
            let joining = &known.ftmpi.as_ref()?.joining;
            let has_gap = |at: usize| known.gaps.as_ref().is_some_and(|gaps| gaps.live[at].is_none());
            let members = known.places_of().iter().enumerate();
            let states = members.map(|(at, member)| match provider::failure(*member) {
                _ if joining.contains(member) => match state(known) {
                    State::Failed => PROC_UNAVAILABLE,
                    _ => PROC_JOINING,
                },
                // It had finished when the others rebuilt.
                0 if has_gap(at) => PROC_UNAVAILABLE,
                0 => PROC_OK,
                _ => PROC_FAILED,
            });
            states.collect()
        }
        FAILED_AT => {
            let failures = failures(known).into_iter();
            known.shown.times = failures.map(|failure| provider::failed_at(failure.rank)).collect();
            return Some(known.shown.times.as_mut_ptr().cast());
        }
        _ => return None,
    };
    let place = &mut known.shown.numbers[(key - FIRST) as usize];
    *place = numbers;
    Some(place.as_mut_ptr().cast())
}

/// Sets a mode. False: there is no such mode, or this cannot be set.
fn set(known: &mut Known, key: c_int, value: usize) -> bool {
    let Some(ftmpi) = &mut known.ftmpi else { return false };
    match (key, Becomes::of_number(value as u64)) {
        (COMM_MODE, Some(becomes)) => ftmpi.modes.becomes = becomes,
        (MSG_MODE, _) if value <= 1 => ftmpi.modes.messages_go_on = value == 1,
        (COLL_MODE, _) if value <= 1 => {
            ftmpi.modes.is_strict = value == 1;
            rules::closes();
        }
        _ => return false,
    }
    known.tell_watched();
    true
}

/// # Safety
/// The program's places for the value's address, and for whether there is one.
unsafe fn get(comm: Comm, key: c_int, place: *mut *mut c_void, is_there: *mut c_int) -> c_int {
    let Some(found) = layer::with(comm, |known| value(known, key)) else {
        return raise(comm, ERR_ARG);
    };
    // SAFETY: as the caller promises.
    unsafe {
        *is_there = c_int::from(found.is_some());
        if let Some(found) = found {
            *place = found;
        }
    }
    SUCCESS
}

macro_rules! attributes {
    ($get:ident $put:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(comm: Comm, key: c_int, place: *mut *mut c_void, is_there: *mut c_int) -> c_int {
            match is_ours(key) {
                // SAFETY: as MPI has it.
                true => unsafe { get(comm, key, place, is_there) },
                false => pmpi!($get(
                    comm => Comm, key => c_int, place => *mut *mut c_void, is_there => *mut c_int
                )),
            }
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $put(comm: Comm, key: c_int, value: usize) -> c_int {
            if !is_ours(key) {
                return pmpi!($put(comm => Comm, key => c_int, value => usize));
            }
            match layer::with(comm, |known| set(known, key, value)) {
                Some(true) => SUCCESS,
                _ => raise(comm, ERR_ARG),
            }
        }
    };
}

attributes!(MPI_Comm_get_attr MPI_Comm_set_attr);
attributes!(MPI_Attr_get MPI_Attr_put);

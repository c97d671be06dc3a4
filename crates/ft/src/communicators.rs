//! The beginning of MPI, and communicators.

use std::ffi::c_int;

use resurgo_protocol::survivors::Said;

use crate::agreements;
use crate::errors::{raise, raise_without_request};
use crate::finalize;
use crate::ftmpi;
use crate::layer;
use crate::making::{make_and_tell, making, strangers};
use crate::mpi::{COMM_NULL, COMM_SELF, COMM_WORLD, Comm, ERR_COMM, Group, INFO_NULL, Request, SUCCESS, Word, pmpi};
use crate::provider::{self, From};
use crate::rebuilding;
use crate::rules::{are_gaps, is_on};

/// The library of the MPI-5 standard ABI has other handles and statuses: nothing here can be called with them.
pub fn check_abi() {
    // SAFETY: MPI stays loaded.
    let is_there = |library, name| unsafe { !resurgo_preload::library::in_library(library, name).is_null() };
    if is_there("libmpi_abi", c"PMPI_Init") {
        end("the program uses MPI's standard ABI: compile it with mpicc instead of mpicc_abi");
    }
}

/// Other libraries have other tags, by which the provider knows what a message is about.
pub fn check_library() {
    let (mut text, mut length) = ([0u8; 8192], 0);
    pmpi!(MPI_Get_library_version(text.as_mut_ptr() => *mut u8, &mut length => *mut c_int));
    let text = String::from_utf8_lossy(&text);
    let mut words = text.split_whitespace();
    let is_right = (words.next(), words.next()) == (Some("MPICH"), Some("Version:"))
        && words.next().is_some_and(|version| version.starts_with("5."));
    if !is_right {
        end("the program's MPI library is not MPICH 5");
    }
}

/// What MPI_Init returns in a rank that has been started in the place of another: MPI_INIT_RESTARTED_NODE.
const RESTARTED_NODE: c_int = 0x7f46_54f0;

fn end(why: &str) -> ! {
    eprintln!("resurgo: --ft: {why}");
    std::process::exit(1);
}

fn begin(code: c_int) -> c_int {
    if code == SUCCESS && provider::begin() {
        check_library();
        finalize::prepare();
        layer::learn(COMM_SELF);
        let mut parent = COMM_NULL;
        pmpi!(MPI_Comm_get_parent(&mut parent => *mut Comm));
        if provider::is_replacement() {
            rebuilding::join(parent);
            return if is_python() { SUCCESS } else { RESTARTED_NODE };
        }
        layer::learn(COMM_WORLD);
        layer::learn(parent);
        provider::say(&Said::Joined);
    }
    code
}

/// An interpreter of Python runs here. mpi4py calls MPI_Init when it is imported, and takes every other answer than
/// MPI_SUCCESS for an error.
fn is_python() -> bool {
    // SAFETY: if there is a function of this name it is Python's, which may be called at any time.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr());
        let function: Option<extern "C" fn() -> c_int> = std::mem::transmute(found);
        function.is_some_and(|is_initialized| is_initialized() != 0)
    }
}

/// Whether this rank is in the place of one that has failed, for whoever does not see what MPI_Init returns.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_is_restarted() -> c_int {
    c_int::from(provider::is_there() && provider::is_replacement())
}

/// A rank in the place of another is one of those that were launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_get_parent(parent: *mut Comm) -> c_int {
    if provider::is_replacement() {
        // SAFETY: the program's place for it.
        unsafe { *parent = COMM_NULL };
        return SUCCESS;
    }
    pmpi!(MPI_Comm_get_parent(parent => *mut Comm))
}

#[unsafe(no_mangle)]
pub extern "C" fn MPI_Init(count: Word, words: Word) -> c_int {
    check_abi();
    begin(pmpi!(MPI_Init(count => Word, words => Word)))
}

#[unsafe(no_mangle)]
pub extern "C" fn MPI_Init_thread(count: Word, words: Word, required: c_int, provided: Word) -> c_int {
    check_abi();
    begin(pmpi!(MPI_Init_thread(count => Word, words => Word, required => c_int, provided => Word)))
}

/// Runs a call that makes a communicator, with all that the program sees of it. `call` gets the communicator, and the
/// place for the new one.
fn make(comm: Comm, new: *mut Comm, call: impl Fn(Comm, *mut Comm) -> c_int) -> c_int {
    make_from(comm, new, From::Parent, call)
}

/// The same from what `from` makes of the context of `comm`.
pub fn make_from(
    comm: Comm,
    new: *mut Comm,
    from: impl FnOnce(Option<u32>) -> From,
    call: impl Fn(Comm, *mut Comm) -> c_int,
) -> c_int {
    if !provider::is_there() || comm == COMM_NULL {
        return call(comm, new);
    }
    if let Some(class) = layer::trouble(comm) {
        if ftmpi::rebuilds(comm) {
            // SAFETY: the program's place for it.
            return ftmpi::rebuild(comm, unsafe { &mut *new }, Some(&call));
        }
        return raise(comm, class);
    }
    // SAFETY: the program's place for it.
    make_and_tell(comm, unsafe { &mut *new }, &from(layer::context(comm)), &call)
}

macro_rules! makes {
    ($($name:ident(comm $(, $between:ident)*; new $(, $after:ident)*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(comm: Comm, $($between: Word,)* new: *mut Comm $(, $after: Word)*) -> c_int {
            make(comm, new, |comm, new| pmpi!($name(
                comm => Comm, $($between => Word,)* new => *mut Comm $(, $after => Word)*
            )))
        }
    )*};
}

makes! {
    MPI_Comm_split(comm, color, key; new);
    MPI_Comm_split_type(comm, kind, key, info; new);
    MPI_Cart_create(comm, dimensions, sizes, are_periodic, may_reorder; new);
    MPI_Cart_sub(comm, kept; new);
    MPI_Graph_create(comm, nodes, index, edges, may_reorder; new);
    MPI_Dist_graph_create(comm, count, sources, degrees, to, weights, info, may_reorder; new);
    MPI_Dist_graph_create_adjacent(
        comm, degree_in, sources, weights_in, degree_out, to, weights_out, info, may_reorder; new
    );
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Intercomm_merge(comm: Comm, is_high: c_int, new: *mut Comm) -> c_int {
    let call = |comm, new| pmpi!(MPI_Intercomm_merge(comm => Comm, is_high => c_int, new => *mut Comm));
    let contexts = layer::with(comm, |known| (known.context, known.other_context));
    let Some((context, other)) = contexts else {
        return call(comm, new);
    };
    let code = make_from(comm, new, |_| From::Sides(context, other), call);
    if code != SUCCESS {
        provider::is_not_merged(context, other);
    }
    code
}

/// MPI_Comm_dup, and with info. By FT-MPI's rules it gives the rebuilt communicator itself: ranks that were started to
/// take part in it have no other.
fn duplicate(comm: Comm, new: *mut Comm, call: impl Fn(Comm, *mut Comm) -> c_int) -> c_int {
    let is_broken = || layer::trouble(comm).is_some() || are_gaps() && rebuilding::has_places_to_fill(comm);
    match is_on() && is_broken() && ftmpi::rebuilds(comm) {
        // SAFETY: the program's place for it.
        true => ftmpi::rebuild(comm, unsafe { &mut *new }, None),
        false => {
            let code = make(comm, new, call);
            if code == SUCCESS && are_gaps() {
                // SAFETY: as above; it is written.
                layer::has_same_gaps(unsafe { *new }, comm);
            }
            code
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_dup(comm: Comm, new: *mut Comm) -> c_int {
    duplicate(
        comm,
        new,
        |comm, new| pmpi!(MPI_Comm_dup(comm => Comm, new => *mut Comm)),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_dup_with_info(comm: Comm, info: Word, new: *mut Comm) -> c_int {
    duplicate(
        comm,
        new,
        |comm, new| pmpi!(MPI_Comm_dup_with_info(comm => Comm, info => Word, new => *mut Comm)),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_create(comm: Comm, group: Group, new: *mut Comm) -> c_int {
    make(comm, new, |comm, new| ftmpi::create(comm, group, new))
}

/// Only members of the group take part, so failures of others do no harm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_create_group(comm: Comm, group: Group, tag: c_int, new: *mut Comm) -> c_int {
    let call = || pmpi!(MPI_Comm_create_group(comm => Comm, group => Group, tag => c_int, new => *mut Comm));
    if !provider::is_there() {
        return call();
    }
    if layer::is_revoked(comm) {
        return raise(comm, crate::mpi::ERR_REVOKED);
    }
    let code = making(&From::Group(layer::members(group, comm)), call);
    if code != SUCCESS {
        return code;
    }
    // SAFETY: MPI has written it.
    let new = unsafe { &mut *new };
    if *new == COMM_NULL {
        return code;
    }
    layer::learn_from(*new, comm);
    match layer::trouble(*new) {
        Some(class) => {
            layer::forget(*new);
            *new = COMM_NULL;
            raise(comm, class)
        }
        None => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Intercomm_create(
    local: Comm,
    leader: c_int,
    peers: Comm,
    remote_leader: c_int,
    tag: c_int,
    new: *mut Comm,
) -> c_int {
    make_from(local, new, strangers, |local, new| {
        pmpi!(MPI_Intercomm_create(
            local => Comm, leader => c_int, peers => Comm, remote_leader => c_int, tag => c_int, new => *mut Comm
        ))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_idup(comm: Comm, new: *mut Comm, request: *mut Request) -> c_int {
    if !provider::is_there() {
        return pmpi!(MPI_Comm_idup(comm => Comm, new => *mut Comm, request => *mut Request));
    }
    // SAFETY: the same arguments.
    unsafe { MPI_Comm_idup_with_info(comm, INFO_NULL, new, request) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_idup_with_info(
    comm: Comm,
    info: c_int,
    new: *mut Comm,
    request: *mut Request,
) -> c_int {
    if !provider::is_there() {
        return pmpi!(MPI_Comm_idup_with_info(
            comm => Comm, info => c_int, new => *mut Comm, request => *mut Request
        ));
    }
    let begun = layer::trouble(comm).map_or_else(|| Ok(agreements::begin_duplicate(comm, info, new)), Err);
    // SAFETY: the program's places for both.
    unsafe {
        *new = COMM_NULL;
        match begun {
            Ok(Some(begun)) => *request = begun,
            Ok(None) => return raise_without_request(COMM_WORLD, ERR_COMM, request),
            Err(class) => return raise_without_request(comm, class, request),
        }
    }
    SUCCESS
}

macro_rules! ends {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(comm: *mut Comm) -> c_int {
            // SAFETY: the program's communicator.
            let comm = unsafe { &mut *comm };
            if *comm == COMM_WORLD && is_on() {
                // What rebuilding it by MPI_Comm_dup has returned.
                *comm = COMM_NULL;
                return SUCCESS;
            }
            agreements::finish(*comm);
            if [COMM_NULL, COMM_WORLD, COMM_SELF].contains(comm) || !provider::is_there() || layer::forget(*comm) {
                return pmpi!($name(&mut *comm => *mut Comm));
            }
            // MPI keeps it: messages of a call that did not end well may still come for its number.
            *comm = COMM_NULL;
            SUCCESS
        }
    )*};
}

ends! {
    MPI_Comm_free;
    MPI_Comm_disconnect;
}

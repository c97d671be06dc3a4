//! Processes of other worlds: those that this program starts, those that it meets, and its own without MPI_COMM_WORLD
//! (sessions).

use std::ffi::c_int;

use resurgo_protocol::survivors::Said;

use crate::agreements;
use crate::communicators::{check_abi, check_library, make_from};
use crate::layer;
use crate::making::{making, strangers};
use crate::mpi::{COMM_NULL, Comm, Group, SUCCESS, Word, pmpi};
use crate::provider::{self, From};

/// Starts others. If that fails, those that are not there yet end.
fn spawn(comm: Comm, root: c_int, new: *mut Comm, call: impl Fn(Comm, *mut Comm) -> c_int) -> c_int {
    let code = make_from(comm, new, strangers, call);
    let mut rank = -1;
    if code != SUCCESS && provider::is_there() {
        pmpi!(MPI_Comm_rank(comm => Comm, &mut rank => *mut c_int));
    }
    if rank == root {
        agreements::abandon(comm);
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_spawn(
    command: Word,
    arguments: Word,
    most: c_int,
    info: c_int,
    root: c_int,
    comm: Comm,
    new: *mut Comm,
    errors: Word,
) -> c_int {
    spawn(comm, root, new, |comm, new| {
        pmpi!(MPI_Comm_spawn(
            command => Word, arguments => Word, most => c_int, info => c_int, root => c_int, comm => Comm,
            new => *mut Comm, errors => Word
        ))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_spawn_multiple(
    count: c_int,
    commands: Word,
    arguments: Word,
    most: Word,
    infos: Word,
    root: c_int,
    comm: Comm,
    new: *mut Comm,
    errors: Word,
) -> c_int {
    spawn(comm, root, new, |comm, new| {
        pmpi!(MPI_Comm_spawn_multiple(
            count => c_int, commands => Word, arguments => Word, most => Word, infos => Word, root => c_int,
            comm => Comm, new => *mut Comm, errors => Word
        ))
    })
}

macro_rules! meets {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(port: Word, info: c_int, root: c_int, comm: Comm, new: *mut Comm) -> c_int {
            make_from(comm, new, strangers, |comm, new| {
                pmpi!($name(port => Word, info => c_int, root => c_int, comm => Comm, new => *mut Comm))
            })
        }
    )*};
}

meets! {
    MPI_Comm_accept;
    MPI_Comm_connect;
}

#[unsafe(no_mangle)]
pub extern "C" fn MPI_Session_init(info: c_int, handler: c_int, session: Word) -> c_int {
    check_abi();
    let code = pmpi!(MPI_Session_init(info => c_int, handler => c_int, session => Word));
    if code == SUCCESS && provider::begin() {
        check_library();
    }
    code
}

/// Others can go on without this rank once it has a communicator with them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_create_from_group(
    group: Group,
    tag: Word,
    info: c_int,
    handler: c_int,
    new: *mut Comm,
) -> c_int {
    let call = || {
        pmpi!(MPI_Comm_create_from_group(
            group => Group, tag => Word, info => c_int, handler => c_int, new => *mut Comm
        ))
    };
    if !provider::is_there() {
        return call();
    }
    let code = making(&From::Group(layer::members(group, COMM_NULL)), call);
    if code == SUCCESS {
        // SAFETY: MPI has written it.
        layer::learn(unsafe { *new });
        provider::say(&Said::Joined);
    }
    code
}

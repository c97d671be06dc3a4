//! FT-MPI's rules (Gabriel 2003, §3.1): a failure is told to every rank, whatever peer it uses, as MPI_ERR_OTHER; and
//! survivors rebuild a communicator by MPI_Comm_dup, _split or _create of it.

use std::ffi::c_int;

use resurgo_protocol::survivors::Verdict;

use crate::agreements::{agreed, survivors_of};
use crate::errors::{raise, ranks_told};
use crate::layer::{self, Known};
use crate::making::{make_and_tell, making};
use crate::mpi::{self, COMM_NULL, COMM_WORLD, Comm, ERR_COMM, ERR_OTHER, Group, SUCCESS, pmpi};
use crate::provider::{self, From};
use crate::rebuilding;
use crate::rules::{State, is_on};

/// A call that makes a communicator from `comm`, in which calls cannot end well, rebuilds it: the program knows why.
pub fn rebuilds(comm: Comm) -> bool {
    is_on()
        && layer::with(comm, |known| {
            let told = ranks_told();
            known.remote.is_none() && known.failed().iter().all(|rank| told.contains(rank))
        }) == Some(true)
}

/// Rebuilds `comm`, with all members that live, and makes `new` from the result by `call`. Without a call, `new` is the
/// rebuilt communicator itself.
pub fn rebuild(mut comm: Comm, new: &mut Comm, call: Option<&dyn Fn(Comm, *mut Comm) -> c_int>) -> c_int {
    let is_filled = rebuilding::is_filled(comm);
    end_messages(comm);
    if is_filled && mpi::handle(comm) == COMM_WORLD {
        return fill(new, call);
    }
    loop {
        layer::with(comm, |known| known.set_state(State::Recovering));
        let (made, verdict) = match survivors_of(comm) {
            // New processes come to MPI_COMM_WORLD, and know no other.
            Ok((_, verdict)) if is_filled && !verdict.failed.is_empty() => return give_up(comm, ERR_COMM),
            Ok(made) => made,
            Err(class) => return give_up(comm, class),
        };
        comm = put_in_place(comm, made, &verdict);
        *new = comm;
        let Some(call) = call else { return SUCCESS };
        *new = COMM_NULL;
        let from = From::Parent(layer::context(comm));
        let code = making(&from, || call(comm, new));
        let is_good = code == SUCCESS && layer::trouble(comm).is_none();
        let Some(verdict) = agreed(comm, u32::from(is_good)) else {
            return give_up(comm, ERR_OTHER);
        };
        match (verdict.failed.is_empty(), verdict.flag & 1) {
            (true, 1) => {
                layer::learn_from(*new, comm);
                return SUCCESS;
            }
            (true, _) => return give_up(comm, if code == SUCCESS { ERR_OTHER } else { code }),
            // What was made stays with MPI: members may have different numbers for it.
            (false, _) => {}
        }
    }
}

/// This rank goes to rebuild `comm`, and sends nothing before all others come there. So where messages go on after a
/// failure, they end now: on `comm`, and on those of some of its members.
fn end_messages(comm: Comm) {
    let Some(members) = layer::with(comm, |known| known.members.clone()) else {
        return;
    };
    let waits = |known: &&mut Known| {
        let goes_on = known.ftmpi.as_ref().is_some_and(|ftmpi| !ftmpi.stops());
        goes_on && known.everyone().count() > 1 && known.everyone().all(|rank| members.contains(&rank))
    };
    layer::with_all(|comms| comms.values_mut().filter(waits).for_each(Known::revoke));
}

/// New processes come to MPI_COMM_WORLD, which `new` is, or is made from by `call`. They take part in the call.
fn fill(new: &mut Comm, call: Option<&dyn Fn(Comm, *mut Comm) -> c_int>) -> c_int {
    if let Err(class) = rebuilding::fill() {
        return give_up(COMM_WORLD, class);
    }
    let Some(call) = call else {
        *new = COMM_WORLD;
        return SUCCESS;
    };
    match layer::trouble(COMM_WORLD) {
        Some(class) => raise(COMM_WORLD, class),
        None => make_and_tell(COMM_WORLD, new, &From::Parent(layer::context(COMM_WORLD)), call),
    }
}

fn give_up(comm: Comm, class: c_int) -> c_int {
    layer::with(comm, |known| known.set_state(State::Failed));
    raise(comm, class)
}

/// `made` is `comm` rebuilt, by this verdict. Returns the handle by which the program has it.
fn put_in_place(comm: Comm, made: Comm, verdict: &Verdict) -> Comm {
    ranks_told().extend(&verdict.failed);
    if mpi::handle(comm) == COMM_WORLD {
        mpi::is_world(made);
        layer::learn_rebuilt(COMM_WORLD, COMM_WORLD, verdict);
        return COMM_WORLD;
    }
    layer::learn_rebuilt(made, comm, verdict);
    layer::with(comm, |known| known.set_state(State::Failed));
    made
}

/// MPI_Comm_create: of the group those take part that `comm` still has.
pub fn create(comm: Comm, group: Group, new: *mut Comm) -> c_int {
    let is_whole = |rank: &u32| *rank == u32::MAX || provider::failure(*rank) == 0;
    if !is_on() || layer::members(group, comm).iter().all(is_whole) {
        return pmpi!(MPI_Comm_create(comm => Comm, group => Group, new => *mut Comm));
    }
    let (mut all, mut left) = (0, 0);
    pmpi!(MPI_Comm_group(comm => Comm, &mut all => *mut Group));
    pmpi!(MPI_Group_intersection(group => Group, all => Group, &mut left => *mut Group));
    let code = pmpi!(MPI_Comm_create(comm => Comm, left => Group, new => *mut Comm));
    pmpi!(MPI_Group_free(&mut all => *mut Group));
    pmpi!(MPI_Group_free(&mut left => *mut Group));
    code
}

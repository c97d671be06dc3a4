//! FT-MPI's mode REBUILD (Gabriel 2003, §3.1.1): new processes come for those that have failed. Survivors spawn them,
//! merge with them, and give each its place; if anybody fails meanwhile, they begin again with others.
//!
//! A newcomer does its part within MPI_Init. Until all have agreed that it is there, it has not begun MPI for the job:
//! it ends with the rank that has spawned it, and with the others that were spawned with it. So an attempt that fails
//! leaves nobody behind.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null;

use resurgo_protocol::modes::Modes;
use resurgo_protocol::seats::Seats;
use resurgo_protocol::survivors::{Said, Verdict};
use resurgo_wire::survivors::REPLACEMENT;

use crate::agreements::{abandon, agreed, survivors_of};
use crate::errors::{inherit_handler, ranks_told, returns_errors};
use crate::layer;
use crate::making::{make_quietly, strangers};
use crate::mpi::{self, BYTE, COMM_WORLD, Comm, ERR_COMM, ERR_SPAWN, INFO_NULL, SUCCESS, Word, pmpi};
use crate::provider::{self, From};
use crate::rules::{Failure, OfFtMpi, State};

/// New processes come for the failed members of `comm`.
pub fn is_filled(comm: Comm) -> bool {
    modes(comm).is_some_and(|modes| modes.becomes.is_filled())
}

fn modes(comm: Comm) -> Option<Modes> {
    layer::with(comm, |known| known.ftmpi.as_ref().map(|ftmpi| ftmpi.modes)).flatten()
}

/// It has gaps, and its mode says that they are filled.
pub fn has_places_to_fill(comm: Comm) -> bool {
    mpi::handle(comm) == COMM_WORLD && is_filled(comm) && layer::with(comm, |known| known.gaps.is_some()) == Some(true)
}

/// How an attempt has ended.
enum Outcome {
    /// All are there, without those that this verdict counts.
    Filled(Comm, Comm, Verdict),
    /// Somebody has failed meanwhile.
    Again,
    /// Nobody is started, and the job says why.
    Refused,
}

/// MPI_COMM_WORLD has all of its places taken again, at all ranks that live; or why not, as a class of errors.
pub fn fill() -> Result<(), c_int> {
    loop {
        layer::with(COMM_WORLD, |known| known.set_state(State::Recovering));
        let (few, verdict) = survivors_of(COMM_WORLD)?;
        layer::learn_inner(few, COMM_WORLD);
        returns_errors(few);
        let living = layer::with(few, |known| known.members.clone()).unwrap_or_default();
        let seats = layer::with(COMM_WORLD, |known| {
            let becomes = known.ftmpi.as_ref()?.modes.becomes;
            Some(Seats::new(known.places_of(), &living, becomes))
        });
        let seats = seats.flatten().ok_or(ERR_COMM)?;
        set_joining(&seats.replaced);
        let outcome = match seats.replaced.is_empty() {
            true => Outcome::Filled(few, few, verdict.clone()),
            false => attempt(few, &seats, &verdict.failed),
        };
        match outcome {
            Outcome::Filled(made, all, counted) => {
                take_place(made, all, &verdict.failed, &counted);
                drop_inner([all, few].into_iter().filter(|inner| *inner != made));
                return Ok(());
            }
            Outcome::Again => drop_inner([few]),
            Outcome::Refused => {
                drop_inner([few]);
                return Err(ERR_SPAWN);
            }
        }
        set_joining(&[]);
    }
}

fn set_joining(ranks: &[u32]) {
    layer::with(COMM_WORLD, |known| {
        known.ftmpi.iter_mut().for_each(|ftmpi| ftmpi.joining = ranks.to_vec());
    });
}

/// One attempt of the survivors, whose communicator is `few`.
fn attempt(few: Comm, seats: &Seats, failed: &[u32]) -> Outcome {
    let mut rank = 0;
    pmpi!(MPI_Comm_rank(few => Comm, &mut rank => *mut c_int));
    if rank == 0 {
        // Newcomers of an attempt before are gone when this returns.
        abandon(few);
    }
    if !all_agree(few, true) {
        return Outcome::Again;
    }
    let before = provider::ranks();
    let spawned = spawn(few, &seats.replaced);
    let is_refused = rank == 0 && spawned.is_err() && provider::ranks() == before;
    let verdict = agreed(few, u32::from(spawned.is_ok()) | u32::from(!is_refused) << 1);
    let (is_whole, flag) = verdict.map_or((false, 0), |verdict| (verdict.failed.is_empty(), verdict.flag & 3));
    let inter = match (is_whole, flag, spawned) {
        (true, 3, Ok(inter)) => inter,
        (true, 0 | 1, _) => return Outcome::Refused,
        (.., spawned) => {
            drop_inner(spawned.ok());
            return Outcome::Again;
        }
    };
    returns_errors(inter);
    let outcome = match meet(inter, false) {
        None => Outcome::Again,
        Some(all) => {
            let told = tell(all, &plan(seats, failed));
            let seat = told.and_then(|_| seats.survivors.get(rank as usize).copied().ok_or(ERR_COMM));
            sit_down(all, seat).map_or(Outcome::Again, |(made, verdict)| Outcome::Filled(made, all, verdict))
        }
    };
    drop_inner([inter]);
    outcome
}

/// All members of `comm` live, and all say yes.
fn all_agree(comm: Comm, yes: bool) -> bool {
    is_yes(agreed(comm, u32::from(yes)).as_ref())
}

fn is_yes(verdict: Option<&Verdict>) -> bool {
    verdict.is_some_and(|verdict| verdict.failed.is_empty() && verdict.flag & 1 == 1)
}

/// Processes in the places of these ranks.
fn spawn(few: Comm, replaced: &[u32]) -> Result<Comm, c_int> {
    let text = |text: String| CString::new(text).unwrap_or_default();
    let command = text(REPLACEMENT.to_string());
    let words: Vec<CString> = replaced.iter().map(|rank| text(rank.to_string())).collect();
    let words: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).chain([null()]).collect();
    make_quietly(few, &strangers(layer::context(few)), |few, new| {
        pmpi!(MPI_Comm_spawn(
            command.as_ptr() => *const c_char, words.as_ptr() as Word => Word, replaced.len() as c_int => c_int,
            INFO_NULL => c_int, 0 => c_int, few => Comm, new => *mut Comm, 0 => Word
        ))
    })
}

/// Survivors and newcomers, together. All of them have it, or none.
fn meet(inter: Comm, is_new: bool) -> Option<Comm> {
    let contexts = layer::with(inter, |known| (known.context, known.other_context));
    let (context, other) = contexts?;
    let merged = make_quietly(
        inter,
        &From::Sides(context, other),
        |inter, new| pmpi!(MPI_Intercomm_merge(inter => Comm, c_int::from(is_new) => c_int, new => *mut Comm)),
    );
    if merged.is_err() {
        provider::is_not_merged(context, other);
    }
    let are_all = all_agree(inter, merged.is_ok());
    merged.iter().for_each(|all| returns_errors(*all));
    let (all, unused): (Vec<Comm>, Vec<Comm>) = merged.into_iter().partition(|_| are_all);
    drop_inner(unused);
    all.first().copied()
}

/// The new communicator of all, in the order of their seats, and the verdict by which all of them have it.
fn sit_down(all: Comm, seat: Result<u32, c_int>) -> Option<(Comm, Verdict)> {
    let made = seat.and_then(|seat| {
        make_quietly(
            all,
            &From::Parent(layer::context(all)),
            |all, new| pmpi!(MPI_Comm_split(all => Comm, 0 => c_int, seat as c_int => c_int, new => *mut Comm)),
        )
    });
    let verdict = agreed(all, u32::from(made.is_ok()));
    match (made, verdict) {
        (Ok(made), Some(verdict)) if is_yes(Some(&verdict)) => Some((made, verdict)),
        (made, _) => {
            drop_inner(made.ok().into_iter().chain([all]));
            None
        }
    }
}

/// What survivors tell newcomers: the modes; of each failure the place and the number of the rank; and the seats.
fn plan(seats: &Seats, failed: &[u32]) -> Vec<u32> {
    let known = layer::with(COMM_WORLD, |known| {
        let modes = known.ftmpi.as_ref().map_or(0, |ftmpi| ftmpi.modes.word());
        (modes, known.places(failed))
    });
    let (modes, failures) = known.unwrap_or_default();
    let mut words = vec![modes as u32, failures.len() as u32];
    words.extend(failures.iter().flat_map(|failure| [failure.place as u32, failure.rank]));
    words.extend(&seats.newcomers);
    words
}

/// The same at a newcomer, with its own seat.
fn understand(words: &[u32], number: usize) -> Option<(OfFtMpi, u32)> {
    let [modes, failures, rest @ ..] = words else {
        return None;
    };
    let (pairs, seats) = rest.split_at_checked(2 * *failures as usize)?;
    let mut ftmpi = OfFtMpi::new(Modes::of_word((*modes).into())?, Vec::new());
    let pairs = pairs.chunks_exact(2);
    ftmpi.last = pairs
        .map(|pair| Failure {
            place: pair[0] as c_int,
            rank: pair[1],
        })
        .collect();
    Some((ftmpi, *seats.get(number)?))
}

/// What the first of the survivors has to say, at all.
fn tell(all: Comm, words: &[u32]) -> Result<Vec<u32>, c_int> {
    let mut count = words.len() as u32;
    broadcast(all, std::slice::from_mut(&mut count))?;
    let mut words = words.to_vec();
    words.resize(count as usize, 0);
    broadcast(all, &mut words)?;
    Ok(words)
}

fn broadcast(all: Comm, words: &mut [u32]) -> Result<(), c_int> {
    let code = pmpi!(MPI_Bcast(
        words.as_mut_ptr() => *mut u32, size_of_val(words) as c_int => c_int, BYTE => c_int, 0 => c_int, all => Comm
    ));
    match layer::trouble(all) {
        None if code == SUCCESS => Ok(()),
        trouble => Err(trouble.unwrap_or(code)),
    }
}

/// `made` is MPI_COMM_WORLD now, at a survivor.
fn take_place(made: Comm, all: Comm, failed: &[u32], counted: &Verdict) {
    let ftmpi = layer::with(COMM_WORLD, |known| {
        let mut ftmpi = known.ftmpi.clone()?;
        ftmpi.last = known.places(failed);
        Some(ftmpi)
    });
    let Some(mut ftmpi) = ftmpi.flatten() else { return };
    ftmpi.is_rebuilt(counted);
    ranks_told().extend(failed);
    is_world(made, all, ftmpi);
}

/// `made`, which was made from `all`, is MPI_COMM_WORLD now.
fn is_world(made: Comm, all: Comm, ftmpi: OfFtMpi) {
    inherit_handler(COMM_WORLD, made);
    layer::forget(made);
    mpi::is_world(made);
    layer::learn_world(all, ftmpi);
}

/// This process has been started in the place of a rank. It returns as a rank of MPI_COMM_WORLD; or not at all.
pub fn join(parent: Comm) {
    layer::learn_inner(COMM_WORLD, mpi::COMM_NULL);
    layer::learn_inner(parent, mpi::COMM_NULL);
    returns_errors(parent);
    let mut number = 0;
    pmpi!(MPI_Comm_rank(COMM_WORLD => Comm, &mut number => *mut c_int));
    let joined = meet(parent, true).and_then(|all| {
        let told = tell(all, &[])
            .ok()
            .and_then(|words| understand(&words, number as usize));
        let seat = told.as_ref().map(|(_, seat)| *seat).ok_or(ERR_COMM);
        let (made, verdict) = sit_down(all, seat)?;
        Some((told?.0, made, all, verdict))
    });
    let Some((mut ftmpi, made, all, verdict)) = joined else {
        // The survivors begin again with others.
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) }
    };
    ftmpi.is_rebuilt(&verdict);
    is_world(made, all, ftmpi);
    provider::say(&Said::Joined);
    drop_inner([all, parent]);
}

/// Nobody needs these any more. MPI keeps those in which a call may not have ended well.
fn drop_inner(comms: impl IntoIterator<Item = Comm>) {
    for mut comm in comms {
        if layer::forget(comm) {
            pmpi!(MPI_Comm_free(&mut comm => *mut Comm));
        }
    }
}

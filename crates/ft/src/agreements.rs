//! What takes part in agreements: MPIX_Comm_agree and MPIX_Comm_shrink, and the same as requests. A request of these
//! is one of MPI's generalized requests. It goes on in calls that wait for requests, test them, or receive.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_protocol::survivors::{Closing, Said, Verdict, Wish};
use resurgo_wire::survivors::Answer;

use crate::errors::inherit_handler;
use crate::layer::{self, Known};
use crate::making::{copy, making};
use crate::mpi::{
    ANY_SOURCE, ANY_TAG, COMM_NULL, COMM_WORLD, Comm, ERR_COMM, ERR_OTHER, ERR_PROC_FAILED, Group, Request, SUCCESS,
    Status, pmpi,
};
use crate::provider::{self, Before, From};

/// Tags of MPI_Comm_create_group, from the number of the agreement before.
const TAGS: u32 = 1 << 20;

static TICKETS: AtomicU32 = AtomicU32::new(0);
/// Most answers that are there and not taken; with more the program's memory may be elsewhere in a later life.
const ANSWERS: usize = 64;
/// Answers of the agent that no call has taken yet.
static VERDICTS: Mutex<Option<HashMap<u32, Verdict>>> = Mutex::new(None);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An agreement that this rank has said its part of.
struct Asked {
    ticket: u32,
    number: u32,
    /// Looks for the verdict so far, and the one at which a former life found it.
    looks: u64,
    due: Option<u64>,
    /// Later lives must find the verdict at the same look.
    is_kept: bool,
}

impl Asked {
    /// Says it, unless a former life has.
    fn new(ticket: u32, number: u32, said: &Said) -> Asked {
        lock(&VERDICTS).get_or_insert_with(|| HashMap::with_capacity(ANSWERS));
        let before = provider::wants();
        let known = if before == Before::Perhaps { known(ticket) } else { None };
        provider::say_if(said, known.is_none());
        Asked {
            ticket,
            number,
            looks: 0,
            due: known.flatten(),
            is_kept: before != Before::NoLives,
        }
    }
}

/// Whether a former life has said what has this ticket, and the look that found the verdict.
fn known(ticket: u32) -> Option<Option<u64>> {
    provider::ask_again(ticket);
    loop {
        match provider::answer(true) {
            Some(Answer::Repeated(of, is_known, look)) if of == ticket => return is_known.then_some(look),
            Some(Answer::Agreed(of, verdict)) => {
                lock(&VERDICTS).get_or_insert_default().insert(of, verdict);
            }
            _ => {}
        }
    }
}

/// Takes part in an agreement of all members of `comm` that live; none: there is no such communicator.
fn ask(comm: Comm, flag: u32) -> Option<Asked> {
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let wish = layer::with(comm, |known| {
        known.agreements += 1;
        Wish {
            ticket,
            context: known.common_context(),
            number: known.agreements,
            flag,
            acknowledged: known.acknowledged.clone(),
            members: known.everyone().collect(),
        }
    })?;
    let number = wish.number;
    Some(Asked::new(ticket, number, &Said::Wants(wish)))
}

/// The verdict, if it is there. A life that repeats what a former one did finds it when that found it, neither earlier nor
/// later.
fn verdict(asked: &mut Asked) -> Option<Verdict> {
    asked.looks += 1;
    let mut verdicts = lock(&VERDICTS);
    let verdicts = verdicts.get_or_insert_default();
    if let Some(due) = asked.due {
        while asked.looks >= due && !verdicts.contains_key(&asked.ticket) {
            if let Some(Answer::Agreed(ticket, verdict)) = provider::answer(true) {
                verdicts.insert(ticket, verdict);
            }
        }
        return if asked.looks < due {
            None
        } else {
            verdicts.remove(&asked.ticket)
        };
    }
    if asked.is_kept && provider::repeats() {
        return None;
    }
    while let Some(answer) = provider::answer(false) {
        if let Answer::Agreed(ticket, verdict) = answer {
            verdicts.insert(ticket, verdict);
        }
    }
    let verdict = verdicts.remove(&asked.ticket)?;
    if asked.is_kept {
        provider::took(asked.ticket, asked.looks);
    }
    Some(verdict)
}

/// Waits for the verdict.
fn await_verdict(asked: &mut Asked, comm: Comm) -> Verdict {
    loop {
        if let Some(verdict) = verdict(asked) {
            return verdict;
        }
        provider::await_verdict();
        progress(comm);
    }
}

/// How a call or request has ended: well, or with a class of errors.
type Outcome = Result<(), c_int>;

/// What an operation does next.
enum Step {
    /// The members agree on the program's bits.
    Agrees { flag: usize, asked: Asked },
    /// They make a copy. MPI's own call as a request cannot be brought back.
    Duplicates { new: usize, info: c_int },
    /// They agree on their failures, before they make a communicator.
    Shrinks { new: usize, asked: Asked },
    /// They agree that all of them have made it, with `failed` left out.
    HasMade {
        new: usize,
        asked: Asked,
        made: Comm,
        code: c_int,
        failed: Vec<u32>,
    },
}

struct Operation {
    comm: Comm,
    known: Known,
    step: Step,
    /// A communicator of those that live, and what they have agreed on.
    made: Option<(Comm, Verdict)>,
}

impl Operation {
    fn new(comm: Comm, known: Known, step: Step) -> Operation {
        Operation {
            comm,
            known,
            step,
            made: None,
        }
    }

    fn agree(comm: Comm, flag: *mut c_int) -> Option<Operation> {
        let known = layer::with(comm, |known| known.clone())?;
        // SAFETY: the program's place for it, which stays until the operation has ended.
        let asked = ask(comm, unsafe { *flag } as u32)?;
        let flag = flag as usize;
        Some(Operation::new(comm, known, Step::Agrees { flag, asked }))
    }

    fn shrink(comm: Comm, new: *mut Comm) -> Option<Operation> {
        let known = layer::with(comm, |known| known.clone()).filter(|known| known.remote.is_none())?;
        let asked = ask(comm, u32::MAX)?;
        let new = new as usize;
        Some(Operation::new(comm, known, Step::Shrinks { new, asked }))
    }

    fn duplicate(comm: Comm, info: c_int, new: *mut Comm) -> Option<Operation> {
        let known = layer::with(comm, |known| known.clone())?;
        let new = new as usize;
        Some(Operation::new(comm, known, Step::Duplicates { new, info }))
    }

    /// Goes on as far as it can.
    fn goes_on(&mut self) -> Option<Outcome> {
        loop {
            match &mut self.step {
                Step::Agrees { flag, asked } => {
                    let verdict = verdict(asked)?;
                    // SAFETY: the program's place for it.
                    unsafe { *(*flag as *mut c_int) = verdict.flag as c_int };
                    return Some(match verdict.is_acknowledged {
                        true => Ok(()),
                        false => Err(ERR_PROC_FAILED),
                    });
                }
                Step::Duplicates { new, info } => {
                    // SAFETY: the program's place for it, which stays until the operation has ended.
                    return Some(copy(self.comm, *info, unsafe { &mut *(*new as *mut Comm) }));
                }
                Step::Shrinks { new, asked } => {
                    let verdict = verdict(asked)?;
                    let (new, number) = (*new, asked.number);
                    if let Some(outcome) = self.make(new, number, verdict.failed) {
                        return Some(outcome);
                    }
                }
                Step::HasMade {
                    new,
                    asked,
                    made,
                    code,
                    failed,
                } => {
                    let verdict = verdict(asked)?;
                    if verdict.failed == *failed {
                        if verdict.flag & 1 == 0 {
                            return Some(Err(if *code == SUCCESS { ERR_OTHER } else { *code }));
                        }
                        inherit_handler(self.comm, *made);
                        self.made = Some((*made, verdict));
                        return Some(Ok(()));
                    }
                    // What was made stays with MPI: members may have different numbers for it.
                    let (new, number) = (*new, asked.number);
                    if let Some(outcome) = self.make(new, number, verdict.failed) {
                        return Some(outcome);
                    }
                }
            }
        }
    }

    /// Makes a communicator of all but those that have failed. All members that live go on with it, or all try again.
    fn make(&mut self, new: usize, number: u32, failed: Vec<u32>) -> Option<Outcome> {
        let survivors = self.known.members.iter().filter(|rank| !failed.contains(rank)).copied();
        let survivors: Vec<u32> = survivors.collect();
        let mut group = layer::group_of(self.comm, &self.known, &survivors);
        let (comm, mut made) = (self.comm, COMM_NULL);
        let code = making(&From::Group(survivors), || {
            pmpi!(MPI_Comm_create_group(
                comm => Comm, group => Group, (number % TAGS) as c_int => c_int, &mut made => *mut Comm
            ))
        });
        pmpi!(MPI_Group_free(&mut group => *mut Group));
        let Some(asked) = ask(comm, u32::from(code == SUCCESS)) else {
            return Some(Err(ERR_OTHER));
        };
        self.step = Step::HasMade {
            new,
            asked,
            made,
            code,
            failed,
        };
        None
    }

    /// Gives the program what was made.
    fn hand_out(&self) {
        if let (Some((made, verdict)), Step::HasMade { new, .. }) = (&self.made, &self.step) {
            layer::learn_rebuilt(*made, self.comm, verdict);
            // SAFETY: the program's place for it.
            unsafe { *(*new as *mut Comm) = *made };
        }
    }

    fn wait(&mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.goes_on() {
                return outcome;
            }
            provider::await_verdict();
            go_on();
            progress(self.comm);
        }
    }
}

/// MPI goes on meanwhile, and takes what others send. It does nothing for COMM_SELF.
fn progress(comm: Comm) {
    let comm = if layer::has_world() { COMM_WORLD } else { comm };
    let (mut found, mut status) = (0, Status::default());
    pmpi!(MPI_Iprobe(
        ANY_SOURCE => c_int, ANY_TAG => c_int, comm => Comm, &mut found => *mut c_int, &mut status => *mut Status
    ));
}

/// None: there is no such communicator.
pub fn agree(comm: Comm, flag: *mut c_int) -> Option<Outcome> {
    Operation::agree(comm, flag).map(|mut operation| operation.wait())
}

pub fn shrink(comm: Comm, new: *mut Comm) -> Option<Outcome> {
    let mut operation = Operation::shrink(comm, new)?;
    let outcome = operation.wait();
    operation.hand_out();
    Some(outcome)
}

/// A communicator of the members of `comm` that live, and what they have agreed on; or why there is none, as a class of
/// errors. All that live go on with it.
pub fn survivors_of(comm: Comm) -> Result<(Comm, Verdict), c_int> {
    let mut operation = Operation::shrink(comm, null_mut()).ok_or(ERR_COMM)?;
    operation.wait()?;
    operation.made.ok_or(ERR_COMM)
}

/// What all members of `comm` that live agree on. None: there is no such communicator.
pub fn agreed(comm: Comm, flag: u32) -> Option<Verdict> {
    ask(comm, flag).map(|mut asked| await_verdict(&mut asked, comm))
}

/// A collective call on `comm` has ended well, here: whether it has for all. None: it has no closing barrier.
pub fn closed(comm: Comm, is_good: bool) -> Option<bool> {
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let closing = layer::with(comm, |known| {
        let ftmpi = known.ftmpi.as_ref().filter(|ftmpi| ftmpi.modes.is_strict)?;
        let (of_job, absorbed) = (ftmpi.stops(), ftmpi.absorbed.clone());
        known.closings += 1;
        Some(Closing {
            ticket,
            context: known.common_context(),
            number: known.closings,
            is_good,
            of_job,
            absorbed,
            members: known.everyone().collect(),
        })
    });
    let closing = closing.flatten().filter(|closing| closing.members.len() > 1)?;
    let number = closing.number;
    let mut asked = Asked::new(ticket, number, &Said::Closes(closing));
    let verdict = await_verdict(&mut asked, comm);
    // The program is told of the failure that has ended it.
    while verdict.failed.iter().any(|rank| provider::failure(*rank) == 0) {
        progress(comm);
    }
    Some(verdict.flag == 1)
}

/// Ranks that this one has spawned, and that have not begun MPI, end. Returns when they have.
pub fn abandon(comm: Comm) {
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    provider::say(&Said::Abandons { ticket });
    let mut asked = Asked {
        ticket,
        number: 0,
        looks: 0,
        due: None,
        is_kept: false,
    };
    await_verdict(&mut asked, comm);
}

/// Requests under way, and how those have ended that the program has not waited for.
#[derive(Default)]
struct Begun {
    under_way: Vec<(Request, Operation)>,
    ended: HashMap<Request, Outcome>,
}

static BEGUN: Mutex<Option<Begun>> = Mutex::new(None);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// There are requests under way.
#[inline]
pub fn are_under_way() -> bool {
    UNDER_WAY.load(Ordering::Relaxed) != 0
}

/// Requests go on.
#[inline]
pub fn go_on() {
    if are_under_way() {
        all_go_on();
    }
}

#[cold]
fn all_go_on() {
    // Taken out, because they call MPI.
    let operations = std::mem::take(&mut lock(&BEGUN).get_or_insert_default().under_way);
    for (request, mut operation) in operations {
        let outcome = operation.goes_on();
        let mut begun = lock(&BEGUN);
        let begun = begun.get_or_insert_default();
        let Some(outcome) = outcome else {
            begun.under_way.push((request, operation));
            continue;
        };
        operation.hand_out();
        begun.ended.insert(request, outcome);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        pmpi!(MPI_Grequest_complete(request => Request));
    }
}

/// The program is about to free `comm`: what is under way for it comes first.
pub fn finish(comm: Comm) {
    let is_under_way = || {
        let mut begun = lock(&BEGUN);
        let under_way = &begun.get_or_insert_default().under_way;
        under_way.iter().any(|(_, operation)| operation.comm == comm)
    };
    while are_under_way() && is_under_way() {
        all_go_on();
        progress(comm);
    }
}

/// The class of the error with which this request has ended.
pub fn error_of(request: Request) -> Option<c_int> {
    lock(&BEGUN).get_or_insert_default().ended.remove(&request)?.err()
}

/// MPI asks for the status: there is nothing in it.
unsafe extern "C" fn query(_: *mut c_void, status: *mut Status) -> c_int {
    // SAFETY: MPI's place for it.
    unsafe { *status = Status::default() };
    SUCCESS
}

unsafe extern "C" fn free(_: *mut c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn cancel(_: *mut c_void, _: c_int) -> c_int {
    SUCCESS
}

fn new_request() -> Request {
    let mut request = 0;
    pmpi!(MPI_Grequest_start(
        query as *const c_void => *const c_void,
        free as *const c_void => *const c_void,
        cancel as *const c_void => *const c_void,
        null_mut() => *mut c_void,
        &mut request => *mut Request
    ));
    request
}

/// A request that has ended.
pub fn ended_request() -> Request {
    let request = new_request();
    pmpi!(MPI_Grequest_complete(request => Request));
    request
}

fn begin(operation: Operation) -> Request {
    let (comm, request) = (operation.comm, new_request());
    layer::track(request, layer::About::Agreement { comm });
    lock(&BEGUN)
        .get_or_insert_default()
        .under_way
        .push((request, operation));
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    request
}

/// None: there is no such communicator.
pub fn begin_agree(comm: Comm, flag: *mut c_int) -> Option<Request> {
    Operation::agree(comm, flag).map(begin)
}

/// None: there is no such communicator.
pub fn begin_duplicate(comm: Comm, info: c_int, new: *mut Comm) -> Option<Request> {
    Operation::duplicate(comm, info, new).map(begin)
}

pub fn begin_shrink(comm: Comm, new: *mut Comm) -> Option<Request> {
    Operation::shrink(comm, new).map(begin)
}

//! The end of requests.

use std::ffi::c_int;

use crate::agreements;
use crate::errors::{of_ended, raise, was_ended};
use crate::gaps;
use crate::layer::{self, About};
use crate::mpi::{
    ANY_SOURCE, COMM_WORLD, Comm, ERR_IN_STATUS, ERR_PENDING, ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, REQUEST_NULL,
    Request, SUCCESS, Status, UNDEFINED, is_ignored, place, pmpi,
};
use crate::rules::shown;

/// Statuses that MPI fills in, where the program gives no room.
struct Room<'a> {
    own: Vec<Status>,
    given: Option<&'a mut [Status]>,
}

impl<'a> Room<'a> {
    /// # Safety
    /// `statuses` has room for `count`, or is ignored.
    unsafe fn of(statuses: *mut Status, count: c_int) -> Room<'a> {
        let count = usize::try_from(count).unwrap_or(0);
        match is_ignored(statuses) || count == 0 {
            true => Room {
                own: vec![Status::default(); count],
                given: None,
            },
            // SAFETY: as the caller promises.
            false => Room {
                own: Vec::new(),
                given: Some(unsafe { std::slice::from_raw_parts_mut(statuses, count) }),
            },
        }
    }

    fn all(&mut self) -> &mut [Status] {
        match &mut self.given {
            Some(given) => given,
            None => &mut self.own,
        }
    }
}

/// # Safety
/// `requests` points to `count` of them.
unsafe fn list<'a>(requests: *mut Request, count: c_int) -> &'a mut [Request] {
    let count = usize::try_from(count).unwrap_or(0);
    match count {
        0 => &mut [],
        // SAFETY: as the caller promises.
        count => unsafe { std::slice::from_raw_parts_mut(requests, count) },
    }
}

/// A request has ended so: its communicator and the class of its error, if it has one. `request`: as it was before.
fn ended(request: Request, about: Option<About>, status: &mut Status) -> Option<(Comm, c_int)> {
    let error = match about {
        _ if was_ended(status) => Some(of_ended(status)),
        Some(About::Agreement { comm }) => agreements::error_of(request).map(|class| (comm, class)),
        Some(About::Lost { comm, class }) => Some((comm, class)),
        Some(About::Collective { comm } | About::Object { comm }) => layer::trouble(comm).map(|class| (comm, class)),
        Some(About::Send { comm, to }) => layer::trouble_with(comm, to).map(|class| (comm, class)),
        Some(About::Exchange { comm, to, from }) => troubled_exchange(comm, to, from),
        Some(About::Any { .. } | About::Gaps { .. } | About::Parts { .. }) | None => None,
    };
    if let Some(About::Any { comm, .. } | About::Gaps { comm } | About::Exchange { comm, .. }) = about {
        gaps::show(comm, status);
    }
    layer::untrack(request, false);
    error
}

/// A receive from any rank cannot end before the program acknowledges a failure.
fn pends(about: Option<About>) -> Option<Comm> {
    match about {
        Some(About::Any { comm }) => (layer::trouble_with(comm, ANY_SOURCE) == Some(ERR_PROC_FAILED)).then_some(comm),
        _ => None,
    }
}

/// One of two messages cannot come, or is lost.
fn troubled_exchange(comm: Comm, to: c_int, from: c_int) -> Option<(Comm, c_int)> {
    let class = layer::trouble_with(comm, to).or_else(|| layer::trouble_with(comm, from));
    class.map(|class| (comm, class))
}

/// Why it cannot end, though MPI waits: its communicator and a class of errors.
fn hopeless(about: Option<About>) -> Option<(Comm, c_int)> {
    match about? {
        About::Object { comm } => layer::trouble(comm).map(|class| (comm, class)),
        About::Parts { comm, peer } => layer::trouble_with(comm, peer).map(|class| (comm, class)),
        About::Exchange { comm, to, from } => troubled_exchange(comm, to, from),
        _ => None,
    }
}

/// A request that cannot end becomes one that has ended, with the error. MPI keeps it.
fn give_up(request: &mut Request, about: Option<About>) -> Option<About> {
    let Some((comm, class)) = hopeless(about) else {
        return about;
    };
    let (mut is_done, mut status) = (0, Status::default());
    pmpi!(MPI_Request_get_status(*request => Request, &mut is_done => *mut c_int, &mut status => *mut Status));
    if is_done != 0 {
        return about;
    }
    layer::untrack(*request, true);
    *request = agreements::ended_request();
    let about = About::Lost { comm, class };
    layer::track(*request, about);
    Some(about)
}

fn give_all_up(requests: &mut [Request], abouts: &[Option<About>]) -> Vec<Option<About>> {
    let each = requests.iter_mut().zip(abouts);
    each.map(|(request, about)| give_up(request, *about)).collect()
}

/// What is known of each request, if anything is.
fn known(requests: &[Request]) -> Vec<Option<About>> {
    match layer::tracks() {
        true => requests.iter().map(|request| layer::about(*request)).collect(),
        false => Vec::new(),
    }
}

/// It needs looks at more than MPI's progress.
fn needs_looks(about: Option<About>) -> bool {
    matches!(
        about,
        Some(
            About::Any { .. }
                | About::Agreement { .. }
                | About::Object { .. }
                | About::Exchange { from: ANY_SOURCE, .. }
        )
    ) || agreements::are_under_way()
}

fn need_looks(abouts: &[Option<About>]) -> bool {
    abouts.iter().any(|about| needs_looks(*about))
}

/// The same for calls that wait for some of them.
fn some_need_looks(abouts: &[Option<About>]) -> bool {
    need_looks(abouts) || abouts.iter().any(|about| matches!(about, Some(About::Parts { .. })))
}

/// Waits for a message in parts, or gives it up. MPICH cannot test several of them: it looks for errors in statuses
/// that it does not write.
fn await_parts(request: &mut Request, about: Option<About>) -> Option<About> {
    while let Some(About::Parts { .. }) = about {
        agreements::go_on();
        let (mut is_done, mut status) = (0, Status::default());
        let code = pmpi!(MPI_Request_get_status(
            *request => Request, &mut is_done => *mut c_int, &mut status => *mut Status
        ));
        if code != SUCCESS || is_done != 0 {
            return about;
        }
        let now = give_up(request, about);
        if !matches!(now, Some(About::Parts { .. })) {
            return now;
        }
    }
    about
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Wait(request: *mut Request, status: *mut Status) -> c_int {
    let mut own = Status::default();
    // SAFETY: the program's places for both.
    let (request, status) = unsafe { (&mut *request, place(status, &mut own)) };
    let about = await_parts(request, layer::about(*request));
    let before = *request;
    if needs_looks(about) {
        loop {
            let mut is_done = 0;
            let code = test(request, &mut is_done, status, about);
            if code != SUCCESS || is_done != 0 {
                return code;
            }
        }
    }
    let code = pmpi!(MPI_Wait(&mut *request => *mut Request, &mut *status => *mut Status));
    match (code == SUCCESS).then(|| ended(before, about, status)).flatten() {
        Some((comm, class)) => raise(comm, class),
        None => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Test(request: *mut Request, is_done: *mut c_int, status: *mut Status) -> c_int {
    let mut own = Status::default();
    // SAFETY: the program's places for all.
    let (request, status) = unsafe { (&mut *request, place(status, &mut own)) };
    let about = layer::about(*request);
    // SAFETY: as above.
    test(request, unsafe { &mut *is_done }, status, about)
}

fn test(request: &mut Request, is_done: &mut c_int, status: &mut Status, about: Option<About>) -> c_int {
    agreements::go_on();
    let about = give_up(request, about);
    let (before, pending) = (*request, pends(about));
    let code = pmpi!(MPI_Test(
        &mut *request => *mut Request, &mut *is_done => *mut c_int, &mut *status => *mut Status
    ));
    if code != SUCCESS {
        return code;
    }
    if *is_done == 0 {
        return pending.map_or(SUCCESS, |comm| raise(comm, ERR_PROC_FAILED_PENDING));
    }
    ended(before, about, status).map_or(SUCCESS, |(comm, class)| raise(comm, class))
}

/// All requests have ended: notes errors in the statuses, and returns what the call returns.
fn all_ended(before: &[Request], abouts: &[Option<About>], statuses: &mut [Status]) -> c_int {
    let mut first = None;
    for (at, (request, status)) in before.iter().zip(statuses.iter_mut()).enumerate() {
        let error = ended(*request, abouts.get(at).copied().flatten(), status);
        status.error = error.map_or(SUCCESS, |(_, class)| shown(class));
        first = first.or(error);
    }
    first.map_or(SUCCESS, |(comm, _)| raise(comm, ERR_IN_STATUS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Waitall(count: c_int, requests: *mut Request, statuses: *mut Status) -> c_int {
    // SAFETY: the program's places for as many.
    let (requests, mut room) = unsafe { (list(requests, count), Room::of(statuses, count)) };
    let mut abouts = known(requests);
    for (request, about) in requests.iter_mut().zip(&mut abouts) {
        *about = await_parts(request, *about);
    }
    if need_looks(&abouts) {
        loop {
            let mut is_done = 0;
            let code = test_all(requests, &mut is_done, room.all(), &known(requests));
            if code != SUCCESS || is_done != 0 {
                return code;
            }
        }
    }
    let before = requests.to_vec();
    let statuses = room.all();
    let code = pmpi!(MPI_Waitall(
        count => c_int, requests.as_mut_ptr() => *mut Request, statuses.as_mut_ptr() => *mut Status
    ));
    if code == SUCCESS {
        all_ended(&before, &abouts, statuses)
    } else {
        code
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Testall(
    count: c_int,
    requests: *mut Request,
    is_done: *mut c_int,
    statuses: *mut Status,
) -> c_int {
    // SAFETY: the program's places for as many.
    let (requests, mut room) = unsafe { (list(requests, count), Room::of(statuses, count)) };
    let abouts = known(requests);
    // SAFETY: as above.
    test_all(requests, unsafe { &mut *is_done }, room.all(), &abouts)
}

fn test_all(requests: &mut [Request], is_done: &mut c_int, statuses: &mut [Status], abouts: &[Option<About>]) -> c_int {
    agreements::go_on();
    let abouts = &give_all_up(requests, abouts);
    let before = requests.to_vec();
    let pending = abouts.iter().find_map(|about| pends(*about));
    let code = pmpi!(MPI_Testall(
        requests.len() as c_int => c_int,
        requests.as_mut_ptr() => *mut Request,
        &mut *is_done => *mut c_int,
        statuses.as_mut_ptr() => *mut Status,
    ));
    if code != SUCCESS {
        return code;
    }
    if *is_done != 0 {
        return all_ended(&before, abouts, statuses);
    }
    let Some(comm) = pending else { return SUCCESS };
    // Some may have ended; those of the failure pend.
    for (at, request) in requests.iter_mut().enumerate() {
        let (mut one, about) = (0, abouts.get(at).copied().flatten());
        let code = pmpi!(MPI_Test(
            &mut *request => *mut Request, &mut one => *mut c_int, &mut statuses[at] => *mut Status
        ));
        statuses[at].error = match (code, one) {
            (SUCCESS, 0) if pends(about).is_some() => shown(ERR_PROC_FAILED_PENDING),
            (SUCCESS, 0) => ERR_PENDING,
            (SUCCESS, _) => ended(before[at], about, &mut statuses[at]).map_or(SUCCESS, |(_, class)| shown(class)),
            (code, _) => code,
        };
    }
    raise(comm, ERR_IN_STATUS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Waitany(
    count: c_int,
    requests: *mut Request,
    index: *mut c_int,
    status: *mut Status,
) -> c_int {
    let mut own = Status::default();
    // SAFETY: the program's places for all.
    let (requests, index, status) = unsafe {
        let status = place(status, &mut own);
        (list(requests, count), &mut *index, status)
    };
    let abouts = known(requests);
    if some_need_looks(&abouts) {
        loop {
            let mut is_done = 0;
            let code = test_any(requests, index, &mut is_done, status, &abouts);
            if code != SUCCESS || is_done != 0 {
                return code;
            }
        }
    }
    let before = if abouts.is_empty() {
        Vec::new()
    } else {
        requests.to_vec()
    };
    let code = pmpi!(MPI_Waitany(
        count => c_int, requests.as_mut_ptr() => *mut Request, &mut *index => *mut c_int, &mut *status => *mut Status
    ));
    if code == SUCCESS {
        one_ended(&before, *index, status, &abouts)
    } else {
        code
    }
}

fn one_ended(before: &[Request], index: c_int, status: &mut Status, abouts: &[Option<About>]) -> c_int {
    if index == UNDEFINED {
        return SUCCESS;
    }
    let at = index as usize;
    let request = before.get(at).copied().unwrap_or(REQUEST_NULL);
    let error = ended(request, abouts.get(at).copied().flatten(), status);
    error.map_or(SUCCESS, |(comm, class)| raise(comm, class))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Testany(
    count: c_int,
    requests: *mut Request,
    index: *mut c_int,
    is_done: *mut c_int,
    status: *mut Status,
) -> c_int {
    let mut own = Status::default();
    // SAFETY: the program's places for all.
    let (requests, index, is_done, status) = unsafe {
        let status = place(status, &mut own);
        (list(requests, count), &mut *index, &mut *is_done, status)
    };
    let abouts = known(requests);
    test_any(requests, index, is_done, status, &abouts)
}

fn test_any(
    requests: &mut [Request],
    index: &mut c_int,
    is_done: &mut c_int,
    status: &mut Status,
    abouts: &[Option<About>],
) -> c_int {
    agreements::go_on();
    let abouts = &give_all_up(requests, abouts);
    let before = requests.to_vec();
    let pending = abouts.iter().position(|about| pends(*about).is_some());
    let code = pmpi!(MPI_Testany(
        requests.len() as c_int => c_int,
        requests.as_mut_ptr() => *mut Request,
        &mut *index => *mut c_int,
        &mut *is_done => *mut c_int,
        &mut *status => *mut Status,
    ));
    if code != SUCCESS {
        return code;
    }
    if *is_done != 0 {
        return one_ended(&before, *index, status, abouts);
    }
    let Some(at) = pending else { return SUCCESS };
    *index = at as c_int;
    let comm = pends(abouts[at]).unwrap_or(COMM_WORLD);
    raise(comm, ERR_PROC_FAILED_PENDING)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Waitsome(
    count: c_int,
    requests: *mut Request,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> c_int {
    // SAFETY: the program's places for all.
    let abouts = known(unsafe { list(requests, count) });
    if !some_need_looks(&abouts) {
        // SAFETY: as above.
        return unsafe { some(count, requests, done, indices, statuses, &abouts, true) };
    }
    loop {
        // SAFETY: as above.
        let code = unsafe { some(count, requests, done, indices, statuses, &abouts, false) };
        // SAFETY: as above.
        if code != SUCCESS || unsafe { *done } != 0 {
            return code;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Testsome(
    count: c_int,
    requests: *mut Request,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> c_int {
    // SAFETY: the program's places for all.
    unsafe {
        let abouts = known(list(requests, count));
        some(count, requests, done, indices, statuses, &abouts, false)
    }
}

/// # Safety
/// The program's places for as many requests, indices and statuses.
unsafe fn some(
    count: c_int,
    requests: *mut Request,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
    abouts: &[Option<About>],
    waits: bool,
) -> c_int {
    agreements::go_on();
    // SAFETY: as the caller promises.
    let mut room = unsafe { Room::of(statuses, count) };
    // SAFETY: as the caller promises.
    let all = unsafe { list(requests, count) };
    let abouts = &give_all_up(all, abouts);
    let before = all.to_vec();
    let pending = abouts.iter().find_map(|about| pends(*about));
    let statuses = room.all();
    let place = statuses.as_mut_ptr();
    let code = match waits {
        true => pmpi!(MPI_Waitsome(
            count => c_int, requests => *mut Request, done => *mut c_int, indices => *mut c_int, place => *mut Status
        )),
        false => pmpi!(MPI_Testsome(
            count => c_int, requests => *mut Request, done => *mut c_int, indices => *mut c_int, place => *mut Status
        )),
    };
    // SAFETY: MPI has written it.
    let ended_now = unsafe { *done };
    if code != SUCCESS || ended_now == UNDEFINED {
        return code;
    }
    if ended_now == 0 {
        return pending.map_or(SUCCESS, |comm| raise(comm, ERR_PROC_FAILED_PENDING));
    }
    let mut first = None;
    for (status, place) in statuses.iter_mut().zip(0..ended_now as usize) {
        // SAFETY: MPI has written as many.
        let at = unsafe { *indices.add(place) } as usize;
        let error = ended(before[at], abouts.get(at).copied().flatten(), status);
        status.error = error.map_or(SUCCESS, |(_, class)| shown(class));
        first = first.or(error);
    }
    first.map_or(SUCCESS, |(comm, _)| raise(comm, ERR_IN_STATUS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Request_free(request: *mut Request) -> c_int {
    // SAFETY: the program's request.
    layer::untrack(unsafe { *request }, true);
    pmpi!(MPI_Request_free(request => *mut Request))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Start(request: *mut Request) -> c_int {
    // SAFETY: the program's request.
    layer::started(unsafe { *request });
    pmpi!(MPI_Start(request => *mut Request))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Startall(count: c_int, requests: *mut Request) -> c_int {
    // SAFETY: the program's requests.
    unsafe { list(requests, count) }
        .iter()
        .for_each(|request| layer::started(*request));
    pmpi!(MPI_Startall(count => c_int, requests => *mut Request))
}

/// Whether one part of a message has come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Parrived(request: Request, part: c_int, has_come: *mut c_int) -> c_int {
    let code = pmpi!(MPI_Parrived(request => Request, part => c_int, has_come => *mut c_int));
    // SAFETY: MPI has written it.
    let waits = code == SUCCESS && unsafe { *has_come } == 0;
    match hopeless(layer::about(request)).filter(|_| waits) {
        Some((comm, class)) => raise(comm, class),
        None => code,
    }
}

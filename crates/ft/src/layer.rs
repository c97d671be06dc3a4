//! What the library knows of communicators and requests.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use resurgo_protocol::modes::Becomes;
use resurgo_protocol::survivors::{Said, Verdict};
use resurgo_wire::survivors::{PROBE_TAG, key};

use crate::mpi::{
    ANY_SOURCE, BYTE, COMM_NULL, COMM_WORLD, Comm, ERR_PROC_FAILED, ERR_REVOKED, Group, PROC_NULL, Request, Status,
    UNDEFINED, handle, pmpi,
};
use crate::provider;
use crate::rules::{self, Failure, OfFtMpi, Places, Shown, State};

/// A communicator.
#[derive(Clone, Default)]
pub struct Known {
    pub context: u32,
    /// The context of messages to the other side of an intercommunicator.
    pub other_context: u32,
    /// What stands for it where it is revoked.
    pub key: u64,
    /// The job's numbers of its members, by rank.
    pub members: Vec<u32>,
    /// Those of the other side of an intercommunicator.
    pub remote: Option<Vec<u32>>,
    /// Failures that the program has acknowledged.
    pub acknowledged: Vec<u32>,
    /// Agreements so far.
    pub agreements: u32,
    /// Collective calls so far that have a closing barrier.
    pub closings: u32,
    /// This rank has revoked it, or knows that another did.
    pub is_revoked: bool,
    /// By FT-MPI's rules.
    pub ftmpi: Option<OfFtMpi>,
    pub shown: Shown,
    /// It has gaps.
    pub gaps: Option<Places>,
    /// There was no failure in it, and no revocation, when there were so many news.
    clean_at: u64,
}

impl Known {
    /// All members, on both sides.
    pub fn everyone(&self) -> impl Iterator<Item = u32> {
        self.members.iter().chain(self.remote.iter().flatten()).copied()
    }

    /// A context that is the same at all members: that of the side with the lowest rank.
    pub fn common_context(&self) -> u32 {
        let lowest = |side: &[u32]| side.iter().min().copied();
        match &self.remote {
            Some(remote) if lowest(remote) < lowest(&self.members) => self.other_context,
            _ => self.context,
        }
    }

    /// No call on it can end well. Once that is so, it stays so.
    pub fn is_revoked(&mut self) -> bool {
        let is_over = self.ftmpi.as_ref().is_some_and(OfFtMpi::stops) && self.has_failures();
        // All communicators of one rank have the same key; nobody else revokes them.
        let is_told = self.context != provider::NO_CONTEXT && provider::is_revoked(self.key);
        self.is_revoked = self.is_revoked || is_over || is_told;
        self.is_revoked
    }

    /// No call on it can end well any more, at any member.
    pub fn revoke(&mut self) {
        if !self.is_revoked() {
            self.is_revoked = true;
            provider::say(&Said::Revokes {
                key: self.key,
                members: self.everyone().filter(|rank| *rank != u32::MAX).collect(),
            });
        }
    }

    /// Ranks without which it is not whole.
    fn watched(&self) -> Vec<u32> {
        match &self.ftmpi {
            None => self.everyone().collect(),
            Some(ftmpi) => ftmpi.watched(&self.everyone().collect::<Vec<_>>()),
        }
    }

    /// Tells the provider which failures end everything in it.
    pub fn tell_watched(&self) {
        if let Some(ftmpi) = self.ftmpi.as_ref() {
            let watched = if ftmpi.stops() { self.watched() } else { Vec::new() };
            provider::watches(self.context, &watched);
        }
    }

    /// Members that have failed, in the order of their failures.
    pub fn failed(&self) -> Vec<u32> {
        let numbered = self.watched().into_iter().map(|rank| (provider::failure(rank), rank));
        let mut failed: Vec<_> = numbered.filter(|(number, _)| *number != 0).collect();
        failed.sort_unstable();
        failed.into_iter().map(|(_, rank)| rank).collect()
    }

    pub fn has_failures(&self) -> bool {
        self.watched().into_iter().any(|rank| provider::failure(rank) != 0)
    }

    /// The program must acknowledge failures before it receives from any rank.
    fn has_new_failures(&self) -> bool {
        self.watched()
            .into_iter()
            .any(|rank| provider::failure(rank) != 0 && !self.acknowledged.contains(&rank))
    }

    /// Those of these ranks that are members.
    pub fn places(&self, ranks: &[u32]) -> Vec<Failure> {
        let place_of = |rank: &u32| {
            let place = self.places_of().iter().position(|member| member == rank)?;
            Some(Failure {
                place: place as c_int,
                rank: *rank,
            })
        };
        ranks.iter().filter_map(place_of).collect()
    }

    /// The job's numbers of its ranks, and of those that were there before its gaps.
    pub fn places_of(&self) -> &[u32] {
        self.gaps.as_ref().map_or(&self.members, |gaps| &gaps.ranks)
    }

    pub fn set_state(&mut self, state: State) {
        if let Some(ftmpi) = &mut self.ftmpi {
            ftmpi.state = state;
        }
    }

    /// The rank that a message to, or from, `peer` goes to, or comes from.
    fn peer(&self, peer: c_int) -> Option<u32> {
        let side = self.remote.as_ref().unwrap_or(&self.members);
        usize::try_from(peer).ok().and_then(|peer| side.get(peer)).copied()
    }
}

/// What a request is about, where the library must know it.
#[derive(Clone, Copy)]
pub enum About {
    /// A receive from any rank.
    Any {
        comm: Comm,
    },
    Collective {
        comm: Comm,
    },
    /// A receive in a communicator with gaps.
    Gaps {
        comm: Comm,
    },
    /// A send that is nothing without its receiver.
    Send {
        comm: Comm,
        to: c_int,
    },
    /// A message sent and one received.
    Exchange {
        comm: Comm,
        to: c_int,
        from: c_int,
    },
    /// A message in parts.
    Parts {
        comm: Comm,
        peer: c_int,
    },
    /// On a window or a file, for which this communicator stands.
    Object {
        comm: Comm,
    },
    /// It could not end: this library has ended it, with a class of errors.
    Lost {
        comm: Comm,
        class: c_int,
    },
    /// Of this library ([`crate::agreements`]).
    Agreement {
        comm: Comm,
    },
}

struct Tracked {
    about: About,
    /// It can be started again and again.
    lasts: bool,
    is_started: bool,
}

#[derive(Default)]
struct Layer {
    comms: HashMap<Comm, Known>,
    requests: HashMap<Request, Tracked>,
    /// What MPI may read until a request has ended.
    kept: HashMap<Request, Vec<Vec<c_int>>>,
}

static LAYER: Mutex<Option<Layer>> = Mutex::new(None);
static REQUESTS: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, Option<Layer>> {
    LAYER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at a communicator; none: it is no communicator.
pub fn with<R>(comm: Comm, look: impl FnOnce(&mut Known) -> R) -> Option<R> {
    if !provider::is_there() || comm == COMM_NULL {
        return None;
    }
    let comm = handle(comm);
    let known = lock().get_or_insert_default().comms.contains_key(&comm);
    if !known {
        learn(comm);
    }
    lock().get_or_insert_default().comms.get_mut(&comm).map(look)
}

/// The communicator of a context.
pub fn of_context(context: u32) -> Comm {
    let mut layer = lock();
    let mut comms = layer.get_or_insert_default().comms.iter();
    let found = comms.find(|(_, known)| known.context == context);
    found.map_or(COMM_WORLD, |(comm, _)| *comm)
}

/// The same, once there was a failure or a revocation: before, nothing can be wrong.
#[inline]
fn with_news<R>(comm: Comm, look: impl FnOnce(&mut Known) -> Option<R>) -> Option<R> {
    let news = provider::news();
    if news == 0 {
        return None;
    }
    with(comm, |known| {
        if known.clean_at != news && !known.is_revoked() && !known.has_failures() {
            known.clean_at = news;
        }
        if known.clean_at == news { None } else { look(known) }
    })?
}

/// Why no collective call on `comm` can end well, as a class of errors.
#[inline]
pub fn trouble(comm: Comm) -> Option<c_int> {
    with_news(comm, |known| match () {
        () if known.is_revoked() => Some(ERR_REVOKED),
        () if known.has_failures() => Some(ERR_PROC_FAILED),
        () => None,
    })
}

/// Why a message to or from `peer` cannot come, or is of no use.
#[inline]
pub fn trouble_with(comm: Comm, peer: c_int) -> Option<c_int> {
    with_news(comm, |known| {
        if peer == PROC_NULL {
            return None;
        }
        let failed = match peer {
            ANY_SOURCE => known.has_new_failures(),
            peer => known.peer(peer).is_some_and(|rank| provider::failure(rank) != 0),
        };
        match () {
            () if known.is_revoked() => Some(ERR_REVOKED),
            () if failed => Some(ERR_PROC_FAILED),
            () => None,
        }
    })
}

#[inline]
pub fn is_revoked(comm: Comm) -> bool {
    with_news(comm, |known| known.is_revoked().then_some(())).is_some()
}

/// It is an intercommunicator, and a process of it has failed.
pub fn has_failed_strangers(comm: Comm) -> bool {
    let failed = |known: &mut Known| (known.remote.is_some() && known.has_failures()).then_some(());
    with_news(comm, failed).is_some()
}

/// The context of a communicator.
pub fn context(comm: Comm) -> Option<u32> {
    with(comm, |known| known.context)
}

/// A communicator is there, or must be known now. It is whole without ranks that have failed before, but not without its
/// members: one may have died while this rank was still in MPI_Init.
pub fn learn(comm: Comm) {
    let ftmpi = provider::modes().map(|modes| OfFtMpi::new(modes, rules::all_failed()));
    learn_as(comm, COMM_NULL, ftmpi);
    with(comm, |known| {
        let everyone: Vec<u32> = known.everyone().collect();
        if let Some(ftmpi) = &mut known.ftmpi {
            ftmpi.absorbed.retain(|rank| !everyone.contains(rank));
            known.tell_watched();
        }
    });
}

/// The same; it was made from `parent`.
pub fn learn_from(comm: Comm, parent: Comm) {
    learn_as(comm, parent, with(parent, |known| known.ftmpi.clone()).flatten());
}

/// The same for one that the program does not know: ULFM's rules are for it.
pub fn learn_inner(comm: Comm, parent: Comm) {
    learn_as(comm, parent, None);
}

/// MPI_COMM_WORLD means another communicator now, which was made from `parent`.
pub fn learn_world(parent: Comm, ftmpi: OfFtMpi) {
    learn_as(COMM_WORLD, parent, Some(ftmpi));
}

/// A communicator was made from the living members of `comm`, by this verdict; the program has `made` for it. Each member
/// takes the failures that the verdict counts as those without which it is whole.
pub fn learn_rebuilt(made: Comm, comm: Comm, verdict: &Verdict) {
    let before = with(comm, |known| {
        let mut ftmpi = known.ftmpi.clone()?;
        ftmpi.last = known.places(&verdict.failed);
        ftmpi.is_rebuilt(verdict);
        let has_gaps = ftmpi.modes.becomes == Becomes::Blank;
        Some((ftmpi, has_gaps.then(|| known.places_of().to_vec())))
    });
    let (ftmpi, places) = before.flatten().unzip();
    let parent = if made == comm { COMM_NULL } else { comm };
    learn_as(made, parent, ftmpi);
    if let Some(places) = places.flatten() {
        with(made, |known| known.gaps = Some(Places::new(places, &known.members)));
    }
}

/// `new` is a duplicate of `comm`: it has the same gaps.
pub fn has_same_gaps(new: Comm, comm: Comm) {
    if let Some(gaps) = with(comm, |known| known.gaps.clone()).flatten() {
        with(new, |known| known.gaps = Some(gaps));
    }
}

fn learn_as(comm: Comm, parent: Comm, ftmpi: Option<OfFtMpi>) {
    if !provider::is_there() || comm == COMM_NULL {
        return;
    }
    let mut is_inter = 0;
    pmpi!(MPI_Comm_test_inter(comm => Comm, &mut is_inter => *mut c_int));
    let is_inter = is_inter != 0;
    let mut group: Group = 0;
    pmpi!(MPI_Comm_group(comm => Comm, &mut group => *mut Group));
    let mut members = in_world(group);
    in_comm(group, parent, &mut members);
    pmpi!(MPI_Group_free(&mut group => *mut Group));
    if !is_inter {
        by_probes(comm, is_inter, &mut members);
    }
    let remote = is_inter.then(|| {
        pmpi!(MPI_Comm_remote_group(comm => Comm, &mut group => *mut Group));
        let mut remote = in_world(group);
        pmpi!(MPI_Group_free(&mut group => *mut Group));
        by_probes(comm, is_inter, &mut remote);
        remote
    });
    let mut known = Known {
        context: probe(comm, ANY_SOURCE).0,
        other_context: if is_inter { context_of_messages(comm) } else { 0 },
        members: members.into_iter().map(|rank| rank.unwrap_or(u32::MAX)).collect(),
        remote: remote.map(|remote| remote.into_iter().map(|rank| rank.unwrap_or(u32::MAX)).collect()),
        ftmpi,
        ..Known::default()
    };
    let everyone: Vec<u32> = known.everyone().collect();
    known.key = key(known.common_context(), everyone.iter().copied());
    let other = is_inter.then_some(known.other_context);
    provider::has_members(known.context, other, known.key, &everyone);
    known.tell_watched();
    lock().get_or_insert_default().comms.insert(comm, known);
}

/// Where in `of` each member of `group` is.
fn translate(group: Group, of: Group) -> Vec<Option<usize>> {
    let mut size = 0;
    pmpi!(MPI_Group_size(group => Group, &mut size => *mut c_int));
    let ranks: Vec<c_int> = (0..size).collect();
    let mut found = vec![UNDEFINED; ranks.len()];
    pmpi!(MPI_Group_translate_ranks(
        group => Group,
        size => c_int,
        ranks.as_ptr() => *const c_int,
        of => Group,
        found.as_mut_ptr() => *mut c_int,
    ));
    found.into_iter().map(|rank| usize::try_from(rank).ok()).collect()
}

/// The job's numbers of the members of a group that are in MPI_COMM_WORLD: those of a world follow one another.
fn in_world(group: Group) -> Vec<Option<u32>> {
    if !has_world() {
        let mut size = 0;
        pmpi!(MPI_Group_size(group => Group, &mut size => *mut c_int));
        return vec![None; usize::try_from(size).unwrap_or(0)];
    }
    let (mut world, mut rank) = (0, 0);
    // All of the job's world, whatever MPI_COMM_WORLD means now.
    pmpi!(MPI_Comm_group(COMM_WORLD.0 => c_int, &mut world => *mut Group));
    pmpi!(MPI_Group_rank(world => Group, &mut rank => *mut c_int));
    let first = provider::own_rank() - rank as u32;
    let found = translate(group, world);
    pmpi!(MPI_Group_free(&mut world => *mut Group));
    found
        .into_iter()
        .map(|rank| rank.map(|rank| first + rank as u32))
        .collect()
}

/// The same for those that are in `comm`, on this side of it.
fn in_comm(group: Group, comm: Comm, numbers: &mut [Option<u32>]) {
    if comm == COMM_NULL || numbers.iter().all(Option::is_some) {
        return;
    }
    let Some(members) = with(comm, |known| known.members.clone()) else {
        return;
    };
    let mut all = 0;
    pmpi!(MPI_Comm_group(comm => Comm, &mut all => *mut Group));
    for (number, place) in numbers.iter_mut().zip(translate(group, all)) {
        *number = number.or(place.map(|place| members[place]));
    }
    pmpi!(MPI_Group_free(&mut all => *mut Group));
}

/// The same for all others: the provider knows from whom a receive is.
fn by_probes(comm: Comm, is_inter: bool, numbers: &mut [Option<u32>]) {
    let mut rank = 0;
    pmpi!(MPI_Comm_rank(comm => Comm, &mut rank => *mut c_int));
    for (at, number) in numbers.iter_mut().enumerate() {
        if number.is_none() {
            *number = match !is_inter && at as c_int == rank {
                true => Some(provider::own_rank()),
                false => probe(comm, at as c_int).1,
            };
        }
    }
}

/// The job's numbers of the members of `group`, all of which are in `comm`.
pub fn members(group: Group, comm: Comm) -> Vec<u32> {
    let mut numbers = in_world(group);
    in_comm(group, comm, &mut numbers);
    numbers.into_iter().flatten().collect()
}

/// The group of these members of `comm`.
pub fn group_of(comm: Comm, known: &Known, of: &[u32]) -> Group {
    let side = known.remote.as_ref().unwrap_or(&known.members);
    let places = of
        .iter()
        .filter_map(|rank| side.iter().position(|member| member == rank));
    let places: Vec<c_int> = places.map(|place| place as c_int).collect();
    let (mut all, mut group) = (0, 0);
    match known.remote {
        Some(_) => pmpi!(MPI_Comm_remote_group(comm => Comm, &mut all => *mut Group)),
        None => pmpi!(MPI_Comm_group(comm => Comm, &mut all => *mut Group)),
    };
    pmpi!(MPI_Group_incl(
        all => Group, places.len() as c_int => c_int, places.as_ptr() => *const c_int, &mut group => *mut Group
    ));
    pmpi!(MPI_Group_free(&mut all => *mut Group));
    group
}

/// MPI_COMM_WORLD is there.
pub fn has_world() -> bool {
    let mut is_there = 0;
    pmpi!(MPI_Initialized(&mut is_there => *mut c_int));
    is_there != 0
}

/// Threads look for contexts one by one.
static PROBE: Mutex<()> = Mutex::new(());

/// Posts a receive, which shows the provider the context, and the rank that it is from, and takes it back.
fn probe(comm: Comm, from: c_int) -> (u32, Option<u32>) {
    let _alone = PROBE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut request: Request = 0;
    pmpi!(MPI_Irecv(
        null_mut() => *mut u8,
        0 => c_int,
        BYTE => c_int,
        from => c_int,
        PROBE_TAG as c_int => c_int,
        comm => Comm,
        &mut request => *mut Request,
    ));
    let (context, rank) = provider::probed();
    let mut status = Status::default();
    pmpi!(MPI_Cancel(&mut request => *mut Request));
    pmpi!(MPI_Wait(&mut request => *mut Request, &mut status => *mut Status));
    (context, rank)
}

/// The same with a message that the provider does not send.
fn context_of_messages(comm: Comm) -> u32 {
    let _alone = PROBE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut request, mut status) = (0, Status::default());
    provider::probes(|| {
        pmpi!(MPI_Isend(
            null_mut() => *mut u8,
            0 => c_int,
            BYTE => c_int,
            0 => c_int,
            PROBE_TAG as c_int => c_int,
            comm => Comm,
            &mut request => *mut Request,
        ));
    });
    let (context, _) = provider::probed();
    pmpi!(MPI_Wait(&mut request => *mut Request, &mut status => *mut Status));
    context
}

/// Looks at all communicators.
pub fn with_all<R>(look: impl FnOnce(&mut HashMap<Comm, Known>) -> R) -> R {
    look(&mut lock().get_or_insert_default().comms)
}

/// A communicator is no more. True: MPI may use its number again.
pub fn forget(comm: Comm) -> bool {
    let known = lock().get_or_insert_default().comms.remove(&comm);
    known.is_none_or(|mut known| {
        // Where a call did not end well, members may differ in what they have sent and received.
        let is_whole = !known.is_revoked() && !known.has_failures();
        if is_whole {
            provider::is_freed(known.context);
        }
        is_whole
    })
}

/// A request that the library must know when it ends.
pub fn track(request: Request, about: About) {
    note(request, about, false);
}

/// The same for one that the program starts, again and again.
pub fn track_lasting(request: Request, about: About) {
    note(request, about, true);
}

fn note(request: Request, about: About, lasts: bool) {
    if provider::is_there() {
        let mut layer = lock();
        let requests = &mut layer.get_or_insert_default().requests;
        let tracked = Tracked {
            about,
            lasts,
            is_started: !lasts,
        };
        requests.insert(request, tracked);
        REQUESTS.store(requests.len(), Ordering::Release);
    }
}

/// MPI may read these arrays until the request has ended.
pub fn keep(request: Request, arrays: Vec<Vec<c_int>>) {
    lock().get_or_insert_default().kept.insert(request, arrays);
}

/// A lasting request is started.
pub fn started(request: Request) {
    if tracks()
        && let Some(tracked) = lock().get_or_insert_default().requests.get_mut(&request)
    {
        tracked.is_started = true;
    }
}

/// Whether there are any.
#[inline]
pub fn tracks() -> bool {
    REQUESTS.load(Ordering::Relaxed) != 0
}

pub fn about(request: Request) -> Option<About> {
    if !tracks() {
        return None;
    }
    let mut layer = lock();
    let tracked = layer.get_or_insert_default().requests.get(&request)?;
    tracked.is_started.then_some(tracked.about)
}

/// The request has ended, or is freed.
pub fn untrack(request: Request, is_freed: bool) {
    if !tracks() {
        return;
    }
    let mut layer = lock();
    let layer = layer.get_or_insert_default();
    layer.kept.remove(&request);
    let requests = &mut layer.requests;
    match requests.get_mut(&request) {
        Some(tracked) if tracked.lasts && !is_freed => tracked.is_started = false,
        _ => {
            requests.remove(&request);
            REQUESTS.store(requests.len(), Ordering::Release);
        }
    }
}

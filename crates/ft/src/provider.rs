//! The provider in the same process (`crates/fabric/src/survivors.rs`), and the agent of the node.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use resurgo_protocol::modes::Modes;
use resurgo_protocol::survivors::Said;
use resurgo_wire::node_memory::{CONTROL_STRIDE, SURVIVOR_FD, control};
use resurgo_wire::survivors::{
    Answer, BYTES, Place, View, decode_answer, encode, encode_repeats, encode_took, place_of_revoked,
};

const FD: RawFd = SURVIVOR_FD;
/// How long the agent's answer may take before MPI's progress gets another turn.
const TURN_MS: c_int = 1;

struct Provider {
    view: View,
    probed: extern "C" fn() -> u64,
    probed_rank: extern "C" fn() -> u64,
    probes: extern "C" fn(c_int),
    members: Members,
    watched: Watched,
    freed: extern "C" fn(u32),
    running: Running,
    not_merged: extern "C" fn(u32, u32),
    wants: extern "C" fn() -> c_int,
    repeats: extern "C" fn() -> c_int,
}

type Members = unsafe extern "C" fn(u32, i64, u64, *const u32, usize);
type Watched = unsafe extern "C" fn(u32, *const u32, usize);
type Running = unsafe extern "C" fn(c_int, i64, *const u32, usize, i64, i64);

static PROVIDER: OnceLock<Provider> = OnceLock::new();
static NOTHING: AtomicU64 = AtomicU64::new(0);
static NEWS: std::sync::atomic::AtomicPtr<AtomicU64> =
    std::sync::atomic::AtomicPtr::new((&raw const NOTHING).cast_mut());

/// The highest number of a failure that this process has seen. The agent writes it down first, and counts it afterwards.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Grows with each failure and revocation. 0 as long as nothing has happened.
#[inline]
pub fn news() -> u64 {
    // SAFETY: it points to the word above, or to one in the node memory, which stays mapped.
    let told = unsafe { (*NEWS.load(Ordering::Relaxed)).load(Ordering::Acquire) };
    told + SEEN.load(Ordering::Relaxed)
}

fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: MPI never unloads a provider.
    let found = unsafe { resurgo_preload::library::in_library("libresurgo", name) };
    (!found.is_null()).then_some(found)
}

/// MPI has begun. False: this is no job with --ft.
pub fn begin() -> bool {
    let Some(view_of) = find(c"resurgo_ft_view") else {
        return false;
    };
    let mut view = View::default();
    // SAFETY: the provider's functions of these names have these types.
    let provider = unsafe {
        let view_of: unsafe extern "C" fn(*mut View) -> c_int = std::mem::transmute(view_of);
        if view_of(&mut view) != 0 {
            return false;
        }
        let all = [
            c"resurgo_ft_probed",
            c"resurgo_ft_probed_rank",
            c"resurgo_ft_probes",
            c"resurgo_ft_members",
            c"resurgo_ft_watched",
            c"resurgo_ft_freed",
            c"resurgo_ft_running",
            c"resurgo_ft_not_merged",
            c"resurgo_ft_wants",
            c"resurgo_ft_repeats",
        ];
        let [
            Some(probed),
            Some(probed_rank),
            Some(probes),
            Some(members),
            Some(watched),
            Some(freed),
            Some(running),
            Some(not_merged),
            Some(wants),
            Some(repeats),
        ] = all.map(find)
        else {
            return false;
        };
        Provider {
            view,
            probed: std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(probed),
            probed_rank: std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(probed_rank),
            probes: std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(probes),
            members: std::mem::transmute::<*mut c_void, Members>(members),
            watched: std::mem::transmute::<*mut c_void, Watched>(watched),
            freed: std::mem::transmute::<*mut c_void, extern "C" fn(u32)>(freed),
            running: std::mem::transmute::<*mut c_void, Running>(running),
            not_merged: std::mem::transmute::<*mut c_void, extern "C" fn(u32, u32)>(not_merged),
            wants: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(wants),
            repeats: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(repeats),
        }
    };
    if PROVIDER.set(provider).is_err() {
        return true;
    }
    NEWS.store(view.news as *mut AtomicU64, Ordering::Release);
    true
}

/// This rank's number in the job.
pub fn own_rank() -> u32 {
    PROVIDER.get().map_or(0, |provider| provider.view.rank as u32)
}

/// Failures are told in this process.
pub fn is_there() -> bool {
    PROVIDER.get().is_some()
}

fn word(rank: u32, at: usize) -> u64 {
    let Some(provider) = PROVIDER.get().filter(|provider| u64::from(rank) < provider.view.most) else {
        return 0;
    };
    let place = provider.view.controls as usize + rank as usize * CONTROL_STRIDE + at;
    // SAFETY: a word in the control of a rank, in the node memory, which stays mapped.
    unsafe { (*(place as *const AtomicU64)).load(Ordering::Acquire) }
}

/// The program's way to deal with failures; none: ULFM's.
pub fn modes() -> Option<Modes> {
    PROVIDER.get().and_then(|provider| Modes::of_word(provider.view.rules))
}

/// The number of this rank's failure, from 1; 0: it lives.
pub fn failure(rank: u32) -> u64 {
    let number = word(rank, control::FAILED.at);
    if number > SEEN.load(Ordering::Relaxed) {
        // What the program may know from now on is told by its next call.
        SEEN.fetch_max(number, Ordering::Relaxed);
    }
    number
}

/// This rank has been started in the place of one that has failed.
pub fn is_replacement() -> bool {
    word(own_rank(), control::REPLACES.at) != 0
}

/// When it was known, in seconds since the Epoch.
pub fn failed_at(rank: u32) -> f64 {
    word(rank, control::FAILED_AT.at) as f64 / 1e9
}

/// Its exit code, as shells have it.
pub fn failed_by(rank: u32) -> c_int {
    word(rank, control::FAILED_BY.at) as c_int
}

/// The communicator of this key is revoked, which has been told to this rank.
pub fn is_revoked(key: u64) -> bool {
    word(own_rank(), control::REVOKED.item(place_of_revoked(key)).at) == key
}

/// The context of a communicator of one rank: its messages come to no provider.
pub const NO_CONTEXT: u32 = u32::MAX;

/// The context of the receive with the probe's tag that has just been posted.
/// And the rank that it was from, if from one only.
pub fn probed() -> (u32, Option<u32>) {
    let Some(provider) = PROVIDER.get() else {
        return (NO_CONTEXT, None);
    };
    match (provider.probed)() {
        u64::MAX => (NO_CONTEXT, None),
        tag => (Place::of(tag).context, u32::try_from((provider.probed_rank)()).ok()),
    }
}

/// Messages with the tag of a probe are not sent while `send` runs.
pub fn probes(send: impl FnOnce()) {
    if let Some(provider) = PROVIDER.get() {
        (provider.probes)(1);
        send();
        (provider.probes)(0);
    }
}

/// The communicator with this context has this key, and these members. `other`: the context of messages to the other side
/// of an intercommunicator.
pub fn has_members(context: u32, other: Option<u32>, key: u64, members: &[u32]) {
    if let Some(provider) = PROVIDER.get().filter(|_| context != NO_CONTEXT) {
        // SAFETY: as many members.
        unsafe {
            let other = other.map_or(-1, i64::from);
            (provider.members)(context, other, key, members.as_ptr(), members.len());
        }
    }
}

/// When one of these ranks fails, nothing goes on in the communicator with this context.
pub fn watches(context: u32, watched: &[u32]) {
    if let Some(provider) = PROVIDER.get().filter(|_| context != NO_CONTEXT) {
        // SAFETY: as many ranks.
        unsafe { (provider.watched)(context, watched.as_ptr(), watched.len()) };
    }
}

pub fn is_freed(context: u32) {
    if let Some(provider) = PROVIDER.get() {
        (provider.freed)(context);
    }
}

/// What a communicator is made from, or what stands for it.
pub enum From {
    /// A communicator; none: one that no other rank is in.
    Parent(Option<u32>),
    Group(Vec<u32>),
    /// A communicator, and others that are not in it: ranks from this number on, if it starts them.
    Strangers(Option<u32>, u32),
    /// An intercommunicator, whose other side has the second context.
    Sides(u32, u32),
    /// None is made: the call is on a file, for which the communicator with this context stands.
    File(Option<u32>),
    /// The same on a window.
    Window(Option<u32>),
}

/// A call begins that makes a communicator; none: it has ended.
pub fn runs(made_from: Option<&From>) {
    let Some(provider) = PROVIDER.get() else { return };
    let of = |parent: &Option<u32>| parent.map_or(-1, i64::from);
    let (parent, group, awaits, other): (i64, &[u32], i64, i64) = match made_from {
        Some(From::Parent(parent) | From::File(parent) | From::Window(parent)) => (of(parent), &[], -1, -1),
        Some(From::Group(members)) => (-1, members, -1, -1),
        Some(From::Strangers(parent, first)) => (of(parent), &[], i64::from(*first), -1),
        Some(From::Sides(one, other)) => (i64::from(*one), &[], -1, i64::from(*other)),
        None => (-1, &[], -1, -1),
    };
    let makes = match made_from {
        None => 0,
        Some(From::File(_)) => 2,
        Some(From::Window(_)) => 3,
        Some(_) => 1,
    };
    // SAFETY: as many members.
    unsafe { (provider.running)(makes, parent, group.as_ptr(), group.len(), awaits, other) };
}

/// The merge of an intercommunicator with these contexts has failed.
pub fn is_not_merged(context: u32, other: u32) {
    if let Some(provider) = PROVIDER.get() {
        (provider.not_merged)(context, other);
    }
}

/// The ranks of the job so far.
pub fn ranks() -> u32 {
    let Some(provider) = PROVIDER.get() else { return 0 };
    // SAFETY: as for the controls.
    unsafe { (*(provider.view.ranks as *const AtomicU32)).load(Ordering::Acquire) }
}

/// Says something to the agent, which never goes before its ranks.
pub fn say(said: &Said) {
    say_if(said, true);
}

/// The same if `is_new`. If not, the program's memory is used as if.
pub fn say_if(said: &Said, is_new: bool) {
    let bytes = encode(said);
    if is_new {
        send(&bytes);
    }
}

fn send(bytes: &[u8]) {
    loop {
        // SAFETY: sends the bytes.
        let sent = unsafe { libc::send(FD, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        if sent >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Whether former lives may have said what this rank wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// No rank recovers by itself.
    NoLives,
    Nothing,
    Perhaps,
}

/// The rank is about to want something of the dispatcher.
pub fn wants() -> Before {
    match PROVIDER.get().map_or(0, |provider| (provider.wants)()) {
        0 => Before::NoLives,
        1 => Before::Nothing,
        _ => Before::Perhaps,
    }
}

/// This life repeats what former ones did: they have found no answer that they have not told of.
pub fn repeats() -> bool {
    PROVIDER.get().is_some_and(|provider| (provider.repeats)() != 0)
}

/// Asks whether a former life has said this.
pub fn ask_again(ticket: u32) {
    let (bytes, length) = encode_repeats(ticket);
    send(&bytes[..length]);
}

/// This rank has found the verdict of this ticket, at this look for it.
pub fn took(ticket: u32, look: u64) {
    let (bytes, length) = encode_took(ticket, look);
    send(&bytes[..length]);
}

/// Room for an answer: a life that repeats what a former one did gets its answers at other moments, and the program's
/// memory must not show it.
static ROOM: Mutex<[u8; BYTES]> = Mutex::new([0; BYTES]);

/// The agent's next answer to words of this rank. `waits`: for one to come.
pub fn answer(waits: bool) -> Option<Answer> {
    let mut room = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    let flags = if waits { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: at most so many bytes.
    let got = unsafe { libc::recv(FD, room.as_mut_ptr().cast(), room.len(), flags) };
    usize::try_from(got).ok().and_then(|got| decode_answer(&room[..got]))
}

/// Waits for an answer, but not for long: MPI must go on meanwhile.
pub fn await_verdict() {
    let mut socket = libc::pollfd {
        fd: FD,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut socket, 1, TURN_MS) };
}

//! Where the program deals with failures itself: what the library above MPI (`libresurgo-ft.so`) and the provider tell
//! each other, in the same process. The library finds these functions by their names.

use crate::node::Node;
use resurgo_wire::node_memory::{PHASE_REPLAY, control, header};
use resurgo_wire::survivors::{PROBE_TAG, TAG_MASK, View};
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// A communicator.
pub struct Comm {
    /// As in [`resurgo_wire::survivors::key`].
    pub key: u64,
    /// The context of messages to the other side of an intercommunicator.
    pub other: Option<u32>,
    pub members: Vec<u32>,
    /// When one of these fails, nothing goes on in it, not even between others.
    pub watched: Vec<u32>,
}

/// What a call makes a communicator from.
#[derive(Default, Clone)]
pub struct Making {
    /// All members of the communicator with this context take part in it. None: those of the group below do, and each
    /// of them that lives goes through all of it.
    pub parent: Option<u32>,
    pub group: Vec<u32>,
    /// It waits for a process that is in neither, such as one of those that it spawns: ranks from this number on.
    pub awaits: Option<u32>,
    /// It merges an intercommunicator whose other side has this context.
    pub other: Option<u32>,
    pub object: Object,
}

/// What a call is about that uses contexts which no communicator of the program has.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// It makes a communicator.
    #[default]
    Comm,
    /// It is on a file, for which the parent stands. The contexts belong to the file, as long as there is the parent.
    File,
    /// The same on a window. It may wait for messages that the engine cannot make up: then it ends with an error.
    Window,
}

/// What the library has said, and the rank has heard.
#[derive(Default)]
pub struct Known {
    /// Communicators, by their contexts.
    pub comms: HashMap<u32, Comm>,
    /// Keys of communicators that are revoked.
    pub revoked: HashSet<u64>,
    /// Calls that run and make communicators, by their threads.
    pub making: HashMap<u64, Making>,
    /// Contexts that such calls use, and that are of no communicator yet.
    pub made: HashMap<u32, (u64, Making)>,
    /// Contexts of merges that have failed here. Processes that start later may give them to others: then their
    /// messages must be gone.
    pub not_merged: HashSet<u32>,
    /// They must go now.
    pub stale: HashSet<u32>,
}

impl Known {
    /// The calling thread posts a receive on this context.
    pub fn note(&mut self, context: u32) {
        if self.making.is_empty() || self.comms.contains_key(&context) {
            return;
        }
        let thread = thread();
        if let Some(making) = self.making.get(&thread)
            && !self.is_of_object(context)
        {
            self.made.insert(context, (thread, making.clone()));
        }
    }

    /// It belongs to a file or a window.
    pub fn is_of_object(&self, context: u32) -> bool {
        let made = self.made.get(&context);
        made.is_some_and(|(_, making)| making.object != Object::Comm)
    }

    /// The calling thread is in a call on a window.
    pub fn on_window(&self) -> Option<&Making> {
        self.making
            .get(&thread())
            .filter(|making| making.object == Object::Window)
    }
}

fn thread() -> u64 {
    // SAFETY: it cannot fail.
    unsafe { libc::pthread_self() as u64 }
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
/// The tag of the last receive, or message, with which the library looks for a context.
static PROBED: AtomicU64 = AtomicU64::new(u64::MAX);
/// The rank that it is from.
static PROBED_RANK: AtomicU64 = AtomicU64::new(u64::MAX);
/// The library looks for a context by sending.
static PROBES: AtomicBool = AtomicBool::new(false);
/// Threads in calls on windows.
static ON_WINDOWS: AtomicUsize = AtomicUsize::new(0);
/// A [`View`], once the node memory is mapped.
static VIEW: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

/// Where ranks recover by themselves before failures are told: words of this rank's control.
struct Own {
    wishes: &'static AtomicU64,
    behind: &'static AtomicU64,
    phase: &'static AtomicU32,
    /// The wishes of former lives.
    before: u64,
}

static OWN: OnceLock<Own> = OnceLock::new();
/// The wishes of this life.
static WISHES: AtomicU64 = AtomicU64::new(0);

impl Own {
    fn of(node: &Node) -> Own {
        let wishes = node.control(node.rank, control::WISHES);
        let behind = node.control(node.rank, control::OUTPUT_BEHIND);
        let phase = node.control(node.rank, control::PHASE);
        // SAFETY: the node memory stays mapped as long as the process lives.
        unsafe {
            Own {
                wishes: &*std::ptr::from_ref(wishes),
                behind: &*std::ptr::from_ref(behind),
                phase: &*std::ptr::from_ref(phase),
                before: wishes.load(Ordering::Acquire),
            }
        }
    }

    fn owes(&self) -> bool {
        WISHES.load(Ordering::Acquire) < self.before
    }
}

/// This life has yet to say again what former lives wanted. They made no delivery before that.
pub fn owes_wishes() -> bool {
    OWN.get().is_some_and(Own::owes)
}

/// The node memory is there.
pub fn show(node: &Node) {
    if node.replays() {
        OWN.get_or_init(|| Own::of(node));
    }
    let words = [
        node.header(header::NEWS_OF_FAILURES).as_ptr() as u64,
        node.controls() as u64,
        node.header(header::RANKS).as_ptr() as u64,
        node.size as u64,
        node.rank as u64,
        node.header(header::SURVIVORS).load(Ordering::Acquire),
    ];
    for (place, word) in VIEW.iter().zip(words) {
        place.store(word, Ordering::Release);
    }
}

/// A receive is posted with this tag.
#[inline]
pub fn posted(tag: u64, source: Option<u32>) {
    if tag & TAG_MASK == PROBE_TAG {
        PROBED_RANK.store(source.map_or(u64::MAX, u64::from), Ordering::Release);
        PROBED.store(tag, Ordering::Release);
    }
}

/// A message with this tag is to be sent. True: the library only looks for the context.
#[inline]
pub fn is_probe(tag: u64) -> bool {
    let is_probe = tag & TAG_MASK == PROBE_TAG && PROBES.load(Ordering::Acquire);
    if is_probe {
        PROBED.store(tag, Ordering::Release);
    }
    is_probe
}

/// There are threads in calls on windows.
#[inline]
pub fn are_on_windows() -> bool {
    ON_WINDOWS.load(Ordering::Relaxed) != 0
}

/// Looks at what the library has said.
pub fn with<R>(look: impl FnOnce(&mut Known) -> R) -> R {
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    look(known.get_or_insert_default())
}

/// Gives the library its view; not 0: failures are not told in this process.
///
/// # Safety
/// `view` is the place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_view(view: *mut View) -> c_int {
    let [news, controls, ranks, most, rank, rules] = VIEW.each_ref().map(|word| word.load(Ordering::Acquire));
    if news == 0 {
        return -1;
    }
    // SAFETY: as the caller promises.
    unsafe {
        view.write(View {
            news,
            controls,
            ranks,
            most,
            rank,
            rules,
        });
    }
    0
}

/// The library is about to want something of the dispatcher. 0: no rank recovers by itself; 1: no life has said it; 2: a
/// former one may have.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_wants() -> c_int {
    let Some(own) = OWN.get() else { return 0 };
    let wishes = WISHES.fetch_add(1, Ordering::AcqRel) + 1;
    if wishes <= own.before {
        return 2;
    }
    own.wishes.store(wishes, Ordering::Release);
    1
}

/// Whether this life has something to repeat: former lives have found no answer that they have not told of.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_repeats() -> c_int {
    let repeats = |own: &Own| {
        own.phase.load(Ordering::Acquire) == PHASE_REPLAY || own.behind.load(Ordering::Acquire) != 0 || own.owes()
    };
    c_int::from(OWN.get().is_some_and(repeats))
}

/// The tag of the receive that the library has posted; `u64::MAX`: it was not posted here.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_probed() -> u64 {
    PROBED.swap(u64::MAX, Ordering::AcqRel)
}

/// The rank that the receive of [`resurgo_ft_probed`] is from; `u64::MAX`: from any.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_probed_rank() -> u64 {
    PROBED_RANK.load(Ordering::Acquire)
}

/// The next message with the tag of a probe is one: it is not sent. 0: no more of them come.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_probes(probes: c_int) {
    PROBES.store(probes != 0, Ordering::Release);
}

/// The communicator with this context has this key and these members. `other`: the context of messages to the other side of
/// an intercommunicator; negative: it is none.
///
/// # Safety
/// `members` points to `count` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_members(context: u32, other: i64, key: u64, members: *const u32, count: usize) {
    // SAFETY: as the caller promises.
    let members = unsafe { std::slice::from_raw_parts(members, count) }.to_vec();
    let comm = Comm {
        key,
        other: u32::try_from(other).ok(),
        members,
        watched: Vec::new(),
    };
    with(|known| {
        known.made.remove(&context);
        known.comms.insert(context, comm);
    });
}

/// When one of these ranks fails, nothing goes on in the communicator with this context.
///
/// # Safety
/// `watched` points to `count` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_watched(context: u32, watched: *const u32, count: usize) {
    let watched = match count {
        0 => Vec::new(),
        // SAFETY: as the caller promises.
        _ => unsafe { std::slice::from_raw_parts(watched, count) }.to_vec(),
    };
    with(|known| {
        if let Some(comm) = known.comms.get_mut(&context) {
            comm.watched = watched;
        }
    });
}

/// There is no such communicator any more.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_freed(context: u32) {
    with(|known| {
        known.comms.remove(&context);
        let belongs = |making: &Making| making.object != Object::Comm && making.parent == Some(context);
        known.made.retain(|_, (_, making)| !belongs(making));
    });
}

/// In this thread a call begins, or has ended, that makes a communicator from that of context `parent`; negative: from
/// a group of these members. `awaits`: it waits for ranks from that number on; negative: for none.
/// `other`: it merges an intercommunicator whose other side has this context; negative: it does not.
/// `makes`: 1; on a file it is 2 and on a window 3, where the parent stands for them; 0: it has ended.
///
/// # Safety
/// `members` points to `count` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn resurgo_ft_running(
    makes: c_int,
    parent: i64,
    members: *const u32,
    count: usize,
    awaits: i64,
    other: i64,
) {
    let group = match count {
        0 => Vec::new(),
        // SAFETY: as the caller promises.
        _ => unsafe { std::slice::from_raw_parts(members, count) }.to_vec(),
    };
    let making = Making {
        parent: u32::try_from(parent).ok(),
        group,
        awaits: u32::try_from(awaits).ok(),
        other: u32::try_from(other).ok(),
        object: match makes {
            2 => Object::File,
            3 => Object::Window,
            _ => Object::Comm,
        },
    };
    let thread = thread();
    with(|known| match makes {
        0 => {
            let ended = known.making.remove(&thread);
            if ended.is_some_and(|ended| ended.object == Object::Window) {
                ON_WINDOWS.fetch_sub(1, Ordering::Relaxed);
            }
            known
                .made
                .retain(|_, (by, making)| *by != thread || making.object != Object::Comm);
        }
        _ => {
            if making.awaits.is_some() {
                known.stale = std::mem::take(&mut known.not_merged);
            }
            if making.object == Object::Window {
                ON_WINDOWS.fetch_add(1, Ordering::Relaxed);
            }
            known.making.insert(thread, making);
        }
    });
}

/// The merge of an intercommunicator with these contexts has failed.
#[unsafe(no_mangle)]
pub extern "C" fn resurgo_ft_not_merged(context: u32, other: u32) {
    with(|known| known.not_merged.extend([context, other]));
}

//! What the program itself makes, renames and removes in the file system. A life that repeats such a call must not fail
//! because a former life has done it.
//!
//! A life that begins again repeats `mkdir`, or `open` with O_EXCL, and finds what a former one has made; it unlinks or
//! renames what is gone. So the rank's own arena, which outlives the process, holds a note of each such call: before
//! the call what it is, and afterwards how it went. If a call has a note, but this life has not made it yet, a former
//! life has. Then this life makes the call: if it fails because it has been done, it succeeds. A call that failed then
//! fails again. Which calls this life has made is in its own memory, and goes with its images.
//!
//! The life that went on may have made another file of that name, which must stay. So a removal that was done is left
//! out, unless this life has made anew what it removes, or somebody has changed that since the former lives' end.
//!
//! The calls are those of the program and of all its libraries, from MPI_Init on, by way of their imports (see
//! [`crate::imports`]). Calls of the C library itself, and of other processes, are not among them.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{transmute, zeroed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{EEXIST, ENOENT, ENOTEMPTY, mode_t};
use resurgo_image::thread_pointer;
use resurgo_wire::node_memory::{EXIT_REPORT, control, deeds, header};
use resurgo_wire::undo;

use crate::clock::files_ns;
use crate::engine::images;
use crate::file_notes;
use crate::node::Node;

mod notes;
mod opened;
mod path;

pub use opened::Opening;

use notes::{Deed, Outcome, Table};
use path::{EMPTY, Path, hash};

static TABLE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Number of the present life, in the node memory.
static LIFE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// When former lives had come to rest, there too.
static RESTED: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Whether other ranks have gone on since.
static GONE_ON: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Until when former lives were elsewhere and their notes are lost, and when the job began; there, too.
static NOTES_LOST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static JOB_BEGAN: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// When the last image of this process was taken, by the clock of files; 0: there was none.
static IMAGED_NS: AtomicU64 = AtomicU64::new(0);
/// The process, or one before it from whose image it began, has woken up from an image.
static IS_WOKEN: AtomicBool = AtomicBool::new(false);
/// When the image was taken that the first life after lost ones began from; 0: it began from the beginning.
static LOST_SINCE: AtomicU64 = AtomicU64::new(0);
/// See [`header::FILES_WAIT`], and its value at the last image of this process.
static FILES_WAIT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static WAITED_AT_IMAGE: AtomicU64 = AtomicU64::new(0);
/// This process is a child of the rank's: nothing that it does is noted.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// Thread pointer of the thread that looks at [`MADE`], 0: none.
static BUSY: AtomicUsize = AtomicUsize::new(0);
static MADE: Made = Made(UnsafeCell::new(Life {
    known: 0,
    made: [0; deeds::MOST / 64],
    anew_in: 0,
    anew: [0; deeds::MOST / 64],
    paths: [0; deeds::MOST / 64],
    own: [0; deeds::MOST / 64],
}));

struct Made(UnsafeCell<Life>);
// SAFETY: only looked at by the thread that [`BUSY`] names.
unsafe impl Sync for Made {}

/// Which of the noted calls this life has made.
struct Life {
    /// How many notes this life knows.
    known: u64,
    made: Bits,
    /// The life of which [`Life::anew`] tells: images take it along.
    anew_in: u64,
    /// Which notes remove what this life has made anew.
    anew: Bits,
    /// Which paths this life has made, by a part of their hashes: where notes are lost.
    paths: Bits,
    /// Which paths the rank has made and not removed, up to this place in the program, by a part of their hashes.
    own: Bits,
}

/// A bit for each place of a note.
type Bits = [u64; deeds::MOST / 64];

fn has(bits: &Bits, number: u64) -> bool {
    let place = number as usize % deeds::MOST;
    bits[place / 64] & 1 << (place % 64) != 0
}

fn set(bits: &mut Bits, number: u64, value: bool) {
    let place = number as usize % deeds::MOST;
    bits[place / 64] = bits[place / 64] & !(1 << (place % 64)) | u64::from(value) << (place % 64);
}

impl Life {
    /// A process that has woken up from an image finds the notes since then. Returns how many there are.
    fn look(&mut self, table: Table) -> u64 {
        let noted = table.noted().load(Ordering::Acquire);
        (self.known.max(table.oldest(noted))..noted).for_each(|number| set(&mut self.made, number, false));
        self.known = noted;
        if self.anew_in != life() {
            self.anew_in = life();
            (self.anew, self.paths) = ([0; deeds::MOST / 64], [0; deeds::MOST / 64]);
        }
        noted
    }

    /// Life `number` has opened `path`, as it was or anew.
    fn note_opened(&mut self, table: Table, path: Path, number: u64) {
        self.look(table);
        if self.anew_in == number {
            set(&mut self.paths, u64::from(path.short()), true);
        }
    }

    /// Life `number` has made `path`, or removed it. If that is not the present life, the process has slept in an image
    /// since, and the life that went on has done the same.
    fn note(&mut self, table: Table, path: Path, is_there: bool, number: u64) {
        let noted = self.look(table);
        if self.anew_in != number {
            return;
        }
        let short = path.short();
        (table.oldest(noted)..noted)
            .filter(|number| {
                table
                    .get(*number)
                    .is_some_and(|(deed, _)| deed.removes && deed.path == short)
            })
            .for_each(|number| set(&mut self.anew, number, is_there));
        set(&mut self.paths, u64::from(short), is_there);
    }
}

/// What a call does.
#[derive(Clone, Copy)]
struct Step {
    deed: Deed,
    /// What the call removes or makes.
    path: Path,
    /// What is there afterwards.
    made: Option<Path>,
    /// Several may try, and who makes it goes on in another way.
    claims: bool,
}

impl Step {
    /// Whether lives whose notes are lost may have removed or renamed what this call does not find. `is_own`: the rank
    /// has made it.
    fn is_gone_by_lost_life(self, is_own: bool) -> bool {
        let is_lost = shared(&NOTES_LOST).is_some_and(|lost| lost != 0);
        is_lost && (is_own || self.made.is_some_and(|made| made.is_put_by_lost_life()))
    }
}

/// What the notes say of a call before it is made.
struct Known {
    number: u64,
    /// How it went in a former life; None: it is new, or its note is lost.
    outcome: Option<Outcome>,
    /// This life has made anew what it removes or makes.
    is_anew: bool,
    /// The rank has made it, up to this place in the program.
    is_own: bool,
}

/// Looks at what this life has made. None: the thread was interrupted in the middle of that.
fn with_life<R>(look: impl FnOnce(&mut Life) -> R) -> Option<R> {
    let thread = thread_pointer();
    loop {
        match BUSY.compare_exchange_weak(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break,
            Err(holder) if holder == thread => return None,
            Err(_) => std::hint::spin_loop(),
        }
    }
    // SAFETY: `BUSY` is ours.
    let result = look(unsafe { &mut *MADE.0.get() });
    BUSY.store(0, Ordering::Release);
    Some(result)
}

/// The MPI library has opened `path` in life `number`, which may be what former lives have made of it.
fn has_opened(path: Path, number: u64) {
    if let Some(table) = Table::of_this_rank() {
        with_life(|life| life.note_opened(table, path, number));
    }
}

/// Life `number` has opened `path` anew.
fn has_made(path: Path, number: u64) {
    if let Some(table) = Table::of_this_rank() {
        let step = makes("open", path);
        owns_now(step);
        has_changed(table, step, number);
    }
}

/// Notes what life `number` has removed and made.
fn has_changed(table: Table, step: Step, number: u64) {
    if number > 1 {
        with_life(|present| {
            if step.deed.removes {
                present.note(table, step.path, false, number);
            }
            if let Some(made) = step.made {
                present.note(table, made, true, number);
            }
        });
    }
}

/// Notes what the rank has removed and made up to here, in whichever life.
fn owns_now(step: Step) {
    with_life(|life| {
        if step.deed.removes {
            set(&mut life.own, u64::from(step.path.short()), false);
        }
        if let Some(made) = step.made {
            set(&mut life.own, u64::from(made.short()), true);
        }
    });
}

/// Finds `deed` among the notes, or notes it.
fn begin(life: &mut Life, table: Table, deed: Deed, is_there: impl Fn() -> bool) -> Known {
    let is_own = has(&life.own, u64::from(deed.path));
    loop {
        let noted = life.look(table);
        let repeated = (table.oldest(noted)..noted)
            .filter(|number| !has(&life.made, *number))
            .filter_map(|number| Some((number, table.get(number)?)))
            .find(|(_, (noted, _))| noted.hash == deed.hash);
        if let Some((number, (_, outcome))) = repeated {
            set(&mut life.made, number, true);
            let is_anew = has(&life.anew, number);
            return Known {
                number,
                outcome: Some(outcome),
                is_anew,
                is_own,
            };
        }
        let was_there = is_there();
        // The process may have slept in an image meanwhile, and other lives gone on.
        let next = table
            .noted()
            .compare_exchange(noted, noted + 1, Ordering::AcqRel, Ordering::Relaxed);
        if next.is_ok() {
            set(&mut life.made, noted, true);
            life.known = noted + 1;
            table.put(noted, deed, Outcome::Begun(was_there));
            return Known {
                number: noted,
                outcome: None,
                is_anew: has(&life.paths, u64::from(deed.path)),
                is_own,
            };
        }
    }
}

/// Whether a former life, whose call went like `outcome`, has done what now fails with `errno`. `owns`: whether what is
/// there is the rank's own.
fn has_been_done(deed: Deed, outcome: Outcome, errno: c_int, owns: impl Fn() -> bool) -> bool {
    let is_so = match deed.removes {
        true => [ENOENT, ENOTEMPTY, EEXIST].contains(&errno),
        false => errno == EEXIST,
    };
    is_so
        && match outcome {
            Outcome::Done | Outcome::Gone => deed.removes || owns(),
            Outcome::Begun(was_there) => was_there == deed.removes,
            Outcome::Failed(_) => false,
        }
}

pub fn errno() -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// A word of the node memory.
fn shared(word: &AtomicPtr<AtomicU64>) -> Option<u64> {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    unsafe { word.load(Ordering::Acquire).as_ref() }.map(|word| word.load(Ordering::Acquire))
}

fn life() -> u64 {
    shared(&LIFE).unwrap_or(0)
}

/// An image of this process is being taken.
pub fn note_image() {
    WAITED_AT_IMAGE.store(shared(&FILES_WAIT).unwrap_or(0), Ordering::Relaxed);
    IMAGED_NS.store(files_ns(), Ordering::Relaxed);
}

/// This process has woken up from an image.
pub fn woken() {
    WAITED_AT_IMAGE.store(0, Ordering::Relaxed);
    IS_WOKEN.store(true, Ordering::Relaxed);
    let (imaged, lost) = (IMAGED_NS.load(Ordering::Relaxed), shared(&NOTES_LOST).unwrap_or(0));
    if imaged <= lost {
        // Images that this life takes are behind lost ones, too.
        let since = match LOST_SINCE.load(Ordering::Relaxed) {
            0 => imaged,
            before => before.min(imaged),
        };
        LOST_SINCE.store(since, Ordering::Relaxed);
    }
    wait_for_clock();
}

/// While the job is being suspended, what a rank does to files after its image would be done again.
fn wait_for_files() {
    let has_to = || match WAITED_AT_IMAGE.load(Ordering::Relaxed) {
        0 => false,
        turn => !IS_CHILD.load(Ordering::Relaxed) && shared(&FILES_WAIT) == Some(turn),
    };
    while has_to() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// From here on files are changed at a later time than by former lives. Their clock may be a few milliseconds behind.
fn wait_for_clock() {
    let is_behind = || shared(&RESTED).is_some_and(|rested| files_ns() <= rested);
    // Unless somebody has set it back.
    (0..100)
        .take_while(|_| is_behind())
        .for_each(|_| std::thread::sleep(Duration::from_micros(200)));
}

/// Makes a call that makes or removes a path. `failed`: what it returns when it fails. `again`: what to do instead where
/// a former life has done it.
fn perform<R: Copy + PartialEq>(step: Step, failed: R, call: impl Fn() -> R, again: impl Fn() -> R) -> R {
    let result = make(step, failed, call, again);
    if result != failed {
        owns_now(step);
    }
    result
}

fn make<R: Copy + PartialEq>(step: Step, failed: R, call: impl Fn() -> R, again: impl Fn() -> R) -> R {
    let Some(table) = Table::of_this_rank() else {
        return call();
    };
    let Step { deed, path, .. } = step;
    wait_for_files();
    let before = errno();
    let began_in = life();
    let Some(known) = with_life(|life| begin(life, table, deed, || path.is_there())) else {
        return call();
    };
    let (number, outcome) = (known.number, known.outcome);
    if outcome.is_none() {
        file_notes::keep(true);
    }
    // The process may have slept in an image since the call was noted: then the life that went on has made the call.
    let since = |outcome: Option<Outcome>| {
        let noted = || table.get(number).filter(|_| life() != began_in);
        outcome.or_else(|| noted().map(|(_, outcome)| outcome))
    };
    let outcome = since(outcome);
    if let Some(Outcome::Failed(errno)) = outcome {
        set_errno(errno);
        return failed;
    }
    let is_anew = known.is_anew && life() == began_in;
    let is_of_lost_life = outcome.is_none() && path.is_of_lost_life(is_anew && deed.removes);
    let is_later = match outcome {
        Some(Outcome::Done) => !is_anew && path.is_of_former_life(),
        _ => is_of_lost_life,
    };
    if deed.removes && is_later {
        nobody_knows(path, is_of_lost_life && shared(&GONE_ON) == Some(1));
        table.put(number, deed, Outcome::Done);
        set_errno(before);
        return again();
    }
    if !deed.removes && outcome == Some(Outcome::Gone) && !path.is_there() {
        // If this life is killed in the call, the next one finds what is the rank's own.
        table.put(number, deed, Outcome::Begun(false));
        file_notes::keep(true);
    }
    set_errno(before);
    let result = call();
    let error = errno();
    let is_failure = result == failed;
    let outcome = since(outcome);
    let has_been_done = match outcome {
        Some(outcome) => has_been_done(deed, outcome, error, || table.owns(path)),
        None if deed.removes => error == ENOENT && step.is_gone_by_lost_life(known.is_own),
        None => is_of_lost_life && error == EEXIST,
    };
    if is_failure && has_been_done {
        nobody_knows(
            path,
            outcome.is_none() && if deed.removes { !known.is_own } else { step.claims },
        );
        table.put(number, deed, Outcome::Done);
        set_errno(before);
        let result = again();
        if result != failed && !deed.removes {
            has_changed(table, step, began_in);
        }
        return result;
    }
    note_outcome(table, (number, step), outcome, is_failure.then_some(error), began_in);
    if is_failure && [EEXIST, ENOENT].contains(&error) && began_in > 1 && number >= deeds::MOST as u64 {
        table.tell(
            path,
            "stands in its way, and it has done more than is kept of what former lives did",
        );
    }
    set_errno(error);
    result
}

/// The call of this note has been made, and has failed with `error` if there is one. `outcome`: what was known before.
fn note_outcome(
    table: Table,
    (number, step): (u64, Step),
    outcome: Option<Outcome>,
    error: Option<c_int>,
    began_in: u64,
) {
    match (outcome, error) {
        // What a life has done once stays noted, and the next life tries it again.
        (Some(Outcome::Done), _) | (Some(Outcome::Gone), Some(_)) => (),
        (_, Some(error)) => table.put(number, step.deed, Outcome::Failed(error)),
        (_, None) => table.put(number, step.deed, Outcome::Done),
    }
    if error.is_none() {
        has_changed(table, step, began_in);
        // The life that went on may have made it anew.
        if step.deed.removes && life() == began_in {
            table.forget(step.path);
        }
    }
    // That it succeeds where nothing is in its way need not be known.
    file_notes::keep(error.is_some());
}

/// Ends the rank if it `has_to` know what its lost lives did to the file.
fn nobody_knows(path: Path, has_to: bool) {
    if has_to && let Some(node) = images::node() {
        let name = String::from_utf8_lossy(path.bytes());
        node.report_and_exit(&undo::notes_are_lost(node.rank, &name), EXIT_REPORT);
    }
}

/// A call that makes `path`.
fn makes(name: &str, path: Path) -> Step {
    makes_of(path.hash(hash(name.as_bytes(), EMPTY)), path)
}

/// A call that makes `path` from another path.
fn makes_from(name: &str, from: Path, path: Path) -> Step {
    makes_of(path.hash(from.hash(hash(name.as_bytes(), EMPTY))), path)
}

fn makes_of(hash: u64, path: Path) -> Step {
    Step {
        deed: Deed::new(hash, path, false),
        path,
        made: Some(path),
        claims: false,
    }
}

fn removes(name: &str, path: Path) -> Step {
    removes_of(path.hash(hash(name.as_bytes(), EMPTY)), path, None)
}

fn renames(from: Path, to: Path) -> Step {
    removes_of(to.hash(from.hash(hash(b"rename", EMPTY))), from, Some(to))
}

fn removes_of(hash: u64, path: Path, made: Option<Path>) -> Step {
    Step {
        deed: Deed::new(hash, path, true),
        path,
        made,
        claims: false,
    }
}

/// Leaves word for the agent if `path` could not be opened because a former life removed it.
fn not_opened(path: Path) {
    let error = errno();
    if error == ENOENT
        && life() > 1
        && let Some(table) = Table::of_this_rank()
        && table.has_removed(path)
    {
        table.tell(
            path,
            "could not be opened: it had been removed or renamed by a former life",
        );
    }
    set_errno(error);
}

/// Opens a file. With O_EXCL it must be new, or made by a former life; the latter is opened with the flag `cut`, too. If
/// there is no such flag, the file may stay what former lives have made of it.
fn open_file(path: Path, flags: c_int, cut: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        let claims = cut != 0;
        return perform(
            Step {
                made: claims.then_some(path),
                claims,
                ..makes("open", path)
            },
            -1,
            || open(flags),
            || {
                if !path.is_regular() {
                    set_errno(EEXIST);
                    return -1;
                }
                let cut = if flags & libc::O_ACCMODE == libc::O_RDONLY {
                    0
                } else {
                    cut
                };
                open(flags & !(libc::O_EXCL | libc::O_CREAT) | cut | libc::O_NOFOLLOW)
            },
        );
    }
    crate::imports::look_for_new();
    if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
        wait_for_files();
    }
    let began_in = life();
    let fd = open(flags);
    match fd {
        0.. if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 => (),
        0.. if cut == 0 => has_opened(path, began_in),
        0.. => has_made(path, began_in),
        _ => not_opened(path),
    }
    fd
}

/// For imports that are pointed here: where each led before, and the function here for each of their names.
macro_rules! imports {
    ($($next:ident: $($name:literal)|+ => $function:expr;)*) => {
        $(static $next: AtomicUsize = AtomicUsize::new(0);)*

        fn find_next() {
            // SAFETY: looks up functions of the C library, or of a library before it that watches them, as the program
            // calls them.
            $($next.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, [$($name),+][0].as_ptr()) } as usize, Ordering::Relaxed);)*
        }

        /// The function that an import of this name is pointed to.
        pub fn replacement(import: &CStr) -> Option<usize> {
            $(if [$($name),+].contains(&import) && $next.load(Ordering::Relaxed) != 0 {
                return Some($function as *const () as usize);
            })*
            None
        }
    };
}

imports! {
    OPEN: c"open" | c"open64" => open;
    CREAT: c"creat" | c"creat64" => creat;
    OPENAT: c"openat" | c"openat64" => openat;
    FOPEN: c"fopen" | c"fopen64" => fopen;
    MKDIR: c"mkdir" => mkdir;
    MKDIRAT: c"mkdirat" => mkdirat;
    MKFIFO: c"mkfifo" => mkfifo;
    SYMLINK: c"symlink" => symlink;
    SYMLINKAT: c"symlinkat" => symlinkat;
    LINK: c"link" => link;
    LINKAT: c"linkat" => linkat;
    RENAME: c"rename" => rename;
    RENAMEAT: c"renameat" => renameat;
    UNLINK: c"unlink" => unlink;
    UNLINKAT: c"unlinkat" => unlinkat;
    RMDIR: c"rmdir" => rmdir;
    REMOVE: c"remove" => remove;
}

/// The function that an import led to before.
macro_rules! next {
    ($next:ident: fn($($argument:ty),*) -> $result:ty) => {
        transmute::<usize, unsafe extern "C" fn($($argument),*) -> $result>($next.load(Ordering::Relaxed))
    };
}

type Place = *const c_char;

/// Functions that only make or remove something.
macro_rules! plain {
    ($($next:ident $function:ident($($argument:ident: $kind:ty),*) => $what:expr;)*) => {
        $(pub unsafe extern "C" fn $function($($argument: $kind),*) -> c_int {
            let step = $what;
            // SAFETY: as the caller calls it.
            let call = || unsafe { next!($next: fn($($kind),*) -> c_int)($($argument),*) };
            perform(step, -1, call, || {
                if !step.deed.removes {
                    step.path.has_been_made();
                }
                0
            })
        })*
    };
}

plain! {
    MKDIR mkdir(path: Place, mode: mode_t) => makes("mkdir", Path::here(path));
    MKDIRAT mkdirat(at: c_int, path: Place, mode: mode_t) => makes("mkdir", Path::new(at, path));
    MKFIFO mkfifo(path: Place, mode: mode_t) => makes("mkfifo", Path::here(path));
    SYMLINK symlink(to: Place, path: Place) => makes_from("symlink", Path::here(to), Path::here(path));
    SYMLINKAT symlinkat(to: Place, at: c_int, path: Place) => makes_from("symlink", Path::here(to), Path::new(at, path));
    LINK link(from: Place, path: Place) => makes_from("link", Path::here(from), Path::here(path));
    LINKAT linkat(from_at: c_int, from: Place, at: c_int, path: Place, flags: c_int)
        => makes_from("link", Path::new(from_at, from), Path::new(at, path));
    RENAME rename(from: Place, to: Place) => renames(Path::here(from), Path::here(to));
    RENAMEAT renameat(from_at: c_int, from: Place, at: c_int, to: Place)
        => renames(Path::new(from_at, from), Path::new(at, to));
    UNLINK unlink(path: Place) => removes("unlink", Path::here(path));
    UNLINKAT unlinkat(at: c_int, path: Place, flags: c_int) => removes("unlink", Path::new(at, path));
    RMDIR rmdir(path: Place) => removes("rmdir", Path::here(path));
    REMOVE remove(path: Place) => removes("remove", Path::here(path));
}

/// The mode comes in the same register, even where there is none.
///
/// # Safety
/// The path ends with a zero.
pub unsafe extern "C" fn open(path: Place, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller calls it.
    unsafe { open_here(path, flags, mode, libc::O_TRUNC) }
}

/// The same, but a file that a former life made stays as it is.
///
/// # Safety
/// As of `open`.
pub unsafe fn open_uncut(path: Place, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller calls it.
    unsafe { open_here(path, flags, mode, 0) }
}

unsafe fn open_here(path: Place, flags: c_int, mode: mode_t, cut: c_int) -> c_int {
    // SAFETY: as the caller calls it.
    let open = |flags| unsafe { next!(OPEN: fn(Place, c_int, mode_t) -> c_int)(path, flags, mode) };
    open_file(Path::here(path), flags, cut, open)
}

unsafe extern "C" fn creat(path: Place, mode: mode_t) -> c_int {
    // SAFETY: as the caller calls it.
    let create = |_| unsafe { next!(CREAT: fn(Place, mode_t) -> c_int)(path, mode) };
    open_file(
        Path::here(path),
        libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
        libc::O_TRUNC,
        create,
    )
}

unsafe extern "C" fn openat(at: c_int, path: Place, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller calls it.
    let open = |flags| unsafe { next!(OPENAT: fn(c_int, Place, c_int, mode_t) -> c_int)(at, path, flags, mode) };
    open_file(Path::new(at, path), flags, libc::O_TRUNC, open)
}

unsafe extern "C" fn fopen(path: Place, mode: Place) -> *mut c_void {
    crate::imports::look_for_new();
    let file = Path::here(path);
    // SAFETY: as the caller calls it.
    let open = |mode: Place| unsafe { next!(FOPEN: fn(Place, Place) -> *mut c_void)(path, mode) };
    // SAFETY: a mode ends with a zero.
    let modes = unsafe { CStr::from_ptr(mode).to_bytes() };
    if modes.first() != Some(&b'r') || modes.contains(&b'+') {
        wait_for_files();
    }
    let mut without = [0u8; 16];
    if !modes.contains(&b'x') || modes.len() > without.len() {
        let began_in = life();
        let stream = open(mode);
        match stream.is_null() {
            true => not_opened(file),
            false if modes.first() == Some(&b'w') => has_made(file, began_in),
            false => (),
        }
        return stream;
    }
    let kept = modes.iter().filter(|byte| **byte != b'x');
    without.iter_mut().zip(kept).for_each(|(to, byte)| *to = *byte);
    perform(
        Step {
            claims: true,
            ..makes("fopen", file)
        },
        std::ptr::null_mut(),
        || open(mode),
        || {
            // SAFETY: a path of the caller's.
            if !file.is_regular() || unsafe { libc::truncate(path, 0) } != 0 {
                set_errno(EEXIST);
                return std::ptr::null_mut();
            }
            open(without.as_ptr().cast())
        },
    )
}

/// Opens a file that a former life opened, as it is, and does not make it.
///
/// # Safety
/// As of `open`.
pub unsafe fn open_again(path: Place, flags: c_int) -> c_int {
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        let step = makes("open", Path::here(path));
        perform(Step { made: None, ..step }, -1, || 0, || 0);
    }
    // SAFETY: as the caller calls it.
    unsafe { open_here(path, flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC), 0, 0) }
}

/// Notes an unlink that the MPI library leaves out, as a former life has done it.
pub fn has_been_removed(path: Place) {
    perform(removes("unlink", Path::here(path)), -1, || 0, || 0);
}

unsafe extern "C" fn is_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// From here on notes what this rank does.
pub fn watch(node: &Node) {
    if !TABLE.load(Ordering::Relaxed).is_null() {
        return;
    }
    find_next();
    // SAFETY: called in children after a fork, where it stores a byte.
    unsafe { libc::pthread_atfork(None, None, Some(is_child)) };
    let own = |field| node.control(node.rank, field);
    for (place, word) in [
        (&LIFE, own(control::INCARNATION)),
        (&RESTED, own(control::RESTED_NS)),
        (&GONE_ON, own(control::GONE_ON)),
        (&NOTES_LOST, own(control::NOTES_LOST_NS)),
        (&JOB_BEGAN, node.header(header::JOB_BEGAN_NS)),
        (&FILES_WAIT, node.header(header::FILES_WAIT)),
    ] {
        place.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
    }
    wait_for_clock();
    TABLE.store(node.deeds(), Ordering::Release);
}

#[cfg(test)]
mod tests;

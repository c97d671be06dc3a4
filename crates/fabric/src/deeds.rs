//! What the program itself makes, renames and removes in the file system. A life that repeats such a call must not fail
//! because a former life has done it.
//!
//! A life that begins again repeats `mkdir`, or `open` with O_EXCL, and finds what a former one has made; it unlinks or
//! renames what is gone. So the rank's own arena, which outlives the process, holds a note of each such call: before
//! the call what it is, and afterwards how it went. If a call has a note, but this life has not made it yet, a former
//! life has. Then this life makes the call: if it fails because it has been done, it succeeds. A call that failed then
//! fails again. Which calls this life has made is in its own memory, and goes with its images.
//!
//! The calls are those of the program and of all its libraries, from MPI_Init on, by way of their imports (see
//! [`crate::imports`]). Calls of the C library itself, and of other processes, are not among them.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::mem::{transmute, zeroed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{EEXIST, ENOENT, ENOTEMPTY, mode_t};
use resurgo_image::thread_pointer;
use resurgo_wire::node_memory::{control, deeds};

use crate::node::Node;

static TABLE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Number of the present life, in the node memory.
static LIFE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// This process is a child of the rank's: nothing that it does is noted.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// Thread pointer of the thread that looks at [`MADE`], 0: none.
static BUSY: AtomicUsize = AtomicUsize::new(0);
static MADE: Made = Made(UnsafeCell::new(Life {
    known: 0,
    made: [0; deeds::MOST / 64],
}));

struct Made(UnsafeCell<Life>);
// SAFETY: only looked at by the thread that [`BUSY`] names.
unsafe impl Sync for Made {}

/// Which of the noted calls this life has made.
struct Life {
    /// How many notes this life knows.
    known: u64,
    /// A bit for each place of a note.
    made: [u64; deeds::MOST / 64],
}

impl Life {
    fn has_made(&self, number: u64) -> bool {
        let place = number as usize % deeds::MOST;
        self.made[place / 64] & 1 << (place % 64) != 0
    }

    fn set(&mut self, number: u64, made: bool) {
        let place = number as usize % deeds::MOST;
        self.made[place / 64] = self.made[place / 64] & !(1 << (place % 64)) | u64::from(made) << (place % 64);
    }
}

/// The notes of this rank.
#[derive(Clone, Copy)]
struct Table(*mut u8);

/// How a call went, as its note says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was about to be made; whether its path was there.
    Begun(bool),
    Done,
    /// It was done, and this rank has removed again what it made.
    Gone,
    Failed(c_int),
}

/// The code of [`Outcome::Gone`]; no error has such a number.
const GONE: u64 = 0x4000;

/// A call, as later lives find it again.
#[derive(Clone, Copy)]
struct Deed {
    hash: u64,
    /// The hash of the path that the call removes or makes.
    path: u32,
    removes: bool,
}

impl Deed {
    fn new(hash: u64, path: Path, removes: bool) -> Deed {
        Deed {
            hash,
            path: path.short(),
            removes,
        }
    }
}

/// FNV-1a.
fn hash(bytes: &[u8], mut state: u64) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}

const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// A path that a call names, from the directory `at`.
#[derive(Clone, Copy)]
struct Path {
    at: c_int,
    text: *const c_char,
}

impl Path {
    fn new(at: c_int, text: *const c_char) -> Path {
        Path { at, text }
    }

    fn here(text: *const c_char) -> Path {
        Path::new(libc::AT_FDCWD, text)
    }

    fn bytes(&self) -> &[u8] {
        if self.text.is_null() {
            return b"";
        }
        // SAFETY: the caller's path, which ends with a zero.
        unsafe { CStr::from_ptr(self.text).to_bytes() }
    }

    fn hash(&self, state: u64) -> u64 {
        let state = match self.bytes().first() {
            Some(b'/') => state,
            _ => hash(&self.at.to_le_bytes(), state),
        };
        hash(&[0], hash(self.bytes(), state))
    }

    fn short(&self) -> u32 {
        let full = self.hash(EMPTY);
        (full ^ (full >> 32)) as u32
    }

    fn about(&self) -> Option<libc::stat> {
        // SAFETY: an all-zero stat is valid, and the kernel fills it.
        unsafe {
            let mut about: libc::stat = zeroed();
            (libc::fstatat(self.at, self.text, &mut about, libc::AT_SYMLINK_NOFOLLOW) == 0).then_some(about)
        }
    }

    fn is_regular(&self) -> bool {
        self.about()
            .is_some_and(|about| about.st_mode & libc::S_IFMT == libc::S_IFREG)
    }
}

impl Table {
    fn of_this_rank() -> Option<Table> {
        let table = TABLE.load(Ordering::Acquire);
        (!table.is_null() && !IS_CHILD.load(Ordering::Relaxed)).then_some(Table(table))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the table, aligned; only accessed as atomics.
        unsafe { &*self.0.add(at).cast() }
    }

    fn noted(&self) -> &AtomicU64 {
        self.word(deeds::COUNT)
    }

    /// The words of note `number`: first the hash; then path, the number's last bits, and outcome.
    fn note(&self, number: u64) -> [&AtomicU64; 2] {
        let at = deeds::NOTES + number as usize % deeds::MOST * 16;
        [self.word(at), self.word(at + 8)]
    }

    fn put(&self, number: u64, deed: Deed, outcome: Outcome) {
        let [first, second] = self.note(number);
        let code = match outcome {
            Outcome::Begun(was_there) => u64::from(was_there),
            Outcome::Done => 2,
            Outcome::Gone => GONE,
            Outcome::Failed(errno) => 2 + (errno as u64 & 0xfff),
        };
        let removes = u64::from(deed.removes) << 15;
        first.store(deed.hash, Ordering::Relaxed);
        let word = u64::from(deed.path) << 32 | (number & 0xffff) << 16 | removes | code;
        second.store(word, Ordering::Release);
    }

    /// None: a life was killed before it wrote the note.
    fn get(&self, number: u64) -> Option<(Deed, Outcome)> {
        let [first, second] = self.note(number).map(|word| word.load(Ordering::Acquire));
        let outcome = match second & 0x7fff {
            code @ 0..=1 => Outcome::Begun(code == 1),
            2 => Outcome::Done,
            GONE => Outcome::Gone,
            code => Outcome::Failed(code as c_int - 2),
        };
        let deed = Deed {
            hash: first,
            path: (second >> 32) as u32,
            removes: second & 0x8000 != 0,
        };
        (second >> 16 & 0xffff == number & 0xffff).then_some((deed, outcome))
    }

    /// The oldest note that still stands. The place behind the newest is that of the next.
    fn oldest(&self, noted: u64) -> u64 {
        (noted + 1).saturating_sub(deeds::MOST as u64)
    }

    /// Whether a noted call has removed `path`.
    fn has_removed(&self, path: Path) -> bool {
        let (noted, path) = (self.noted().load(Ordering::Acquire), path.short());
        (self.oldest(noted)..noted)
            .filter_map(|number| self.get(number))
            .filter(|(deed, _)| deed.removes && deed.path == path)
            .any(|(_, outcome)| matches!(outcome, Outcome::Done | Outcome::Begun(true)))
    }

    /// The standing notes of calls that made `path`.
    fn makers(&self, path: Path) -> impl Iterator<Item = (u64, Deed, Outcome)> {
        let (table, noted, path) = (*self, self.noted().load(Ordering::Acquire), path.short());
        (self.oldest(noted)..noted)
            .filter_map(move |number| table.get(number).map(|(deed, outcome)| (number, deed, outcome)))
            .filter(move |(_, deed, _)| !deed.removes && deed.path == path)
    }

    /// Whether lives of this rank made `path` and did not remove it again. Otherwise the file belongs to another.
    fn owns(&self, path: Path) -> bool {
        self.makers(path)
            .any(|(_, _, outcome)| matches!(outcome, Outcome::Done | Outcome::Begun(false)))
    }

    /// Notes that this life has removed `path`, whichever life made it.
    fn forget(&self, path: Path) {
        self.makers(path)
            .filter(|(_, _, outcome)| *outcome == Outcome::Done)
            .for_each(|(number, deed, _)| self.put(number, deed, Outcome::Gone));
    }

    /// Leaves a text that the agent tells if the rank comes to a bad end.
    fn tell(&self, path: Path, why: &str) {
        let mut text = Text::default();
        let bytes = path.bytes();
        let name = String::from_utf8_lossy(&bytes[..bytes.len().min(deeds::TEXT_BYTES / 4)]);
        let _ = write!(text, "{} {why}", name.escape_debug());
        // SAFETY: inside the table; the length comes last.
        unsafe {
            let to = self.0.add(deeds::TEXT);
            std::ptr::copy_nonoverlapping(text.bytes.as_ptr(), to.add(4), text.length);
            (*to.cast::<AtomicU32>()).store(text.length as u32, Ordering::Release);
        }
    }
}

/// A text for places where the program's memory must not be touched.
struct Text {
    bytes: [u8; deeds::TEXT_BYTES],
    length: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            bytes: [0; deeds::TEXT_BYTES],
            length: 0,
        }
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..][..room].copy_from_slice(&text.as_bytes()[..room]);
        self.length += room;
        Ok(())
    }
}

/// What the notes say of a call before it is made.
enum Known {
    /// A former life made it; its note and outcome.
    Repeated(u64, Outcome),
    New(u64),
    /// The thread was interrupted in the middle of another call.
    Nothing,
}

/// Finds `deed` among the notes, or notes it.
fn begin(table: Table, deed: Deed, is_there: impl Fn() -> bool) -> Known {
    let thread = thread_pointer();
    loop {
        match BUSY.compare_exchange_weak(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break,
            Err(holder) if holder == thread => return Known::Nothing,
            Err(_) => std::hint::spin_loop(),
        }
    }
    // SAFETY: `BUSY` is ours.
    let life = unsafe { &mut *MADE.0.get() };
    let known = loop {
        let noted = table.noted().load(Ordering::Acquire);
        // A process that has woken up from an image finds the notes since then.
        (life.known.max(table.oldest(noted))..noted).for_each(|number| life.set(number, false));
        life.known = noted;
        let repeated = (table.oldest(noted)..noted)
            .filter(|number| !life.has_made(*number))
            .filter_map(|number| Some((number, table.get(number)?)))
            .find(|(_, (noted, _))| noted.hash == deed.hash);
        if let Some((number, (_, outcome))) = repeated {
            life.set(number, true);
            break Known::Repeated(number, outcome);
        }
        let was_there = is_there();
        // The process may have slept in an image meanwhile, and other lives gone on.
        let next = table
            .noted()
            .compare_exchange(noted, noted + 1, Ordering::AcqRel, Ordering::Relaxed);
        if next.is_ok() {
            life.set(noted, true);
            life.known = noted + 1;
            table.put(noted, deed, Outcome::Begun(was_there));
            break Known::New(noted);
        }
    };
    BUSY.store(0, Ordering::Release);
    known
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

fn life() -> u64 {
    // SAFETY: the node memory stays mapped, in the same place in every life.
    unsafe { LIFE.load(Ordering::Acquire).as_ref() }.map_or(0, |life| life.load(Ordering::Acquire))
}

/// Makes a call that makes or removes `path`. `failed`: what it returns when it fails. `again`: what to do instead
/// where a former life has done it.
fn perform<R: Copy + PartialEq>(deed: Deed, path: Path, failed: R, call: impl Fn() -> R, again: impl Fn() -> R) -> R {
    let Some(table) = Table::of_this_rank() else {
        return call();
    };
    let before = errno();
    let began_in = life();
    let is_there = || path.about().is_some();
    let (number, outcome) = match begin(table, deed, is_there) {
        Known::Nothing => return call(),
        Known::New(number) => (number, None),
        Known::Repeated(_, Outcome::Failed(errno)) => {
            set_errno(errno);
            return failed;
        }
        Known::Repeated(number, outcome) => (number, Some(outcome)),
    };
    set_errno(before);
    let result = call();
    let error = errno();
    let is_failure = result == failed;
    // The process may have slept in an image since the call was noted: then the life that went on has made the call.
    let outcome = outcome.or_else(|| {
        let noted = table.get(number).filter(|_| life() != began_in);
        noted.map(|(_, outcome)| outcome)
    });
    if is_failure && outcome.is_some_and(|outcome| has_been_done(deed, outcome, error, || table.owns(path))) {
        table.put(number, deed, Outcome::Done);
        set_errno(before);
        return again();
    }
    match outcome {
        // What a life has done once stays noted, and the next life tries it again.
        Some(Outcome::Done | Outcome::Gone) if is_failure => (),
        Some(Outcome::Done) => (),
        _ if is_failure => table.put(number, deed, Outcome::Failed(error)),
        _ => table.put(number, deed, Outcome::Done),
    }
    if deed.removes && !is_failure {
        table.forget(path);
    }
    if is_failure && [EEXIST, ENOENT].contains(&error) && began_in > 1 && number >= deeds::MOST as u64 {
        table.tell(
            path,
            "stands in its way, and it has done more than is kept of what former lives did",
        );
    }
    set_errno(error);
    result
}

/// A call that makes `path`.
fn makes(name: &str, path: Path) -> (Deed, Path) {
    let hash = path.hash(hash(name.as_bytes(), EMPTY));
    (Deed::new(hash, path, false), path)
}

/// A call that makes `path` from another path.
fn makes_of(name: &str, from: Path, path: Path) -> (Deed, Path) {
    let hash = path.hash(from.hash(hash(name.as_bytes(), EMPTY)));
    (Deed::new(hash, path, false), path)
}

fn removes(name: &str, path: Path) -> (Deed, Path) {
    let hash = path.hash(hash(name.as_bytes(), EMPTY));
    (Deed::new(hash, path, true), path)
}

fn renames(from: Path, to: Path) -> (Deed, Path) {
    let hash = to.hash(from.hash(hash(b"rename", EMPTY)));
    (Deed::new(hash, from, true), from)
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

/// Opens a file. With O_EXCL it must be new, or made by a former life; the latter is opened with the flag `cut`, too.
fn open_file(path: Path, flags: c_int, cut: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        let (deed, _) = makes("open", path);
        return perform(
            deed,
            path,
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
    let fd = open(flags);
    if fd < 0 {
        not_opened(path);
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
            let (deed, path) = $what;
            // SAFETY: as the caller calls it.
            let call = || unsafe { next!($next: fn($($kind),*) -> c_int)($($argument),*) };
            perform(deed, path, -1, call, || 0)
        })*
    };
}

plain! {
    MKDIR mkdir(path: Place, mode: mode_t) => makes("mkdir", Path::here(path));
    MKDIRAT mkdirat(at: c_int, path: Place, mode: mode_t) => makes("mkdir", Path::new(at, path));
    MKFIFO mkfifo(path: Place, mode: mode_t) => makes("mkfifo", Path::here(path));
    SYMLINK symlink(to: Place, path: Place) => makes_of("symlink", Path::here(to), Path::here(path));
    SYMLINKAT symlinkat(to: Place, at: c_int, path: Place) => makes_of("symlink", Path::here(to), Path::new(at, path));
    LINK link(from: Place, path: Place) => makes_of("link", Path::here(from), Path::here(path));
    LINKAT linkat(from_at: c_int, from: Place, at: c_int, path: Place, flags: c_int)
        => makes_of("link", Path::new(from_at, from), Path::new(at, path));
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
    let mut without = [0u8; 16];
    if !modes.contains(&b'x') || modes.len() > without.len() {
        let stream = open(mode);
        if stream.is_null() {
            not_opened(file);
        }
        return stream;
    }
    let kept = modes.iter().filter(|byte| **byte != b'x');
    without.iter_mut().zip(kept).for_each(|(to, byte)| *to = *byte);
    let (deed, _) = makes("fopen", file);
    perform(
        deed,
        file,
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
        let (deed, path) = makes("open", Path::here(path));
        perform(deed, path, -1, || 0, || 0);
    }
    // SAFETY: as the caller calls it.
    unsafe { open_here(path, flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC), 0, 0) }
}

/// Notes an unlink that the MPI library leaves out, as a former life has done it.
pub fn has_been_removed(path: Place) {
    let (deed, path) = removes("unlink", Path::here(path));
    perform(deed, path, -1, || 0, || 0);
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
    let life = node.control(node.rank, control::INCARNATION);
    LIFE.store(std::ptr::from_ref(life).cast_mut(), Ordering::Release);
    TABLE.store(node.deeds(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_again_as_long_as_they_stand() {
        let mut memory = vec![0u64; deeds::BYTES / 8];
        let table = Table(memory.as_mut_ptr().cast());
        let new = Path::here(c"new".as_ptr());
        let (made, removed) = (makes("mkdir", new).0, removes("rmdir", new).0);
        let state = |was_made: bool| {
            // SAFETY: nobody else looks.
            let life = unsafe { &mut *MADE.0.get() };
            life.known = if was_made { life.known } else { 0 };
        };
        let most = deeds::MOST as u64;
        for number in 0..most + 10 {
            assert!(matches!(begin(table, made, || false), Known::New(at) if at == number));
            table.put(number, made, Outcome::Done);
        }
        assert!(matches!(begin(table, removed, || true), Known::New(at) if at == most + 10));
        assert!(!table.has_removed(Path::here(c"old".as_ptr())) && table.has_removed(new));
        // The next life makes as many again, those that are known, and then new ones.
        state(false);
        for _ in 0..most - 2 {
            assert!(matches!(begin(table, made, || true), Known::Repeated(_, Outcome::Done)));
        }
        assert!(matches!(
            begin(table, removed, || false),
            Known::Repeated(_, Outcome::Begun(true))
        ));
        assert!(matches!(begin(table, made, || true), Known::New(at) if at == most + 11));
        // A life that was killed before it had written its note.
        table.noted().fetch_add(1, Ordering::Relaxed);
        assert!(table.get(most + 12).is_none() && table.get(most + 11).is_some());
        state(true);
        assert!(matches!(begin(table, made, || true), Known::New(at) if at == most + 13));
    }

    #[test]
    fn what_was_made_again_after_its_removal_is_told_from_what_others_made() {
        let lock = Path::here(c"lock".as_ptr());
        let mut memory = vec![0u64; deeds::BYTES / 8];
        let table = Table(memory.as_mut_ptr().cast());
        let (made, removed) = (makes("open", lock).0, removes("unlink", lock).0);
        let note = |number, deed, outcome| {
            table.noted().store(number + 1, Ordering::Relaxed);
            table.put(number, deed, outcome);
        };
        note(0, made, Outcome::Done);
        assert!(table.owns(lock) && !table.owns(Path::here(c"other".as_ptr())));
        note(1, removed, Outcome::Done);
        table.forget(lock);
        assert!(!table.owns(lock));
        note(2, made, Outcome::Failed(EEXIST));
        assert!(!table.owns(lock));
        // Killed before it knew how its call went; and when it knew.
        note(3, made, Outcome::Begun(false));
        assert!(table.owns(lock));
        table.put(3, made, Outcome::Done);
        assert!(table.owns(lock) && matches!(table.get(0), Some((_, Outcome::Gone))));
    }

    #[test]
    fn what_has_been_done_is_told_from_what_has_not() {
        let new = Path::here(c"new".as_ptr());
        let (made, removed) = (makes("mkdir", new).0, removes("rmdir", new).0);
        for (deed, outcome, errno, done) in [
            (made, Outcome::Done, EEXIST, true),
            (made, Outcome::Done, ENOENT, false),
            (made, Outcome::Begun(false), EEXIST, true),
            (made, Outcome::Begun(true), EEXIST, false),
            (removed, Outcome::Done, ENOENT, true),
            (removed, Outcome::Done, ENOTEMPTY, true),
            (removed, Outcome::Begun(true), ENOENT, true),
            (removed, Outcome::Begun(false), ENOENT, false),
            (removed, Outcome::Done, libc::EACCES, false),
        ] {
            assert_eq!(has_been_done(deed, outcome, errno, || true), done);
        }
        assert!(!has_been_done(made, Outcome::Done, EEXIST, || false));
        let mut memory = vec![0u64; deeds::BYTES / 8];
        let table = Table(memory.as_mut_ptr().cast());
        for (number, outcome) in [
            (0, Outcome::Begun(true)),
            (5000, Outcome::Done),
            (5001, Outcome::Gone),
            (70_000, Outcome::Failed(EEXIST)),
        ] {
            table.put(number, removed, outcome);
            let (deed, noted) = table.get(number).unwrap();
            assert!(noted == outcome && deed.removes && deed.hash == removed.hash);
        }
    }
}

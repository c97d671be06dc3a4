//! Timers and pending signals, which a copied process does not inherit.

use crate::captured::Captured;
use crate::proc::Lines;
use crate::sys::{self, Errno, call};
use crate::threads::{self, MOST};

/// The most POSIX timers of a rank.
const MOST_TIMERS: usize = 64;

/// A timer made by timer_create.
#[derive(Clone, Copy)]
struct PosixTimer {
    id: i32,
    clock: i32,
    signal: i32,
    notify: i32,
    value: usize,
    /// The thread that gets the signal, 0: the process.
    tid: i32,
    setting: libc::itimerspec,
}

struct Noted {
    /// alarm and setitimer.
    interval: [libc::itimerval; 3],
    posix: [PosixTimer; MOST_TIMERS],
    count: usize,
    /// Signals, as bits, that wait for the process, and for each thread.
    for_process: u64,
    for_thread: [u64; MOST],
}

const NO_TIME: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 0 };
const NO_TIMER: libc::itimerval = libc::itimerval {
    it_interval: NO_TIME,
    it_value: NO_TIME,
};
const NO_SETTING: libc::itimerspec = libc::itimerspec {
    it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: libc::timespec { tv_sec: 0, tv_nsec: 0 },
};

static NOTED: Captured<Noted> = Captured::new(Noted {
    interval: [NO_TIMER; 3],
    posix: [PosixTimer {
        id: 0,
        clock: 0,
        signal: 0,
        notify: 0,
        value: 0,
        tid: 0,
        setting: NO_SETTING,
    }; MOST_TIMERS],
    count: 0,
    for_process: 0,
    for_thread: [0; MOST],
});

/// Notes all timers and pending signals. The error says what cannot be kept.
pub fn note() -> Result<(), &'static str> {
    // SAFETY: see [`Captured`].
    let noted = unsafe { NOTED.get() };
    note_pending(noted)?;
    // A timer that expires meanwhile is either still set or has become a signal.
    for _ in 0..100 {
        let before = noted.for_process;
        note_timers(noted)?;
        note_pending(noted)?;
        if noted.for_process == before {
            return Ok(());
        }
    }
    Err("its timers run out all the time")
}

/// The signals that wait for the whole process, by what was noted: signal 1 is the lowest bit.
pub fn pending() -> i32 {
    // SAFETY: see [`Captured`]. None is above 31.
    unsafe { NOTED.get() }.for_process as i32
}

fn note_pending(noted: &mut Noted) -> Result<(), &'static str> {
    const UNREADABLE: &str = "its pending signals cannot be read";
    for (index, thread) in threads::parked().iter().enumerate() {
        let mut name = [0u8; 64];
        let mut text = [0u8; 4096];
        let path = sys::path(&mut name, "/proc/self/task/", thread.tid, "/status");
        let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC).map_err(|_| UNREADABLE)?;
        let length = sys::read(file, &mut text);
        sys::close(file);
        let text = std::str::from_utf8(&text[..length.map_err(|_| UNREADABLE)?]).map_err(|_| UNREADABLE)?;
        let signals = |label: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(label))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        noted.for_thread[index] = signals("SigPnd:").ok_or(UNREADABLE)?;
        noted.for_process = signals("ShdPnd:").ok_or(UNREADABLE)?;
        // They carry values, and one of them can wait many times.
        if (noted.for_thread[index] | noted.for_process) >> 31 != 0 {
            return Err("real-time signals wait for it");
        }
    }
    Ok(())
}

fn note_timers(noted: &mut Noted) -> Result<(), &'static str> {
    for which in 0..3 {
        // SAFETY: writes to the place for this timer.
        let _ = unsafe { call!(libc::SYS_getitimer, which, noted.interval.as_mut_ptr().add(which)) };
    }
    // While its signal waits, the kernel does not count on; the interval would begin when the program takes the signal.
    let alarm = &mut noted.interval[libc::ITIMER_REAL as usize];
    if alarm.it_value.tv_sec == 0 && alarm.it_value.tv_usec == 0 {
        alarm.it_value = alarm.it_interval;
    }
    noted.count = 0;
    let Ok(file) = sys::open(b"/proc/self/timers\0", libc::O_RDONLY | libc::O_CLOEXEC) else {
        // This kernel has no such list. A process's first timers have the first numbers.
        return match (0..256).any(|id| setting(id).is_ok()) {
            true => Err("it has POSIX timers (timer_create)"),
            false => Ok(()),
        };
    };
    let result = read_timers(file, noted);
    sys::close(file);
    result
}

fn setting(id: i32) -> Result<libc::itimerspec, Errno> {
    let mut setting = NO_SETTING;
    // SAFETY: writes the setting.
    unsafe { call!(libc::SYS_timer_gettime, id, &raw mut setting) }.map(|_| setting)
}

/// "ID: 0", "signal: 14/00007ffe…", "notify: signal/pid.17", "ClockID: 1", and so on for each timer.
fn read_timers(file: i32, noted: &mut Noted) -> Result<(), &'static str> {
    const UNREADABLE: &str = "its POSIX timers cannot be read";
    let mut lines = Lines::new(file);
    while let Some(line) = lines.next_line().map_err(|_| UNREADABLE)? {
        let line = std::str::from_utf8(line).map_err(|_| UNREADABLE)?;
        let (label, value) = line.split_once(": ").ok_or(UNREADABLE)?;
        let number = |text: &str| text.parse::<i32>().map_err(|_| UNREADABLE);
        if label == "ID" {
            if noted.count == MOST_TIMERS {
                return Err("it has more than 64 POSIX timers");
            }
            noted.count += 1;
        }
        let timer = noted.posix[..noted.count].last_mut().ok_or(UNREADABLE)?;
        match label {
            "ID" => {
                timer.id = number(value)?;
                timer.setting = setting(timer.id).map_err(|_| UNREADABLE)?;
            }
            "signal" => {
                let (signal, value) = value.split_once('/').ok_or(UNREADABLE)?;
                timer.signal = number(signal)?;
                timer.value = usize::from_str_radix(value.trim_start_matches("0x"), 16).map_err(|_| UNREADABLE)?;
            }
            "notify" => {
                let (how, whom) = value.split_once('/').ok_or(UNREADABLE)?;
                timer.notify = if how == "none" {
                    libc::SIGEV_NONE
                } else {
                    libc::SIGEV_SIGNAL
                };
                timer.tid = 0;
                if let Some(tid) = whom.strip_prefix("tid.") {
                    timer.notify |= libc::SIGEV_THREAD_ID;
                    timer.tid = number(tid)?;
                }
            }
            "ClockID" => {
                timer.clock = number(value)?;
                // The other clocks belong to a thread or another process.
                if timer.clock < 0 || timer.clock == libc::CLOCK_THREAD_CPUTIME_ID {
                    return Err("it has a POSIX timer on a thread's own clock");
                }
            }
            _ => {}
        }
    }
    let count = noted.count;
    noted.posix[..count].sort_unstable_by_key(|timer| timer.id);
    Ok(())
}

/// In a woken copy: sets all timers and sends the process its signals again. `new_tid` gives a thread's id now. All
/// signals are blocked.
pub fn set(new_tid: impl Fn(i32) -> i32) -> Result<(), Errno> {
    // SAFETY: see [`Captured`].
    let noted = unsafe { NOTED.get() };
    for signal in (1..=31).filter(|signal| noted.for_process >> (signal - 1) & 1 != 0) {
        // SAFETY: a signal to this process, which has all blocked.
        unsafe { call!(libc::SYS_kill, sys::getpid(), signal) }?;
    }
    for (which, timer) in noted.interval.iter().enumerate() {
        if timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0 {
            // SAFETY: reads what was noted.
            unsafe { call!(libc::SYS_setitimer, which, &raw const *timer, 0) }?;
        }
    }
    for timer in &noted.posix[..noted.count] {
        create(timer, new_tid(timer.tid))?;
        // SAFETY: reads what was noted.
        unsafe { call!(libc::SYS_timer_settime, timer.id, 0, &raw const timer.setting, 0) }?;
    }
    Ok(())
}

/// Makes a timer with the number that the program knows. The kernel gives numbers in order, from 0 in a new process.
fn create(timer: &PosixTimer, tid: i32) -> Result<(), Errno> {
    #[repr(C)]
    struct Event {
        value: usize,
        signal: i32,
        notify: i32,
        tid: i32,
        _rest: [i32; 11],
    }
    let event = Event {
        value: timer.value,
        signal: timer.signal,
        notify: timer.notify,
        tid,
        _rest: [0; 11],
    };
    loop {
        let mut id = -1i32;
        // SAFETY: reads the event and writes the number; deletes only what was just made.
        unsafe {
            call!(libc::SYS_timer_create, timer.clock, &raw const event, &raw mut id)?;
            if id == timer.id {
                return Ok(());
            }
            call!(libc::SYS_timer_delete, id)?;
        }
        if id > timer.id {
            return Err(libc::EEXIST);
        }
    }
}

/// In the woken thread that was entry `index` of the table: sends it its own signals again.
pub fn raise_own(index: usize) {
    // SAFETY: see [`Captured`].
    let signals = unsafe { (*NOTED.pointer()).for_thread[index] };
    for signal in (1..=31).filter(|signal| signals >> (signal - 1) & 1 != 0) {
        // SAFETY: a signal to this thread, which has all blocked.
        let _ = unsafe { call!(libc::SYS_tgkill, sys::getpid(), sys::gettid(), signal) };
    }
}

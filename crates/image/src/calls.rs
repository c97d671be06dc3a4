//! System calls that stopping a thread interrupted, and how they go on. The program sees no EINTR of ours, and no
//! timeout starts over.
//!
//! The kernel restarts most calls by itself (SA_RESTART). This module sets up again those that the kernel never
//! restarts. The registers get the values from before the call, and a relative timeout becomes the time that is left.
//! At a call's first stop it is not known when the call began. So a wait can be longer than asked for, by at most the
//! time between two images.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, call};
use crate::threads::{MOST, Thread};

/// When the timeouts now in use were computed, CLOCK_MONOTONIC.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// Timeouts that restarted calls point to, one per thread. There are two sets: one is written while the other is still
/// read.
type Timeouts = [[libc::timespec; MOST]; 2];
struct Place(UnsafeCell<Timeouts>);
// SAFETY: written by the capturing thread alone, while all others stand still.
unsafe impl Sync for Place {}
static TIMEOUTS: Place = Place(UnsafeCell::new([[libc::timespec { tv_sec: 0, tv_nsec: 0 }; MOST]; 2]));
static SET: AtomicUsize = AtomicUsize::new(0);

/// In the upper half of a register, this says that we computed the timeout (in milliseconds) in the lower half. The
/// kernel looks at the lower half only.
const COMPUTED: u64 = 0x5265_7375;

/// A relative timeout of a call, where the kernel does not shorten it itself (as it does for ppoll and pselect).
enum Timeout {
    None,
    Milliseconds(libc::c_int),
    /// The register that points to a timespec, and the one whose timespec may receive the time left from the kernel.
    Time(libc::c_int, Option<libc::c_int>),
}

type Registers = [i64; 23];

fn timeout(number: i64, registers: &Registers) -> Timeout {
    let register = |name: libc::c_int| registers[name as usize];
    match number {
        libc::SYS_poll => Timeout::Milliseconds(libc::REG_RDX),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => Timeout::Milliseconds(libc::REG_R10),
        libc::SYS_nanosleep => Timeout::Time(libc::REG_RDI, Some(libc::REG_RSI)),
        libc::SYS_clock_nanosleep if register(libc::REG_RSI) & i64::from(libc::TIMER_ABSTIME) == 0 => {
            Timeout::Time(libc::REG_RDX, Some(libc::REG_R10))
        }
        libc::SYS_rt_sigtimedwait => Timeout::Time(libc::REG_RDX, None),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => Timeout::Time(libc::REG_R10, None),
        libc::SYS_io_getevents => Timeout::Time(libc::REG_R8, None),
        // FUTEX_WAIT (0) only: the others have an absolute time.
        libc::SYS_futex if register(libc::REG_RSI) & 0x7f == 0 => Timeout::Time(libc::REG_R10, None),
        _ => Timeout::None,
    }
}

/// The registers of a thread that stands still.
fn registers(context: usize) -> &'static mut Registers {
    // SAFETY: the frame is of a stopped thread or of the caller; nobody else looks at it.
    unsafe { &mut (*(context as *mut libc::ucontext_t)).uc_mcontext.gregs }
}

/// True when the registers are as a `syscall` instruction that ends at `pc` leaves them: RCX holds the address after
/// it.
fn stands_after_call(registers: &Registers, pc: i64) -> bool {
    registers[libc::REG_RCX as usize] == pc
}

/// The bytes before `pc`, as far as they can be read.
fn code_before(pc: u64) -> [u8; 16] {
    let mut code = [0u8; 16];
    let local = libc::iovec {
        iov_base: code.as_mut_ptr().cast(),
        iov_len: 16,
    };
    let remote = libc::iovec {
        iov_base: (pc - 16) as *mut libc::c_void,
        iov_len: 16,
    };
    // SAFETY: the kernel checks the address.
    let _ = unsafe {
        call!(
            libc::SYS_process_vm_readv,
            sys::getpid(),
            &raw const local,
            1,
            &raw const remote,
            1
        )
    };
    code
}

/// The number of the call whose instruction ends `code`, if `mov eax, number` stands right before it.
fn number_in(code: &[u8; 16]) -> Option<i64> {
    if code[14..] != [0x0f, 0x05] {
        return None;
    }
    let at = (0..=9)
        .rev()
        .find(|at| code[*at] == 0xb8 && code[at + 2] < 2 && code[at + 3..at + 5] == [0, 0])?;
    Some(i64::from(u16::from_le_bytes([code[at + 1], code[at + 2]])))
}

/// Sets up the interrupted calls of all threads, which stand still, to go on. `before` says which call thread `index`
/// was in before it got the signal (number and pc), where that is known. The thread may have moved on meanwhile.
pub fn restart_all(threads: &[Thread], before: impl Fn(usize) -> Option<(i64, u64)>) {
    let now = sys::now_ns();
    let passed = now - SINCE.swap(now, Ordering::SeqCst);
    let set = SET.fetch_xor(1, Ordering::SeqCst) ^ 1;
    for (index, thread) in threads.iter().enumerate() {
        restart(registers(thread.context), before(index), passed, (set, index));
    }
}

/// In a process that has just woken: a timeout has as much left as when the image was taken.
pub fn go_on_from_now() {
    SINCE.store(sys::now_ns(), Ordering::SeqCst);
}

fn restart(registers: &mut Registers, before: Option<(i64, u64)>, passed: u64, slot: (usize, usize)) {
    let pc = registers[libc::REG_RIP as usize];
    if registers[libc::REG_RAX as usize] != -i64::from(libc::EINTR) || !stands_after_call(registers, pc) {
        // Between two images a thread may not have run at all, or not yet entered its call again.
        let number = registers[libc::REG_RAX as usize];
        if stands_after_call(registers, pc + 2) {
            shorten(registers, number, passed, slot);
        }
        return;
    }
    let code = code_before(pc as u64);
    let number = match before {
        Some((number, at)) if at == pc as u64 && number >= 0 => number,
        _ => match number_in(&code) {
            Some(number) => number,
            None => return,
        },
    };
    // A closed file stays closed, also when close returns an error.
    if code[14..] != [0x0f, 0x05] || number == libc::SYS_close {
        return;
    }
    shorten(registers, number, passed, slot);
    registers[libc::REG_RAX as usize] = number;
    registers[libc::REG_RIP as usize] -= 2;
}

/// Shortens the relative timeout of a call to what is left. `passed`: nanoseconds since timeouts were last computed
/// here.
fn shorten(registers: &mut Registers, number: i64, passed: u64, (set, index): (usize, usize)) {
    match timeout(number, registers) {
        Timeout::None => {}
        Timeout::Milliseconds(name) => {
            let value = registers[name as usize] as u64;
            let mut left = value as u32 as i32;
            if left <= 0 {
                return;
            }
            if value >> 32 == COMPUTED {
                left -= (passed / 1_000_000).min(left as u64) as i32;
            }
            registers[name as usize] = (COMPUTED << 32 | left as u64) as i64;
        }
        Timeout::Time(name, rest) => {
            let asked = registers[name as usize] as usize;
            if asked == 0 {
                return;
            }
            let broken_off = registers[libc::REG_RAX as usize] == -i64::from(libc::EINTR);
            let rest = rest.map_or(0, |rest| registers[rest as usize] as usize);
            let first = TIMEOUTS.0.get() as usize;
            let computed = (first..first + size_of::<Timeouts>()).contains(&asked);
            // SAFETY: the kernel has just read or written these; the place in the table is this thread's.
            unsafe {
                let left = if rest != 0 && broken_off {
                    nanoseconds(&*(rest as *const libc::timespec))
                } else {
                    nanoseconds(&*(asked as *const libc::timespec)).saturating_sub(if computed { passed } else { 0 })
                };
                let place = &raw mut (*TIMEOUTS.0.get())[set][index];
                *place = libc::timespec {
                    tv_sec: (left / 1_000_000_000) as i64,
                    tv_nsec: (left % 1_000_000_000) as i64,
                };
                registers[name as usize] = place as i64;
            }
        }
    }
}

/// True for a thread that stands still in futex(FUTEX_LOCK_PI), operation 6, or FUTEX_LOCK_PI2, 13.
pub fn waits_for_inheriting_mutex(context: usize) -> bool {
    let registers = registers(context);
    stands_after_call(registers, registers[libc::REG_RIP as usize] + 2)
        && registers[libc::REG_RAX as usize] == libc::SYS_futex
        && [6, 13].contains(&(registers[libc::REG_RSI as usize] & 0x7f))
}

fn nanoseconds(time: &libc::timespec) -> u64 {
    (time.tv_sec.max(0) as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec.max(0) as u64)
}

/// Calls that a signal handler interrupts whatever its flags, and those that it interrupts without SA_RESTART.
fn is_ended_by_signal(number: i64, restarts: bool) -> bool {
    match number {
        libc::SYS_poll
        | libc::SYS_ppoll
        | libc::SYS_select
        | libc::SYS_pselect6
        | libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_pause
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_semop
        | libc::SYS_semtimedop
        | libc::SYS_msgrcv
        | libc::SYS_msgsnd
        | libc::SYS_io_getevents => true,
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_flock
        | libc::SYS_fcntl => !restarts,
        _ => false,
    }
}

/// In the signal handler, before it returns to `context`. A signal for the program that came while the thread stood
/// still ends its call, as it would have without us. Otherwise `pause` would wait for another one.
pub fn heed_signals(context: usize) {
    // Both are 64 bits in the kernel.
    // SAFETY: the caller's own frame; glibc keeps the kernel's mask in the first word of uc_sigmask.
    let blocked = unsafe { *(&raw const (*(context as *const libc::ucontext_t)).uc_sigmask).cast::<u64>() };
    let mut pending = 0u64;
    // SAFETY: writes one word.
    let asked = unsafe { call!(libc::SYS_rt_sigpending, &raw mut pending, 8) };
    pending &= !blocked;
    if asked.is_err() || pending == 0 {
        return;
    }
    let registers = registers(context);
    let pc = registers[libc::REG_RIP as usize];
    let number = registers[libc::REG_RAX as usize];
    if !stands_after_call(registers, pc + 2) {
        return;
    }
    for signal in (1..=64).filter(|signal| pending >> (signal - 1) & 1 != 0 && *signal != crate::SIGNAL) {
        let mut action = [0u64; 4];
        // SAFETY: asks for the disposition: handler, flags, restorer, mask.
        let asked = unsafe { call!(libc::SYS_rt_sigaction, signal, 0, action.as_mut_ptr(), 8) };
        let has_handler = asked.is_ok() && action[0] as usize > libc::SIG_IGN;
        if has_handler && is_ended_by_signal(number, action[1] & libc::SA_RESTART as u64 != 0) {
            registers[libc::REG_RIP as usize] = pc + 2;
            registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EINTR: i64 = -(libc::EINTR as i64);

    fn code(ending: &[u8]) -> [u8; 16] {
        let mut code = [0x90; 16];
        code[16 - ending.len()..].copy_from_slice(ending);
        code
    }

    #[test]
    fn the_number_of_a_call_stands_before_it() {
        assert_eq!(number_in(&code(&[0xb8, 0xe8, 0, 0, 0, 0x0f, 0x05])), Some(232));
        let between = [0xb8, 0x19, 1, 0, 0, 0x8b, 0x7c, 0x24, 0x04, 0x0f, 0x05];
        assert_eq!(number_in(&code(&between)), Some(281));
        assert_eq!(number_in(&code(&[0xb8, 0xe8, 0, 0, 0, 0x90, 0x90])), None);
        assert_eq!(number_in(&code(&[0x89, 0xf8, 0x0f, 0x05])), None);
    }

    fn after_call(instructions: &[u8; 16]) -> Registers {
        let mut registers = [0; 23];
        registers[libc::REG_RIP as usize] = instructions.as_ptr_range().end as i64;
        registers[libc::REG_RCX as usize] = registers[libc::REG_RIP as usize];
        registers[libc::REG_RAX as usize] = EINTR;
        registers
    }

    #[test]
    fn a_poll_waits_for_what_is_left() {
        let instructions = code(&[0xb8, 7, 0, 0, 0, 0x0f, 0x05]);
        let mut registers = after_call(&instructions);
        registers[libc::REG_RDX as usize] = 100;
        restart(&mut registers, None, 30_000_000, (0, 0));
        // How long it waited before its first stop is not known.
        assert_eq!(registers[libc::REG_RDX as usize] as i32, 100);
        assert_eq!(registers[libc::REG_RAX as usize], libc::SYS_poll);
        for left in [70, 40, 10, 0] {
            registers[libc::REG_RAX as usize] = EINTR;
            registers[libc::REG_RIP as usize] += 2;
            restart(&mut registers, None, 30_000_000, (0, 0));
            assert_eq!(registers[libc::REG_RDX as usize] as i32, left);
        }
    }

    #[test]
    fn a_sleep_sleeps_what_is_left_also_when_nobody_asks_how_much() {
        let instructions = code(&[0xb8, 230, 0, 0, 0, 0x0f, 0x05]);
        let asked = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        let mut registers = after_call(&instructions);
        registers[libc::REG_RDX as usize] = &raw const asked as i64;
        for (set, left) in [(0, 1_000_000_000), (1, 600_000_000), (0, 200_000_000), (1, 0)] {
            registers[libc::REG_RAX as usize] = EINTR;
            registers[libc::REG_RIP as usize] = registers[libc::REG_RCX as usize];
            restart(&mut registers, None, 400_000_000, (set, 5));
            let time = registers[libc::REG_RDX as usize] as *const libc::timespec;
            // SAFETY: points into the table.
            assert_eq!(nanoseconds(unsafe { &*time }), left);
        }
    }

    #[test]
    fn what_is_not_broken_off_is_left_alone() {
        let instructions = code(&[0xb8, 7, 0, 0, 0, 0x0f, 0x05]);
        let mut registers = after_call(&instructions);
        registers[libc::REG_RAX as usize] = 1;
        let before = registers;
        restart(
            &mut registers,
            Some((7, before[libc::REG_RIP as usize] as u64)),
            1,
            (0, 0),
        );
        assert_eq!(registers, before);
        let instructions = code(&[0xb8, 3, 0, 0, 0, 0x0f, 0x05]);
        let mut registers = after_call(&instructions);
        let before = registers;
        restart(
            &mut registers,
            Some((3, before[libc::REG_RIP as usize] as u64)),
            1,
            (0, 0),
        );
        assert_eq!(registers, before);
    }
}

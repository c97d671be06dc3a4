//! The restorer: replaces its own process's memory by that of an image. It runs without a standard library at an
//! address that nothing else uses. It knows nothing of images: it only does the steps of the plan that the former
//! program made.
#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};

#[path = "../src/file/plan.rs"]
#[allow(dead_code)]
mod plan;

use plan::{ANY, EXIT_NOT_RESTORED, Head, KEEP, KEPT, MAY_FAIL, PARKED, PARKED_NAMES, PLAN, Step};

const STACK: usize = 64 << 10;

/// The kernel has put its stack where the image's will be.
#[repr(C, align(16))]
struct Stack([u8; STACK]);
static mut OWN: Stack = Stack([0; STACK]);

/// The kernel starts the process here: argument 1 is the descriptor of the plan, argument 2 its length.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "mov rdi, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "movabs rsp, offset {own}",
        "add rsp, {size}",
        "xor ebp, ebp",
        "movabs rax, offset {run}",
        "call rax",
        "ud2",
        own = sym OWN,
        size = const STACK,
        run = sym run,
    )
}

/// # Safety
/// As the system call itself.
unsafe fn call(number: u64, a: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for what the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

const SYS_READ: u64 = 0;
const SYS_OPEN: u64 = 2;
const SYS_CLOSE: u64 = 3;
const SYS_MMAP: u64 = 9;
const SYS_MREMAP: u64 = 25;
const SYS_SENDTO: u64 = 44;
const SYS_EXIT_GROUP: u64 = 231;

/// Tells the agent that step `step` has failed (`Datagram` of kind Failed without a text), and ends.
fn fail(agent: u64, step: u64, number: u64, result: i64) -> ! {
    let mut datagram = [9u64, 0, 0, 0];
    datagram[1] = step;
    datagram[2] = result.unsigned_abs();
    datagram[3] = number;
    loop {
        // SAFETY: sends 32 bytes, and ends the process.
        unsafe {
            call(SYS_SENDTO, [agent, datagram.as_ptr() as u64, 32, 0, 0, 0]);
            call(SYS_EXIT_GROUP, [EXIT_NOT_RESTORED as u64, 0, 0, 0, 0, 0]);
        }
    }
}

/// A number in decimal.
///
/// # Safety
/// `text` ends with a zero.
unsafe fn number(mut text: *const u8) -> u64 {
    let mut value = 0;
    loop {
        // SAFETY: before its end.
        let byte = unsafe { text.read() };
        if !byte.is_ascii_digit() {
            return value;
        }
        value = value * 10 + u64::from(byte - b'0');
        // SAFETY: not the end yet.
        text = unsafe { text.add(1) };
    }
}

unsafe extern "C" fn run(plan: *const u8, length: *const u8) -> ! {
    // SAFETY: the process belongs to this code alone; the plan was made for it.
    unsafe {
        let (file, length) = (number(plan), number(length));
        // PROT_READ | PROT_WRITE; MAP_PRIVATE | MAP_FIXED_NOREPLACE.
        let mapped = call(SYS_MMAP, [PLAN as u64, length, 3, 0x10_0002, file, 0]);
        if mapped != PLAN as i64 {
            fail(33, 0, SYS_MMAP, mapped);
        }
        call(SYS_CLOSE, [file, 0, 0, 0, 0, 0]);
        let head = &*(PLAN as *const Head);
        park(head.agent);
        let steps = (PLAN + head.steps_at as usize) as *const Step;
        let mut kept = 0;
        for index in 0..head.steps {
            let step = &*steps.add(index as usize);
            let arguments = step.arguments.map(|argument| if argument == KEPT { kept } else { argument });
            let result = call(step.call, arguments);
            let good = match step.result {
                MAY_FAIL => true,
                ANY => !(-4095..0).contains(&result),
                KEEP => {
                    kept = result as u64;
                    result >= 0
                }
                expected => result as u64 == expected,
            };
            if !good {
                fail(head.agent, index + 1, step.call, result);
            }
        }
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {entry}",
            "ud2",
            stack = in(reg) head.stack,
            entry = in(reg) head.entry,
            in("rdi") head.arguments[0],
            in("rsi") head.arguments[1],
            in("rdx") head.arguments[2],
            options(noreturn),
        )
    }
}

/// Moves the kernel's own pages out of the way.
unsafe fn park(agent: u64) {
    let mut text = [0u8; 8192];
    let mut length = 0;
    // SAFETY: reads into the array, and moves mappings that nobody uses now.
    unsafe {
        let file = call(SYS_OPEN, [c"/proc/self/maps".as_ptr() as u64, 0, 0, 0, 0, 0]);
        if file < 0 {
            fail(agent, 0, SYS_OPEN, file);
        }
        loop {
            let room = (text.len() - length) as u64;
            let got = call(SYS_READ, [file as u64, text.as_mut_ptr() as u64 + length as u64, room, 0, 0, 0]);
            if got <= 0 {
                break;
            }
            length += got as usize;
        }
        call(SYS_CLOSE, [file as u64, 0, 0, 0, 0, 0]);
        for line in text[..length].split(|byte| *byte == b'\n') {
            let Some(which) = PARKED_NAMES.iter().position(|name| line.ends_with(name)) else {
                continue;
            };
            let (start, rest) = hexadecimal(line);
            let (end, _) = hexadecimal(&line[rest + 1..]);
            // MREMAP_MAYMOVE | MREMAP_FIXED.
            let moved = call(SYS_MREMAP, [start, end - start, end - start, 3, PARKED[which] as u64, 0]);
            if moved != PARKED[which] as i64 {
                fail(agent, 0, SYS_MREMAP, moved);
            }
        }
    }
}

/// A number at the beginning of `text`, and its length there.
fn hexadecimal(text: &[u8]) -> (u64, usize) {
    let mut value = 0;
    for (index, byte) in text.iter().enumerate() {
        match (*byte as char).to_digit(16) {
            Some(digit) => value = value << 4 | u64::from(digit),
            None => return (value, index),
        }
    }
    (value, text.len())
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    // SAFETY: as the caller says.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, inout("rcx") count => _, in("al") value as u8, options(nostack));
    }
    to
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: as the caller says.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") count => _, options(nostack));
    }
    to
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: as the caller says.
        let (a, b) = unsafe { (one.add(index).read_volatile(), other.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: as the caller says.
    unsafe { memcmp(one, other, count) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    fail(33, u64::MAX, 0, 0)
}

/// Core's panics name it; with panic=abort nobody calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

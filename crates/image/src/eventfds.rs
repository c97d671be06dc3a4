//! Descriptors that are no files: eventfd, timerfd, signalfd, epoll, and pipes. The kernel tells the state of each, and
//! makes another one like it.

use crate::proc;
use crate::sys::{Errno, call};

/// What a descriptor that is no file stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    Pipe,
    Event {
        count: u64,
        semaphore: bool,
    },
    Timer {
        clock: i32,
        has_run_out: bool,
        /// Interval and time left, in nanoseconds.
        interval: u64,
        left: u64,
    },
    Signals(u64),
    Epoll,
}

/// What `fd` stands for, which is neither file nor socket nor device. The error says what cannot be part of an image.
pub fn describe(fd: i32) -> Result<Object, &'static str> {
    let mut place = [0u8; 64];
    match proc::link(fd, &mut place) {
        "anon_inode:[eventfd]" => event(fd),
        "anon_inode:[timerfd]" => timer(fd),
        "anon_inode:[signalfd]" => {
            let mut mask = None;
            proc::for_each_fact(fd, |label, value| {
                if label == "sigmask" {
                    mask = Some(u64::from_str_radix(value, 16).ok()?);
                }
                Some(())
            })?;
            mask.map(Object::Signals).ok_or(proc::UNREADABLE)
        }
        "anon_inode:[eventpoll]" => Ok(Object::Epoll),
        "anon_inode:inotify" => Err("it watches files (inotify)"),
        "anon_inode:[io_uring]" => Err("it uses io_uring"),
        name if name.starts_with("pipe:[") => Ok(Object::Pipe),
        _ => Err("it has an open descriptor of an unknown kind"),
    }
}

fn event(fd: i32) -> Result<Object, &'static str> {
    let (mut count, mut semaphore) = (None, None);
    proc::for_each_fact(fd, |label, value| {
        match label {
            "eventfd-count" => count = Some(u64::from_str_radix(value, 16).ok()?),
            "eventfd-semaphore" => semaphore = Some(value != "0"),
            _ => {}
        }
        Some(())
    })?;
    match (count, semaphore) {
        (Some(count), Some(semaphore)) => Ok(Object::Event { count, semaphore }),
        _ => Err("it has an eventfd of which this kernel does not tell the kind"),
    }
}

fn timer(fd: i32) -> Result<Object, &'static str> {
    let (mut clock, mut ticks, mut left, mut interval, mut flags) = (None, 0u64, None, None, 0);
    // "(seconds, nanoseconds)"
    let time = |text: &str| {
        let (seconds, rest) = text.trim_matches(['(', ')']).split_once(", ")?;
        Some(seconds.parse::<u64>().ok()?.saturating_mul(1_000_000_000) + rest.parse::<u64>().ok()?)
    };
    proc::for_each_fact(fd, |label, value| {
        match label {
            "clockid" => clock = Some(value.parse().ok()?),
            "ticks" => ticks = value.parse().ok()?,
            "settime flags" => flags = i32::from_str_radix(value, 8).ok()?,
            "it_value" => left = Some(time(value)?),
            "it_interval" => interval = Some(time(value)?),
            _ => {}
        }
        Some(())
    })?;
    if flags & libc::TFD_TIMER_CANCEL_ON_SET != 0 {
        return Err("it has a timerfd that ends when the clock is set");
    }
    match (clock, left, interval) {
        (Some(clock), Some(left), Some(interval)) => Ok(Object::Timer {
            clock,
            has_run_out: ticks > 0,
            interval,
            left,
        }),
        _ => Err(proc::UNREADABLE),
    }
}

pub fn make(object: Object) -> Result<i32, Errno> {
    // SAFETY: all of them make a descriptor out of numbers, or of memory that outlives the call.
    let fd = unsafe {
        match object {
            Object::Event { count, semaphore } => {
                let fd = call!(libc::SYS_eventfd2, 0, if semaphore { libc::EFD_SEMAPHORE } else { 0 })?;
                if count > 0 {
                    call!(libc::SYS_write, fd, &raw const count, 8)?;
                }
                fd
            }
            Object::Timer {
                clock,
                has_run_out,
                interval,
                left,
            } => {
                let time = |ns: u64| libc::timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as i64,
                };
                let fd = call!(libc::SYS_timerfd_create, clock, 0)?;
                // A timer that expired unread stands still until it is read: let the new one expire at once.
                let setting = libc::itimerspec {
                    it_interval: time(interval),
                    it_value: time(if has_run_out { 1 } else { left }),
                };
                call!(libc::SYS_timerfd_settime, fd, 0, &raw const setting, 0)?;
                fd
            }
            Object::Signals(mask) => call!(libc::SYS_signalfd4, -1i64, &raw const mask, 8, 0)?,
            Object::Epoll | Object::Pipe => call!(libc::SYS_epoll_create1, 0)?,
        }
    };
    Ok(fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_recognised_and_made_again() {
        // SAFETY: descriptors of this test's own.
        unsafe {
            let event = libc::eventfd(5, libc::EFD_SEMAPHORE);
            let seen = describe(event).unwrap();
            assert_eq!(
                seen,
                Object::Event {
                    count: 5,
                    semaphore: true
                }
            );
            let again = make(seen).unwrap();
            assert_eq!(describe(again).unwrap(), seen);
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, 0);
            let mut setting: libc::itimerspec = std::mem::zeroed();
            setting.it_value.tv_sec = 100;
            setting.it_interval.tv_nsec = 7;
            libc::timerfd_settime(timer, 0, &raw const setting, std::ptr::null_mut());
            let Object::Timer { left, interval, .. } = describe(timer).unwrap() else {
                panic!()
            };
            assert!(interval == 7 && left > 99_000_000_000 && left <= 100_000_000_000);
            for fd in [event, again, timer] {
                libc::close(fd);
            }
        }
    }
}

//! What the epoll sets of the process watch.

use crate::captured::Captured;
use crate::descriptors::Descriptor;
use crate::eventfds::Object;
use crate::proc;
use crate::sys::{Errno, call};
use crate::trouble::Refusal;

#[derive(Clone, Copy)]
struct Watch {
    epoll: i32,
    fd: i32,
    events: u32,
    data: u64,
}

const MOST_WATCHES: usize = 1024;

const NO_WATCH: Watch = Watch {
    epoll: -1,
    fd: -1,
    events: 0,
    data: 0,
};

struct Noted {
    watches: [Watch; MOST_WATCHES],
    count: usize,
}

static NOTED: Captured<Noted> = Captured::new(Noted {
    watches: [NO_WATCH; MOST_WATCHES],
    count: 0,
});

fn noted() -> &'static mut Noted {
    // SAFETY: see [`Captured`].
    unsafe { NOTED.get() }
}

impl Noted {
    fn all(&mut self) -> &mut [Watch] {
        &mut self.watches[..self.count]
    }
}

/// Lists what the epoll sets of `table` watch.
pub fn note(table: &[Descriptor]) -> Result<(), Refusal> {
    let noted = noted();
    noted.count = 0;
    let is_set = |entry: &&Descriptor| entry.object() == Some(Object::Epoll) && entry.same_as.is_none();
    table
        .iter()
        .filter(is_set)
        .try_for_each(|entry| note_of(noted, entry, table))
}

/// In a copy of the process, whose epoll sets are new: makes them watch the same. The error names the descriptor.
pub fn renew() -> Result<(), (i32, Errno)> {
    for watch in noted().all().iter() {
        let mut event = libc::epoll_event {
            events: watch.events,
            u64: watch.data,
        };
        // SAFETY: reads the event.
        unsafe {
            call!(
                libc::SYS_epoll_ctl,
                watch.epoll,
                libc::EPOLL_CTL_ADD,
                watch.fd,
                &raw mut event
            )
        }
        .map_err(|errno| (watch.fd, errno))?;
    }
    Ok(())
}

/// "tfd: 3 events: 19 data: 3 pos:0 ino:414 sdev:10", without the first label.
fn parse_watch(epoll: i32, value: &str) -> Option<(Watch, u64)> {
    let mut words = value.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let events = words.nth(1).and_then(|word| u32::from_str_radix(word, 16).ok())?;
    let data = words.nth(1).and_then(|word| u64::from_str_radix(word, 16).ok())?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
    let watch = Watch {
        epoll,
        fd,
        events,
        data,
    };
    Some((watch, u64::from_str_radix(inode, 16).ok()?))
}

fn note_of(noted: &mut Noted, entry: &Descriptor, table: &[Descriptor]) -> Result<(), Refusal> {
    let mut refused = None;
    let read = proc::for_each_fact(entry.fd, |label, value| {
        if label != "tfd" {
            return Some(());
        }
        let (watch, inode) = parse_watch(entry.fd, value)?;
        if !table.iter().any(|other| other.fd == watch.fd && other.inode.1 == inode) {
            refused = Some("an epoll set watches something that has been closed");
        } else if noted.count == MOST_WATCHES {
            refused = Some("it watches more than 1024 descriptors");
        } else {
            noted.watches[noted.count] = watch;
            noted.count += 1;
        }
        Some(())
    });
    match read.err().or(refused) {
        None => Ok(()),
        Some(why) => Err(Refusal::new(why, entry.fd)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_watch_is_understood() {
        let (watch, inode) = parse_watch(
            9,
            "       3 events:       19 data:               ff  pos:0 ino:414 sdev:10",
        )
        .unwrap();
        assert_eq!(
            (watch.epoll, watch.fd, watch.events, watch.data, inode),
            (9, 3, 0x19, 0xff, 0x414)
        );
    }
}

//! A bar on the terminal about a command's work that takes some time.

use std::io::{self, IsTerminal};

use resurgo_runtime::progress::Bar;
use resurgo_runtime::units::readable_size;
use resurgo_wire::console::Progress;

/// Standard error is a terminal that can move what it shows.
pub fn is_seen() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A bar, until it is dropped.
pub fn bar() -> Bar {
    Bar::new(is_seen())
}

/// Prints something, while the bar is away.
pub fn beside(bar: &Bar, print: impl FnOnce()) {
    let beside = bar.beside();
    let _turn = beside.turn();
    print();
}

/// So many bytes are done.
pub fn part(what: &str, done: u64, all: u64) -> Progress {
    let done = done.min(all);
    let [shown, of] = [done, all].map(readable_size);
    Progress {
        text: format!("{what}: {shown} of {of}"),
        done: Some((done, all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_at_most_all() {
        let Progress { text, done } = part("wave 1", 1 << 20, 4 << 20);
        assert_eq!(
            (&text[..], done),
            ("wave 1: 1.0 MiB of 4.0 MiB", Some((1 << 20, 4 << 20)))
        );
        assert_eq!(part("", 5, 4).done, Some((4, 4)));
    }
}

//! Words that may stand as the value of an option, for completion.

use resurgo_protocol::Protocol;
use resurgo_runtime::dispatcher::Launcher;
use resurgo_wire::node_memory::{CLOCK_SPREADS, REDUCTIONS};

use super::policy::POLICIES;
use super::table::Line;

const UNITS: [&str; 7] = ["none", "core", "socket", "numa", "hwthread", "machine", "rr"];

/// By the name of an option, some of the words that it takes, if they are few. It may take others, too.
const WORDS: &[(&str, &[&str])] = &[
    ("bind-to", &UNITS),
    ("map-by", &UNITS),
    ("launcher", &Launcher::NAMES),
    ("protocol", &Protocol::NAMES),
    ("ft-mode", &["shrink", "blank", "abort"]),
    ("preempt-signal", &["TERM", "INT", "HUP", "USR1", "USR2"]),
    ("checkpoint-every", &["daly"]),
    ("checkpoint-policy", POLICIES),
    ("checkpoint-signal", &["USR1", "USR2", "none"]),
    ("checkpoint-compress", &["zstd"]),
    ("local-copies", &["on", "off"]),
    ("time-limit", &["slurm"]),
    ("groups", &["static", "dynamic"]),
    ("tolerate", &["process", "node"]),
    ("reduction", &REDUCTIONS),
    ("clock-spread", &CLOCK_SPREADS),
];

/// The words for this option; none if its values are numbers, names or files.
pub fn of(line: &Line) -> &'static [&'static str] {
    let known = WORDS.iter().find(|(name, _)| line.is(name));
    known.map_or(&[], |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::super::table::{self, Does};
    use super::*;

    #[test]
    fn options_take_their_words() {
        for (name, words) in WORDS {
            let line = table::find(name).unwrap();
            let Does::Job(set) = line.does else { panic!("{name}") };
            for word in *words {
                let mut options = super::super::read::defaults().unwrap();
                assert_eq!(set(&mut options, word), Ok(()), "{name} {word}");
            }
        }
    }
}

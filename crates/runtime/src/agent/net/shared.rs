//! What the agent and its mover say to each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::EventFd;
use resurgo_protocol::Fact;
use resurgo_wire::image::Datagram;

use super::mapped::Mapped;

/// What the mover is told.
#[derive(Debug, Clone, Copy)]
pub enum Command {
    Oldest(u32),
    /// An image of this rank has its cursors in this slot.
    Image(u32, u8),
    CutOff(u32),
    Flush(u64),
    Epoch(u64),
    Stop,
}

/// What it has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All other nodes have what ranks here had rung for when this was asked for.
    Flushed(u64),
    /// Messages cannot be moved any more.
    Failed(String),
}

/// What the agent and its mover share.
pub struct Shared {
    pub memory: Arc<Mapped>,
    /// Who holds it has the node memory alone, but for ranks.
    pub held: Mutex<()>,
    pub commands: Mutex<Vec<Command>>,
    pub answers: Mutex<Vec<Answer>>,
    /// Wakes the mover: ranks have it as [`resurgo_wire::node_memory::NET_FD`].
    pub bell: Arc<EventFd>,
    /// Wakes the agent.
    pub told: EventFd,
}

impl Shared {
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self, command: Command) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push(command);
        drop(commands);
        // It fails when there are too many, and then it is awake.
        let _ = self.bell.write(1);
    }

    /// What the agent has said since the last time.
    pub fn commands(&self) -> Vec<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut commands)
    }

    pub fn answer(&self, answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answer);
        drop(answers);
        let _ = self.told.write(1);
    }
}

/// What becomes known when other nodes have what it is about, and the flush that it waits for.
pub struct HeldBack {
    pub flush: u64,
    pub what: Held,
}

pub enum Held {
    /// What this life of a rank has said.
    Said {
        rank: usize,
        life: u64,
        said: Box<Datagram>,
    },
    Fact(Fact),
}

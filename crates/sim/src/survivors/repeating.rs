//! A rank that recovers by itself, before its failure is told: a later life repeats what former ones did.
//!
//! Messages are no matter here: the other settings are about them. The life has the state of the former one when it has
//! said again all that those wanted, and found each verdict at the same look. Until then it must hear of no failure.

use resurgo_protocol::survivors::{Verdict, Wish};

/// What a rank wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub wish: Wish,
    /// The look that found the verdict, and the verdict.
    pub found: Option<(u64, Verdict)>,
}

/// The answer to a life that may repeat a wish.
#[derive(Debug, Clone, Copy)]
pub struct Repeated {
    pub ticket: u32,
    pub is_known: bool,
    pub look: Option<u64>,
}

/// How far a life has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replay {
    /// Of all that former lives wanted.
    pub said: usize,
    pub has_asked: bool,
    pub due: Option<u64>,
}

/// All lives of a rank.
#[derive(Debug, Clone, Default)]
pub struct Lives {
    pub wanted: Vec<Wanted>,
    pub looks: u64,
    pub repeated: Option<Repeated>,
    pub replay: Option<Replay>,
    /// It has repeated its messages, and it has said so.
    pub is_live: bool,
    pub has_told: bool,
}

impl Lives {
    /// The present life repeats what former ones did.
    pub fn repeats(&self) -> bool {
        self.replay.is_some()
    }

    pub fn next_ticket(&self) -> u32 {
        self.wanted.len() as u32
    }

    pub fn wants(&mut self, wish: Wish) {
        self.wanted.push(Wanted { wish, found: None });
        self.looks = 0;
    }
}

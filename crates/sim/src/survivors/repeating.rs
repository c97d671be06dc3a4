//! A rank that recovers by itself, before its failure is told: a later life repeats what former ones did.
//!
//! Messages are no matter here: the other settings are about them. The life has the state of the former one when it has
//! said again all that those wanted, and found each verdict at the same look. Until then it must hear of no failure.

use resurgo_protocol::Rank;
use resurgo_protocol::survivors::{Said, Verdict, Wish};

use super::{AGREED, Down, Up, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

const SAME: &str = "a later life repeats what former ones did";

/// What a rank wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    wish: Wish,
    /// The look that found the verdict, and the verdict.
    found: Option<(u64, Verdict)>,
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
struct Replay {
    /// Of all that former lives wanted.
    said: usize,
    has_asked: bool,
    due: Option<u64>,
}

/// All lives of a rank.
#[derive(Debug, Clone, Default)]
pub struct Lives {
    wanted: Vec<Wanted>,
    looks: u64,
    pub repeated: Option<Repeated>,
    replay: Option<Replay>,
    has_told: bool,
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

impl World {
    /// A later life begins.
    pub(super) fn begins_again(&mut self, rank: Rank) -> Result<(), Violation> {
        self.note(|| format!("{rank} begins again"));
        if self.place_of(rank).news != self.ranks[rank as usize].heard {
            return violation(SAME, format!("{rank} begins again after failures were told"));
        }
        let process = &mut self.ranks[rank as usize];
        process.is_alive = true;
        process.verdict = None;
        let lives = &mut process.lives;
        (lives.looks, lives.repeated, lives.has_told) = (0, None, false);
        lives.replay = Some(Replay::default());
        self.report.from_images += 1;
        if self.is(Mutation::CaughtUpEarly) {
            self.tells_caught_up(rank);
        }
        self.soon(20, super::Event::Turn(rank));
        Ok(())
    }

    fn tells_caught_up(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.ranks[rank as usize].lives.has_told, true) {
            self.send_up(self.node_of[rank as usize], Up::Replayed(rank));
        }
    }

    /// The life goes on as its former ones did.
    pub(super) fn goes_on_as_before(&mut self, rank: Rank) -> Result<(), Violation> {
        let Some(mut replay) = self.ranks[rank as usize].lives.replay else {
            return Ok(());
        };
        // Once all is said again, nobody has seen what former lives did after that: only that they found a verdict.
        let left = self.ranks[rank as usize].lives.wanted.len() - replay.said;
        let has_said_all = left == 0 || left == 1 && replay.has_asked;
        if !has_said_all && self.place_of(rank).news != self.ranks[rank as usize].heard {
            return violation(
                SAME,
                format!("{rank} can hear of a failure that its former lives had not heard of"),
            );
        }
        // Its messages may be repeated before the last of what it wants.
        let is_early = self.random.one_in(8) && replay.said + 1 >= self.ranks[rank as usize].lives.wanted.len();
        if is_early {
            self.tells_caught_up(rank);
        }
        let lives = &self.ranks[rank as usize].lives;
        let Some(wanted) = lives.wanted.get(replay.said).cloned() else {
            self.ranks[rank as usize].lives.replay = None;
            self.tells_caught_up(rank);
            return Ok(());
        };
        let ticket = wanted.wish.ticket;
        if self.is(Mutation::WantAgain) {
            self.say(rank, Said::Wants(wanted.wish));
            replay.said += 1;
        } else if !std::mem::replace(&mut replay.has_asked, true) {
            self.say(rank, Said::Repeats { ticket });
        } else if let Some(repeated) = self.ranks[rank as usize].lives.repeated.take() {
            if (repeated.ticket, repeated.is_known) != (ticket, true) {
                return violation(SAME, format!("{rank} asks for {ticket}, and hears {repeated:?}"));
            }
            let look = wanted.found.as_ref().map(|(look, _)| *look);
            if repeated.look != look {
                return violation(SAME, format!("{rank} had {ticket} at look {look:?}, now {repeated:?}"));
            }
            replay.due = look;
            self.ranks[rank as usize].lives.looks = 0;
            if look.is_none() {
                replay = Replay {
                    said: replay.said + 1,
                    ..Replay::default()
                };
            }
        } else if let Some(due) = replay.due {
            let process = &mut self.ranks[rank as usize];
            process.lives.looks = due.min(process.lives.looks + 1);
            if process.lives.looks == due
                && let Some(verdict) = process.verdict.take()
            {
                if Some(&verdict) != wanted.found.as_ref().map(|(_, verdict)| verdict) {
                    return violation(AGREED, format!("{rank} had {:?}, and now {verdict:?}", wanted.found));
                }
                replay = Replay {
                    said: replay.said + 1,
                    ..Replay::default()
                };
            }
        }
        self.ranks[rank as usize].lives.replay = Some(replay);
        Ok(())
    }

    /// A rank looks for a verdict.
    pub(super) fn looks(&mut self, rank: Rank) -> Option<Verdict> {
        let process = &mut self.ranks[rank as usize];
        let lives = &mut process.lives;
        lives.looks += 1;
        let verdict = process.verdict.take()?;
        let look = lives.looks;
        let last = lives.wanted.last_mut()?;
        last.found = Some((look, verdict.clone()));
        let ticket = last.wish.ticket;
        if self.recovers && !self.is(Mutation::TookUnsaid) {
            self.say(rank, Said::Took { ticket, look });
        }
        Some(verdict)
    }

    pub(super) fn begin_life(&mut self, rank: Rank) {
        self.send_down(self.node_of[rank as usize], Down::Begin(rank));
    }
}

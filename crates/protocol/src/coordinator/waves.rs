//! Waves: images of all ranks of a unit, at one moment or while others go on, or of one group after the other.

use std::time::Duration;

use super::state::{Current, Found, LEAST, Process, patience_for};
use super::{Command, Complete, Coordinator, Manner, State, Why};
use crate::group::Turn;
use crate::group::formation::Formed;
use crate::{Rank, Step, Wave};

impl Coordinator {
    /// Asks every rank of a unit to stop for a wave, if all can.
    pub(super) fn begin_wave(&mut self, unit: usize, found: &[Found], now: Duration) {
        let states: Vec<State> = found.iter().map(|found| found.state).collect();
        if let Some((rank, why)) = self.obstacle(unit, &states) {
            return self.tell(Command::Dropped { rank, why });
        }
        let held = found.iter().map(|found| found.held).sum();
        let this = &mut self.units[unit];
        this.asked += 1;
        let (number, size) = (this.asked, this.members.len());
        self.tell(Command::Waves {
            asked: number,
            over: number - 1,
        });
        let mut is_global = false;
        let wave = if self.is_passing() {
            Wave::non_blocking(number, size)
        } else if self.is_in_groups() {
            let sent = |one: usize, other: usize| found[one].sent.get(other).copied().unwrap_or(0);
            let between = |one: usize, other: usize| sent(one, other) + sent(other, one);
            let (groups, formed) = self.plan.groups.form(size, between);
            is_global = formed == Some(Formed::CommunicationIsGlobal);
            self.tell(Command::Groups(groups.clone()));
            Wave::in_groups(number, groups)
        } else {
            Wave::new(number, size)
        };
        self.units[unit].current = Some(Current {
            wave,
            is_global,
            began: now,
            heard: now,
            patience: patience_for(held),
            longest: Duration::ZERO,
            all: Duration::ZERO,
        });
        self.ask_in_turn(unit);
        self.let_ends_pass(unit, now);
    }

    /// Ranks that have finished stand still, hold nothing back, and are copied already.
    fn let_ends_pass(&mut self, unit: usize, now: Duration) {
        for rank in self.units[unit].members.clone() {
            if !self.is_over(rank) {
                continue;
            }
            let place = self.units[unit].place(rank);
            let current = self.units[unit].current.as_mut();
            if let Some(step) = current.and_then(|current| current.wave.passes(place)) {
                self.take_step(rank, step, now);
            }
        }
    }

    /// Why no wave of the unit is possible now, and the rank that prevents it.
    fn obstacle(&self, unit: usize, states: &[State]) -> Option<(Rank, Why)> {
        let this = &self.units[unit];
        let of = |rank: Rank| &self.ranks[rank as usize];
        let mut members = this.members.iter().copied();
        let is_recorded = this.writing.is_some() || states.contains(&State::Writing);
        let writes = |rank: &Rank| is_recorded || of(*rank).images.writing.is_some();
        if let Some(rank) = members.clone().find(writes) {
            return Some((rank, Why::Writing));
        }
        let filling = states.iter().position(|state| *state == State::Filling);
        if let Some(place) = filling {
            return Some((this.members[place], Why::Filling));
        }
        if this.current.is_some() || this.returning.is_some() || self.is_halted {
            return Some((this.members[0], Why::Absent));
        }
        members.find_map(|rank| {
            let why = match states[this.place(rank) as usize] {
                _ if self.is_over(rank) => return None,
                _ if of(rank).process != Process::Known => Why::NotRunning,
                _ if of(rank).images.taking.is_some() => Why::Taking,
                State::NotOpened => Why::NotOpened,
                State::Closed => Why::Closed,
                State::Repeats => Why::Repeats,
                State::Live | State::Behind | State::Filling | State::Writing => return None,
            };
            Some((rank, why))
        })
    }

    /// Asks the ranks whose turn it is for their images, and has all others hold back messages that must not pass.
    fn ask_in_turn(&mut self, unit: usize) {
        let Some(Current { wave, .. }) = &self.units[unit].current else {
            return;
        };
        let turn = Turn {
            wave: wave.number(),
            group: wave.turn(),
        };
        let manner = match self.is_passing() {
            true => Manner::Passing,
            false => Manner::Together,
        };
        let places = 0..self.units[unit].members.len() as Rank;
        let in_turn: Vec<bool> = places.map(|place| wave.is_in_turn(place)).collect();
        if self.is_in_groups() {
            self.tell(Command::Turn(turn));
        }
        let until = self.units[unit].silent_at();
        for (place, in_turn) in in_turn.into_iter().enumerate() {
            let rank = self.units[unit].members[place];
            if self.is_over(rank) {
                continue;
            }
            if in_turn {
                let images = self.images(rank);
                images.asked = turn.wave;
                images.taking = Some(until);
                self.tell(Command::Ask {
                    rank,
                    number: turn.wave,
                    manner,
                });
            } else {
                self.tell(Command::Notice { rank, turn });
            }
        }
    }

    /// The wave under way in the unit of `rank`, if that is wave `number`: a rank has reported on it.
    fn current(&mut self, rank: Rank, number: u64, now: Duration) -> Option<(u32, &mut Wave)> {
        let unit = self.unit(rank);
        let place = self.units[unit].place(rank);
        let current = self.units[unit].current.as_mut();
        let current = current.filter(|current| current.wave.number() == number)?;
        current.heard = now;
        Some((place, &mut current.wave))
    }

    pub(super) fn stopped(&mut self, rank: Rank, number: u64, accounted: bool, now: Duration) {
        let images = self.images(rank);
        if images.taking.is_none() || images.asked != number {
            return;
        }
        if !self.has_waves() {
            return self.stopped_alone(rank, number, accounted);
        }
        let is_passing = self.is_passing();
        let Some((place, wave)) = self.current(rank, number, now) else {
            return;
        };
        if !accounted {
            return self.drop_wave(rank, Why::Talking);
        }
        if is_passing {
            return self.tell(Command::Copy { rank, number });
        }
        let step = wave.stopped(place);
        self.take_step(rank, step, now);
    }

    pub(super) fn noticed(&mut self, rank: Rank, turn: Turn, now: Duration) {
        let Some((place, wave)) = self.current(rank, turn.wave, now) else {
            return;
        };
        if wave.turn() == turn.group {
            let step = wave.stopped(place);
            self.take_step(rank, step, now);
        }
    }

    pub(super) fn drained(&mut self, rank: Rank, number: u64, moved: u64, now: Duration) {
        if let Some((place, wave)) = self.current(rank, number, now) {
            let step = wave.drained(place, moved);
            self.take_step(rank, step, now);
        }
    }

    pub(super) fn copied(&mut self, rank: Rank, number: u64, sleeps: bool, stood: Duration, now: Duration) {
        let images = self.images(rank);
        if images.taking.is_none() || images.asked != number {
            // No wave waits for it any more.
            return self.tell(Command::EndCopy { rank, number });
        }
        if !self.has_waves() {
            return self.copied_alone(rank, number, sleeps, stood);
        }
        let images = self.images(rank);
        images.taking = None;
        images.candidate = Some(number);
        let Some((place, wave)) = self.current(rank, number, now) else {
            return;
        };
        let step = wave.copied(place);
        let unit = self.unit(rank);
        if let Some(current) = &mut self.units[unit].current {
            current.longest = current.longest.max(stood);
            current.all += stood;
        }
        self.take_step(rank, step, now);
    }

    pub(super) fn refused(&mut self, rank: Rank, number: u64, reason: String) {
        if self.has_waves() {
            let current = self.units[self.unit(rank)].current.as_ref();
            if current.is_some_and(|current| current.wave.number() == number) {
                self.drop_wave(rank, Why::Said(reason));
            }
        } else if self.images(rank).asked == number {
            self.end_taking(rank, Why::Said(reason));
        }
    }

    fn take_step(&mut self, rank: Rank, step: Step, now: Duration) {
        let unit = self.unit(rank);
        let Some(Current { wave, .. }) = &self.units[unit].current else {
            return;
        };
        let number = wave.number();
        let members = self.units[unit].members.iter().zip(0..);
        let in_turn: Vec<Rank> = members
            .filter(|(_, place)| wave.is_in_turn(*place))
            .map(|(rank, _)| *rank)
            .collect();
        let in_turn = in_turn.into_iter().filter(|rank| !self.is_over(*rank));
        let in_turn: Vec<Rank> = in_turn.collect();
        match step {
            Step::Drain => in_turn
                .into_iter()
                .for_each(|rank| self.tell(Command::Drain { rank, number })),
            Step::Copy => in_turn
                .into_iter()
                .for_each(|rank| self.tell(Command::Copy { rank, number })),
            Step::Turn => self.ask_in_turn(unit),
            Step::Complete if self.is_passing() => return self.tell(Command::TakeTransit { number }),
            Step::Complete => return self.complete(unit, now),
            Step::Wait | Step::Drop => return,
        }
        self.let_ends_pass(unit, now);
    }

    /// The transit of wave `number` is known: it was just taken, or read.
    pub(super) fn transit_known(&mut self, number: u64, now: Duration) {
        self.transit.insert(number);
        if self.units[0].reading.take_if(|reading| *reading == number).is_some() {
            // An image of it may be lost by now.
            return self.choose_wave(0);
        }
        let is_copied =
            |rank: &Rank| self.ranks[*rank as usize].images.candidate == Some(number) || self.has_end(*rank, number);
        if self.units[0].current.is_some() && self.units[0].members.iter().all(is_copied) {
            self.tell(Command::Waves {
                asked: number,
                over: number,
            });
            self.complete(0, now);
        }
    }

    pub(super) fn transit_lost(&mut self, number: u64, reason: String) {
        if self.units[0].reading.take_if(|reading| *reading == number).is_some() {
            self.transit_files.remove(&number);
            self.is_bad_beyond(number);
            self.tell(Command::ImageLost {
                rank: 0,
                number,
                reason,
            });
            self.collect_files(0, |file| file >= number);
            self.forget_copies(0, |copy| copy < number);
            return self.choose_wave(0);
        }
        let current = self.units[0].current.as_ref();
        if current.is_some_and(|current| current.wave.number() == number) {
            self.drop_wave(self.units[0].members[0], Why::Said(reason));
        }
    }

    /// Every rank is copied: the wave before is not needed any more.
    fn complete(&mut self, unit: usize, now: Duration) {
        let Some(current) = self.units[unit].current.take() else {
            return;
        };
        let (number, groups) = (current.wave.number(), current.wave.groups().clone());
        self.end_turns(number);
        for rank in self.units[unit].members.clone() {
            if let Some(copy) = self.images(rank).candidate.take() {
                self.keep_copy(rank, copy);
            } else {
                self.keep_end(rank, number);
            }
        }
        if self.is_passing() {
            self.transit.retain(|wave| *wave >= number);
            self.tell(Command::ForgetTransit { before: number });
        }
        self.tell(Command::Complete(Complete {
            unit,
            number,
            total: now.saturating_sub(current.began),
            longest: current.longest,
            all: current.all,
            groups: groups.clone(),
            is_global: current.is_global,
        }));
        if self.plan.files {
            self.write_wave(unit, number, groups);
        }
        self.leave_with_wave(unit);
    }

    /// All messages may pass again.
    fn end_turns(&mut self, wave: u64) {
        if self.is_in_groups() {
            self.tell(Command::Turn(Turn { wave, group: 0 }));
        }
    }

    /// The current wave of the unit of `rank`, if there is one, cannot become complete because of `rank`.
    pub(super) fn drop_wave(&mut self, rank: Rank, why: Why) {
        let unit = self.unit(rank);
        let Some(mut current) = self.units[unit].current.take() else {
            return;
        };
        current.wave.failed();
        let number = current.wave.number();
        let members = self.units[unit].members.clone();
        self.withdraw(&members, number);
        self.end_turns(number);
        self.tell(Command::Waves {
            asked: number,
            over: number,
        });
        for rank in &members {
            self.tell(Command::Abandon { rank: *rank, number });
            let images = self.images(*rank);
            images.taking = None;
            if let Some(number) = images.candidate.take() {
                self.tell(Command::EndCopy { rank: *rank, number });
            }
        }
        self.tell(Command::Dropped { rank, why });
    }

    /// Withdraws queued commands to ranks about wave `number`.
    fn withdraw(&mut self, members: &[Rank], number: u64) {
        self.commands.retain(|command| match command {
            Command::Ask { rank, number: of, .. }
            | Command::Drain { rank, number: of }
            | Command::Copy { rank, number: of } => *of != number || !members.contains(rank),
            Command::Notice { turn, .. } => turn.wave != number,
            Command::TakeTransit { number: of } => *of != number,
            _ => true,
        });
    }

    /// Gives up images about which ranks were silent for long. Later reports come too late.
    pub(super) fn mind_silence(&mut self, now: Duration) {
        for unit in 0..self.units.len() {
            let this = &self.units[unit];
            let Some(current) = this.current.as_ref().filter(|_| this.silent_at() <= now) else {
                continue;
            };
            let place = current.wave.awaited().unwrap_or(0);
            let (rank, patience) = (this.members[place as usize], current.patience);
            self.drop_wave(rank, Why::Silent(patience));
        }
        for rank in 0..self.ranks.len() as Rank {
            if self.has_waves() || self.images(rank).taking.is_none_or(|until| until > now) {
                continue;
            }
            let number = self.images(rank).asked;
            self.tell(Command::Abandon { rank, number });
            self.end_taking(rank, Why::Silent(LEAST));
        }
    }

    /// The copy of `rank` is gone, and with it wave `number` if the rank has no file of it.
    pub(super) fn wave_lost(&mut self, rank: Rank, number: u64) {
        let unit = self.unit(rank);
        if self.units[unit].returning.is_some() || self.images(rank).has_file(number) {
            return;
        }
        // But not the ranks' work for the next one.
        self.give_up_turns(unit, "the process that was to write it has ended");
        for rank in self.units[unit].members.clone() {
            if let Some(copy) = self.images(rank).copy.take() {
                self.tell(Command::EndCopy { rank, number: copy });
                if self.images(rank).writing == Some(copy) {
                    self.not_written(rank, copy, "the process that wrote it has ended".to_string());
                }
            }
        }
    }
}

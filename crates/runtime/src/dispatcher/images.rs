//! Requests for images, of single ranks or of all at one moment, and answers to waiting clients.

use std::time::{Duration, Instant};

use resurgo_protocol::Fact;
use resurgo_protocol::checkpoints::Outcome;
use resurgo_protocol::coordinator::{Complete, Why};
use resurgo_protocol::group::Groups;
use resurgo_protocol::kinds;
use resurgo_wire::console::Reply;
use resurgo_wire::control::{Ended, ToAgent};
use resurgo_wire::replica::{Offer, What};

use super::events::{Event, ImageCopy};
use super::refusals::Lasts;
use super::{Dispatcher, leaving, suspend};

impl Dispatcher {
    /// Asks for the images that are due.
    pub(super) fn checkpoint(&mut self) {
        if self.verdict.is_some() || self.suspension.has_halted() {
            return;
        }
        if let Some((every, share)) = self.checkpoints.begins_to_hold_back() {
            self.bus.tell(Event::ImagesHeldBack { share, every });
        }
        let over = &mut self.images.refusals.over;
        if let Some((rank, _)) = over.take_if(|(_, due)| *due <= Instant::now()) {
            self.bus.tell(Event::WavesOver { rank });
        }
        let runs = self.runs();
        if self.checkpoints.wants_logs(self.start.elapsed()) {
            self.tell(ToAgent::MeasureLogs);
        }
        if let Some(rank) = self.checkpoints.next(self.start.elapsed(), runs) {
            if !self.has_waves() {
                self.bus.tell(Event::ImageAsked { rank });
            }
            self.coordinate(Fact::Wanted { unit: rank });
        }
    }

    /// Once all nodes have measured their ranks' logs, the dispatcher knows which rank's is largest.
    pub(super) fn mind_measured(&mut self) {
        let of_rank = self.nodes_of_ranks();
        if let Some(bytes) = self.agents.measured(&of_rank) {
            self.checkpoints.logs_are(bytes);
        }
    }

    /// Images of all ranks now; `client` is told when they are there.
    pub(super) fn want_images(&mut self, client: Option<u64>) {
        let now = self.start.elapsed();
        let ranks = 0..self.pids.len();
        if !self.has_waves() {
            let wanted = ranks.filter(|rank| !self.policy.has_finished(*rank));
            self.checkpoints.want(wanted, client, now);
            return;
        }
        for unit in 0..self.coordinator.units() {
            let members = self.members(unit);
            let mut gone = members.iter().filter(|rank| self.policy.has_finished(**rank));
            match gone.next() {
                // A finished group's messages and images are not needed any more.
                Some(_) if self.is_hierarchical() && gone.count() + 1 == members.len() => {}
                Some(rank) if !self.ends_count() => {
                    self.checkpoints.want(std::iter::once(unit), None, now);
                    self.checkpoints.give_up(unit, &finished(*rank));
                }
                _ => self.checkpoints.want(std::iter::once(unit), None, now),
            }
        }
        self.checkpoints.want(std::iter::empty(), client, now);
    }

    /// A rank that has finished is part of later waves.
    pub(super) fn ends_count(&self) -> bool {
        self.has_waves() && self.coordinator.plan().ends_count
    }

    /// All nodes see the file, which `node` has told: the others must know it.
    pub(super) fn share(&mut self, node: usize, offer: Offer) {
        if let What::Image { rank, number } = offer.what {
            let oldest = self.coordinator.oldest_image(rank).unwrap_or(number);
            self.images
                .shared
                .retain(|(of, known), _| *of != rank || *known >= oldest);
            self.images.shared.insert((rank, number), offer.clone());
        }
        self.agents.tell_others(node, &ToAgent::Shared(offer));
    }

    pub(super) fn tell_who_waits_for_images(&mut self) {
        let Some(outcome) = self.checkpoints.finished() else {
            return;
        };
        if outcome.clients.contains(&suspend::CLIENT) {
            self.images_for_suspension(&outcome);
        }
        if outcome.clients.contains(&leaving::CLIENT) {
            let failed = outcome.failed.first().map(|(_, why)| why.to_string());
            self.images_for_leaving(failed.as_deref());
        }
        let Outcome { clients, failed } = outcome;
        let reply = match failed.first() {
            None if self.is_hierarchical() => Reply::Done("a wave of every group is complete".to_string()),
            None if self.has_waves() => Reply::Done("a wave is complete".to_string()),
            None => Reply::Done("every rank has a new image".to_string()),
            Some((_, why)) if self.has_waves() => Reply::Refused(format!("no wave can be taken: {why}")),
            Some((_, why)) => Reply::Refused(format!("no image can be taken: {why}")),
        };
        for client in clients {
            self.front.console.answer(client, &reply);
        }
    }

    /// Ranks take images together, in waves.
    pub(super) fn has_waves(&self) -> bool {
        self.coordinator.has_waves()
    }

    /// Gives up waves for this reason: from now on each rank takes images alone. Where ranks cannot recover alone,
    /// nothing changes.
    pub(super) fn only_logs(&mut self, why: &str) {
        let Some(left) = self.coordinator.without_waves() else {
            return;
        };
        self.policy.goes_on_with(left);
        self.checkpoints.give_up(0, why);
        self.checkpoints.grow(self.pids.len(), self.start.elapsed());
        self.coordinate(Fact::OnlyLogs);
    }

    /// A rank cannot recover alone. Where waves were given up, all ranks begin again from the beginning: images of
    /// single ranks are of no use for a return of all. Not with spawned ranks, nor in a resumed job.
    pub(super) fn have_waves_again(&mut self) {
        let former = self.coordinator.protocol().with_waves();
        let Some(former) = former.filter(|_| self.coordinator.may_begin_again()) else {
            return;
        };
        self.images.refusals.ended_waves = None;
        self.policy.goes_on_with(former);
        for rank in 0..self.pids.len() {
            self.checkpoints.give_up(rank, "all ranks begin again");
        }
        self.checkpoints.grow(self.coordinator.units(), self.start.elapsed());
        self.coordinate(Fact::WavesAgain);
    }

    /// The rank for whose sake waves were given up can have images: there are waves again, and ranks go on meanwhile.
    pub(super) fn take_waves_again(&mut self, rank: usize) {
        if self.images.refusals.ended_waves != Some(rank) {
            return;
        }
        self.images.refusals.ended_waves = None;
        self.waves_come(Fact::WavesBack);
        let finished = self.policy.has_finished(rank);
        self.bus.tell(Event::WavesBack { rank, finished });
    }

    /// Ranks run, and have waves from now on, by this fact.
    pub(super) fn waves_come(&mut self, by: Fact) {
        let Some(with_waves) = self.coordinator.protocol().with_waves() else {
            return;
        };
        self.policy.goes_on_with(with_waves);
        let (now, are_wanted) = (self.start.elapsed(), self.checkpoints.is_wanted());
        (0..self.pids.len()).for_each(|rank| self.checkpoints.left(rank));
        let units = self.coordinator.units();
        self.checkpoints.grow(units, now);
        if are_wanted {
            self.checkpoints.want(0..units, None, now);
        }
        self.coordinate(by);
        self.tell_ends();
    }

    /// Whether all ranks (of the unit) return to the last wave because of this failure. With logs they do so only once
    /// the program has shown that it does not repeat its work.
    pub(super) fn all_return(&mut self, ended: &Ended) -> bool {
        if self.is_hierarchical() || !self.has_waves() || !self.coordinator.protocol().logs() {
            return self.has_waves();
        }
        if !self.together && (ended.diverged() || !ended.repeats) {
            let why = match &ended.report {
                Some(report) => first_sentence(report),
                None => "MPI is called from several threads, and the order of their calls cannot be replayed",
            };
            self.all_return_from_now_on(ended.rank, why);
        }
        self.together
    }

    /// A rank could not recover alone, for this reason: from now on all ranks return together.
    pub(super) fn all_return_from_now_on(&mut self, rank: usize, why: &str) {
        self.together = true;
        self.bus.tell(Event::ReturnsTogether { rank, reason: why });
    }

    /// Returns all ranks (of its unit) to the last wave: `rank` has failed.
    pub(super) fn return_all(&mut self, rank: usize) {
        for rank in self.members(self.unit(rank)) {
            self.pids[rank] = None;
        }
        self.coordinate(Fact::Return { rank: rank as u32 });
    }

    /// The ranks of a unit have returned to this wave.
    pub(super) fn has_returned(&mut self, unit: usize, wave: u64) {
        let members = self.coordinator.members(unit).iter();
        let members: Vec<usize> = members.map(|rank| *rank as usize).collect();
        let mut again = members.clone();
        again.retain(|rank| !self.coordinator.has_finished(*rank as u32));
        self.policy.go_on(&again);
        match self.is_hierarchical() {
            true => self.bus.tell(Event::Returned {
                wave,
                ranks: Some(&members),
                lost: None,
            }),
            false => self.bus.returned(wave, Instant::now()),
        }
        if self.coordinator.has_waves_to_suspend() && !self.suspension.is_under_way() {
            self.only_logs("the job has been resumed from a wave, and has no others");
        }
    }

    /// An image of `rank` alone is there.
    pub(super) fn checkpointed(&mut self, rank: usize, number: u64, stall: Duration, is_snapshot: bool) {
        self.checkpoints.answered(rank, self.start.elapsed(), Ok(stall));
        if self.images.are_written {
            self.checkpoints.begin_writing(rank);
        }
        self.suspension.image_taken(rank);
        self.images.refusals.taken(rank);
        self.images.scarce.remove(&rank);
        self.images.unusable.remove(&rank);
        self.bus.tell(Event::Checkpointed {
            rank,
            image: number,
            stall,
            copy: match is_snapshot {
                true => ImageCopy::Forked,
                false => ImageCopy::WarmBuffer,
            },
        });
        self.take_waves_again(rank);
    }

    /// All ranks of a unit can return to a new wave.
    pub(super) fn wave_complete(&mut self, wave: &Complete) {
        self.checkpoints
            .answered(wave.unit, self.start.elapsed(), Ok(wave.total));
        let members = self.members(wave.unit);
        members.iter().for_each(|rank| self.images.refusals.taken(*rank));
        self.images.scarce.clear();
        let in_groups = self.coordinator.protocol().waves() == kinds::Waves::GroupByGroup;
        self.bus.tell(Event::WaveComplete {
            wave: wave.number,
            total: wave.total,
            longest: wave.longest,
            mean: wave.all / members.len() as u32,
            groups: in_groups.then(|| ranks_of(&wave.groups)),
            communication_is_global: in_groups.then_some(wave.is_global),
            ranks: self.is_hierarchical().then_some(&members),
        });
        self.wave_for_suspension(&members, wave.number);
    }

    /// There is no new image of `rank`, or no wave because of it; earlier ones stay valid.
    pub(super) fn not_checkpointed(&mut self, rank: usize, why: &Why) {
        let now = Instant::now();
        let unit = self.unit(rank);
        let lasts = Lasts::of(why);
        let reason = why.to_string();
        let reason = reason.as_str();
        let why = format!("rank {rank}: {reason}");
        let is_expected = self.checkpoints.is_expected(unit);
        let asked = self.checkpoints.asked_at(unit).map_or(now, |at| self.start + at);
        self.checkpoints.answered(unit, self.start.elapsed(), Err(&why));
        self.images.refusals.note(unit, lasts == Lasts::InPassing);
        let refused = self.images.refusals.refused(rank, lasts, is_expected, asked, now);
        self.bus.tell(Event::NotCheckpointed {
            rank,
            reason,
            is_news: refused.is_news,
        });
        let is_scarce = self.images.scarce.remove(&rank);
        let is_hopeless = refused.lasts || is_scarce && lasts == Lasts::ForGood;
        if is_hopeless && self.may_give_up_waves() {
            self.give_up_waves(rank, reason);
        } else if is_hopeless && is_scarce {
            self.let_logs_go(rank, first_sentence(reason));
        }
    }

    /// There are waves that the job can do without.
    fn may_give_up_waves(&self) -> bool {
        !self.together && self.coordinator.without_waves().is_some()
    }

    /// One rank must not keep all others without images. Who waits for a wave is told the whole reason, with its advice.
    fn give_up_waves(&mut self, rank: usize, reason: &str) {
        let is_of_suspension = self.coordinator.has_waves_to_suspend();
        self.only_logs(&format!("rank {rank}: {reason}"));
        if is_of_suspension {
            return;
        }
        self.images.refusals.ended_waves = Some(rank);
        let (nodes, reason) = (self.plan.is_some(), first_sentence(reason));
        self.bus.tell(Event::WavesGivenUp { rank, reason, nodes });
    }

    /// A log is full. If waves ended with a rank, the others take images alone, for which logs can forget.
    pub(super) fn mind_full_log(&mut self) {
        if self.ends_count() || !self.may_give_up_waves() {
            return;
        }
        let finished = (0..self.pids.len()).find(|rank| self.policy.has_finished(*rank));
        if let Some(rank) = finished.filter(|rank| !self.returns(*rank)) {
            self.give_up_waves(rank, "it has finished");
        }
    }

    /// A log is full, and will not forget: `rank` has no images. The logs keep nothing more for it; where all ranks
    /// have their images together, for none.
    fn let_logs_go(&mut self, rank: usize, reason: &str) {
        let ranks = match self.has_waves() {
            true => self.members(self.unit(rank)),
            false => vec![rank],
        };
        for one in ranks {
            if !self.coordinator.may_let_go(one as u32) {
                continue;
            }
            if self.images.let_go.is_empty() {
                self.bus.tell(Event::LogsLetGo { rank, reason });
            }
            self.images.let_go.insert(one);
            self.coordinate(Fact::LetGo { rank: one as u32 });
        }
    }

    /// Each group of ranks has waves of its own, and returns alone.
    pub(super) fn is_hierarchical(&self) -> bool {
        self.coordinator.is_hierarchical()
    }

    /// The number of `rank` in [`Checkpoints`]: with waves the job, or its group, is one unit.
    pub(super) fn unit(&self, rank: usize) -> usize {
        match self.has_waves() {
            true => self.coordinator.unit(rank as u32),
            false => rank,
        }
    }

    /// The ranks of a unit of [`Checkpoints`].
    pub(super) fn members(&self, unit: usize) -> Vec<usize> {
        match self.has_waves() {
            true => {
                let members = self.coordinator.members(unit).iter();
                members.map(|rank| *rank as usize).collect()
            }
            false => vec![unit],
        }
    }

    /// The unit of `rank` is returning to a wave.
    pub(super) fn returns(&self, rank: usize) -> bool {
        self.has_waves() && self.coordinator.is_returning(rank as u32)
    }

    /// Which units of [`Checkpoints`] can have an image: single ranks, groups, or the job.
    pub(super) fn runs(&self) -> impl Fn(usize) -> bool + use<> {
        let mut runs = vec![true; self.pids.len()];
        let is_over = |rank: usize| self.ends_count() && self.policy.has_finished(rank);
        for (rank, pid) in self.pids.iter().enumerate() {
            runs[self.unit(rank)] &= (pid.is_some() || is_over(rank)) && !self.returns(rank);
        }
        move |unit| runs[unit]
    }
}

fn first_sentence(text: &str) -> &str {
    text.split(". ").next().unwrap_or_default()
}

/// The ranks of each group.
fn ranks_of(groups: &Groups) -> Vec<Vec<usize>> {
    let ranks = |group: u32| groups.members(group).map(|rank| rank as usize).collect();
    (1..=groups.count()).map(ranks).collect()
}

/// Why no wave is possible any more.
pub(super) fn finished(rank: usize) -> String {
    format!("rank {rank} has finished")
}

//! Asking for images, of single ranks or of all at one moment, and answering those who wait for them.

use std::time::{Duration, Instant};

use resurgo_protocol::kinds;
use resurgo_wire::console::Reply;
use resurgo_wire::control::{Ended, ToAgent};

use super::checkpoints::Outcome;
use super::events::Event;
use super::{Dispatcher, suspend};

const PROGRESS: Duration = Duration::from_secs(1);

impl Dispatcher {
    /// Asks for the images that are due.
    pub(super) fn checkpoint(&mut self) {
        if self.verdict.is_some() || self.suspension.has_halted() {
            return;
        }
        if let Some((every, share)) = self.checkpoints.begins_to_hold_back() {
            self.bus.tell(Event::ImagesHeldBack { share, every });
        }
        let runs = self.runs();
        if self.checkpoints.wants_logs(self.start.elapsed()) {
            self.tell(ToAgent::MeasureLogs);
        }
        if let Some(rank) = self.checkpoints.next(self.start.elapsed(), runs) {
            let request = if self.has_waves() {
                ToAgent::Wave { unit: rank }
            } else {
                self.bus.tell(Event::ImageAsked { rank });
                ToAgent::Checkpoint { rank }
            };
            self.tell(request);
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
        for unit in 0..self.waves.returning.len() {
            let members = self.members(unit);
            let mut gone = members.iter().filter(|rank| self.policy.has_finished(**rank));
            match gone.next() {
                // Of a group that has finished nobody needs anything.
                Some(_) if self.is_hierarchical() && gone.count() + 1 == members.len() => {}
                Some(rank) => {
                    self.checkpoints.want(std::iter::once(unit), None, now);
                    self.checkpoints.give_up(unit, &finished(*rank));
                }
                None => self.checkpoints.want(std::iter::once(unit), None, now),
            }
        }
        self.checkpoints.want(std::iter::empty(), client, now);
    }

    pub(super) fn tell_who_waits_for_images(&mut self) {
        let Some(outcome) = self.checkpoints.finished() else {
            return;
        };
        if outcome.clients.contains(&suspend::CLIENT) {
            self.images_for_suspension(&outcome);
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

    /// Tells those who wait how far it has come, once a second.
    pub(super) fn tell_progress(&mut self) {
        let waiting = self.checkpoints.waiting().iter().chain(self.suspension.clients());
        let clients: Vec<u64> = waiting.copied().filter(|client| *client != suspend::CLIENT).collect();
        let now = Instant::now();
        match self.front.progress_due {
            _ if clients.is_empty() => self.front.progress_due = None,
            None => self.front.progress_due = Some(now + PROGRESS),
            Some(due) if due > now => {}
            Some(_) => {
                self.front.progress_due = Some(now + PROGRESS);
                let text = match self.checkpoints.left_to_do() {
                    (0, _) => self.suspension.waits_for(),
                    (_, 0) if self.has_waves() => "a wave is being taken".to_string(),
                    (wanted, 0) => format!("{} to be taken", suspend::images(wanted)),
                    (wanted, writing) => format!("{} to be taken, {writing} being written", suspend::images(wanted)),
                };
                for client in clients {
                    self.front.console.answer(client, &Reply::Progress(text.clone()));
                }
            }
        }
    }

    /// Ranks have images together, in waves.
    pub(super) fn has_waves(&self) -> bool {
        self.waves.protocol.has_waves()
    }

    /// There are to be no more waves, for this reason: from now on ranks have images alone, as long as they recover alone. Where
    /// they do not, all stays as it is.
    pub(super) fn only_logs(&mut self, why: &str) {
        let Some(left) = self.waves.protocol.without_waves() else {
            return;
        };
        self.waves.may_begin_again = self.suspension.resumed_from.is_none();
        self.waves.protocol = left;
        self.policy.goes_on_with(left);
        self.checkpoints.give_up(0, why);
        self.checkpoints.grow(self.pids.len(), self.start.elapsed());
        self.tell(ToAgent::OnlyLogs);
    }

    /// A rank cannot recover alone. Where waves have been given up all begin again, as they would have done if no image had ever been
    /// asked for: images of single ranks are of no use for that. Not with ranks that were spawned, nor in a job that was resumed.
    pub(super) fn have_waves_again(&mut self) {
        let former = self.waves.protocol.with_waves_again();
        let Some(former) = former.filter(|_| std::mem::take(&mut self.waves.may_begin_again)) else {
            return;
        };
        self.waves.protocol = former;
        self.policy.goes_on_with(former);
        for rank in 0..self.pids.len() {
            self.checkpoints.give_up(rank, "all ranks begin again");
        }
        self.checkpoints.grow(self.waves.returning.len(), self.start.elapsed());
        self.tell(ToAgent::WavesAgain);
    }

    /// Whether all ranks (of the unit) return to the last wave because of this failure. Where there are logs that is only so when the
    /// program has turned out not to repeat what it does, from then on.
    pub(super) fn all_return(&mut self, ended: &Ended) -> bool {
        if self.is_hierarchical() || !self.has_waves() || !self.waves.protocol.logs() {
            return self.has_waves();
        }
        if !self.waves.together && (ended.diverged() || !ended.repeats) {
            let why = match &ended.report {
                Some(report) => report.split(". ").next().unwrap_or_default(),
                None => "MPI is called from several threads, and the order of their calls cannot be replayed",
            };
            self.all_return_from_now_on(ended.rank, why);
        }
        self.waves.together
    }

    /// A rank could not recover alone, for this reason: none tries to any more.
    pub(super) fn all_return_from_now_on(&mut self, rank: usize, why: &str) {
        self.waves.together = true;
        self.bus.tell(Event::ReturnsTogether { rank, reason: why });
    }

    /// All ranks (of its unit) return to the last wave, as `rank` has failed.
    pub(super) fn return_all(&mut self, rank: usize, fault_at_messages: u64) {
        let unit = self.unit(rank);
        self.waves.returning[unit] = true;
        for rank in self.members(unit) {
            self.pids[rank] = None;
        }
        self.tell(ToAgent::Return {
            rank,
            fault_at_messages,
        });
    }

    /// Each group of ranks has waves of its own, and returns alone.
    pub(super) fn is_hierarchical(&self) -> bool {
        self.waves.protocol.waves() == kinds::Waves::OfEachGroup
    }

    /// What [`Checkpoints`] knows `rank` as: with waves the job, or its group, is one.
    pub(super) fn unit(&self, rank: usize) -> usize {
        match (self.is_hierarchical(), self.has_waves()) {
            (true, _) => self.waves.units.of(rank as u32) as usize - 1,
            (false, true) => 0,
            (false, false) => rank,
        }
    }

    /// The ranks of what [`Checkpoints`] knows as one.
    pub(super) fn members(&self, unit: usize) -> Vec<usize> {
        (0..self.pids.len()).filter(|rank| self.unit(*rank) == unit).collect()
    }

    /// The unit of `rank` is being returned to a wave.
    pub(super) fn returns(&self, rank: usize) -> bool {
        self.has_waves() && self.waves.returning[self.unit(rank)]
    }

    /// Which of what [`Checkpoints`] knows can have an image: single ranks, groups, or the job.
    pub(super) fn runs(&self) -> impl Fn(usize) -> bool + use<> {
        let mut runs = vec![true; self.pids.len()];
        for (rank, pid) in self.pids.iter().enumerate() {
            runs[self.unit(rank)] &= pid.is_some() && !self.returns(rank);
        }
        move |unit| runs[unit]
    }
}

/// Why there can be no wave any more.
pub(super) fn finished(rank: usize) -> String {
    format!("rank {rank} has finished")
}

//! Before images are taken: asks for each rank's state, and how much it holds.

use std::collections::BTreeMap;
use std::time::Duration;

use super::state::{Found, Process, Survey};
use super::{Command, Coordinator, Why};
use crate::Rank;
use crate::group::formation::Grouping;

impl Coordinator {
    /// Images of a unit are requested. Where ranks take them alone it is a rank.
    pub(super) fn survey(&mut self, unit: usize) {
        let mut ranks = match self.has_waves() {
            true => self.units[unit].members.clone(),
            false => vec![unit as Rank],
        };
        if self.has_waves() && !ranks.iter().all(|rank| self.is_over(*rank)) {
            // Ends need not be asked.
            ranks.retain(|rank| !self.is_over(*rank));
        }
        // No wave begins before all ranks know of the one before: an answer comes from after that.
        if self.surveys.iter().any(|survey| survey.unit == unit) {
            let (rank, why) = (ranks[0], Why::Taking);
            return self.tell(Command::Dropped { rank, why });
        }
        // For a rank without a process there may be no one to answer.
        let is_away = |rank: &Rank| self.ranks[*rank as usize].process != Process::Known;
        if let Some(rank) = ranks.iter().copied().find(is_away) {
            let why = Why::NotRunning;
            return self.tell(Command::Dropped { rank, why });
        }
        self.surveyed += 1;
        let number = self.surveyed;
        self.surveys.push(Survey {
            number,
            unit,
            found: ranks.iter().map(|_| None).collect(),
            ranks: ranks.clone(),
        });
        let traffic = self.is_in_groups() && matches!(self.plan.groups, Grouping::Dynamic { .. });
        self.tell(Command::Survey { number, ranks, traffic });
    }

    /// The state of `rank`. When all have answered, asks for their images.
    pub(super) fn surveyed(&mut self, rank: Rank, number: u64, found: Found, now: Duration) {
        let Some(index) = self.surveys.iter().position(|survey| survey.number == number) else {
            return;
        };
        let survey = &mut self.surveys[index];
        if let Some(place) = survey.ranks.iter().position(|other| *other == rank) {
            survey.found[place] = Some(found);
        }
        if survey.found.iter().any(Option::is_none) {
            return;
        }
        let Survey { unit, ranks, found, .. } = self.surveys.swap_remove(index);
        let mut found = ranks.into_iter().zip(found.into_iter().flatten());
        if !self.has_waves() {
            if let Some((rank, found)) = found.next() {
                self.begin_image(rank, found.state, found.held, now);
            }
            return;
        }
        let mut found: BTreeMap<Rank, Found> = found.collect();
        let members = self.units[unit].members.iter();
        let of_members: Vec<Found> = members.map(|rank| found.remove(rank).unwrap_or_default()).collect();
        self.begin_wave(unit, &of_members, now);
    }

    /// There will be no images of a survey with ranks that are `meant`.
    pub(super) fn drop_surveys(&mut self, why: &Why, meant: impl Fn(Rank) -> bool) {
        let of_meant = |survey: &Survey| survey.ranks.iter().copied().find(|rank| meant(*rank));
        let (dropped, others) = std::mem::take(&mut self.surveys)
            .into_iter()
            .partition(|survey| of_meant(survey).is_some());
        self.surveys = others;
        let dropped: Vec<Survey> = dropped;
        for rank in dropped.iter().filter_map(of_meant) {
            let why = why.clone();
            self.tell(Command::Dropped { rank, why });
        }
    }
}

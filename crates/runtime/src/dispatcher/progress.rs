//! How far work has come that takes long: for clients that wait for it, and for the terminal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use resurgo_wire::console::{Progress, Reply};
use resurgo_wire::control::Seen;
use resurgo_wire::node_memory::PHASE_REPLAY;

use super::{Dispatcher, leaving, suspend};
use crate::units::grouped;

const PERIOD: Duration = Duration::from_secs(1);
/// Stands for the terminal among those that look at the job.
pub(super) const CLIENT: u64 = u64::MAX - 1;

impl Dispatcher {
    /// Tells the terminal what is under way, and once a second those that wait.
    pub(super) fn tell_progress(&mut self) {
        let waiting = self.checkpoints.waiting().iter().chain(self.suspension.clients());
        let clients: Vec<u64> = waiting
            .copied()
            .filter(|client| ![suspend::CLIENT, leaving::CLIENT].contains(client))
            .collect();
        let behind = self.mind_bar();
        let now = Instant::now();
        match self.front.progress_due {
            _ if clients.is_empty() && !behind => self.front.progress_due = None,
            None => self.front.progress_due = Some(now + PERIOD),
            Some(due) if due > now => {}
            Some(_) => {
                self.front.progress_due = Some(now + PERIOD);
                if behind {
                    self.front.watchers.wants(CLIENT, u64::MAX);
                }
                let progress = self.progress_of_images();
                for client in clients {
                    self.front.console.answer(client, &Reply::Progress(progress.clone()));
                }
            }
        }
    }

    /// Returns whether the terminal is to show what ranks replay.
    fn mind_bar(&mut self) -> bool {
        if !self.output.bar().is_seen() {
            return false;
        }
        let behind = self.behind();
        if behind.is_empty() {
            self.front.replayed = None;
        }
        self.output.bar().tell(self.under_way(&behind));
        !behind.is_empty()
    }

    /// What everything else waits for, if there is something.
    fn under_way(&self, behind: &[usize]) -> Option<Progress> {
        if self.suspension.is_done() || (self.verdict.is_some() && !self.suspension.is_under_way()) {
            return None;
        }
        if self.suspension.is_under_way() {
            let progress = self.progress_of_images();
            let text = format!("the job is being suspended: {}", progress.text);
            return Some(Progress { text, ..progress });
        }
        let (there, all) = self.there();
        if there < all {
            let text = format!("{there} of {all} ranks run, the others are being started");
            let done = Some((there, all));
            return Some(Progress { text, done });
        }
        let text = match behind {
            [] => return None,
            [rank] => format!("rank {rank} replays"),
            ranks => format!("{} ranks replay", ranks.len()),
        };
        let done = self.front.replayed;
        let text = match done {
            Some((done, all)) => format!("{text}: {} of {} deliveries", grouped(done.min(all)), grouped(all)),
            None => text,
        };
        Some(Progress { text, done })
    }

    /// Ranks that have failed and have not caught up.
    fn behind(&self) -> Vec<usize> {
        let ends = |rank: &usize| self.policy.has_finished(*rank) || self.policy.is_lost(*rank);
        match self.verdict {
            Some(_) => Vec::new(),
            None => self.bus.stats().behind().filter(|rank| !ends(rank)).collect(),
        }
    }

    /// Ranks that have a process, and those that are to have one.
    fn there(&self) -> (u64, u64) {
        let wanted = |rank: &usize| !self.policy.has_finished(*rank) && !self.policy.is_lost(*rank);
        let all = (0..self.pids.len()).filter(wanted);
        let there = all.clone().filter(|rank| self.pids[*rank].is_some());
        (there.count() as u64, all.count() as u64)
    }

    /// Of images that clients or a suspension wait for, and what follows them.
    fn progress_of_images(&self) -> Progress {
        let (wanted, writing) = self.checkpoints.left_to_do();
        let has_waves = self.has_waves();
        let text = match (wanted, writing) {
            _ if self.suspension.is_copying() => format!("its files are being copied to {}", self.busy_places()),
            (0, _) => self.suspension.waits_for(),
            (_, 0) if has_waves => "a wave is being taken".to_string(),
            (wanted, 0) => format!("{} to be taken", suspend::images(wanted)),
            (wanted, writing) => format!("{} to be taken, {writing} being written", suspend::images(wanted)),
        };
        let left = (wanted + self.suspension.unwritten()) as u64;
        let all = (0..self.pids.len()).filter(|rank| !self.policy.has_finished(*rank));
        let all = (all.count() as u64).max(left);
        let counts = left > 0 && (wanted == 0 || !has_waves) && !self.suspension.is_copying();
        let done = counts.then(|| (all - left, all));
        Progress { text, done }
    }

    /// What ranks have repeated, as agents have just seen.
    pub(super) fn saw_replays(&mut self, seen: &BTreeMap<usize, Seen>) {
        let behind = self.behind();
        let replays = |seen: &&Seen| {
            let is_now = self.ledger.life(seen.rank) == seen.life && seen.statistics.phase == PHASE_REPLAY;
            is_now && behind.contains(&seen.rank) && seen.statistics.replay_deliveries > 0
        };
        let replays = seen.values().filter(replays);
        let parts = replays.map(|seen| (seen.repeated, seen.statistics.replay_deliveries));
        self.front.replayed = parts.reduce(|(done, all), (more, of)| (done + more, all + of));
    }

    /// The job is over, and what it has in its places goes with it.
    pub(super) fn removing(&self, well: bool) -> Option<Progress> {
        let places = self.images.flushes.as_ref()?.to_be_left(self.forgets_places(well))?;
        Some(Progress::of(format!(
            "what the job has stored is being removed from {places}"
        )))
    }
}

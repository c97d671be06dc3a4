//! The state of the job, for those who look at it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use resurgo_wire::console::{Doing, ImageState, NodeState, RankState, Reply, Standing, State};
use resurgo_wire::control::{Seen, ToAgent};
use resurgo_wire::node_memory::{PHASE_CLOSED, PHASE_REPLAY, PHASE_START};

use super::events::Event;
use super::progress::CLIENT;
use super::{Dispatcher, Front};

impl Dispatcher {
    /// Answers those who wait for the state of the job, and asks agents for others.
    pub(super) fn mind_watchers(&mut self) {
        if self.front.watchers.are_none() {
            return;
        }
        let now = Instant::now();
        let there = self.agents.numbers();
        if let Some(look) = self.front.watchers.over(&there, now) {
            let (own, clients): (Vec<_>, Vec<_>) = look.clients.into_iter().partition(|(client, _)| *client == CLIENT);
            if !own.is_empty() {
                self.saw_replays(&look.seen);
            }
            let state = (!clients.is_empty()).then(|| self.state(&look.seen));
            for ((client, after), state) in clients.into_iter().zip(std::iter::repeat(state).flatten()) {
                let events = self.bus.recent().after(after);
                let state = Box::new(State { events, ..state });
                self.front.console.answer(client, &Reply::State(state));
            }
        }
        if let Some(question) = self.front.watchers.begin(there, now) {
            self.agents.tell(&question);
        }
    }

    /// Gives output to those who want it; the last time at the end of the job.
    pub(super) fn answer_readers(&mut self, is_last: bool) {
        let Front { readers, console, .. } = &mut self.front;
        let takes = |client| console.takes(client);
        for (client, printed) in readers.answers(&self.output.shown, Instant::now(), is_last, takes) {
            console.answer(client, &Reply::Output(printed));
        }
    }

    /// The state of the job, without events.
    pub(super) fn state(&self, seen: &BTreeMap<usize, Seen>) -> State {
        let ranks: Vec<RankState> = (0..self.pids.len())
            .map(|rank| self.rank_state(rank, seen.get(&rank)))
            .collect();
        let stats = self.bus.stats();
        let sum = |of: fn(&RankState) -> u64| ranks.iter().map(of).sum();
        State {
            job: std::process::id(),
            command: self.about.command.clone(),
            protocol: self.coordinator.protocol().name().to_string(),
            is_ending: self.verdict.is_some(),
            seconds: self.start.elapsed().as_secs_f64(),
            failures: stats.failures(),
            restarts: stats.restarts(),
            images: stats.images().0,
            last_image: stats.last_image().map(|(number, rank, at)| ImageState {
                number,
                rank,
                seconds: at.elapsed().as_secs_f64(),
            }),
            messages: sum(|rank| rank.messages),
            bytes: sum(|rank| rank.bytes),
            log_bytes: sum(|rank| rank.log_bytes),
            nodes: self.node_states(&ranks),
            ranks,
            last_event: self.bus.recent().last(),
            events: Vec::new(),
        }
    }

    fn node_states(&self, ranks: &[RankState]) -> Vec<NodeState> {
        let leaving = self.coming.iter().flat_map(|coming| &coming.leaving);
        let leaving: BTreeSet<usize> = leaving.map(|leaving| leaving.node).collect();
        let state = |node: usize| {
            let there = ranks.iter().filter(|rank| rank.node == node);
            let figures = self.agents.figures_of(node);
            NodeState {
                node,
                name: self.agents.name(node).map(str::to_string),
                state: match self.agents.standing(node) {
                    Standing::There if leaving.contains(&node) => Standing::Leaving,
                    standing => standing,
                },
                ranks: there.clone().count(),
                log_bytes: there.map(|rank| rank.log_bytes).sum(),
                held_bytes: figures.map_or(0, |(_, held)| held.images + held.pieces),
                silent_seconds: figures.map(|(silent, _)| silent.as_secs_f64()),
            }
        };
        (0..self.agents.len()).map(state).collect()
    }

    fn rank_state(&self, rank: usize, seen: Option<&Seen>) -> RankState {
        // A node from which the rank has gone may have answered before it did.
        let life = self.ledger.life(rank);
        let seen = seen.filter(|seen| seen.life == life);
        let figures = self.bus.stats().rank(rank, seen.map(|seen| &seen.statistics));
        let state = self.doing(rank, seen);
        let replays = seen.filter(|_| state == Doing::Replaying);
        let waits = seen.filter(|_| matches!(state, Doing::Replaying | Doing::Waiting));
        RankState {
            rank,
            node: self.node_of(rank),
            pid: self.pids[rank],
            life,
            state,
            waits_for: waits.and_then(|seen| seen.waits_for),
            replayed: replays.map(replayed),
            writes_image: self.coordinator.writes(rank as u32),
            restarts: figures.restarts,
            messages: figures.messages,
            bytes: figures.bytes,
            deliveries: figures.deliveries,
            log_bytes: figures.log_bytes,
            sent_to: seen.map(|seen| seen.sent_to.clone()).unwrap_or_default(),
        }
    }

    fn doing(&self, rank: usize, seen: Option<&Seen>) -> Doing {
        let number = rank as u32;
        let is_copied = match self.has_waves() {
            true => self.coordinator.is_in_wave(number),
            false => self.checkpoints.asked_at(rank).is_some(),
        };
        match seen {
            _ if self.policy.has_finished(rank) => Doing::Finished,
            _ if self.policy.is_lost(rank) => Doing::Lost,
            _ if self.coordinator.is_returning(number) => Doing::Returning,
            _ if self.pids[rank].is_none() => Doing::Down,
            None => Doing::Unknown,
            Some(_) if is_copied => Doing::TakingImage,
            Some(seen) => match seen.statistics.phase {
                PHASE_START => Doing::BeforeMpi,
                PHASE_REPLAY => Doing::Replaying,
                PHASE_CLOSED => Doing::AfterMpi,
                _ if seen.sleeps => Doing::Waiting,
                _ => Doing::Computing,
            },
        }
    }

    /// A user kills a rank on purpose.
    pub(super) fn kill_rank(&mut self, client: u64, rank: usize) {
        let reply = match self.pids.get(rank) {
            None => Reply::Refused(format!(
                "it has no rank {rank}; its ranks are 0 to {}",
                self.pids.len() - 1
            )),
            Some(_) if self.verdict.is_some() => Reply::Refused("it is ending".to_string()),
            Some(_) if self.suspension.has_halted() => Reply::Refused("it is being suspended".to_string()),
            Some(None) => Reply::Refused(format!("rank {rank} has no process now")),
            Some(Some(pid)) => {
                let said = format!("rank {rank} (pid {pid}) is killed");
                self.bus.tell(Event::FaultInjected { rank });
                self.tell(ToAgent::Kill { rank });
                Reply::Done(said)
            }
        };
        self.front.console.answer(client, &reply);
    }
}

/// The part of its deliveries that a life has repeated.
fn replayed(seen: &Seen) -> f64 {
    let all = seen.statistics.replay_deliveries;
    match all {
        0 => 0.0,
        all => (seen.repeated as f64 / all as f64).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::control::LifeStatistics;

    #[test]
    fn the_part_done_is_between_nothing_and_all() {
        let mut seen = Seen {
            rank: 0,
            life: 2,
            statistics: LifeStatistics::default(),
            sleeps: false,
            waits_for: None,
            repeated: 0,
            sent_to: Vec::new(),
        };
        assert_eq!(replayed(&seen), 0.0);
        (seen.statistics.replay_deliveries, seen.repeated) = (4, 1);
        assert_eq!(replayed(&seen), 0.25);
        seen.repeated = 9;
        assert_eq!(replayed(&seen), 1.0);
    }
}

//! Those who look at the running job: each gets its state, with what agents have just read in the node memories. While
//! nobody asks, nobody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use resurgo_wire::control::{Seen, ToAgent};

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Clients that wait for the state of the job.
#[derive(Default)]
pub struct Watchers {
    /// Each client, with the number of the last event that it has.
    waiting: Vec<(u64, u64)>,
    /// The number of the last look, which may be under way.
    number: u64,
    look: Option<Look>,
}

/// Agents have been asked what their ranks do.
pub struct Look {
    pub clients: Vec<(u64, u64)>,
    awaited: BTreeSet<usize>,
    deadline: Instant,
    pub seen: BTreeMap<usize, Seen>,
}

impl Watchers {
    pub fn wants(&mut self, client: u64, after: u64) {
        self.waiting.push((client, after));
    }

    /// Nobody waits for anything.
    pub fn are_none(&self) -> bool {
        self.waiting.is_empty() && self.look.is_none()
    }

    /// Until when agents may answer.
    pub fn due(&self) -> Option<Instant> {
        self.look.as_ref().map(|look| look.deadline)
    }

    /// A node has answered.
    pub fn looked(&mut self, node: usize, number: u64, ranks: Vec<Seen>) {
        if let Some(look) = self.look.as_mut().filter(|_| number == self.number) {
            look.awaited.remove(&node);
            look.seen.extend(ranks.into_iter().map(|seen| (seen.rank, seen)));
        }
    }

    /// The look that is over: all nodes of `there` have answered, or have had the time for it.
    pub fn over(&mut self, there: &[usize], now: Instant) -> Option<Look> {
        let answered = |look: &mut Look| !there.iter().any(|node| look.awaited.contains(node));
        self.look.take_if(|look| answered(look) || look.deadline <= now)
    }

    /// Begins to look, if someone waits and nobody looks. Returns the question for all agents.
    pub fn begin(&mut self, there: Vec<usize>, now: Instant) -> Option<ToAgent> {
        if self.waiting.is_empty() || self.look.is_some() {
            return None;
        }
        self.number += 1;
        self.look = Some(Look {
            clients: std::mem::take(&mut self.waiting),
            awaited: there.into_iter().collect(),
            deadline: now + PATIENCE,
            seen: BTreeMap::new(),
        });
        Some(ToAgent::Look { number: self.number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resurgo_wire::control::LifeStatistics;

    fn seen(rank: usize) -> Seen {
        Seen {
            rank,
            life: 1,
            statistics: LifeStatistics::default(),
            sleeps: false,
            waits_for: None,
            repeated: 0,
            sent_to: Vec::new(),
        }
    }

    #[test]
    fn clients_wait_for_all_nodes_that_are_there() {
        let (mut watchers, now) = (Watchers::default(), Instant::now());
        assert!(watchers.begin(vec![0, 1], now).is_none(), "nobody asks");
        watchers.wants(7, 3);
        assert_eq!(watchers.begin(vec![0, 1, 2], now), Some(ToAgent::Look { number: 1 }));
        watchers.wants(8, 0);
        assert!(watchers.begin(vec![0, 1, 2], now).is_none(), "one look at a time");
        watchers.looked(0, 1, vec![seen(0)]);
        watchers.looked(1, 0, vec![seen(1)]);
        assert!(watchers.over(&[0, 1, 2], now).is_none());
        watchers.looked(1, 1, vec![seen(2)]);
        let look = watchers.over(&[0, 1], now).unwrap();
        assert_eq!((look.clients, look.seen.len()), (vec![(7, 3)], 2), "node 2 is lost");
        assert!(watchers.begin(vec![0, 1], now).is_some(), "for the other one");
        assert!(watchers.over(&[0, 1], now).is_none());
        let look = watchers.over(&[0, 1], now + PATIENCE).unwrap();
        assert_eq!((look.clients, look.seen.len()), (vec![(8, 0)], 0));
    }
}

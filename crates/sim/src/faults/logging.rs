//! Message logging: ranks copy themselves in turn, and a failed rank begins again alone.

use std::collections::VecDeque;

use resurgo_protocol::{Next, Pessimistic, Rank, Recorded, Sending, Tolerate};

use super::{Doing, Happening, World};

/// Messages to one rank, as their sender keeps them.
#[derive(Clone, Default)]
pub(super) struct Log {
    /// Number of the first.
    first: u64,
    /// Bytes of each.
    messages: VecDeque<u64>,
    /// How many have left, from the beginning.
    departed: u64,
}

/// Between two looks for a rank that may be copied.
const PATIENCE: u64 = 100_000_000;

pub(super) fn beginning(rank: Rank, size: usize) -> Pessimistic {
    Pessimistic::new(rank, size, Tolerate::Node)
}

impl Log {
    fn push(&mut self, number: u64, bytes: u64) {
        if self.messages.is_empty() {
            self.first = number;
        }
        self.messages.push_back(bytes);
    }

    fn bytes(&self, number: u64) -> u64 {
        self.messages[(number - self.first) as usize]
    }

    fn forget(&mut self, up_to: u64) {
        while self.first <= up_to && self.messages.pop_front().is_some() {
            self.first += 1;
        }
    }
}

impl World {
    fn pessimistic(&mut self, rank: Rank) -> &mut Pessimistic {
        let pessimistic = self.processes[rank as usize].point.pessimistic.as_mut();
        pessimistic.expect("every rank logs")
    }

    /// Whether the message from `from` is taken now; if so, records it.
    pub(super) fn delivers(&mut self, rank: Rank, from: Rank) -> bool {
        if self.processes[rank as usize].point.pessimistic.is_none() {
            return true;
        }
        // Nothing new until it is copied.
        if self.in_turn == Some(rank) && self.processes[rank as usize].copy.is_none() {
            return false;
        }
        if self.pessimistic(rank).next() == Next::NeedRecord {
            let next = self.pessimistic(rank).rclock() as usize;
            let record = self.processes[rank as usize].records[next];
            self.pessimistic(rank).expect(record);
        }
        match self.pessimistic(rank).next() {
            Next::Any => {}
            Next::From(source) => assert_eq!(source, from, "the program does the same again"),
            next => panic!("rank {rank} waits for rank {from}, and its record says {next:?}"),
        }
        let (determinant, is_new) = self.pessimistic(rank).deliver(from);
        if is_new {
            let life = self.processes[rank as usize].life;
            let record = determinant.recorded();
            self.after(self.run.costs.latency, Happening::ToLogger { rank, life, record });
        }
        true
    }

    pub(super) fn log(&mut self, rank: Rank, record: Recorded) {
        let process = &mut self.processes[rank as usize];
        process.records.push(record);
        let (life, rclock) = (process.life, process.records.len() as u64);
        let costs = self.run.costs;
        self.after(costs.logger + costs.latency, Happening::Logged { rank, life, rclock });
    }

    pub(super) fn logged(&mut self, rank: Rank, rclock: u64) {
        self.pessimistic(rank).acknowledge(rclock);
        while let Some((to, number)) = self.pessimistic(rank).release() {
            self.publish(rank, to, number);
        }
        self.copy_if_may();
    }

    pub(super) fn send_logged(&mut self, rank: Rank, to: Rank, bytes: u64) {
        let sending = self.pessimistic(rank).send(to);
        let (Sending::Now { ssn } | Sending::Hold { ssn } | Sending::Redo { ssn }) = sending;
        self.processes[rank as usize].point.log[to as usize].push(ssn, bytes);
        let has_come = self.processes[to as usize].arrived[rank as usize];
        match sending {
            Sending::Hold { .. } => {}
            Sending::Redo { .. } if ssn <= has_come => {
                self.processes[rank as usize].point.log[to as usize].departed = ssn
            }
            _ => self.publish(rank, to, ssn),
        }
    }

    fn publish(&mut self, from: Rank, to: Rank, number: u64) {
        let log = &mut self.processes[from as usize].point.log[to as usize];
        log.departed = number;
        let bytes = log.bytes(number);
        self.depart(from, to, number, bytes);
    }

    /// Copies the next rank that lives and has not ended, when the last image is in the store.
    pub(super) fn next_turn(&mut self) {
        let size = self.run.ranks;
        let is_ready = |rank: &Rank| {
            let process = &self.processes[*rank as usize];
            let replays = process
                .point
                .pessimistic
                .as_ref()
                .is_some_and(Pessimistic::is_replaying);
            process.is_up && !replays && process.point.doing != Doing::Ended
        };
        let mut others = (1..=size).map(|step| (self.last_turn + step) % size);
        self.in_turn = others.find(is_ready);
        match self.in_turn {
            Some(rank) => {
                self.last_turn = rank;
                self.copy_if_may();
            }
            None => self.after(PATIENCE, Happening::Turn),
        }
    }

    fn copy_if_may(&mut self) {
        let Some(rank) = self.in_turn else { return };
        if self.processes[rank as usize].copy.is_none() && self.pessimistic(rank).may_checkpoint() {
            self.copy(rank);
            self.go_on(rank);
        }
    }

    /// No rank needs to send again what the image covers.
    pub(super) fn stored_alone(&mut self, rank: Rank) {
        let process = &mut self.processes[rank as usize];
        process.image = process.copy.take();
        let covered = process.image.as_ref().map(|image| image.taken.clone());
        for (process, covered) in self.processes.iter_mut().zip(covered.into_iter().flatten()) {
            process.point.log[rank as usize].forget(covered);
        }
        self.next_turn();
    }

    /// Its node is lost.
    pub(super) fn lose(&mut self, rank: Rank) {
        self.end(rank);
        self.fetch(rank, false);
        if self.in_turn == Some(rank) {
            self.next_turn();
        }
    }

    pub(super) fn begin_again(&mut self, rank: Rank) {
        self.rebuild(rank);
        let index = rank as usize;
        let seen = self
            .processes
            .iter()
            .map(|process| process.arrived[index])
            .collect::<Vec<_>>();
        let process = &mut self.processes[index];
        process.arrived.clone_from(&process.point.taken);
        let before = process
            .point
            .sent
            .iter()
            .zip(seen)
            .map(|(own, seen)| seen.max(*own))
            .collect();
        let deliveries = process.records.len() as u64;
        self.pessimistic(rank).restored(deliveries, before);
        for other in 0..self.run.ranks {
            if self.processes[other as usize].is_up {
                self.send_again(other, rank);
                self.send_again(rank, other);
            }
        }
        self.go_on(rank);
    }

    /// Messages that have left and not arrived, or are lost.
    fn send_again(&mut self, from: Rank, to: Rank) {
        let has_come = self.processes[to as usize].arrived[from as usize];
        let departed = self.processes[from as usize].point.log[to as usize].departed;
        for number in has_come + 1..=departed {
            let bytes = self.processes[from as usize].point.log[to as usize].bytes(number);
            self.depart(from, to, number, bytes);
        }
    }
}

//! Waves: all ranks copy themselves, none waits, and all return.

use resurgo_protocol::{Rank, Step as Next, Wave};

use super::{Happening, World};

impl World {
    pub(super) fn pause(&mut self) {
        self.after(self.run.pause, Happening::Wave(self.pauses));
    }

    pub(super) fn begin_wave(&mut self, pause: u64) {
        if self.pauses != pause {
            return;
        }
        self.pauses += 1;
        self.waves.asked += 1;
        let number = self.waves.asked;
        self.wave = Some(Wave::non_blocking(number, self.processes.len()));
        for rank in 0..self.run.ranks {
            let life = self.processes[rank as usize].life;
            self.after(self.run.costs.latency, Happening::Asked { rank, life, number });
        }
    }

    pub(super) fn cut(&mut self, rank: Rank, number: u64) {
        let process = &mut self.processes[rank as usize];
        process.point.cut.cut(number);
        let early = std::mem::take(&mut process.early);
        self.copy(rank);
        early.into_iter().for_each(|message| self.arrive(message));
    }

    pub(super) fn stored_of_wave(&mut self, rank: Rank) {
        let Some(wave) = &mut self.wave else { return };
        if wave.copied(rank) != Next::Complete {
            return;
        }
        self.waves.over = wave.number();
        for process in &mut self.processes {
            process.image = process.copy.take();
            process.has_copy = true;
        }
        self.pause();
    }

    /// All ranks end, and fetch their images.
    pub(super) fn go_back(&mut self, local_copies: bool) {
        self.wave = None;
        self.pauses += 1;
        self.waves.over = self.waves.asked;
        for rank in 0..self.run.ranks {
            self.end(rank);
            self.fetch(rank, local_copies && self.processes[rank as usize].has_copy);
        }
    }

    /// They go on when all have theirs.
    pub(super) fn has_fetched(&mut self, rank: Rank) {
        let process = &mut self.processes[rank as usize];
        process.has_copy = true;
        process.is_up = true;
        if self.processes.iter().any(|process| !process.is_up) {
            return;
        }
        (0..self.run.ranks).for_each(|rank| self.rebuild(rank));
        let sent: Vec<Vec<u64>> = self
            .processes
            .iter()
            .map(|process| process.point.sent.clone())
            .collect();
        for (rank, process) in self.processes.iter_mut().enumerate() {
            // Messages on their way then belong to the wave.
            process.arrived = sent.iter().map(|sent| sent[rank]).collect();
        }
        (0..self.run.ranks).for_each(|rank| self.go_on(rank));
        self.pause();
    }
}

//! Ranks that other ranks ask for while the job runs (MPI_Comm_spawn).
//!
//! They are ranks of the job like all others, with the numbers that come next, and make up a world of their own for PMI.
//! The dispatcher has decided that they are to be started, and what.

use std::io;

use resurgo_protocol::Fact;
use resurgo_wire::control::Program;

use super::Agent;
use super::program_file::ProgramFile;
use super::ranks::Rank;

/// Per rank, the number of its program.
pub(super) fn appnums(programs: &[Program]) -> Vec<u32> {
    let numbered = programs.iter().enumerate();
    numbered
        .flat_map(|(number, program)| std::iter::repeat_n(number as u32, program.ranks))
        .collect()
}

impl Agent {
    /// Starts what rank `by` has asked for, and tells it.
    pub(super) fn spawn(&mut self, by: usize, programs: Vec<Program>, faults: &[(usize, u64)]) -> io::Result<()> {
        let work = &mut self.work;
        let first = work.ranks.len();
        let first_program = work.job.programs.len();
        let appnums = appnums(&programs);
        let ranks = appnums
            .iter()
            .map(|program| Rank::new(first_program + *program as usize));
        work.ranks.extend(ranks);
        work.program_files.extend(programs.iter().map(ProgramFile::hold));
        work.job.programs.extend(programs);
        let end = work.ranks.len();
        // Whoever sends to a new rank, or looks for what it has sent, must know of it first.
        work.memory.set_ranks(end)?;
        let answer = work.server.spawned(by, appnums);
        for (rank, messages) in faults {
            work.ranks[*rank].fault_at_messages = *messages;
        }
        let ranks = end - first;
        self.coordinate_starts(Fact::Spawned { ranks })
            .map_err(|(_, error)| error)?;
        if let Some(answer) = answer {
            self.answer(&answer);
        }
        Ok(())
    }

    /// Tells rank `by` that what it has asked for is not started.
    pub(super) fn refuse_spawn(&mut self, by: usize) {
        let answer = self.work.server.not_spawned(by);
        if let Some(answer) = answer {
            self.answer(&answer);
        }
    }
}

//! Ranks that other ranks ask for while the job runs (MPI_Comm_spawn).
//!
//! They are ranks of the job like all others, with the numbers that come next, and make up a world of their own for PMI.
//! The dispatcher has decided that they are to be started, and what.

use std::io;

use resurgo_pmi::Place;
use resurgo_wire::control::{Job, Program, appnums};

use super::Agent;
use super::program_file::ProgramFile;
use super::ranks::Rank;

/// The world of `rank`, and which rank it is there.
pub(super) fn place(job: &Job, rank: usize) -> Place {
    let mut place = Place {
        world: 0,
        rank,
        size: 0,
        kvs_name: String::new(),
    };
    // The programs of a world follow one another.
    let mut first = 0;
    for program in &job.programs {
        if program.world != place.world && first <= rank {
            (place.world, place.rank, place.size) = (program.world, rank - first, 0);
        }
        if program.world == place.world {
            place.size += program.ranks;
        }
        first += program.ranks;
    }
    place.kvs_name = resurgo_pmi::kvs_name(&job.name, place.world);
    place
}

impl Agent {
    /// Makes room for what a rank has asked for, which the coordinator has begun behind this.
    pub(super) fn spawn(&mut self, programs: Vec<Program>, faults: &[(usize, u64)]) -> io::Result<()> {
        let work = &mut self.work;
        let first_program = work.job.programs.len();
        let ranks = appnums(&programs)
            .into_iter()
            .map(|program| Rank::new(first_program + program as usize));
        work.ranks.extend(ranks);
        work.program_files.extend(programs.iter().map(ProgramFile::hold));
        work.job.programs.extend(programs);
        // Whoever sends to a new rank, or looks for what it has sent, must know of it first.
        work.memory.set_ranks(work.ranks.len())?;
        for (rank, messages) in faults {
            work.ranks[*rank].fault_at_messages = *messages;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_places_in_the_worlds_of_their_programs() {
        let program = |ranks: usize, world: usize| Program {
            ranks,
            path: "a".into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: "/".into(),
            is_plain: false,
            world,
        };
        let mut job = super::super::node::tests::job();
        job.name = "j".to_string();
        job.programs = vec![
            program(2, 0),
            program(1, 0),
            program(1, 1),
            program(2, 1),
            program(1, 2),
        ];
        let places: Vec<_> = (0..7).map(|rank| place(&job, rank)).collect();
        let short = |place: &Place| (place.world, place.rank, place.size);
        assert_eq!(
            places.iter().map(short).collect::<Vec<_>>(),
            [
                (0, 0, 3),
                (0, 1, 3),
                (0, 2, 3),
                (1, 0, 3),
                (1, 1, 3),
                (1, 2, 3),
                (2, 0, 1)
            ]
        );
        assert_eq!(
            (places[0].kvs_name.as_str(), places[6].kvs_name.as_str()),
            ("j", "j_0002")
        );
    }
}

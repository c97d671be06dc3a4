//! Ranks that other ranks ask for while the job runs (MPI_Comm_spawn).
//!
//! They are ranks of the job like all others, with the next numbers, and form a PMI world of their own. The dispatcher
//! decides that they start, and with which programs.

use std::io;

use resurgo_pmi::Place;
use resurgo_wire::control::{Job, Program, appnums};
use resurgo_wire::node_memory::control;

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
    /// Makes room for the ranks that a rank has asked for; the coordinator's orders to begin them follow.
    pub(super) fn spawn(
        &mut self,
        by: usize,
        programs: Vec<Program>,
        nodes: &[u32],
        replaced: &[u32],
        faults: &[(usize, u64)],
    ) -> io::Result<()> {
        let work = &mut self.work;
        let first = work.ranks.len();
        let first_program = work.job.programs.len();
        let ranks = appnums(&programs)
            .into_iter()
            .map(|program| Rank::new(first_program + program as usize));
        work.ranks.extend(ranks);
        work.program_files.extend(programs.iter().map(ProgramFile::hold));
        work.job.programs.extend(programs);
        if work.job.survives() {
            for rank in first..work.ranks.len() {
                work.memory.set_control(rank, control::SPAWNED_BY, by as u64 + 1)?;
            }
            for (rank, of) in (first..).zip(replaced) {
                work.memory.set_control(rank, control::REPLACES, u64::from(*of) + 1)?;
            }
        }
        // Ranks must know of a new rank before they send to it or read its messages.
        let tell = || work.memory.set_ranks(work.ranks.len());
        if let Some(plan) = &mut work.job.nodes {
            plan.of_rank.extend(nodes);
        }
        match work.job.nodes.as_ref().zip(work.net.as_mut()) {
            Some((plan, net)) => net.grow(plan, tell)?,
            None => tell()?,
        }
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
            survives: false,
            modes: None,
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

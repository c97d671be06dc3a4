//! New ranks in the places of failed ones, which survivors ask for (FT-MPI's mode REBUILD): the program, arguments,
//! environment and directory of a place stay the same.

use resurgo_protocol::Rank;
use resurgo_protocol::policy::Refused;
use resurgo_wire::control::Program;

use super::Dispatcher;
use super::events::Event;

/// Worlds that MPICH can have in one communicator.
const TOGETHER: usize = 100;
/// Worlds that MPICH can have in one process.
const IN_PROCESS: usize = 1024;

impl Dispatcher {
    /// The programs in the places of these ranks, one for each, and their numbers.
    pub(super) fn replacements(&mut self, replaced: &[Rank]) -> Result<(Vec<Program>, Vec<u32>), String> {
        if replaced.iter().any(|rank| *rank as usize >= self.pids.len()) {
            return Err("it asks for ranks in places that are not there".to_string());
        }
        self.is_room_for_world()?;
        self.policy.replace(replaced).map_err(reason)?;
        let places = replaced.iter().map(|rank| self.place(*rank));
        let programs = places.filter_map(|place| program_of(&self.spawning.programs, place as usize));
        Ok(programs.unzip())
    }

    fn place(&self, rank: Rank) -> Rank {
        let survivors = self.policy.survivors.as_ref();
        survivors.map_or(rank, |survivors| survivors.place(rank))
    }

    /// MPICH ends a process that gets to know too many worlds.
    fn is_room_for_world(&self) -> Result<(), String> {
        let worlds = &self.spawning.worlds;
        let world_of = |rank: usize| worlds.partition_point(|first| *first <= rank);
        let running = self.pids.iter().enumerate().filter(|(_, pid)| pid.is_some());
        let mut living: Vec<usize> = running.map(|(rank, _)| world_of(rank)).collect();
        living.dedup();
        let known = living.first().map_or(0, |oldest| worlds.len() + 1 - oldest);
        match () {
            () if living.len() >= TOGETHER => Err(format!(
                "MPICH has room for ranks of {TOGETHER} starts in one communicator, and no more"
            )),
            () if known + 1 >= IN_PROCESS => Err(format!(
                "MPICH has room for {IN_PROCESS} starts in the life of one rank, and no more"
            )),
            () => Ok(()),
        }
    }

    pub(super) fn tell_replaced(&mut self, ranks: &[usize], replaced: &[Rank]) {
        let places: Vec<Rank> = replaced.iter().map(|rank| self.place(*rank)).collect();
        self.bus.tell(Event::Replaced {
            ranks,
            replaced,
            places: &places,
        });
    }
}

/// The program of a rank, for one more rank, and its number in its world.
fn program_of(programs: &[Program], rank: usize) -> Option<(Program, u32)> {
    let mut first = 0;
    let at = programs.iter().position(|program| {
        first += program.ranks;
        rank < first
    })?;
    let program = &programs[at];
    let start = programs.iter().position(|other| other.world == program.world)?;
    let one = Program {
        ranks: 1,
        ..program.clone()
    };
    Some((one, (at - start) as u32))
}

fn reason(refused: Refused) -> String {
    match refused {
        Refused::Runs { rank } => format!("rank {rank} has not failed, so nothing can take its place"),
        Refused::LimitOfPlace { place, restarts } => {
            format!("rank {place} has been replaced {restarts} times: --max-restarts-per-rank allows no more")
        }
        Refused::LimitOfJob { restarts } => {
            format!("{restarts} ranks of this job have been replaced: --max-restarts allows no more")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_program_and_its_number() {
        let program = |path: &str, ranks, world| Program {
            ranks,
            path: path.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: "/".into(),
            is_plain: false,
            survives: true,
            modes: None,
            world,
        };
        let programs = [
            program("a", 2, 0),
            program("b", 3, 0),
            program("c", 1, 1),
            program("d", 1, 1),
        ];
        let found = |rank| program_of(&programs, rank).map(|(one, number)| (one.ranks, one.path, number));
        assert_eq!(found(1), Some((1, "a".into(), 0)));
        assert_eq!(found(4), Some((1, "b".into(), 1)));
        assert_eq!(found(6), Some((1, "d".into(), 1)));
        assert_eq!(found(7), None);
    }
}

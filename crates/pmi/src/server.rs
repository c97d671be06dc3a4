//! The server's state: the worlds with their key-value spaces and barriers, and the answers that each rank has got.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::line::{Command, LineError, escaped};
use crate::spawn::{Spawn, SpawnProgram};
use crate::world::{self, Place, World};

/// A line to be written to a rank's socket, newline included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub rank: usize,
    pub line: String,
}

/// What the agent must know beyond the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// `MPI_Abort`, or a fatal error inside MPI.
    Abort { rank: usize, code: i32 },
    /// The rank sent something that is not PMI-1; it got an error for an answer where one was possible.
    Malformed { rank: usize, error: String },
    /// The rank wants a world of its own making. Start these programs, then call [`Server::spawned`] or
    /// [`Server::not_spawned`]. Told once for each spawn, whichever life asks.
    Spawn { rank: usize, programs: Vec<SpawnProgram> },
}

/// How far one life of a rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// It has sent `init`.
    pub initialised: bool,
    /// It has sent `finalize`, and no `init` since.
    pub finalised: bool,
}

impl Progress {
    /// The progress of a life that goes on from an image: it was in MPI then.
    pub const IN_MPI: Progress = Progress {
        initialised: true,
        finalised: false,
    };

    /// Notes that the life has sent this command.
    pub fn said(&mut self, command: &str) {
        match command {
            // Perhaps again, after a `finalize`.
            "init" => *self = Progress::IN_MPI,
            "finalize" => self.finalised = true,
            _ => {}
        }
    }
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct RankState {
    world: usize,
    /// Of the present life.
    progress: Progress,
    barriers: u64,
    waiting: bool,
    puts: u64,
    gets: u64,
    /// Over all lives.
    puts_made: u64,
    gets_made: u64,
    /// Gets that were answered with another version than the first, by number: 0 is "not found".
    unusual_gets: HashMap<u64, u32>,
    arrived: bool,
    /// Commands about published names in the present life, and the answers they got in any.
    name_commands: usize,
    name_answers: Vec<String>,
    /// What the present life has said of its next spawn, how many it has asked for, and whether it waits for one.
    spawn_parts: Spawn,
    spawns: usize,
    awaits_spawn: bool,
    /// The answers that spawns got in any life, and the preputs of one that is being carried out.
    spawn_answers: Vec<String>,
    spawning: Option<Vec<(String, String)>>,
}

/// Where a life of a rank is in its conversation. A later life from an image taken there goes on from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    progress: Progress,
    barriers: u64,
    puts: u64,
    gets: u64,
    name_commands: usize,
    spawns: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = match (self.progress.initialised, self.progress.finalised) {
            (_, true) => "finalised",
            (true, false) => "initialised",
            (false, false) => "nothing said",
        };
        let Position {
            barriers,
            puts,
            gets,
            name_commands,
            spawns,
            ..
        } = self;
        write!(
            f,
            "{progress}; {barriers} barriers, {puts} puts, {gets} gets, {name_commands} commands about names, {spawns} spawns"
        )
    }
}

/// The PMI-1 server of one job. A server that is written down and read again goes on where it was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Server {
    /// Name of the job.
    name: String,
    /// The launched one first.
    worlds: Vec<World>,
    /// All ranks of the job, world after world.
    ranks: Vec<RankState>,
    /// Ports by the service name they are published under.
    published: HashMap<String, String>,
    /// Kinds of memory that the user asks MPI for.
    #[serde(default)]
    memory_alloc_kinds: Option<String>,
}

const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 1024;
const NAME_MAX: usize = 256;
/// "Not known", as mpiexec answers on one machine: the attribute MPI_UNIVERSE_SIZE is then not set.
const UNIVERSE_SIZE: i32 = -1;
/// The answer to `finalize`, which depends on nothing.
pub const FINALIZE_ACK: &str = "cmd=finalize_ack rc=0\n";
const SPAWN_FAILED: &str = "cmd=spawn_result rc=1 msg=spawn_failed\n";

impl Server {
    /// A server for `appnums.len()` ranks; `appnums[r]` is the number of the program that rank r runs.
    /// `name` must differ from that of every other job on the machine.
    pub fn new(name: &str, appnums: Vec<u32>) -> Server {
        let mut server = Server {
            name: name.to_string(),
            worlds: Vec::new(),
            ranks: Vec::new(),
            published: HashMap::new(),
            memory_alloc_kinds: None,
        };
        server.add_world(appnums);
        server
    }

    /// All ranks ask MPI for these kinds of memory (`mpiexec -memory-alloc-kinds`).
    pub fn ask_for(&mut self, memory_alloc_kinds: Option<String>) {
        self.memory_alloc_kinds = memory_alloc_kinds;
    }

    fn add_world(&mut self, appnums: Vec<u32>) -> &mut World {
        let number = self.worlds.len();
        let first = self.ranks.len();
        self.ranks.extend(appnums.iter().map(|_| RankState {
            world: number,
            ..RankState::default()
        }));
        let name = world::kvs_name(&self.name, number);
        self.worlds.push(World::new(name, first, appnums));
        &mut self.worlds[number]
    }

    /// The world of `rank`, and its rank in that world.
    pub fn place(&self, rank: usize) -> Place {
        let number = self.ranks[rank].world;
        let world = &self.worlds[number];
        Place {
            world: number,
            rank: rank - world.first,
            size: world.size(),
            kvs_name: world.kvs_name.clone(),
        }
    }

    /// Begins anew with all launched ranks: forgets everything that they said.
    pub fn reset(&mut self) {
        let launched = self.worlds.swap_remove(0);
        let kinds = self.memory_alloc_kinds.take();
        *self = Server::new(&launched.kvs_name, launched.appnums);
        self.ask_for(kinds);
    }

    /// Where the present life of `rank` is.
    pub fn progress(&self, rank: usize) -> Progress {
        self.ranks[rank].progress
    }

    /// Where the present life of `rank` is; None while it waits in a barrier or for a spawn.
    pub fn position(&self, rank: usize) -> Option<Position> {
        let state = &self.ranks[rank];
        let position = Position {
            progress: state.progress,
            barriers: state.barriers,
            puts: state.puts,
            gets: state.gets,
            name_commands: state.name_commands,
            spawns: state.spawns,
        };
        let waiting = state.waiting || state.awaits_spawn || state.spawn_parts != Spawn::default();
        (!waiting).then_some(position)
    }

    /// A new life of `rank` begins where an earlier one was: at the beginning its commands start again from the first.
    pub fn restarted(&mut self, rank: usize, from: Position) {
        let state = &mut self.ranks[rank];
        state.progress = from.progress;
        state.barriers = from.barriers;
        state.puts = from.puts;
        state.gets = from.gets;
        state.name_commands = from.name_commands;
        state.spawns = from.spawns;
        state.spawn_parts = Spawn::default();
        // As in a barrier: what the former life began is carried out.
        state.awaits_spawn = false;
        // It stays counted in the barrier it died in, but nobody listens for the answer now.
        state.waiting = false;
    }

    /// Name publishing (MPI 5.0, §11.5.4). A later life gets the answers that a former one got: another rank may have
    /// taken the name back since.
    fn name_command(&mut self, rank: usize, command: &Command) -> String {
        let state = &mut self.ranks[rank];
        let number = state.name_commands;
        state.name_commands += 1;
        if let Some(answer) = state.name_answers.get(number) {
            return answer.clone();
        }
        let service = command.get("service").unwrap_or_default().to_string();
        let answer = match (command.name.as_str(), command.get("port")) {
            ("publish_name", Some(port)) if !service.is_empty() => match self.published.entry(service) {
                Entry::Occupied(_) => "cmd=publish_result rc=1 msg=already_published\n".to_string(),
                Entry::Vacant(free) => {
                    free.insert(port.to_string());
                    "cmd=publish_result info=ok rc=0 msg=success\n".to_string()
                }
            },
            ("publish_name", _) => "cmd=publish_result rc=1 msg=incomplete\n".to_string(),
            ("unpublish_name", _) => match self.published.remove(&service) {
                Some(_) => "cmd=unpublish_result info=ok rc=0 msg=success\n".to_string(),
                None => "cmd=unpublish_result rc=1 msg=not_published\n".to_string(),
            },
            _ => match self.published.get(&service) {
                Some(port) => format!("cmd=lookup_result info=ok rc=0 port={port}\n"),
                None => "cmd=lookup_result rc=1 msg=not_published\n".to_string(),
            },
        };
        self.ranks[rank].name_answers.push(answer.clone());
        answer
    }

    /// Answers bytes of `rank` that are no command.
    pub fn malformed(&mut self, rank: usize, error: &LineError) -> (Vec<Output>, Option<Notice>) {
        let answer = "cmd=error rc=-1 msg=malformed\n".to_string();
        let notice = Notice::Malformed {
            rank,
            error: error.to_string(),
        };
        (vec![Output { rank, line: answer }], Some(notice))
    }

    /// Answers one command of `rank`. The answers may go to other ranks too.
    pub fn command(&mut self, rank: usize, command: &Command) -> (Vec<Output>, Option<Notice>) {
        let mut notice = None;
        self.ranks[rank].progress.said(&command.name);
        let line = match command.name.as_str() {
            "init" => {
                // 1.1, even when a newer one is asked for: barriers over groups (1.2) are left to MPI itself.
                "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n".to_string()
            }
            "get_maxes" => {
                format!("cmd=maxes rc=0 kvsname_max={NAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX}\n")
            }
            "get_appnum" => {
                let world = &self.worlds[self.ranks[rank].world];
                format!("cmd=appnum rc=0 appnum={}\n", world.appnums[rank - world.first])
            }
            "get_my_kvsname" => {
                let world = &self.worlds[self.ranks[rank].world];
                format!("cmd=my_kvsname rc=0 kvsname={}\n", world.kvs_name)
            }
            "get_universe_size" => format!("cmd=universe_size rc=0 size={UNIVERSE_SIZE}\n"),
            "put" => self.put(rank, command),
            "get" => self.get(rank, command),
            "barrier_in" => return (self.barrier_in(rank), None),
            "finalize" => FINALIZE_ACK.to_string(),
            "abort" => {
                let code = command.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                return (Vec::new(), Some(Notice::Abort { rank, code }));
            }
            "publish_name" | "unpublish_name" | "lookup_name" => self.name_command(rank, command),
            "spawn" => return self.spawn(rank, command),
            other => {
                notice = Some(Notice::Malformed {
                    rank,
                    error: format!("the unknown PMI command {other:?}"),
                });
                "cmd=error rc=-1 msg=unknown_command\n".to_string()
            }
        };
        (vec![Output { rank, line }], notice)
    }

    fn put(&mut self, rank: usize, command: &Command) -> String {
        let (Some(key), Some(value)) = (command.get("key"), command.get("value")) else {
            return "cmd=put_result rc=-1 msg=key_or_value_missing\n".to_string();
        };
        if key.starts_with("PMI_") {
            return "cmd=put_result rc=1 msg=keys_with_PMI_prefix_are_reserved\n".to_string();
        }
        let state = &mut self.ranks[rank];
        state.puts += 1;
        // A put repeated by a later life must not replace what another rank has put since.
        if state.puts > state.puts_made {
            state.puts_made = state.puts;
            let kvs = &mut self.worlds[state.world].kvs;
            let versions = kvs.entry(key.to_string()).or_default();
            if versions.last().map(String::as_str) != Some(value) {
                versions.push(value.to_string());
            }
        }
        "cmd=put_result rc=0\n".to_string()
    }

    fn get(&mut self, rank: usize, command: &Command) -> String {
        let Some(key) = command.get("key") else {
            return "cmd=get_result rc=-1 msg=key_missing\n".to_string();
        };
        let state = &mut self.ranks[rank];
        let world = &self.worlds[state.world];
        if key == "PMI_process_mapping" {
            // Every rank is a node of its own, so that no message bypasses the provider.
            return format!("cmd=get_result rc=0 value=(vector,(0,{},1))\n", world.size());
        }
        if key == "universeSize" {
            return format!("cmd=get_result rc=0 value={UNIVERSE_SIZE}\n");
        }
        if key == "PMI_mpi_memory_alloc_kinds"
            && let Some(kinds) = &self.memory_alloc_kinds
        {
            return format!("cmd=get_result rc=0 value={kinds}\n");
        }
        let number = state.gets;
        state.gets += 1;
        let versions = world.kvs.get(key).map(Vec::as_slice).unwrap_or_default();
        let version = if number < state.gets_made {
            state.unusual_gets.get(&number).copied().unwrap_or(1) as usize
        } else {
            state.gets_made = number + 1;
            if versions.len() != 1 {
                state.unusual_gets.insert(number, versions.len() as u32);
            }
            versions.len()
        };
        match version.checked_sub(1).and_then(|index| versions.get(index)) {
            Some(value) => format!("cmd=get_result rc=0 value={}\n", escaped(value)),
            None => "cmd=get_result rc=1 msg=key_not_found\n".to_string(),
        }
    }

    fn barrier_in(&mut self, rank: usize) -> Vec<Output> {
        const OUT: &str = "cmd=barrier_out rc=0\n";
        let state = &mut self.ranks[rank];
        let world = &mut self.worlds[state.world];
        let number = state.barriers;
        state.barriers += 1;
        if number < world.barriers_done {
            return vec![Output {
                rank,
                line: OUT.to_string(),
            }];
        }
        state.waiting = true;
        if !state.arrived {
            state.arrived = true;
            world.arrived += 1;
        }
        if world.arrived < world.size() {
            return Vec::new();
        }
        world.arrived = 0;
        world.barriers_done += 1;
        let mut out = Vec::new();
        for rank in world.ranks() {
            let state = &mut self.ranks[rank];
            state.arrived = false;
            if std::mem::take(&mut state.waiting) {
                out.push(Output {
                    rank,
                    line: OUT.to_string(),
                });
            }
        }
        out
    }

    /// Takes one part of a spawn. With the last part, the spawn gets a former life's answer, or begins.
    fn spawn(&mut self, rank: usize, part: &Command) -> (Vec<Output>, Option<Notice>) {
        let state = &mut self.ranks[rank];
        let complete = state.spawn_parts.add(part);
        if complete == Ok(false) {
            return (Vec::new(), None);
        }
        let spawn = std::mem::take(&mut state.spawn_parts);
        if let Err(error) = complete {
            let line = SPAWN_FAILED.to_string();
            return (vec![Output { rank, line }], Some(Notice::Malformed { rank, error }));
        }
        let number = state.spawns;
        state.spawns += 1;
        if let Some(answer) = state.spawn_answers.get(number) {
            let line = answer.clone();
            return (vec![Output { rank, line }], None);
        }
        state.awaits_spawn = true;
        if state.spawning.is_some() {
            // A former life began it and was killed before the answer.
            return (Vec::new(), None);
        }
        state.spawning = Some(spawn.preputs);
        let programs = spawn.programs;
        (Vec::new(), Some(Notice::Spawn { rank, programs }))
    }

    /// Gives ranks to the programs that `rank` wanted. They are a world of their own, and the last of the job.
    /// `appnums[r]`: the number of the program that rank r of that world runs. Call before any of them speaks.
    pub fn spawned(&mut self, rank: usize, appnums: Vec<u32>) -> Option<Output> {
        let preputs = self.ranks[rank].spawning.take().unwrap_or_default();
        let world = self.add_world(appnums);
        world
            .kvs
            .extend(preputs.into_iter().map(|(key, value)| (key, vec![value])));
        self.spawn_answered(rank, "cmd=spawn_result rc=0\n")
    }

    /// Answers that the programs which `rank` wanted are not started.
    pub fn not_spawned(&mut self, rank: usize) -> Option<Output> {
        self.ranks[rank].spawning = None;
        self.spawn_answered(rank, SPAWN_FAILED)
    }

    /// Remembers the answer, and gives it if the present life has asked.
    fn spawn_answered(&mut self, rank: usize, answer: &str) -> Option<Output> {
        let state = &mut self.ranks[rank];
        state.spawn_answers.push(answer.to_string());
        let line = answer.to_string();
        std::mem::take(&mut state.awaits_spawn).then_some(Output { rank, line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::LineBuffer;

    fn server(size: usize) -> Server {
        Server::new("kvs_1", vec![0; size])
    }

    fn send(server: &mut Server, rank: usize, line: &str) -> (Vec<Output>, Option<Notice>) {
        let mut buffer = LineBuffer::default();
        buffer.extend(line.as_bytes());
        buffer.extend(b"\n");
        match buffer.next_command().unwrap() {
            Ok(command) => server.command(rank, &command),
            Err(error) => server.malformed(rank, &error),
        }
    }

    fn answer(server: &mut Server, rank: usize, line: &str) -> String {
        let (out, _) = send(server, rank, line);
        assert_eq!(out.len(), 1, "{line}");
        assert_eq!(out[0].rank, rank);
        out[0].line.clone()
    }

    #[test]
    fn a_rank_learns_what_it_asks() {
        let mut s = Server::new("kvs_1", vec![0, 0, 1]);
        assert_eq!(
            answer(&mut s, 0, "cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
        );
        assert!(s.progress(0).initialised && !s.progress(1).initialised);
        assert_eq!(answer(&mut s, 2, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=1\n");
        assert_eq!(
            answer(&mut s, 1, "cmd=get_my_kvsname"),
            "cmd=my_kvsname rc=0 kvsname=kvs_1\n"
        );
        assert_eq!(
            answer(&mut s, 1, "cmd=get_universe_size"),
            "cmd=universe_size rc=0 size=-1\n"
        );
        assert_eq!(
            answer(&mut s, 1, "cmd=get kvsname=kvs_1 key=PMI_process_mapping"),
            "cmd=get_result rc=0 value=(vector,(0,3,1))\n"
        );
        assert!(answer(&mut s, 1, "cmd=get_maxes").contains("vallen_max=1024"));
        assert_eq!(answer(&mut s, 1, "cmd=finalize"), "cmd=finalize_ack rc=0\n");
        assert!(s.progress(1).finalised);
    }

    #[test]
    fn a_barrier_waits_for_everyone_and_answers_everyone() {
        let mut s = server(3);
        assert!(send(&mut s, 0, "cmd=barrier_in").0.is_empty());
        assert!(send(&mut s, 2, "cmd=barrier_in").0.is_empty());
        let (out, _) = send(&mut s, 1, "cmd=barrier_in");
        assert_eq!(out.iter().map(|o| o.rank).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(send(&mut s, 0, "cmd=barrier_in").0.is_empty());
    }

    #[test]
    fn a_restarted_rank_passes_old_barriers_at_once() {
        let mut s = server(2);
        send(&mut s, 0, "cmd=barrier_in");
        send(&mut s, 1, "cmd=barrier_in");
        s.restarted(1, Position::default());
        assert_eq!(answer(&mut s, 1, "cmd=barrier_in"), "cmd=barrier_out rc=0\n");
        assert!(send(&mut s, 1, "cmd=barrier_in").0.is_empty());
        assert_eq!(send(&mut s, 0, "cmd=barrier_in").0.len(), 2);
    }

    #[test]
    fn a_rank_that_died_inside_a_barrier_stays_counted() {
        let mut s = server(2);
        send(&mut s, 1, "cmd=barrier_in");
        s.restarted(1, Position::default());
        // The other is released although the dead rank has not come back...
        let (out, _) = send(&mut s, 0, "cmd=barrier_in");
        assert_eq!(out.iter().map(|o| o.rank).collect::<Vec<_>>(), [0]);
        // ...which is answered when it does.
        assert_eq!(answer(&mut s, 1, "cmd=barrier_in"), "cmd=barrier_out rc=0\n");
    }

    #[test]
    fn a_rank_that_comes_back_into_an_open_barrier_is_counted_once() {
        let mut s = server(3);
        send(&mut s, 1, "cmd=barrier_in");
        s.restarted(1, Position::default());
        assert!(send(&mut s, 1, "cmd=barrier_in").0.is_empty());
        assert!(send(&mut s, 0, "cmd=barrier_in").0.is_empty());
        assert_eq!(send(&mut s, 2, "cmd=barrier_in").0.len(), 3);
    }

    #[test]
    fn answers_are_the_same_in_every_life() {
        let mut s = server(2);
        let script = [
            "cmd=get key=late",
            "cmd=put key=a value=1",
            "cmd=get key=a",
            "cmd=get key=late",
        ];
        let mut first = Vec::new();
        for line in script {
            first.push(answer(&mut s, 0, line));
            if line.starts_with("cmd=put") {
                send(&mut s, 1, "cmd=put key=late value=x\\ y");
            }
        }
        assert_eq!(first[0], "cmd=get_result rc=1 msg=key_not_found\n");
        assert_eq!(first[3], "cmd=get_result rc=0 value=x\\ y\n");
        send(&mut s, 1, "cmd=put key=a value=2");
        for _ in 0..2 {
            s.restarted(0, Position::default());
            let again: Vec<_> = script.iter().map(|line| answer(&mut s, 0, line)).collect();
            assert_eq!(again, first);
        }
        // What follows the replayed part is answered from the present.
        assert_eq!(answer(&mut s, 0, "cmd=get key=a"), "cmd=get_result rc=0 value=2\n");
    }

    #[test]
    fn a_life_from_an_image_goes_on_where_it_was_taken() {
        let mut s = server(2);
        let put = |s: &mut Server, value: &str| answer(s, 0, &format!("cmd=put key=a value={value}"));
        put(&mut s, "1");
        send(&mut s, 0, "cmd=init");
        send(&mut s, 1, "cmd=barrier_in");
        send(&mut s, 0, "cmd=barrier_in");
        let image = s.position(0).unwrap();
        send(&mut s, 0, "cmd=barrier_in");
        assert_eq!(s.position(0), None);
        put(&mut s, "2");
        s.restarted(0, image);
        assert!(s.progress(0).initialised);
        // The put is the second again, and the barrier the one it died in.
        put(&mut s, "2");
        assert_eq!(answer(&mut s, 1, "cmd=get key=a"), "cmd=get_result rc=0 value=2\n");
        assert!(send(&mut s, 0, "cmd=barrier_in").0.is_empty());
        assert_eq!(send(&mut s, 1, "cmd=barrier_in").0.len(), 2);
    }

    #[test]
    fn abort_is_told_and_not_answered() {
        let mut s = server(2);
        let (out, notice) = send(&mut s, 1, "cmd=abort exitcode=7 message=abort");
        assert!(out.is_empty());
        assert_eq!(notice, Some(Notice::Abort { rank: 1, code: 7 }));
        assert_eq!(send(&mut s, 1, "cmd=abort").1, Some(Notice::Abort { rank: 1, code: 1 }));
    }

    const SPAWN: &str = "mcmd=spawn\nnprocs=2\nexecname=x\ntotspawns=1\nspawnssofar=1\nargcnt=0\npreput_num=1\n\
                         preput_key_0=PARENT\npreput_val_0=port$0\ninfo_num=0\nendcmd";
    const DONE: &str = "cmd=spawn_result rc=0\n";

    #[test]
    fn all_ranks_hear_which_kinds_of_memory_the_user_wants() {
        const QUESTION: &str = "cmd=get kvsname=kvs_1 key=PMI_mpi_memory_alloc_kinds";
        let mut s = server(2);
        assert!(!answer(&mut s, 0, QUESTION).contains("rc=0"));
        s.ask_for(Some("mpi,system".to_string()));
        s.reset();
        for rank in 0..2 {
            assert_eq!(answer(&mut s, rank, QUESTION), "cmd=get_result rc=0 value=mpi,system\n");
        }
    }

    #[test]
    fn a_spawned_world_has_its_own_space_and_barriers() {
        let mut s = server(2);
        let (out, notice) = send(&mut s, 1, SPAWN);
        assert!(out.is_empty());
        let Some(Notice::Spawn { rank: 1, programs }) = notice else {
            panic!("{notice:?}")
        };
        assert_eq!((programs[0].ranks, programs[0].name.as_str()), (2, "x"));
        let answer_to_parent = s.spawned(1, vec![0, 0]).unwrap();
        assert_eq!((answer_to_parent.rank, answer_to_parent.line.as_str()), (1, DONE));
        let place = s.place(3);
        assert_eq!((place.world, place.rank, place.size), (1, 1, 2));
        assert_eq!(place.kvs_name, "kvs_1_0001");
        assert_eq!(
            answer(&mut s, 3, "cmd=get_my_kvsname"),
            "cmd=my_kvsname rc=0 kvsname=kvs_1_0001\n"
        );
        assert_eq!(answer(&mut s, 2, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0\n");
        assert!(answer(&mut s, 3, "cmd=get key=PMI_process_mapping").contains("(0,2,1)"));
        for _ in 0..2 {
            assert!(answer(&mut s, 3, "cmd=get key=PARENT").contains("value=port$0\n"));
            s.restarted(3, Position::default());
        }
        assert!(answer(&mut s, 0, "cmd=get key=PARENT").contains("rc=1"));
        assert!(send(&mut s, 0, "cmd=barrier_in").0.is_empty());
        assert!(send(&mut s, 2, "cmd=barrier_in").0.is_empty());
        let (out, _) = send(&mut s, 3, "cmd=barrier_in");
        assert_eq!(out.iter().map(|o| o.rank).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn nothing_is_spawned_twice() {
        let mut s = server(1);
        assert!(send(&mut s, 0, SPAWN).1.is_some());
        // Killed before the answer: the next life waits for what the first one has begun.
        s.restarted(0, Position::default());
        assert_eq!(send(&mut s, 0, SPAWN), (Vec::new(), None));
        assert_eq!(s.spawned(0, vec![0, 0]).unwrap().line, DONE);
        // Killed once more; the answer is there at once, and what follows is new.
        s.restarted(0, Position::default());
        assert_eq!(answer(&mut s, 0, SPAWN), DONE);
        assert!(send(&mut s, 0, SPAWN).1.is_some());
        // The answer comes while no life waits for it.
        s.restarted(0, Position::default());
        assert_eq!(s.not_spawned(0), None);
        assert_eq!(answer(&mut s, 0, SPAWN), DONE);
        assert_eq!(answer(&mut s, 0, SPAWN), SPAWN_FAILED);
        assert!(send(&mut s, 0, SPAWN).1.is_some());
    }

    #[test]
    fn a_life_that_begins_behind_a_spawn_does_not_repeat_it() {
        let mut s = server(1);
        send(&mut s, 0, SPAWN);
        assert_eq!(s.position(0), None);
        s.spawned(0, vec![0, 0]);
        let position = s.position(0).unwrap();
        assert!(send(&mut s, 0, SPAWN).1.is_some());
        s.not_spawned(0);
        s.restarted(0, position);
        assert_eq!(answer(&mut s, 0, SPAWN), SPAWN_FAILED);
    }

    #[test]
    fn a_life_that_dies_between_the_parts_of_a_spawn_leaves_nothing_of_it() {
        let part = |number| {
            format!("mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=2\nspawnssofar={number}\nargcnt=0\ninfo_num=0\nendcmd")
        };
        let mut s = server(1);
        assert_eq!(send(&mut s, 0, &part(1)), (Vec::new(), None));
        s.restarted(0, Position::default());
        assert_eq!(send(&mut s, 0, &part(1)), (Vec::new(), None));
        let (_, notice) = send(&mut s, 0, &part(2));
        let Some(Notice::Spawn { programs, .. }) = notice else {
            panic!("{notice:?}")
        };
        assert_eq!(programs.len(), 2);
    }

    #[test]
    fn a_malformed_spawn_gets_an_answer() {
        let mut s = server(1);
        let (out, notice) = send(&mut s, 0, "mcmd=spawn\nnprocs=1\nexecname=x\nendcmd");
        assert_eq!(out[0].line, SPAWN_FAILED);
        assert!(matches!(notice, Some(Notice::Malformed { rank: 0, .. })));
    }

    #[test]
    fn a_published_name_is_found_also_by_a_later_life() {
        let mut s = server(2);
        assert!(answer(&mut s, 1, "cmd=lookup_name service=x").starts_with("cmd=lookup_result rc=1"));
        assert!(answer(&mut s, 0, "cmd=publish_name service=x port=y$z").contains("rc=0"));
        assert!(answer(&mut s, 1, "cmd=publish_name service=x port=other").contains("rc=1"));
        assert!(answer(&mut s, 1, "cmd=lookup_name service=x").contains("port=y$z"));
        assert!(answer(&mut s, 0, "cmd=unpublish_name service=x").contains("rc=0"));
        assert!(answer(&mut s, 0, "cmd=unpublish_name service=x").contains("rc=1"));
        s.restarted(1, Position::default());
        assert!(answer(&mut s, 1, "cmd=lookup_name service=x").contains("rc=1"));
        assert!(answer(&mut s, 1, "cmd=publish_name service=x port=other").contains("rc=1"));
        assert!(answer(&mut s, 1, "cmd=lookup_name service=x").contains("port=y$z"));
        assert!(answer(&mut s, 1, "cmd=lookup_name service=x").contains("rc=1"));
    }

    #[test]
    fn nonsense_gets_an_error() {
        let mut s = server(1);
        for line in [
            "what",
            "cmd=dance",
            "cmd=put key=a",
            "cmd=get",
            "cmd=put key=PMI_x value=1",
        ] {
            assert!(!answer(&mut s, 0, line).contains("rc=0"), "{line}");
        }
    }
}

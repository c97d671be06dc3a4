//! Faults that a user asks for, to watch the recovery of a job.
//!
//! `rank=2,at=3s` · `rank=all,at=3s` · `rank=1,messages=1000` · `rank=1,during=replay` ·
//! `random,seed=7,mean=2s,count=5` · `node=2,at=3s` · `node=random,mean=10s,count=2`

use std::time::Duration;

use resurgo_protocol::random::splitmix;

use crate::units::parse_duration;

/// Which ranks a fault kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victims {
    Rank(usize),
    All,
    /// Those that other ranks have spawned.
    Spawned,
}

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Rank(usize),
    /// The agent with all processes that it has started.
    Node(usize),
}

/// One `--fault`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// SIGKILL, so long after the start of the job.
    At { victims: Victims, time: Duration },
    /// The rank kills itself when it has made so many sends and deliveries. Several for one rank apply to its lives,
    /// one after the other.
    Messages { victims: Victims, messages: u64 },
    /// The next life after another fault is killed in the middle of its replay, once.
    DuringReplay { victims: Victims },
    /// Kills any rank (or node), again and again, at exponentially distributed intervals.
    Random {
        of_nodes: bool,
        seed: u64,
        mean: Duration,
        count: u64,
    },
    /// SIGKILL of a node, so long after the start of the job.
    NodeAt { node: usize, time: Duration },
    /// The same of any node.
    AnyNodeAt { seed: u64, time: Duration },
}

impl Fault {
    /// Reads one `--fault` of a job of so many ranks, on so many nodes.
    pub fn parse(text: &str, ranks: usize, nodes: usize) -> Result<Fault, String> {
        let wrong = |why: String| {
            format!(
                "--fault {text:?}: {why}; write rank=N,at=TIME, rank=N,messages=COUNT, rank=N,during=replay \
                 (N may be \"all\" or \"spawned\"), random,seed=N,mean=TIME[,count=N], node=N,at=TIME, or \
                 node=random with at=TIME or mean=TIME"
            )
        };
        let words = Words::read(text, ranks, nodes).map_err(&wrong)?;
        let missing = |what: &str| wrong(format!("{what} missing"));
        let Words {
            random,
            victims,
            node,
            fault,
            seed,
            mean,
            count,
        } = words;
        match node {
            Some(_) if random || victims.is_some() => {
                return Err(wrong("a fault is one of ranks, or of nodes".to_string()));
            }
            Some(Some(node)) => {
                return match fault {
                    Some(Kind::At(time)) => Ok(Fault::NodeAt { node, time }),
                    _ => Err(missing("a node is killed at a time, and at= is")),
                };
            }
            Some(None) => match fault {
                Some(Kind::At(time)) => return Ok(Fault::AnyNodeAt { seed, time }),
                Some(_) => return Err(missing("a node is killed at a time, and at= or mean= is")),
                None => {}
            },
            None => {}
        }
        if random || node.is_some() {
            let mean = mean.ok_or_else(|| missing("mean= is"))?;
            if mean.is_zero() {
                return Err(wrong("the mean must be more than 0".to_string()));
            }
            let of_nodes = node.is_some();
            return Ok(Fault::Random {
                of_nodes,
                seed,
                mean,
                count,
            });
        }
        let victims = victims.ok_or_else(|| missing("rank= is"))?;
        match fault {
            Some(Kind::At(time)) => Ok(Fault::At { victims, time }),
            Some(Kind::Messages(messages)) => Ok(Fault::Messages { victims, messages }),
            Some(Kind::DuringReplay) => Ok(Fault::DuringReplay { victims }),
            None => Err(missing("at=, messages= or during=replay is")),
        }
    }
}

/// The parts of a `--fault`, each parsed alone.
struct Words {
    random: bool,
    victims: Option<Victims>,
    /// The node; `Some(None)`: any.
    node: Option<Option<usize>>,
    fault: Option<Kind>,
    seed: u64,
    mean: Option<Duration>,
    count: u64,
}

impl Words {
    fn read(text: &str, ranks: usize, nodes: usize) -> Result<Words, String> {
        let mut words = Words {
            random: false,
            victims: None,
            node: None,
            fault: None,
            seed: 1,
            mean: None,
            count: u64::MAX,
        };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{key}={value:?} is not a number"))
            };
            let time = || parse_duration(value);
            match (key, value) {
                ("random", "") => words.random = true,
                ("rank", "all") => words.victims = Some(Victims::All),
                ("rank", "spawned") => words.victims = Some(Victims::Spawned),
                ("rank", _) => {
                    let rank = number()? as usize;
                    if rank >= ranks {
                        return Err(format!("the job starts with ranks 0 to {} only", ranks - 1));
                    }
                    words.victims = Some(Victims::Rank(rank));
                }
                ("node", _) if nodes < 2 => return Err("the job has one node (--nodes 2 makes two of it)".to_string()),
                ("node", "random") => words.node = Some(None),
                ("node", _) => {
                    let node = number()? as usize;
                    if node >= nodes {
                        return Err(format!("the job has nodes 0 to {} only", nodes - 1));
                    }
                    words.node = Some(Some(node));
                }
                ("at", _) => words.fault = Some(Kind::At(time()?)),
                ("messages", _) => words.fault = Some(Kind::Messages(number()?.max(1))),
                ("during", "replay") => words.fault = Some(Kind::DuringReplay),
                ("seed", _) => words.seed = number()?,
                ("mean", _) => words.mean = Some(time()?),
                ("count", _) => words.count = number()?,
                _ => return Err(format!("{part:?} is not known")),
            }
        }
        Ok(words)
    }
}

/// Reads one `--checkpoint-at` of a job of `size` ranks: per rank, the messages after which it takes an image.
pub fn parse_image_at(text: &str, size: usize) -> Result<Vec<(usize, u64)>, String> {
    let count = |part: &str| part.trim().strip_prefix("messages=")?.parse::<u64>().ok();
    if text.split(',').any(|part| count(part) == Some(0)) {
        return Err(format!(
            "--checkpoint-at {text:?}: a rank has no image before its first message: write messages=1 or more"
        ));
    }
    match Fault::parse(text, size, 1) {
        Ok(Fault::Messages { victims, messages }) if victims != Victims::Spawned => Ok((0..size)
            .filter(|rank| victims.include(*rank, size))
            .map(|rank| (rank, messages))
            .collect()),
        _ => Err(format!(
            "--checkpoint-at {text:?}: write rank=N,messages=COUNT, where N is below {size} or \"all\""
        )),
    }
}

enum Kind {
    At(Duration),
    Messages(u64),
    DuringReplay,
}

/// All faults of a job, as they come due. Times are since the start of the job.
#[derive(Debug)]
pub struct Schedule {
    /// Ranks that the job was launched with.
    launched: usize,
    /// For the ranks to come.
    faults: Vec<Fault>,
    timed: Vec<(Duration, Victims)>,
    /// Ranks whose time has come while they had no process: the next one is hit.
    waiting: Vec<usize>,
    timed_nodes: Vec<(Duration, usize)>,
    /// Killed nodes: it takes a moment until they are gone.
    fallen: Vec<usize>,
    /// Per rank, in order of its lives.
    by_messages: Vec<Vec<u64>>,
    during_replay: Vec<u64>,
    random: Vec<RandomFaults>,
}

#[derive(Debug)]
struct RandomFaults {
    of_nodes: bool,
    /// Of [`splitmix`]: a seed gives the same faults everywhere.
    state: u64,
    mean: Duration,
    left: u64,
    next: Duration,
}

impl RandomFaults {
    fn advance(&mut self) {
        // In (0, 1], so that the logarithm is finite.
        let uniform = ((splitmix(&mut self.state) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        self.next += self.mean.mul_f64(-uniform.ln());
    }
}

impl Schedule {
    pub fn new(faults: &[Fault], size: usize) -> Schedule {
        let mut schedule = Schedule {
            launched: size,
            faults: faults.to_vec(),
            timed: Vec::new(),
            waiting: Vec::new(),
            timed_nodes: Vec::new(),
            fallen: Vec::new(),
            by_messages: Vec::new(),
            during_replay: Vec::new(),
            random: Vec::new(),
        };
        for fault in faults {
            match fault {
                Fault::At { victims, time } => schedule.timed.push((*time, *victims)),
                Fault::Messages { .. } | Fault::DuringReplay { .. } => {}
                Fault::NodeAt { node, time } => schedule.timed_nodes.push((*time, *node)),
                Fault::AnyNodeAt { seed, time } => schedule.random.push(RandomFaults {
                    of_nodes: true,
                    state: *seed,
                    mean: Duration::ZERO,
                    left: 1,
                    next: *time,
                }),
                Fault::Random {
                    of_nodes,
                    seed,
                    mean,
                    count,
                } => {
                    let mut random = RandomFaults {
                        of_nodes: *of_nodes,
                        state: *seed,
                        mean: *mean,
                        left: *count,
                        next: Duration::ZERO,
                    };
                    random.advance();
                    schedule.random.push(random);
                }
            }
        }
        schedule.grow(size);
        schedule
    }

    /// Ranks that the job was launched with.
    pub fn launched(&self) -> usize {
        self.launched
    }

    /// The job has had so many ranks now.
    pub fn grow(&mut self, ranks: usize) {
        for rank in self.by_messages.len()..ranks {
            let mut lives = Vec::new();
            let mut in_replay = 0;
            for fault in &self.faults {
                match fault {
                    Fault::Messages { victims, messages } if victims.include(rank, self.launched) => {
                        lives.push(*messages);
                    }
                    Fault::DuringReplay { victims } if victims.include(rank, self.launched) => in_replay += 1,
                    _ => {}
                }
            }
            lives.reverse();
            self.by_messages.push(lives);
            self.during_replay.push(in_replay);
        }
    }

    /// The number of messages after which the next life of `rank` is to kill itself, 0: never. `messages` is how many
    /// its last life had made, 0 for the first life.
    pub fn next_life(&mut self, rank: usize, messages: u64) -> u64 {
        if messages > 0 && self.during_replay[rank] > 0 {
            self.during_replay[rank] -= 1;
            return (messages / 2).max(1);
        }
        self.by_messages[rank].pop().unwrap_or(0)
    }

    /// When the next fault is due.
    pub fn next_time(&self) -> Option<Duration> {
        let timed = self.timed.iter().map(|(time, _)| *time);
        let timed = timed.chain(self.timed_nodes.iter().map(|(time, _)| *time));
        let random = self
            .random
            .iter()
            .filter(|random| random.left > 0)
            .map(|random| random.next);
        timed.chain(random).min()
    }

    /// What to kill by now. `running` are the ranks, and `nodes` the nodes, that can be killed; a random fault picks
    /// one. It spares the last node: that would end the job.
    pub fn due(&mut self, now: Duration, running: &[usize], nodes: &[usize]) -> Vec<Victim> {
        let waiting = self.waiting.extract_if(.., |rank| running.contains(rank));
        let mut victims: Vec<Victim> = waiting.map(Victim::Rank).collect();
        self.timed.retain(|(time, whom)| {
            if *time <= now {
                if let Victims::Rank(rank) = whom
                    && !running.contains(rank)
                {
                    self.waiting.push(*rank);
                }
                let hit = running.iter().filter(|rank| whom.include(**rank, self.launched));
                victims.extend(hit.copied().map(Victim::Rank));
            }
            *time > now
        });
        let fallen = &mut self.fallen;
        let mut nodes = nodes.to_vec();
        nodes.retain(|node| !fallen.contains(node));
        let mut kill = |nodes: &mut Vec<usize>, place: usize| {
            fallen.push(nodes[place]);
            Victim::Node(nodes.remove(place))
        };
        for (_, node) in self.timed_nodes.extract_if(.., |(time, _)| *time <= now) {
            if let Some(place) = nodes.iter().position(|there| *there == node) {
                victims.push(kill(&mut nodes, place));
            }
        }
        for random in &mut self.random {
            while random.left > 0 && random.next <= now {
                random.left -= 1;
                let draw = splitmix(&mut random.state);
                let one_of = |all: &[usize]| (draw % all.len() as u64) as usize;
                if random.of_nodes && nodes.len() > 1 {
                    let place = one_of(&nodes);
                    victims.push(kill(&mut nodes, place));
                } else if !random.of_nodes && !running.is_empty() {
                    victims.push(Victim::Rank(running[one_of(running)]));
                }
                random.advance();
            }
        }
        victims
    }
}

impl Victims {
    /// `launched`: ranks that the job was launched with.
    fn include(self, rank: usize, launched: usize) -> bool {
        match self {
            Victims::Rank(one) => one == rank,
            Victims::All => true,
            Victims::Spawned => rank >= launched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_can_be_written() {
        let parse = |text| Fault::parse(text, 4, 3);
        assert_eq!(
            parse("rank=2,at=3s"),
            Ok(Fault::At {
                victims: Victims::Rank(2),
                time: 3 * SECOND
            })
        );
        assert_eq!(
            parse("at=1s, rank=all"),
            Ok(Fault::At {
                victims: Victims::All,
                time: SECOND
            })
        );
        assert_eq!(
            parse("rank=1,messages=9"),
            Ok(Fault::Messages {
                victims: Victims::Rank(1),
                messages: 9
            })
        );
        assert_eq!(
            parse("rank=1,during=replay"),
            Ok(Fault::DuringReplay {
                victims: Victims::Rank(1)
            })
        );
        assert_eq!(
            parse("random,seed=7,mean=2s,count=5"),
            Ok(Fault::Random {
                of_nodes: false,
                seed: 7,
                mean: 2 * SECOND,
                count: 5
            })
        );
        assert_eq!(
            parse("rank=spawned,messages=9"),
            Ok(Fault::Messages {
                victims: Victims::Spawned,
                messages: 9
            })
        );
        for text in [
            "",
            "rank=1",
            "at=3s",
            "rank=4,at=1s",
            "rank=x,at=1s",
            "rank=1,at=soon",
            "random",
            "random,mean=0s",
            "rank=1,during=lunch",
            "rnk=1,at=1s",
            "node=3,at=1s",
            "node=1",
            "node=1,messages=9",
            "node=1,rank=1,at=1s",
            "node=random",
            "node=random,during=replay",
            "random,node=random,mean=1s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(Fault::parse("node=0,at=1s", 4, 1).unwrap_err().contains("--nodes 2"));
    }

    #[test]
    fn nodes_are_killed_too_but_none_that_is_gone_nor_the_last_by_chance() {
        let parse = |text| Fault::parse(text, 4, 3).unwrap();
        assert_eq!(
            parse("node=2,at=3s"),
            Fault::NodeAt {
                node: 2,
                time: 3 * SECOND
            }
        );
        let faults = [
            parse("node=2,at=3s"),
            parse("node=random,at=4s,seed=5"),
            parse("node=random,mean=1s,count=50"),
        ];
        let mut schedule = Schedule::new(&faults, 4);
        let mut killed = Vec::new();
        while let Some(time) = schedule.next_time() {
            killed.extend(schedule.due(time, &[], &[0, 1, 2]));
        }
        assert_eq!(killed.len(), 2);
        assert_ne!(killed[0], killed[1]);
        assert_eq!(
            Schedule::new(&[parse("node=2,at=3s")], 4).due(3 * SECOND, &[], &[0, 1]),
            []
        );
    }

    #[test]
    fn timed_faults_come_due_once() {
        let faults = [
            Fault::At {
                victims: Victims::Rank(1),
                time: SECOND,
            },
            Fault::At {
                victims: Victims::All,
                time: 2 * SECOND,
            },
        ];
        let mut schedule = Schedule::new(&faults, 3);
        assert_eq!(schedule.next_time(), Some(SECOND));
        assert!(schedule.due(Duration::ZERO, &[0, 1, 2], &[]).is_empty());
        assert_eq!(schedule.due(SECOND, &[0, 1, 2], &[]), [Victim::Rank(1)]);
        assert_eq!(
            schedule.due(3 * SECOND, &[0, 2], &[]),
            [Victim::Rank(0), Victim::Rank(2)]
        );
        assert_eq!(schedule.next_time(), None);
    }

    #[test]
    fn a_timed_fault_waits_for_a_process_of_its_rank() {
        let fault = |victims| Fault::At { victims, time: SECOND };
        let faults = [fault(Victims::Rank(1)), fault(Victims::All)];
        let mut schedule = Schedule::new(&faults, 2);
        assert_eq!(schedule.due(SECOND, &[0], &[]), [Victim::Rank(0)]);
        assert_eq!(schedule.next_time(), None);
        assert_eq!(schedule.due(2 * SECOND, &[], &[]), []);
        assert_eq!(schedule.due(2 * SECOND, &[0, 1], &[]), [Victim::Rank(1)]);
        assert_eq!(schedule.due(3 * SECOND, &[0, 1], &[]), []);
    }

    #[test]
    fn message_faults_are_for_one_life_each() {
        let faults = [
            Fault::Messages {
                victims: Victims::Rank(1),
                messages: 10,
            },
            Fault::Messages {
                victims: Victims::All,
                messages: 20,
            },
            Fault::DuringReplay {
                victims: Victims::Rank(0),
            },
        ];
        let mut schedule = Schedule::new(&faults, 2);
        assert_eq!(
            [
                schedule.next_life(1, 0),
                schedule.next_life(1, 10),
                schedule.next_life(1, 20)
            ],
            [10, 20, 0]
        );
        assert_eq!(
            [
                schedule.next_life(0, 0),
                schedule.next_life(0, 20),
                schedule.next_life(0, 10)
            ],
            [20, 10, 0]
        );
    }

    #[test]
    fn spawned_ranks_have_faults_too() {
        let messages = |victims, messages| Fault::Messages { victims, messages };
        let faults = [
            messages(Victims::Spawned, 10),
            messages(Victims::All, 20),
            messages(Victims::Rank(1), 30),
            Fault::At {
                victims: Victims::Spawned,
                time: SECOND,
            },
        ];
        let mut schedule = Schedule::new(&faults, 2);
        schedule.grow(3);
        assert_eq!([0, 1, 2].map(|rank| schedule.next_life(rank, 0)), [20, 20, 10]);
        assert_eq!([0, 1, 2].map(|rank| schedule.next_life(rank, 5)), [0, 30, 20]);
        assert_eq!(schedule.due(SECOND, &[0, 1, 2], &[]), [Victim::Rank(2)]);
    }

    #[test]
    fn random_faults_are_repeatable_and_have_their_mean() {
        let faults = [Fault::Random {
            of_nodes: false,
            seed: 7,
            mean: SECOND,
            count: 1000,
        }];
        let run = || {
            let mut schedule = Schedule::new(&faults, 4);
            let mut all = Vec::new();
            while let Some(time) = schedule.next_time() {
                all.push((time, schedule.due(time, &[0, 1, 2, 3], &[])));
            }
            all
        };
        let first = run();
        assert_eq!(first, run());
        assert_eq!(first.len(), 1000);
        let total = first.last().unwrap().0.as_secs_f64();
        assert!((900.0..1100.0).contains(&total), "{total}");
    }
}

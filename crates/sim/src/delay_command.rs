//! `resurgo-sim delay`: one line of CSV for each checkpoint.

use std::process::ExitCode;

use resurgo_protocol::Rank;
use resurgo_sim::Storage;
use resurgo_sim::delay::{Error, Program, Run, run};
use resurgo_sim::study::Costs;

use crate::command::{list, print, say, scaled, scaled_list};

const USAGE: &str =
    "usage: resurgo-sim delay [--program groups|linpack] [--ranks COUNT] [--communication LIST] [--groups LIST]
                         [--moments LIST] [--barrier S] [--length S] [--panel COLUMNS] [--image MB]
                         [--store MB/S] [--client MB/S] [--latency US] [--bandwidth MB/S]

What a checkpoint costs when the ranks of one group after the other stand still until their images are stored.
One line of CSV for each checkpoint.

  --program WHICH       groups (default): ranks of a group exchange messages all the time; linpack: on rows of 4 ranks
  --ranks COUNT         2 to 4096 (32)
  --communication LIST  ranks of a group that exchange messages (8); for groups
  --groups LIST         ranks that are checkpointed together (all, and halves of it down to 1)
  --moments LIST        when the checkpoint is asked for, in seconds (30)
  --barrier S           all ranks meet every so many seconds (never); for groups
  --length S            of the program, without a checkpoint (180); for groups
  --panel COLUMNS       of the matrix of 30,000 that are factored together (2048); for linpack
  --image MB            of a rank (180)
  --store MB/S          bandwidth of the store, for all ranks together (140)
  --client MB/S         what one rank reaches alone (90)
  --latency US          of a message, in microseconds (5)
  --bandwidth MB/S      of the network interface of a rank (900)";

const HEADER: &str = "program,ranks,communication_group,checkpoint_group,moment_seconds,run_seconds,delay_seconds,total_seconds,individual_seconds";

struct Arguments {
    linpack: bool,
    panel: u64,
    ranks: Rank,
    communication: Vec<Rank>,
    groups: Option<Vec<Rank>>,
    moments: Vec<u64>,
    barrier: u64,
    length: u64,
    costs: Costs,
    storage: Storage,
}

/// Nanoseconds.
const SECOND: f64 = 1e9;
/// Bytes.
const MB: f64 = 1e6;

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        linpack: false,
        panel: 2048,
        ranks: 32,
        communication: vec![8],
        groups: None,
        moments: vec![30_000_000_000],
        barrier: 0,
        length: 180_000_000_000,
        costs: Costs {
            latency: 5_000,
            bandwidth: 900_000_000,
            logger: 0,
            point: None,
        },
        storage: Storage {
            bandwidth: 140_000_000,
            client: 90_000_000,
            image: 180_000_000,
        },
    };
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
        let numbers = || list(&word, &value, |number| number.parse().ok());
        match word.as_str() {
            "--program" => {
                arguments.linpack = list(&word, &value, |name| match name {
                    "groups" => Some(false),
                    "linpack" => Some(true),
                    _ => None,
                })?[0]
            }
            "--ranks" => arguments.ranks = scaled(&word, &value, 1.0)? as Rank,
            "--communication" => arguments.communication = numbers()?,
            "--groups" => arguments.groups = Some(numbers()?),
            "--moments" => {
                arguments.moments = scaled_list(&word, &value, SECOND)?;
            }
            "--panel" => arguments.panel = scaled(&word, &value, 1.0)?,
            "--barrier" => arguments.barrier = scaled(&word, &value, SECOND)?,
            "--length" => arguments.length = scaled(&word, &value, SECOND)?,
            "--image" => arguments.storage.image = scaled(&word, &value, MB)?,
            "--store" => arguments.storage.bandwidth = scaled(&word, &value, MB)?,
            "--client" => arguments.storage.client = scaled(&word, &value, MB)?,
            "--latency" => arguments.costs.latency = scaled(&word, &value, 1e3)?,
            "--bandwidth" => arguments.costs.bandwidth = scaled(&word, &value, MB)?,
            _ => return Err(format!("delay: unknown option {word}\n{USAGE}")),
        }
    }
    Ok(Some(arguments))
}

/// One run without a checkpoint for each program, and one for each group and moment.
fn lines(arguments: &Arguments) -> Result<(), Error> {
    let Arguments {
        ranks, costs, storage, ..
    } = *arguments;
    let halves = || {
        (0..=ranks.ilog2())
            .rev()
            .map(|bit| 1 << bit)
            .filter(|size| *size < ranks)
    };
    let groups = arguments
        .groups
        .clone()
        .unwrap_or_else(|| [ranks].into_iter().chain(halves()).collect());
    let of_groups = |size: &Rank| Program::Groups {
        size: *size,
        barrier: arguments.barrier,
        length: arguments.length,
    };
    let programs: Vec<(Rank, Program)> = match arguments.linpack {
        true => vec![(Program::COLUMNS, Program::Linpack { panel: arguments.panel })],
        false => arguments
            .communication
            .iter()
            .map(|size| (*size, of_groups(size)))
            .collect(),
    };
    say!("{HEADER}");
    for (communication, program) in programs {
        let with = |group, moment| {
            run(Run {
                program,
                ranks,
                group,
                moment,
                costs,
                storage,
            })
        };
        let undisturbed = with(ranks, None)?.run;
        for &group in &groups {
            for &moment in &arguments.moments {
                let times = with(group, Some(moment))?;
                let seconds = |time: u64| time as f64 / SECOND;
                say!(
                    "{},{ranks},{communication},{group},{:.3},{:.3},{:.3},{:.3},{:.3}",
                    program.name(),
                    seconds(moment),
                    seconds(undisturbed),
                    seconds(times.run.saturating_sub(undisturbed)),
                    seconds(times.total),
                    seconds(times.individual),
                );
            }
        }
    }
    Ok(())
}

pub fn delay(words: impl Iterator<Item = String>) -> ExitCode {
    print(parse(words), USAGE, lines)
}

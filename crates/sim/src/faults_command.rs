//! `resurgo-sim faults`: one line of CSV for each rate of faults.

use std::process::ExitCode;

use resurgo_protocol::Rank;
use resurgo_sim::Storage;
use resurgo_sim::faults::{Error, Protocol, Run, run};
use resurgo_sim::study::{Costs, Kernel};

use crate::command::{list, print, say, scaled, scaled_list};

const USAGE: &str = "usage: resurgo-sim faults [--protocols LIST] [--ranks COUNT] [--rounds COUNT] [--intervals LIST] [--seed N]
                          [--image MB] [--server MB/S] [--client MB/S] [--disk MB/S]
                          [--pause S] [--latency US] [--bandwidth MB/S] [--point NS] [--patience TIMES]

How faults slow bt down when all images go to one server, and at which rate it makes no more progress.
One line of CSV for each protocol and rate; inf seconds: no faults, or no end.

  --protocols LIST   pessimistic, local-copies and store-only, which are chandy-lamport (all)
  --ranks COUNT      square numbers, 4 to 4096 (25)
  --rounds COUNT     steps of bt (4000)
  --intervals LIST   seconds from one fault to the next; one hits a random rank, and its node (1200,600,400,300,240,180,120,60,30)
  --seed N           which ranks (1)
  --image MB         of a rank (50)
  --server MB/S      bandwidth of the image server, each way (8.7)
  --client MB/S      what one rank reaches alone (8.7)
  --disk MB/S        what a rank reads from its own disk (40)
  --pause S          from the end of a wave, or of a return to one, to the next (15)
  --latency US       of a message, in microseconds (60)
  --bandwidth MB/S   of the network interface of a rank (11.5)
  --point NS         of computing for each point of bt's grid of 16,384 a rank, in each step (20700)
  --patience TIMES   a run is given up after so many times the undisturbed one of chandy-lamport (10)";

const HEADER: &str = "protocol,ranks,interval_seconds,faults,undisturbed_seconds,run_seconds";

const PROTOCOLS: [(&str, Protocol); 3] = [
    ("pessimistic", Protocol::Pessimistic),
    ("local-copies", Protocol::ChandyLamport { local_copies: true }),
    ("store-only", Protocol::ChandyLamport { local_copies: false }),
];

/// Nanoseconds.
const SECOND: f64 = 1e9;
/// Bytes.
const MB: f64 = 1e6;

struct Arguments {
    protocols: Vec<(&'static str, Protocol)>,
    intervals: Vec<u64>,
    patience: u64,
    /// With no faults.
    run: Run,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let seconds = |seconds: u64| seconds * SECOND as u64;
    let mut arguments = Arguments {
        protocols: PROTOCOLS.to_vec(),
        intervals: [1200, 600, 400, 300, 240, 180, 120, 60, 30].map(seconds).to_vec(),
        patience: 10,
        run: Run {
            protocol: PROTOCOLS[1].1,
            kernel: Kernel::Bt,
            ranks: 25,
            rounds: 4000,
            interval: None,
            seed: 1,
            limit: u64::MAX,
            costs: Costs {
                latency: 60_000,
                bandwidth: 11_500_000,
                logger: 10_000,
                point: Some(20_700),
            },
            storage: Storage {
                bandwidth: 8_700_000,
                client: 8_700_000,
                image: 50_000_000,
            },
            disk: 40_000_000,
            pause: seconds(15),
        },
    };
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
        let run = &mut arguments.run;
        match word.as_str() {
            "--protocols" => {
                let named = |name: &str| PROTOCOLS.into_iter().find(|(known, _)| *known == name);
                arguments.protocols = list(&word, &value, named)?;
            }
            "--intervals" => {
                arguments.intervals = scaled_list(&word, &value, SECOND)?;
            }
            "--ranks" => run.ranks = scaled(&word, &value, 1.0)? as Rank,
            "--rounds" => run.rounds = scaled(&word, &value, 1.0)?,
            "--seed" => run.seed = scaled(&word, &value, 1.0)?,
            "--image" => run.storage.image = scaled(&word, &value, MB)?,
            "--server" => run.storage.bandwidth = scaled(&word, &value, MB)?,
            "--client" => run.storage.client = scaled(&word, &value, MB)?,
            "--disk" => run.disk = scaled(&word, &value, MB)?,
            "--pause" => run.pause = scaled(&word, &value, SECOND)?,
            "--latency" => run.costs.latency = scaled(&word, &value, 1e3)?,
            "--bandwidth" => run.costs.bandwidth = scaled(&word, &value, MB)?,
            "--point" => run.costs.point = Some(scaled(&word, &value, 1.0)?),
            "--patience" => arguments.patience = scaled(&word, &value, 1.0)?,
            _ => return Err(format!("faults: unknown option {word}\n{USAGE}")),
        }
    }
    Ok(Some(arguments))
}

/// Without faults, and at each rate.
fn lines(arguments: &Arguments) -> Result<(), Error> {
    let undisturbed = run(arguments.run)?.time.unwrap_or(u64::MAX);
    say!("{HEADER}");
    for &(name, protocol) in &arguments.protocols {
        for interval in [None].into_iter().chain(arguments.intervals.iter().map(Some)) {
            let outcome = run(Run {
                protocol,
                interval: interval.copied(),
                limit: undisturbed.saturating_mul(arguments.patience),
                ..arguments.run
            })?;
            let seconds = |time: u64| format!("{:.3}", time as f64 / SECOND);
            say!(
                "{name},{},{},{},{},{}",
                arguments.run.ranks,
                interval.copied().map_or("inf".into(), seconds),
                outcome.faults,
                seconds(undisturbed),
                outcome.time.map_or("inf".into(), seconds),
            );
        }
    }
    Ok(())
}

pub fn faults(words: impl Iterator<Item = String>) -> ExitCode {
    print(parse(words), USAGE, lines)
}

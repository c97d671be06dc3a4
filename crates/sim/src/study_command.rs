//! `resurgo-sim study`: one line of CSV for each run.

use std::process::ExitCode;

use resurgo_protocol::Rank;
use resurgo_protocol::causal::Reduction;
use resurgo_sim::study::{Costs, Error, Kernel, Measured, Study, run};

use crate::command::{list, print, say, scaled};

const USAGE: &str =
    "usage: resurgo-sim study [--kernels LIST] [--reductions LIST] [--event-loggers LIST] [--ranks LIST]
                         [--messages COUNT] [--latency US] [--bandwidth MB/S] [--logger US] [--point NS]
                         [--memory GIB]

Model programs with the communication of the kernels under causal message logging, without failures: what is
piggybacked, and what a lost rank collects. One line of CSV for each run.

  --kernels LIST        of cg,lu,bt,ft,pingpong (cg,lu,bt,ft)
  --reductions LIST     of vcausal,manetho,logon,none (vcausal,manetho,logon); none: nothing is piggybacked
  --event-loggers LIST  numbers of them (1,0)
  --ranks LIST          2 to 4096 (16)
  --messages COUNT      the run ends after so many deliveries (100000)
  --latency US          of a message, in microseconds (50)
  --bandwidth MB/S      of the interface of a rank or event logger (11.5)
  --logger US           time of an event logger for a frame, in microseconds (30)
  --point NS            time of a program for a point of its grid, in nanoseconds (the kernel's own on the
                        processors of Bouteiller 2005; so are the other three)
  --memory GIB          refuse runs that would keep more (8)";

const HEADER: &str = "kernel,reduction,event_loggers,ranks,messages,payload_bytes,piggyback_bytes,events,empty_messages,\
                      most_kept,mean_kept,model_seconds,making_seconds,taking_in_seconds,collected_bytes,\
                      collected_events,collection_model_seconds,collection_taking_in_seconds";

const REDUCTIONS: [(&str, Option<Reduction>); 4] = [
    ("vcausal", Some(Reduction::Vcausal)),
    ("manetho", Some(Reduction::Manetho)),
    ("logon", Some(Reduction::LogOn)),
    ("none", None),
];

struct Arguments {
    kernels: Vec<Kernel>,
    reductions: Vec<(&'static str, Option<Reduction>)>,
    loggers: Vec<usize>,
    ranks: Vec<Rank>,
    messages: u64,
    costs: Costs,
    memory: u64,
}

fn parse(words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        kernels: vec![Kernel::Cg, Kernel::Lu, Kernel::Bt, Kernel::Ft],
        reductions: REDUCTIONS[..3].to_vec(),
        loggers: vec![1, 0],
        ranks: vec![16],
        messages: 100_000,
        costs: Costs {
            latency: 50_000,
            bandwidth: 11_500_000,
            logger: 30_000,
            point: None,
        },
        memory: 8,
    };
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
        match word.as_str() {
            "--kernels" => {
                let named = |name: &str| Kernel::ALL.into_iter().find(|kernel| kernel.name() == name);
                arguments.kernels = list(&word, &value, named)?;
            }
            "--reductions" => {
                let named = |name: &str| REDUCTIONS.into_iter().find(|(known, _)| *known == name);
                arguments.reductions = list(&word, &value, named)?;
            }
            "--event-loggers" => arguments.loggers = list(&word, &value, |number| number.parse().ok())?,
            "--ranks" => arguments.ranks = list(&word, &value, |number| number.parse().ok())?,
            "--messages" => arguments.messages = scaled(&word, &value, 1.0)?,
            "--latency" => arguments.costs.latency = scaled(&word, &value, 1e3)?,
            "--bandwidth" => arguments.costs.bandwidth = scaled(&word, &value, 1e6)?,
            "--logger" => arguments.costs.logger = scaled(&word, &value, 1e3)?,
            "--point" => arguments.costs.point = Some(scaled(&word, &value, 1.0)?),
            "--memory" => arguments.memory = scaled(&word, &value, 1.0)?,
            _ => return Err(format!("study: unknown option {word}\n{USAGE}")),
        }
    }
    Ok(Some(arguments))
}

fn line(study: &Study, reduction: &str, measured: &Measured) -> String {
    let seconds = |nanoseconds: u64| nanoseconds as f64 * 1e-9;
    let collection = &measured.collection;
    format!(
        "{},{reduction},{},{},{},{},{},{},{},{},{:.1},{:.6},{:.6},{:.6},{},{},{:.6},{:.6}",
        study.kernel.name(),
        study.event_loggers,
        study.ranks,
        measured.messages,
        measured.payload_bytes,
        measured.piggyback_bytes,
        measured.events,
        measured.empty,
        measured.most_kept,
        measured.mean_kept,
        seconds(measured.time),
        measured.making.as_secs_f64(),
        measured.taking_in.as_secs_f64(),
        collection.bytes,
        collection.events,
        seconds(collection.time),
        collection.taking_in.as_secs_f64(),
    )
}

/// All requested combinations; ends at the first that cannot run.
pub fn study(words: impl Iterator<Item = String>) -> ExitCode {
    print(parse(words), USAGE, lines)
}

fn lines(arguments: &Arguments) -> Result<(), Error> {
    say!("{HEADER}");
    for &kernel in &arguments.kernels {
        for &ranks in &arguments.ranks {
            for &(name, reduction) in &arguments.reductions {
                // Nothing is logged where nothing is piggybacked.
                let loggers = if reduction.is_some() {
                    &arguments.loggers[..]
                } else {
                    &[0]
                };
                for &event_loggers in loggers {
                    let study = Study {
                        kernel,
                        ranks,
                        reduction,
                        event_loggers,
                        messages: arguments.messages,
                        costs: arguments.costs,
                    };
                    say!("{}", line(&study, name, &run(study, arguments.memory << 10)?));
                }
            }
        }
    }
    Ok(())
}

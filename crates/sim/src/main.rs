//! `resurgo-sim`: runs seeds until one breaks an invariant, or one seed with its trace.

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Instant;

use resurgo_protocol::Tolerate;
use resurgo_sim::{Failure, Mutation, Options, Outcome, Report, simulate};

const USAGE: &str = "usage: resurgo-sim [--seeds COUNT] [--from SEED] [--seed N [--trace]]
                   [--tolerate process|node|both] [--mutations]

  --seeds COUNT     run so many seeds (10000) and stop at the first that breaks an invariant
  --from SEED       first of them (0)
  --seed N          run this one; a failure shows its last events
  --trace           show them in any case
  --tolerate WHICH  the failure that must be survived (both)
  --mutations       break the protocol on purpose: how many seeds does each variant survive";

struct Arguments {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    trace: bool,
    mutations: bool,
    tolerate: Vec<Tolerate>,
}

fn parse() -> Result<Option<Arguments>, String> {
    let both = vec![Tolerate::Process, Tolerate::Node];
    let mut arguments = Arguments {
        seeds: 10_000,
        from: 0,
        seed: None,
        trace: false,
        mutations: false,
        tolerate: both,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            "--seeds" => arguments.seeds = number(value()?)?,
            "--from" => arguments.from = number(value()?)?,
            "--seed" => arguments.seed = Some(number(value()?)?),
            "--trace" => arguments.trace = true,
            "--mutations" => arguments.mutations = true,
            "--tolerate" => {
                arguments.tolerate = match value()?.as_str() {
                    "process" => vec![Tolerate::Process],
                    "node" => vec![Tolerate::Node],
                    "both" => arguments.tolerate,
                    other => return Err(format!("--tolerate {other}: process, node or both")),
                }
            }
            "-h" | "--help" => return Ok(None),
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    Ok(Some(arguments))
}

thread_local! {
    /// The run under way, for the message of a failed assertion.
    static CURRENT: Cell<Option<(u64, Tolerate)>> = const { Cell::new(None) };
}

fn name(tolerate: Tolerate) -> &'static str {
    match tolerate {
        Tolerate::Process => "process",
        Tolerate::Node => "node",
    }
}

fn run(seed: u64, tolerate: Tolerate, mutation: Option<Mutation>, trace: bool) -> Result<Report, Failure> {
    CURRENT.set(Some((seed, tolerate)));
    simulate(seed, Options { tolerate, mutation }, trace)
}

fn show(seed: u64, tolerate: Tolerate, failure: &Failure) {
    for line in &failure.trace {
        println!("{line}");
    }
    println!("{failure}");
    println!(
        "reproduce: cargo run -p resurgo-sim -- --tolerate {} --seed {seed}",
        name(tolerate)
    );
}

fn one(seed: u64, arguments: &Arguments) -> bool {
    let mut good = true;
    for &tolerate in &arguments.tolerate {
        match run(seed, tolerate, None, true) {
            Ok(report) => println!("seed {seed}, {}: {report:?}", name(tolerate)),
            Err(failure) => {
                show(seed, tolerate, &failure);
                good = false;
            }
        }
    }
    good
}

fn many(arguments: &Arguments) -> bool {
    for &tolerate in &arguments.tolerate {
        let start = Instant::now();
        let (mut events, mut deliveries, mut crashes, mut loggers, mut lost) = (0, 0, 0, 0, 0);
        for seed in arguments.from..arguments.from + arguments.seeds {
            match run(seed, tolerate, None, false) {
                Ok(report) => {
                    events += report.events;
                    deliveries += report.deliveries;
                    crashes += report.crashes;
                    loggers += report.logger_crashes;
                    lost += u64::from(matches!(report.outcome, Outcome::HistoryLost { .. }));
                }
                Err(failure) => {
                    let again = run(seed, tolerate, None, true);
                    show(seed, tolerate, again.as_ref().err().unwrap_or(&failure));
                    return false;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{}: {} seeds in {seconds:.1} s ({:.0} a second): {events} events, {deliveries} deliveries, {crashes} crashes, \
             {loggers} of event loggers, {lost} losses beyond what is tolerated, all reported",
            name(tolerate),
            arguments.seeds,
            arguments.seeds as f64 / seconds
        );
    }
    true
}

fn mutations(arguments: &Arguments) -> bool {
    let mut good = true;
    for (mutation, tolerate) in Mutation::ALL {
        let seeds = arguments.from..arguments.from + arguments.seeds;
        let caught = seeds
            .clone()
            .find_map(|seed| Some((seed, run(seed, tolerate, Some(mutation), false).err()?)));
        match caught {
            Some((seed, failure)) => {
                println!("{mutation:?} ({}): seed {seed}: {failure}", name(tolerate));
            }
            None => {
                println!(
                    "{mutation:?} ({}): not seen in {} seeds",
                    name(tolerate),
                    arguments.seeds
                );
                good = false;
            }
        }
    }
    good
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("resurgo-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some((seed, tolerate)) = CURRENT.get() {
            eprintln!(
                "an assertion failed: resurgo-sim --tolerate {} --seed {seed}",
                name(tolerate)
            );
        }
        report(panic);
    }));
    let good = match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None if arguments.mutations => mutations(&arguments),
        None => many(&arguments),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

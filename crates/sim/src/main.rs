//! `resurgo-sim`: runs seeds until one breaks an invariant, or one seed with its trace.

mod command;
mod delay_command;
mod faults_command;
mod restarts_command;
mod study_command;

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Instant;

use command::{or_end, say};
use resurgo_sim::{Failure, Loggers, Mutation, Options, Outcome, Piggybacks, Report, Setting, Spread, simulate};

const USAGE: &str = "usage: resurgo-sim [--seeds COUNT] [--from SEED] [--seed N [--trace]]
                   [--tolerate process|node|node-in-place|vcausal|manetho|logon|vcausal-in-place|manetho-in-place|
                               logon-in-place|vcausal-on-nodes|manetho-on-nodes|logon-on-nodes|
                               pessimistic-on-nodes|auto|auto-with-full-logs|blocking|chandy-lamport|group|blocking-on-nodes|
                               chandy-lamport-on-nodes|group-on-nodes|auto-on-nodes|blocking-with-parity|
                               chandy-lamport-with-parity|group-with-parity|auto-with-parity|hierarchical|
                               channel-memory|survivors|recovering-survivors|all]
                   [--mutations]
                   [--event-loggers COUNT] [--clock-spread multicast|broadcast|piggyback]
       resurgo-sim study --help
       resurgo-sim delay --help
       resurgo-sim faults --help
       resurgo-sim restarts --help

  --seeds COUNT     run so many seeds (10000) and stop at the first that breaks an invariant
  --from SEED       first of them (0)
  --seed N          run this one; a failure shows its last events
  --trace           show them in any case
  --tolerate WHICH  the failure that must be survived (all); node-in-place: ready for the loss of nodes,
                    but only processes fail; vcausal, manetho, logon: causal logging, nodes fail, or in
                    place, or with all of their ranks;
                    auto: processes fail, images are taken in waves, and sometimes all ranks return to one;
                    blocking, chandy-lamport, group: processes fail, and all ranks return to a wave;
                    with -on-nodes: nodes fail, too, stand still, or are cut off;
                    with -with-parity: the same, and images of waves have parity instead of copies;
                    hierarchical: processes fail, and each takes its group with it to a wave;
                    channel-memory: nodes fail, and all messages are in channel memories;
                    survivors: processes and nodes fail, and the program deals with that; recovering-survivors: each
                    process comes back some times first
  --event-loggers   causal logging's (0 to 3, as the seed has it)
  --clock-spread    how ranks learn what the event loggers of others have (as the seed has it, or multicast)
  --mutations       break the protocol on purpose: how many seeds does each variant survive";

struct Arguments {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    trace: bool,
    mutations: bool,
    settings: Vec<Setting>,
    loggers: Option<Loggers>,
}

fn parse() -> Result<Option<Arguments>, String> {
    let all = Setting::ALL.to_vec();
    let mut arguments = Arguments {
        seeds: 10_000,
        from: 0,
        seed: None,
        trace: false,
        mutations: false,
        settings: all,
        loggers: None,
    };
    let any = Loggers {
        count: 2,
        spread: Spread::Multicast,
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
            "--event-loggers" => {
                let count = number(value()?)? as usize;
                arguments.loggers = Some(Loggers {
                    count,
                    ..arguments.loggers.unwrap_or(any)
                });
            }
            "--clock-spread" => {
                let which = value()?;
                let known = Spread::ALL.into_iter().find(|spread| spread.name() == which);
                let unknown = || format!("--clock-spread {which}: multicast, broadcast or piggyback");
                let spread = known.ok_or_else(unknown)?;
                arguments.loggers = Some(Loggers {
                    spread,
                    ..arguments.loggers.unwrap_or(any)
                });
            }
            "--mutations" => arguments.mutations = true,
            "--tolerate" => {
                let which = value()?;
                if which != "all" {
                    let known = Setting::ALL.into_iter().find(|setting| setting.name() == which);
                    let unknown = || format!("--tolerate {which}: one of the names below, or all\n{USAGE}");
                    arguments.settings = vec![known.ok_or_else(unknown)?];
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
    static CURRENT: Cell<Option<(u64, Setting)>> = const { Cell::new(None) };
}

fn run(
    seed: u64,
    setting: Setting,
    loggers: Option<Loggers>,
    mutation: Option<Mutation>,
    trace: bool,
) -> Result<Report, Failure> {
    CURRENT.set(Some((seed, setting)));
    let options = Options {
        setting,
        mutation,
        loggers,
    };
    simulate(seed, options, trace)
}

fn show(seed: u64, setting: Setting, failure: &Failure) {
    for line in &failure.trace {
        say!("{line}");
    }
    say!("{failure}");
    say!(
        "reproduce: cargo run -p resurgo-sim -- --tolerate {} --seed {seed}",
        setting.name()
    );
}

fn one(seed: u64, arguments: &Arguments) -> bool {
    let mut good = true;
    for &setting in &arguments.settings {
        match run(seed, setting, arguments.loggers, None, true) {
            Ok(report) => {
                if arguments.trace {
                    report.trace.iter().for_each(|line| say!("{line}"));
                }
                say!(
                    "seed {seed}, {}: {} ranks, {} events, {} crashes, {} of the event logger, {} {}: {:?}",
                    setting.name(),
                    report.ranks,
                    report.events,
                    report.crashes,
                    report.logger_crashes,
                    report.images,
                    if setting.protocol().only_waves() {
                        "waves"
                    } else {
                        "images"
                    },
                    report.outcome
                );
            }
            Err(failure) => {
                show(seed, setting, &failure);
                good = false;
            }
        }
    }
    good
}

fn many(arguments: &Arguments) -> bool {
    for &setting in &arguments.settings {
        let start = Instant::now();
        let (mut events, mut deliveries, mut crashes, mut loggers, mut lost) = (0, 0, 0, 0, 0);
        let (mut images, mut from_images, mut fallbacks) = (0, 0, 0);
        let mut piggybacks = Piggybacks::default();
        for seed in arguments.from..arguments.from + arguments.seeds {
            match run(seed, setting, arguments.loggers, None, false) {
                Ok(report) => {
                    events += report.events;
                    deliveries += report.deliveries;
                    crashes += report.crashes;
                    loggers += report.logger_crashes;
                    images += report.images;
                    piggybacks.add(&report.piggybacks);
                    from_images += report.from_images;
                    fallbacks += report.fallbacks;
                    lost += u64::from(matches!(report.outcome, Outcome::HistoryLost { .. }));
                }
                Err(failure) => {
                    let again = run(seed, setting, arguments.loggers, None, true);
                    show(seed, setting, again.as_ref().err().unwrap_or(&failure));
                    return false;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        if setting.protocol().only_waves() {
            say!(
                "{}: {} seeds in {seconds:.1} s ({:.0} a second): {events} events, {deliveries} deliveries, \
                 {crashes} crashes, {images} waves, {fallbacks} dropped, {from_images} returns to one",
                setting.name(),
                arguments.seeds,
                arguments.seeds as f64 / seconds
            );
            continue;
        }
        if let Setting::Causal(_) | Setting::Gathering(_) | Setting::CausalOnNodes(_) = setting {
            let each = |what: u64| what as f64 / piggybacks.messages as f64;
            say!(
                "{}: {} messages: {:.2} events and {:.1} bytes each, {:.0}% without events; at most {} events kept",
                setting.name(),
                piggybacks.messages,
                each(piggybacks.events),
                each(piggybacks.bytes),
                100.0 * each(piggybacks.empty),
                piggybacks.largest_graph
            );
        }
        say!(
            "{}: {} seeds in {seconds:.1} s ({:.0} a second): {events} events, {deliveries} deliveries, {crashes} crashes, \
             {loggers} of event loggers, {images} images, {from_images} lives from one, {fallbacks} found destroyed, \
             {lost} losses beyond what is tolerated, all reported",
            setting.name(),
            arguments.seeds,
            arguments.seeds as f64 / seconds
        );
    }
    true
}

fn mutations(arguments: &Arguments) -> bool {
    let mut good = true;
    let those = Mutation::ALL.into_iter();
    for (mutation, setting) in those.filter(|(_, setting)| arguments.settings.contains(setting)) {
        let seeds = arguments.from..arguments.from + arguments.seeds;
        let caught = seeds.clone().find_map(|seed| {
            Some((
                seed,
                run(seed, setting, arguments.loggers, Some(mutation), false).err()?,
            ))
        });
        match caught {
            Some((seed, failure)) => {
                say!("{mutation:?} ({}): seed {seed}: {failure}", setting.name());
            }
            None => {
                say!(
                    "{mutation:?} ({}): not seen in {} seeds",
                    setting.name(),
                    arguments.seeds
                );
                good = false;
            }
        }
    }
    good
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("study") => return study_command::study(words),
        Some("delay") => return delay_command::delay(words),
        Some("faults") => return faults_command::faults(words),
        Some("restarts") => return restarts_command::restarts(words),
        _ => {}
    }
    let arguments = match or_end(parse(), USAGE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some((seed, setting)) = CURRENT.get() {
            eprintln!(
                "an assertion failed: resurgo-sim --tolerate {} --seed {seed}",
                setting.name()
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

//! `resurgo advise`: which protocol, how often images, how many replicas.

use std::ffi::OsString;
use std::path::Path;

use resurgo_runtime::advice::{Given, table, to_json};
use resurgo_runtime::units::{one_line, parse_duration, parse_size};

use crate::options::share;
use crate::text_file;

/// Larger files are none of `--stats-json`.
const MOST: u64 = 64 << 20;

/// `resurgo advise [FILE] [options]`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    match advise(arguments) {
        Ok(text) => {
            crate::say::print(&text);
            0
        }
        Err(reason) => {
            eprintln!("resurgo: advise: {}", one_line(&reason));
            i32::from(crate::check::USAGE)
        }
    }
}

fn advise(arguments: Vec<OsString>) -> Result<String, String> {
    let (mut told, mut of_run, mut as_json) = (Given::default(), None, false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let word = argument.to_string_lossy().into_owned();
        if word == "--json" {
            as_json = true;
        } else if word.starts_with("--") {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_string(), Some(value.to_string())),
                None => (word, None),
            };
            let value = value.or_else(|| Some(arguments.next()?.to_string_lossy().into_owned()));
            let value = value.ok_or_else(|| format!("{name} needs a value"))?;
            take(&mut told, &name, &value)?;
        } else if of_run.is_none() {
            of_run = Some(read(Path::new(&argument))?);
        } else {
            return Err(format!("one file of --stats-json, not also {word:?}"));
        }
    }
    let figures = told.or(of_run.unwrap_or_default()).figures()?;
    Ok(match as_json {
        true => format!("{:#}\n", to_json(&figures)),
        false => table(&figures).join("\n") + "\n",
    })
}

fn read(path: &Path) -> Result<Given, String> {
    let whole = |reason: String| format!("{}: {reason}", path.display());
    let text = text_file::read(path, MOST).map_err(whole)?;
    let stats = serde_json::from_slice(&text).map_err(|_| whole("it is no file of --stats-json".into()))?;
    Given::of_run(&stats).map_err(whole)
}

fn take(told: &mut Given, name: &str, value: &str) -> Result<(), String> {
    let wrong = |reason: String| format!("{name} {value}: {reason}");
    let positive = |number: f64| match number {
        0.0 => Err(wrong("must be greater than 0".to_string())),
        number => Ok(Some(number)),
    };
    let time = || positive(parse_duration(value).map_err(wrong)?.as_secs_f64());
    let size = || positive(parse_size(value).map_err(wrong)? as f64);
    let count = |least: u32| {
        let number = value.parse().ok().filter(|number| (least..=1 << 20).contains(number));
        number
            .map(Some)
            .ok_or_else(|| wrong(format!("must be a number, at least {least}")))
    };
    match name {
        "--nodes" => told.nodes = count(1)?,
        "--at-once" => told.at_once = count(0)?,
        "--time" => told.work = time()?,
        "--mtbf" => told.mtbf = time()?,
        "--outage" => told.outage = time()?,
        "--cost" => told.cost = time()?,
        "--restart" => told.restart = time()?,
        "--image" => told.image = size()?,
        "--bandwidth" => told.link = size()?,
        "--place" => told.place = size()?,
        "--log-growth" => told.log_growth = size()?,
        "--logging" => told.logging = Some(share(value).map_err(wrong)?),
        "--slowdown" => told.slowdown = Some(share(value).map_err(wrong)?),
        _ => return Err(format!("there is no option {name}; resurgo advise --help lists them")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<String, String> {
        advise(words.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn figures_alone_are_enough() {
        let text = of("--image 2G --cost 3s --mtbf 12h --bandwidth 100M --nodes 64").unwrap();
        assert!(
            text.contains("24.0 h of work on 64 nodes; every 12.0 h a failure of a node"),
            "{text}"
        );
        assert!(
            text.contains("\ntake: --protocol blocking --checkpoint-every "),
            "{text}"
        );
        assert!(text.contains("\nbecause "), "{text}");
        let value: serde_json::Value = serde_json::from_str(&of("--cost=1s --mtbf 60s --json").unwrap()).unwrap();
        assert_eq!(value["nodes"], 1);
        assert_eq!(value["nodes_at_once"], 0);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (words, said) in [
            ("--nodes 4 --cost 1s", "give --image"),
            ("--image 1G", "give --cost"),
            ("--mtbf", "--mtbf needs a value"),
            ("--mtbf 0s", "greater than 0"),
            ("--cost fast", "not a duration"),
            ("--nodes 0", "at least 1"),
            ("--slowdown 200%", "share"),
            ("--interval 3s", "no option --interval"),
            ("/nonexistent", "No such file"),
            ("/proc/self/status", "no file of --stats-json"),
        ] {
            let error = of(words).unwrap_err();
            assert!(error.contains(said), "{words}: {error}");
        }
    }
}

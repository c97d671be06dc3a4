//! What the commands of `resurgo-sim` share: numbers and lists on their command lines, and their ends.

use std::fmt::Display;
use std::process::ExitCode;

/// Prints a line; ends the process when nobody reads any more (`| head`).
macro_rules! say {
    ($($words:tt)*) => {
        {
            use std::io::Write;
            if writeln!(std::io::stdout(), $($words)*).is_err() {
                std::process::exit(0);
            }
        }
    };
}
pub(crate) use say;

/// `words` of a list, each of which `known` must know.
pub fn list<T>(option: &str, words: &str, known: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let one = |word: &str| known(word).ok_or_else(|| format!("{option}: {word:?} is none of what it takes"));
    words.split(',').map(one).collect()
}

/// A positive number of `unit`s.
pub fn scaled(option: &str, text: &str, unit: f64) -> Result<u64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number < 1e9);
    let number = number.ok_or_else(|| format!("{option} {text}: a positive number is needed"))?;
    Ok(((number * unit).round() as u64).max(1))
}

/// The same of each part between commas.
pub fn scaled_list(word: &str, value: &str, unit: f64) -> Result<Vec<u64>, String> {
    value.split(',').map(|part| scaled(word, part, unit)).collect()
}

/// The arguments; where there are none, help or the error is printed, and this is the code to end with.
pub fn or_end<T>(parsed: Result<Option<T>, String>, usage: &str) -> Result<T, ExitCode> {
    match parsed {
        Ok(Some(arguments)) => Ok(arguments),
        Ok(None) => {
            say!("{usage}");
            Err(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("resurgo-sim: {error}");
            Err(ExitCode::from(2))
        }
    }
}

/// A command that prints lines, to its end or to the first impossible one.
pub fn print<T, E: Display>(
    parsed: Result<Option<T>, String>,
    usage: &str,
    lines: impl FnOnce(&T) -> Result<(), E>,
) -> ExitCode {
    let arguments = match or_end(parsed, usage) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match lines(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("resurgo-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

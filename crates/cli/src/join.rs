//! `resurgo join`: its command line.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

use resurgo_wire::control::join::SHORTEST_TOKEN;

use crate::{check, text_file};

/// The variable that may hold the token.
const VARIABLE: &str = "RESURGO_JOIN_TOKEN";
/// Longest token, in bytes.
const LONGEST_TOKEN: u64 = 1 << 12;

/// What the command line asks for.
struct Asked {
    address: String,
    slots: u32,
    token_file: Option<OsString>,
}

/// Joins a job; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let asked = read(arguments).and_then(|asked| {
        let token = token(asked.token_file.as_deref())?;
        Ok((asked, token))
    });
    match asked {
        Ok((asked, token)) => {
            // The ranks' environment comes from the job; the join's own does not matter to them.
            resurgo_runtime::join::run(&asked.address, &token, asked.slots)
        }
        Err(error) => {
            eprintln!("resurgo: {error}");
            i32::from(check::USAGE)
        }
    }
}

fn read(arguments: Vec<OsString>) -> Result<Asked, String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut asked = Asked {
        address: String::new(),
        slots: cores as u32,
        token_file: None,
    };
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        let text = word
            .into_string()
            .map_err(|word| format!("{:?} is not UTF-8", word.display()))?;
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_string(), Some(OsString::from(value))),
            _ => (text, None),
        };
        let mut value = || {
            let value = attached.clone().or_else(|| words.next());
            value.ok_or_else(|| format!("{name} needs a value"))
        };
        match name.as_str() {
            "--slots" => {
                let slots = value()?;
                let number = slots
                    .to_str()
                    .and_then(|slots| slots.parse().ok())
                    .filter(|slots| *slots > 0);
                asked.slots = number.ok_or_else(|| format!("--slots {}: must be at least 1", slots.display()))?;
            }
            "--token-file" => asked.token_file = Some(value()?),
            name if name.starts_with('-') => {
                return Err(format!("join has no option {name}; try: resurgo join --help"));
            }
            address if asked.address.is_empty() => asked.address = address.to_string(),
            more => return Err(format!("join takes one address, and {more:?} is another word")),
        }
    }
    match asked.address.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(asked),
        _ => Err("join needs the address of a job, HOST:PORT; resurgo run --launcher join prints it".to_string()),
    }
}

/// The token, from a file, the environment, or standard input.
fn token(file: Option<&OsStr>) -> Result<String, String> {
    if let Some(file) = file {
        return of_file(Path::new(file)).map_err(|why| format!("--token-file {}: {why}", file.display()));
    }
    let (text, place) = match std::env::var(VARIABLE) {
        Ok(text) => (text, VARIABLE),
        Err(_) => {
            if io::stdin().is_terminal() {
                eprint!("token of the job: ");
            }
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line);
            read.map_err(|error| format!("the token cannot be read from standard input: {error}"))?;
            (line, "standard input")
        }
    };
    checked(&text).map_err(|why| format!("{place}: {why}"))
}

/// The token in a file.
pub fn of_file(file: &Path) -> Result<String, String> {
    checked(&String::from_utf8_lossy(&text_file::read(file, LONGEST_TOKEN)?))
}

fn checked(text: &str) -> Result<String, String> {
    match text.trim() {
        token if token.chars().count() < SHORTEST_TOKEN => Err(format!(
            "a token has {SHORTEST_TOKEN} characters or more; resurgo run --launcher join prints one"
        )),
        token => Ok(token.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_port_and_options() {
        let read = |line: &str| read(line.split_whitespace().map(OsString::from).collect());
        let asked = read("--slots 3 n1:70 --token-file=t").ok().unwrap();
        assert_eq!((asked.address.as_str(), asked.slots), ("n1:70", 3));
        assert_eq!(asked.token_file.as_deref(), Some(OsStr::new("t")));
        assert_eq!(read("[fd00::1]:70").ok().unwrap().address, "[fd00::1]:70");
        for (line, why) in [
            ("", "HOST:PORT"),
            ("n1", "HOST:PORT"),
            ("n1:70 n2:70", "one address"),
            ("--slots 0 n1:70", "at least 1"),
            ("--token x n1:70", "no option --token"),
            ("n1:70 --slots", "needs a value"),
        ] {
            let error = read(line).err().unwrap();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(checked(" short \n").is_err() && checked("0123456789abcdef\n").unwrap() == "0123456789abcdef");
    }
}

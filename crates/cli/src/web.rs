//! `resurgo web`: a running job in a browser, or the trace of one. FT-MPI's console had such a front-end (Gabriel 2003,
//! §3.3).

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use resurgo_runtime::units::one_line;

use crate::site::Door;
use crate::{jobs, say, trace};

/// Where it listens without `--listen`: at a free port.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    listen: SocketAddr,
    control: bool,
    /// Or the file of a trace.
    job: Vec<OsString>,
}

/// `resurgo web [--listen ADDR:PORT] [--control] [JOB | TRACE]`.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let wanted = match read(arguments) {
        Ok(wanted) => wanted,
        Err(why) => return say::usage(&why),
    };
    match &wanted.job[..] {
        [file] if is_trace(file) => show_trace(&wanted, Path::new(file)),
        _ => show_job(&wanted),
    }
}

/// Whether the word is the file of a trace, not a job: jobs have numbers.
fn is_trace(word: &OsStr) -> bool {
    let is_number = word.to_string_lossy().parse::<u32>().is_ok();
    !is_number && Path::new(word).exists()
}

fn show_job(wanted: &Wanted) -> i32 {
    let job = match jobs::wanted("web", &wanted.job) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let number = job.number;
    let door = match opened(wanted) {
        Ok(door) => door,
        Err(code) => return code,
    };
    match door.show_job(job, wanted.control) {
        Ok(end) => {
            say::print(&format!("job {number}: {end}\n"));
            0
        }
        Err(error) => cannot_serve(wanted, &error),
    }
}

/// The picture of a trace, until the user ends it.
fn show_trace(wanted: &Wanted, file: &Path) -> i32 {
    if wanted.control {
        return say::usage("web --control is for a job that runs, not for a trace");
    }
    let picture = match trace::picture_of(file) {
        Ok(picture) => picture,
        Err(why) => return say::usage(&format!("web: {}", one_line(&why))),
    };
    let door = match opened(wanted) {
        Ok(door) => door,
        Err(code) => return code,
    };
    match door.show_picture(picture) {
        Ok(()) => 0,
        Err(error) => cannot_serve(wanted, &error),
    }
}

fn opened(wanted: &Wanted) -> Result<Door, i32> {
    let door = Door::at(wanted.listen).map_err(|why| say::failed(&why))?;
    say::print(&format!("{}\n", door.address()));
    door.warn();
    Ok(door)
}

fn cannot_serve(wanted: &Wanted, error: &io::Error) -> i32 {
    say::failed(&format!("cannot serve at {}: {error}", wanted.listen))
}

fn read(arguments: Vec<OsString>) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        listen: HERE,
        control: false,
        job: Vec::new(),
    };
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let (option, value) = match text.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option.to_string(), Some(value.to_string())),
            _ => (text, None),
        };
        match (option.as_str(), value) {
            ("--control", None) => wanted.control = true,
            ("--listen", value) => {
                let value = value.or_else(|| words.next().map(|word| word.to_string_lossy().into_owned()));
                let value = value.ok_or("--listen needs ADDR:PORT, as in --listen 127.0.0.1:8080")?;
                wanted.listen = value
                    .parse()
                    .map_err(|_| format!("--listen {value:?} is not ADDR:PORT, as in 127.0.0.1:8080 or [::1]:0"))?;
            }
            (option, _) if option.starts_with('-') => {
                return Err(format!(
                    "web has no option {option:?}; there are --listen ADDR:PORT and --control"
                ));
            }
            _ => wanted.job.push(word),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(words: &[&str]) -> Result<Wanted, String> {
        read(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn jobs_have_numbers_and_traces_are_files() {
        assert!(is_trace(OsStr::new("/dev/null")) && !is_trace(OsStr::new("/nowhere/trace")));
        assert!(!is_trace(OsStr::new("4711")));
    }

    #[test]
    fn options_and_a_job() {
        let found = wanted(&["--control", "7", "--listen=[::1]:80"]).unwrap();
        assert_eq!((found.control, found.job), (true, vec![OsString::from("7")]));
        assert_eq!(found.listen, "[::1]:80".parse().unwrap());
        assert_eq!(wanted(&[]).unwrap().listen, HERE);
        assert_eq!(wanted(&["--listen", "127.0.0.1:9"]).unwrap().listen.port(), 9);
        for (words, why) in [
            (&["--listen"][..], "needs ADDR:PORT"),
            (&["--listen", "localhost"], "is not ADDR:PORT"),
            (&["--control=yes"], "no option"),
            (&["-x"], "no option"),
        ] {
            assert!(wanted(words).unwrap_err().contains(why), "{words:?}");
        }
    }
}

//! `resurgo web`: a running job in a browser. FT-MPI's console had such a front-end (Gabriel 2003, §3.3).

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::site::Opened;
use crate::{jobs, say};

/// Where it listens without `--listen`: at a free port.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    listen: SocketAddr,
    control: bool,
    job: Vec<OsString>,
}

/// `resurgo web [--listen ADDR:PORT] [--control] [JOB]`.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let wanted = match read(arguments) {
        Ok(wanted) => wanted,
        Err(why) => return say::usage(&why),
    };
    let job = match jobs::wanted("web", &wanted.job) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let number = job.number;
    let opened = match Opened::at(wanted.listen, number, wanted.control) {
        Ok(opened) => opened,
        Err(why) => return say::failed(&why),
    };
    say::print(&format!("{}\n", opened.address()));
    opened.warn();
    match opened.serve(job) {
        Ok(end) => {
            say::print(&format!("job {number}: {end}\n"));
            0
        }
        Err(error) => say::failed(&format!("cannot serve at {}: {error}", wanted.listen)),
    }
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

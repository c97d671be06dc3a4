//! `resurgo checkpoint-server`: keeps images for other machines.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use resurgo_runtime::units::{one_line, parse_duration, parse_size};
use resurgo_store::{PORT, Server, Settings};

const OPTIONS: [&str; 5] = ["--directory", "--listen", "--key-file", "--quota", "--expire"];

struct Given {
    settings: Settings,
    listen: String,
}

fn parse(arguments: Vec<OsString>) -> Result<Given, String> {
    let mut given = Given {
        settings: Settings::default(),
        listen: PORT.to_string(),
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let (option, value) = match text.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option.to_string(), Some(OsString::from(value))),
            _ => (text.to_string(), None),
        };
        if !OPTIONS.contains(&option.as_str()) {
            let near = crate::near::nearest(&option, &OPTIONS).unwrap_or("--directory");
            return Err(format!(
                "checkpoint-server has no option {option:?}; did you mean {near}?"
            ));
        }
        let value = value.or_else(|| arguments.next());
        let value = value.ok_or_else(|| format!("{option} needs a value"))?;
        let text = value.to_string_lossy();
        let wrong = |error: String| format!("{option} {error}");
        let settings = &mut given.settings;
        match option.as_str() {
            "--directory" => {
                settings.directory = std::path::absolute(&value).map_err(|error| wrong(error.to_string()))?
            }
            "--listen" => given.listen = text.into_owned(),
            "--key-file" => settings.key_file = Some(PathBuf::from(value)),
            "--quota" => settings.quota = Some(parse_size(&text).map_err(wrong)?),
            _ => match parse_duration(&text).map_err(wrong)? {
                time if time.is_zero() => return Err(format!("--expire {text}: must be longer than 0")),
                time => settings.expire = Some(time),
            },
        }
    }
    match given.settings.directory.as_os_str().is_empty() {
        true => Err("checkpoint-server needs --directory DIR, where it keeps images".to_string()),
        false => Ok(given),
    }
}

/// A port, or an address with one.
fn listen(text: &str) -> io::Result<TcpListener> {
    match text.parse::<u16>() {
        Ok(port) => TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            .or_else(|_| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))),
        Err(_) => TcpListener::bind(&*text.to_socket_addrs()?.collect::<Vec<_>>()),
    }
}

/// Serves until it is killed; returns only when it cannot begin.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let given = match parse(arguments) {
        Ok(given) => given,
        Err(text) => {
            eprintln!("resurgo: {}", one_line(&text));
            return i32::from(crate::check::USAGE);
        }
    };
    // A connection for each sender of a node, and files.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let begun = Server::new(&given.settings).and_then(|server| {
        let failed = |error: io::Error| {
            format!(
                "--listen {}: {error}; write an address of this machine with a free port",
                given.listen
            )
        };
        let listener = listen(&given.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((server, listener, address))
    });
    let (server, listener, address) = match begun {
        Ok(begun) => begun,
        Err(text) => {
            eprintln!("resurgo: checkpoint-server: {}", one_line(&text));
            return 1;
        }
    };
    let mut out = io::stdout();
    let users = server.users().join(", ");
    let _ = writeln!(out, "resurgo: checkpoint server at {address}, for {users}").and_then(|()| out.flush());
    server.serve(&listener, &|text| eprintln!("resurgo: {}", one_line(text)));
    0
}

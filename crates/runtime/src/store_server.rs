//! A checkpoint server that the job has started on one of its hosts: `resurgo agent store-server`.
//!
//! The dispatcher starts it by fork, ssh or srun, and again when it ends ([`crate::dispatcher`]). Its directory stays
//! when it ends, unless the job has told it to remove that.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use resurgo_store::own_directory::{Directory, Trust};
use resurgo_store::{Server, Settings};
use resurgo_wire::control::{StoreErrand, StoreTold};

use crate::{invited, server_process};

/// How often it says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// More often than this another job does not remove the directory above at the wrong moment.
const TRIES: usize = 10;

/// Serves until standard input ends; returns the exit status.
pub fn run() -> i32 {
    // Out of the reach of signals to the whole job: standard input ends it.
    let _ = prctl::set_name(c"resurgo store");
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let begun = begin();
    let (server, listener, directory, errand, stdin) = match begun {
        Ok(begun) => begun,
        Err(reason) => {
            let _ = say(&StoreTold::Failed { reason });
            return 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(&listener, &|_| {}));
        scope.spawn(|| {
            while say(&StoreTold::Beat).is_ok() {
                std::thread::sleep(BEAT);
            }
        });
        let _ = say(&StoreTold::Serves {
            pid: std::process::id(),
        });
        if is_to_be_removed(&stdin) {
            let _ = say(&StoreTold::Removed(remove(&directory, &errand)));
        }
        // The threads serve for ever.
        std::process::exit(0)
    })
}

type Begun = (Server, TcpListener, Directory, StoreErrand, OwnedFd);

fn begin() -> Result<Begun, String> {
    let text = |error: io::Error| error.to_string();
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(text)?;
    let errand: StoreErrand = invited::read(&stdin, "/version").map_err(text)?;
    let (directory, is_new) = made(&errand)?;
    serving(&directory, &errand)
        .inspect_err(|_| {
            // Nothing is in it yet.
            if is_new {
                let _ = remove(&directory, &errand);
            }
        })
        .map(|(server, listener)| (server, listener, directory, errand, stdin))
}

fn serving(directory: &Directory, errand: &StoreErrand) -> Result<(Server, TcpListener), String> {
    let server = Server::new(&Settings {
        directory: directory.path().to_path_buf(),
        key: Some(errand.key),
        ..Settings::default()
    })?;
    let own: &[IpAddr] = match errand.is_here {
        true => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        false => &[IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
    };
    let listener = server_process::listen_for(own, errand.port).and_then(|listener| {
        listener.set_nonblocking(false)?;
        Ok(listener)
    });
    let listener = listener.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let port = errand.port;
            format!("port {port} is in use there; write another one behind the host, as in server:HOST:4800;start")
        }
        _ => format!("it cannot listen at port {}: {error}", errand.port),
    })?;
    Ok((server, listener))
}

/// The server's directory, and whether it is new.
fn made(errand: &StoreErrand) -> Result<(Directory, bool), String> {
    let (within, name) = (Path::new(&errand.within), errand.name.as_ref());
    let mut tries = 0;
    loop {
        tries += 1;
        let above = Directory::make(within, Trust::Groups);
        let made = above.and_then(|above| match above.within(name) {
            Err(error) if error.is_missing() => above.make_within(name).map(|made| (made, true)),
            found => found.map(|found| (found, false)),
        });
        match made {
            Err(error) if error.is_missing() && tries < TRIES => {}
            made => return made.map_err(|error| error.to_string()),
        }
    }
}

fn remove(directory: &Directory, errand: &StoreErrand) -> Result<(), String> {
    let mut removed = Ok(());
    for _ in 0..TRIES {
        removed = std::fs::remove_dir_all(directory.path());
        // Something may have been put meanwhile.
        if !matches!(&removed, Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty) {
            break;
        }
    }
    if errand.is_usual {
        // Other jobs may have theirs in it.
        let _ = std::fs::remove_dir(&errand.within);
    }
    removed.map_err(|error| format!("{}: {error}", directory.path().display()))
}

/// Waits for the end of standard input. Whether anything has come before.
fn is_to_be_removed(stdin: &OwnedFd) -> bool {
    let mut bytes = [0; 64];
    loop {
        match nix::unistd::read(stdin, &mut bytes) {
            Err(nix::errno::Errno::EINTR) => {}
            read => return matches!(read, Ok(1..)),
        }
    }
}

fn say(told: &StoreTold) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&told.line()?)?;
    out.flush()
}

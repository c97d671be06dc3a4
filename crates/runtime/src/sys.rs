//! System calls that several processes of the launcher need.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Makes reads and writes on `fd` return at once.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Bytes that cannot be guessed.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What nobody guesses: 16 random bytes, in hexadecimal.
pub fn token() -> io::Result<String> {
    let bytes: [u8; 16] = random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Opens a file for data that does not fit into a process's memory. It never has a name, so nothing is left behind
/// however the job ends.
pub fn open_nameless(directory: &OsStr) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(directory) {
        Ok(file) => Ok(file),
        // Some network file systems cannot make nameless files.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EOPNOTSUPP as i32) => {
            let path = Path::new(directory).join(format!(".resurgo-spill-{}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

/// How long a test waits for what must come.
#[cfg(test)]
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// An address at which nobody listens, and nobody else can while the descriptor is open.
#[cfg(test)]
pub fn nobodys_address() -> (std::os::fd::OwnedFd, std::net::SocketAddr) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
    use std::os::fd::AsRawFd;
    let taken = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(taken.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let name: SockaddrIn = getsockname(taken.as_raw_fd()).unwrap();
    let address = std::net::SocketAddrV4::from(name).into();
    (taken, address)
}

/// The same address, at which the test listens itself now or later: others take no such port for one of their own.
#[cfg(test)]
pub fn address_to_share() -> (std::os::fd::OwnedFd, std::net::SocketAddr) {
    use nix::sys::socket::{setsockopt, sockopt::ReuseAddr};
    let (taken, address) = nobodys_address();
    setsockopt(&taken, ReuseAddr, &true).unwrap();
    (taken, address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_spill_file_has_no_name() {
        let directory = std::env::temp_dir().join(format!("resurgo-test-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = open_nameless(directory.as_os_str()).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}

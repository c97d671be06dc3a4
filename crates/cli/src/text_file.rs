//! Files that an option names. Only files or pipes of a sensible length are read, and they are read whole.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long the writer of a pipe may take.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });

/// The content of the file, at most `most` bytes. A pipe, as in `<(…)`, is read to its end, if it has a writer.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    read_if(path, most, |_| Ok(()))
}

/// The same, unless `is_good` refuses the file that has been opened.
pub fn read_if(
    path: &Path,
    most: u64,
    is_good: impl FnOnce(&Metadata) -> Result<(), String>,
) -> Result<Vec<u8>, String> {
    let mut options = File::options();
    // Opening a pipe without a writer would wait for ever.
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    is_good(&about)?;
    let kind = about.file_type();
    if kind.is_dir() {
        return Err("it is a directory".to_string());
    }
    if !kind.is_file() && !kind.is_fifo() {
        return Err("it is a device, not a file".to_string());
    }
    let (mut text, begun) = (Vec::new(), Instant::now());
    let mut limited = (&file).take(most + 1);
    loop {
        match limited.read_to_end(&mut text) {
            Ok(_) if text.len() as u64 > most => return Err(format!("it is longer than {most} bytes")),
            Ok(_) => return Ok(text),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = PATIENCE.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Err(format!("this pipe has been silent for {PATIENCE:?}"));
                }
                let mut ready = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
                let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                poll(&mut ready, timeout).map_err(|error| error.to_string())?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn devices_and_silent_pipes_are_not_waited_for() {
        assert_eq!(
            read(Path::new("/dev/zero"), 9).unwrap_err(),
            "it is a device, not a file"
        );
        assert_eq!(read(Path::new("/"), 9).unwrap_err(), "it is a directory");
        let path = std::env::temp_dir().join(format!("resurgo-text-{}", std::process::id()));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // The pipe has no writer.
        assert_eq!(read(&path, 9), Ok(Vec::new()));
        let writer = |text: &'static [u8]| {
            let path = path.clone();
            let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
            std::thread::spawn(move || {
                // The reader has probably come by then, and waits.
                std::thread::sleep(Duration::from_millis(50));
                pipe.write_all(text).unwrap();
                // What is unread when the last writer goes, without a reader, is lost.
                let is_unread = || {
                    let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
                    poll(&mut ready, PollTimeout::ZERO).unwrap() > 0
                };
                while is_unread() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        let late = writer(b"0 1\n");
        assert_eq!(read(&path, 9), Ok(b"0 1\n".to_vec()));
        late.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap().len(), 10);
        assert_eq!(read(&path, 9).unwrap_err(), "it is longer than 9 bytes");
        std::fs::remove_file(path).unwrap();
    }
}

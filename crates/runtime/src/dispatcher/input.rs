//! The dispatcher's standard input, which belongs to rank 0.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::unistd::{Whence, getpgrp, lseek, read, tcgetpgrp};
use resurgo_wire::control::Stdin;

/// How rank 0 of another machine gets it.
pub fn stream() -> Stdin {
    match find() {
        Stdin::Nothing => Stdin::Nothing,
        Stdin::File(..) | Stdin::Stream => Stdin::Stream,
    }
}

/// How rank 0 gets the standard input of this process.
pub fn find() -> Stdin {
    let stdin = io::stdin();
    let Ok(metadata) = stdin
        .as_fd()
        .try_clone_to_owned()
        .and_then(|fd| File::from(fd).metadata())
    else {
        return Stdin::Nothing;
    };
    if metadata.is_file() {
        // Every life opens it again. A file that can no longer be opened is streamed like a pipe.
        let path = format!("/proc/{}/fd/0", std::process::id());
        if let (Ok(_), Ok(offset)) = (File::open(&path), lseek(stdin.as_fd(), 0, Whence::SeekCur)) {
            return Stdin::File(path.into(), offset as u64);
        }
    }
    const DEV_NULL: u64 = 0x103;
    if metadata.file_type().is_char_device() && metadata.rdev() == DEV_NULL {
        return Stdin::Nothing;
    }
    Stdin::Stream
}

/// Whether reading now would not stop this process: a terminal lets only its foreground jobs read.
pub fn may_read() -> bool {
    match tcgetpgrp(io::stdin().as_fd()) {
        Ok(foreground) => foreground == getpgrp(),
        // No terminal.
        Err(_) => true,
    }
}

/// Reads what is there; an empty answer is the end.
pub fn take() -> io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; 32 << 10];
    loop {
        match read(io::stdin().as_fd(), &mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

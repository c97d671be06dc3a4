//! What prevents an image, or its file.

use crate::sys::Errno;

/// Why there can be no image now, and the descriptor that prevents it (-1: none).
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    pub why: &'static str,
    pub fd: i32,
}

impl Refusal {
    pub fn new(why: &'static str, fd: i32) -> Refusal {
        Refusal { why, fd }
    }
}

/// Why an image cannot be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trouble {
    pub what: &'static str,
    /// 0: none.
    pub errno: Errno,
}

impl Trouble {
    pub const fn new(what: &'static str, errno: Errno) -> Trouble {
        Trouble { what, errno }
    }

    pub fn with(self, errno: Errno) -> Trouble {
        Trouble { errno, ..self }
    }

    pub fn memory(errno: Errno) -> Trouble {
        Trouble::new("there is no memory for the tables of the image", errno)
    }
}

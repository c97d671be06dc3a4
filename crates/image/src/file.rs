//! Image files: what a sleeping snapshot writes, and how a process is built from it again. docs/internals/image.md has
//! the format byte by byte.

pub(crate) mod answers;
mod checksum;
pub(crate) mod digest;
mod format;
pub(crate) mod helper;
mod large;
mod layout;
mod output;
mod packer;
mod piece;
pub(crate) mod plan;
mod reader;
mod restore;
pub(crate) mod resume;
mod scan;
mod show;
pub(crate) mod tables;
pub(crate) mod warm;
pub(crate) mod writer;
mod zstd;

pub use format::{FORMAT_VERSION, NOTE_OFFSET, Note};
pub use reader::{Defect, Image, note_of};
pub use restore::{EXIT_NOT_RESTORED, restore};
pub use show::show;
pub use zstd::MOST as MOST_COMPRESSED;

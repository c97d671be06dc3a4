//! Frames of the control connection.
//!
//! ```text
//! u32   bytes that follow, little-endian
//! u8    kind: 0 JSON, 1 output of a rank, 2 standard input for rank 0, 3 lines of PMI from or to a rank,
//!       4 messages in transit, 5 a part of the trace of a rank
//! …     kind 0: the message
//!       kind 1: u32 rank, u64 life, u8 stream and 2 if it is counted as repeated, bytes
//!       kind 2: u64 life, bytes
//!       kind 3: u32 rank, u64 life, lines
//!       kind 4: u64 number of the wave, u8 1 for the last piece, bytes
//!       kind 5: as [`crate::trace::Piece::head`] has it, records
//! ```
//!
//! The program's own streams are outside of the JSON, as they are most of the bytes.

use serde::{Deserialize, Serialize};

/// The longest frame accepted between processes of one job, in bytes.
pub const MAX_FRAME: usize = 64 << 20;

/// Why a connection's bytes are no frames.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameError {
    TooLong(usize),
    Malformed(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong(bytes) => write!(f, "a control frame of {bytes} bytes"),
            FrameError::Malformed(why) => write!(f, "a malformed control frame: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// A message that can be put into a frame and taken out of one.
pub trait Message: Sized {
    /// The longest frame of this kind that is accepted, in bytes.
    const LONGEST: usize = MAX_FRAME;

    /// Appends the frame of `self` to `out`.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads the bytes behind the length.
    fn decode(frame: &[u8]) -> Result<Self, FrameError>;
}

pub fn frame(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
}

pub fn json<T: Serialize>(out: &mut Vec<u8>, message: &T) {
    let text = match serde_json::to_vec(message) {
        Ok(text) => text,
        // Strings, numbers and paths given by this process; paths are kept as OsString or were UTF-8 on the command
        // line.
        Err(error) => unreachable!("a message of this process has no JSON: {error}"),
    };
    frame(out, 0, &[&text]);
}

pub fn from_json<T: for<'a> Deserialize<'a>>(frame: &[u8]) -> Result<T, FrameError> {
    match frame.split_first() {
        Some((0, text)) => serde_json::from_slice(text).map_err(|error| FrameError::Malformed(error.to_string())),
        Some((kind, _)) => Err(FrameError::Malformed(format!("kind {kind}"))),
        None => Err(FrameError::Malformed("no kind".to_string())),
    }
}

/// Collects the bytes of a connection into messages.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message, if there is one.
    pub fn next_message<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        let first = first_message(&self.bytes[self.start..])?;
        Ok(first.map(|(message, used)| {
            self.start += used;
            message
        }))
    }
}

/// The message at the beginning of these bytes, if it is complete, and its length.
pub fn first_message<M: Message>(bytes: &[u8]) -> Result<Option<(M, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > M::LONGEST {
        return Err(FrameError::TooLong(length));
    }
    if rest.len() < length {
        return Ok(None);
    }
    Ok(Some((M::decode(&rest[..length])?, 4 + length)))
}

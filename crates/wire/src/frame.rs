//! Frames of the connections between ranks and the job's servers, and what can be wrong with them.
//!
//! A frame is a `u32` length of what follows, a `u8` kind, and its fields; integers are little-endian. The lowest
//! kinds, from 1 on, are those of the [handshake](crate::handshake), the same on every connection. The others are the
//! connection's own.

/// Changes whenever the meaning of any byte changes.
pub const VERSION: u16 = 5;
/// The most bytes of the text of a Refused.
pub(crate) const MAX_REASON: usize = 512;

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the peer is not of a Resurgo job")]
    NotResurgo,
    #[error("the peer is of version {theirs}, this is version {VERSION}")]
    Version { theirs: u16 },
    #[error("a frame of {bytes} bytes, more than is allowed")]
    FrameTooLong { bytes: u64 },
    #[error("a frame of unknown kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("a malformed {frame} frame")]
    Malformed { frame: &'static str },
    #[error("a {frame} frame where none is due")]
    Unexpected { frame: &'static str },
    #[error("the peer does not hold the job's key")]
    NotAuthentic,
    #[error("it refuses: {reason}")]
    Refused { reason: String },
}

/// Begins a frame of this kind behind the content of `out`; returns where it begins.
pub(crate) fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    start
}

/// Ends the frame that began at `start`, `more` bytes further on, which the caller appends; returns its length.
pub(crate) fn end(out: &mut [u8], start: usize, more: usize) -> usize {
    let length = out.len() - start - 4 + more;
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    length
}

/// The first frame of `bytes`, if it is whole: its kind, from 1, and its fields. `names`: the names of all kinds.
pub(crate) fn split<'a>(
    bytes: &'a [u8],
    most: usize,
    names: &[&'static str],
) -> Result<Option<(u8, Reader<'a>)>, Error> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > most {
        return Err(Error::FrameTooLong { bytes: length as u64 });
    }
    if length == 0 {
        return Err(Error::UnknownKind { kind: 0 });
    }
    // Recognise a stranger by the first byte of kind, not after it has sent what it announced.
    let Some((&kind, fields)) = rest.split_first() else {
        return Ok(None);
    };
    let Some(&frame) = (kind as usize).checked_sub(1).and_then(|index| names.get(index)) else {
        return Err(Error::UnknownKind { kind });
    };
    let reader = |bytes| Reader { frame, bytes };
    Ok(fields.get(..length - 1).map(|fields| (kind, reader(fields))))
}

/// Takes fields off a frame.
pub(crate) struct Reader<'a> {
    pub frame: &'static str,
    pub bytes: &'a [u8],
}

impl Reader<'_> {
    pub fn malformed(&self) -> Error {
        Error::Malformed { frame: self.frame }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (array, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.malformed())?;
        self.bytes = rest;
        Ok(*array)
    }

    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bool(&mut self) -> Result<bool, Error> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub fn version(&mut self) -> Result<(), Error> {
        let theirs = self.array().map(u16::from_le_bytes)?;
        if theirs == VERSION {
            Ok(())
        } else {
            Err(Error::Version { theirs })
        }
    }

    /// Reads the rest of the frame as a text.
    pub fn reason(&mut self) -> Result<String, Error> {
        let text = std::mem::take(&mut self.bytes);
        if text.len() > MAX_REASON {
            return Err(self.malformed());
        }
        // The text goes into messages for people: nothing in it may steer a terminal.
        Ok(String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " "))
    }

    /// Checks that nothing of the frame is left.
    pub fn end(&self) -> Result<(), Error> {
        match self.bytes {
            [] => Ok(()),
            _ => Err(self.malformed()),
        }
    }
}

//! What an agent and a rank's process say to each other about process images, over a socket of datagrams
//! ([`crate::node_memory::IMAGE_FD`]). An agent and a sleeping snapshot do the same over a socket of the snapshot's
//! own.
//!
//! ```text
//! 0   u32  kind
//! 4   u32  length of the text
//! 8   u64  first number
//! 16  u64  second number
//! 24  u64  third number
//! 32  ...  text, UTF-8
//! ```
//!
//! Plain bytes of a fixed shape: the rank's side reads and writes them where it can allocate no memory.

/// The longest text.
pub const TEXT: usize = 224;
/// Bytes of the longest datagram.
pub const BYTES: usize = 32 + TEXT;

/// Bits of `c` in [`Kind::Checkpoint`].
pub const IN_WAVE: u64 = 1;
pub const TRACKED: u64 = 2;

/// What a datagram says. Descriptors travel beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Agent to rank: take image `a`; its cursors go to slot `b`. Then comes the signal. `c` has these bits:
    ///
    /// - [`IN_WAVE`]: the image is part of a wave for which all stand still. After [`Kind::Stopped`] the rank waits for
    ///   [`Kind::Drain`], as often as it comes, and for [`Kind::Go`] before it copies itself.
    /// - [`TRACKED`]: the image will go to a file in which unchanged memory stays. If that file comes beside the
    ///   datagram, the answer may be [`Kind::Copied`].
    Checkpoint = 1,
    /// Rank to agent: all threads stand still for image `a`.
    Stopped = 2,
    /// Agent to rank: what you said to PMI and printed is accounted for; go on with image `a`.
    Go = 3,
    /// Agent to rank: not now.
    Abandon = 4,
    /// Rank to agent: image `a` cannot be taken; the text says why.
    Refused = 5,
    /// Rank to agent: snapshot `a` sleeps as process `b`, after `c` nanoseconds of standstill; beside it comes the
    /// socket to talk to it.
    Taken = 6,
    /// Agent to snapshot: copy yourself and let the copy go on as the rank. Beside it come the rank's standard output,
    /// standard error, PMI socket, image socket and (if there is a fifth) standard input. Where all ranks return to a
    /// wave, the copy says [`Kind::Ready`] on its image socket and waits for [`Kind::Go`] there.
    Wake = 7,
    /// Snapshot to agent: the rank lives again as process `b`.
    Woken = 8,
    /// Snapshot, or process that is being rebuilt from a file, to agent: the rank cannot go on from there. The text
    /// says why. Without a text, `b` is the error number of system call `c`, the `a`-th of those that rebuild a
    /// process.
    Failed = 9,
    /// Snapshot to agent: image `a` is in its file; `b` bytes had to be written, in `c` nanoseconds. The text is the
    /// digest that identifies the file.
    Written = 10,
    /// Snapshot to agent: image `a` could not be written. `b` is the error number, the text says where it failed.
    WriteFailed = 11,
    /// Snapshot to the rank that it was copied from: nothing done to the rank reaches the snapshot any more. A woken
    /// rank to the agent: its part of the node memory is as it was at the wave.
    Ready = 12,
    /// Agent to rank: all ranks of the wave stand still, take what your channels hold.
    Drain = 13,
    /// Rank to agent: the channels are empty, `b` messages or parts of them were taken.
    Drained = 14,
    /// Agent to snapshot: write image `a` into the file beside the datagram, compressed by zstd at level `b`; 0: not
    /// compressed.
    Write = 15,
    /// Agent to snapshot: sync the directory beside the datagram, so that its names last.
    Sync = 16,
    /// Snapshot to agent: that is done.
    Synced = 17,
    /// Process that was rebuilt from a file to agent: it now goes on as the rank.
    Restored = 18,
    /// Rank to agent: the message log has grown by `a` bytes; images of this rank's receivers would let it forget. `b`
    /// is 1 when little room is left.
    LogGrows = 19,
    /// Rank to agent: it has made as many messages as an image was asked for.
    WantsImage = 20,
    /// Agent to rank: see whose turn it is in a wave of groups, and hold back what must not pass now; `a` says that in
    /// one word. Then comes the signal.
    Notice = 21,
    /// Rank to agent: that is done, for the same `a`. A text says why it is impossible.
    Noticed = 22,
    /// Rank to agent: as [`Kind::Taken`], but process `b` has only copied what has changed. It can write the image into
    /// the file that came with the request, and nothing else.
    Copied = 23,
    /// The process that fills the memory of a rank that already runs, to agent. Beside the first one come the socket to
    /// the filling process, and the descriptor that holds back threads that touch missing memory.
    Filling = 24,
    /// The filling process to agent: the memory is filled.
    Filled = 25,
    /// Agent to rank: note the cursors as an image would, in slot `a`; there will be none. Then comes the signal.
    Note = 26,
    /// Rank to agent: that is done, for the same `a`. A text says why it is impossible.
    Noted = 27,
    /// Agent to rank below a wrapper: go on as a child of mine, which is process `b`, so that image `a` is possible. With
    /// the descriptors in `c`, a bit for each, it may share open files with the wrapper. The process itself stays behind
    /// as the place holder: it executes the file beside the datagram, and has the second descriptor. Then comes the
    /// signal. The answer may be [`Kind::Refused`].
    Part = 28,
    /// Rank to agent: process `b` goes on as the rank, for the same `a`, when it gets [`Kind::Go`].
    Parted = 29,
    /// Place holder to agent: it is there.
    Holds = 30,
    /// Place holder to agent: the wrapper has sent it signal `a`.
    Signalled = 31,
    /// Agent to place holder: the program has ended with exit code `a`, or by signal `b` if that is not 0. End in the
    /// same way.
    End = 32,
    /// Rank to agent: what the rank has noted of files is to be kept off the node. If `a` is not 0, the rank waits until
    /// [`crate::node_memory::control::NOTES_KEPT`] is as much.
    Notes = 33,
}

const KINDS: [Kind; 33] = [
    Kind::Checkpoint,
    Kind::Stopped,
    Kind::Go,
    Kind::Abandon,
    Kind::Refused,
    Kind::Taken,
    Kind::Wake,
    Kind::Woken,
    Kind::Failed,
    Kind::Written,
    Kind::WriteFailed,
    Kind::Ready,
    Kind::Drain,
    Kind::Drained,
    Kind::Write,
    Kind::Sync,
    Kind::Synced,
    Kind::Restored,
    Kind::LogGrows,
    Kind::WantsImage,
    Kind::Notice,
    Kind::Noticed,
    Kind::Copied,
    Kind::Filling,
    Kind::Filled,
    Kind::Note,
    Kind::Noted,
    Kind::Part,
    Kind::Parted,
    Kind::Holds,
    Kind::Signalled,
    Kind::End,
    Kind::Notes,
];

/// One datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    pub kind: Kind,
    pub a: u64,
    pub b: u64,
    pub c: u64,
    text: [u8; TEXT],
    length: usize,
}

impl Datagram {
    pub fn new(kind: Kind, a: u64, b: u64, c: u64) -> Datagram {
        Datagram {
            kind,
            a,
            b,
            c,
            text: [0; TEXT],
            length: 0,
        }
    }

    /// The same with a text, cut to what fits.
    pub fn with_text(mut self, text: &str) -> Datagram {
        let mut length = text.len().min(TEXT);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        self.text[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length = length;
        self
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text[..self.length]).unwrap_or("?")
    }

    pub fn encode(&self) -> ([u8; BYTES], usize) {
        let mut bytes = [0u8; BYTES];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.length as u32).to_le_bytes());
        for (place, number) in [(8, self.a), (16, self.b), (24, self.c)] {
            bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..32 + self.length].copy_from_slice(&self.text[..self.length]);
        (bytes, 32 + self.length)
    }

    /// None: the bytes are no datagram of ours.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let kind = *KINDS.get((word(0)? as usize).checked_sub(1)?)?;
        let text = bytes.get(32..)?;
        let length = word(4)? as usize;
        if length != text.len() || length > TEXT {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        Some(Datagram::new(kind, number(8)?, number(16)?, number(24)?).with_text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            let said = Datagram::new(kind, index as u64, u64::MAX, 7).with_text(&"é".repeat(index * 20));
            let (bytes, length) = said.encode();
            assert_eq!(Datagram::decode(&bytes[..length]), Some(said));
        }
    }

    #[test]
    fn anything_else_is_not() {
        let (bytes, length) = Datagram::new(Kind::Go, 1, 2, 3).with_text("text").encode();
        for wrong in [&bytes[..0], &bytes[..31], &bytes[..length - 1], &bytes[..length + 1]] {
            assert_eq!(Datagram::decode(wrong), None);
        }
        let mut other = bytes;
        for kind in [0, KINDS.len() as u32 + 1, u32::MAX] {
            other[..4].copy_from_slice(&kind.to_le_bytes());
            assert_eq!(Datagram::decode(&other[..length]), None);
        }
        let mut other = bytes;
        other[33] = 0xff;
        assert_eq!(Datagram::decode(&other[..length]), None);
    }
}

//! What a set is made from and made again from, read from the beginning to the end: shards of images and pieces, on this
//! node or on another one.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use resurgo_wire::replica::{Frame, Offer, What};

use super::keeper::{Held, Keeper};
use super::pace;
use super::party::Party;
use super::sealed::{PATIENCE, Sealed};
use super::transfer::not_due;

/// How often a broken connection is made again, and the pause before.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);

/// One of them.
pub enum Source {
    Here(Here),
    There(Box<There>),
}

/// A file of this node.
pub struct Here {
    file: File,
    /// The needed parts of the file; the rest counts as zeros.
    parts: Vec<Range<u64>>,
    length: u64,
    beside: Option<(File, u64)>,
    at: u64,
}

/// A file of another node, which comes over a connection.
pub struct There {
    party: Party,
    addresses: Vec<SocketAddr>,
    pub offer: Offer,
    stream: Sealed,
    /// Bytes of the file and of what lies beside it that came so far, since the last connection.
    beside: u64,
    /// Bytes that came and were not asked for yet, and where they lie. None: nothing more comes.
    coming: Option<(u64, Vec<u8>)>,
    at: u64,
}

/// Copies what lies at `from` into the bytes that lie at `to`, as far as they overlap.
fn lay(from: u64, bytes: &[u8], to: u64, into: &mut [u8]) {
    let start = from.max(to);
    let end = (from + bytes.len() as u64).min(to + into.len() as u64);
    if start < end {
        let length = (end - start) as usize;
        let (at, place) = ((start - from) as usize, (start - to) as usize);
        into[place..place + length].copy_from_slice(&bytes[at..at + length]);
    }
}

impl Here {
    pub fn open(keeper: &Keeper, held: &Held) -> io::Result<Here> {
        let file = keeper.open(held)?;
        let beside = keeper.open_beside(held)?;
        Ok(Here {
            parts: (keeper.contents(held.offer.what).parts)(&file)?,
            file,
            length: held.offer.length,
            beside: beside.map(|file| (file, held.offer.beside)),
            at: 0,
        })
    }

    /// The next bytes; zeros behind the end.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let (at, end) = (self.at, self.at + bytes.len() as u64);
        bytes.fill(0);
        let mut fill = |file: &File, part: Range<u64>, begins: u64| {
            let (start, stop) = ((part.start + begins).max(at), (part.end + begins).min(end));
            if start >= stop {
                return Ok(());
            }
            let place = (start - at) as usize..(stop - at) as usize;
            file.read_exact_at(&mut bytes[place], start - begins)
        };
        let first = self.parts.partition_point(|part| part.end <= at);
        for part in self.parts[first..].iter().take_while(|part| part.start < end) {
            fill(&self.file, part.clone(), 0)?;
        }
        if let Some((beside, length)) = &self.beside {
            fill(beside, 0..*length, self.length)?;
        }
        self.at = end;
        Ok(())
    }
}

/// Asks a node for a file, all of which it looks at first, if it is to be `checked`.
fn ask(
    party: &Party,
    addresses: &[SocketAddr],
    what: What,
    checked: bool,
) -> io::Result<Result<(Sealed, Offer), String>> {
    let mut stream = Sealed::call(addresses, party.node, &party.key, party.tls.as_ref())?;
    pace::set_free(stream.stream());
    stream.send(&Frame::Want { what, checked })?;
    let offer = match stream.receive_answer()? {
        Frame::Offer(offer) if offer.what == what => offer,
        Frame::No { reason } => return Ok(Err(reason)),
        frame => return Err(not_due(&frame)),
    };
    stream.stream().set_read_timeout(Some(PATIENCE))?;
    Ok(Ok((stream, offer)))
}

impl There {
    /// # Errors
    /// Why not, and whether the node says so itself: it does not have it, or that is damaged. Otherwise the node cannot
    /// be reached.
    pub fn open(party: &Party, addresses: &[SocketAddr], what: What) -> Result<There, (String, bool)> {
        let mut broken = String::new();
        for _ in 0..ATTEMPTS {
            match ask(party, addresses, what, true) {
                Ok(answer) => {
                    let (mut stream, offer) = answer.map_err(|reason| (reason, true))?;
                    // If this is lost, reading fails, and calls again.
                    let _ = stream.send(&Frame::From { position: 0 });
                    return Ok(There {
                        party: party.clone(),
                        addresses: addresses.to_vec(),
                        offer,
                        stream,
                        beside: 0,
                        coming: Some((0, Vec::new())),
                        at: 0,
                    });
                }
                Err(error) => broken = error.to_string(),
            }
            std::thread::sleep(PAUSE);
        }
        Err((broken, false))
    }

    /// The next bytes; zeros behind the end.
    ///
    /// # Errors
    /// The node cannot be reached any more, or has something else now.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(0);
        let mut left = ATTEMPTS;
        while let Err(error) = self.try_read(bytes) {
            left = left.checked_sub(1).ok_or(error)?;
            std::thread::sleep(PAUSE);
            // The next attempt to read fails if this one has.
            let _ = self.call_again();
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let end = self.at + bytes.len() as u64;
        while let Some((position, came)) = &self.coming {
            lay(*position, came, self.at, bytes);
            if position + came.len() as u64 > end {
                return Ok(());
            }
            self.coming = self.next()?;
        }
        Ok(())
    }

    /// The next part that comes.
    fn next(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let came = self
            .coming
            .as_ref()
            .map_or(0, |(position, came)| position + came.len() as u64);
        let (length, all) = (self.offer.length, self.offer.length.saturating_add(self.offer.beside));
        let (position, bytes, most) = match self.stream.receive()? {
            Frame::Run { position, bytes } => (position, bytes, length),
            Frame::Beside { bytes } => {
                let position = length + self.beside;
                self.beside += bytes.len() as u64;
                (position, bytes, all)
            }
            Frame::End => return Ok(None),
            frame => return Err(not_due(&frame)),
        };
        let end = position.checked_add(bytes.len() as u64);
        match position >= came && end.is_some_and(|end| end <= most) {
            true => Ok(Some((position, bytes.to_vec()))),
            false => Err(io::Error::other("a part of the file that is not next")),
        }
    }

    fn call_again(&mut self) -> io::Result<()> {
        let answer = ask(&self.party, &self.addresses, self.offer.what, false)?;
        let (mut stream, offer) = answer.map_err(io::Error::other)?;
        if offer != self.offer {
            return Err(io::Error::other("it is another file now"));
        }
        let position = self.at.min(offer.length);
        stream.send(&Frame::From { position })?;
        (self.stream, self.beside, self.coming) = (stream, 0, Some((position, Vec::new())));
        Ok(())
    }
}

impl Source {
    /// The next bytes; zeros behind the end.
    ///
    /// # Errors
    /// They cannot be had.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Source::Here(here) => here.read(bytes),
            Source::There(there) => there.read(bytes),
        }
    }
}

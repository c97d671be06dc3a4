//! One image over a connection, in either direction.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use resurgo_wire::replica::{Frame, MOST, Offer};

use super::keeper::{Keeper, Parcel, Partial, Taking};
use super::sealed::Sealed;

/// The outcome of an image: it is there, or the reason why not.
pub type Outcome = Result<(), String>;

/// Why a connection is no longer usable.
pub fn not_due(frame: &Frame<'_>) -> io::Error {
    io::Error::other(format!("a {} frame where none is due", frame.name()))
}

/// Gives the image. Asks `goes_on` before each part; if it says no, the error is [`io::ErrorKind::Interrupted`].
pub fn give(
    stream: &mut Sealed,
    parcel: &Parcel,
    parts: fn(&File) -> io::Result<Vec<std::ops::Range<u64>>>,
    mut goes_on: impl FnMut(&TcpStream) -> bool,
) -> io::Result<Outcome> {
    stream.send(&Frame::Offer(parcel.offer.clone()))?;
    let from = match stream.receive()? {
        Frame::Whole => return Ok(Ok(())),
        Frame::No { reason } => return Ok(Err(reason)),
        Frame::From { position } => position,
        frame => return Err(not_due(&frame)),
    };
    let mut buffer = Vec::with_capacity(MOST + 64);
    for part in parts(&parcel.file)? {
        let mut at = part.start.max(from);
        while at < part.end {
            if !goes_on(stream.stream()) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if has_said(stream.stream()) {
                return answer(stream);
            }
            let length = (part.end - at).min(MOST as u64) as usize;
            stream.send_run(&mut buffer, at, length, |bytes| parcel.file.read_exact_at(bytes, at))?;
            at += length as u64;
        }
    }
    let mut at = 0;
    while let Some(beside) = parcel.beside.as_ref().filter(|_| at < parcel.offer.beside) {
        if !goes_on(stream.stream()) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut bytes = vec![0; (parcel.offer.beside - at).min(MOST as u64) as usize];
        beside.read_exact_at(&mut bytes, at)?;
        stream.send(&Frame::Beside { bytes: &bytes })?;
        at += bytes.len() as u64;
    }
    // A file that was overwritten meanwhile is not sent as the image.
    if !goes_on(stream.stream()) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    stream.send(&Frame::End)?;
    answer(stream)
}

/// The receiver has sent an answer before the end.
fn has_said(stream: &TcpStream) -> bool {
    let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn answer(stream: &mut Sealed) -> io::Result<Outcome> {
    match stream.receive_answer()? {
        Frame::Whole => Ok(Ok(())),
        Frame::No { reason } => Ok(Err(reason)),
        frame => Err(not_due(&frame)),
    }
}

/// Takes the offered image. After an error the keeper keeps what has come; the next offer of the image continues behind
/// it.
pub fn take(stream: &mut Sealed, offer: Offer, keeper: &Keeper) -> io::Result<Outcome> {
    let mut partial = match keeper.begin(offer) {
        Ok(Taking::From(partial)) => partial,
        Ok(Taking::Whole) => {
            stream.send(&Frame::Whole)?;
            return Ok(Ok(()));
        }
        Err(reason) => return refuse(stream, reason),
    };
    match read(stream, &mut partial) {
        Ok(()) => match keeper.complete(partial) {
            Ok(()) => stream.send(&Frame::Whole).map(|()| Ok(())),
            Err(reason) => refuse(stream, reason),
        },
        Err(Stop::Broken(error)) => {
            keeper.put_by(partial);
            Err(error)
        }
        Err(Stop::NotWritten(error)) => {
            // The disk may lack just this room.
            keeper.discard(partial);
            refuse(stream, error.to_string())
        }
    }
}

/// Why a file stays incomplete.
enum Stop {
    Broken(io::Error),
    NotWritten(io::Error),
}

/// Reads until all of it is there.
fn read(stream: &mut Sealed, partial: &mut Partial) -> Result<(), Stop> {
    let position = partial.position();
    stream.send(&Frame::From { position }).map_err(Stop::Broken)?;
    loop {
        match stream.receive().map_err(Stop::Broken)? {
            Frame::Run { position, bytes } => partial.write(position, bytes).map_err(Stop::NotWritten)?,
            Frame::Beside { bytes } => partial.take_beside(bytes).map_err(Stop::Broken)?,
            Frame::End => return Ok(()),
            frame => return Err(Stop::Broken(not_due(&frame))),
        }
    }
}

/// Sends a refusal, and reads on until the other side has it: its remaining data would otherwise cut off the answer.
fn refuse(stream: &mut Sealed, reason: String) -> io::Result<Outcome> {
    let no = Frame::No { reason: reason.clone() };
    stream.send(&no)?;
    while let Ok(Frame::Run { .. } | Frame::Beside { .. }) = stream.receive() {}
    Ok(Err(reason))
}

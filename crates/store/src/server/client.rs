//! One connection of a server.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use resurgo_wire::frame;
use resurgo_wire::handshake::{Doorkeeper, Heard, Server as Door, Word};
use resurgo_wire::store::{Kind as Asked, Line as Listed, MOST_TEXT, Reason, Side};

use super::{CLIENTS, Counted, STRANGERS, Server, User, reason};
use crate::error::{Error, Kind};
use crate::line::{Coming, Line, PIECE, read_word, write_word};
use crate::place::{Entry, Place};
use crate::random;

/// Time for a stranger to prove a key, and for each step of it.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A client that is silent for longer in the middle of a message is gone.
const SILENCE: Duration = Duration::from_secs(120);
/// One without work may come back later.
const IDLE: Duration = Duration::from_secs(3600);

impl Server {
    pub(super) fn receive(&self, stream: TcpStream) {
        let Ok(number) = self.admit(&stream) else { return };
        let greeted = self.greet(stream);
        self.strangers().remove(&number);
        let Ok((mut line, user)) = greeted else { return };
        let Some(_client) = Counted::new(&self.clients, CLIENTS) else {
            return;
        };
        // The connection ends where the other side does, or where it says something else than it should.
        while let Ok(true) = user.answer_next(&mut line) {}
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a stranger. When there are too many, the oldest goes.
    fn admit(&self, stream: &TcpStream) -> io::Result<u64> {
        let other = stream.try_clone()?;
        let mut strangers = self.strangers();
        let number = strangers.last_key_value().map_or(0, |(number, _)| number + 1);
        strangers.insert(number, other);
        if strangers.len() > STRANGERS
            && let Some((_, oldest)) = strangers.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        Ok(number)
    }

    fn greet(&self, mut stream: TcpStream) -> io::Result<(Line, &User)> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_write_timeout(Some(HANDSHAKE))?;
        let word = read_word(&mut stream)?;
        let Word::Hello(hello) = word else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let Some(user) = self.users.get(&hello.incarnation) else {
            let reason = "no user of this server has this key".to_string();
            write_word(&mut stream, &Word::Refused { reason })?;
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        let (key, challenge) = (user.key.key, random()?);
        let mut door = Doorkeeper::new(Door::Store, 1, 0, key, challenge);
        let wrong = |error: frame::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        match door.hear(word).map_err(wrong)? {
            Heard::Stranger(answer) => write_word(&mut stream, &answer)?,
            Heard::Proved(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        match door.hear(read_word(&mut stream)?).map_err(wrong)? {
            Heard::Proved(_) => {}
            Heard::Stranger(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        stream.set_write_timeout(Some(SILENCE))?;
        Ok((Line::new(stream, &key, &hello.nonce, &challenge, Side::Server), user))
    }
}

fn encoded(entries: Vec<Entry>) -> Vec<u8> {
    let now = SystemTime::now();
    let lines = entries.into_iter().map(|entry| {
        let age = now.duration_since(entry.modified).unwrap_or_default();
        let line = Listed {
            name: entry.name,
            bytes: entry.bytes,
            age_ms: age.as_millis() as u64,
        };
        line.encode()
    });
    lines.collect::<String>().into_bytes()
}

impl User {
    /// Answers a request. `false`: there is no more.
    fn answer_next(&self, line: &mut Line) -> io::Result<bool> {
        line.stream().set_read_timeout(Some(IDLE))?;
        let Some(mut coming) = line.next()? else {
            return Ok(false);
        };
        line.stream().set_read_timeout(Some(SILENCE))?;
        let name = coming.text.clone();
        if coming.kind == Asked::Get {
            self.send(line, &name)?;
            return Ok(true);
        }
        let done = match coming.kind {
            Asked::Put => {
                let put = self.put(line, &mut coming, &name)?;
                // Whatever failed, the rest of the message is not the next one.
                line.rest(&mut coming)?;
                put.map(|()| Vec::new())
            }
            Asked::Has => self.found(&name).map(|_| Vec::new()),
            Asked::List => {
                let listed = self.dir.list(&name);
                listed.map(encoded)
            }
            Asked::Delete => self.delete(&name).map(|()| Vec::new()),
            Asked::Settle => self.dir.settle(&name).map(|()| Vec::new()),
            Asked::Clear => {
                let all = line.rest(&mut coming)? == [1];
                self.dir.clear(&name, all).map(|()| Vec::new())
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        match done {
            Ok(content) => line.send(Asked::Done, "", &content)?,
            Err(error) => fail(line, &error)?,
        }
        Ok(true)
    }

    fn found(&self, name: &str) -> Result<File, Error> {
        self.dir.open_object(name)
    }

    fn send(&self, line: &mut Line, name: &str) -> io::Result<()> {
        let opened = self.found(name).and_then(|file| {
            let length = file.metadata().map_err(|error| Error::new("", name, Kind::Io(error)))?;
            Ok((file, length.len()))
        });
        match opened {
            Ok((mut file, length)) => {
                if let Some((job, _)) = name.split_once('/') {
                    let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
                    read.insert(job.to_string(), Instant::now());
                }
                line.send_from(Asked::Done, "", length, &mut file)
            }
            Err(error) => fail(line, &error),
        }
    }

    /// Puts the content that comes. The outer error is one of the connection.
    fn put(&self, line: &mut Line, coming: &mut Coming, name: &str) -> io::Result<Result<(), Error>> {
        let length = coming.left();
        let before = self.size(name);
        let more = length.saturating_sub(before);
        if self.take(more).is_none() {
            let quota = resurgo_wire::text::readable_size(self.quota.unwrap_or_default());
            let why = format!("{} may have {quota}", self.key.user);
            return Ok(Err(Error::new("", name, Kind::Quota(why))));
        }
        let mut broken = None;
        let put = self.dir.put_with(name, |file| {
            let mut piece = vec![0; PIECE.min(length as usize)];
            while coming.left() > 0 {
                let piece = line.more(coming, &mut piece);
                let piece = piece.inspect_err(|error| broken = Some(error.kind()))?;
                file.write_all(piece)?;
            }
            Ok(())
        });
        self.give_back(match put {
            Ok(()) => before.saturating_sub(length),
            Err(_) => more,
        });
        match broken {
            Some(kind) => Err(kind.into()),
            None => Ok(put),
        }
    }

    fn size(&self, name: &str) -> u64 {
        let about = self.found(name).and_then(|file| {
            let about = file.metadata();
            about.map_err(|error| Error::new("", name, Kind::Io(error)))
        });
        about.map_or(0, |about| about.len())
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let size = self.size(name);
        self.dir.delete(name)?;
        self.give_back(size);
        Ok(())
    }
}

/// Tells the client what is wrong.
fn fail(line: &mut Line, error: &Error) -> io::Result<()> {
    if error.is_missing() {
        return line.send(Asked::Missing, "", &[]);
    }
    let text = match &error.kind {
        Kind::NoSpace(why) | Kind::Quota(why) | Kind::NoRights(why) | Kind::BadName(why) => why.clone(),
        kind => kind.to_string(),
    };
    let end = (0..=text.len().min(MOST_TEXT))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    let number: Reason = reason(&error.kind);
    line.send(Asked::Failed, &text[..end.unwrap_or(0)], &[number.number()])
}

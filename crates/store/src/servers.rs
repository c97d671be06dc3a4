//! `server:HOST[:PORT][,HOST…]`: checkpoint servers. Each object is on the one that its name chooses.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use resurgo_wire::frame;
use resurgo_wire::handshake::{Greeting, Hello, Server, Word};
use resurgo_wire::store::{Kind as Asked, Line as Listed, Reason, Side, number_of};

use crate::error::{Error, Kind};
use crate::line::{Line, read_word, write_word};
use crate::place::{Entry, MOST_BYTES, Place};
use crate::random;

/// How long a server may be away: it may be started anew.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// Time for a connection, and for a piece of a message. A full disk may be slow.
const CONNECT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(120);

/// Servers as one place.
pub struct Servers {
    shown: String,
    key: [u8; 32],
    hosts: Vec<Host>,
}

/// One server, and connections to it that wait for work.
struct Host {
    address: String,
    idle: Mutex<Vec<Line>>,
}

/// What a server answers.
struct Answer {
    kind: Asked,
    text: String,
    content: Vec<u8>,
}

/// Why a call is not answered.
enum Trouble {
    /// It may be later.
    Passing(io::Error),
    Final(Kind),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Passing(error)
    }
}

fn refused(error: frame::Error) -> Trouble {
    match error {
        frame::Error::NotAuthentic => Trouble::Final(Kind::NoRights("the server does not hold this key".to_string())),
        frame::Error::Refused { reason } => Trouble::Final(Kind::NoRights(reason)),
        error => Trouble::Final(Kind::NoPlace(format!("{error}; is that a checkpoint server?"))),
    }
}

/// A clock that does not jump.
fn now() -> SystemTime {
    static START: LazyLock<(SystemTime, Instant)> = LazyLock::new(|| (SystemTime::now(), Instant::now()));
    START.0 + START.1.elapsed()
}

impl Servers {
    /// `key`: the user's. Nothing is sent yet.
    pub fn open(shown: &str, addresses: &[String], key: [u8; 32]) -> Servers {
        let host = |address: &String| Host {
            address: address.clone(),
            idle: Mutex::default(),
        };
        Servers {
            shown: shown.to_string(),
            key,
            hosts: addresses.iter().map(host).collect(),
        }
    }

    /// The server of an object: a server more or less changes it for few objects.
    fn host_of(&self, name: &str) -> &Host {
        let weight = |host: &&Host| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(host.address.len() as u64).to_le_bytes());
            hasher.update(host.address.as_bytes()).update(name.as_bytes());
            *hasher.finalize().as_bytes()
        };
        self.hosts.iter().max_by_key(weight).unwrap_or(&self.hosts[0])
    }

    fn error(&self, host: &Host, object: &str, kind: Kind) -> Error {
        let place = match self.hosts.len() {
            1 => self.shown.clone(),
            _ => format!("{} ({})", self.shown, host.address),
        };
        Error::new(place, object, kind)
    }

    fn connect(&self, host: &Host) -> Result<Line, Trouble> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in host.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return self.greet(stream),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn greet(&self, mut stream: TcpStream) -> Result<Line, Trouble> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECT))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let hello = Hello {
            rank: 0,
            size: 1,
            incarnation: number_of(&self.key),
            nonce: random()?,
        };
        let greeting = Greeting::new(Server::Store, self.key, hello);
        let invalid = |error: io::Error| match error.downcast::<frame::Error>() {
            Ok(error) => refused(error),
            Err(error) => Trouble::Passing(error),
        };
        write_word(&mut stream, &greeting.hello())?;
        let word = read_word(&mut stream).map_err(invalid)?;
        let challenge = match &word {
            Word::Challenge { nonce, .. } => *nonce,
            _ => [0; 32],
        };
        let (_, proof) = greeting.answer(word, |_| None).map_err(refused)?;
        write_word(&mut stream, &proof)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Line::new(stream, &self.key, &hello.nonce, &challenge, Side::Client))
    }

    fn try_once(&self, host: &Host, asked: Asked, text: &str, content: &[u8], fresh: bool) -> Result<Answer, Trouble> {
        let idle = match fresh {
            true => None,
            false => host.idle.lock().unwrap_or_else(PoisonError::into_inner).pop(),
        };
        let mut line = match idle {
            Some(line) => line,
            None => self.connect(host)?,
        };
        line.send(asked, text, content)?;
        let mut coming = line.next()?.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let answer = Answer {
            kind: coming.kind,
            content: line.rest(&mut coming)?,
            text: coming.text,
        };
        host.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(answer)
    }

    /// Asks, and asks again if the answer does not come: nothing that is asked twice does harm.
    fn ask(&self, host: &Host, asked: Asked, text: &str, content: &[u8]) -> Result<Answer, Error> {
        let (start, mut pause, mut fresh) = (Instant::now(), FIRST_PAUSE, false);
        let answer = loop {
            match self.try_once(host, asked, text, content, fresh) {
                Ok(answer) => break answer,
                Err(Trouble::Final(kind)) => return Err(self.error(host, text, kind)),
                // The server may have closed all that was idle.
                Err(Trouble::Passing(_)) if !fresh => fresh = true,
                Err(Trouble::Passing(_)) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(pause);
                    pause = LAST_PAUSE.min(pause * 2);
                }
                Err(Trouble::Passing(error)) => {
                    let why = format!("{error}; does resurgo checkpoint-server run at {}?", host.address);
                    return Err(self.error(host, text, Kind::Unreachable(why)));
                }
            }
        };
        match answer.kind {
            Asked::Done => Ok(answer),
            Asked::Missing => Err(self.error(host, text, Kind::Missing)),
            _ => {
                let reason = Reason::numbered(answer.content.first().copied().unwrap_or(u8::MAX));
                let said = resurgo_wire::text::one_line(&answer.text);
                let kind = match reason {
                    Reason::NoSpace => Kind::NoSpace(said),
                    Reason::Quota => Kind::Quota(said),
                    Reason::NoRights => Kind::NoRights(said),
                    Reason::BadName => Kind::BadName(said),
                    Reason::Other => Kind::Io(io::Error::other(said)),
                };
                Err(self.error(host, text, kind))
            }
        }
    }

    fn ask_all(&self, asked: Asked, text: &str, content: &[u8]) -> Result<(), Error> {
        self.hosts
            .iter()
            .try_for_each(|host| self.ask(host, asked, text, content).map(drop))
    }
}

impl Place for Servers {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let host = self.host_of(name);
        if bytes.len() as u64 > MOST_BYTES {
            let (bytes, most) = (bytes.len() as u64, MOST_BYTES);
            return Err(self.error(host, name, Kind::TooLarge { bytes, most }));
        }
        self.ask(host, Asked::Put, name, bytes).map(drop)
    }

    fn settle(&self, job: &str) -> Result<(), Error> {
        self.ask_all(Asked::Settle, job, &[])
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        Ok(self.ask(self.host_of(name), Asked::Get, name, &[])?.content)
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        match self.ask(self.host_of(name), Asked::Has, name, &[]) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        for host in &self.hosts {
            let content = self.ask(host, Asked::List, folder, &[])?.content;
            let now = now();
            for line in String::from_utf8_lossy(&content).lines() {
                let Some(line) = Listed::decode(line) else { continue };
                let age = Duration::from_millis(line.age_ms);
                entries.push(Entry {
                    name: line.name,
                    bytes: line.bytes,
                    modified: now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        }
        // A job is at all of them.
        entries.sort_by(|one, other| (&one.name, other.modified).cmp(&(&other.name, one.modified)));
        entries.dedup_by(|one, other| one.name == other.name);
        Ok(entries)
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        self.ask(self.host_of(name), Asked::Delete, name, &[]).map(drop)
    }

    fn clear(&self, job: &str, all: bool) -> Result<(), Error> {
        self.ask_all(Asked::Clear, job, &[u8::from(all)])
    }
}

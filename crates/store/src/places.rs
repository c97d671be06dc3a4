//! `--store PLACE[;every=N][;rate=200M][;keep=N][;key=FILE][;start[=DIR]],PLACE…`

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use resurgo_wire::text::parse_size;

use crate::dir::Dir;
use crate::error::{Error, Kind};
use crate::objects::{self, Objects, Variables};
use crate::place::Place;
use crate::server_key;
use crate::servers::Servers;

/// Generations that stay in a place.
const KEEP: usize = 2;
/// The port of checkpoint servers.
pub const PORT: u16 = 4717;
/// A file with the key for checkpoint servers, if a place does not name one.
pub const KEY_VARIABLE: &str = "RESURGO_SERVER_KEY_FILE";
/// Among the variables that processes of a job have for its places: the key of servers that the job has started, in
/// hexadecimal digits.
pub const STARTED_KEY: &str = "RESURGO_STARTED_SERVERS_KEY";

/// Where a place is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Dir(PathBuf),
    /// Hosts with ports, as in `n1:4717`.
    Servers(Vec<String>),
    /// `s3://bucket/prefix`, `gs://…`, `az://…`.
    Objects(String),
}

/// A place, as the user has described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub location: Location,
    /// As it was written, without options.
    pub shown: String,
    /// Each so many generations, one goes there.
    pub every: u64,
    /// Bytes a second, at most.
    pub rate: Option<u64>,
    /// So many generations stay.
    pub keep: usize,
    /// A file with the key for checkpoint servers.
    pub key: Option<PathBuf>,
    /// The job itself starts these checkpoint servers, which keep their objects below this directory of their hosts.
    pub start: Option<PathBuf>,
}

/// As it can be written.
impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};every={};keep={}", self.shown, self.every, self.keep)?;
        self.rate.map_or(Ok(()), |rate| write!(f, ";rate={rate}"))?;
        let key = self.key.as_ref();
        key.map_or(Ok(()), |key| write!(f, ";key={}", key.display()))?;
        let start = self.start.as_ref();
        start.map_or(Ok(()), |start| write!(f, ";start={}", start.display()))
    }
}

/// The list of `--store`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places(pub Vec<Described>);

/// Where servers that a job starts keep their objects, if it does not say where: it outlives the machine's restart.
pub fn usual_directory() -> PathBuf {
    format!("/var/tmp/resurgo-{}", nix::unistd::geteuid()).into()
}

const HINT: &str = "write dir:/PATH, server:HOST[:PORT], s3://BUCKET/PREFIX, gs://… or az://…";
const SCHEMES: [&str; 5] = ["dir:", "server:", "s3://", "gs://", "az://"];

/// What lies between commas, where a comma within a list of hosts is none.
fn entries(text: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for piece in text.split(',') {
        // No host is called `dir`; a port is a number, and no scheme is followed by one.
        let begins = SCHEMES.iter().any(|scheme| piece.starts_with(scheme));
        match entries.last_mut() {
            Some(last) if !begins && last.starts_with("server:") && !last.contains(';') => {
                last.push(',');
                last.push_str(piece);
            }
            _ => entries.push(piece.to_string()),
        }
    }
    entries
}

/// A host with a port: `n1`, `n1:99`, `[::1]`, `[::1]:99`.
fn host(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no host: write HOST, HOST:PORT, or [IPV6]:PORT");
    let after = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(wrong)?.1,
        None => text.find(':').map_or("", |at| &text[at..]),
    };
    let name = &text[..text.len() - after.len()];
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/@;".contains(c);
    if name.is_empty() || name == "[]" || name.contains(bad) {
        return Err(wrong());
    }
    match after {
        "" => Ok(format!("{name}:{PORT}")),
        port => match port[1..].parse::<u16>() {
            Ok(1..) if port.starts_with(':') => Ok(text.to_string()),
            _ => Err(wrong()),
        },
    }
}

fn location(text: &str) -> Result<Location, String> {
    if let Some(path) = text.strip_prefix("dir:") {
        return match Path::new(path).is_absolute() {
            true => Ok(Location::Dir(path.into())),
            false => Err(format!(
                "{text:?}: write the whole path, from / on: nodes have other directories"
            )),
        };
    }
    if let Some(hosts) = text.strip_prefix("server:") {
        let hosts: Vec<String> = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        let mut sorted = hosts.clone();
        sorted.sort();
        return match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("{text:?} names {} twice", pair[0])),
            None => Ok(Location::Servers(hosts)),
        };
    }
    match text.split_once("://") {
        Some(("s3" | "gs" | "az", rest)) if !rest.is_empty() && !rest.starts_with('/') => {
            Ok(Location::Objects(text.trim_end_matches('/').to_string()))
        }
        Some(("s3" | "gs" | "az", _)) => Err(format!("{text:?} names no bucket: write {text}BUCKET/PREFIX")),
        _ => Err(format!("{text:?} is no place: {HINT}")),
    }
}

/// The bytes a second that an `option` such as `rate=200M` has as its value.
///
/// # Errors
/// It is no size, or nothing at all.
pub fn rate(option: &str, value: &str) -> Result<u64, String> {
    match parse_size(value.trim_end_matches("/s"))? {
        0 => Err(format!("{option:?}: must be more than 0 bytes a second")),
        rate => Ok(rate),
    }
}

impl Described {
    fn option(&mut self, option: &str) -> Result<(), String> {
        let number = |value: &str| match value.parse::<u32>() {
            Ok(number @ 1..) => Ok(number),
            _ => Err(format!("{option:?}: must be a number, at least 1")),
        };
        match option.split_once('=') {
            Some(("every", value)) => self.every = number(value)?.into(),
            Some(("keep", value)) => self.keep = number(value)? as usize,
            Some(("rate", value)) => self.rate = Some(rate(option, value)?),
            Some(("key", value)) if !value.is_empty() && matches!(self.location, Location::Servers(_)) => {
                self.key = Some(value.into());
            }
            Some(("key", _)) => {
                return Err(format!(
                    "{option:?}: only server:… has a key of its own; --store-key encrypts what goes to any place"
                ));
            }
            None if option == "start" => self.start = Some(usual_directory()),
            Some(("start", value)) if Path::new(value).is_absolute() => self.start = Some(value.into()),
            Some(("start", _)) => {
                return Err(format!(
                    "{option:?}: write the whole path of a directory that each of these hosts may have, from / on"
                ));
            }
            _ => {
                return Err(format!(
                    "{option:?} is no option of a place: there are every=N, rate=SIZE, keep=N, key=FILE and start[=DIR]"
                ));
            }
        }
        match (&self.location, &self.start, &self.key) {
            (Location::Servers(_), Some(_), Some(_)) => Err(format!(
                "{option:?}: servers that the job starts have its own key; leave key= out"
            )),
            (Location::Servers(_), ..) | (_, None, _) => Ok(()),
            _ => Err(format!("{option:?}: a job starts no others than server:HOST")),
        }
    }

    /// One place with its options.
    ///
    /// # Errors
    /// What is wrong with it, and how it should be written.
    pub fn parse(text: &str) -> Result<Described, String> {
        let mut words = text.split(';');
        let place = words.next().unwrap_or_default();
        let mut described = Described {
            location: location(place)?,
            shown: place.to_string(),
            every: 1,
            rate: None,
            keep: KEEP,
            key: None,
            start: None,
        };
        words.try_for_each(|option| described.option(option))?;
        Ok(described)
    }

    /// The place itself. `make`: for writing; a missing directory is made.
    ///
    /// # Errors
    /// It does not exist, cannot be reached, or is not for this user.
    pub fn open(&self, make: bool) -> Result<Arc<dyn Place>, Error> {
        self.open_with(make, &Vec::new())
    }

    /// What the place needs of this process's environment, for processes with another one.
    pub fn variables(&self) -> Variables {
        match &self.location {
            Location::Objects(address) => objects::variables(address),
            _ => Vec::new(),
        }
    }

    /// That of servers which the job has started.
    fn key_among(&self, variables: &Variables) -> Option<[u8; 32]> {
        self.start.as_ref()?;
        let (_, key) = variables.iter().find(|(name, _)| name == STARTED_KEY)?;
        blake3::Hash::from_hex(key).ok().map(Into::into)
    }

    fn key_in_file(&self) -> Result<[u8; 32], Error> {
        let refused = |why: String| Error::new(&self.shown, "", Kind::NoRights(why));
        let from_environment = || std::env::var_os(KEY_VARIABLE).map(PathBuf::from);
        let file = self.key.clone().or_else(from_environment).ok_or_else(|| {
            refused(format!(
                "name the file with its key: {};key=FILE, or in {KEY_VARIABLE}",
                self.shown
            ))
        })?;
        Ok(server_key::read(&file).map_err(refused)?[0].key)
    }

    /// The same with the variables of another process.
    ///
    /// # Errors
    /// As [`open`](Described::open).
    pub fn open_with(&self, make: bool, variables: &Variables) -> Result<Arc<dyn Place>, Error> {
        match &self.location {
            Location::Dir(path) => Ok(Arc::new(Dir::open(path, make)?)),
            Location::Servers(hosts) => {
                let key = match self.key_among(variables) {
                    Some(key) => key,
                    None => self.key_in_file()?,
                };
                Ok(Arc::new(Servers::open(&self.shown, hosts, key)))
            }
            Location::Objects(address) => Ok(Arc::new(Objects::open(address, variables)?)),
        }
    }
}

impl Places {
    /// # Errors
    /// What is wrong, and how it should be written.
    pub fn parse(text: &str) -> Result<Places, String> {
        let places: Vec<Described> = entries(text)
            .iter()
            .map(|entry| Described::parse(entry))
            .collect::<Result<_, _>>()?;
        for (number, place) in places.iter().enumerate() {
            if places[..number].iter().any(|other| other.location == place.location) {
                return Err(format!("{:?} is named twice", place.shown));
            }
        }
        Ok(Places(places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<Location> {
        let places = Places::parse(text).unwrap();
        places.0.into_iter().map(|place| place.location).collect()
    }

    #[test]
    fn commas_of_hosts_do_not_part_places() {
        let servers = |hosts: &[&str]| Location::Servers(hosts.iter().map(|host| host.to_string()).collect());
        let dir = || Location::Dir("/a".into());
        assert_eq!(shown("dir:/a"), [dir()]);
        assert_eq!(
            shown("server:a,b:99,[::1],dir:/a"),
            [servers(&["a:4717", "b:99", "[::1]:4717"]), dir()]
        );
        assert_eq!(
            shown("dir:/a,server:a;keep=3,s3://b/p/"),
            [dir(), servers(&["a:4717"]), Location::Objects("s3://b/p".to_string())]
        );
        assert_eq!(shown("server:a,server:b").len(), 2);
    }

    #[test]
    fn options_belong_to_their_place() {
        let places = Places::parse("dir:/a;every=10;rate=200M;keep=5,server:h;key=/k")
            .unwrap()
            .0;
        assert_eq!(
            (places[0].every, places[0].rate, places[0].keep),
            (10, Some(200 << 20), 5)
        );
        assert_eq!((places[1].every, places[1].rate, places[1].keep), (1, None, 2));
        assert_eq!(places[1].key, Some("/k".into()));
        assert_eq!(Places::parse(&places[0].to_string()).unwrap().0, places[..1]);
        assert_eq!(Places::parse(&places[1].to_string()).unwrap().0, places[1..]);
        let started = Places::parse("server:a,b:99;start=/d;every=3,server:c;start")
            .unwrap()
            .0;
        assert_eq!((started.len(), started[0].start.clone()), (2, Some("/d".into())));
        assert_eq!(started[1].start, Some(usual_directory()));
        assert_eq!(Places::parse(&started[0].to_string()).unwrap().0, started[..1]);
        assert_eq!(Places::parse("dir:/a;rate=1M/s").unwrap().0[0].rate, Some(1 << 20));
    }

    #[test]
    fn errors_say_how_to_write_it() {
        for (text, word) in [
            ("", "is no place"),
            ("dir:a", "whole path"),
            ("/a", "write dir:/PATH"),
            ("dir:/a,b", "is no place"),
            ("ftp://x", "is no place"),
            ("s3://", "names no bucket"),
            ("s3:///x", "names no bucket"),
            ("server:", "is no host"),
            ("server:a:0", "is no host"),
            ("server:a,a", "names a:4717 twice"),
            ("server:a,,b", "is no host"),
            ("server:[::1", "is no host"),
            ("server:a b", "is no host"),
            ("dir:/a;every=0", "at least 1"),
            ("dir:/a;keep=x", "at least 1"),
            ("dir:/a;rate=0", "more than 0"),
            ("dir:/a;rate=fast", "is not a size"),
            ("dir:/a;evry=1", "no option of a place"),
            ("dir:/a;key=/k", "only server:"),
            ("dir:/a,dir:/a;keep=1", "named twice"),
            ("dir:/a;start", "no others than server:"),
            ("server:a;start=x", "whole path"),
            ("server:a;start;key=/k", "leave key= out"),
            ("server:a;key=/k;start", "leave key= out"),
        ] {
            let error = Places::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
